//! Memory that the system refuses: said, and ended with the exit code of what does not fit, where Rust would abort with neither.

use crate::signals;
use ambitus_families::error::RunError;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The system's allocator, which remembers that it could not give something. Whoever asked may still do without.
struct Noting;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

static REFUSED: AtomicBool = AtomicBool::new(false);

fn noted(given: *mut u8) -> *mut u8 {
    if given.is_null() {
        REFUSED.store(true, Relaxed);
    }
    given
}

// SAFETY: every call goes to the system's allocator as it came, and its answer back.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as of the caller.
        noted(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as of the caller.
        noted(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as of the caller.
        noted(unsafe { System.realloc(at, layout, size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as of the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Turns an abort for want of memory into an error with a message and an exit code; any other abort is as before.
pub fn watch() {
    // SAFETY: the handler reads an atomic, writes and exits, or returns: then the abort proceeds.
    unsafe { libc::signal(libc::SIGABRT, aborted as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

extern "C" fn aborted(_: libc::c_int) {
    if REFUSED.load(Relaxed) {
        signals::say(
            b"error: the system refused memory: lower --memory, free memory, or raise the limit (ulimit -v, ulimit -d, or the \
              container's)\n",
        );
        signals::end(&RunError::does_not_fit(None, ""))
    }
}
