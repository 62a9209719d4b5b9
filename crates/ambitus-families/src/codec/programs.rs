//! The two programs of a codec, each planned in an arena of its own. The one of the direction that was used last is open.

use super::alone::planned;
use crate::error::RunError;
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Program, Session};
use std::sync::Arc;

/// From samples to codes, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Samples to codes.
    Encode,
    /// Codes to samples.
    Decode,
}

/// Planned programs, and the arena that is open.
pub struct Programs {
    threads: usize,
    encode: Arc<PlannedSession>,
    decode: Arc<PlannedSession>,
    open: Option<(Way, CpuExecutor)>,
}

impl Programs {
    /// Plans both.
    pub fn plan(
        threads: usize,
        encode: impl FnOnce(&mut Session) -> Program,
        decode: impl FnOnce(&mut Session) -> Program,
    ) -> Programs {
        let threads = threads.max(1);
        Programs { threads, encode: planned(threads, encode), decode: planned(threads, decode), open: None }
    }

    /// Returns the bytes of an arena.
    pub fn bytes(&self, way: Way) -> u64 {
        match way {
            Way::Encode => self.encode.arena_bytes(),
            Way::Decode => self.decode.arena_bytes(),
        }
    }

    /// Returns the bytes of the arena that is open, if one is.
    pub fn open_bytes(&self) -> Option<u64> {
        self.open.as_ref().map(|(_, exec)| exec.arena_bytes())
    }

    /// Gives the arena back.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Returns the arena of a way, opened and filled by `load` after the other was given back.
    ///
    /// # Errors
    /// The executor; those of `load`.
    pub fn ready(
        &mut self,
        way: Way,
        load: impl FnOnce(&mut dyn Executor) -> Result<(), RunError>,
    ) -> Result<&mut CpuExecutor, RunError> {
        let open = match self.open.take().filter(|(of, _)| *of == way) {
            Some(open) => open,
            None => {
                let planned = match way {
                    Way::Encode => &self.encode,
                    Way::Decode => &self.decode,
                };
                let mut exec = CpuExecutor::open(planned.clone(), self.threads)?;
                load(&mut exec)?;
                (way, exec)
            }
        };
        Ok(&mut self.open.insert(open).1)
    }
}
