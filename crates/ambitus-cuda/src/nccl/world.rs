//! Processes that a launcher started, which have nothing but NCCL: it connects them, and their host-side exchanges go through it.
//!
//! `NCCL_COMM_ID=host:port` is NCCL's own way to meet: with it ncclGetUniqueId gives that address on every rank
//! (src/bootstrap.cc, bootstrapGetUniqueId, of 2.30.7), and rank 0 listens there from ncclCommInitRank on (src/init.cc:2533). No
//! byte of it is ours.

use super::{Calls, END, Rank, unique_id};
use crate::step::Message;
use ambitus_comm::{CommError, Communicator, Sent};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The variable.
pub const MEETING: &str = "NCCL_COMM_ID";
/// Bytes of each of the two buffers on the card.
const BUFFER: usize = 256 << 10;

/// How to open a world.
#[derive(Clone, Debug)]
pub struct Options {
    /// The card that this process drives.
    pub card: usize,
    /// Its rank.
    pub rank: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// Where the ranks meet, `host:port`, on rank 0's host.
    pub meeting: String,
    /// How long one exchange waits for other ranks.
    pub watchdog: Duration,
}

/// This process's end.
pub struct NcclWorld {
    rank: Arc<Rank>,
    card: Mutex<Buffers>,
}

/// Bytes on the card through which host bytes go, one exchange at a time.
struct Buffers {
    context: sys::CUcontext,
    stream: sys::CUstream,
    out: u64,
    got: u64,
}

// SAFETY: the handles are the process's; the lock around them keeps exchanges apart, and each enters the context first.
unsafe impl Send for Buffers {}

impl std::fmt::Debug for NcclWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclWorld").field("rank", &self.rank).finish_non_exhaustive()
    }
}

static WORLD: OnceLock<Arc<NcclWorld>> = OnceLock::new();

fn failed(doing: &str, e: DriverError) -> CommError {
    CommError::Engine(crate::driver::failed(doing, e))
}

/// Connects this process with the others. A second call gives the same world. To be called before other threads start: it sets a
/// variable of the environment.
///
/// # Errors
/// No card, no NCCL, or ranks that do not come.
pub fn open(options: &Options) -> Result<Arc<NcclWorld>, CommError> {
    if let Some(world) = WORLD.get() {
        return Ok(world.clone());
    }
    let calls = Calls::load().map_err(CommError::Engine)?;
    crate::driver::card(options.card).map_err(CommError::Engine)?;
    let buffers = Buffers::new(options.card)?;
    // SAFETY: by this function's documentation no other thread reads the environment now.
    unsafe { std::env::set_var(MEETING, &options.meeting) };
    let id = unique_id(&calls)?;
    let rank =
        Rank::init(calls, id, (options.rank, options.ranks), options.watchdog).map_err(|e| match e {
            CommError::Unanswered { rank, what, seconds } => {
                CommError::Unanswered { rank, what: format!("{what} at {}", options.meeting), seconds }
            }
            other => other,
        })?;
    let world = Arc::new(NcclWorld { rank: Arc::new(rank), card: Mutex::new(buffers) });
    Ok(WORLD.get_or_init(|| world).clone())
}

/// Returns the world of this process, if it was opened.
pub fn opened() -> Option<&'static Arc<NcclWorld>> {
    WORLD.get()
}

/// Ends the world in an orderly way, if there is one: returns when all ranks have come.
///
/// # Errors
/// A rank that does not come.
pub fn finish() -> Result<(), CommError> {
    let Some(world) = WORLD.get() else { return Ok(()) };
    let all: Vec<usize> = (0..world.ranks()).collect();
    world.all_gather(END, &all, &[0], &mut vec![0; all.len()])?;
    world.rank.finish()
}

impl Buffers {
    fn new(card: usize) -> Result<Buffers, CommError> {
        let taking = |e| failed("allocating memory for exchanges", e);
        let device = result::device::get(card as i32).map_err(|e| failed("the card", e))?;
        // SAFETY: the device was just given by the driver. Context, stream and memory are held to the end of the process,
        // as the world is.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(|e| failed("making a context", e))?;
            result::ctx::set_current(context).map_err(|e| failed("entering the context", e))?;
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(taking)?;
            let out = result::malloc_sync(BUFFER).map_err(taking)?;
            let got = result::malloc_sync(BUFFER).map_err(taking)?;
            Ok(Buffers { context, stream, out, got })
        }
    }

    /// Copies to or from the card, to the end.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CommError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: callers ensure that one side is a buffer of `bytes` bytes and the other a live slice of as many.
        unsafe {
            sys::cuMemcpyAsync(to, from, bytes, self.stream)
                .result()
                .and_then(|()| result::stream::synchronize(self.stream))
        }
        .map_err(|e| failed("moving data", e))
    }

    /// Whether what was put on the stream for an exchange is over.
    fn look(&self, what: &Arc<str>) -> Result<super::Seen, String> {
        // SAFETY: the stream is live.
        let over = crate::driver::come(unsafe { sys::cuStreamQuery(self.stream) });
        let over = over.map_err(|e| crate::driver::failed(what, e))?;
        Ok(if over { super::Seen::Over } else { super::Seen::Exchanges(what.clone()) })
    }
}

impl NcclWorld {
    /// Returns the communicator, for programs.
    pub fn communicator(&self) -> Arc<Rank> {
        self.rank.clone()
    }
}

impl Communicator for NcclWorld {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn ranks(&self) -> usize {
        self.rank.ranks()
    }

    fn exchange(
        &self,
        what: &str,
        members: &[usize],
        sent: Sent<'_>,
        got: &mut [u8],
    ) -> Result<(), CommError> {
        let card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is held to the end of the process.
        unsafe { result::ctx::set_current(card.context) }.map_err(|e| failed("entering the context", e))?;
        let n = sent.part(0, members.len()).len();
        let each = BUFFER / members.len().max(1);
        if each == 0 {
            return Err(CommError::Engine(format!("{what}: more than {BUFFER} ranks")));
        }
        let mut staged = vec![0; each.min(n) * members.len()];
        for first in (0..n).step_by(each) {
            let length = each.min(n - first);
            let staged = &mut staged[..length * members.len()];
            for (k, to) in staged.chunks_exact_mut(length).enumerate() {
                to.copy_from_slice(&sent.to(k, members.len())[first..][..length]);
            }
            card.copy(card.out, staged.as_ptr() as u64, staged.len())?;
            let slot = |base: u64, k: usize| base + (k * length) as u64;
            let message = |k: usize, sends, at| Message { rank: members[k], sends, at, bytes: length as u64 };
            let out = (0..members.len()).map(|k| message(k, true, slot(card.out, k)));
            let back = (0..members.len()).map(|k| message(k, false, slot(card.got, k)));
            let messages: Vec<Message> = out.chain(back).collect();
            // SAFETY: the buffers are left alone until the wait below is over, and have a slot for each member.
            unsafe { self.rank.messages(what, &messages, card.stream) }?;
            let name: Arc<str> = what.into();
            self.rank.wait(|| card.look(&name))?;
            card.copy(staged.as_mut_ptr().cast::<c_void>() as u64, card.got, staged.len())?;
            for (k, bytes) in staged.chunks_exact(length).enumerate() {
                got[k * n + first..][..length].copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}
