//! Interleave: a pipeline's ranks go back through a micro-batch as soon as they can, so that as many wait for backward as there
//! are ranks behind, not all of an update (1F1B; PipeDream, arXiv 1806.03377, of one update: arXiv 1909.11097).
//!
//! Before, of two ranks and three micro-batches: `F0 F1 F2 B0 B1 B2`, each on rank 0 and 1. After: rank 0 `F0 F1 B0 F2 B1 B2`,
//! rank 1 `F0 B0 F1 B1 F2 B2`.
//!
//! Nothing but the order of instructions changes, and of those that add into one state not even that: the same bits.

use super::Cut;
use super::assign::{Place, assign, homes};
use super::keep::keep;
use crate::passes::unroll::{Step, unroll};
use ambitus_ir::{Program, Session};
use std::collections::HashMap;

/// Makes a program of one micro-batch one of `count`, as a pipeline over the ranks of a cut: in this order, or, where it is false,
/// in that of [`unroll`].
pub fn pipeline(session: &mut Session, program: usize, count: usize, cut: &Cut) -> bool {
    let p = keep(session, &session.programs[program], cut);
    let (p, steps) = unroll(session, &p, count);
    session.programs[program] = p;
    interleave(session, program, &steps, cut)
}

/// Orders the instructions of an unrolled program, whose [`Step`]s these are. False, and nothing changed, where a rank's work
/// on a micro-batch depends on that of a later one's: where first and last rank add into one state.
fn interleave(session: &mut Session, program: usize, steps: &[Step], cut: &Cut) -> bool {
    let homes = homes(session, cut);
    let p = &session.programs[program];
    let places = assign(session, p, cut, &homes);
    let count = steps.iter().map(|s| s.micro_batch + 1).max().unwrap_or(0);
    let ticks = ticks(count, cut.ranks());
    let last = cut.ranks() - 1;
    let who = |i: usize| {
        let rank = match places.instrs[i] {
            Place::Rank(r) => r,
            // Before its readers.
            Place::Every if steps[i].backward => last,
            Place::Every => 0,
        };
        (steps[i], rank)
    };
    // Ranks that work at the same time advance side by side, each by its share: so what one makes for another, and the other's
    // next work, stand where both will have got to.
    let mut size: HashMap<(Step, usize), usize> = HashMap::new();
    let within: Vec<usize> = (0..p.instrs.len())
        .map(|i| {
            let n = size.entry(who(i)).or_default();
            *n += 1;
            *n
        })
        .collect();
    let share = |i: usize| within[i] as f64 / size[&who(i)] as f64;
    let mut order: Vec<(usize, f64, usize)> =
        (0..p.instrs.len()).map(|i| (ticks[&who(i)], share(i), i)).collect();
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let order: Vec<usize> = order.into_iter().map(|(.., i)| i).collect();
    if !holds(p, &order) {
        return false;
    }
    let p = &mut session.programs[program];
    let mut instrs: Vec<_> = std::mem::take(&mut p.instrs).into_iter().map(Some).collect();
    p.instrs = order.into_iter().filter_map(|i| instrs[i].take()).collect();
    true
}

/// Returns when a rank is at a step, if all take equally long: every rank goes forward until those behind it have something to
/// do, then back and forward in turn.
fn ticks(count: usize, ranks: usize) -> HashMap<(Step, usize), usize> {
    let step = |backward| move |micro_batch| Step { micro_batch, backward };
    let (forward, back) = (step(false), step(true));
    let of_rank = |r: usize| {
        let ahead = (ranks - 1 - r).min(count);
        let pairs = (ahead..count).flat_map(|k| [forward(k), back(k - ahead)]);
        let rest = (count - ahead..count).map(back);
        (0..ahead).map(forward).chain(pairs).chain(rest).collect::<Vec<Step>>()
    };
    let work: Vec<Vec<Step>> = (0..ranks).map(of_rank).collect();
    let mut done: HashMap<(Step, usize), usize> = HashMap::new();
    let mut at = vec![0; ranks];
    for tick in 0..2 * (count + ranks) * 2 {
        for r in 0..ranks {
            let Some(&next) = work[r].get(at[r]) else { continue };
            let before = match next.backward {
                false if r == 0 => None,
                false => Some((next, r - 1)),
                true if r + 1 == ranks => Some((forward(next.micro_batch), r)),
                true => Some((next, r + 1)),
            };
            if before.is_none_or(|b| done.get(&b).is_some_and(|t| *t < tick)) {
                done.insert((next, r), tick);
                at[r] += 1;
            }
        }
    }
    done
}

/// Returns whether every value is made before it is read, and not read after it is overwritten.
fn holds(p: &Program, order: &[usize]) -> bool {
    let mut made: Vec<bool> = p.definitions().iter().map(Option::is_none).collect();
    let mut gone = vec![false; p.types.len()];
    order.iter().all(|i| {
        let instr = &p.instrs[*i];
        let there = instr.inputs.iter().all(|v| made[v.index()] && !gone[v.index()]);
        instr.outputs.iter().for_each(|v| made[v.index()] = true);
        instr.op.def().donates().iter().for_each(|(k, _)| gone[instr.inputs[*k].index()] = true);
        there
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_back_as_soon_as_they_can() {
        for (count, ranks) in [(1, 1), (3, 2), (8, 2), (5, 3), (2, 4), (16, 4)] {
            let ticks = ticks(count, ranks);
            assert_eq!(ticks.len(), 2 * count * ranks, "{count} on {ranks}");
            // As long as GPipe takes, and the last rank never waits between its first and its last.
            let end = ticks.values().max().unwrap() + 1;
            assert_eq!(end, 2 * (count + ranks - 1), "{count} on {ranks}");
            for r in 0..ranks {
                let mut of_rank: Vec<(usize, bool)> = ticks
                    .iter()
                    .filter(|((_, rank), _)| *rank == r)
                    .map(|((s, _), t)| (*t, s.backward))
                    .collect();
                of_rank.sort_unstable();
                assert!(of_rank.windows(2).all(|w| w[0].0 < w[1].0), "one at a time");
                let mut waiting = 0;
                for (_, backward) in of_rank {
                    waiting = if backward { waiting - 1 } else { waiting + 1 };
                    assert!(waiting <= ranks - r, "{count} on {ranks}: {waiting} wait on {r}");
                }
            }
        }
    }
}
