//! Limits of this process that its shell or its service manager has set: address space (`ulimit -v`), data (`ulimit -d`).

use serde::Serialize;

use super::{FILE_BYTES, STATUS, kib, read_text};
use ambitus_families::error::RunError;
use ambitus_recipe::size::ByteSize;

/// Address space of a thread's stack, of which it touches little.
const STACK_BYTES: u64 = 2 << 20;
/// What the smallest run takes besides its threads: its plan, its search, its largest text file.
const LEAST_BYTES: u64 = 32 << 20;
/// Threads besides those that compute: the loader, and one that plans.
const OTHER_THREADS: u64 = 2;

/// A limit on what this process maps, and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// What it is called where it is set.
    pub name: &'static str,
    /// The limit.
    pub limit_bytes: u64,
    /// What the process has mapped of that kind.
    pub used_bytes: u64,
    /// Of that, what is resident: plans count it too.
    pub held_bytes: u64,
    /// What is left.
    pub remaining_bytes: u64,
}

/// Returns the limit that leaves least; `None` if there is none.
pub fn limit() -> Option<Limit> {
    let mut buffer = [0; FILE_BYTES];
    let status = read_text(STATUS, &mut buffer).unwrap_or_default();
    let of = |(name, what, rows): (_, _, [&str; 2])| {
        let limit_bytes = soft(what)?;
        let [used_bytes, held_bytes] = rows.map(|row| kib(status, row).unwrap_or(0));
        let remaining_bytes = limit_bytes.saturating_sub(used_bytes);
        Some(Limit { name, limit_bytes, used_bytes, held_bytes, remaining_bytes })
    };
    let all = [
        ("address space (ulimit -v)", libc::RLIMIT_AS, ["VmSize:", "VmRSS:"]),
        ("data (ulimit -d)", libc::RLIMIT_DATA, ["VmData:", "RssAnon:"]),
    ];
    all.into_iter().filter_map(of).min_by_key(|l| l.remaining_bytes)
}

/// Returns the bytes of this process's stack, if there is a limit.
pub fn stack() -> Option<u64> {
    soft(libc::RLIMIT_STACK)
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// Returns a soft limit, where it is set.
fn soft(what: Resource) -> Option<u64> {
    let mut raw = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is to a live, writable rlimit.
    let ok = unsafe { libc::getrlimit(what, &mut raw) } == 0;
    (ok && raw.rlim_cur != libc::RLIM_INFINITY).then_some(raw.rlim_cur)
}

impl Limit {
    /// Returns what of it a plan may use: threads map stacks of which plans count only what they touch, and plans count what is
    /// held.
    pub fn room(&self, threads: u64) -> u64 {
        (self.remaining_bytes + self.held_bytes).saturating_sub(STACK_BYTES * (threads + OTHER_THREADS))
    }
}

/// Refuses a plan whose `bytes` or `threads` exceed a limit.
///
/// # Errors
/// [`RunError::DoesNotFit`] that names the limit.
pub fn require(bytes: u64, threads: usize) -> Result<(), RunError> {
    let Some(limit) = limit() else { return Ok(()) };
    let room = limit.room(threads as u64);
    if bytes <= room {
        return Ok(());
    }
    Err(RunError::does_not_fit(
        bytes,
        format!(
            "does not fit: the plan needs {}, and the limit of {} on {} leaves it {} ({} are mapped besides it, and stacks of threads): \
         raise the limit, or lower --memory",
            ByteSize(bytes),
            ByteSize(limit.limit_bytes),
            limit.name,
            ByteSize(room),
            ByteSize(limit.used_bytes.saturating_sub(limit.held_bytes)),
        ),
    ))
}

/// Refuses limits under which not even planning is possible, and has the allocator map no more than it needs where it counts.
///
/// # Errors
/// [`RunError::DoesNotFit`] that names the limit.
pub fn at_start() -> Result<(), RunError> {
    let Some(limit) = limit() else { return Ok(()) };
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes numbers. Else each thread would reserve 64 MiB of addresses for what it allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let needed = LEAST_BYTES + STACK_BYTES * (threads + OTHER_THREADS);
    if limit.remaining_bytes >= needed {
        return Ok(());
    }
    Err(RunError::does_not_fit(
        needed,
        format!(
            "the limit of {} on {} leaves {}, and the smallest run takes {} besides what is mapped: raise the limit",
            ByteSize(limit.limit_bytes),
            limit.name,
            ByteSize(limit.remaining_bytes),
            ByteSize(needed)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_not_a_plans_and_what_is_held_is() {
        const MIB: u64 = 1 << 20;
        let limit = |used: u64, held: u64| Limit {
            name: "a limit",
            limit_bytes: 100 * MIB,
            used_bytes: used * MIB,
            held_bytes: held * MIB,
            remaining_bytes: (100 * MIB).saturating_sub(used * MIB),
        };
        assert_eq!(limit(30, 20).room(2), 82 * MIB);
        assert_eq!(limit(200, 0).room(2), 0);
        assert_eq!(limit(0, 0).room(1000), 0);
    }

    #[test]
    fn this_process_is_within_its_limits() {
        assert!(limit().is_none_or(|l| l.used_bytes <= l.limit_bytes && l.held_bytes <= l.used_bytes));
        assert!(require(0, 1).is_ok());
        assert!(at_start().is_ok());
    }
}
