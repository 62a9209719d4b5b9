//! Ranks that are threads of one process: virtual devices, each with an executor and an arena of its own.
//!
//! Every rank has a box of [`staging`] bytes. In an exchange each fills its own, all meet, each reads the others', and
//! all meet again before a box may be filled anew. A rank that ends, fails or panics is marked as gone: whoever waits for
//! it gets an error that names it.

use crate::{CommError, Communicator, Sent, fits, staging};
use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Returns the bytes of the boxes of a world: held from its start to its end, besides the arenas.
pub fn world_bytes(ranks: usize) -> u64 {
    (ranks * staging(ranks)) as u64
}

/// What all ranks share.
#[derive(Debug)]
struct World {
    boxes: Vec<RwLock<Vec<u8>>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Meetings by their members.
    meetings: HashMap<Vec<usize>, Meeting>,
    /// Why a rank is not there any more.
    gone: Vec<Option<String>>,
    /// The first that left before its end.
    first: Option<usize>,
}

/// A group's meeting point.
#[derive(Debug, Default)]
struct Meeting {
    /// Members who wait.
    here: usize,
    /// Meetings that took place.
    held: u64,
    /// What those who wait are in.
    what: String,
    bytes: usize,
    /// Why it cannot be held any more.
    broken: Option<CommError>,
}

impl World {
    fn new(ranks: usize) -> World {
        let state = State { gone: vec![None; ranks], ..State::default() };
        let boxes = (0..ranks).map(|_| RwLock::new(vec![0; staging(ranks)])).collect();
        World { boxes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Locks the state. A rank that panics holds no lock of the state while it changes, so what it leaves is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, rank: usize, why: &str, failed: bool) {
        let mut state = self.state();
        if state.gone[rank].is_none() {
            state.gone[rank] = Some(why.to_owned());
            if failed && state.first.is_none() {
                state.first = Some(rank);
            }
        }
        self.changed.notify_all();
    }

    /// Waits until all members are here.
    fn meet(&self, rank: usize, what: &str, members: &[usize], bytes: usize) -> Result<(), CommError> {
        let mut state = self.state();
        if !state.meetings.contains_key(members) {
            state.meetings.insert(members.to_vec(), Meeting::default());
        }
        let State { meetings, .. } = &mut *state;
        let Some(meeting) = meetings.get_mut(members) else { return Ok(()) };
        let held = meeting.held;
        if meeting.here == 0 {
            what.clone_into(&mut meeting.what);
            meeting.bytes = bytes;
        } else if meeting.what != what || meeting.bytes != bytes {
            let other = meeting.what.clone();
            let error = CommError::Disagree { rank, what: what.to_owned(), bytes, other };
            meeting.broken = Some(error.clone());
            self.changed.notify_all();
            return Err(error);
        }
        meeting.here += 1;
        if meeting.here == members.len() {
            meeting.here = 0;
            meeting.held += 1;
            self.changed.notify_all();
            return Ok(());
        }
        loop {
            let Some(meeting) = state.meetings.get(members) else { return Ok(()) };
            if meeting.held != held {
                return Ok(());
            }
            if let Some(broken) = &meeting.broken {
                return Err(broken.clone());
            }
            if let Some(gone) = members.iter().find(|m| state.gone[**m].is_some()) {
                // Whoever failed first is the cause: the member missing here may have ended because of it.
                let rank = state.first.unwrap_or(*gone);
                let why = state.gone[rank].clone().unwrap_or_default();
                return Err(CommError::Gone { rank, why, what: what.to_owned() });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One rank's end.
#[derive(Debug)]
pub struct LocalRank {
    world: Arc<World>,
    rank: usize,
}

impl LocalRank {
    /// Fills this rank's box, meets the others, reads every member's box, and meets again.
    fn by_boxes(
        &self,
        what: &str,
        members: &[usize],
        send: &[u8],
        mut read: impl FnMut(usize, &[u8]),
    ) -> Result<(), CommError> {
        let mine = &self.world.boxes[self.rank];
        mine.write().unwrap_or_else(PoisonError::into_inner)[..send.len()].copy_from_slice(send);
        self.world.meet(self.rank, what, members, send.len())?;
        for (k, m) in members.iter().enumerate() {
            let theirs = self.world.boxes[*m].read().unwrap_or_else(PoisonError::into_inner);
            read(k, &theirs[..send.len()]);
        }
        self.world.meet(self.rank, what, members, send.len())
    }
}

impl Communicator for LocalRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.world.boxes.len()
    }

    fn exchange(
        &self,
        what: &str,
        members: &[usize],
        sent: Sent<'_>,
        got: &mut [u8],
    ) -> Result<(), CommError> {
        let me = members.iter().position(|m| *m == self.rank).unwrap_or(0);
        let mine = sent.part(me, members.len());
        let n = mine.len();
        self.by_boxes(what, members, sent.bytes(), |k, theirs| {
            got[k * n..][..n].copy_from_slice(&theirs[mine.clone()]);
        })
    }

    fn send(&self, what: &str, to: usize, mine: &[u8], _: &mut [u8]) -> Result<(), CommError> {
        fits(what, mine.len(), self.ranks())?;
        self.by_boxes(what, &[self.rank.min(to), self.rank.max(to)], mine, |_, _| ())
    }

    fn receive(&self, what: &str, from: usize, got: &mut [u8], _: &mut [u8]) -> Result<(), CommError> {
        let members = [self.rank.min(from), self.rank.max(from)];
        self.world.meet(self.rank, what, &members, got.len())?;
        let theirs = &self.world.boxes[from];
        got.copy_from_slice(&theirs.read().unwrap_or_else(PoisonError::into_inner)[..got.len()]);
        self.world.meet(self.rank, what, &members, got.len())
    }
}

/// Why a world ended before its work was done.
#[derive(Debug)]
pub struct Failed<E> {
    /// The rank that failed first; the others ended because it did.
    pub rank: usize,
    /// What it returned, or the words of its panic.
    pub why: Result<E, String>,
}

/// Runs `body` once for each rank, each in a thread of its own, and gives what they return, in the order of ranks.
///
/// # Errors
/// What the first rank that failed returned. The others, as soon as they wait for it, get errors that name it.
pub fn run<T: Send, E: Send + Display>(
    ranks: usize,
    body: impl Fn(Arc<LocalRank>) -> Result<T, E> + Sync,
) -> Result<Vec<T>, Failed<E>> {
    let world = Arc::new(World::new(ranks));
    let one = |rank: usize| {
        let end = Arc::new(LocalRank { world: world.clone(), rank });
        // What a panicking rank leaves is not looked at: its world ends.
        let result = catch_unwind(AssertUnwindSafe(|| body(end)));
        match &result {
            Ok(Ok(_)) => world.leave(rank, "has ended", false),
            Ok(Err(e)) => world.leave(rank, &format!("failed ({e})"), true),
            Err(_) => world.leave(rank, "panicked", true),
        }
        result
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(Err)).collect()
    });
    let first = world.state().first;
    let mut done = Vec::with_capacity(ranks);
    let mut failed = None;
    for (rank, result) in results.into_iter().enumerate() {
        let why = match result {
            Ok(Ok(value)) => {
                done.push(value);
                continue;
            }
            Ok(Err(e)) => Ok(e),
            Err(panic) => Err(words(&*panic)),
        };
        if failed.is_none() || Some(rank) == first {
            failed = Some(Failed { rank, why });
        }
    }
    failed.map_or(Ok(done), Err)
}

/// Returns what a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [usize; 4] = [0, 1, 2, 3];

    fn gathered(end: &LocalRank, members: &[usize], x: u8) -> Result<Vec<u8>, CommError> {
        let mut all = vec![0; 2 * members.len()];
        end.all_gather("a gather", members, &[x, x + 1], &mut all)?;
        Ok(all)
    }

    #[test]
    fn groups_exchange_in_the_order_of_ranks() {
        let done = run(4, |end| -> Result<_, CommError> {
            let rank = end.rank() as u8;
            let mut results = Vec::new();
            for round in 0..100 {
                let pair = if rank < 2 { [0, 1] } else { [2, 3] };
                results.push(gathered(&end, &pair, 10 * rank + round)?);
                let parts: Vec<u8> = (0..4).map(|to| 16 * rank + to).collect();
                let mut got = vec![0; 4];
                end.all_to_all("a turn", &ALL, &parts, &mut got)?;
                results.push(got);
            }
            Ok(results)
        });
        let done = done.expect("nobody failed");
        for (rank, results) in done.iter().enumerate() {
            let first = rank / 2 * 2;
            for (round, pair) in results.chunks(2).enumerate() {
                let of = |r: usize| [10 * r + round, 10 * r + round + 1].map(|x| x as u8);
                assert_eq!(pair[0], [of(first), of(first + 1)].concat());
                assert_eq!(pair[1], ALL.map(|from| (16 * from + rank) as u8));
            }
        }
    }

    /// An engine that knows groups alone.
    #[derive(Debug)]
    struct Groups(Arc<LocalRank>);

    impl Communicator for Groups {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn ranks(&self) -> usize {
            self.0.ranks()
        }
        fn exchange(&self, what: &str, m: &[usize], sent: Sent<'_>, got: &mut [u8]) -> Result<(), CommError> {
            self.0.exchange(what, m, sent, got)
        }
    }

    #[test]
    fn bytes_go_round_from_rank_to_rank() {
        let round = |end: &dyn Communicator| -> Result<Vec<u8>, CommError> {
            let (rank, mut held, mut both) = (end.rank(), vec![0; 3], [0; 6]);
            for turn in 0..20 {
                // 0 to 1, 1 to 2, 2 to 0: each adds its number.
                if rank == 0 && turn == 0 {
                    held = vec![1, 2, 3];
                } else {
                    end.receive("a round", (rank + 2) % 3, &mut held, &mut both)?;
                }
                held.iter_mut().for_each(|x| *x += rank as u8);
                if (rank, turn) != (2, 19) {
                    end.send("a round", (rank + 1) % 3, &held, &mut both)?;
                }
            }
            Ok(held)
        };
        let plain = run(3, |end| round(&*end)).expect("nobody failed");
        let groups = run(3, |end| round(&Groups(end))).expect("nobody failed");
        assert_eq!(plain, groups);
        assert_eq!(plain[2], [1 + 60, 2 + 60, 3 + 60]);
    }

    #[test]
    fn who_waits_for_a_rank_that_is_gone_is_told() {
        let done = run(2, |end| match end.rank() {
            0 => Ok(()),
            _ => end.receive("a turn", 0, &mut [0], &mut [0; 2]),
        });
        let Err(Failed { rank: 1, why: Ok(CommError::Gone { rank: 0, .. }) }) = done else {
            panic!("{done:?}: rank 0 ended")
        };
    }

    #[test]
    fn a_rank_that_is_gone_is_named() {
        for how in ["error", "panic", "end"] {
            let heard = Mutex::new(Vec::new());
            let done = run(4, |end| {
                gathered(&end, &ALL, 1).map_err(|e| e.to_string())?;
                if end.rank() == 2 {
                    match how {
                        "error" => return Err("the disk is full".to_owned()),
                        "panic" => std::panic::resume_unwind(Box::new("a bug".to_owned())),
                        _ => return Ok(()),
                    }
                }
                let why = gathered(&end, &ALL, 1).map(drop).map_err(|e| e.to_string());
                heard.lock().expect("no panic").push(why.clone());
                why
            });
            let failed = done.expect_err("a rank is missing");
            let heard = heard.into_inner().expect("no panic");
            assert_eq!(heard.len(), 3, "{how}");
            let said = "rank 2 ";
            assert!(heard.iter().all(|h| h.as_ref().is_err_and(|e| e.contains(said))), "{how}: {heard:?}");
            match how {
                "error" => assert!(failed.rank == 2 && failed.why == Ok("the disk is full".to_owned())),
                "panic" => assert!(failed.rank == 2 && failed.why == Err("a bug".to_owned())),
                _ => assert!(failed.rank != 2),
            }
        }
    }

    #[test]
    fn ranks_that_disagree_are_told() {
        let done = run(2, |end| {
            let mut all = vec![0; 2];
            let what = if end.rank() == 0 { "one" } else { "another" };
            end.all_gather(what, &[0, 1], &[0], &mut all)
        });
        let Err(Failed { why: Ok(why), .. }) = done else { panic!("they disagree") };
        assert!(matches!(why, CommError::Disagree { .. }), "{why}");
    }

    #[test]
    fn calls_are_bounded() {
        let long = vec![0; staging(1) + 1];
        let done = run(1, |end| end.all_gather("x", &[0], &long, &mut vec![0; long.len()]));
        assert!(matches!(done, Err(Failed { why: Ok(CommError::TooLong { .. }), .. })));
    }
}
