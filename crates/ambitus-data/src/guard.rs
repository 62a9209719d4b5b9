//! Panics of other people's decoders and tokenizers, which damaged input can cause: they become errors, without a word on the
//! terminal.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    /// Guarded sections that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs code of a library on untrusted data; `None` if it panicked. What it was working on is then undefined and must not be
/// used again.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _inside = Inside;
    panic::catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Makes the panics silent that this crate catches and turns into errors. All others are reported as before. For the program to
/// call once, at its start.
pub fn silence_caught_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // Also while this thread's locals are taken down there is somebody to tell.
        if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
            report(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_guarded_section() {
        assert_eq!(guarded(|| 3), Some(3));
        assert_eq!(guarded(|| guarded(|| panic!("inner")).is_none()), Some(true));
        assert_eq!(guarded(|| -> u8 { panic!("outer") }), None);
        assert_eq!(DEPTH.get(), 0);
    }
}
