//! Ranks that are processes, on this host or several, over Open MPI.
//!
//! An exchange is one message to and one from every other member, each behind a header that says where its sender is; so a rank
//! that does not come is known by its number and host, and one that is elsewhere by what it is in. MPI's own collectives would
//! wait forever without naming the missing rank.
//!
//! Waiting is testing, with pauses that grow with the time waited: ranks may share cores, and what they compute goes first.
//! Kernels call from threads of a pool: MPI is started with `MPI_THREAD_SERIALIZED`, and a lock keeps calls one at a time.
//!
//! A rank that works on its own while others wait ([`Communicator::busy`]) says so in messages without bytes, as long as its process
//! gets on: uses a processor, which reading and writing do too. So a rank is late that neither comes nor gets on.
//!
//! There is one world in a process, from [`open`] to [`finish`] or [`abort`].

mod header;
mod wire;

use crate::{Busy, CommError, Communicator, Sent, staging};
use header::Header;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use wire::{Failure, Wire};

/// Bytes that Open MPI holds in a process besides these buffers. Measured: 9.4 MiB with 4 processes of one host (4.1.4, `ob1`),
/// peak of the resident bytes less those of the same work in one process; the rest is room for more ranks and other transports.
const LIBRARY: u64 = 16 << 20;

/// Returns the bytes that exchanging takes in each process, from the world's start to its end.
pub fn world_bytes(ranks: usize) -> u64 {
    LIBRARY + 2 * buffer(ranks) as u64
}

/// Returns the bytes of what is sent at once, and of what is received.
fn buffer(ranks: usize) -> usize {
    staging(ranks) + ranks * header::BYTES
}

/// Without a pause: exchanges of ranks that come together take less.
const EAGER: Duration = Duration::from_micros(50);
/// The longest pause between two tests: long enough to cost no core, short compared with what waiting already took.
const PAUSE: Duration = Duration::from_micros(500);
/// The most that one round of waiting counts: of a process that was stopped itself, or a machine that slept, the rest is not
/// other ranks' lateness.
const ROUND: Duration = Duration::from_millis(100);
/// How often in the watchdog's time a rank at work says so, and how often those that wait look for it.
const BEATS: u32 = 4;
const LOOKS: u32 = 8;
/// A process gets on that uses this part of a processor.
const GETS_ON: u32 = 1000;
/// A launcher that ends the job asks first, and kills a second later: what has been waited for this long is said between.
const ASKED: Duration = Duration::from_millis(100);
/// How long ending the others may take.
const ENDING: Duration = Duration::from_secs(5);
/// The world's own collectives.
const START: &str = "the start of the run";
const END: &str = "the end of the run";

/// How a world behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long to wait for another rank in one exchange, before the run is given up.
    pub watchdog: Duration,
    /// Tells people.
    pub notice: fn(&str),
    /// True once this process was asked to end.
    pub asked: fn() -> bool,
    /// Exit code of a run that is given up where no error can be returned.
    pub code: u8,
}

/// This process's end of the world.
#[derive(Debug)]
pub struct MpiRank {
    rank: usize,
    ranks: usize,
    /// Of every rank, from the start on.
    hosts: OnceLock<Vec<String>>,
    options: Options,
    /// Whom the exchange under way waits for, in what, and since when.
    waits: Mutex<Option<(BTreeSet<usize>, String, Instant)>>,
    wire: Mutex<State>,
    /// Says what is waited for when this process is asked to end: in a thread, as MPI may be long in a call once a rank is gone.
    _asked: Busy,
}

#[derive(Debug)]
struct State {
    wire: Wire,
    /// Why no exchange is possible any more: messages may still be under way.
    broken: Option<CommError>,
}

/// Holds the wire for the rest of the process, as MPI may use its bytes after a failure.
static WORLD: OnceLock<Arc<MpiRank>> = OnceLock::new();

/// Calls `look` every [`ROUND`] in a thread until what is returned is dropped. Without a thread nothing looks, and all goes
/// well as a rule.
fn watch(name: &str, mut look: impl FnMut(&AtomicBool) + Send + 'static) -> Busy {
    let busy = Busy::default();
    let over = busy.0.clone();
    let _ = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        while !over.load(Ordering::SeqCst) {
            std::thread::sleep(ROUND);
            look(&over);
        }
    });
    busy
}

/// Ends the process if something takes too long that cannot be given up otherwise.
fn guard(most: Duration, said: String, options: Options) -> Busy {
    let start = Instant::now();
    watch("watchdog", move |over| {
        if start.elapsed() >= most && !over.load(Ordering::SeqCst) {
            if !said.is_empty() {
                (options.notice)(&said);
            }
            end_now(options.code);
        }
    })
}

/// Returns the CPU time of this process without this thread.
fn worked() -> Duration {
    let of = |clock| {
        // SAFETY: the time is written to this frame; a clock that is not there leaves zero.
        unsafe {
            let mut time: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(clock, &mut time);
            Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
        }
    };
    of(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(of(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Ends this process without asking anybody; its launcher then ends the others.
fn end_now(code: u8) -> ! {
    // SAFETY: takes a number and does not return; nothing runs that could see half a state.
    unsafe { libc::_exit(code.into()) }
}

/// Starts MPI in this process and meets the others. A second call gives the same world.
///
/// # Errors
/// No Open MPI, a start that fails, a rank that does not come.
pub fn open(options: Options) -> Result<Arc<MpiRank>, CommError> {
    if let Some(world) = WORLD.get() {
        return Ok(world.clone());
    }
    let mut wire = Wire::open().map_err(CommError::Engine)?;
    let seconds = options.watchdog.as_secs();
    let late = format!("MPI has not started for {seconds} s: a process of the job did not come to it");
    let guard = guard(options.watchdog, late, options);
    wire.start().map_err(CommError::Engine)?;
    drop(guard);
    let (rank, ranks, host) = wire.place().map_err(CommError::Engine)?;
    wire.reserve(buffer(ranks));
    let end = MpiRank {
        rank,
        ranks,
        hosts: OnceLock::new(),
        options,
        waits: Mutex::new(None),
        wire: Mutex::new(State { wire, broken: None }),
        _asked: watch("asked to end", move |over| {
            if (options.asked)() && WORLD.get().is_some_and(|world| world.say_who_is_missing()) {
                over.store(true, Ordering::SeqCst);
            }
        }),
    };
    let world = WORLD.get_or_init(|| Arc::new(end)).clone();
    let mut mine = [0; 64];
    let n = host.len().min(mine.len());
    mine[..n].copy_from_slice(&host.as_bytes()[..n]);
    let mut all = vec![0; ranks * mine.len()];
    world.all_gather(START, &(0..ranks).collect::<Vec<_>>(), &mine, &mut all)?;
    let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let hosts = all.chunks_exact(mine.len()).map(name).collect();
    world.hosts.get_or_init(|| hosts);
    Ok(world)
}

/// Returns the rank that this process is, and its host; `None` before [`open`].
pub fn this_rank() -> Option<(usize, String)> {
    WORLD.get().map(|world| (world.rank, world.host(world.rank).to_owned()))
}

/// Ends the world in an orderly way, if there is one: returns when all ranks have come. Nothing may be exchanged afterwards.
///
/// # Errors
/// A rank that does not come.
pub fn finish() -> Result<(), CommError> {
    let Some(world) = WORLD.get() else { return Ok(()) };
    let all: Vec<usize> = (0..world.ranks).collect();
    world.all_gather(END, &all, &[], &mut [])?;
    let seconds = world.options.watchdog.as_secs();
    let late = format!("MPI has not ended for {seconds} s: a process of the job did not come to its end");
    let _guard = guard(world.options.watchdog, late, world.options);
    let mut state = world.lock();
    // All messages sent before each rank's end have arrived, and no more will come.
    state.broken = Some(CommError::Engine("the ranks have parted".to_owned()));
    for rank in world.others() {
        state.wire.heard(rank).map_err(|failure| world.failed(failure, END, 0))?;
    }
    state.wire.finish().map_err(CommError::Engine)
}

/// Ends all processes of the world with this code; returns where there is no world.
pub fn abort(code: u8) {
    let Some(world) = WORLD.get() else { return };
    // A launcher that does not answer, or an exchange in another thread that does not end.
    let guard = guard(ENDING, String::new(), Options { code, ..world.options });
    world.lock().wire.abort(code);
    drop(guard);
    end_now(code);
}

impl MpiRank {
    /// Returns the host of a rank.
    pub fn host(&self, rank: usize) -> &str {
        self.hosts.get().and_then(|h| h.get(rank)).map_or("not known yet", String::as_str)
    }

    /// Returns the number of ranks on this process's host.
    pub fn here(&self) -> usize {
        let mine = self.host(self.rank);
        (0..self.ranks).filter(|r| self.host(*r) == mine).count()
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let mine = self.rank;
        (0..self.ranks).filter(move |r| *r != mine)
    }

    /// Returns true when there was something to say.
    fn say_who_is_missing(&self) -> bool {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((missing, what, _)) = waits.as_ref().filter(|(.., since)| since.elapsed() >= ASKED) else {
            return false;
        };
        let named = |rank: usize| format!("rank {rank} (host {})", self.host(rank));
        let missing: Vec<String> = missing.iter().copied().map(named).collect();
        let (me, missing) = (named(self.rank), missing.join(", "));
        (self.options.notice)(&format!("{me} was asked to end while it waits for {missing} in {what}"));
        true
    }

    fn waits(&self, whom: Option<(BTreeSet<usize>, &str)>) {
        let waits = whom.map(|(missing, what)| (missing, what.to_owned(), Instant::now()));
        *self.waits.lock().unwrap_or_else(PoisonError::into_inner) = waits;
    }

    /// Tells the others that this rank works, unless that is over.
    fn beat(&self, over: &AtomicBool) {
        let mut state = self.lock();
        if state.broken.is_none() && !over.load(Ordering::SeqCst) {
            // Whom this does not reach notices by itself.
            self.others().for_each(|rank| drop(state.wire.beat(rank)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the steps of an exchange, each of which fits the buffers.
    fn steps(
        &self,
        wire: &mut Wire,
        what: &str,
        members: &[usize],
        sent: Sent<'_>,
        got: &mut [u8],
    ) -> Result<(), CommError> {
        let n = sent.part(0, members.len()).len();
        let call = header::call(u8::from(matches!(sent, Sent::Parts(_))), what, members);
        let most = (staging(self.ranks) / members.len().max(1)).max(1);
        let mut first = 0;
        loop {
            let length = most.min(n - first);
            let slot = header::BYTES + length;
            let mine = Header { bytes: n as u64, first: first as u64, call, what: what.to_owned() };
            for (k, m) in members.iter().enumerate() {
                let bytes = &sent.to(k, members.len())[first..][..length];
                if *m == self.rank {
                    got[k * n + first..][..length].copy_from_slice(bytes);
                } else {
                    let to = wire.out(k * slot..(k + 1) * slot);
                    mine.write(to);
                    to[header::BYTES..].copy_from_slice(bytes);
                }
            }
            self.turn(wire, what, members, slot)?;
            for (k, m) in members.iter().enumerate().filter(|(_, m)| **m != self.rank) {
                let (head, bytes) = wire.got(k * slot..(k + 1) * slot).split_at(header::BYTES);
                let theirs = Header::read(head);
                if !theirs.meets(&mine) {
                    return Err(self.disagree(*m, theirs.what, theirs.bytes as usize, &mine, members.len()));
                }
                got[k * n + first..][..length].copy_from_slice(bytes);
            }
            first += length;
            if first >= n {
                return Ok(());
            }
        }
    }

    fn disagree(&self, rank: usize, what: String, bytes: usize, mine: &Header, members: usize) -> CommError {
        let other = format!("{} with {} bytes among {members} ranks", mine.what, mine.bytes);
        CommError::Disagree { rank, what, bytes, other }
    }

    /// Exchanges a slot with each other member.
    fn turn(&self, wire: &mut Wire, what: &str, members: &[usize], slot: usize) -> Result<(), CommError> {
        let failed = |failure| self.failed(failure, what, slot);
        for (k, m) in members.iter().enumerate().filter(|(_, m)| **m != self.rank) {
            wire.exchange(*m, k * slot..(k + 1) * slot).map_err(failed)?;
        }
        // Since the step began; how much of that when a sign of life was looked for and when one had come; since a message moved.
        let (mut waited, mut looked, mut heard) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (mut idle, mut said) = (Duration::ZERO, false);
        let mut before = Instant::now();
        while let Some(rank) = wire.missing() {
            if wire.poll().map_err(failed)? {
                (idle, said) = (Duration::ZERO, false);
                continue;
            }
            if idle < EAGER {
                std::thread::yield_now();
            } else {
                if !std::mem::replace(&mut said, true) {
                    self.waits(Some((wire.all_missing(), what)));
                }
                std::thread::sleep((idle / 8).min(PAUSE));
            }
            let now = Instant::now();
            let round = now.duration_since(before).min(ROUND);
            (waited, idle, before) = (waited + round, idle + round, now);
            if waited - looked >= self.options.watchdog / LOOKS {
                looked = waited;
                if wire.heard(rank).map_err(failed)? {
                    heard = waited;
                }
            }
            let late = waited - heard;
            if late >= self.options.watchdog {
                let host = self.host(rank).to_owned();
                return Err(CommError::Late { rank, host, what: what.to_owned(), seconds: late.as_secs() });
            }
        }
        self.waits(None);
        Ok(())
    }

    fn failed(&self, failure: Failure, what: &str, slot: usize) -> CommError {
        match failure {
            Failure::Length(rank, n) => CommError::Disagree {
                rank,
                what: "another collective".to_owned(),
                bytes: n.unwrap_or(slot + 1).saturating_sub(header::BYTES),
                other: format!("{what} with {} bytes", slot.saturating_sub(header::BYTES)),
            },
            Failure::Broken(rank, why) => {
                let why = format!("(host {}) cannot be reached: {why}", self.host(rank));
                CommError::Gone { rank, why, what: what.to_owned() }
            }
        }
    }
}

impl Communicator for MpiRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn busy(&self) -> Busy {
        let every = self.options.watchdog / BEATS;
        let (mut last, mut before) = (Instant::now(), worked());
        watch("at work", move |over| {
            let (since, now) = (last.elapsed(), worked());
            if since >= every && now.saturating_sub(before) >= since / GETS_ON {
                (last, before) = (Instant::now(), now);
                if let Some(world) = WORLD.get() {
                    world.beat(over);
                }
            }
        })
    }

    fn exchange(
        &self,
        what: &str,
        members: &[usize],
        sent: Sent<'_>,
        got: &mut [u8],
    ) -> Result<(), CommError> {
        let mut state = self.lock();
        if let Some(why) = &state.broken {
            return Err(why.clone());
        }
        let done = self.steps(&mut state.wire, what, members, sent, got);
        state.broken = done.as_ref().err().cloned();
        done
    }
}
