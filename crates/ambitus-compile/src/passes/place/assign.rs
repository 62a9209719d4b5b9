//! Which rank has which state and runs which instruction.

use super::Cut;
use ambitus_ir::{Phase, Program, Session, StateKind};
use std::collections::HashMap;
use std::sync::Arc;

/// Where an instruction runs, or a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On each rank that needs it.
    Every,
    /// On one rank.
    Rank(usize),
}

/// Places of a program.
pub(super) struct Places {
    /// Of instructions.
    pub instrs: Vec<Place>,
    /// Of values.
    pub values: Vec<Place>,
    /// [`Program::definitions`].
    pub defs: Vec<Option<usize>>,
}

/// Returns the rank of every state: of a parameter, its block's, or that of the furthest block before its first use; of
/// gradients, moments and averages, their parameter's; of counters, the first.
pub(super) fn homes(session: &Session, cut: &Cut) -> Vec<usize> {
    let mut of_parameter: HashMap<&str, usize> = HashMap::new();
    for p in &session.programs {
        let blocks = p.blocks_of();
        let mut first_reader = vec![usize::MAX; p.types.len()];
        for (i, instr) in p.instrs.iter().enumerate().rev() {
            instr.inputs.iter().for_each(|v| first_reader[v.index()] = i);
        }
        for used in &p.states {
            let s = &session.states[used.state.index()];
            if s.kind != StateKind::Parameter {
                continue;
            }
            let in_block = |b: &String| s.name.strip_prefix(b.as_str()).is_some_and(|r| r.starts_with('.'));
            let own = p.blocks.iter().position(in_block);
            let first = first_reader[used.enters.index()].min(p.instrs.len());
            let before = || blocks[..first].iter().copied().flatten().max();
            let rank = own.or_else(before).map_or(0, |b| cut.rank_of(b));
            of_parameter.entry(&s.name).or_insert(rank);
        }
    }
    let home = |name: &str| {
        let parameter = of_parameter.get(name).or_else(|| of_parameter.get(name.split_once('.')?.1));
        parameter.copied().unwrap_or(0)
    };
    session.states.iter().map(|s| home(&s.name)).collect()
}

/// What a value was made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Nothing.
    Constant,
    /// States, and nothing else but constants.
    Weight,
    /// Inputs, perhaps with other things.
    Data,
}

/// Returns the places of everything in a program, by the rules of the [module](super).
pub(super) fn assign(session: &Session, p: &Program, cut: &Cut, homes: &[usize]) -> Places {
    let (defs, n) = (p.definitions(), p.types.len());
    let mut values = vec![Place::Every; n];
    let mut kinds = vec![Kind::Data; n];
    // Of values on a state's bytes.
    let mut state = vec![None; n];
    for used in &p.states {
        let (v, home) = (used.enters.index(), homes[used.state.index()]);
        // A counter is a number: it goes to what reads it.
        let counter = session.states[used.state.index()].kind == StateKind::Counter;
        let kind = if counter { Kind::Data } else { Kind::Weight };
        (values[v], kinds[v], state[v]) = (Place::Rank(home), kind, Some(home));
    }
    // The blocks of a model are those of the program that has them; updates have none.
    let named = session.programs.iter().map(|p| &p.blocks).find(|b| !b.is_empty());
    let named: &[String] = if p.blocks.is_empty() { named.map_or(&[], Vec::as_slice) } else { &p.blocks };
    let block = |path: &str| {
        let within = |b: &String| path.strip_prefix(b.as_str()).is_some_and(|rest| rest.starts_with('.'));
        named.iter().position(within).map(|b| cut.rank_of(b))
    };
    let mut forward: HashMap<Arc<str>, usize> = HashMap::new();
    // The furthest of the blocks so far, of the first micro-batch: later ones follow its paths.
    let mut reached = 0;
    let mut instrs = Vec::with_capacity(p.instrs.len());
    for instr in &p.instrs {
        let def = instr.op.def();
        let overwritten = def.donates().iter().find_map(|(i, _)| state[instr.inputs[*i].index()]);
        let inputs = || instr.inputs.iter().map(|v| v.index());
        let kind = inputs().map(|v| kinds[v]).max().unwrap_or(Kind::Constant);
        let every = inputs().all(|v| values[v] == Place::Every);
        // Most bytes; of as many, the later rank.
        let weights = || {
            let mut bytes = vec![0; cut.ranks()];
            for v in inputs().filter(|v| kinds[*v] == Kind::Weight) {
                if let Place::Rank(r) = values[v] {
                    bytes[r] += p.types[v].bytes();
                }
            }
            (0..bytes.len()).max_by_key(|r| bytes[*r]).filter(|r| bytes[*r] > 0)
        };
        // Of the same path, or of the forward instruction whose gradient it is.
        let origin = || {
            let path = &instr.origin.path;
            let ends = path.char_indices().rev().filter(|(_, c)| *c == '.').map(|(at, _)| &path[..at]);
            let names = ends.filter(|_| instr.origin.phase != Phase::Forward);
            std::iter::once(&**path).chain(names).find_map(|name| forward.get(name).copied())
        };
        let own = block(&instr.origin.path);
        if let (Some(r), Phase::Forward) = (own, instr.origin.phase) {
            reached = reached.max(r);
        }
        let beside =
            || Some(reached).filter(|_| instr.origin.phase == Phase::Forward && !p.blocks.is_empty());
        let operands =
            || inputs().filter_map(|v| if let Place::Rank(r) = values[v] { Some(r) } else { None }).max();
        let place = match overwritten {
            Some(home) => Place::Rank(home),
            None if every => Place::Every,
            None => {
                let rank = own.or_else(weights).or_else(origin).or_else(beside).or_else(operands);
                Place::Rank(rank.unwrap_or(0))
            }
        };
        if let (Place::Rank(r), Phase::Forward) = (place, instr.origin.phase) {
            forward.insert(instr.origin.path.clone(), r);
        }
        for v in &instr.outputs {
            values[v.index()] = place;
            kinds[v.index()] = kind;
        }
        for (i, o) in def.donates() {
            state[instr.outputs[o].index()] = state[instr.inputs[i].index()];
        }
        instrs.push(place);
    }
    Places { instrs, values, defs }
}
