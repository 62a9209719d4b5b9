//! A model that is placed on several ranks: where it is cut, each rank's part of the session, and what all of them take.
//!
//! Every rank has its own session, and all run the same programs, each its part. A pipeline has one more,
//! [`PIPELINE`](program::PIPELINE), of several micro-batches; what is left of an update goes through `micro`, one by one.

use crate::session::program;
use ambitus_compile::CompileError;
use ambitus_compile::passes::place::Cut;
use ambitus_compile::passes::unroll::of;
use ambitus_compile::pipeline::{self, Pipeline};
use ambitus_compile::plan::timelines::{Timeline, together};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session};
use ambitus_recipe::size::ByteSize;
use serde::Serialize;
use std::sync::Arc;

/// Each rank's part of a session.
#[derive(Clone, Debug)]
pub struct Parts {
    /// By rank.
    pub sessions: Vec<Session>,
    /// How they were made.
    pub how: How,
}

/// Where a model is cut, and how its micro-batches go through the ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct How {
    /// Where it is cut.
    pub cut: Cut,
    /// Blocks of the model.
    pub blocks: usize,
    /// Micro-batches that are in the ranks at a time.
    pub in_flight: usize,
    /// Backward of one micro-batch runs before forward of later ones (1F1B).
    pub interleaved: bool,
}

impl How {
    /// Returns the most micro-batches of which a rank keeps what backward reads at a time.
    pub fn waiting(&self, rank: usize) -> usize {
        match self.interleaved {
            true => self.in_flight.min(self.cut.ranks() - rank),
            false => self.in_flight,
        }
    }

    /// Returns the first block of each rank, and how many it has.
    pub fn blocks_of_ranks(&self) -> Vec<(usize, usize)> {
        let firsts = std::iter::once(0).chain(self.cut.starts.iter().copied());
        let ends = self.cut.starts.iter().copied().chain([self.blocks]);
        firsts.zip(ends).map(|(first, end)| (first, end - first)).collect()
    }
}

impl Parts {
    /// Cuts a session, by the pipeline that made it. `in_flight`: micro-batches of its program of several, or 1.
    ///
    /// # Errors
    /// From the passes.
    pub fn of(
        whole: &Session,
        cut: Cut,
        in_flight: usize,
        passes: &Pipeline<'_>,
    ) -> Result<Parts, CompileError> {
        let blocks = whole.programs.first().map_or(0, |p| p.blocks.len());
        let pipeline::Parts { sessions, interleaved } = passes.parts(whole, &cut, in_flight)?;
        Ok(Parts { sessions, how: How { cut, blocks, in_flight, interleaved } })
    }

    /// Returns when each rank is done with an update of `micro_batches`.
    pub fn timelines(&self, micro_batches: usize, target: &dyn Target) -> Vec<Timeline> {
        timelines(&self.sessions.iter().collect::<Vec<_>>(), self.how.in_flight, micro_batches, target)
    }
}

/// Returns [`Parts::timelines`] of these parts.
pub fn timelines(
    parts: &[&Session],
    in_flight: usize,
    micro_batches: usize,
    target: &dyn Target,
) -> Vec<Timeline> {
    let mut ranks = vec![Timeline::default(); parts.len()];
    let mut run = |name: &str| {
        let programs: Option<Vec<&Program>> = parts.iter().map(|p| p.program(name)).collect();
        programs.iter().for_each(|programs| together(programs, target, &mut ranks));
    };
    let count = padded(micro_batches, in_flight, parts.len());
    let several = if in_flight > 1 { count / in_flight } else { 0 };
    (0..several).for_each(|_| run(program::PIPELINE));
    (several * in_flight..count).for_each(|_| run(program::MICRO));
    run(program::UPDATE);
    ranks
}

/// Returns the number of micro-batches of an update in a pipeline over `ranks` ranks, `in_flight` at a time. Those that are left over go
/// through one by one, or padded with empty ones if that takes fewer turns. An empty one adds zero to everything.
pub fn padded(micro_batches: usize, in_flight: usize, ranks: usize) -> usize {
    let left = micro_batches % in_flight;
    let together = in_flight > 1 && left * ranks > in_flight + ranks - 1;
    if together { micro_batches - left + in_flight } else { micro_batches }
}

/// Returns the number of micro-batches of a session's pipeline; 1 if it has none.
pub fn in_flight(planned: &PlannedSession) -> usize {
    let Some(p) = planned.program(program::PIPELINE) else { return 1 };
    (0..).take_while(|k| p.program.output(&of("loss", *k)).is_some()).count()
}

/// The plan of a placed model.
#[derive(Clone, Debug)]
pub struct PlannedParts {
    /// Each rank's.
    pub ranks: Vec<Arc<PlannedSession>>,
    /// How they were made.
    pub how: How,
    /// Predicted seconds of an update in which ranks wait for each other, on average.
    pub waiting_seconds: f64,
    /// Bytes that a rank sends and gets in an update, at most.
    pub exchanged_bytes: f64,
}

/// What is said of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct PartRow {
    /// Its first block, and how many it has.
    pub blocks: (usize, usize),
    /// Bytes of its arena.
    pub arena_bytes: u64,
    /// Of these, of parameters, gradients, moments and averages.
    pub state_bytes: u64,
    /// Of these, of what programs make.
    pub transient_bytes: u64,
}

impl PlannedParts {
    /// Returns the fields of `plan --json`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "ranks": self.rows(),
            "in_flight": self.how.in_flight,
            "interleaved": self.how.interleaved,
            "waiting_seconds": self.waiting_seconds,
            "exchanged_bytes": self.exchanged_bytes,
        })
    }

    /// Returns a line for each rank, and what they exchange, for people.
    pub fn describe(&self) -> Vec<String> {
        let together = match self.how.in_flight {
            1 => "one micro-batch after another".to_owned(),
            n if self.how.interleaved => {
                format!("{n} micro-batches at a time, backward as soon as it can (1F1B)")
            }
            n => format!("{n} micro-batches at a time, all forward, then all backward (GPipe)"),
        };
        let ranks = self.ranks.len();
        let mut out = vec![format!(
            "  placed on {ranks} ranks, each with some of {} blocks: {together}",
            self.how.blocks
        )];
        out.extend(self.rows().into_iter().enumerate().map(|(rank, row)| {
            let (first, n) = row.blocks;
            format!(
                "  rank {rank}: blocks {first} to {}; arena {} (states {}, transient {})",
                first + n - 1,
                ByteSize(row.arena_bytes),
                ByteSize(row.state_bytes),
                ByteSize(row.transient_bytes)
            )
        }));
        out.push(format!(
            "  exchanged in an update: at most {} a rank; ranks wait for each other for {:.3} s on average",
            ByteSize(self.exchanged_bytes as u64),
            self.waiting_seconds
        ));
        out
    }

    /// Returns a row for each rank.
    pub fn rows(&self) -> Vec<PartRow> {
        let row = |(planned, blocks): (&Arc<PlannedSession>, (usize, usize))| PartRow {
            blocks,
            arena_bytes: planned.arena_bytes(),
            state_bytes: planned.state_bytes,
            transient_bytes: planned.transient_bytes,
        };
        self.ranks.iter().zip(self.how.blocks_of_ranks()).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_the_shorter_way() {
        // Of eight in two ranks: together they take nine turns, one alone takes two.
        for (n, count) in [(1, 1), (4, 4), (5, 8), (8, 8), (12, 12), (13, 16)] {
            assert_eq!(padded(n, 8, 2), count, "{n}");
        }
        assert_eq!((padded(3, 1, 2), padded(7, 2, 3)), (3, 7));
    }

    fn three_ranks(in_flight: usize, interleaved: bool) -> How {
        How { cut: Cut { starts: vec![2, 3] }, blocks: 7, in_flight, interleaved }
    }

    #[test]
    fn ranks_have_runs_of_blocks() {
        assert_eq!(three_ranks(1, false).blocks_of_ranks(), [(0, 2), (2, 1), (3, 4)]);
    }

    #[test]
    fn as_many_wait_as_there_are_ranks_from_it_on() {
        let waiting = |how: How| [0, 1, 2].map(|rank| how.waiting(rank));
        assert_eq!(waiting(three_ranks(12, true)), [3, 2, 1]);
        assert_eq!(waiting(three_ranks(2, true)), [2, 2, 1]);
        assert_eq!(waiting(three_ranks(12, false)), [12; 3]);
        assert_eq!(waiting(three_ranks(1, false)), [1; 3]);
    }
}
