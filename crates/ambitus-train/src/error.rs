//! What can go wrong in a run, for people, and the exit code of each kind.

use std::path::Path;
use thiserror::Error;

/// A failure with its exit code. Messages say what is wrong, where, and what to do.
#[derive(Debug, Error)]
pub enum RunError {
    /// Bad command line or recipe.
    #[error("{0}")]
    Usage(String),
    /// The plan exceeds the budget; nothing was loaded.
    #[error("{0}")]
    DoesNotFit(String),
    /// A checkpoint, configuration or vocabulary that cannot be used.
    #[error("{0}")]
    Model(String),
    /// Audio or transcripts that cannot be used.
    #[error(transparent)]
    Data(#[from] ambitus_data::DataError),
    /// Reading or writing failed: disk full, permissions.
    #[error("{0}")]
    Io(String),
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
    /// Stopped on request after a finished step; the run can be resumed.
    #[error("stopped on request after update {update}; go on with: ambitus resume {run}")]
    Stopped {
        /// Applied updates.
        update: u64,
        /// Run folder.
        run: String,
    },
}

impl RunError {
    /// Exit codes: 0 done, 1 a bug, then as listed here.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Usage(_) => 2,
            RunError::DoesNotFit(_) => 3,
            RunError::Model(_) => 4,
            RunError::Data(ambitus_data::DataError::Stopped) => 10,
            RunError::Data(_) => 5,
            RunError::Io(_) => 6,
            RunError::Training(_) => 7,
            RunError::Device(_) => 8,
            RunError::Rank { error, .. } => error.exit_code(),
            RunError::Ranks(_) => 9,
            RunError::Stopped { .. } => 10,
        }
    }

    /// An error of a rank, with its number.
    pub fn of_rank(rank: usize, error: RunError) -> RunError {
        RunError::Rank { rank, error: Box::new(error) }
    }

    /// An input/output failure at a path.
    pub fn io(path: &Path, doing: &str, why: std::io::Error) -> RunError {
        RunError::Io(format!("{}: {doing}: {why}", path.display()))
    }
}

impl From<ambitus_store::StoreError> for RunError {
    fn from(e: ambitus_store::StoreError) -> RunError {
        if e.is_io() { RunError::Io(e.to_string()) } else { RunError::Model(e.to_string()) }
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
            other => RunError::Model(other.to_string()),
        }
    }
}

impl From<ambitus_exec::executor::ExecError> for RunError {
    fn from(e: ambitus_exec::executor::ExecError) -> RunError {
        match e {
            ambitus_exec::executor::ExecError::Device(text) => RunError::Device(text),
            ambitus_exec::executor::ExecError::Disk(text) => RunError::Io(text),
            ambitus_exec::executor::ExecError::Ranks(why) => why.into(),
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

impl From<crate::metrics::LogError> for RunError {
    fn from(e: crate::metrics::LogError) -> RunError {
        RunError::Io(e.to_string())
    }
}

impl From<crate::pictures::PictureError> for RunError {
    fn from(e: crate::pictures::PictureError) -> RunError {
        RunError::Io(e.to_string())
    }
}
