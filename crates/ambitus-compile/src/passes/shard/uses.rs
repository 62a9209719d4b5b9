//! Which instructions read which tensors, and from which gather; where gradients are whole.
//!
//! Time is cut into *stretches*: a new one begins where a unit of the chain (a block) is touched, read or given a gradient,
//! and another one was before. What a unit needs within a stretch comes by one gather. What contributes to a gradient (of a
//! tied embedding) is added up before ranks sum it where no other block lies between, whatever the units are: so no choice of
//! units changes a gradient's bits.

use super::Layout;
use crate::passes::accumulate::{GRAD, Sums};
use ambitus_ir::{DType, Op, Phase, Program, Session, ValueId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Tensors of one flat that a stretch of the program reads, in one type.
#[derive(Debug)]
pub(super) struct Gather {
    /// The flat.
    pub flat: usize,
    /// The type that they are read in.
    pub dtype: DType,
    /// The instruction that it stands before.
    pub at: usize,
    /// That of its first reader.
    pub phase: Phase,
    /// Tensors of the flat, ascending.
    pub tensors: BTreeSet<usize>,
}

/// Gradients of one flat that a stretch makes.
#[derive(Debug)]
pub(super) struct Reduction {
    /// The flat.
    pub flat: usize,
    /// The instruction that makes the last of them.
    pub at: usize,
    /// Tensors of the flat, ascending, with what their gradients are the sums of.
    pub tensors: Vec<(usize, Vec<ValueId>)>,
}

/// What a program does with sharded tensors.
#[derive(Debug)]
pub(super) struct Uses {
    /// In the order of their places.
    pub gathers: Vec<Gather>,
    /// By instruction and operand: the gather, and the tensor of its flat.
    pub reads: HashMap<(usize, ValueId), (usize, usize)>,
    /// In the order of their places.
    pub reductions: Vec<Reduction>,
    /// Instructions that vanish: casts that the shard takes, sums of contributions.
    pub dropped: Vec<bool>,
}

impl Uses {
    /// Finds the uses in a program that reads tensors and outputs their gradients.
    pub fn of(layout: &Layout, session: &Session, p: &Program) -> Uses {
        let mut dropped = vec![false; p.instrs.len()];
        let tensors = tensors(layout, session, p, &mut dropped);
        let sums = Sums::of(p);
        // By flat and tensor: contributions with the instructions that make them.
        let mut leaves: BTreeMap<(usize, usize), Vec<(usize, ValueId)>> = BTreeMap::new();
        for out in &p.outputs {
            let Some(place) = out.name.strip_prefix(GRAD).and_then(|name| layout.place(name)) else {
                continue;
            };
            let (adds, parts) = sums.leaves(p, out.value);
            adds.into_iter().for_each(|i| dropped[i] = true);
            let made = parts.into_iter().map(|v| (sums.made(v).unwrap_or(0), v));
            leaves.entry(place).or_default().extend(made);
        }
        let reads = |i: usize| p.instrs[i].inputs.iter().filter_map(|v| Some((*v, *tensors.get(v)?)));

        let mut touched: Vec<Vec<usize>> = (0..p.instrs.len())
            .map(|i| if dropped[i] { Vec::new() } else { reads(i).map(|(_, t)| t.0).collect() })
            .collect();
        leaves
            .iter()
            .flat_map(|(t, all)| all.iter().map(|l| (l.0, t.0)))
            .for_each(|(i, flat)| touched[i].push(flat));
        let link = |flat: &usize| layout.chain.iter().position(|unit| *unit == layout.flats[*flat].unit);
        let stretch = stretches(touched.iter().map(|flats| flats.iter().filter_map(link).collect()));
        let block = |(flats, block): (&Vec<usize>, Option<usize>)| {
            block.filter(|_| !flats.is_empty()).into_iter().collect()
        };
        let between_blocks = stretches(touched.iter().zip(p.blocks_of()).map(block));

        let mut made: Vec<Gather> = Vec::new();
        let mut keys: HashMap<(usize, DType, usize), usize> = HashMap::new();
        // Of each value: who reads it in forward, and from which gather.
        let mut forward: HashMap<ValueId, Vec<(&str, usize)>> = HashMap::new();
        let mut read: HashMap<(usize, ValueId), (usize, usize)> = HashMap::new();
        for (i, instr) in p.instrs.iter().enumerate().filter(|(i, _)| !dropped[*i]) {
            let phase = instr.origin.phase;
            for (v, (flat, tensor, dtype)) in reads(i) {
                let path = &*instr.origin.path;
                let original = forward.get(&v).filter(|_| phase != Phase::Forward).and_then(|all| {
                    let of = |(p, _): &&(&str, usize)| {
                        path.strip_prefix(*p).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                    };
                    all.iter().filter(of).max_by_key(|(p, _)| p.len()).map(|(_, g)| *g)
                });
                let gather = original.unwrap_or_else(|| {
                    *keys.entry((flat, dtype, stretch[i])).or_insert_with(|| {
                        made.push(Gather { flat, dtype, at: i, phase, tensors: BTreeSet::new() });
                        made.len() - 1
                    })
                });
                made[gather].tensors.insert(tensor);
                read.insert((i, v), (gather, tensor));
                if phase == Phase::Forward {
                    forward.entry(v).or_default().push((path, gather));
                }
            }
        }
        together(layout, &stretch, &mut made);
        let mut order: Vec<usize> = (0..made.len()).collect();
        order.sort_by_key(|k| made[*k].at);
        let mut place = vec![0; made.len()];
        order.iter().enumerate().for_each(|(now, k)| place[*k] = now);
        read.values_mut().for_each(|r| r.0 = place[r.0]);
        made.sort_by_key(|g| g.at);

        let reductions = reductions(layout, leaves, &stretch, &between_blocks);
        Uses { gathers: made, reads: read, reductions, dropped }
    }
}

/// Returns what values are tensors of flats: flat, tensor and the type that readers get. A parameter that is read only through
/// casts to one 16-bit type is there in that type.
fn tensors(
    layout: &Layout,
    session: &Session,
    p: &Program,
    dropped: &mut [bool],
) -> HashMap<ValueId, (usize, usize, DType)> {
    let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
    let mut places = Vec::new();
    for used in &p.states {
        let decl = &session.states[used.state.index()];
        if let Some((flat, tensor)) = layout.place(&decl.name) {
            places.push((used.enters, flat, tensor));
            readers.insert(used.enters, Vec::new());
        }
    }
    for (i, instr) in p.instrs.iter().enumerate() {
        for v in &instr.inputs {
            if let Some(all) = readers.get_mut(v) {
                all.push(i);
            }
        }
    }
    let narrow = |i: &usize| match &p.instrs[*i].op {
        Op::Cast(op) if op.to.is_float() && op.to != DType::F32 => Some(op.to),
        _ => None,
    };
    let mut out = HashMap::new();
    for (v, flat, tensor) in places {
        let all = &readers[&v];
        let to = all.first().and_then(narrow).filter(|to| all.iter().all(|i| narrow(i) == Some(*to)));
        match to {
            Some(dtype) => {
                for i in all {
                    dropped[*i] = true;
                    out.insert(p.instrs[*i].outputs[0], (flat, tensor, dtype));
                }
            }
            None => drop(out.insert(v, (flat, tensor, p.ty(v).dtype))),
        }
    }
    out
}

/// Returns the stretch of every instruction, from what each touches of a chain.
fn stretches(touched: impl Iterator<Item = Vec<usize>>) -> Vec<usize> {
    let (mut now, mut before) = (0, None);
    let mut one = |links: Vec<usize>| {
        for link in links {
            if before != Some(link) {
                before = Some(link);
                now += 1;
            }
        }
        now
    };
    touched.map(&mut one).collect()
}

/// Gathers of one unit in one stretch stand where the first of them must.
fn together(layout: &Layout, stretch: &[usize], gathers: &mut [Gather]) {
    let key = |g: &Gather| (layout.flats[g.flat].unit.clone(), stretch[g.at]);
    let mut first: HashMap<(String, usize), (usize, Phase)> = HashMap::new();
    for g in gathers.iter() {
        let at = first.entry(key(g)).or_insert((g.at, g.phase));
        if g.at < at.0 {
            *at = (g.at, g.phase);
        }
    }
    for g in gathers.iter_mut() {
        (g.at, _) = first[&key(g)];
    }
}

/// Returns one sum for each flat and stretch, and one more where a tensor has contributions of several times between blocks in
/// it.
fn reductions(
    layout: &Layout,
    leaves: BTreeMap<(usize, usize), Vec<(usize, ValueId)>>,
    stretch: &[usize],
    between_blocks: &[usize],
) -> Vec<Reduction> {
    let mut found: BTreeMap<(usize, usize, usize), Reduction> = BTreeMap::new();
    for ((flat, tensor), all) in leaves {
        let mut times: BTreeMap<usize, (usize, Vec<ValueId>)> = BTreeMap::new();
        for (at, v) in all {
            let (last, parts) = times.entry(between_blocks[at]).or_default();
            *last = at.max(*last);
            parts.push(v);
        }
        for (at, parts) in times.into_values() {
            let free = |k: &usize| {
                let sum = found.get(&(flat, stretch[at], *k));
                sum.is_none_or(|sum| sum.tensors.last().is_none_or(|t| t.0 != tensor))
            };
            let k = (0..).find(free).unwrap_or_default();
            let sum = found.entry((flat, stretch[at], k));
            let sum = sum.or_insert_with(|| Reduction { flat, at, tensors: Vec::new() });
            sum.at = sum.at.max(at);
            sum.tensors.push((tensor, parts));
        }
    }
    // Those of one unit in one stretch stand behind the last of its gradients.
    let mut last: HashMap<(&str, usize), usize> = HashMap::new();
    for ((flat, stretch, _), sum) in &found {
        let at = last.entry((&layout.flats[*flat].unit, *stretch)).or_insert(0);
        *at = (*at).max(sum.at);
    }
    for ((flat, stretch, _), sum) in &mut found {
        sum.at = last[&(layout.flats[*flat].unit.as_str(), *stretch)];
    }
    let mut out: Vec<Reduction> = found.into_values().collect();
    out.sort_by_key(|r| r.at);
    out
}
