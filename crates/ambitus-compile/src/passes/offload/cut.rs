//! Large tensors in parts: what waits on the host comes to the device a part at a time, and so does all that is computed with it.
//!
//! Before, with %1 and %2 at home on the host: `%1 = state w; %2 = state exp_avg.w; ...; %9 = adamw(%1, .., %2, ..)`. After, with parts
//! of two thirds of w:
//!
//! ```text
//! %20 = state w from 0 f32[32768]; %21 = state w from 32768 f32[16384]; %22 = state exp_avg.w from 0 f32[32768]; ...
//! %30 = adamw(%20, .., %22, ..); %31 = adamw(%21, .., %23, ..); ...
//! ```
//!
//! Values that must be cut at the same places, by the ops that they meet in, are a group: a weight with its gradient, moments and
//! average, and the cast of a weight. A group is cut where every instruction that makes or reads one of its values can be done part by
//! part ([`Cut`](ambitus_ir::ops::parts::Cut)) and one of its states is on the host; what of it is on the device is cut in place, for
//! a part of a state is some of its bytes.

use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::narrow::BLOCK;
use ambitus_ir::ops::optim::PARTIAL;
use ambitus_ir::ops::parts::{Span, Unit};
use ambitus_ir::{Builder, Instr, Phase, Program, Session, StateUse, TensorType, ValueId};
use std::collections::{HashMap, HashSet};

/// Elements of which parts begin at multiples: whole partial sums, blocks that share a scale, and offsets at which values of all
/// types, and scales, may begin.
const GRAIN: usize = {
    let scales = TensorType::ALIGN as usize / 4 * BLOCK;
    if scales > PARTIAL { scales } else { PARTIAL }
};

/// Bytes of an element by which parts are measured: the most that a state has for one.
const WIDTH: u64 = 4;

/// Parts of a tensor, or one more: of what no model has yet, they are larger, for each is several instructions.
const MOST_PARTS: u64 = 64;

/// Values that are cut alike.
#[derive(Debug)]
struct Group {
    /// The first element of every part, and the number of all.
    bounds: Vec<usize>,
    /// Columns, where parts are whole rows; otherwise they are elements in a line.
    cols: Option<usize>,
}

impl Group {
    fn parts(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns span `i` in a unit.
    fn part(&self, i: usize, unit: Unit) -> Span {
        let each = if unit == Unit::Element { 1 } else { self.cols.unwrap_or(1) };
        let [first, end, of] =
            [self.bounds[i], self.bounds[i + 1], self.bounds[self.parts()]].map(|n| n / each);
        Span { first, count: end - first, of }
    }

    /// Returns the first element and the type of part `i` of a value that has one element for `ratio` of the whole.
    fn place(&self, i: usize, ty: TensorType, ratio: usize) -> (usize, TensorType) {
        let (first, end) = (self.bounds[i] / ratio, self.bounds[i + 1].div_ceil(ratio));
        let part = match self.cols {
            Some(cols) if ty.shape.len() == 2 => ty.with_shape(&[(end - first) / cols, cols]),
            _ => ty.with_shape(&[end - first]),
        };
        (first, part)
    }
}

/// What is known of a value while groups are found.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Elements of the whole that one stands for; 0 if nothing says so.
    ratio: usize,
    /// No part of it can be taken alone.
    whole: bool,
}

/// Which values meet in instructions that can be done part by part.
struct Groups<'p> {
    p: &'p Program,
    /// Another value of the group, or itself.
    towards: Vec<usize>,
    known: Vec<Known>,
    /// What parts of the values' groups must be multiples of, in rows; 0: they may be elements.
    rows: Vec<usize>,
}

impl<'p> Groups<'p> {
    fn of(p: &'p Program) -> Groups<'p> {
        let n = p.types.len();
        let mut groups =
            Groups { p, towards: (0..n).collect(), known: vec![Known::default(); n], rows: vec![0; n] };
        let fixed = p.inputs.iter().map(|i| i.value).chain(p.outputs.iter().map(|o| o.value));
        fixed.for_each(|v| groups.known[v.index()].whole = true);
        let mut donated = vec![usize::MAX; n];
        for (at, instr) in p.instrs.iter().enumerate() {
            groups.meet(instr);
            instr.op.def().donates().iter().for_each(|(k, _)| donated[instr.inputs[*k].index()] = at);
        }
        groups.made_again_in_time(&donated);
        groups
    }

    fn root(&self, v: ValueId) -> usize {
        let mut at = v.index();
        while self.towards[at] != at {
            at = self.towards[at];
        }
        at
    }

    fn meet(&mut self, instr: &Instr) {
        let cut = instr.op.def().cut();
        let (mut operands, mut results): (&[_], &[_]) = (&[], &[]);
        if let Some(cut) = &cut {
            (operands, results) = (&cut.operands, &cut.results);
        }
        let mut first = None;
        for (values, cut_ones) in [(&instr.inputs, operands), (&instr.outputs, results)] {
            for (k, v) in values.iter().enumerate() {
                let Some((_, ratio)) = cut_ones.iter().find(|(c, _)| *c == k) else {
                    self.known[v.index()].whole = true;
                    continue;
                };
                let known = &mut self.known[v.index()];
                known.whole |= known.ratio != 0 && known.ratio != *ratio;
                known.ratio = *ratio;
                let (a, b) = (self.root(*first.get_or_insert(*v)), self.root(*v));
                self.towards[b] = a;
            }
        }
        if let (Some(v), Some(Unit::Rows(multiple))) = (first, cut.map(|c| c.unit)) {
            self.rows[v.index()] = self.rows[v.index()].max(multiple);
        }
    }

    /// Leaves a group uncut if one of its operands is overwritten before the parts that recompute from it.
    fn made_again_in_time(&mut self, donated: &[usize]) {
        // Until when what a value is made of is there.
        let mut until = donated.to_vec();
        let mut late: Vec<&ValueId> = Vec::new();
        for (at, instr) in self.p.instrs.iter().enumerate() {
            late.extend(instr.inputs.iter().filter(|v| until[v.index()] < at));
            if instr.op.def().cut().is_some_and(|c| c.again) {
                let least = instr.inputs.iter().map(|v| until[v.index()]).min().unwrap_or(usize::MAX);
                instr.outputs.iter().for_each(|v| until[v.index()] = least);
            }
        }
        late.into_iter().for_each(|v| self.known[v.index()].whole = true);
    }

    /// Returns the groups that are cut into parts of at most `bytes`, by the root of their values.
    fn cut(&self, session: &Session, bytes: u64) -> HashMap<usize, Group> {
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        for v in 0..self.towards.len() {
            members.entry(self.root(ValueId(v as u32))).or_default().push(v);
        }
        let on_host = |u: &&StateUse| session.states[u.state.index()].home == Space::Host;
        let wanted: HashSet<usize> =
            self.p.states.iter().filter(on_host).map(|u| self.root(u.enters)).collect();
        members.retain(|root, _| wanted.contains(root));
        members.into_iter().filter_map(|(root, all)| Some((root, self.group(&all, bytes)?))).collect()
    }

    fn group(&self, members: &[usize], bytes: u64) -> Option<Group> {
        let types = || members.iter().map(|v| (self.p.types[*v], self.known[*v].ratio));
        if members.iter().any(|v| self.known[*v].whole) {
            return None;
        }
        let all = types().filter(|t| t.1 == 1).map(|t| t.0.shape.elements()).max()?;
        let fits = |(ty, ratio): (TensorType, usize)| ty.shape.elements() == all.div_ceil(ratio);
        if !types().all(fits) {
            return None;
        }
        let multiple = members.iter().map(|v| self.rows[*v]).max().unwrap_or(0);
        let by_rows = multiple > 0 || types().any(|(ty, _)| !ty.is_dense());
        let cols = types().find(|(ty, _)| ty.shape.len() == 2).map(|(ty, _)| ty.shape[1]).filter(|_| by_rows);
        if by_rows {
            // Rows of one length; and what is cut with them lies in a line.
            let alike = |ty: TensorType| match ty.shape.len() {
                2 => Some(ty.shape[1]) == cols,
                rank => rank == 1,
            };
            if cols.is_none_or(|cols| cols == 0) || !types().all(|(ty, _)| alike(ty)) {
                return None;
            }
        }
        let grain = cols.map_or(GRAIN, |cols| lcm(GRAIN, cols * multiple.max(1)));
        let bytes = bytes.max(all as u64 * WIDTH / MOST_PARTS);
        let part = ((bytes / WIDTH) as usize / grain).max(1) * grain;
        if part >= all {
            return None;
        }
        let bounds = (0..all).step_by(part).chain([all]).collect();
        Some(Group { bounds, cols })
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Returns the program with every group done in parts of at most `bytes` of fp32.
pub(super) fn cut(session: &mut Session, mut p: Program, bytes: u64) -> Program {
    let groups = Groups::of(&p);
    let cuts = groups.cut(session, bytes);
    if cuts.is_empty() {
        return p;
    }
    let of: Vec<Option<usize>> = (0..p.types.len())
        .map(|v| Some(groups.root(ValueId(v as u32))).filter(|root| cuts.contains_key(root)))
        .collect();
    let ratios: Vec<usize> = groups.known.iter().map(|k| k.ratio).collect();

    let mut parts: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
    let uses = std::mem::take(&mut p.states);
    let mut leaves = Vec::new();
    for used in uses {
        let Some(root) = of[used.enters.index()] else {
            p.states.push(used);
            leaves.push((used.leaves, None));
            continue;
        };
        let (group, ty, ratio) = (&cuts[&root], p.ty(used.enters), ratios[used.enters.index()]);
        for i in 0..group.parts() {
            let (first, part) = group.place(i, ty, ratio);
            let enters = p.new_value(part);
            parts.entry(used.enters).or_default().push(enters);
            p.states.push(StateUse { first, enters, leaves: enters, ..used });
            leaves.push((used.leaves, Some(i)));
        }
    }

    let instrs = std::mem::take(&mut p.instrs);
    // What is done again, by its result.
    let again: HashMap<ValueId, &Instr> = instrs
        .iter()
        .filter(|i| i.op.def().cut().is_some_and(|c| c.again) && of[i.outputs[0].index()].is_some())
        .map(|i| (i.outputs[0], i))
        .collect();
    let mut writer = Writer {
        b: Builder::resume(session, p, Phase::Forward),
        found: Found { again, parts, whole: HashMap::new() },
    };
    for instr in &instrs {
        let of_instr = instr.inputs.iter().chain(&instr.outputs).find_map(|v| of[v.index()]);
        match of_instr {
            Some(root) => writer.in_parts(instr, &cuts[&root]),
            None => writer.append(instr),
        }
    }
    let Writer { b, found: Found { parts, whole, .. } } = writer;
    let mut p = b.finish();
    for (used, (v, part)) in p.states.iter_mut().zip(leaves) {
        used.leaves = match part {
            Some(i) => parts[&v][i],
            None => whole.get(&v).copied().unwrap_or(v),
        };
    }
    p.outputs.iter_mut().for_each(|o| o.value = whole.get(&o.value).copied().unwrap_or(o.value));
    p
}

struct Writer<'s, 'a> {
    b: Builder<'s>,
    found: Found<'a>,
}

/// What values have become.
struct Found<'a> {
    /// Instructions that are done again for each part, by their result.
    again: HashMap<ValueId, &'a Instr>,
    /// Of values that are cut.
    parts: HashMap<ValueId, Vec<ValueId>>,
    /// Of whole results of instructions that were done in parts.
    whole: HashMap<ValueId, ValueId>,
}

impl Writer<'_, '_> {
    fn append(&mut self, instr: &Instr) {
        let mut instr = instr.clone();
        for v in &mut instr.inputs {
            *v = self.found.whole.get(v).copied().unwrap_or(*v);
        }
        self.b.append(instr);
    }

    fn in_parts(&mut self, instr: &Instr, group: &Group) {
        let Some(cut) = instr.op.def().cut().filter(|c| !c.again) else { return };
        let spans: Vec<Span> = (0..group.parts()).map(|i| group.part(i, cut.unit)).collect();
        let found = &self.found;
        let results = self.b.at(&instr.origin, |b| {
            instr.op.in_parts(b, &spans, &mut |b: &mut Builder<'_>, i| found.operands(b, instr, i))
        });
        for (k, (v, made)) in instr.outputs.iter().zip(results).enumerate() {
            if cut.results.iter().any(|(c, _)| *c == k) {
                self.found.parts.insert(*v, made);
            } else {
                self.found.whole.insert(*v, made[0]);
            }
        }
    }
}

impl Found<'_> {
    /// Returns an instruction's operands for part `i`; what is done again for it is appended.
    fn operands(&self, b: &mut Builder<'_>, instr: &Instr, i: usize) -> Vec<ValueId> {
        let mut all = Vec::with_capacity(instr.inputs.len());
        for v in &instr.inputs {
            all.push(match self.again.get(v) {
                Some(maker) => {
                    let x = self.operands(b, maker, i);
                    b.push1(maker.op.clone(), &x)
                }
                None => {
                    let part = self.parts.get(v).map(|parts| parts[i]);
                    part.or(self.whole.get(v).copied()).unwrap_or(*v)
                }
            });
        }
        all
    }
}
