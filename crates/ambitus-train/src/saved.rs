//! Checkpoints of a run: parameters, optimizer, averages, counters, and where the run was.
//!
//! `step-N/` holds `model.safetensors` (the reference's names), `optimizer.safetensors`, `ema.safetensors` and the manifest,
//! written last, every state in its own element type. Gradients are not kept: an update ends before a checkpoint begins.
//!
//! Ranks that share tensors write what each holds, at the same time: `model.0-of-4.safetensors` and so on, pieces of the same
//! tensors under the same names ([`ambitus_store::PiecedFiles`]). Only one of several replicas writes. Ranks that each have a part
//! of the model write its tensors whole. The first rank creates the folder, is told what all have written, and writes the manifest.
//! Any number of ranks can read it, because ranges of tensors are read.

use crate::tensor_ranges::Piece;
use crate::weights::{self, STAGING_BYTES};
use crate::world::World;
use ambitus_compile::optimizer::FIRST_MOMENT;
use ambitus_exec::executor::Executor;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_ir::{self as ir, StateDecl, StateId, StateKind};
use ambitus_recipe::recipe::short;
use ambitus_store::{
    Checkpoint, CheckpointDir, DType, Part, Pending, PiecedFiles, Shard, TensorSpec, piece_spec,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Where a run is; everything that is not a state of the session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Updates tried: the next update's number.
    pub update: u64,
    /// Updates applied, by player: those whose gradients were finite. With one player, its number alone.
    #[serde(with = "by_player")]
    pub applied: Vec<u64>,
    /// Validation loss of the model the run started from.
    pub validation_base: Option<f64>,
    /// The best validation loss and its update.
    pub best: Option<(u64, f64)>,
    /// The last validation: losses of the weights and of the average.
    pub last: Option<(f64, Option<f64>)>,
    /// Its losses on each of several data sets, by name, of the better weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_sets: Vec<(String, f64)>,
    /// The lowest loss of the validations that `validate_every` asks for, and how many in a row since then were not below it. One
    /// that a stop asks for does not count: a run that is resumed ends where it would have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau: Option<(f64, u32)>,
    /// The update from which the run computes in fp32, because fp16 failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp32_from: Option<u64>,
    /// Digest of recipe and data: a checkpoint belongs to one run.
    pub run: String,
}

impl Progress {
    /// Returns the loss of the last validation, the lower one.
    pub fn last_loss(&self) -> Option<f64> {
        self.last.map(|(raw, ema)| ema.map_or(raw, |ema| ema.min(raw)))
    }
}

/// A number, or a list where there are several players.
mod by_player {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Numbers {
        One(u64),
        Several(Vec<u64>),
    }

    pub fn serialize<S: Serializer>(numbers: &[u64], s: S) -> Result<S::Ok, S::Error> {
        if let [one] = numbers { one.serialize(s) } else { numbers.serialize(s) }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u64>, D::Error> {
        Ok(match Numbers::deserialize(d)? {
            Numbers::One(n) => vec![n],
            Numbers::Several(all) => all,
        })
    }
}

/// Files of a checkpoint, without their ending, and the states in each.
const FILES: [(&str, &[StateKind]); 3] = [
    (MODEL, &[StateKind::Parameter]),
    ("optimizer", &[StateKind::Optimizer, StateKind::Counter]),
    (AVERAGES, &[StateKind::Ema]),
];
/// What parameters are in.
pub const MODEL: &str = "model";
/// What averages are in.
pub const AVERAGES: &str = "ema";

/// Returns the newest checkpoint whose every byte verifies; says which newer ones do not.
///
/// # Errors
/// Checkpoints of which none verifies.
pub fn newest_good(dir: &CheckpointDir, console: &mut dyn Console) -> Result<Option<Checkpoint>, RunError> {
    let latest = dir.latest_good()?;
    for skipped in &latest.skipped {
        console.line(&format!("damaged checkpoint passed over: {}", skipped.reason));
    }
    Ok(latest.checkpoint)
}

/// Returns the checkpoint of the best validation where it is kept, else the newest one; each with every byte verified.
///
/// # Errors
/// As [`newest_good`].
pub fn best(dir: &CheckpointDir, console: &mut dyn Console) -> Result<Option<Checkpoint>, RunError> {
    let Some(newest) = newest_good(dir, console)? else { return Ok(None) };
    let Some((update, _)) = progress(&newest)?.best.filter(|(update, _)| *update != newest.step) else {
        return Ok(Some(newest));
    };
    let Some(best) = dir.list()?.into_iter().find(|c| c.step == update) else { return Ok(Some(newest)) };
    match dir.verify(&best.path) {
        Ok(_) => Ok(Some(best)),
        Err(why) => {
            console.line(&format!("damaged checkpoint passed over: {why}"));
            Ok(Some(newest))
        }
    }
}

/// Returns the files of a checkpoint of a kind; `None` if it has none.
///
/// # Errors
/// Damaged files, and pieces that are not whole tensors together.
pub fn open(checkpoint: &Checkpoint, kind: &str) -> Result<Option<PiecedFiles>, RunError> {
    let of_kind = |s: &&Shard| s.name.split_once('.').is_some_and(|(head, _)| head == kind);
    let paths: Vec<_> =
        checkpoint.manifest.shards.iter().filter(of_kind).map(|s| checkpoint.path.join(&s.name)).collect();
    if paths.is_empty() {
        return Ok(None);
    }
    Ok(Some(PiecedFiles::open(paths)?))
}

fn of_kinds<'p>(
    pieces: &'p [Piece],
    states: &'p [StateDecl],
    kinds: &'p [StateKind],
) -> impl Iterator<Item = &'p Piece> {
    pieces.iter().filter(move |p| kinds.contains(&states[p.state.index()].kind))
}

/// Returns whether states of this kind are in checkpoints.
pub(crate) fn keeps(kind: StateKind) -> bool {
    FILES.iter().any(|(_, kinds)| kinds.contains(&kind))
}

/// Writes a checkpoint, together with the other ranks; it exists whole or not at all. `ready`: what had to be done before on
/// this rank, and whether it was.
///
/// # Errors
/// A full disk and the like, on any rank; earlier checkpoints are untouched. After [`RunError::Full`] all ranks are where they
/// would be after a save, and may continue; only the first knows if the disk became full at the very end.
pub fn save(
    exec: &dyn Executor,
    dir: &CheckpointDir,
    progress: &Progress,
    world: &World,
    ready: Result<(), RunError>,
) -> Result<(), RunError> {
    let step = progress.update;
    let busy = world.busy();
    let mut pending = None;
    let begun = ready.and_then(|()| {
        pending = if world.is_first() { Some(dir.begin(step)?) } else { None };
        Ok(())
    });
    drop(busy);
    agree(world, "the start of a checkpoint", begun)?;
    let mut joined = dir.join(step);
    let part = pending.as_mut().map_or(&mut joined, Pending::part);
    let written = write(exec, part, world).and_then(|()| Ok(joined.finish()?));
    let all = agree(world, "a checkpoint", written)?;
    if let Some(mut pending) = pending {
        let _busy = world.busy();
        for shards in all {
            pending.adopt(shards)?;
        }
        pending.commit(serde_json::to_value(progress).map_err(|e| RunError::Io(e.to_string()))?)?;
    }
    Ok(())
}

/// Returns what all ranks made, in their order. Where one had no room, that is the error of all.
fn agree<T: Serialize + DeserializeOwned>(
    world: &World,
    what: &str,
    mine: Result<T, RunError>,
) -> Result<Vec<T>, RunError> {
    let mine: Result<T, String> = match mine {
        Err(RunError::Full(why)) => Err(why),
        other => Ok(other?),
    };
    let all = world.exchange(what, &to_json(&mine)?)?;
    let all = all.iter().map(|said| from_json::<Result<T, String>>(said)?.map_err(RunError::Full));
    all.collect()
}

/// Clears what a killed process has left of a save or of a [`prune`], and prunes, after `progress`. Called when a run resumes.
///
/// # Errors
/// Files that cannot be removed.
pub fn tidy(dir: &CheckpointDir, progress: Option<&Progress>, keep: u32) -> Result<(), RunError> {
    dir.clean()?;
    // Newer ones are damaged, or cannot be read for the moment: they stay until the run comes to them.
    progress.map_or(Ok(()), |progress| prune(dir, progress, keep, progress.update))
}

/// Removes checkpoints up to the step `last` but for the newest `keep` up to `progress` and the best.
///
/// # Errors
/// Files that cannot be read or removed.
pub fn prune(dir: &CheckpointDir, progress: &Progress, keep: u32, last: u64) -> Result<(), RunError> {
    let mut steps: Vec<u64> = dir.list()?.into_iter().map(|c| c.step).collect();
    steps.sort_unstable();
    let newest = steps.into_iter().rev().filter(|step| *step <= progress.update).take(keep.max(1) as usize);
    let keep: Vec<u64> = newest.chain(progress.best.map(|(update, _)| update)).collect();
    dir.prune(&keep, last)?;
    Ok(())
}

/// Returns what a rank says to others.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, RunError> {
    serde_json::to_vec(value).map_err(|e| RunError::Io(e.to_string()))
}

/// Returns what another rank said.
pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RunError> {
    serde_json::from_slice(bytes)
        .map_err(|e| RunError::Training(format!("ranks do not understand each other: {e}")))
}

/// Writes what this rank is to write.
fn write(exec: &dyn Executor, part: &mut Part, world: &World) -> Result<(), RunError> {
    if !world.writes() {
        return Ok(());
    }
    let _busy = world.busy();
    let states = &exec.planned().session.states;
    let (k, n) = world.file();
    let all = world.pieces(states);
    let mut values = Vec::new();
    for (kind, kinds) in FILES {
        let (mut metadata, mut specs, mut by_key) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        // What every rank has whole, the first writes.
        for piece in of_kinds(&all, states, kinds).filter(|p| p.in_flat || world.has_own()) {
            let whole = TensorSpec::new(piece.name.as_str(), stored(piece.ty.dtype), &piece.ty.shape);
            let spec = piece_spec(whole, piece.range.clone(), &mut metadata);
            by_key.insert(spec.name.clone(), piece);
            specs.push(spec);
        }
        if specs.is_empty() {
            continue;
        }
        let name = match n {
            1 => format!("{kind}.safetensors"),
            _ => format!("{kind}.{k}-of-{n}.safetensors"),
        };
        let mut shard = part.writer(&name, specs, &metadata)?;
        let order: Vec<String> = shard.specs().iter().map(|s| s.name.clone()).collect();
        for key in order {
            let piece = by_key[&key];
            let codes = piece.ty.dtype == ir::DType::U8;
            let place = piece.at..piece.at + piece.range.len();
            read_in_chunks(exec, piece.state, place, &mut values, &mut |chunk| {
                if codes {
                    let bytes: Vec<u8> = chunk.iter().map(|x| *x as u8).collect();
                    return Ok(shard.write(&key, &bytes)?);
                }
                // Numbers of the type that they are written in: none is rounded.
                Ok(shard.write_f32(&key, chunk)?)
            })?;
        }
        shard.finish()?;
    }
    Ok(())
}

/// Returns the type in which a state is kept in a file: its own.
fn stored(dtype: ir::DType) -> DType {
    match dtype {
        ir::DType::F32 => DType::F32,
        ir::DType::BF16 => DType::Bf16,
        ir::DType::F16 => DType::F16,
        ir::DType::I32 => DType::I32,
        ir::DType::U8 => DType::U8,
    }
}

/// Hands elements of a state to `take` in parts of at most [`STAGING_BYTES`].
///
/// # Errors
/// From the executor or from `take`.
pub fn read_in_chunks(
    exec: &dyn Executor,
    id: StateId,
    elements: Range<usize>,
    staging: &mut Vec<f32>,
    take: &mut dyn FnMut(&[f32]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let mut start = elements.start;
    while start < elements.end {
        let len = (elements.end - start).min(STAGING_BYTES / 4);
        staging.resize(len, 0.0);
        exec.read_state_at(id, start, staging)?;
        take(staging)?;
        start += len;
    }
    Ok(())
}

/// Reads a checkpoint back, this rank's share of it.
///
/// # Errors
/// Tensors that do not fit the session, by name.
pub fn restore(exec: &mut dyn Executor, checkpoint: &Checkpoint, world: &World) -> Result<(), RunError> {
    let _busy = world.busy();
    let states = exec.planned().session.states.clone();
    let all = world.pieces(&states);
    let mut scratch = vec![0u8; STAGING_BYTES];
    if world.held().is_some() {
        pad(exec, &states)?;
    }
    for (kind, kinds) in FILES {
        let mut pieces = of_kinds(&all, &states, kinds).peekable();
        if pieces.peek().is_none() {
            continue;
        }
        let tensors = open(checkpoint, kind)?.ok_or_else(|| {
            let path = checkpoint.path.display();
            RunError::Model(format!("{path}: has no {kind}; this checkpoint belongs to another run"))
        })?;
        for piece in pieces {
            let have = tensors.get(&piece.name)?;
            if have.shape() != &*piece.ty.shape || have.dtype() != stored(piece.ty.dtype) {
                return Err(differs(tensors.path(), have, piece));
            }
            weights::read(exec, piece, tensors.path(), |take| {
                Ok(tensors.read_range(&piece.name, piece.range.clone(), &mut scratch, take)?)
            })?;
        }
    }
    Ok(())
}

fn differs(path: &Path, have: &ambitus_store::Pieced, piece: &Piece) -> RunError {
    RunError::Model(format!(
        "{}: {} is {}{:?}, the run has {}; this checkpoint belongs to another run",
        path.display(),
        piece.name,
        have.dtype().name().to_lowercase(),
        have.shape(),
        piece.ty
    ))
}

/// Returns the code of zero in a state of codes, by its name: first moments have signs.
fn zero(state: &str) -> f32 {
    if state.starts_with(FIRST_MOMENT) { 127.0 } else { 0.0 }
}

/// Fills what lies between the tensors of flats with zero, which in 8 bits is not the code 0.
fn pad(exec: &mut dyn Executor, states: &[StateDecl]) -> Result<(), RunError> {
    for (i, s) in states.iter().enumerate().filter(|(_, s)| s.ty.dtype == ir::DType::U8) {
        let elements = s.ty.shape.elements();
        let zeros = vec![zero(&s.name); elements.min(STAGING_BYTES / 4)];
        for at in (0..elements).step_by(zeros.len().max(1)) {
            exec.write_state_at(StateId(i as u32), at, &zeros[..zeros.len().min(elements - at)])?;
        }
    }
    Ok(())
}

/// Returns where the run of a checkpoint was.
///
/// # Errors
/// A manifest that is none of a run.
pub fn progress(checkpoint: &Checkpoint) -> Result<Progress, RunError> {
    let bad = |why: String| RunError::Model(format!("{}: manifest.json: {why}", checkpoint.path.display()));
    let progress: Progress =
        serde_json::from_value(checkpoint.manifest.meta.clone()).map_err(|e| bad(short(&e.to_string())))?;
    let most = progress.applied.iter().max().copied();
    if progress.update != checkpoint.step || most.is_none_or(|applied| applied > progress.update) {
        return Err(bad(format!(
            "says update {}, of which {} were applied, after step {}",
            progress.update,
            most.unwrap_or_default(),
            checkpoint.step
        )));
    }
    Ok(progress)
}

#[cfg(test)]
mod tests;
