//! Schedule: moves each instruction down to just before its first reader when that shortens lives.
//!
//! Before: `%1 = fill{0}; (a thousand instructions); %9 = concat(%1, %8)`. After: the fill stands before the concat.
//!
//! Only instructions whose results are larger than what they would keep alive are moved, never past a donation of what
//! they read, and never starts, dones or donations themselves: their order is meaning.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::{Program, Session};

/// The pass.
pub struct Schedule;

impl Pass for Schedule {
    fn name(&self) -> &'static str {
        "schedule"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Exact
    }

    fn run(&self, _: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let n = p.instrs.len();
        let mut last_reader = vec![0; p.types.len()];
        // Where a value is donated: it cannot be read after.
        let mut overwritten = vec![usize::MAX; p.types.len()];
        for (i, instr) in p.instrs.iter().enumerate() {
            for v in &instr.inputs {
                last_reader[v.index()] = i;
            }
            for (x, _) in instr.op.def().donates() {
                overwritten[instr.inputs[x].index()] = i;
            }
        }
        // Position keys: an instruction stays at its index, (i, 1), or goes right before the first of its readers as they
        // are placed.
        let mut place: Vec<(usize, usize)> = (0..n).map(|i| (i, 1)).collect();
        let mut first_read = vec![usize::MAX; p.types.len()];
        for i in (0..n).rev() {
            let instr = &p.instrs[i];
            let def = instr.op.def();
            let props = def.props();
            let fixed = props.starts || props.waits || !def.donates().is_empty();
            let read = instr.outputs.iter().map(|v| first_read[v.index()]).min();
            // Right before what it reads is donated, if that is earlier.
            let donated = instr.inputs.iter().map(|v| overwritten[v.index()]).min().unwrap_or(usize::MAX);
            let target = read.filter(|t| *t != usize::MAX).map(|t| t.min(donated));
            if let Some(target) = target.filter(|t| !fixed && *t > i + 1) {
                // Operands that would live longer than now.
                let longer = instr
                    .inputs
                    .iter()
                    .enumerate()
                    .filter(|(k, v)| last_reader[v.index()] < target && !instr.inputs[..*k].contains(v));
                let kept: u64 = longer.map(|(_, v)| p.ty(*v).bytes()).sum();
                let held: u64 = instr.outputs.iter().map(|v| p.ty(*v).bytes()).sum();
                if kept < held {
                    place[i] = (target, 0);
                    for v in &instr.inputs {
                        last_reader[v.index()] = last_reader[v.index()].max(target);
                    }
                }
            }
            for v in &instr.inputs {
                first_read[v.index()] = first_read[v.index()].min(place[i].0);
            }
        }
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|&i| (place[i], i));
        let mut instrs: Vec<_> = std::mem::take(&mut p.instrs).into_iter().map(Some).collect();
        p.instrs = order.into_iter().filter_map(|i| instrs[i].take()).collect();
        Ok(p)
    }
}
