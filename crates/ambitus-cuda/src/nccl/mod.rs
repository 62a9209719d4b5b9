//! Ranks that have a card each, connected by NCCL, which is loaded at run time.
//!
//! [`Rank`] is one rank's communicator: what programs exchange goes through it, on the streams of their queues. Calls return at
//! once and are polled, so that a watchdog can give up: `Rank::wait`. [`world`] has, where no other engine starts
//! the processes' host-side exchanges, one that goes through the same communicator.
//!
//! All ranks make the same calls in the same order (of messages: each two ranks). NCCL does not check that: ranks that
//! differ wait for each other until the watchdog ends them.

mod library;
pub mod world;

use crate::step::Message;
use ambitus_comm::{CommError, Communicator};
use cudarc::driver::sys::CUstream;
use library::{BYTES, Calls, Comm, Config, IN_PROGRESS, REMOTE_ERROR, SUCCESS, UniqueId};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The communicator's start, for messages.
const START: &str = "the start of NCCL";
/// And its end.
const END: &str = "the end of NCCL";
/// Steps that take less than this are waited for without a pause.
const EAGER: Duration = Duration::from_millis(1);
/// Pause between two looks: short compared with a program, long enough to cost no core.
const PAUSE: Duration = Duration::from_micros(50);
/// The most that one round of waiting counts: of a process that was stopped itself the rest is not other ranks' lateness.
const ROUND: Duration = Duration::from_millis(100);
/// Time between two questions for errors.
const ASK: Duration = Duration::from_millis(10);

/// What a look at running work says.
pub(crate) enum Seen {
    /// All is done.
    Over,
    /// This rank computes.
    Computes,
    /// An exchange has begun and not ended.
    Exchanges(Arc<str>),
}

/// One rank of several that have a card each.
pub struct Rank {
    calls: Calls,
    rank: usize,
    ranks: usize,
    watchdog: Duration,
    state: Mutex<State>,
}

struct State {
    /// Null once it has ended.
    comm: Comm,
    /// Why nothing can be exchanged any more.
    broken: Option<CommError>,
}

// SAFETY: a communicator may be used from any thread, one at a time, which the lock around it ensures.
unsafe impl Send for State {}

impl std::fmt::Debug for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rank").field("rank", &self.rank).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

/// Says whether NCCL can be used here.
///
/// # Errors
/// When it is nowhere, or too old: with what to install.
pub fn check() -> Result<(), String> {
    Calls::load().map(drop)
}

/// Counts how long something is waited for, and pauses.
struct Patience {
    before: Instant,
    waited: Duration,
}

impl Patience {
    fn new() -> Patience {
        Patience { before: Instant::now(), waited: Duration::ZERO }
    }

    fn pause(&mut self) -> Duration {
        if self.waited < EAGER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
        let now = Instant::now();
        self.waited += now.duration_since(self.before).min(ROUND);
        self.before = now;
        self.waited
    }
}

impl Rank {
    /// Connects the ranks of another engine, which tells all what NCCL's first rank says. The card's context is the
    /// thread's current one.
    ///
    /// # Errors
    /// No NCCL on one of the ranks, or ranks that do not come.
    pub fn connect(host: &dyn Communicator, watchdog: Duration) -> Result<Rank, CommError> {
        let (rank, ranks) = (host.rank(), host.ranks());
        let calls = Calls::load();
        let mut mine = [0u8; 129];
        if let Ok(calls) = &calls {
            mine[0] = 1;
            if rank == 0 {
                mine[1..].copy_from_slice(&unique_id(calls)?.0);
            }
        }
        let mut all = vec![0; ranks * mine.len()];
        host.all_gather(START, &(0..ranks).collect::<Vec<_>>(), &mine, &mut all)?;
        let calls = calls.map_err(CommError::Engine)?;
        if let Some(without) = all.chunks_exact(mine.len()).position(|said| said[0] == 0) {
            return Err(CommError::Engine(format!("rank {without} has no NCCL, which connects the GPUs")));
        }
        let mut id = UniqueId([0; 128]);
        id.0.copy_from_slice(&all[1..mine.len()]);
        Rank::init(calls, id, (rank, ranks), watchdog)
    }

    fn init(
        calls: Calls,
        id: UniqueId,
        (rank, ranks): (usize, usize),
        watchdog: Duration,
    ) -> Result<Rank, CommError> {
        let mut comm: Comm = std::ptr::null_mut();
        let mut config = Config::polled();
        // SAFETY: pointers to live values; the thread's context is that of this rank's card.
        let status = unsafe { (calls.init)(&mut comm, ranks as c_int, id, rank as c_int, &mut config) };
        let state = Mutex::new(State { comm, broken: None });
        let made = Rank { calls, rank, ranks, watchdog, state };
        if comm.is_null() {
            return Err(made.error(comm, START, status));
        }
        made.with(START, |rank, state| rank.settle(state, status, START))?;
        Ok(made)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that belong together; after the first that fails none is made any more.
    fn with(
        &self,
        what: &str,
        body: impl FnOnce(&Rank, &mut State) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let mut state = self.lock();
        if let Some(why) = &state.broken {
            return Err(why.clone());
        }
        if state.comm.is_null() {
            return Err(CommError::Engine(format!("{what}: NCCL has ended")));
        }
        body(self, &mut state).inspect_err(|why| self.abort(&mut state, why.clone()))
    }

    /// Frees the communicator, and ends what is on its way on this card.
    fn abort(&self, state: &mut State, why: CommError) {
        state.broken.get_or_insert(why);
        let comm = std::mem::replace(&mut state.comm, std::ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: the communicator is live, and not used afterwards.
            unsafe { (self.calls.abort)(comm) };
        }
    }

    /// Ends what is on its way, after an error elsewhere.
    pub(crate) fn give_up(&self) {
        let why = CommError::Engine(format!("rank {} has given up after an error", self.rank));
        self.abort(&mut self.lock(), why);
    }

    fn error(&self, comm: Comm, what: &str, status: c_int) -> CommError {
        let (words, last) = (self.calls.words(status), self.calls.last_words(comm));
        let last = if last.is_empty() { last } else { format!("; {last}") };
        if status == REMOTE_ERROR {
            return CommError::Lost { rank: self.rank, what: what.to_owned(), why: format!("{words}{last}") };
        }
        CommError::Engine(format!("rank {} in {what}: NCCL says: {words}{last}", self.rank))
    }

    fn late(&self, what: &str, waited: Duration) -> CommError {
        CommError::Unanswered { rank: self.rank, what: what.to_owned(), seconds: waited.as_secs() }
    }

    /// Waits until a call that returned `status` is over: all of it is on the stream, or done where there is none.
    fn settle(&self, state: &mut State, status: c_int, what: &str) -> Result<(), CommError> {
        let mut status = status;
        let mut patience = Patience::new();
        loop {
            match status {
                SUCCESS => return Ok(()),
                IN_PROGRESS => {}
                status => return Err(self.error(state.comm, what, status)),
            }
            let waited = patience.pause();
            if waited >= self.watchdog {
                return Err(self.late(what, waited));
            }
            // SAFETY: the communicator is live; the pointer is a live integer.
            let asked = unsafe { (self.calls.async_error)(state.comm, &mut status) };
            if asked != SUCCESS {
                status = asked;
            }
        }
    }

    /// Puts an all-gather among all ranks on a stream: `bytes` of each, from an address to another.
    ///
    /// # Safety
    /// The ranges, of `bytes` and of as many from each rank, are on the card and left alone until the stream has passed it.
    ///
    /// # Errors
    /// What NCCL says; nothing can be exchanged afterwards.
    pub(crate) unsafe fn gather(
        &self,
        what: &str,
        (from, to): (u64, u64),
        bytes: u64,
        stream: CUstream,
    ) -> Result<(), CommError> {
        self.with(what, |rank, state| {
            let (from, to) = (from as *const c_void, to as *mut c_void);
            // SAFETY: by the caller; the communicator is live.
            let status =
                unsafe { (rank.calls.all_gather)(from, to, bytes as usize, BYTES, state.comm, stream) };
            rank.settle(state, status, what)
        })
    }

    /// Puts messages on a stream, which are under way together. Those between two ranks are in one order on both.
    ///
    /// # Safety
    /// As of [`Rank::gather`].
    ///
    /// # Errors
    /// As of [`Rank::gather`].
    pub(crate) unsafe fn messages(
        &self,
        what: &str,
        messages: &[Message],
        stream: CUstream,
    ) -> Result<(), CommError> {
        self.with(what, |rank, state| {
            let calls = &rank.calls;
            let mut fault = SUCCESS;
            // SAFETY: by the caller; the communicator is live, and every group that is begun is ended.
            let status = unsafe {
                let begun = (calls.group_start)();
                if begun != SUCCESS {
                    return Err(rank.error(state.comm, what, begun));
                }
                for m in messages {
                    let (bytes, other) = (m.bytes as usize, m.rank as c_int);
                    let put = if m.sends {
                        (calls.send)(m.at as *const c_void, bytes, BYTES, other, state.comm, stream)
                    } else {
                        (calls.receive)(m.at as *mut c_void, bytes, BYTES, other, state.comm, stream)
                    };
                    if put != SUCCESS && put != IN_PROGRESS && fault == SUCCESS {
                        fault = put;
                    }
                }
                (calls.group_end)()
            };
            if fault != SUCCESS {
                return Err(rank.error(state.comm, what, fault));
            }
            rank.settle(state, status, what)
        })
    }

    /// Waits until `look` says that all is over. Only the time counts in which one exchange has begun and not ended.
    ///
    /// # Errors
    /// What `look` or NCCL says, or another rank that does not come; nothing can be exchanged afterwards.
    pub(crate) fn wait(&self, mut look: impl FnMut() -> Result<Seen, String>) -> Result<(), CommError> {
        let mut patience = Patience::new();
        let (mut asked, mut last) = (Instant::now(), None);
        loop {
            let what = match look() {
                Ok(Seen::Over) => return Ok(()),
                Ok(Seen::Computes) => None,
                Ok(Seen::Exchanges(what)) => Some(what),
                Err(why) => return self.with("waiting", |_, _| Err(CommError::Engine(why))),
            };
            if what.is_none() || what != last {
                patience.waited = patience.waited.min(EAGER);
            }
            let waited = patience.pause();
            if let Some(what) = what.as_deref().filter(|_| waited >= self.watchdog) {
                return self.with(what, |rank, _| Err(rank.late(what, waited)));
            }
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                let shown = what.as_deref().unwrap_or("a program").to_owned();
                self.with(&shown, |rank, state| rank.settle(state, IN_PROGRESS, &shown))?;
            }
            last = what;
        }
    }

    /// The orderly end: waits until all that was sent has left.
    ///
    /// # Errors
    /// A rank that does not come, or what NCCL says.
    pub fn finish(&self) -> Result<(), CommError> {
        self.with(END, |rank, state| {
            // SAFETY: the communicator is live, and not used after it was destroyed.
            unsafe {
                let status = (rank.calls.finalize)(state.comm);
                rank.settle(state, status, END)?;
                let comm = std::mem::replace(&mut state.comm, std::ptr::null_mut());
                match (rank.calls.destroy)(comm) {
                    SUCCESS | IN_PROGRESS => Ok(()),
                    status => Err(rank.error(std::ptr::null_mut(), END, status)),
                }
            }
        })
    }
}

impl Drop for Rank {
    /// Without waiting for other ranks: this one may end because of an error that they do not know of yet. Where all is well,
    /// ranks have told each other so on the host after the last program, and nothing is on its way.
    fn drop(&mut self) {
        let why = CommError::Engine("NCCL has ended".to_owned());
        self.abort(&mut self.lock(), why);
    }
}

/// Returns what all ranks must be told.
fn unique_id(calls: &Calls) -> Result<UniqueId, CommError> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: the pointer is a live value.
    match unsafe { (calls.unique_id)(&mut id) } {
        SUCCESS => Ok(id),
        status => {
            let (words, last) = (calls.words(status), calls.last_words(std::ptr::null_mut()));
            Err(CommError::Engine(format!("NCCL does not start: {words}; {last}")))
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_without_nccl_is_told_what_to_install() {
        // Where it is installed, it loads.
        if let Err(why) = super::check() {
            assert!(why.contains("libnccl.so.2") && why.contains("pip install nvidia-nccl-cu12"), "{why}");
        }
    }
}
