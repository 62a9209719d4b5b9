//! Simplify: equal pure instructions become one; a loss that its gradient op forms anyway is taken from there.
//!
//! Before: `%3 = fill{0}` `%9 = fill{0}`. After: `%3` for both.
//!
//! Never merges across the forward/recompute mark: that would bring back the memory that recomputing freed.

use super::{Numerics, Pass};
use ambitus_ir::{Op, Phase, Program, Session, ValueId};
use std::collections::HashMap;

/// The pass.
pub struct Simplify;

/// Replaces values by others, everywhere.
pub(super) fn substitute(p: &mut Program, with: &HashMap<ValueId, ValueId>) {
    let get = |v: &mut ValueId| {
        while let Some(&w) = with.get(v) {
            *v = w;
        }
    };
    p.instrs.iter_mut().flat_map(|i| i.inputs.iter_mut()).for_each(get);
    p.outputs.iter_mut().for_each(|o| get(&mut o.value));
    p.states.iter_mut().for_each(|s| get(&mut s.leaves));
}

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, _: &mut Session, mut p: Program) -> Program {
        let mut with: HashMap<ValueId, ValueId> = HashMap::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        for i in 0..p.instrs.len() {
            let instr = &mut p.instrs[i];
            for v in &mut instr.inputs {
                if let Some(&w) = with.get(v) {
                    *v = w;
                }
            }
            let props = instr.op.def().props();
            let pure = instr.op.def().donates().is_empty() && !props.starts && !props.waits;
            if !pure || instr.origin.phase == Phase::Recompute {
                continue;
            }
            let key = format!("{}{:?}{:?}", instr.op.name(), instr.op.attrs(), instr.inputs);
            match seen.get(&key) {
                None => {
                    seen.insert(key, i);
                }
                Some(&first) => {
                    let pairs = p.instrs[i].outputs.iter().zip(&p.instrs[first].outputs);
                    with.extend(pairs.map(|(a, b)| (*a, *b)));
                }
            }
        }
        // A cross-entropy head walks its tiles once, in the gradient op, which gives the loss as well.
        for instr in &p.instrs {
            let Op::LinearCrossEntropyGrad(_) = instr.op else { continue };
            let forward = p.instrs.iter().find(|f| {
                matches!(f.op, Op::LinearCrossEntropy(_)) && f.inputs[..4] == instr.inputs[..4]
            });
            if let Some(f) = forward {
                with.insert(f.outputs[0], instr.outputs[0]);
            }
        }
        substitute(&mut p, &with);
        super::dead::Dead.run(&mut Session::default(), p)
    }
}
