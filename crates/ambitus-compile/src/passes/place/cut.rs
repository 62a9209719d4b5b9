//! Where a model is cut, by what its blocks take.

use super::Cut;
use super::assign::{Place, assign, homes};
use ambitus_ir::target::Target;
use ambitus_ir::{Phase, Session};
use std::cmp::Ordering;

/// What one block takes; the first has with it what comes before the blocks, the last what comes behind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Piece {
    /// Predicted seconds of a micro-batch, forward and backward.
    pub seconds: f64,
    /// Bytes of its states: parameters, gradients, moments, averages.
    pub states: u64,
    /// Bytes that forward keeps for backward, of one micro-batch.
    pub kept: u64,
}

impl Piece {
    /// Returns what a run of blocks holds while forward has kept so much of `waiting` micro-batches.
    pub fn bytes(run: &[Piece], waiting: usize) -> u64 {
        run.iter().map(|p| p.states + waiting as u64 * p.kept).sum()
    }
}

/// What bounds the blocks of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Micro-batches of which forward keeps what backward reads, at most at a time.
    pub waiting: usize,
    /// Bytes for [`Piece::bytes`].
    pub room: u64,
}

/// Returns what the blocks of a session take, by its first program: the micro-batch's, before
/// [`unroll`](crate::passes::unroll). What every rank makes for itself is not counted.
pub fn pieces(session: &Session, target: &dyn Target) -> Vec<Piece> {
    let Some(p) = session.programs.first() else { return Vec::new() };
    let alone = Cut { starts: (1..p.blocks.len()).collect() };
    let mut out = vec![Piece::default(); p.blocks.len()];
    if out.is_empty() {
        return out;
    }
    let homes = homes(session, &alone);
    for (s, home) in session.states.iter().zip(&homes) {
        out[*home].states += s.ty.bytes();
    }
    let places = assign(session, p, &alone, &homes);
    let mut read_later = vec![false; p.types.len()];
    for instr in p.instrs.iter().filter(|i| i.origin.phase != Phase::Forward) {
        instr.inputs.iter().for_each(|v| read_later[v.index()] = true);
    }
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for (instr, place) in p.instrs.iter().zip(&places.instrs) {
        let Place::Rank(block) = place else { continue };
        p.signature_into(instr, &mut x, &mut y);
        out[*block].seconds += target.seconds(&instr.op, &x, &y);
        if instr.origin.phase == Phase::Forward {
            let kept = instr.outputs.iter().filter(|v| read_later[v.index()]);
            out[*block].kept += kept.map(|v| p.ty(*v).bytes()).sum::<u64>();
        }
    }
    out
}

/// Returns the cut into a run of blocks for each rank whose slowest is fastest, of those within all bounds; where there is
/// none, the one that lacks least. `None` for fewer blocks than ranks.
pub fn cut(pieces: &[Piece], bounds: &[Bound]) -> Option<Cut> {
    let (n, ranks) = (pieces.len(), bounds.len());
    if ranks == 0 || n < ranks {
        return None;
    }
    // What a run of blocks lacks on a rank, and takes.
    let cost = |run: &[Piece], rank: usize| {
        let Bound { waiting, room } = bounds[rank];
        let lacks = Piece::bytes(run, waiting).saturating_sub(room);
        (lacks, run.iter().map(|p| p.seconds).sum::<f64>())
    };
    let order = |a: &(u64, f64), b: &(u64, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
    // The best of the first j blocks on k ranks: its worst run, and where the last one begins.
    let mut best: Vec<Vec<((u64, f64), usize)>> = vec![(0..=n).map(|j| (cost(&pieces[..j], 0), 0)).collect()];
    for k in 1..ranks {
        let before = &best[k - 1];
        let worst = |i: usize, j: usize| {
            let (a, b) = (before[i].0, cost(&pieces[i..j], k));
            if order(&a, &b) == Ordering::Less { b } else { a }
        };
        let row = (0..=n).map(|j| {
            let each = (k..j).map(|i| (worst(i, j), i));
            each.min_by(|a, b| order(&a.0, &b.0)).unwrap_or(((u64::MAX, f64::INFINITY), 0))
        });
        let row = row.collect();
        best.push(row);
    }
    let mut starts = Vec::with_capacity(ranks - 1);
    let mut end = n;
    for row in best[1..].iter().rev() {
        end = row[end].1;
        starts.push(end);
    }
    starts.reverse();
    Some(Cut { starts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece((seconds, states, kept): (f64, u64, u64)) -> Piece {
        Piece { seconds, states, kept }
    }

    /// Returns all cuts, one after another.
    fn every(n: usize, ranks: usize) -> Vec<Cut> {
        let masks = (0u32..1 << (n - 1)).filter(|m| m.count_ones() as usize == ranks - 1);
        masks.map(|m| Cut { starts: (1..n).filter(|i| m >> (i - 1) & 1 == 1).collect() }).collect()
    }

    fn worst(pieces: &[Piece], cut: &Cut, bounds: &[Bound]) -> (u64, f64) {
        let runs = (0..cut.ranks()).map(|r| {
            let of = (0..pieces.len()).filter(|b| cut.rank_of(*b) == r).map(|b| pieces[b]);
            let waiting = bounds[r].waiting as u64;
            let (bytes, seconds) =
                of.fold((0, 0.0), |(b, s), p| (b + p.states + waiting * p.kept, s + p.seconds));
            (u64::saturating_sub(bytes, bounds[r].room), seconds)
        });
        runs.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap()
    }

    #[test]
    fn the_cut_is_the_best_of_all() {
        let sizes = [3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0];
        let pieces: Vec<Piece> = sizes
            .iter()
            .enumerate()
            .map(|(i, s)| piece((*s, 10 + 7 * i as u64 % 5, 2 + i as u64 % 3)))
            .collect();
        for ranks in 1..=pieces.len() {
            for (waiting, room) in [(1, u64::MAX), (4, 80), (4, 45), (2, 30), (1, 0)] {
                let same = vec![Bound { waiting, room }; ranks];
                // As a pipeline's ranks, of which the last holds one micro-batch, and with unlike rooms.
                let falling = |r| Bound { waiting: waiting.min(ranks - r), room: room - room / 9 * r as u64 };
                for bounds in [same, (0..ranks).map(falling).collect()] {
                    let found = cut(&pieces, &bounds).unwrap();
                    let all = every(pieces.len(), ranks);
                    let best = all.iter().map(|c| worst(&pieces, c, &bounds));
                    let best = best.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap();
                    assert_eq!(worst(&pieces, &found, &bounds), best, "{ranks} ranks, {bounds:?}");
                }
            }
        }
        assert_eq!(cut(&pieces, &[Bound { waiting: 1, room: u64::MAX }; 8]), None);
    }

    #[test]
    fn a_rank_of_a_pipeline_has_room_for_what_waits_on_it() {
        // Six blocks alike; a head makes the last one slower, so time alone is for 4 + 2.
        let mut pieces = [piece((1.0, 2, 5)); 6];
        pieces[5].seconds = 2.5;
        let of = |waiting: [usize; 2], room| {
            cut(&pieces, &waiting.map(|waiting| Bound { waiting, room })).unwrap().starts
        };
        assert_eq!(of([2, 1], u64::MAX), [4]);
        // Two wait on the first rank, one on the last: 3 x 12 and 3 x 7 bytes, where 4 x 12 are too many.
        assert_eq!(of([2, 1], 47), [3]);
        // 24 and 28 bytes.
        assert_eq!(of([2, 1], 30), [2]);
        // Did two wait on the last as well, four blocks would take 48 there.
        assert_eq!(of([2, 2], 30), [3]);
    }

    #[test]
    fn blocks_are_of_the_rank_whose_first_they_follow() {
        let cut = Cut { starts: vec![2, 3] };
        assert_eq!([0, 1, 2, 3, 4].map(|b| cut.rank_of(b)), [0, 0, 1, 2, 2]);
        assert_eq!(Cut::even(5, 3), Cut { starts: vec![2, 4] });
        assert_eq!(Cut::even(2, 2), Cut { starts: vec![1] });
    }
}
