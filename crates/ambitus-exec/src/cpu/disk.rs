//! The host arena as a file, for machines with too little memory: bounded reads and writes at positions, nothing mapped.

use crate::executor::ExecError;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes written at once while the file is filled.
const PIECE: usize = 1 << 20;

/// A zeroed file of fixed size that has no name: it is gone when the process is, however that ends.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    folder: PathBuf,
    /// Why a copy failed. Kernels cannot say so; the run ends after the first that did.
    failed: OnceLock<String>,
}

impl Disk {
    /// Makes the file in a folder and writes every byte of it: a full disk shows now, not in a step.
    ///
    /// # Errors
    /// A folder that cannot be written, or a full disk.
    pub fn new(folder: &Path, bytes: u64) -> Result<Disk, ExecError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".host-arena-{}-{number}", std::process::id()));
        let make = || -> io::Result<File> {
            std::fs::create_dir_all(folder)?;
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            let zeros = vec![0; PIECE];
            let mut at = 0;
            while at < bytes {
                let n = (bytes - at).min(PIECE as u64);
                file.write_all_at(&zeros[..n as usize], at)?;
                at += n;
            }
            Ok(file)
        };
        let file = make().map_err(|e| {
            ExecError::Disk(format!(
                "{}: the {bytes} bytes of the host arena cannot be written there: {e}; free space, or name another folder \
                 (offload.disk)",
                folder.display()
            ))
        })?;
        Ok(Disk { file, folder: folder.to_owned(), failed: OnceLock::new() })
    }

    fn fault(&self, doing: &str, e: &io::Error) -> String {
        format!("{}: {doing} the host arena: {e}", self.folder.display())
    }

    /// Reads bytes at a position, for a kernel.
    pub fn fetch(&self, at: u64, out: &mut [u8]) {
        if let Err(e) = self.file.read_exact_at(out, at) {
            self.failed.get_or_init(|| self.fault("reading", &e));
        }
    }

    /// Writes bytes at a position, for a kernel.
    pub fn store(&self, at: u64, data: &[u8]) {
        if let Err(e) = self.file.write_all_at(data, at) {
            self.failed.get_or_init(|| self.fault("writing", &e));
        }
    }

    /// Returns true when a copy failed.
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// What went wrong since the file was made.
    ///
    /// # Errors
    /// The first failed copy.
    pub fn check(&self) -> Result<(), ExecError> {
        self.failed.get().map_or(Ok(()), |why| Err(ExecError::Disk(why.clone())))
    }
}

/// Returns the bytes of floats.
pub(super) fn bytes(data: &[f32]) -> &[u8] {
    // SAFETY: floats have no padding, and every byte is one.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// Returns the bytes of floats, to write.
pub(super) fn bytes_mut(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: as in `bytes`; any four bytes are a float.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}
