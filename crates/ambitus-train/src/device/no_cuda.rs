//! A build without CUDA: says so.

use super::{Card, CardsReport};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;

const WITHOUT: &str =
    "this program was built without CUDA: build it with `cargo build --release --features cuda`";

pub(super) fn find(_: usize) -> Result<(Box<dyn Target>, Card), String> {
    Err(WITHOUT.to_owned())
}

pub(super) fn open(_: usize, _: PlannedSession) -> Result<Box<dyn Executor>, ExecError> {
    Err(ExecError::Device(WITHOUT.to_owned()))
}

pub(super) fn held(_: &str) -> Option<u64> {
    None
}

/// What `doctor` says of cards.
pub fn report() -> CardsReport {
    CardsReport { note: Some(WITHOUT.to_owned()), ..CardsReport::default() }
}
