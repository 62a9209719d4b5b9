//! A disk that fails on demand: the real one until operation n, then a chosen fault. For tests of everything that
//! saves; a test runs its scenario for n = 1, 2, 3, … until the fault no longer fires.
//!
//! Nothing is flushed: a killed process leaves its writes to the kernel, and thousands of runs stay quick.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Disk, DiskFile, Entry, RealDisk};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed: this operation (a write: half of it) and all later ones never happen.
    Kill,
    /// The device fails (EIO).
    Eio,
    /// The disk is full (ENOSPC); reading and removing still work.
    Enospc,
    /// A write takes half of the bytes and says so, as POSIX allows.
    ShortWrite,
    /// A signal interrupts the operation (EINTR); use it once only, since a retry is right.
    Interrupted,
}

struct State {
    inner: Arc<dyn Disk>,
    fault: Fault,
    at: u64,
    persistent: bool,
    ops: AtomicU64,
    fired: AtomicU64,
}

/// See the module's description.
#[derive(Clone)]
pub struct FaultDisk(Arc<State>);

/// Operations that can meet a full disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Allocating,
    Write,
    Other,
}

impl FaultDisk {
    /// Returns the real disk that fails at operation `at` (from 1), and, if `persistent`, at all operations after it.
    pub fn new(fault: Fault, at: u64, persistent: bool) -> Self {
        Self::over(Arc::new(RealDisk), fault, at, persistent)
    }

    /// Returns [`Self::new`] for another disk than the real one.
    pub fn over(inner: Arc<dyn Disk>, fault: Fault, at: u64, persistent: bool) -> Self {
        let persistent = persistent || fault == Fault::Kill;
        Self(Arc::new(State {
            inner,
            fault,
            at,
            persistent,
            ops: AtomicU64::new(0),
            fired: AtomicU64::new(0),
        }))
    }

    /// Returns true if the fault has happened.
    pub fn fired(&self) -> bool {
        self.0.fired.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of operations seen.
    pub fn ops(&self) -> u64 {
        self.0.ops.load(Ordering::Relaxed)
    }

    /// Counts an operation; the fault, if it is to happen now.
    fn due(&self, op: Op) -> Option<Fault> {
        let s = &self.0;
        let n = s.ops.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = n == s.at || (s.persistent && n > s.at);
        let applies = match s.fault {
            Fault::Kill | Fault::Eio | Fault::Interrupted => true,
            Fault::Enospc => op != Op::Other,
            Fault::ShortWrite => op == Op::Write,
        };
        (hit && applies).then(|| {
            s.fired.fetch_add(1, Ordering::Relaxed);
            s.fault
        })
    }

    fn check(&self, op: Op) -> io::Result<()> {
        self.due(op).map_or(Ok(()), |fault| Err(error(fault)))
    }
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Kill => io::Error::other("the process was killed"),
        Fault::Eio => io::Error::other("input/output error (EIO)"),
        Fault::Enospc => io::Error::new(io::ErrorKind::StorageFull, "no space left on device"),
        Fault::Interrupted => io::Error::new(io::ErrorKind::Interrupted, "interrupted system call"),
        Fault::ShortWrite => unreachable!("a short write is not an error"),
    }
}

struct FaultFile {
    disk: FaultDisk,
    file: Box<dyn DiskFile>,
    path: PathBuf,
}

impl Write for FaultFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.disk.due(Op::Write) {
            None => self.file.write(buf),
            Some(Fault::ShortWrite) => self.file.write(&buf[..buf.len().div_ceil(2)]),
            Some(Fault::Interrupted) => Err(error(Fault::Interrupted)),
            Some(fault) => {
                let first = self.disk.0.fired.load(Ordering::Relaxed) == 1;
                if first {
                    let _ = self.file.write_all(&buf[..buf.len() / 2]);
                }
                Err(error(fault))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for FaultFile {
    fn sync(&mut self) -> io::Result<()> {
        match self.disk.due(Op::Allocating) {
            None => Ok(()),
            Some(fault) => {
                if matches!(fault, Fault::Eio | Fault::Enospc) {
                    self.lose()?;
                }
                Err(error(fault))
            }
        }
    }
}

impl FaultFile {
    /// Loses half of what was written: after a failed fsync the kernel may have dropped the dirty pages.
    fn lose(&self) -> io::Result<()> {
        let inner = &self.disk.0.inner;
        let mut bytes = Vec::new();
        inner.open(&self.path)?.0.read_to_end(&mut bytes)?;
        inner.remove_file(&self.path)?;
        inner.create(&self.path)?.write_all(&bytes[..bytes.len() / 2])
    }
}

struct FaultRead {
    disk: FaultDisk,
    file: Box<dyn Read>,
}

impl Read for FaultRead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.disk.check(Op::Other)?;
        self.file.read(buf)
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.check(Op::Allocating)?;
        let file = self.0.inner.create(path)?;
        Ok(Box::new(FaultFile { disk: self.clone(), file, path: path.into() }))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
        self.check(Op::Other)?;
        let (file, len) = self.0.inner.open(path)?;
        Ok((Box::new(FaultRead { disk: self.clone(), file }), len))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.check(Op::Other)?;
        self.0.inner.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.check(Op::Allocating)?;
        self.0.inner.create_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Op::Allocating)?;
        self.0.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check(Op::Other)?;
        self.0.inner.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.check(Op::Other)?;
        self.0.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.check(Op::Allocating)?;
        self.0.inner.list(dir).map(drop)
    }
}
