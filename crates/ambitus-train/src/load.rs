//! Fills an executor's parameters: from a file of weights, or drawn.

use crate::error::RunError;
use crate::model_dir::Weights;
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_ir::{StateDecl, StateId, StateKind};
use ambitus_models::f5::config::Config;
use ambitus_models::f5::weights;
use ambitus_models::init::Init;

/// Bytes through which tensors are read and converted.
pub const STAGING_BYTES: usize = 1 << 20;

/// Writes every parameter. Tensors that the file lacks by agreement (the rotary buffer, new vocabulary rows) are made;
/// without a file all are drawn.
///
/// # Errors
/// Unreadable files.
pub fn load(
    exec: &mut dyn Executor,
    cfg: &Config,
    file: Option<&Weights>,
    seed: u64,
) -> Result<(), RunError> {
    let states: Vec<StateDecl> = exec.planned().session.states.clone();
    let mut scratch = vec![0u8; STAGING_BYTES];
    let mut values = Vec::new();
    for (i, s) in states.iter().enumerate() {
        if s.kind != StateKind::Parameter {
            continue;
        }
        let want = s.ty.shape.elements();
        values.clear();
        values.resize(want, 0.0f32);
        let name = file.map(|f| (f, f.name_of(&s.name))).filter(|(f, n)| f.file.contains(n));
        let have = match &name {
            Some((f, name)) => {
                let have = f.file.get(name)?.elements().min(want);
                f.file.read_into(name, &mut values[..have], &mut scratch)?;
                have
            }
            None => 0,
        };
        if have < want {
            make(&s.name, &s.ty.shape, cfg, seed, have, &mut values);
        }
        if let Some(bad) = values.iter().position(|x| !x.is_finite()) {
            let path = file.map_or(String::new(), |f| format!("{}: ", f.file.path().display()));
            return Err(RunError::Model(format!(
                "{path}tensor {} holds {} at element {bad}; this checkpoint is broken, use an earlier one",
                s.name, values[bad]
            )));
        }
        exec.write_state(StateId(i as u32), &values)?;
    }
    Ok(())
}

/// Bytes that [`load`] needs beside the arena.
pub fn load_bytes(states: &[StateDecl]) -> u64 {
    let largest = states
        .iter()
        .filter(|s| s.kind == StateKind::Parameter)
        .map(|s| s.ty.shape.elements() as u64 * 4)
        .max();
    largest.unwrap_or(0) + STAGING_BYTES as u64
}

/// Draws the elements from `from` on.
fn make(name: &str, dims: &[usize], cfg: &Config, seed: u64, from: usize, out: &mut [f32]) {
    if name == weights::INV_FREQ {
        out.copy_from_slice(&weights::inv_freq(cfg));
        return;
    }
    let hash = blake3::hash(name.as_bytes());
    let words = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| hash.as_bytes()[4 * i + k]));
    let key = [seed as u32 ^ words(0), (seed >> 32) as u32 ^ words(1)];
    let init = weights::init(name, dims, cfg);
    for (i, x) in out.iter_mut().enumerate().skip(from) {
        let bits = philox4x32_10([i as u32, (i >> 32) as u32, words(2), words(3)], key);
        let unit = |k: usize| (f64::from(bits[k]) + 0.5) / 4_294_967_296.0;
        *x = match init {
            Init::Zero => 0.0,
            Init::One => 1.0,
            Init::Uniform(bound) => ((2.0 * unit(0) - 1.0) * f64::from(bound)) as f32,
            Init::Normal => {
                let r = (-2.0 * unit(0).ln()).sqrt();
                (r * (std::f64::consts::TAU * unit(1)).cos()) as f32
            }
        };
    }
}
