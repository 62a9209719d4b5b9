//! Prefetch: gathers start one unit ahead of their use, and sums of gradients end one unit later, so that ranks talk while
//! they compute.
//!
//! Before, with units A and B in backward: `gather A; compute A; reduce A; gather B; compute B; reduce B`, each a start and
//! its done. After, with [`Backward::Pre`]:
//!
//! ```text
//! start gather A; done gather A; start gather B; compute A; start reduce A;
//! done gather B; (start gather C;) compute B; done reduce A; accumulate A; start reduce B; ...
//! ```
//!
//! Nothing but starts, dones, casts of shards and accumulations moves: the same bits. It costs the bytes of one more gathered
//! unit, and of one more unit's gradients.

use super::gathers;
use crate::CompileError;
use crate::passes::{Numerics, Pass};
use ambitus_ir::ops::collective::REDUCE;
use ambitus_ir::{Instr, Op, Phase, Program, Session, ValueId};
use std::collections::HashSet;

/// When backward's gathers start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backward {
    /// Before the unit that comes before theirs is computed (BACKWARD_PRE): most overlap, and two units at once.
    Pre,
    /// When that unit is computed, alongside the sum of its gradients (BACKWARD_POST).
    Post,
    /// Where they are needed.
    #[default]
    None,
}

/// Which gathers start ahead; also the pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    /// Forward's start before the unit that comes before theirs is computed.
    pub forward: bool,
    /// Backward's.
    pub backward: Backward,
}

impl Pass for Prefetch {
    fn name(&self) -> &'static str {
        "prefetch"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, _: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        if self.forward || self.backward != Backward::None {
            p = self.gathers_ahead(p);
        }
        if self.backward != Backward::None {
            p = sums_behind(p);
        }
        Ok(p)
    }
}

/// The gathers of one unit, which stand together.
#[derive(Default)]
struct Set {
    /// Casts of shards, and starts.
    heads: Vec<usize>,
    /// After the last of them.
    end: usize,
    backward: bool,
}

impl Prefetch {
    fn gathers_ahead(&self, mut p: Program) -> Program {
        let sets = sets(&p);
        // By place: the heads that go before it.
        let mut to: Vec<Vec<usize>> = vec![Vec::new(); p.instrs.len() + 1];
        let mut moved = vec![false; p.instrs.len()];
        for pair in sets.windows(2) {
            let [before, set] = pair else { continue };
            let first = set.heads.first().copied().unwrap_or(0);
            let place = match (set.backward, self.backward) {
                (false, _) => self.forward.then_some(before.end),
                (true, Backward::Pre) => Some(before.end),
                (true, Backward::Post) => (before.end..first).find(|i| sums(&p.instrs[*i])),
                (true, Backward::None) => None,
            };
            if let Some(place) = place {
                set.heads.iter().for_each(|i| moved[*i] = true);
                to[place].extend(&set.heads);
            }
        }
        let mut instrs: Vec<Option<Instr>> = std::mem::take(&mut p.instrs).into_iter().map(Some).collect();
        for place in 0..instrs.len() {
            p.instrs.extend(to[place].iter().filter_map(|i| instrs[*i].take()));
            if !moved[place] {
                p.instrs.extend(instrs[place].take());
            }
        }
        p
    }
}

/// Returns the sets of gathers in order. Only shards of states, which nothing overwrites here, can be gathered ahead.
fn sets(p: &Program) -> Vec<Set> {
    let still: HashSet<ValueId> =
        p.states.iter().filter(|s| s.enters == s.leaves).map(|s| s.enters).collect();
    let mut casts: HashSet<ValueId> = HashSet::new();
    let mut sets: Vec<Set> = Vec::new();
    let mut together = false;
    for (i, instr) in p.instrs.iter().enumerate() {
        let from_state = instr.inputs.first().is_some_and(|v| still.contains(v));
        let next_gathers = p.instrs.get(i + 1).is_some_and(|next| {
            gathers(next) && next.inputs.first().is_some_and(|v| instr.outputs.contains(v))
        });
        let cast = matches!(instr.op, Op::Cast(_)) && from_state && next_gathers;
        let start = gathers(instr)
            && instr.op.def().props().starts
            && instr.inputs.iter().all(|v| still.contains(v) || casts.contains(v));
        if cast {
            casts.extend(&instr.outputs);
        }
        if cast || start || (gathers(instr) && together) {
            if !together {
                sets.push(Set { backward: instr.origin.phase != Phase::Forward, ..Set::default() });
            }
            together = true;
            if let Some(set) = sets.last_mut() {
                if cast || start {
                    set.heads.push(i);
                }
                set.end = i + 1;
            }
        } else {
            together = false;
        }
    }
    sets
}

/// Starts a sum over ranks.
fn sums(instr: &Instr) -> bool {
    instr.op.def().queue() == Some(REDUCE) && instr.op.def().props().starts
}

/// Puts the dones of sums, and what is made of them, before the next sums begin.
fn sums_behind(mut p: Program) -> Program {
    let instrs = std::mem::take(&mut p.instrs);
    let mut late: HashSet<ValueId> = HashSet::new();
    let (mut waiting, mut computed): (Vec<Instr>, bool) = (Vec::new(), false);
    for instr in instrs {
        if instr.inputs.iter().any(|v| late.contains(v)) {
            late.extend(&instr.outputs);
            waiting.push(instr);
            continue;
        }
        if sums(&instr) {
            if std::mem::take(&mut computed) {
                p.instrs.append(&mut waiting);
            }
            late.extend(&instr.outputs);
        } else {
            computed = true;
        }
        p.instrs.push(instr);
    }
    p.instrs.append(&mut waiting);
    p
}
