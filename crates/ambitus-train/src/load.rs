//! Fills an executor's parameters: from a file of weights, or drawn.

use crate::error::RunError;
use crate::model_dir::ModelDir;
use ambitus_compile::passes::lora;
use ambitus_compile::passes::precision::{INITIAL_SCALE, LOSS_SCALE};
use ambitus_compile::passes::shard::Layout;
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_ir::{StateDecl, StateId, StateKind};
use ambitus_models::Model;
use ambitus_models::init::Init;
use ambitus_store::TensorFile;
use std::ops::Range;

/// Bytes through which tensors are read and converted.
pub const STAGING_BYTES: usize = 1 << 20;

/// Writes every parameter, and the first loss scale where there is one. Tensors that the files lack by agreement (the rotary
/// buffer, new vocabulary rows, adapters) are made; without files all are drawn. Gives what is odd about the files.
///
/// # Errors
/// Unreadable files.
pub fn load(exec: &mut dyn Executor, from: &ModelDir, seed: u64) -> Result<Vec<String>, RunError> {
    fill(exec, from, seed, None)?;
    from.doubts()
}

/// As [`load`], of one of several ranks: what it holds. Says nothing of the files.
///
/// # Errors
/// Unreadable files.
pub fn fill(
    exec: &mut dyn Executor,
    from: &ModelDir,
    seed: u64,
    rank: Option<(&Layout, usize)>,
) -> Result<(), RunError> {
    let states: Vec<StateDecl> = exec.planned().session.states.clone();
    let mut scratch = vec![0u8; STAGING_BYTES];
    for (i, s) in states.iter().enumerate() {
        let id = StateId(i as u32);
        if s.name == LOSS_SCALE {
            exec.write_state(id, &[INITIAL_SCALE])?;
        }
        if s.kind != StateKind::Parameter {
            continue;
        }
        let mut tensor = |s: &StateDecl, place: Place| -> Result<(), RunError> {
            let have = match from.weights.as_ref().and_then(|w| w.find(&s.name)) {
                Some((file, name)) => read_part(exec, &place, &s.name, file, &name, &mut scratch)?,
                None => 0,
            };
            make(exec, &place, s, &from.model, seed, have)
        };
        match rank.and_then(|(layout, rank)| Some((layout, rank, layout.flat(&s.name)?))) {
            None => tensor(s, Place::whole(id))?,
            Some((layout, rank, flat)) => {
                let held = flat.held(layout.mesh(), rank);
                for (t, decl) in flat.tensors.iter().zip(layout.tensors(std::slice::from_ref(s))) {
                    let range = t.range();
                    if range.start < held.end && held.start < range.end {
                        tensor(&decl, Place { state: id, at: t.at, held: held.clone() })?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Where a tensor's elements are: in a state of its own, or from `at` on in a flat, of which the state has those `held`.
struct Place {
    state: StateId,
    at: usize,
    held: Range<usize>,
}

impl Place {
    fn whole(state: StateId) -> Place {
        Place { state, at: 0, held: 0..usize::MAX }
    }

    /// Writes what the state has of the tensor's elements from `first` on.
    fn write(&self, exec: &mut dyn Executor, first: usize, data: &[f32]) -> Result<(), RunError> {
        let start = self.at + first;
        let (from, to) = (start.max(self.held.start), (start + data.len()).min(self.held.end));
        if from < to {
            let data = &data[from - start..to - start];
            exec.write_state_at(self.state, from - self.held.start, data)?;
        }
        Ok(())
    }
}

/// Streams a tensor of a file into a state, and returns its elements.
///
/// # Errors
/// Unreadable files, and values that are not finite.
pub fn read_state(
    exec: &mut dyn Executor,
    id: StateId,
    state: &str,
    file: &TensorFile,
    name: &str,
    scratch: &mut [u8],
) -> Result<usize, RunError> {
    read_part(exec, &Place::whole(id), state, file, name, scratch)
}

/// As [`read_state`], to where the tensor is.
fn read_part(
    exec: &mut dyn Executor,
    place: &Place,
    state: &str,
    file: &TensorFile,
    name: &str,
    scratch: &mut [u8],
) -> Result<usize, RunError> {
    let mut failed = None;
    file.read_pieces(name, scratch, |first, piece| {
        if failed.is_some() {
            return;
        }
        failed = match piece.iter().position(|x| !x.is_finite()) {
            Some(bad) => Some(RunError::Model(format!(
                "{}: tensor {state} holds {} at element {}; this checkpoint is broken, use an earlier one",
                file.path().display(),
                piece[bad],
                first + bad
            ))),
            None => place.write(exec, first, piece).err(),
        };
    })?;
    match failed {
        Some(e) => Err(e),
        None => Ok(file.get(name)?.elements()),
    }
}

/// Bytes that reading or writing weights needs beside the arena: the bytes of a piece and its values.
pub const LOAD_BYTES: u64 = 3 * STAGING_BYTES as u64;

/// Draws a parameter's elements from `from` on.
fn make(
    exec: &mut dyn Executor,
    place: &Place,
    s: &StateDecl,
    model: &Model,
    seed: u64,
    from: usize,
) -> Result<(), RunError> {
    let total = s.ty.shape.elements();
    if from >= total {
        return Ok(());
    }
    if let Some(values) = model.made(&s.name) {
        return place.write(exec, 0, &values);
    }
    let hash = blake3::hash(s.name.as_bytes());
    let words = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| hash.as_bytes()[4 * i + k]));
    let key = [seed as u32 ^ words(0), (seed >> 32) as u32 ^ words(1)];
    let init = adapter_init(s).unwrap_or_else(|| model.init(&s.name, &s.ty.shape));
    let mut piece = Vec::new();
    for first in (from..total).step_by(STAGING_BYTES / 4) {
        piece.clear();
        let last = total.min(first + STAGING_BYTES / 4);
        piece.extend((first..last).map(|i| drawn(init, i, key, [words(2), words(3)])));
        place.write(exec, first, &piece)?;
    }
    Ok(())
}

/// How an adapter's parameter starts, as in PEFT: A as PyTorch starts a linear layer (`kaiming_uniform_` with a = sqrt 5 is
/// uniform in ± 1/sqrt(In)), B at zero, so that the model starts as it was.
fn adapter_init(s: &StateDecl) -> Option<Init> {
    if s.name.ends_with(lora::B) {
        return Some(Init::Zero);
    }
    s.name.ends_with(lora::A).then(|| Init::Uniform(1.0 / (s.ty.shape.cols() as f32).sqrt()))
}

/// Element i of a drawn parameter.
fn drawn(init: Init, i: usize, key: [u32; 2], tensor: [u32; 2]) -> f32 {
    let bits = || philox4x32_10([i as u32, (i >> 32) as u32, tensor[0], tensor[1]], key);
    let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
    match init {
        Init::Zero => 0.0,
        Init::One => 1.0,
        Init::Uniform(bound) => ((2.0 * unit(bits()[0]) - 1.0) * f64::from(bound)) as f32,
        Init::Normal(spread) => {
            let words = bits();
            let r = (-2.0 * unit(words[0]).ln()).sqrt() * f64::from(spread);
            (r * (std::f64::consts::TAU * unit(words[1])).cos()) as f32
        }
    }
}
