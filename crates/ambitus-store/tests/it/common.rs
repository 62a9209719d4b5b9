//! A run that saves, saves a step again, and prunes; and what must be true of its directory whenever it stops.

pub mod disk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ambitus_store::{CheckpointDir, DType, Disk, Latest, Result, TensorSpec};

/// The state that a checkpoint of this step and version holds.
fn state(step: u64, version: u64) -> Vec<u8> {
    (0..3000u64).map(|i| (i * 31 + step * 7 + version * 3) as u8).collect()
}

fn save(dir: &CheckpointDir, step: u64, version: u64) -> Result<()> {
    let mut pending = dir.begin(step)?;
    let specs = vec![TensorSpec::new("w", DType::F32, &[3, 5]), TensorSpec::new("step", DType::I64, &[])];
    let mut shard = pending.writer("model.safetensors", specs, &BTreeMap::new())?;
    shard.write_i64("step", &[step as i64])?;
    shard.write_f32("w", &[version as f32; 15])?;
    shard.finish()?;
    pending.write_file("state.bin", &state(step, version))?;
    // Another process's part.
    let mut part = dir.join(step);
    part.write_file("model.1-of-2.bin", &state(step, version + 1))?;
    let other = part.finish()?;
    pending.adopt(other)?;
    pending.commit(serde_json::json!({ "version": version, "rate": 0.1 + step as f64 * 1e-17 })).map(drop)
}

/// What a run achieved: the saves that it was told had succeeded, and all that it tried.
#[derive(Default)]
pub struct Log {
    pub saved: Vec<(u64, u64)>,
    pub tried: Vec<(u64, u64)>,
    pub errors: Vec<String>,
}

/// Saves and prunes as training does; after an error resumes the next thing, as after "disk full".
pub fn run(disk: Arc<dyn Disk>, parent: &Path) -> Log {
    let dir = CheckpointDir::on(disk, parent);
    let mut log = Log::default();
    // Step 3 is saved twice: after falling back, training reaches a step again.
    for (version, step) in [1, 2, 3, 3, 4].into_iter().enumerate() {
        let version = version as u64;
        log.tried.push((step, version));
        match save(&dir, step, version) {
            Ok(()) => log.saved.push((step, version)),
            Err(e) => log.errors.push(e.to_string()),
        }
        if step >= 3 {
            // What to keep is what is known to be saved.
            let keep: Vec<u64> = log.saved.iter().rev().take(2).map(|s| s.0).collect();
            if let Err(e) = dir.prune(&keep, u64::MAX) {
                log.errors.push(e.to_string());
            }
        }
    }
    log
}

/// The invariants, as the next process sees the directory. `base` was there before the run.
pub fn check(disk: Arc<dyn Disk>, parent: &Path, base: (u64, u64), log: &Log, context: &str) {
    let dir = CheckpointDir::on(disk.clone(), parent);
    let attempts: Vec<(u64, u64)> = log.tried.iter().copied().chain([base]).collect();
    let genuine = |c: &ambitus_store::Checkpoint| {
        let version = c.manifest.meta["version"].as_u64().unwrap();
        let hash = blake3::hash(&state(c.step, version)).to_hex().to_string();
        assert!(attempts.contains(&(c.step, version)), "{context}: step {} version {version}", c.step);
        assert_eq!(c.manifest.meta["rate"], 0.1 + c.step as f64 * 1e-17, "{context}");
        assert_eq!(c.manifest.shards[1].blake3, hash, "{context}: step {}", c.step);
        (c.step, version)
    };
    for c in dir.list().unwrap() {
        dir.verify(&c.path).unwrap_or_else(|e| panic!("{context}: a listed checkpoint is broken: {e}"));
        genuine(&c);
    }
    let Latest { checkpoint, skipped } = dir.latest_good().unwrap();
    let found = genuine(&checkpoint.unwrap_or_else(|| panic!("{context}: nothing is loadable; {skipped:?}")));
    // No acknowledged save is lost: what is found is it, or a later attempt.
    let last = log.saved.last().copied().unwrap_or(base);
    let at = |s| attempts.iter().position(|a| *a == s).unwrap();
    let newer = last == base || (found != base && at(found) >= at(last));
    assert!(newer, "{context}: found {found:?}, but {last:?} had been acknowledged");
    // The next process carries on and clears what was left.
    save(&dir, 9, 9).unwrap_or_else(|e| panic!("{context}: {e}"));
    dir.prune(&[9], u64::MAX).unwrap();
    let left: Vec<_> = disk.list(parent).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(left, ["step-9"], "{context}");
}

/// Puts the checkpoint in place that was there before the run.
pub fn base(disk: Arc<dyn Disk>, parent: &Path) -> (u64, u64) {
    save(&CheckpointDir::on(disk, parent), 0, 100).unwrap();
    (0, 100)
}
