//! A build without CUDA: says so.

use super::{Card, CardsReport};
use ambitus_comm::Communicator;
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_families::error::RunError;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use std::sync::Arc;
use std::time::Duration;

const WITHOUT: &str =
    "this program was built without CUDA: build it with `cargo build --release --features cuda`";

pub(super) fn find(_: usize) -> Result<(Box<dyn Target>, Card), String> {
    Err(WITHOUT.to_owned())
}

pub(super) fn visible() -> Result<usize, String> {
    Err(WITHOUT.to_owned())
}

pub(super) fn exchanges() -> Result<(), String> {
    Err(WITHOUT.to_owned())
}

pub(super) fn connect(
    _: usize,
    _: (usize, usize),
    _: String,
    _: Duration,
) -> Result<Arc<dyn Communicator>, RunError> {
    Err(RunError::Device(WITHOUT.to_owned()))
}

#[allow(clippy::unnecessary_wraps, reason = "as in the other build")]
pub(super) fn disconnect() -> Result<(), RunError> {
    Ok(())
}

pub(super) fn open_rank(
    _: (usize, bool),
    _: Arc<PlannedSession>,
    _: (&dyn Communicator, Duration),
    _: &str,
) -> Result<Box<dyn Executor>, ExecError> {
    Err(ExecError::Device(WITHOUT.to_owned()))
}

pub(super) fn open(
    _: (usize, bool),
    _: Arc<PlannedSession>,
    _: &str,
) -> Result<Box<dyn Executor>, ExecError> {
    Err(ExecError::Device(WITHOUT.to_owned()))
}

pub(super) fn held(_: &str) -> Option<u64> {
    None
}

/// Returns what `doctor` says of cards.
pub fn report() -> CardsReport {
    CardsReport { note: Some(WITHOUT.to_owned()), ..CardsReport::default() }
}
