//! Checkpoints of a run: parameters, optimizer, averages, counters, and where the run was.
//!
//! `step-N/` holds `model.safetensors` (the reference's names), `optimizer.safetensors`, `ema.safetensors` and the manifest,
//! written last, every state in its own element type. Gradients are not kept: an update ends before a checkpoint begins.

use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_ir::{self as ir, StateDecl, StateId, StateKind};
use ambitus_store::{Checkpoint, CheckpointDir};
use ambitus_store::{DType, TensorFile, TensorSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a run is; everything that is not a state of the session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Updates tried: the next update's number.
    pub update: u64,
    /// Updates applied: those whose gradients were finite.
    pub applied: u64,
    /// Validation loss of the model the run started from.
    pub validation_base: Option<f64>,
    /// The best validation loss and its update.
    pub best: Option<(u64, f64)>,
    /// The last validation: losses of the weights and of the average.
    pub last: Option<(f64, Option<f64>)>,
    /// The update from which the run computes in fp32, because fp16 could not go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp32_from: Option<u64>,
    /// Digest of recipe and data: a checkpoint belongs to one run.
    pub run: String,
}

/// Files of a checkpoint and the states in each.
const SHARDS: [(&str, &[StateKind]); 3] = [
    ("model.safetensors", &[StateKind::Parameter]),
    ("optimizer.safetensors", &[StateKind::Optimizer, StateKind::Counter]),
    ("ema.safetensors", &[StateKind::Ema]),
];

fn members<'a>(
    states: &'a [StateDecl],
    kinds: &'a [StateKind],
) -> impl Iterator<Item = (StateId, &'a StateDecl)> {
    let all = states.iter().enumerate().map(|(i, s)| (StateId(i as u32), s));
    all.filter(move |(_, s)| kinds.contains(&s.kind))
}

/// Writes a checkpoint; it exists whole or not at all.
///
/// # Errors
/// A full disk and the like; earlier checkpoints are untouched.
pub fn save(exec: &dyn Executor, dir: &CheckpointDir, progress: &Progress) -> Result<Checkpoint, RunError> {
    let states = &exec.planned().session.states;
    let mut pending = dir.begin(progress.update)?;
    let mut values = Vec::new();
    for (file, kinds) in SHARDS {
        let specs: Vec<TensorSpec> = members(states, kinds)
            .map(|(_, s)| TensorSpec::new(s.name.as_str(), stored(s.ty.dtype), &s.ty.shape))
            .collect();
        if specs.is_empty() {
            continue;
        }
        let by_name: BTreeMap<&str, StateId> =
            members(states, kinds).map(|(id, s)| (s.name.as_str(), id)).collect();
        let mut shard = pending.writer(file, specs, &BTreeMap::new())?;
        let order: Vec<String> = shard.specs().iter().map(|s| s.name.clone()).collect();
        for name in order {
            let id = by_name[name.as_str()];
            let codes = states[id.index()].ty.dtype == ir::DType::U8;
            read_in_chunks(exec, id, &mut values, &mut |chunk| {
                if codes {
                    let bytes: Vec<u8> = chunk.iter().map(|x| *x as u8).collect();
                    return Ok(shard.write(&name, &bytes)?);
                }
                // Numbers of the type that they are written in: none is rounded.
                Ok(shard.write_f32(&name, chunk)?)
            })?;
        }
        shard.finish()?;
    }
    let meta = serde_json::to_value(progress).map_err(|e| RunError::Io(e.to_string()))?;
    Ok(pending.commit(meta)?)
}

/// The type in which a state is kept in a file: its own.
fn stored(dtype: ir::DType) -> DType {
    match dtype {
        ir::DType::F32 => DType::F32,
        ir::DType::BF16 => DType::Bf16,
        ir::DType::F16 => DType::F16,
        ir::DType::I32 => DType::I32,
        ir::DType::U8 => DType::U8,
    }
}

/// Hands a state to `take` in pieces of at most [`STAGING_BYTES`](crate::load::STAGING_BYTES).
///
/// # Errors
/// From the executor or from `take`.
pub fn read_in_chunks(
    exec: &dyn Executor,
    id: StateId,
    staging: &mut Vec<f32>,
    take: &mut dyn FnMut(&[f32]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let total = exec.planned().session.states[id.index()].ty.shape.elements();
    let mut start = 0;
    while start < total {
        let len = (total - start).min(crate::load::STAGING_BYTES / 4);
        staging.resize(len, 0.0);
        exec.read_state_at(id, start, staging)?;
        take(staging)?;
        start += len;
    }
    Ok(())
}

/// Reads a checkpoint back.
///
/// # Errors
/// Tensors that do not fit the session, by name.
pub fn restore(exec: &mut dyn Executor, checkpoint: &Checkpoint) -> Result<Progress, RunError> {
    let states = exec.planned().session.states.clone();
    let mut scratch = vec![0u8; crate::load::STAGING_BYTES];
    for (file, kinds) in SHARDS {
        if members(&states, kinds).next().is_none() {
            continue;
        }
        let path = checkpoint.path.join(file);
        let tensors = TensorFile::open(&path)?;
        for (id, s) in members(&states, kinds) {
            let have = tensors.get(&s.name)?;
            if have.shape() != &*s.ty.shape || have.dtype() != stored(s.ty.dtype) {
                return Err(RunError::Model(format!(
                    "{}: {} is {}{:?}, the run has {}; this checkpoint belongs to another run",
                    path.display(),
                    s.name,
                    have.dtype().name().to_lowercase(),
                    have.shape(),
                    s.ty
                )));
            }
            crate::load::read_state(exec, id, &s.name, &tensors, &s.name, &mut scratch)?;
        }
    }
    progress(checkpoint)
}

/// Where the run of a checkpoint was.
///
/// # Errors
/// A manifest that is none of a run.
pub fn progress(checkpoint: &Checkpoint) -> Result<Progress, RunError> {
    serde_json::from_value(checkpoint.manifest.meta.clone())
        .map_err(|e| RunError::Model(format!("{}: manifest.json: {e}", checkpoint.path.display())))
}
