//! The file that makes a directory a checkpoint: what belongs to it, with lengths and hashes, and its own hash.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::disk::write_atomic_on;
use crate::error::printable;
use crate::{Disk, RealDisk, Result, StoreError};

/// File name of the manifest in a checkpoint's directory.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Version of the manifest's format.
const VERSION: u32 = 1;
/// Largest manifest that is read.
const MAX_MANIFEST: u64 = 4 << 20;
/// Bytes hashed at a time.
const CHUNK: usize = 1 << 20;

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// File name in the checkpoint's directory.
    pub name: String,
    /// Length of the file.
    pub bytes: u64,
    /// BLAKE3 of the file, in lower-case hex.
    pub blake3: String,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The step it was saved after.
    pub step: u64,
    /// Its files, in the order in which they were written.
    pub shards: Vec<Shard>,
    /// Whatever the writer of the checkpoint wanted to keep with it.
    pub meta: serde_json::Value,
}

/// The file: the body as text, with the hash of exactly that text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    ambitus_checkpoint: u32,
    blake3: String,
    body: Box<RawValue>,
}

impl Manifest {
    /// Writes the manifest of a folder of files that belong together.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_to(&self, dir: &Path) -> Result<()> {
        self.write(&RealDisk, dir)
    }

    /// Reads the manifest of a folder, and checks it against its own hash.
    ///
    /// # Errors
    /// When it is not there, cannot be read or is damaged.
    pub fn read_from(dir: &Path) -> Result<Self> {
        Self::read(&RealDisk, dir)
    }

    /// Reads the files of a folder and compares lengths and hashes.
    ///
    /// # Errors
    /// The first that is missing, damaged or cannot be read.
    pub fn check(&self, dir: &Path) -> Result<()> {
        self.check_lengths(&RealDisk, dir)?;
        self.check_hashes(&RealDisk, dir)
    }

    /// Writes the manifest into `dir`.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let path = dir.join(MANIFEST);
        let fail =
            |e: serde_json::Error| StoreError::new(&path, format!("cannot be written as JSON: {e}"), "");
        let body = RawValue::from_string(serde_json::to_string_pretty(self).map_err(fail)?).map_err(fail)?;
        let blake3 = blake3::hash(body.get().as_bytes()).to_hex().to_string();
        let text =
            serde_json::to_vec(&Envelope { ambitus_checkpoint: VERSION, blake3, body }).map_err(fail)?;
        if text.len() as u64 > MAX_MANIFEST {
            return Err(StoreError::new(
                &path,
                format!("would take {} bytes, over the limit", text.len()),
                "",
            ));
        }
        write_atomic_on(disk, &path, &text)
    }

    /// Reads the manifest of the checkpoint in `dir`, and checks it against its own hash.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let (file, len) = disk.open(&path).map_err(|e| StoreError::opening(&path, e))?;
        let bad = |what: String| StoreError::new(&path, what, "use another checkpoint");
        if len > MAX_MANIFEST {
            return Err(bad(format!("has {len} bytes; no manifest is that large")));
        }
        let mut text = Vec::with_capacity(len as usize);
        file.take(len).read_to_end(&mut text).map_err(|e| StoreError::io(&path, "cannot read", e))?;
        let damaged = |e: serde_json::Error| bad(format!("is damaged: {e}"));
        let envelope: Envelope = serde_json::from_slice(&text).map_err(damaged)?;
        if envelope.ambitus_checkpoint != VERSION {
            let found = envelope.ambitus_checkpoint;
            return Err(bad(format!("has format version {found}; this program reads version {VERSION}")));
        }
        if blake3::hash(envelope.body.get().as_bytes()).to_hex().as_str() != envelope.blake3 {
            return Err(bad("is damaged: its content does not have the hash that it states".into()));
        }
        let manifest: Manifest = serde_json::from_str(envelope.body.get()).map_err(damaged)?;
        for shard in &manifest.shards {
            check_file_name(&shard.name).map_err(bad)?;
        }
        Ok(manifest)
    }

    /// Checks that every shard is there with the stated length.
    pub(crate) fn check_lengths(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        self.shards.iter().try_for_each(|shard| check_length(disk, dir, shard))
    }

    /// Reads every shard and compares its hash.
    pub(crate) fn check_hashes(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let mut chunk = vec![0u8; CHUNK];
        for shard in &self.shards {
            let mut file = open_shard(disk, dir, shard)?;
            let mut hash = blake3::Hasher::new();
            let path = dir.join(&shard.name);
            loop {
                match file.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(n) => drop(hash.update(&chunk[..n])),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(StoreError::io(&path, "cannot read", e)),
                }
            }
            if hash.finalize().to_hex().as_str() != shard.blake3 {
                let what = "is damaged: its content does not have the hash in the manifest";
                return Err(StoreError::new(&path, what, "use another checkpoint"));
            }
        }
        Ok(())
    }
}

/// Checks that a shard is there with the stated length.
pub(crate) fn check_length(disk: &dyn Disk, dir: &Path, shard: &Shard) -> Result<()> {
    open_shard(disk, dir, shard).map(drop)
}

fn open_shard(disk: &dyn Disk, dir: &Path, shard: &Shard) -> Result<Box<dyn Read>> {
    let path = dir.join(&shard.name);
    let (file, len) = disk.open(&path).map_err(|e| StoreError::opening(&path, e))?;
    if len != shard.bytes {
        let what = format!("has {len} bytes, the manifest says {}", shard.bytes);
        return Err(StoreError::new(&path, what, "use another checkpoint"));
    }
    Ok(file)
}

/// Refuses names of anything but a plain file in the checkpoint's own directory.
pub(crate) fn check_file_name(name: &str) -> std::result::Result<(), String> {
    let plain = !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name != MANIFEST
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if plain {
        Ok(())
    } else {
        Err(format!("`{}` is not a file name for a part of a checkpoint", printable(name)))
    }
}
