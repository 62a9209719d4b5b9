//! The ranks of a run, as one of them sees them: its number, what it holds of each tensor, and what all ranks report.
//!
//! All ranks run the same loop. Nothing is shared between them but their [`Communicator`] and the run's folder, on a file
//! system that all of them see; only the first one logs, prints, and writes what is not a checkpoint. What they must agree on
//! (losses, a stop that was asked for, the files of a checkpoint) they tell each other, and each draws the same conclusion.

use crate::launch::Processes;
use crate::tensor_ranges::{self, Piece};
use ambitus_comm::local::{self, Failed};
use ambitus_comm::{Busy, Communicator};
use ambitus_compile::passes::shard::Layout;
use ambitus_families::error::RunError;
use ambitus_ir::StateDecl;
use ambitus_plan::device::Device;
use ambitus_plan::resolve;
use ambitus_recipe::recipe::Recipe;
use std::sync::Arc;

/// This rank's place among the ranks of a run.
#[derive(Clone, Debug)]
pub struct World {
    comm: Option<Arc<dyn Communicator>>,
    layout: Option<Arc<Layout>>,
    /// Each rank has a part of the model, and all compute the same micro-batches.
    placed: bool,
    /// Ranks on this host that are processes, this one among them: they share its cores.
    here: usize,
    /// Which of them this is, from 0.
    local: usize,
    /// Bytes of this process that its engine takes.
    bytes: u64,
}

impl World {
    /// Returns the world of a single rank.
    pub fn alone() -> World {
        World { comm: None, layout: None, placed: false, here: 1, local: 0, bytes: 0 }
    }

    /// Returns a rank of several, by its end of an engine.
    pub fn of(comm: Arc<dyn Communicator>) -> World {
        World { comm: Some(comm), ..World::alone() }
    }

    /// Returns a rank that is a process among those of a launcher.
    pub fn of_processes(processes: Processes) -> World {
        let Processes { comm, here, local, bytes } = processes;
        World { here, local, bytes, ..World::of(comm) }
    }

    /// Returns the device of a recipe with this process's share of its host: the threads of a recipe are those of a host, and
    /// of its cards each process has one.
    ///
    /// # Errors
    /// As [`Device::find`].
    pub fn device(&self, recipe: &Recipe) -> Result<Device, RunError> {
        let threads = (resolve::threads(recipe) / self.here).max(1);
        let device = Device::find(Device::of_rank(recipe.device, self.local)?, threads)?;
        Ok(device.beside_engine(self.bytes).connected(self.ranks()))
    }

    /// Returns this world for a session whose tensors lie as in `layout`.
    pub fn holding(&self, layout: Option<Layout>) -> World {
        World { layout: layout.map(Arc::new), ..self.clone() }
    }

    /// Returns this world for a model that is placed on the ranks: each has a part of it.
    pub fn of_parts(&self) -> World {
        World { placed: true, ..self.clone() }
    }

    /// Returns this rank and the number of ranks that take turns at micro-batches, in the order of the whole update. Where each
    /// rank has a part of the model, every rank takes all micro-batches.
    pub fn turn(&self) -> (usize, usize) {
        if self.placed { (0, 1) } else { (self.rank(), self.ranks()) }
    }

    /// Returns whether this rank reports what it computed: no other rank computed the same, or this is the first of them.
    pub fn says(&self) -> bool {
        !self.placed || self.is_first()
    }

    /// Returns whether tensors that this rank has whole are on no other.
    pub fn has_own(&self) -> bool {
        self.placed || self.is_first()
    }

    /// Returns which file of a checkpoint this rank writes, and how many there are.
    pub fn file(&self) -> (usize, usize) {
        if self.placed { (self.rank(), self.ranks()) } else { self.shard() }
    }

    /// Returns the engine, where there are other ranks.
    pub fn comm(&self) -> Option<&Arc<dyn Communicator>> {
        self.comm.as_ref()
    }

    /// Returns this rank's number.
    pub fn rank(&self) -> usize {
        self.comm.as_ref().map_or(0, |c| c.rank())
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.comm.as_ref().map_or(1, |c| c.ranks())
    }

    /// Returns whether this is the rank that writes, logs and prints.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Returns where the session's tensors lie, and which rank's share this is.
    pub fn held(&self) -> Option<(&Layout, usize)> {
        Some((self.layout.as_deref()?, self.rank()))
    }

    /// Returns which shard of the flats this rank holds, and how many there are.
    pub fn shard(&self) -> (usize, usize) {
        self.held().map_or((0, 1), |(l, rank)| (l.mesh().shard_of(rank), l.mesh().shard))
    }

    /// Returns whether this rank is of the one replica that writes checkpoints.
    pub fn writes(&self) -> bool {
        self.rank() < self.file().1
    }

    /// Returns what this rank's states hold, by the tensors that checkpoints name.
    pub fn pieces(&self, states: &[StateDecl]) -> Vec<Piece> {
        tensor_ranges::of(states, self.held())
    }

    /// Returns what every rank says, in the order of ranks. `what` is named where one does not answer.
    ///
    /// # Errors
    /// When a rank is gone, with its name.
    pub fn exchange(&self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
        let Some(comm) = &self.comm else { return Ok(vec![mine.to_vec()]) };
        Ok(ambitus_comm::gather(&**comm, what, mine)?)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`World::exchange`].
    pub fn meet(&self, what: &str) -> Result<(), RunError> {
        self.exchange(what, &[]).map(drop)
    }

    /// Returns a guard to hold while this rank works on its own and exchanges nothing: those that wait know that it is alive.
    pub fn busy(&self) -> Option<Busy> {
        self.comm.as_ref().map(|comm| comm.busy())
    }

    /// Returns what the first rank says, on every rank, however long that takes it.
    ///
    /// # Errors
    /// As [`World::exchange`], and what `say` may meet on the first rank.
    pub fn first_says(
        &self,
        what: &str,
        say: impl FnOnce() -> Result<Vec<u8>, RunError>,
    ) -> Result<Vec<u8>, RunError> {
        let mine = if self.is_first() {
            let _busy = self.busy();
            say()?
        } else {
            Vec::new()
        };
        Ok(self.exchange(what, &mine)?.swap_remove(0))
    }

    /// Re-interleaves values that ranks hold round-robin: sums of them have the same bits as one rank's. Where every rank has all
    /// values, returns these.
    ///
    /// # Errors
    /// As [`World::exchange`].
    pub fn in_order(&self, what: &str, mine: &[f64]) -> Result<Vec<f64>, RunError> {
        if self.placed {
            return Ok(mine.to_vec());
        }
        let bytes: Vec<u8> = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(interleaved(&self.exchange(what, &bytes)?, 1))
    }
}

/// Returns the numbers of which ranks took `each` at a turn, in their whole order.
pub fn interleaved(by_rank: &[Vec<u8>], each: usize) -> Vec<f64> {
    let of = |bytes: &Vec<u8>| -> Vec<f64> {
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| b[i]))).collect()
    };
    let all: Vec<Vec<f64>> = by_rank.iter().map(of).collect();
    let turns = all.iter().map(|of_rank| of_rank.len() / each).max().unwrap_or(0);
    let turn = |k: usize| all.iter().filter_map(move |of_rank| of_rank.get(k * each..(k + 1) * each));
    (0..turns).flat_map(turn).flatten().copied().collect()
}

/// Runs `body` on `ranks` ranks that are threads of this process.
///
/// # Errors
/// What the first rank that failed met, with its number.
pub fn in_process<T: Send>(
    ranks: usize,
    body: impl Fn(&World) -> Result<T, RunError> + Sync,
) -> Result<Vec<T>, RunError> {
    local::run(ranks, |end| body(&World::of(end))).map_err(|Failed { rank, why }| match why {
        Ok(error) => RunError::of_rank(rank, error),
        Err(words) => {
            RunError::Training(format!("rank {rank} panicked: {words}; this is a bug, please report it"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_say_is_heard_by_all_in_order() {
        let done = in_process(3, |world| {
            let rank = world.rank();
            // One says nothing, one more than a call takes.
            let mine = vec![rank as u8; [0, 5, 2 * 4096 + 7][rank]];
            let said = world.exchange("a test", &mine)?;
            world.meet("a test's end")?;
            let first = world.first_says("a word", || Ok(b"hello".to_vec()))?;
            // Seven numbers, in turn: the last ranks have fewer.
            let numbers: Vec<f64> = (0..7).filter(|k| k % 3 == rank).map(|k| k as f64).collect();
            Ok((said, first, world.in_order("numbers", &numbers)?))
        });
        for (said, first, numbers) in done.expect("nobody fails") {
            assert_eq!(said.iter().map(Vec::len).collect::<Vec<_>>(), [0, 5, 2 * 4096 + 7]);
            assert!(said.iter().enumerate().all(|(k, s)| s.iter().all(|b| *b == k as u8)));
            assert_eq!(first, b"hello");
            assert_eq!(numbers, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        }
        let alone = World::alone();
        assert_eq!(alone.in_order("numbers", &[1.0, 2.0]).expect("nobody to wait for"), [1.0, 2.0]);
        assert_eq!((alone.rank(), alone.ranks(), alone.writes()), (0, 1, true));
    }

    #[test]
    fn an_error_names_its_rank_and_keeps_its_code() {
        let failed = in_process(4, |world| {
            if world.rank() == 2 {
                return Err(RunError::Io("the disk is full".to_owned()));
            }
            world.meet("a test")
        });
        let error = failed.expect_err("one fails");
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("rank 2: the disk is full", 6));
    }
}
