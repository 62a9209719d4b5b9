//! When what waits on the host comes and goes: clusters of uses, groups of copies, and the program with the copies in it.

use super::{FETCH, STORE};
use ambitus_ir::ops::copy::Space;
use ambitus_ir::{Builder, Instr, Origin, Phase, Program, Session, StateId, ValueId};
use std::collections::HashMap;

/// A stay of one tensor on the device.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    /// The value that instructions name while it lasts, until one of them overwrites it.
    base: ValueId,
    /// Place in [`Program::states`]; activations have none.
    state: Option<usize>,
    /// The first instruction that uses it, where it comes from the host.
    fetch: Option<usize>,
    /// What goes to the host, and the slot from which it is final.
    store: Option<(ValueId, usize)>,
}

/// Who uses every value.
pub(super) struct Uses {
    readers: Vec<Vec<usize>>,
    /// The instruction that overwrites a value, and what it makes of it.
    donated: Vec<Option<(usize, ValueId)>>,
    made: Vec<Option<usize>>,
    /// The last instruction for which each needs its operands: of a start, its done.
    until: Vec<usize>,
    /// Uses at most this many instructions apart are one stay.
    near: usize,
    /// The uses of states that come in parts.
    parts: Vec<bool>,
}

impl Uses {
    /// Finds the uses of a program's values.
    pub fn of(p: &Program, near: usize) -> Uses {
        let mut uses = Uses {
            readers: vec![Vec::new(); p.types.len()],
            donated: vec![None; p.types.len()],
            made: p.definitions(),
            until: (0..p.instrs.len()).collect(),
            near,
            parts: Vec::new(),
        };
        let mut count: HashMap<StateId, u32> = HashMap::new();
        p.states.iter().for_each(|u| *count.entry(u.state).or_default() += 1);
        uses.parts = p.states.iter().map(|u| count[&u.state] > 1).collect();
        for (i, instr) in p.instrs.iter().enumerate() {
            for v in &instr.inputs {
                uses.readers[v.index()].push(i);
            }
            let start = instr.inputs.last().and_then(|token| uses.made[token.index()]);
            if let (true, Some(start)) = (instr.op.def().props().waits, start) {
                uses.until[start] = i;
            }
            for (x, y) in instr.op.def().donates() {
                uses.donated[instr.inputs[x].index()] = Some((i, instr.outputs[y]));
            }
        }
        uses
    }

    /// Returns the values that a state has, one after the other.
    pub fn chain(&self, enters: ValueId) -> Vec<ValueId> {
        std::iter::successors(Some(enters), |v| self.donated[v.index()].map(|(_, made)| made)).collect()
    }

    /// Returns the stays of a state.
    pub fn of_state(&self, state: usize, p: &Program) -> Vec<Stretch> {
        let chain = self.chain(p.states[state].enters);
        // A part that stayed for its next use would keep others away.
        let near = if self.parts[state] { 0 } else { self.near };
        let mut out: Vec<Stretch> = Vec::new();
        let mut last = None;
        for v in chain {
            for &at in &self.readers[v.index()] {
                if last.is_none_or(|last| at > last + near) {
                    out.push(Stretch { base: v, state: Some(state), fetch: Some(at), store: None });
                }
                last = last.max(Some(self.until[at]));
            }
            if let (Some((at, made)), Some(now)) = (self.donated[v.index()], out.last_mut()) {
                now.store = Some((made, at + 1));
            }
        }
        out
    }

    /// Returns the two stays of a value that forward makes and backward reads; `None` if it is not worth it.
    pub fn of_activation(&self, v: ValueId, p: &Program) -> Option<Vec<Stretch>> {
        let readers = &self.readers[v.index()];
        let forward = readers.iter().rev().find(|at| p.instrs[**at].origin.phase == Phase::Forward);
        let made = self.made[v.index()]?;
        let last = forward.map_or(made, |at| made.max(*at));
        let back = *readers.iter().find(|at| **at > last)?;
        if back <= last + self.near || self.donated[v.index()].is_some() {
            return None;
        }
        let stays = Stretch { base: v, state: None, fetch: None, store: Some((v, last + 1)) };
        Some(vec![stays.clone(), Stretch { fetch: Some(back), store: None, ..stays }])
    }
}

/// Where the copies of a stretch stand: slot i is before instruction i.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    fetch: usize,
    store_done: usize,
}

/// What is put into a slot, in this order: what goes first, for what comes to have its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Act {
    StoreStart,
    StoreDone,
    FetchStart,
    FetchDone,
}

/// Copies that start at an instruction's slot, by slot, in groups: each as large as the largest set of one slot allows. Gives
/// each copy's group and each group's first slot.
fn groups(mut copies: Vec<(usize, usize, u64)>) -> (HashMap<usize, usize>, Vec<usize>) {
    copies.sort_unstable();
    let sets = || copies.chunk_by(|a, b| a.0 == b.0);
    let bytes = |set: &[(usize, usize, u64)]| set.iter().map(|c| c.2).sum::<u64>();
    let most = sets().map(bytes).max().unwrap_or(0);
    let (mut of, mut begins, mut held) = (HashMap::new(), Vec::new(), 0);
    for set in sets() {
        held += bytes(set);
        if begins.is_empty() || held > most {
            begins.push(set[0].0);
            held = bytes(set);
        }
        of.extend(set.iter().map(|c| (c.1, begins.len() - 1)));
    }
    (of, begins)
}

/// Chooses the slots; `stays` are all stretches with their item, an item's own in order.
fn slots(p: &Program, stays: &[(usize, Stretch)]) -> Vec<Slots> {
    let copies = |at: &dyn Fn(&Stretch) -> Option<usize>| -> Vec<(usize, usize, u64)> {
        let each = stays.iter().enumerate();
        each.filter_map(|(k, (_, s))| Some((at(s)?, k, p.ty(s.base).bytes()))).collect()
    };
    let (fetch_of, fetches) = groups(copies(&|s| s.fetch));
    let (store_of, stores) = groups(copies(&|s| s.store.map(|(_, at)| at)));
    let mut slots = vec![Slots::default(); stays.len()];
    // The last stretch that stores, and its item.
    let mut stored: Option<(usize, usize)> = None;
    for (k, (item, s)) in stays.iter().enumerate() {
        if let Some(group) = fetch_of.get(&k) {
            slots[k].fetch = fetches[group.saturating_sub(1)];
        }
        if let Some(group) = store_of.get(&k) {
            slots[k].store_done = stores.get(group + 2).copied().unwrap_or(p.instrs.len());
        }
        // What was stored is there before it is fetched again.
        if let Some((_, b)) = stored.filter(|(of, _)| of == item) {
            slots[k].fetch = slots[k].fetch.max(stays[b].1.store.map_or(0, |(_, at)| at));
            slots[b].store_done = slots[b].store_done.min(slots[k].fetch);
        }
        if s.store.is_some() {
            stored = Some((*item, k));
        }
        debug_assert!(s.fetch.is_none_or(|at| slots[k].fetch <= at));
    }
    slots
}

/// Returns the program with all copies in it; each item's stretches in order.
pub(super) fn rewrite(session: &mut Session, mut p: Program, items: Vec<Vec<Stretch>>) -> Program {
    let stays: Vec<(usize, Stretch)> =
        items.into_iter().enumerate().flat_map(|(i, all)| all.into_iter().map(move |s| (i, s))).collect();
    let slots = slots(&p, &stays);
    let mut acts: Vec<(usize, Act, usize)> = Vec::new();
    for (k, (_, s)) in stays.iter().enumerate() {
        if let Some(first) = s.fetch {
            acts.extend([(slots[k].fetch, Act::FetchStart, k), (first, Act::FetchDone, k)]);
        }
        if let Some((_, at)) = s.store {
            acts.extend([(at, Act::StoreStart, k), (slots[k].store_done, Act::StoreDone, k)]);
        }
    }
    acts.sort_unstable();

    let instrs = std::mem::take(&mut p.instrs);
    let origins: Vec<Origin> = instrs.iter().map(|i| i.origin.clone()).collect();
    let mut writer = Writer {
        // The value of each item on the host.
        host: stays.iter().map(|(item, s)| (*item, s.base)).rev().collect(),
        b: Builder::resume(session, p, Phase::Forward),
        stays: &stays,
        origins: &origins,
        device: HashMap::new(),
        running: HashMap::new(),
        leaves: HashMap::new(),
    };
    let mut acts = acts.into_iter().peekable();
    for (i, mut instr) in instrs.into_iter().enumerate() {
        while let Some((_, act, k)) = acts.next_if(|a| a.0 <= i) {
            writer.put(act, k);
        }
        writer.rename(&mut instr);
        writer.b.append(instr);
    }
    acts.for_each(|(_, act, k)| writer.put(act, k));
    let Writer { b, leaves, .. } = writer;
    let mut p = b.finish();
    leaves.into_iter().for_each(|(state, v)| p.states[state].leaves = v);
    p
}

struct Writer<'s, 'a> {
    b: Builder<'s>,
    stays: &'a [(usize, Stretch)],
    origins: &'a [Origin],
    host: HashMap<usize, ValueId>,
    /// What instructions read in place of a value.
    device: HashMap<ValueId, ValueId>,
    /// Copies that are not done, by act and stretch: (source, copy, token).
    running: HashMap<(Act, usize), (ValueId, (ValueId, ValueId))>,
    leaves: HashMap<usize, ValueId>,
}

impl Writer<'_, '_> {
    fn rename(&self, instr: &mut Instr) {
        for v in &mut instr.inputs {
            *v = self.device.get(v).copied().unwrap_or(*v);
        }
    }

    fn put(&mut self, act: Act, k: usize) {
        let (item, s) = &self.stays[k];
        let (made, ends) = s.store.unwrap_or((s.base, 1));
        let user = match act {
            Act::FetchStart | Act::FetchDone => s.fetch.unwrap_or(0),
            Act::StoreStart | Act::StoreDone => ends - 1,
        };
        let origin = &self.origins[user];
        // A copy has no original that it would be a clone of.
        let phase = if origin.phase == Phase::Recompute { Phase::Backward } else { origin.phase };
        let host = self.host[item];
        let started = |act: Act| self.running.get(&(act, k)).copied();
        match act {
            Act::FetchStart => {
                let copy = self.b.derived(origin, phase, |b| b.copy_start(host, FETCH, Space::Device));
                self.running.insert((act, k), (host, copy));
            }
            Act::FetchDone => {
                if let Some((from, copy)) = started(Act::FetchStart) {
                    let done = self.b.derived(origin, phase, |b| b.copy_done(from, copy, FETCH));
                    self.device.insert(s.base, done);
                }
            }
            Act::StoreStart => {
                let copy = self.b.derived(origin, phase, |b| match s.state {
                    Some(_) => b.store_start(made, host, STORE),
                    None => b.copy_start(made, STORE, Space::Host),
                });
                self.running.insert((act, k), (made, copy));
            }
            Act::StoreDone => {
                if let Some((from, copy)) = started(Act::StoreStart) {
                    let done = self.b.derived(origin, phase, |b| b.copy_done(from, copy, STORE));
                    self.host.insert(*item, done);
                    self.leaves.extend(s.state.map(|state| (state, done)));
                }
            }
        }
    }
}
