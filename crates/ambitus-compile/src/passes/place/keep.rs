//! Keep: what one rank recomputes in backward, others that got it in forward keep.
//!
//! Before, of rank 0's `%4`, which rank 1 read in forward: `%20 = activation(%3) recompute; %30 = matmul(%29, %20) bwd` with the
//! product on rank 1. After: `%30 = matmul(%29, %4)`. The same bits, and rank 1 need not wait for rank 0 in backward.

use super::Cut;
use super::assign::{Place, assign, homes};
use ambitus_ir::{Phase, Program, Session, ValueId};
use std::collections::HashMap;

/// Returns the program with that; of an unrolled one, where paths do not say which micro-batch, as it is.
pub(super) fn keep(session: &Session, p: &Program, cut: &Cut) -> Program {
    let mut p = p.clone();
    if p.instrs.iter().all(|i| i.origin.phase != Phase::Recompute) {
        return p;
    }
    let places = assign(session, &p, cut, &homes(session, cut));
    // By path: the one forward instruction, if there is one.
    let mut forward: HashMap<&str, Option<&[ValueId]>> = HashMap::new();
    for instr in p.instrs.iter().filter(|i| i.origin.phase == Phase::Forward) {
        forward.entry(&instr.origin.path).and_modify(|at| *at = None).or_insert(Some(&instr.outputs));
    }
    let mut original: HashMap<ValueId, ValueId> = HashMap::new();
    for instr in p.instrs.iter().filter(|i| i.origin.phase == Phase::Recompute) {
        if let Some(Some(first)) = forward.get(&*instr.origin.path) {
            original.extend(instr.outputs.iter().copied().zip(first.iter().copied()));
        }
    }
    for (instr, place) in p.instrs.iter_mut().zip(&places.instrs) {
        for v in &mut instr.inputs {
            let apart =
                matches!((place, places.values[v.index()]), (Place::Rank(a), Place::Rank(b)) if *a != b);
            if let Some(first) = original.get(v).filter(|_| apart) {
                *v = *first;
            }
        }
    }
    p
}
