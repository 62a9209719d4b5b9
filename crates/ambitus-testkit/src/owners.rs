//! A second opinion on plans: walks a planned program and keeps, for every byte, the value that wrote it last. Shares
//! nothing with the planner but the plan: a value must find its bytes untouched at every read.

use ambitus_ir::plan::{Address, PlannedProgram, PlannedSession, Region};
use ambitus_ir::target::Target;
use ambitus_ir::{Instr, StateId, StateKind, ValueId};
use std::collections::{HashMap, HashSet};

fn overlap(a: Address, b: Address) -> bool {
    a.region == b.region && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

struct Memory<'a> {
    p: &'a PlannedProgram,
    owned: Vec<(Address, ValueId)>,
    /// Gradients that pass from program to program and are not there yet.
    unmade: HashSet<ValueId>,
    /// Operands and results of copies in flight, by token.
    in_flight: Vec<(ValueId, Vec<Address>)>,
}

/// Checks every program of a session, and gradients in the transient region from the program that makes them to the last that reads
/// them.
///
/// # Panics
/// At the first byte that is not what its reader expects.
pub fn check(planned: &PlannedSession, target: &dyn Target) {
    let passes = |state: StateId| {
        let gradient = planned.session.states[state.index()].kind == StateKind::Gradient;
        gradient && planned.states[state.index()].region == Region::Transient
    };
    // By state, the first and the last program that has it.
    let mut spans: HashMap<StateId, [usize; 2]> = HashMap::new();
    for (i, p) in planned.programs.iter().enumerate() {
        for used in p.program.states.iter().filter(|used| passes(used.state)) {
            spans.entry(used.state).or_insert([i; 2])[1] = i;
        }
    }
    for (state, [first, last]) in &spans {
        let between = first + 1..*last;
        assert!(
            between.clone().all(|i| spans.values().any(|s| s.contains(&i))),
            "{state:?} passes {between:?}"
        );
    }
    for (i, p) in planned.programs.iter().enumerate() {
        let begins = |state: &StateId| spans.get(state).is_some_and(|[first, _]| *first == i);
        let ends = |state: &StateId| spans.get(state).is_some_and(|[_, last]| *last == i);
        let program = &p.program;
        let unmade =
            program.states.iter().filter(|used| begins(&used.state)).map(|used| used.enters).collect();
        let mut memory = Memory { p, owned: Vec::new(), unmade, in_flight: Vec::new() };
        let entries = program.inputs.iter().map(|i| i.value);
        for v in entries.chain(program.states.iter().map(|s| s.enters)) {
            if !memory.unmade.contains(&v) {
                memory.write(v, "entry");
            }
        }
        for (i, instr) in program.instrs.iter().enumerate() {
            memory.step(instr, p.workspaces[i], target);
        }
        let leaves = program.outputs.iter().map(|o| o.value);
        let kept = program.states.iter().filter(|used| !ends(&used.state));
        for v in leaves.chain(kept.map(|used| used.leaves)) {
            memory.read(v, "the end");
        }
    }
}

impl Memory<'_> {
    fn read(&self, v: ValueId, at: &str) {
        let place = self.p.place(v);
        assert!(self.owned.contains(&(place, v)), "{at} reads {v}, whose bytes are gone");
    }

    fn write(&mut self, v: ValueId, at: &str) {
        let place = self.p.place(v);
        let torn = self.in_flight.iter().any(|(_, held)| held.iter().any(|x| overlap(*x, place)));
        assert!(!torn, "{at} writes {v} under a copy");
        self.owned.retain(|(other, _)| !overlap(*other, place));
        self.owned.push((place, v));
    }

    fn step(&mut self, instr: &Instr, workspace: Option<Address>, target: &dyn Target) {
        let at = &instr.origin.path;
        let def = instr.op.def();
        if def.props().waits {
            self.in_flight.retain(|(token, _)| Some(token) != instr.inputs.last());
        }
        for v in &instr.inputs {
            if self.unmade.remove(v) {
                // Its first contribution overwrites it.
                self.write(*v, at);
            }
            self.read(*v, at);
        }
        for (o, y) in instr.outputs.iter().enumerate() {
            for (i, x) in instr.inputs.iter().enumerate() {
                let (from, to) = (self.p.place(*x), self.p.place(*y));
                let shared = def.may_share().contains(&(i, o)) && target.shares(&instr.op, i, o);
                let allowed = from == to && (shared || def.donates().contains(&(i, o)));
                assert!(allowed || !overlap(from, to), "{at} writes result {o} over operand {i}");
            }
        }
        if let Some(scratch) = workspace {
            let mut own = instr.inputs.iter().chain(&instr.outputs).map(|v| self.p.place(*v));
            assert!(!own.any(|place| overlap(place, scratch)), "{at}: scratch over its own values");
            self.owned.retain(|(other, _)| !overlap(*other, scratch));
        }
        instr.outputs.iter().for_each(|v| self.write(*v, at));
        if def.props().starts {
            let (token, results) = instr.outputs.split_last().expect("a start makes a token");
            let held = instr.inputs.iter().chain(results).map(|v| self.p.place(*v));
            self.in_flight.push((*token, held.collect()));
        }
    }
}
