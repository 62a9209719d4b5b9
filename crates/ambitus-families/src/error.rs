//! Errors of a run, for people, and the exit code of each kind.

use serde_json::{Value, json};
use std::io::{Error, ErrorKind};
use std::path::Path;

/// A failure with its exit code. Messages say what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Bad command line or recipe.
    #[error("{0}")]
    Usage(String),
    /// The plan exceeds the budget; nothing was loaded.
    #[error("{why}")]
    DoesNotFit {
        /// For people.
        why: String,
        /// Bytes that it needs at least, where they are known.
        needed: Option<u64>,
    },
    /// The plan exceeds the budget; comes with the changes that would make it fit.
    #[error("{why}")]
    Refused {
        /// For people.
        why: String,
        /// For programs: the plan, `changes` and `least`.
        json: Box<Value>,
    },
    /// A checkpoint, configuration or vocabulary that cannot be used.
    #[error("{0}")]
    Model(String),
    /// Audio or transcripts that cannot be used.
    #[error(transparent)]
    Data(#[from] ambitus_data::DataError),
    /// Reading or writing failed: disk full, permissions.
    #[error("{0}")]
    Io(String),
    /// The disk is full, or the user's share of it: the same may succeed later.
    #[error("{0}")]
    Full(String),
    /// No card, driver or library, or a card that failed.
    #[error("{0}")]
    Device(String),
    /// The loss or a gradient went wrong in a way that more steps cannot mend.
    #[error("{0}")]
    Training(String),
    /// Any of these, of one rank of several.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: usize,
        /// What it met.
        error: Box<RunError>,
    },
    /// Another rank died, hangs or is elsewhere.
    #[error("{0}")]
    Ranks(String),
    /// Stopped on request; what was being written is not kept.
    #[error("stopped on request; {0}")]
    Interrupted(String),
    /// Stopped on request after a finished step; the run can be resumed.
    #[error("stopped on request after update {update}; continue with: ambitus resume {run}")]
    Stopped {
        /// Applied updates.
        update: u64,
        /// Run folder.
        run: String,
    },
}

impl RunError {
    /// Returns the exit code: 0 done, 1 a bug, then as listed here.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Usage(_) => 2,
            RunError::DoesNotFit { .. } | RunError::Refused { .. } => 3,
            RunError::Model(_) => 4,
            RunError::Data(ambitus_data::DataError::Stopped) => 10,
            RunError::Data(ambitus_data::DataError::Io { source, .. }) if !is_absent(source) => 6,
            RunError::Data(_) => 5,
            RunError::Io(_) | RunError::Full(_) => 6,
            RunError::Training(_) => 7,
            RunError::Device(_) => 8,
            RunError::Rank { error, .. } => error.exit_code(),
            RunError::Ranks(_) => 9,
            RunError::Stopped { .. } | RunError::Interrupted(_) => 10,
        }
    }

    /// Returns the error of something that does not fit, with the least bytes that it needs.
    pub fn does_not_fit(needed: impl Into<Option<u64>>, why: impl Into<String>) -> RunError {
        RunError::DoesNotFit { why: why.into(), needed: needed.into() }
    }

    /// Returns what does not fit, for programs: `changes` of options that would, and the `least` that any combination of them
    /// needs. `None` for other errors.
    pub fn refusal(&self) -> Option<Value> {
        match self {
            RunError::Refused { json, .. } => Some((**json).clone()),
            RunError::DoesNotFit { needed, .. } => {
                let least = needed.map(|bytes| json!({ "options": "", "peak_bytes": bytes }));
                Some(json!({ "fits": false, "changes": [], "least": least }))
            }
            RunError::Rank { error, .. } => error.refusal(),
            _ => None,
        }
    }

    /// Returns an error of a rank, with its number.
    pub fn of_rank(rank: usize, error: RunError) -> RunError {
        RunError::Rank { rank, error: Box::new(error) }
    }

    /// Returns an input/output failure at a path.
    pub fn io(path: &Path, doing: &str, why: Error) -> RunError {
        let full = is_full(&why);
        let text = format!("{}: {doing}: {why}", path.display());
        if full { RunError::Full(text) } else { RunError::Io(text) }
    }
}

/// Refuses to put a result in place of something else than a file: a folder, a device or a pipe.
///
/// # Errors
/// [`RunError::Usage`] with the path.
pub fn replaces_a_file(path: &Path) -> Result<(), RunError> {
    match ambitus_store::takes_a_file(path) {
        true => Ok(()),
        false => Err(RunError::Usage(format!(
            "{}: is a folder, device or pipe, which a result would replace; name a file",
            path.display()
        ))),
    }
}

/// Returns whether what was named is not there, or is something else: no failure of the system.
fn is_absent(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput)
}

/// Returns whether the disk is full, or the user's share of it.
pub fn is_full(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl From<ambitus_store::StoreError> for RunError {
    fn from(e: ambitus_store::StoreError) -> RunError {
        let text = e.to_string();
        if e.is_full() {
            RunError::Full(text)
        } else if e.is_io() {
            RunError::Io(text)
        } else {
            RunError::Model(text)
        }
    }
}

impl From<ambitus_compile::CompileError> for RunError {
    fn from(e: ambitus_compile::CompileError) -> RunError {
        use ambitus_compile::CompileError as E;
        match e {
            // What the recipe's patterns and rank say does not suit the model.
            E::NoMatch { .. } | E::NothingTrains | E::Rank { .. } | E::Both { .. } => {
                RunError::Usage(e.to_string())
            }
            E::ShardedPerTensor => {
                RunError::Usage(format!("ranks: {e} (clip_per_tensor: false, update: end)"))
            }
            E::PlayersOnRanks => RunError::Usage(format!("ranks: {e}")),
            E::PlayersAdapted => RunError::Usage(format!("lora: {e}")),
            E::PlayersScaled => RunError::Usage(format!("precision: {e}")),
            other => RunError::Model(other.to_string()),
        }
    }
}

impl From<ambitus_exec::executor::ExecError> for RunError {
    fn from(e: ambitus_exec::executor::ExecError) -> RunError {
        use ambitus_exec::executor::ExecError as E;
        match e {
            E::Device(text) => RunError::Device(text),
            E::Disk(text) => RunError::Io(text),
            E::Ranks(why) => why.into(),
            E::OutOfMemory { bytes } => RunError::does_not_fit(
                bytes,
                format!(
                    "the system refused {} for the arena; lower --memory, free memory, or raise the limit (ulimit -v, ulimit -d)",
                    ambitus_recipe::size::ByteSize(bytes)
                ),
            ),
            e @ E::Threads { .. } => RunError::does_not_fit(None, e.to_string()),
            other => RunError::Training(other.to_string()),
        }
    }
}

impl From<ambitus_comm::CommError> for RunError {
    fn from(e: ambitus_comm::CommError) -> RunError {
        match e {
            ambitus_comm::CommError::Engine(text) => RunError::Device(text),
            other => RunError::Ranks(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_data::DataError;
    use ambitus_exec::executor::ExecError;

    #[test]
    fn codes_say_whose_fault_it_is() {
        let refused = RunError::from(ExecError::OutOfMemory { bytes: 3 << 30 });
        assert_eq!(refused.exit_code(), 3);
        assert!(refused.to_string().contains("refused 3.00 GiB for the arena"), "{refused}");
        let threads = ExecError::Threads { threads: 9, why: "no".to_owned() };
        assert_eq!(RunError::from(threads).exit_code(), 3);
        let of = |kind: ErrorKind| {
            RunError::Data(DataError::Io { path: "x".into(), source: kind.into() }).exit_code()
        };
        // Data that is not there is wrong data; data or a cache that cannot be read or written is not.
        assert_eq!([ErrorKind::NotFound, ErrorKind::NotADirectory].map(of), [5, 5]);
        let system = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem, ErrorKind::StorageFull];
        assert_eq!(system.map(of), [6, 6, 6]);
        let full = RunError::io(Path::new("x"), "cannot write", ErrorKind::StorageFull.into());
        assert!(matches!(full, RunError::Full(_)) && full.exit_code() == 6);
    }
}
