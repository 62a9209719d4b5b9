//! How ranks exchange bytes: one small trait, and engines behind it.
//!
//! An executor cuts a collective into calls of at most [`staging`] bytes, from and to scratch that its plan counts; an engine
//! moves them. It knows nothing of tensors, and sums nothing: the order of sums is the executor's.

pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;

/// Returns the most bytes that one call among `ranks` ranks sends: enough that starting a call costs little in comparison.
pub const fn staging(ranks: usize) -> usize {
    let least = ranks * 1024;
    if least > 1 << 20 { least } else { 1 << 20 }
}

/// Why an exchange did not happen. Whoever gets it must end: the others will.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CommError {
    /// Another rank is not there any more.
    #[error("rank {rank} {why}, and {what} cannot continue without it")]
    Gone {
        /// the rank
        rank: usize,
        /// what it did
        why: String,
        /// the collective that waited for it
        what: String,
    },
    /// Ranks that are to run the same program do not.
    #[error("ranks disagree: rank {rank} is in {what} with {bytes} bytes, others in {other}")]
    Disagree {
        /// a rank
        rank: usize,
        /// where it is
        what: String,
        /// what it sends
        bytes: usize,
        /// where others are
        other: String,
    },
    /// Another rank does not come: it hangs, is stopped, or computes for longer than is waited.
    #[error("rank {rank} (host {host}) has not come to {what} for {seconds} s")]
    Late {
        /// the rank
        rank: usize,
        /// where it runs
        host: String,
        /// the collective that waits for it
        what: String,
        /// how long this rank waited
        seconds: u64,
    },
    /// Another rank does not come, of an engine that does not tell which.
    #[error(
        "rank {rank} has waited for {seconds} s in {what}: another rank has not come to it (NCCL does not tell which)"
    )]
    Unanswered {
        /// the rank that waits
        rank: usize,
        /// the collective
        what: String,
        /// how long
        seconds: u64,
    },
    /// The connection to another rank is lost, of an engine that does not tell which.
    #[error("rank {rank} has lost another rank in {what} (NCCL does not tell which): {why}")]
    Lost {
        /// the rank that noticed
        rank: usize,
        /// the collective
        what: String,
        /// what the engine says
        why: String,
    },
    /// The engine itself: it is not there, or did not start.
    #[error("{0}")]
    Engine(String),
    /// A call beyond the engine's staging.
    #[error("{what} sends {bytes} bytes at once, staging has {most}")]
    TooLong {
        /// the collective
        what: String,
        /// what it sends
        bytes: usize,
        /// what may be sent
        most: usize,
    },
}

/// Held while something is done; true for those that watch it once that is over. See [`Communicator::busy`].
#[derive(Debug, Default)]
pub struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What a rank sends in an exchange.
#[derive(Clone, Copy, Debug)]
pub enum Sent<'a> {
    /// The same bytes to every member: an all-gather.
    Same(&'a [u8]),
    /// A part of its own to each member, equally long, one after another: an all-to-all.
    Parts(&'a [u8]),
}

impl<'a> Sent<'a> {
    /// Returns all of it.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Sent::Same(bytes) | Sent::Parts(bytes) => bytes,
        }
    }

    /// Returns the range of bytes that the `k`-th of `members` members gets.
    pub fn part(self, k: usize, members: usize) -> Range<usize> {
        match self {
            Sent::Same(bytes) => 0..bytes.len(),
            Sent::Parts(bytes) => {
                let n = bytes.len() / members.max(1);
                k * n..(k + 1) * n
            }
        }
    }

    /// Returns the bytes that the `k`-th of `members` members gets.
    pub fn to(self, k: usize, members: usize) -> &'a [u8] {
        &self.bytes()[self.part(k, members)]
    }
}

/// Refuses a call that sends more than [`staging`].
fn fits(what: &str, bytes: usize, ranks: usize) -> Result<(), CommError> {
    let most = staging(ranks);
    if bytes > most { Err(CommError::TooLong { what: what.to_owned(), bytes, most }) } else { Ok(()) }
}

/// One rank's end of a world of ranks. All ranks of a group make the same calls in the same order; each returns when the
/// group has exchanged. `what` names the collective for messages.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// Returns this rank's number.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Marks this rank as working on its own until the result is dropped: an engine with a watchdog tells the others that this
    /// rank is alive. It exchanges nothing meanwhile.
    fn busy(&self) -> Busy {
        Busy::default()
    }

    /// Exchanges at most [`staging`] bytes from every member, as many from each and in the same way; `got` gets what each has
    /// for this one, one after another. `members`: ranks, ascending, this one among them. What [`Communicator::all_gather`] and
    /// [`Communicator::all_to_all`] are made of.
    ///
    /// # Errors
    /// When a member is gone or elsewhere.
    fn exchange(
        &self,
        what: &str,
        members: &[usize],
        sent: Sent<'_>,
        got: &mut [u8],
    ) -> Result<(), CommError>;

    /// Gathers `mine` of every member, of one length; `all` gets them one after another. `members`: ranks, ascending, this one
    /// among them.
    ///
    /// # Errors
    /// When a member is gone or elsewhere.
    fn all_gather(
        &self,
        what: &str,
        members: &[usize],
        mine: &[u8],
        all: &mut [u8],
    ) -> Result<(), CommError> {
        fits(what, mine.len(), self.ranks())?;
        self.exchange(what, members, Sent::Same(mine), all)
    }

    /// Exchanges parts: `parts` has an equal part for each member, `got` gets what each has for this one, one after another.
    ///
    /// # Errors
    /// When a member is gone or elsewhere.
    fn all_to_all(
        &self,
        what: &str,
        members: &[usize],
        parts: &[u8],
        got: &mut [u8],
    ) -> Result<(), CommError> {
        fits(what, parts.len(), self.ranks())?;
        self.exchange(what, members, Sent::Parts(parts), got)
    }

    /// Sends `mine` to rank `to`, which gets it by [`Communicator::receive`]. `both`: scratch of twice as many bytes, for engines
    /// that only know groups.
    ///
    /// # Errors
    /// When the other is gone or elsewhere.
    fn send(&self, what: &str, to: usize, mine: &[u8], both: &mut [u8]) -> Result<(), CommError> {
        let here = self.rank();
        self.all_gather(what, &[here.min(to), here.max(to)], mine, both)
    }

    /// Gets what rank `from` sends to this one, of the same length. `both` as in [`Communicator::send`].
    ///
    /// # Errors
    /// When the other is gone or elsewhere.
    fn receive(&self, what: &str, from: usize, got: &mut [u8], both: &mut [u8]) -> Result<(), CommError> {
        let here = self.rank();
        self.all_gather(what, &[here.min(from), here.max(from)], got, both)?;
        let first = if from < here { 0 } else { got.len() };
        got.copy_from_slice(&both[first..][..got.len()]);
        Ok(())
    }
}

/// Returns what every rank says, of any length, in the order of ranks. `what` is named where one does not answer.
///
/// # Errors
/// When a rank is gone.
pub fn gather(comm: &dyn Communicator, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    /// Bytes of one call: what ranks tell each other is short.
    const CHUNK: usize = 4096;
    let members: Vec<usize> = (0..comm.ranks()).collect();
    let mut lengths = vec![0; 8 * members.len()];
    comm.all_gather(what, &members, &(mine.len() as u64).to_le_bytes(), &mut lengths)?;
    let lengths = lengths.chunks_exact(8).map(|b| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| b[i])));
    let lengths: Vec<usize> = lengths.map(|n| n as usize).collect();
    let most = lengths.iter().copied().max().unwrap_or(0);
    let mut said: Vec<Vec<u8>> = vec![Vec::new(); members.len()];
    for at in (0..most).step_by(CHUNK) {
        let n = CHUNK.min(most - at);
        let mut part = mine.get(at..).unwrap_or(&[]).to_vec();
        part.resize(n, 0);
        let mut all = vec![0; n * members.len()];
        comm.all_gather(what, &members, &part, &mut all)?;
        said.iter_mut().zip(all.chunks_exact(n)).for_each(|(s, part)| s.extend_from_slice(part));
    }
    said.iter_mut().zip(lengths).for_each(|(s, n)| s.truncate(n));
    Ok(said)
}
