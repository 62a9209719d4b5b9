//! Policy: decides which values are kept for backward and which are made again. It only tags; [`super::checkpoint`] acts.

use ambitus_ir::{Instr, Phase, Program};

/// How many of the model's repeated blocks are recomputed whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// None: only memory-bound results (norms, activations) are made again.
    None,
    /// The first n: their values would live longest.
    First(usize),
    /// All of them.
    All,
}

/// A result this many times smaller than what it is made from is kept, even in a recomputed block: a modulation table of
/// a few clips is dearer to make than to keep.
const SMALL: u64 = 8;
/// Outside blocks, results are made again from kept values through at most this many instructions.
const DEPTH: u32 = 2;

/// For every instruction: are its results made again in backward?
///
/// What one block hands to the next is always kept: a chain of recomputation ends there.
pub fn tag(p: &Program, blocks: Blocks) -> Vec<bool> {
    let recomputed = match blocks {
        Blocks::None => 0,
        Blocks::First(n) => n,
        Blocks::All => p.blocks.len(),
    };
    let facts = Facts::of(p);
    let mut depth = vec![0u32; p.types.len()];
    let mut tags = Vec::with_capacity(p.instrs.len());
    for (i, instr) in p.instrs.iter().enumerate() {
        let deep = instr.inputs.iter().map(|v| depth[v.index()]).max().unwrap_or(0) + 1;
        let cheap = instr.op.def().props().memory_bound;
        let block = facts.block[i];
        let again = facts.may_tag(instr, i)
            && if block.is_some_and(|b| b < recomputed) {
                cheap || facts.bytes(p, &instr.outputs) * SMALL > facts.bytes(p, &instr.inputs)
            } else {
                cheap && (block.is_some() || deep <= DEPTH) && facts.is_from_kept(p, instr, &depth)
            };
        if again {
            instr.outputs.iter().for_each(|v| depth[v.index()] = deep);
        }
        tags.push(again);
    }
    tags
}

struct Facts {
    block: Vec<Option<usize>>,
    made_here: Vec<bool>,
    read_in_forward: Vec<bool>,
    read_in_backward: Vec<bool>,
    leaves_block: Vec<bool>,
}

impl Facts {
    fn of(p: &Program) -> Facts {
        let block: Vec<Option<usize>> = p.instrs.iter().map(|i| p.block_of(i)).collect();
        let defs = p.definitions();
        let mut facts = Facts {
            made_here: defs.iter().map(Option::is_some).collect(),
            read_in_forward: vec![false; p.types.len()],
            read_in_backward: vec![false; p.types.len()],
            leaves_block: vec![false; p.types.len()],
            block,
        };
        for (i, instr) in p.instrs.iter().enumerate() {
            for v in &instr.inputs {
                match instr.origin.phase {
                    Phase::Forward => {
                        facts.read_in_forward[v.index()] = true;
                        let from = defs[v.index()].and_then(|d| facts.block[d]);
                        facts.leaves_block[v.index()] |= from != facts.block[i];
                    }
                    _ => facts.read_in_backward[v.index()] = true,
                }
            }
        }
        facts
    }

    fn bytes(&self, p: &Program, values: &[ambitus_ir::ValueId]) -> u64 {
        values.iter().map(|v| p.ty(*v).bytes()).sum()
    }

    fn may_tag(&self, instr: &Instr, at: usize) -> bool {
        let handed_on = instr.outputs.iter().any(|v| self.leaves_block[v.index()]);
        // What forward itself never reads would leave a clone without an original.
        let read = instr.outputs.iter().any(|v| self.read_in_forward[v.index()]);
        instr.origin.phase == Phase::Forward
            && read
            && instr.op.def().donates().is_empty()
            && !(handed_on && self.block[at].is_some())
    }

    /// True when making the results again keeps nothing alive that backward does not hold anyway: every operand is a state,
    /// an input, small, made again too, or read by backward.
    fn is_from_kept(&self, p: &Program, instr: &Instr, depth: &[u32]) -> bool {
        let out = self.bytes(p, &instr.outputs);
        instr.inputs.iter().all(|v| {
            let i = v.index();
            !self.made_here[i] || self.read_in_backward[i] || depth[i] > 0 || p.ty(*v).bytes() * SMALL <= out
        })
    }
}
