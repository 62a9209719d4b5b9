//! Place: from one device's programs, a program for each of several ranks, each with its part of the model (model parallel;
//! of micro-batches that [`unroll`](super::unroll) put into one program, a pipeline: GPipe, arXiv 1811.06965).
//!
//! Before: `%3 = linear(%0, %w0); %5 = linear(%3, %w1); output loss %5`. After, on ranks 0 and 1:
//!
//! ```text
//! %3 = linear(%0, %w0)                            %10, %11 = transfer_start() {route=0>1/2, end=receive}
//! %10 = transfer_start(%3) {route=0>1/2,          %3 = collective_done(%10, %11)
//!                           end=send}             %5 = linear(%3, %w1)
//! _ = collective_done(%3, %10)                    (sends %5 to rank 0)   output loss %5
//! ```
//!
//! Every state has one *home*: the rank of its parameter's block; of a parameter outside the blocks, the rank of the block before
//! its first use. An instruction runs
//! 1. where the state is that it overwrites;
//! 2. on every rank that needs it, if it depends on the program's inputs alone (rotary tables, masks, positions): never sent;
//! 3. where its block is;
//! 4. outside the blocks, where the weights are that it reads, or what was made of weights alone; of several, where most bytes
//!    are; without weights, in forward with the block before it, else where the forward instruction is that it is the gradient
//!    or the clone of;
//! 5. else where its operands are, on the last of these ranks.
//!
//! What is read elsewhere is sent to each reader once, before the next work of that rank; outputs are sent to all, at the end.
//! Instructions stay what they are, in their order: the same bits as on one device. Ranks take their transfers in the order of
//! the one program, so that none waits for another that waits for it. What is recomputed in backward on one rank, another that
//! got it in forward has kept.
//!
//! [`pipeline`] orders micro-batches so that few wait (1F1B, arXiv 1806.03377).
//!
//! It comes last, for each program of a session alike. A tied embedding has one home, with the first block: the last rank
//! sends it the rows before the head and gets their gradients, in every micro-batch; no weight travels. A pipeline does not
//! overlap across that: its gradient is summed in the order of one device.

mod assign;
mod cut;
mod interleave;
mod keep;

pub use cut::{Bound, Piece, cut, pieces};
pub use interleave::pipeline;

use ambitus_ir::ops::collective::CollectiveDone;
use ambitus_ir::ops::layout::Reshape;
use ambitus_ir::ops::transfer::{End, Route, TRANSFER, TransferStart};
use ambitus_ir::{
    DType, Instr, Origin, Output, Phase, Program, Session, StateId, StateUse, TensorType, ValueId,
};
use assign::{Place, Places};
use std::collections::HashMap;

/// Which blocks each rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first block of each rank but the first, ascending.
    pub starts: Vec<usize>,
}

impl Cut {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.starts.len() + 1
    }

    /// Returns the rank of a block.
    pub fn rank_of(&self, block: usize) -> usize {
        self.starts.partition_point(|first| *first <= block)
    }

    /// Returns a cut with equally many blocks for each rank, and one more for the first ones.
    pub fn even(blocks: usize, ranks: usize) -> Cut {
        Cut { starts: (1..ranks).map(|r| (r * blocks).div_ceil(ranks)).collect() }
    }
}

/// Returns the session of each rank, of one whose programs are finished and have no copies or collectives. The states of the
/// parts are those of the whole, each on one rank.
pub fn place(session: &Session, cut: &Cut) -> Vec<Session> {
    let homes = assign::homes(session, cut);
    let ranks = cut.ranks();
    let mut parts = vec![Session::default(); ranks];
    let ids: Vec<StateId> =
        session.states.iter().zip(&homes).map(|(s, home)| parts[*home].declare(s.clone())).collect();
    for p in &session.programs {
        let p = &keep::keep(session, p, cut);
        let places = assign::assign(session, p, cut, &homes);
        let sent = sent(p, &places, ranks);
        for (rank, part) in parts.iter_mut().enumerate() {
            part.programs.push(Writer { p, places: &places, sent: &sent, rank, ranks }.write(&homes, &ids));
        }
    }
    parts
}

/// A value that goes from one rank to another.
struct Sent {
    /// Before this instruction.
    at: usize,
    value: ValueId,
    from: usize,
    to: usize,
}

/// Returns all transfers of a program, in order.
fn sent(p: &Program, places: &Places, ranks: usize) -> Vec<Sent> {
    let end = p.instrs.len();
    let mut of_rank = vec![Vec::new(); ranks];
    for (i, place) in places.instrs.iter().enumerate() {
        if let Place::Rank(r) = place {
            of_rank[*r].push(i);
        }
    }
    let mut first: HashMap<(ValueId, usize), usize> = HashMap::new();
    let mut needs = |v: ValueId, on: Place, at: usize| {
        let Place::Rank(from) = places.values[v.index()] else { return };
        let readers = match on {
            Place::Rank(r) => r..r + 1,
            Place::Every => 0..ranks,
        };
        readers.filter(|r| *r != from).for_each(|r| _ = first.entry((v, r)).or_insert(at));
    };
    for (i, instr) in p.instrs.iter().enumerate() {
        instr.inputs.iter().for_each(|v| needs(*v, places.instrs[i], i));
    }
    p.outputs.iter().for_each(|o| needs(o.value, Place::Every, end));
    let one = |((value, to), first): ((ValueId, usize), usize)| {
        let Place::Rank(from) = places.values[value.index()] else { return None };
        // The ranks run on until the one that gets it has something to do: neither stops in the midst of its work. What the
        // host reads, and a state as it enters, goes when it is needed.
        let idle = |made: usize| {
            let next = of_rank[to].partition_point(|i| *i <= made);
            of_rank[to].get(next).map_or(first, |i| first.min(*i))
        };
        let made = places.defs[value.index()].filter(|_| first < end);
        Some((Sent { at: made.map_or(first, idle), value, from, to }, first))
    };
    let mut all: Vec<(Sent, usize)> = first.into_iter().filter_map(one).collect();
    together(&mut all);
    let mut all: Vec<Sent> = all.into_iter().map(|(s, _)| s).collect();
    all.sort_by_key(|s| (s.at, s.value, s.to));
    all
}

/// Lets what is made early, and read late, go with the last transfer between the same ranks before it is read: both ranks stop at
/// every transfer, and in a pipeline they are at other micro-batches until then.
fn together(all: &mut [(Sent, usize)]) {
    let mut stops: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    all.iter().for_each(|(s, _)| stops.entry((s.from, s.to)).or_default().push(s.at));
    stops.values_mut().for_each(|stops| stops.sort_unstable());
    for (s, first) in all.iter_mut() {
        let stops = &stops[&(s.from, s.to)];
        let last = stops[..stops.partition_point(|at| at <= first)].last();
        s.at = s.at.max(last.copied().unwrap_or(s.at));
    }
}

/// Writes one rank's part of a program.
struct Writer<'p> {
    p: &'p Program,
    places: &'p Places,
    sent: &'p [Sent],
    rank: usize,
    ranks: usize,
}

impl Writer<'_> {
    fn write(&self, homes: &[usize], ids: &[StateId]) -> Program {
        let p = self.p;
        let needed = self.needed();
        let mut out = Program { types: p.types.clone(), ..Program::default() };
        out.name.clone_from(&p.name);
        out.blocks.clone_from(&p.blocks);
        out.inputs = p.inputs.iter().filter(|i| needed.values[i.value.index()]).cloned().collect();
        let mine = p.states.iter().filter(|s| homes[s.state.index()] == self.rank);
        out.states = mine.map(|s| StateUse { state: ids[s.state.index()], ..*s }).collect();
        let mut sent = self.sent.iter().peekable();
        let mut forward = std::collections::HashSet::new();
        for i in 0..=p.instrs.len() {
            while let Some(s) = sent.next_if(|s| s.at <= i) {
                self.transfer(&mut out, s);
            }
            let Some(instr) = p.instrs.get(i).filter(|_| needed.instrs[i]) else { continue };
            let mut instr = instr.clone();
            match instr.origin.phase {
                Phase::Forward => _ = forward.insert(instr.origin.path.clone()),
                // What every rank makes for itself may be needed here in backward alone.
                Phase::Recompute if !forward.contains(&instr.origin.path) => {
                    instr.origin.phase = Phase::Forward;
                }
                _ => {}
            }
            out.instrs.push(instr);
        }
        out.outputs = p.outputs.iter().map(|o| self.output(&mut out, o)).collect();
        out
    }

    /// Adds an output; that of another rank is copied to where the host reads outputs.
    fn output(&self, out: &mut Program, o: &Output) -> Output {
        let mut value = o.value;
        if matches!(self.places.values[value.index()], Place::Rank(from) if from != self.rank) {
            let ty = out.ty(value);
            value = out.new_value(ty);
            let origin = Origin { path: format!("{}.transfer", o.name).into(), phase: Phase::Update };
            let op = Reshape { shape: ty.shape }.into();
            out.instrs.push(Instr { op, inputs: vec![o.value], outputs: vec![value], origin });
        }
        Output { name: o.name.clone(), value }
    }

    /// Returns which instructions this rank runs, and which values it reads: backwards, as what every rank could make is made
    /// where it is read.
    fn needed(&self) -> Needed {
        let p = self.p;
        let mut values = vec![false; p.types.len()];
        let mut instrs = vec![false; p.instrs.len()];
        p.outputs.iter().for_each(|o| values[o.value.index()] = true);
        for (i, instr) in p.instrs.iter().enumerate().rev() {
            instrs[i] = match self.places.instrs[i] {
                Place::Rank(r) => r == self.rank,
                Place::Every => instr.outputs.iter().any(|v| values[v.index()]),
            };
            if instrs[i] {
                instr.inputs.iter().for_each(|v| values[v.index()] = true);
            }
        }
        Needed { values, instrs }
    }

    /// Adds this rank's end of a transfer, if it has one.
    fn transfer(&self, out: &mut Program, s: &Sent) {
        let end = match self.rank {
            r if r == s.from => End::Send,
            r if r == s.to => End::Receive,
            _ => return,
        };
        let ty = out.ty(s.value);
        let route = Route { from: s.from, to: s.to, ranks: self.ranks };
        let op = TransferStart::new(route, end, ty);
        let token = TensorType::new(DType::U8, &[1]);
        let (sends, origin) = (end == End::Send, self.origin(s.value));
        let sources = if sends { vec![s.value] } else { Vec::new() };
        let mut made: Vec<ValueId> = if sends { Vec::new() } else { vec![out.new_value(ty)] };
        made.push(out.new_value(token));
        let done =
            CollectiveDone { queue: TRANSFER, members: 2, sources: sources.len(), results: made.len() - 1 };
        let waits = [sources.clone(), made.clone()].concat();
        let results = if sends { Vec::new() } else { vec![s.value] };
        out.instrs.push(Instr { op: op.into(), inputs: sources, outputs: made, origin: origin.clone() });
        out.instrs.push(Instr { op: done.into(), inputs: waits, outputs: results, origin });
    }

    /// Returns where a value that travels comes from.
    fn origin(&self, v: ValueId) -> Origin {
        let made = self.places.defs[v.index()].map(|d| &self.p.instrs[d].origin);
        let path = made.map_or("state", |o| &*o.path);
        let phase = match made.map(|o| o.phase) {
            Some(Phase::Recompute) | None => Phase::Forward,
            Some(phase) => phase,
        };
        Origin { path: format!("{path}.transfer").into(), phase }
    }
}

struct Needed {
    values: Vec<bool>,
    instrs: Vec<bool>,
}
