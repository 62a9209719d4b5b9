//! A directory of step checkpoints: each is whole and verifiable, or is not there.
//!
//! `step-N.tmp/` is being written, `step-N/` is complete. A save writes the shards and last the manifest into the
//! former, flushes files and directory, renames it, and flushes the parent. Saving a step again moves the old
//! directory to `step-N.old/` first and removes it at the end; until the new one has its name, the old one counts.
//! So a kill or a power loss at any point leaves every earlier checkpoint loadable. Where several processes write one
//! checkpoint, one begins and commits, the others [join](CheckpointDir::join) between: the manifest is still the last.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{create_temp, parent_of, remove_dir_all};
use crate::manifest::{check_file_name, check_length};
use crate::writer::{SafetensorsWriter, TensorSpec, Written};
use crate::{Disk, Manifest, RealDisk, Result, Shard, StoreError};

/// The checkpoints of one run.
#[derive(Clone)]
pub struct CheckpointDir {
    disk: Arc<dyn Disk>,
    parent: PathBuf,
}

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The step it was saved after.
    pub step: u64,
    /// Its directory.
    pub path: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
}

/// A checkpoint that could not be used, and why.
#[derive(Debug)]
pub struct Skipped {
    /// Its directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: StoreError,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped {}: {}", self.path.display(), self.reason)
    }
}

/// What [`CheckpointDir::latest_good`] found.
#[derive(Debug)]
pub struct Latest {
    /// The newest checkpoint whose every byte verifies; `None` if there is none at all.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that do not, newest first; to be shown.
    pub skipped: Vec<Skipped>,
}

/// What a directory entry is, by its name. Of one step, `Final` is preferred to `Old`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Temp,
    Old,
    Final,
}

impl CheckpointDir {
    /// Returns the checkpoints under `parent`, which need not exist yet.
    pub fn new(parent: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(RealDisk), parent)
    }

    /// Returns [`Self::new`] on the given disk.
    pub fn on(disk: Arc<dyn Disk>, parent: impl Into<PathBuf>) -> Self {
        Self { disk, parent: parent.into() }
    }

    /// Returns the directory that holds the checkpoints.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    fn dir(&self, step: u64, kind: Kind) -> PathBuf {
        let suffix = match kind {
            Kind::Temp => ".tmp",
            Kind::Old => ".old",
            Kind::Final => "",
        };
        self.parent.join(format!("step-{step}{suffix}"))
    }

    /// Returns entries that are named like checkpoints, by step, the preferred one of a step last.
    fn scan(&self) -> Result<Vec<(u64, Kind)>> {
        let entries = match self.disk.list(&self.parent) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => {
                return Err(StoreError::io(&self.parent, "cannot list the checkpoints", e));
            }
        };
        let parse = |name: &str| {
            let (digits, kind) = match name.strip_prefix("step-")?.split_once('.') {
                None => (&name[5..], Kind::Final),
                Some((digits, "tmp")) => (digits, Kind::Temp),
                Some((digits, "old")) => (digits, Kind::Old),
                Some(_) => return None,
            };
            let step: u64 = digits.parse().ok()?;
            (step.to_string() == digits).then_some((step, kind))
        };
        let mut found: Vec<_> =
            entries.iter().filter(|e| e.is_dir).filter_map(|e| parse(e.name.to_str()?)).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, step: u64, kind: Kind) -> Result<Checkpoint> {
        let path = self.dir(step, kind);
        let manifest = Manifest::read(&*self.disk, &path)?;
        if manifest.step != step {
            let what = format!("holds step {}", manifest.step);
            return Err(StoreError::new(
                &path,
                what,
                "give the directory its old name, or use another checkpoint",
            ));
        }
        manifest.check_lengths(&*self.disk, &path)?;
        Ok(Checkpoint { step, path, manifest })
    }

    fn read_verified(&self, step: u64, kind: Kind) -> Result<Checkpoint> {
        let checkpoint = self.read(step, kind)?;
        checkpoint.manifest.check_hashes(&*self.disk, &checkpoint.path)?;
        Ok(checkpoint)
    }

    /// Returns the complete checkpoints, oldest first; unfinished and incomplete ones are not among them. Hashes are not
    /// checked, see [`Self::verify`].
    pub fn list(&self) -> Result<Vec<Checkpoint>> {
        let mut list: Vec<Checkpoint> = Vec::new();
        for (step, kind) in self.scan()? {
            if kind == Kind::Temp {
                continue;
            }
            if let Ok(checkpoint) = self.read(step, kind) {
                list.retain(|c| c.step != step);
                list.push(checkpoint);
            }
        }
        Ok(list)
    }

    /// Reads the checkpoint in directory `path` in full and compares every hash.
    pub fn verify(&self, path: &Path) -> Result<Manifest> {
        let manifest = Manifest::read(&*self.disk, path)?;
        manifest.check_lengths(&*self.disk, path)?;
        manifest.check_hashes(&*self.disk, path)?;
        Ok(manifest)
    }

    /// Returns the newest checkpoint that verifies, with the newer ones that do not.
    ///
    /// # Errors
    /// Checkpoints of which none verifies. Taking that for no checkpoint would restart the run and replace them.
    pub fn latest_good(&self) -> Result<Latest> {
        let mut skipped = Vec::new();
        for (step, kind) in self.scan()?.into_iter().rev().filter(|&(_, kind)| kind != Kind::Temp) {
            match self.read_verified(step, kind) {
                Ok(checkpoint) => {
                    return Ok(Latest { checkpoint: Some(checkpoint), skipped });
                }
                Err(reason) => skipped.push(Skipped { path: self.dir(step, kind), reason }),
            }
        }
        if skipped.is_empty() {
            return Ok(Latest { checkpoint: None, skipped });
        }
        let reasons: Vec<String> = skipped.iter().map(|s| s.reason.to_string()).collect();
        let what = format!("no checkpoint here can be used: {}", reasons.join("; "));
        Err(StoreError::new(
            &self.parent,
            what,
            "put their files back; to begin the run again, move this folder away",
        ))
    }

    /// Removes every checkpoint up to the step `last` that is not in `keep`, after the newest of the kept ones has been read
    /// again and verified; if it does not verify, nothing is removed. Gives the removed steps.
    pub fn prune(&self, keep: &[u64], last: u64) -> Result<Vec<u64>> {
        let found = self.scan()?;
        let Some(&(newest, kind)) = found.iter().rev().find(|(s, k)| *k != Kind::Temp && keep.contains(s))
        else {
            let what = "none of the checkpoints to keep exists, so none is removed";
            return Err(StoreError::new(&self.parent, what, "keep at least one that is there"));
        };
        let goes = |(step, kind): &(u64, Kind)| *kind != Kind::Temp && *step <= last && !keep.contains(step);
        let gone: Vec<_> = found.iter().copied().filter(goes).collect();
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        self.read_verified(newest, kind)?;
        let mut removed = Vec::new();
        for (step, kind) in gone {
            self.retire(step, kind)?;
            removed.push(step);
        }
        removed.dedup();
        Ok(removed)
    }

    /// Removes a directory; first it loses its name, so that half of it never passes for a checkpoint.
    fn retire(&self, step: u64, kind: Kind) -> Result<()> {
        let (path, temp) = (self.dir(step, kind), self.dir(step, Kind::Temp));
        self.rename(&path, &temp)?;
        remove_dir_all(&*self.disk, &temp)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to).map_err(|e| StoreError::io(from, "cannot rename", e))
    }

    fn sync_parent(&self) -> Result<()> {
        self.disk.sync_dir(&self.parent).map_err(|e| StoreError::io(&self.parent, "cannot flush to disk", e))
    }

    /// Clears what a killed save left behind: temporary directories, and of two versions of a step the worse.
    ///
    /// # Errors
    /// Files that cannot be removed or read.
    pub fn clean(&self) -> Result<()> {
        let found = self.scan()?;
        for &(step, kind) in &found {
            if kind == Kind::Temp {
                remove_dir_all(&*self.disk, &self.dir(step, Kind::Temp))?;
            }
        }
        for &(step, _) in found.iter().filter(|(_, kind)| *kind == Kind::Old) {
            let (old, named) = (self.dir(step, Kind::Old), self.dir(step, Kind::Final));
            if found.contains(&(step, Kind::Final)) {
                let old_is_better = match self.read_verified(step, Kind::Final) {
                    Ok(_) => false,
                    Err(e) if e.is_io() => return Err(e), // unreadable now is not yet damaged
                    Err(_) => self.read_verified(step, Kind::Old).is_ok(),
                };
                self.sync_parent()?;
                if !old_is_better {
                    self.retire(step, Kind::Old)?;
                    continue;
                }
                self.retire(step, Kind::Final)?;
            }
            self.rename(&old, &named)?;
            self.sync_parent()?;
        }
        Ok(())
    }

    /// Starts the checkpoint of `step`, after clearing what a killed save left behind.
    pub fn begin(&self, step: u64) -> Result<Pending> {
        match self.disk.create_dir(&self.parent) {
            Ok(()) => {
                let above = parent_of(&self.parent);
                self.disk.sync_dir(above).map_err(|e| StoreError::io(above, "cannot flush to disk", e))?;
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(StoreError::io(&self.parent, "cannot create", e)),
        }
        self.clean()?;
        let temp = self.dir(step, Kind::Temp);
        self.disk.create_dir(&temp).map_err(|e| StoreError::io(&temp, "cannot create", e))?;
        Ok(Pending { dir: self.clone(), step, part: Part::new(self.disk.clone(), temp), done: false })
    }

    /// Takes part in the checkpoint of `step`, which another process has begun and will commit: a shared file system.
    pub fn join(&self, step: u64) -> Part {
        Part::new(self.disk.clone(), self.dir(step, Kind::Temp))
    }
}

/// The files that one process adds to a checkpoint.
pub struct Part {
    disk: Arc<dyn Disk>,
    temp: PathBuf,
    shards: Vec<Shard>,
    unfinished: usize,
}

impl Part {
    fn new(disk: Arc<dyn Disk>, temp: PathBuf) -> Part {
        Part { disk, temp, shards: Vec::new(), unfinished: 0 }
    }

    fn claim(&self, name: &str) -> Result<PathBuf> {
        let path = self.temp.join(name);
        check_file_name(name).map_err(|what| StoreError::new(&path, what, ""))?;
        if self.shards.iter().any(|s| s.name == name) {
            return Err(StoreError::new(&path, "is written twice", ""));
        }
        Ok(path)
    }

    /// Starts the safetensors file `name` of this checkpoint.
    pub fn writer(
        &mut self,
        name: &str,
        specs: Vec<TensorSpec>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<ShardWriter<'_>> {
        let path = self.claim(name)?;
        self.unfinished += 1;
        let inner = SafetensorsWriter::start(self.disk.clone(), path.clone(), path, specs, metadata)?;
        Ok(ShardWriter { inner, part: self, name: name.into() })
    }

    /// Adds the file `name` with this content.
    pub fn write_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.claim(name)?;
        self.unfinished += 1;
        let mut file = create_temp(&*self.disk, &path)?;
        file.write_all(bytes).map_err(|e| StoreError::io(&path, "cannot write", e))?;
        file.sync().map_err(|e| StoreError::io(&path, "cannot flush to disk", e))?;
        self.add(name, bytes.len() as u64, blake3::hash(bytes).to_hex().to_string());
        Ok(())
    }

    fn add(&mut self, name: &str, bytes: u64, blake3: String) {
        self.unfinished -= 1;
        self.shards.push(Shard { name: name.into(), bytes, blake3 });
    }

    fn require_finished(&self) -> Result<()> {
        if self.unfinished > 0 {
            let what = "a file of the checkpoint was not finished";
            return Err(StoreError::new(&self.temp, what, "save again"));
        }
        Ok(())
    }

    /// Flushes the names of the files, and gives them: what [`Pending::adopt`] of the process that commits must be told.
    pub fn finish(self) -> Result<Vec<Shard>> {
        self.require_finished()?;
        if !self.shards.is_empty() {
            let flushed = self.disk.sync_dir(&self.temp);
            flushed.map_err(|e| StoreError::io(&self.temp, "cannot flush to disk", e))?;
        }
        Ok(self.shards)
    }
}

/// A checkpoint being written. Dropped without [`Self::commit`], it is removed.
pub struct Pending {
    dir: CheckpointDir,
    step: u64,
    part: Part,
    done: bool,
}

impl Pending {
    /// Returns the directory being written.
    pub fn path(&self) -> &Path {
        &self.part.temp
    }

    /// Returns this process's files.
    pub fn part(&mut self) -> &mut Part {
        &mut self.part
    }

    /// See [`Part::writer`].
    pub fn writer(
        &mut self,
        name: &str,
        specs: Vec<TensorSpec>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<ShardWriter<'_>> {
        self.part.writer(name, specs, metadata)
    }

    /// See [`Part::write_file`].
    pub fn write_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.part.write_file(name, bytes)
    }

    /// Adds files that another process has written to its [`Part`].
    pub fn adopt(&mut self, shards: Vec<Shard>) -> Result<()> {
        for shard in shards {
            let path = self.part.claim(&shard.name)?;
            check_length(&*self.dir.disk, &self.part.temp, &shard).map_err(|e| {
                let what = format!("was written by another process, and is not so here ({e})");
                StoreError::new(
                    &path,
                    what,
                    "all processes of a run need its folder on a file system that they share",
                )
            })?;
            self.part.shards.push(shard);
        }
        Ok(())
    }

    /// Writes the manifest with `meta` and gives the checkpoint its name. After `Ok` it survives a power loss; after
    /// `Err` earlier checkpoints are as they were, and this one may be there (whole) or not.
    pub fn commit(mut self, meta: serde_json::Value) -> Result<Checkpoint> {
        self.part.require_finished()?;
        let (dir, step) = (self.dir.clone(), self.step);
        let manifest = Manifest { step, shards: std::mem::take(&mut self.part.shards), meta };
        // An atomic write, so it also flushes the directory, and with it the names of the shards.
        manifest.write(&*dir.disk, &self.part.temp)?;
        let (path, old) = (dir.dir(step, Kind::Final), dir.dir(step, Kind::Old));
        let replaces = dir.scan()?.contains(&(step, Kind::Final));
        if replaces {
            dir.rename(&path, &old)?;
        }
        if let Err(e) = dir.rename(&self.part.temp, &path) {
            if replaces {
                let _ = dir.rename(&old, &path); // or the next `begin` does it
            }
            return Err(e);
        }
        self.done = true;
        dir.sync_parent()?;
        if replaces {
            let _ = dir.retire(step, Kind::Old); // or the next `begin` does it
        }
        Ok(Checkpoint { step, path, manifest })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            // Nothing better can be done about a failure here; the next `begin` removes what is stale.
            let _ = remove_dir_all(&*self.dir.disk, &self.part.temp);
        }
    }
}

/// Writes one safetensors file of a checkpoint; see [`SafetensorsWriter`].
pub struct ShardWriter<'p> {
    inner: SafetensorsWriter,
    part: &'p mut Part,
    name: String,
}

impl ShardWriter<'_> {
    /// See [`SafetensorsWriter::specs`].
    pub fn specs(&self) -> &[TensorSpec] {
        self.inner.specs()
    }

    /// See [`SafetensorsWriter::write`].
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.write(name, bytes)
    }

    /// See [`SafetensorsWriter::write_f32`].
    pub fn write_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        self.inner.write_f32(name, values)
    }

    /// See [`SafetensorsWriter::write_i64`].
    pub fn write_i64(&mut self, name: &str, values: &[i64]) -> Result<()> {
        self.inner.write_i64(name, values)
    }

    /// Flushes the file to the device and adds it to the checkpoint.
    pub fn finish(self) -> Result<Written> {
        let written = self.inner.finish()?;
        self.part.add(&self.name, written.bytes, written.blake3.clone());
        Ok(written)
    }
}
