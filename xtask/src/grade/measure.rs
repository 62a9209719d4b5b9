//! A child process, what it said and what it held.

use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With 0.
    Done,
    /// With the code for options that cannot be meant.
    Refused,
    /// With another code that is documented.
    Failed,
    /// With a code that is not, by a signal, or as a bug.
    Crashed,
}

/// A process that ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// How it ended.
    pub outcome: Outcome,
    /// The most bytes that were resident, as the system counted them.
    pub peak: u64,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// Returns what it printed as its result.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_str(&self.stdout).ok()
    }

    /// Returns how it ended, in a line.
    pub fn said(&self) -> String {
        let last = self.stderr.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("");
        let code = self.code.map_or("a signal".to_owned(), |c| format!("exit code {c}"));
        format!("{code}: {}", last.chars().take(300).collect::<String>())
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started.
pub fn run(binary: &Path, dir: &Path, args: &[&str]) -> Result<Ran, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", binary.display());
    let mut out = [tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?];
    let stdio = |file: &File| file.try_clone().map(Stdio::from).map_err(failed);
    let child = Command::new(binary)
        .current_dir(dir)
        .args(args)
        .stdin(Stdio::null())
        .stdout(stdio(&out[0])?)
        .stderr(stdio(&out[1])?)
        .spawn()
        .map_err(failed)?;
    let (status, peak) = wait(child.id()).map_err(failed)?;
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).map_err(failed)?;
        Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    let outcome = match code {
        Some(0) => Outcome::Done,
        Some(2) => Outcome::Refused,
        Some(3..=10) => Outcome::Failed,
        _ => Outcome::Crashed,
    };
    let [stdout, stderr] = &mut out;
    Ok(Ran { code, outcome, peak, stdout: text(stdout)?, stderr: text(stderr)? })
}

/// Waits for a child: its status, and its high-water mark in bytes. The mark counts what the child was before it became another
/// program, which is this one; so this one must be smaller than what it measures.
fn wait(pid: u32) -> std::io::Result<(libc::c_int, u64)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live, writable values of the types that the call fills.
        let waited = unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) };
        if waited == pid as libc::pid_t {
            // SAFETY: the call filled it; and all-zero bytes are a valid rusage as well.
            let usage = unsafe { usage.assume_init() };
            return Ok((status, u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
