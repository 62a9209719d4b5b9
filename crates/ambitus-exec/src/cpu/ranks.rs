//! The other ranks, as kernels reach them.

use crate::executor::ExecError;
use ambitus_comm::{CommError, Communicator};
use std::sync::{Arc, OnceLock};

/// This executor's end of a world of ranks.
#[derive(Debug)]
pub(super) struct Ranks {
    comm: Arc<dyn Communicator>,
    /// Why a collective failed. Kernels cannot say so; the run ends after the first that did.
    failed: OnceLock<CommError>,
}

impl Ranks {
    /// Behind an engine.
    pub fn new(comm: Arc<dyn Communicator>) -> Ranks {
        Ranks { comm, failed: OnceLock::new() }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.comm.ranks()
    }

    /// Runs a collective, unless one before it failed; false when it, or one before, did.
    pub fn call(&self, body: impl FnOnce(&dyn Communicator) -> Result<(), CommError>) -> bool {
        if self.failed.get().is_some() {
            return false;
        }
        match body(&*self.comm) {
            Ok(()) => true,
            Err(why) => {
                self.failed.get_or_init(|| why);
                false
            }
        }
    }

    /// Returns true when a collective failed.
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// What went wrong since the executor was opened.
    ///
    /// # Errors
    /// The first failed collective.
    pub fn check(&self) -> Result<(), ExecError> {
        self.failed.get().map_or(Ok(()), |why| Err(ExecError::Ranks(why.clone())))
    }
}
