//! Policy: decides which values are kept for backward and which are recomputed. It only tags; [`super::checkpoint`] acts.
//!
//! Results of memory-bound ops are always recomputed where that keeps nothing else alive. Beyond that, results of products,
//! attention and convolutions are recomputed as [`Blocks`] says: all of a repeated block's, or value by value in the order
//! of seconds per byte, the same in every block and one more in some (Rockmate's structure, arXiv 2307.01236: solve one
//! block, then say how many blocks take which solution).

use super::pattern::{Pattern, shown};
use crate::CompileError;
use ambitus_ir::target::Target;
use ambitus_ir::{Instr, Phase, Program, ValueId};
use std::fmt;
use std::str::FromStr;

/// What is recomputed in backward, besides memory-bound results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Nothing.
    None,
    /// Everything in the first n of the model's repeated blocks: their values would live longest.
    First(usize),
    /// Everything in every block.
    All,
    /// In every block the first of [`cheapest`]'s values, and in the first blocks one value more.
    Cheapest {
        /// values of every block
        values: usize,
        /// blocks with one value more
        blocks: usize,
    },
    /// What the modules of these names compute, in blocks or not.
    Matching(Vec<Pattern>),
}

impl fmt::Display for Blocks {
    /// Writes the blocks as they are typed: `none`, `all`, `7` blocks, `values:3+7`, or names of modules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocks::None => f.pad("none"),
            Blocks::All => f.pad("all"),
            Blocks::First(n) => n.fmt(f),
            Blocks::Cheapest { values, blocks: 0 } => write!(f, "values:{values}"),
            Blocks::Cheapest { values, blocks } => write!(f, "values:{values}+{blocks}"),
            Blocks::Matching(patterns) => {
                let names: Vec<String> = patterns.iter().map(Pattern::to_string).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for Blocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Blocks, String> {
        let number = |n: &str| {
            let bad =
                format!("`{text}`: write values:3, or values:3+7 for a fourth value in the first 7 blocks");
            n.parse::<u32>().map(|n| n as usize).map_err(|_| bad)
        };
        match text.trim() {
            "none" => Ok(Blocks::None),
            "all" => Ok(Blocks::All),
            n if n.parse::<u32>().is_ok() => Ok(Blocks::First(number(n)?)),
            cheapest if cheapest.starts_with("values:") => {
                let counts = &cheapest["values:".len()..];
                let (values, blocks) = counts.split_once('+').unwrap_or((counts, "0"));
                Ok(Blocks::Cheapest { values: number(values)?, blocks: number(blocks)? })
            }
            names if names.contains(['*', '.']) && names.split(',').all(|n| !n.trim().is_empty()) => {
                Ok(Blocks::Matching(names.split(',').map(|n| Pattern::new(n.trim())).collect()))
            }
            _ => Err(format!(
                "`{text}` is not none, all, a number of blocks, values:N, or names of modules as '*.to_q,*.ff.ff.2'"
            )),
        }
    }
}

/// A result in the model's blocks that is held for backward and can be recomputed from what is held anyway.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Path inside the block, as `attn.to_q.linear`.
    pub path: String,
    /// Bytes that it takes in all blocks together.
    pub bytes: u64,
    /// Predicted seconds of making it again, in all blocks together.
    pub seconds: f64,
}

/// A result this many times smaller than what it is made from is kept, even in a recomputed block: a modulation table of
/// a few clips is dearer to make than to keep.
const SMALL: u64 = 8;
/// Outside blocks, results are recomputed from kept values through at most this many instructions.
const DEPTH: u32 = 2;

/// Returns for every instruction whether its results are recomputed in backward.
///
/// What one block hands to the next is always kept: a chain of recomputation ends there. Only what is made of states and
/// inputs alone (a weight in another type) is recomputed nevertheless: it starts no chain.
pub fn tag(p: &Program, blocks: &Blocks, target: &dyn Target) -> Vec<bool> {
    let facts = Facts::of(p);
    let whole = match blocks {
        Blocks::First(n) => *n,
        Blocks::All => p.blocks.len(),
        Blocks::None | Blocks::Cheapest { .. } | Blocks::Matching(_) => 0,
    };
    let chosen: Vec<bool> = match blocks {
        Blocks::Cheapest { values, blocks } => {
            let order = ranked(p, &facts, target);
            let place = |i: usize| {
                let path = facts.path_in_block(p, i)?;
                Some((facts.block[i]?, order.iter().position(|v| v.path == path)?))
            };
            let takes = |(block, at)| at < *values || (at == *values && block < *blocks);
            (0..p.instrs.len()).map(|i| place(i).is_some_and(takes)).collect()
        }
        Blocks::Matching(patterns) => {
            let matches =
                |path: Option<&str>| path.is_some_and(|path| patterns.iter().any(|x| x.matches(path)));
            modules(p, &facts).map(matches).collect()
        }
        _ => vec![false; p.instrs.len()],
    };
    tags(p, &facts, whole, &chosen)
}

/// Returns the values of blocks that a program holds for its backward, by seconds per byte.
pub fn cheapest(p: &Program, target: &dyn Target) -> Vec<Value> {
    ranked(p, &Facts::of(p), target)
}

/// Tags of everything in the first `whole` blocks, of `chosen` results, and of memory-bound ones.
fn tags(p: &Program, facts: &Facts, whole: usize, chosen: &[bool]) -> Vec<bool> {
    let mut depth = vec![0u32; p.types.len()];
    let mut tags = vec![false; p.instrs.len()];
    for (i, instr) in facts.forward(p) {
        let deep = instr.inputs.iter().map(|v| depth[v.index()]).max().unwrap_or(0) + 1;
        let cheap = instr.op.def().props().memory_bound;
        let block = facts.block[i];
        let again = facts.may_tag(instr, i)
            && if block.is_some_and(|b| b < whole) {
                cheap || facts.bytes(&instr.outputs) * SMALL > facts.bytes(&instr.inputs)
            } else {
                (chosen[i] || (cheap && (block.is_some() || deep <= DEPTH)))
                    && facts.is_from_kept(instr, &depth)
            };
        if again {
            instr.outputs.iter().for_each(|v| depth[v.index()] = deep);
        }
        tags[i] = again;
    }
    tags
}

/// Returns the bytes that forward makes and holds for backward.
fn held(p: &Program, facts: &Facts, tags: &[bool]) -> u64 {
    // What is held anyway, and what backward makes other values from.
    let mut held = facts.held.clone();
    let mut sum = 0;
    for (i, instr) in facts.forward(p).rev() {
        let mine = || instr.outputs.iter().filter(|v| held[v.index()]);
        if !tags[i] {
            sum += mine().map(|v| facts.sizes[v.index()]).sum::<u64>();
        } else if mine().next().is_some() {
            instr.inputs.iter().for_each(|v| held[v.index()] = true);
        }
    }
    sum
}

/// See [`cheapest`].
fn ranked(p: &Program, facts: &Facts, target: &dyn Target) -> Vec<Value> {
    // By path inside the block, in the order of the first block: instructions, and seconds.
    let mut modules: Vec<(&str, Vec<usize>, f64)> = Vec::new();
    for (i, instr) in p.instrs.iter().enumerate() {
        let Some(path) = facts.path_in_block(p, i).filter(|_| facts.is_product(instr, i)) else { continue };
        let (x, y) = p.signature(instr);
        let seconds = target.seconds(&instr.op, &x, &y);
        match modules.iter_mut().find(|m| m.0 == path) {
            Some(m) => {
                m.1.push(i);
                m.2 += seconds;
            }
            None => modules.push((path, vec![i], seconds)),
        }
    }
    let mut chosen = vec![false; p.instrs.len()];
    let all = held(p, facts, &tags(p, facts, 0, &chosen));
    let mut values = Vec::new();
    for (path, instrs, seconds) in modules {
        instrs.iter().for_each(|i| chosen[*i] = true);
        let bytes = all.saturating_sub(held(p, facts, &tags(p, facts, 0, &chosen)));
        instrs.iter().for_each(|i| chosen[*i] = false);
        let made: u64 = instrs.iter().map(|i| facts.bytes(&p.instrs[*i].inputs)).sum();
        if bytes * SMALL > made {
            values.push(Value { path: path.to_owned(), bytes, seconds });
        }
    }
    let rate = |v: &Value| v.seconds / v.bytes as f64;
    // Stable: equal ones stay in the order of the block.
    values.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    values
}

/// Refuses a pattern of modules that matches nothing that could be recomputed in any of these programs, one of each player.
///
/// # Errors
/// Names the pattern, and some modules.
pub fn require_modules(programs: &[Program], blocks: &Blocks) -> Result<(), CompileError> {
    let Blocks::Matching(patterns) = blocks else { return Ok(()) };
    let facts: Vec<Facts> = programs.iter().map(Facts::of).collect();
    let all = || programs.iter().zip(&facts).flat_map(|(p, facts)| modules(p, facts).flatten());
    match patterns.iter().find(|pattern| !all().any(|path| pattern.matches(path))) {
        None => Ok(()),
        Some(pattern) => Err(CompileError::NoMatch { pattern: pattern.to_string(), names: shown(all()) }),
    }
}

/// Returns for every instruction the module whose value it makes, where that may be recomputed.
fn modules<'p>(p: &'p Program, facts: &'p Facts) -> impl Iterator<Item = Option<&'p str>> + Clone {
    let instrs = p.instrs.iter().enumerate();
    instrs.map(|(i, instr)| facts.is_product(instr, i).then_some(&*instr.origin.path))
}

struct Facts {
    /// The instructions of forward, but those of queues: of what these bring, nothing is decided here.
    forward: Vec<usize>,
    /// Bytes of every value.
    sizes: Vec<u64>,
    block: Vec<Option<usize>>,
    made_here: Vec<bool>,
    read_in_forward: Vec<bool>,
    read_in_backward: Vec<bool>,
    /// Read by backward, or by a queue.
    held: Vec<bool>,
    leaves_block: Vec<bool>,
}

impl Facts {
    fn of(p: &Program) -> Facts {
        let block = p.blocks_of();
        let defs = p.definitions();
        let queued = |i: usize| p.instrs[i].op.def().queue().is_some();
        let is_forward = |i: &usize| p.instrs[*i].origin.phase == Phase::Forward && !queued(*i);
        let mut facts = Facts {
            forward: (0..p.instrs.len()).filter(is_forward).collect(),
            sizes: p.types.iter().map(|t| t.bytes()).collect(),
            made_here: defs.iter().map(Option::is_some).collect(),
            read_in_forward: vec![false; p.types.len()],
            read_in_backward: vec![false; p.types.len()],
            held: vec![false; p.types.len()],
            leaves_block: vec![false; p.types.len()],
            block,
        };
        for (i, instr) in p.instrs.iter().enumerate() {
            // What a queue brings is there as a state is: it is fetched for backward, or kept, whatever is decided here.
            let queued = queued(i);
            if queued {
                instr.outputs.iter().for_each(|v| facts.made_here[v.index()] = false);
            }
            for v in &instr.inputs {
                facts.held[v.index()] |= queued || instr.origin.phase != Phase::Forward;
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

    fn forward<'p>(&self, p: &'p Program) -> impl DoubleEndedIterator<Item = (usize, &'p Instr)> {
        self.forward.iter().map(|&i| (i, &p.instrs[i]))
    }

    fn bytes(&self, values: &[ValueId]) -> u64 {
        values.iter().map(|v| self.sizes[v.index()]).sum()
    }

    /// Returns the path of an instruction inside its block.
    fn path_in_block<'p>(&self, p: &'p Program, at: usize) -> Option<&'p str> {
        let block = &p.blocks[self.block[at]?];
        p.instrs[at].origin.path.get(block.len() + 1..)
    }

    fn may_tag(&self, instr: &Instr, at: usize) -> bool {
        let handed_on = instr.outputs.iter().any(|v| self.leaves_block[v.index()]);
        // What forward itself never reads would leave a clone without an original.
        let read = instr.outputs.iter().any(|v| self.read_in_forward[v.index()]);
        let starts = instr.inputs.iter().all(|v| !self.made_here[v.index()]);
        instr.origin.phase == Phase::Forward
            && read
            && instr.op.def().donates().is_empty()
            && instr.op.def().queue().is_none()
            && !(handed_on && self.block[at].is_some() && !starts)
    }

    /// Returns whether an instruction is dearer than a memory-bound op and could be recomputed.
    fn is_product(&self, instr: &Instr, at: usize) -> bool {
        !instr.op.def().props().memory_bound && self.may_tag(instr, at)
    }

    /// Returns true when making the results again keeps nothing alive that backward does not hold anyway: every operand is a
    /// state, an input, small, recomputed too, or read by backward.
    fn is_from_kept(&self, instr: &Instr, depth: &[u32]) -> bool {
        let out = self.bytes(&instr.outputs);
        instr.inputs.iter().all(|v| {
            let i = v.index();
            !self.made_here[i] || self.read_in_backward[i] || depth[i] > 0 || self.sizes[i] * SMALL <= out
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_it_is_written() {
        for text in ["none", "all", "0", "7", "values:3", "values:3+7", "*.to_q,*.ff.ff.2"] {
            assert_eq!(text.parse::<Blocks>().map(|b| b.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "al", "-1", "1.5x", "values:", "values:a", "values:1+", "*.to_q,", "99999999999"] {
            let read = text.parse::<Blocks>();
            assert!(read.is_err() || text == "1.5x", "{text}: {read:?}");
        }
    }
}
