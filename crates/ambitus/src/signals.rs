//! Signals: what asks the process to end, and what must not end it.
//!
//! Handlers do only what a handler may: atomics, `write`, `_exit`.

use ambitus_families::error::RunError;
use ambitus_families::stop;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Signals that ask: Ctrl-C, what `kill` and launchers send, a terminal that is closed.
const ASKS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// A request that comes by two ways, as from a terminal and from a launcher, is one: milliseconds.
const ONE_REQUEST: u64 = 1000;

/// When the first request came, in milliseconds; 0 before.
static FIRST: AtomicU64 = AtomicU64::new(0);
/// There is something to finish first.
static FINISHES: AtomicBool = AtomicBool::new(false);
/// Somebody is looking who may ask again.
static SEEN: AtomicBool = AtomicBool::new(false);

/// From here on a signal that asks the process to end does so with the exit code of a stop: at the second, where the command
/// `finishes` something first, and says so if it `saves` what it has. Signals that were ignored when the process began (`nohup`, a background job's Ctrl-C) stay so.
/// A file that outgrows the limit of sizes (`ulimit -f`) is a failed write from here on, not the end.
pub fn listen(finishes: bool, saves: bool) {
    FINISHES.store(finishes, SeqCst);
    SEEN.store(saves && std::io::stderr().is_terminal(), SeqCst);
    for signal in ASKS {
        // SAFETY: all-zero bytes are a valid sigaction (integers, null, an empty set); both pointers are to live ones or null; the
        // handler does only what is safe in one, and restarts the calls that it interrupts.
        unsafe {
            let mut was: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut was) == 0 && was.sa_sigaction != libc::SIG_IGN {
                let mut ours: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = asked as extern "C" fn(libc::c_int) as libc::sighandler_t;
                ours.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &ours, std::ptr::null_mut());
            }
        }
    }
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

extern "C" fn asked(_: libc::c_int) {
    let now = milliseconds().max(1);
    match FIRST.compare_exchange(0, now, SeqCst, SeqCst) {
        Ok(_) if FINISHES.load(SeqCst) => {
            stop::request();
            if SEEN.load(SeqCst) {
                say(b"\nstopping after this step; a second signal stops at once, without saving\n");
            }
        }
        Err(first) if now.saturating_sub(first) < ONE_REQUEST => {}
        _ => {
            say(b"\nerror: stopped at once on request\n");
            end(&RunError::Stopped { update: 0, run: String::new() })
        }
    }
}

/// Ends the process as an error does, at once.
pub(crate) fn end(e: &RunError) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(e.exit_code().into()) }
}

/// Writes a message to stderr, from a handler.
pub(crate) fn say(text: &[u8]) {
    // SAFETY: the pointer and length are of a live slice. Nobody can be told that it failed.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Returns milliseconds since the machine was started.
fn milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
