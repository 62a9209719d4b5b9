//! How a model is to be placed on several ranks, before it is known where it is cut.

use ambitus_compile::passes::place::{Bound, Cut, Piece, cut};
use ambitus_families::error::RunError;
use ambitus_recipe::recipe::{self, Recipe};

/// Micro-batches of a pipeline's program, for each rank: with four, ranks wait a fifth of the time or less (GPipe's rule).
const IN_FLIGHT: usize = 4;

/// How a model is to be placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Ranks, each with a part.
    pub ranks: usize,
    /// Several micro-batches are in the ranks at a time.
    pub pipeline: bool,
    /// Bytes that each rank has for its arena: of the cuts within it, the fastest is taken.
    pub room: u64,
    /// Where the model is cut, if that is known already.
    pub cut: Option<Cut>,
    /// Micro-batches of a pipeline's program, if that is known already; else fewer are tried if more do not fit.
    pub in_flight: Option<usize>,
}

impl Placement {
    /// Returns how a recipe's model is placed, if it is placed; each rank has `room` for its arena.
    pub fn of(recipe: &Recipe, room: u64) -> Option<Placement> {
        let pipeline = recipe.placement() == recipe::Placement::Pipeline;
        recipe.is_placed().then(|| Placement::new(recipe.ranks() as usize, pipeline, room))
    }

    /// Returns a placement that leaves open where the model is cut.
    pub fn new(ranks: usize, pipeline: bool, room: u64) -> Placement {
        Placement { ranks, pipeline, room, cut: None, in_flight: None }
    }

    /// Returns the micro-batches in flight for an update of `micro_batches`.
    pub fn in_flight(&self, micro_batches: usize) -> usize {
        let most = if self.pipeline { self.in_flight.unwrap_or(IN_FLIGHT * self.ranks) } else { 1 };
        micro_batches.clamp(1, most)
    }

    /// Returns the numbers of micro-batches in flight worth trying, most first: each half of the one before. With one at a time it
    /// is not a pipeline.
    pub fn in_flights(&self, micro_batches: usize) -> impl Iterator<Item = usize> {
        let (most, open) = (self.in_flight(micro_batches), self.in_flight.is_none());
        std::iter::successors(Some(most), move |n| Some((n / 2).max(2)).filter(|less| open && less < n))
    }

    /// Returns the fastest cut within bounds that are as many as there are ranks.
    ///
    /// # Errors
    /// More ranks than blocks.
    pub fn cut_within(&self, pieces: &[Piece], bounds: &[Bound]) -> Result<Cut, RunError> {
        cut(pieces, bounds).ok_or_else(|| {
            RunError::Usage(format!(
                "placement: the model has {} blocks, too few for each of {} ranks to have one: take fewer ranks, or sharding in \
                 place of placement",
                pieces.len(),
                self.ranks
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_micro_batches_at_a_time_are_tried() {
        let open = Placement::new(3, true, u64::MAX);
        let of = |p: &Placement, n| p.in_flights(n).collect::<Vec<usize>>();
        assert_eq!((of(&open, 40), of(&open, 5), of(&open, 1)), (vec![12, 6, 3, 2], vec![5, 2], vec![1]));
        // One that is known is taken.
        let known = Placement { in_flight: Some(4), ..open.clone() };
        assert_eq!((of(&known, 40), of(&known, 3)), (vec![4], vec![3]));
        assert_eq!(of(&Placement::new(3, false, u64::MAX), 40), [1]);
    }
}
