//! Fills an executor's parameters: from a file of weights, or drawn.

use crate::tensor_ranges::{self, Piece};
use ambitus_compile::passes::lora;
use ambitus_compile::passes::precision::{INITIAL_SCALE, LOSS_SCALE};
use ambitus_compile::passes::shard::Layout;
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_ir::{StateDecl, StateKind};
use ambitus_models::Model;
use ambitus_models::init::Init;
use std::path::Path;

/// Bytes through which tensors are read and converted.
pub const STAGING_BYTES: usize = 1 << 20;

/// Writes every parameter, and the first loss scale where there is one. Tensors that the files lack by agreement (the rotary
/// buffer, new vocabulary rows, adapters) are made; without files all are drawn. Returns warnings about the files.
///
/// # Errors
/// Unreadable files.
pub fn load(exec: &mut dyn Executor, from: &ModelDir, seed: u64) -> Result<Vec<String>, RunError> {
    fill(exec, from, seed, None)?;
    from.doubts()
}

/// Loads what one of several ranks holds, and reads only these bytes. Returns no warnings about the files. See [`load`].
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
    if let Some(id) = exec.planned().session.state(LOSS_SCALE) {
        exec.write_state(id, &[INITIAL_SCALE])?;
    }
    for piece in tensor_ranges::of(&states, rank) {
        if states[piece.state.index()].kind != StateKind::Parameter {
            continue;
        }
        let have = match from.weights.as_ref().and_then(|w| w.find(&piece.name)) {
            Some((file, name)) => {
                // New vocabulary rows are not in the file.
                let have = file.get(&name)?.elements();
                let range = piece.range.start..piece.range.end.min(have);
                if !range.is_empty() {
                    read(exec, &piece, file.path(), |take| {
                        Ok(file.read_range(&name, range, &mut scratch, take)?)
                    })?;
                }
                have
            }
            None => 0,
        };
        make(exec, &piece, &*from.model, seed, have)?;
    }
    Ok(())
}

/// Writes a tensor's elements from `first` on to the state that has them.
fn write(exec: &mut dyn Executor, piece: &Piece, first: usize, data: &[f32]) -> Result<(), RunError> {
    Ok(exec.write_state_at(piece.state, piece.at + first - piece.range.start, data)?)
}

/// Streams what `source` reads into the state that has it. `source` gives, in parts, elements of the piece's range.
///
/// # Errors
/// From `source`, and values that are not finite.
pub fn read(
    exec: &mut dyn Executor,
    piece: &Piece,
    path: &Path,
    source: impl FnOnce(&mut dyn FnMut(usize, &[f32])) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let mut done = Ok(());
    source(&mut |first, values| {
        if done.is_err() {
            return;
        }
        done = match values.iter().position(|x| !x.is_finite()) {
            Some(bad) => Err(RunError::Model(format!(
                "{}: tensor {} holds {} at element {}; this checkpoint is broken, use an earlier one",
                path.display(),
                piece.name,
                values[bad],
                first + bad
            ))),
            None => write(exec, piece, first, values),
        };
    })?;
    done
}

/// Draws those elements of a piece of a parameter that a file lacks: from `from` on.
fn make(
    exec: &mut dyn Executor,
    piece: &Piece,
    model: &dyn Model,
    seed: u64,
    from: usize,
) -> Result<(), RunError> {
    let (from, end) = (from.max(piece.range.start), piece.range.end);
    if from >= end {
        return Ok(());
    }
    if let Some(values) = model.made(&piece.name) {
        return write(exec, piece, piece.range.start, &values[piece.range.clone()]);
    }
    let hash = blake3::hash(piece.name.as_bytes());
    let words = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| hash.as_bytes()[4 * i + k]));
    let key = [seed as u32 ^ words(0), (seed >> 32) as u32 ^ words(1)];
    let init = adapter_init(piece).unwrap_or_else(|| model.init(&piece.name, &piece.ty.shape));
    let mut values = Vec::new();
    for first in (from..end).step_by(STAGING_BYTES / 4) {
        values.clear();
        let last = end.min(first + STAGING_BYTES / 4);
        values.extend((first..last).map(|i| drawn(init, i, key, [words(2), words(3)])));
        write(exec, piece, first, &values)?;
    }
    Ok(())
}

/// Returns how an adapter's parameter starts, as in PEFT: A as PyTorch starts a linear layer (`kaiming_uniform_` with a = sqrt
/// 5 is uniform in ± 1/sqrt(In)), B at zero, so that the model starts as it was.
fn adapter_init(s: &Piece) -> Option<Init> {
    if s.name.ends_with(lora::B) {
        return Some(Init::Zero);
    }
    s.name.ends_with(lora::A).then(|| Init::Uniform(1.0 / (s.ty.shape.cols() as f32).sqrt()))
}

/// Returns element i of a drawn parameter.
fn drawn(init: Init, i: usize, key: [u32; 2], tensor: [u32; 2]) -> f32 {
    let bits = || philox4x32_10([i as u32, (i >> 32) as u32, tensor[0], tensor[1]], key);
    let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
    match init {
        Init::Zero => 0.0,
        Init::Constant(x) => x,
        Init::Uniform(bound) => ((2.0 * unit(bits()[0]) - 1.0) * f64::from(bound)) as f32,
        Init::Normal(spread) => {
            let words = bits();
            let r = (-2.0 * unit(words[0]).ln()).sqrt() * f64::from(spread);
            (r * (std::f64::consts::TAU * unit(words[1])).cos()) as f32
        }
    }
}
