//! A request to stop: set by a signal handler, read between steps.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks the run to stop after the current step. Safe in a signal handler.
pub fn request() {
    REQUESTED.store(true, Ordering::SeqCst);
}

/// Returns true once a stop was asked for.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
