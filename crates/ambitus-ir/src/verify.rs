//! The verifier: what must hold of every program, before and after every pass. A violation is a bug of the pass that ran
//! last, never of the user.
//!
//! # Invariants
//!
//! 1. A value is defined exactly once - by an input, a state's entry or an instruction - and before its first use.
//! 2. Every instruction's results have the types that its op infers from its operands.
//! 3. Mutation is donation: the operand of a donating pair is a value of a declared state, an unfinished copy, or the
//!    finished copy of another space's value; and nothing uses it afterwards.
//! 4. A state leaves a program on its own bytes: its last value descends from its entry by donations only.
//! 5. Every start has exactly one done, later, on the same queue; between the two nothing touches the result, and nothing
//!    donates the source.
//! 6. Inputs, outputs and states are named at most once, of states each part, and no output as an input of the same program:
//!    equal names are equal bytes of the slot. Outputs are defined.
//! 7. Instructions of phase `recompute` have an original: a forward instruction of the same path.
//! 8. Only copies read what is in the host's space, only onto a state's value there do they store, and never host to host.

use crate::ops::copy::Space;
use crate::program::{Instr, Phase, Program, Session, StateUse, ValueId};
use std::collections::{HashMap, HashSet};
use thiserror::Error;

/// A broken invariant.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("program `{program}`, instruction {instr}: invariant {invariant}: {what}")]
pub struct Violation {
    /// The program.
    pub program: String,
    /// Index of the instruction; the number of instructions for faults of the signature.
    pub instr: usize,
    /// Number in the module's list.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
}

/// Checks all invariants.
///
/// # Errors
/// The first violation.
pub fn verify(session: &Session, p: &Program) -> Result<(), Violation> {
    Checker { session, p }.run()
}

/// A start that is not yet done: its operands but those it overwrites, its results but the token, its queue.
#[derive(PartialEq)]
struct Running {
    sources: Vec<ValueId>,
    results: Vec<ValueId>,
    queue: u32,
}

struct Checker<'a> {
    session: &'a Session,
    p: &'a Program,
}

/// What is known of a program's values at an instruction.
struct Values {
    defined: Vec<bool>,
    /// Overwritten.
    dead: Vec<bool>,
    /// For a value that holds a state's bytes: which state.
    state_of: Vec<Option<usize>>,
    /// What was started and is not yet done, by token; and the results of it.
    running: HashMap<ValueId, Running>,
    pending: Vec<bool>,
    /// In the host's space.
    host: Vec<bool>,
    /// Copies made by the program that it may overwrite.
    own: Vec<bool>,
}

impl Checker<'_> {
    fn fail<T>(&self, instr: usize, invariant: u8, what: String) -> Result<T, Violation> {
        Err(Violation { program: self.p.name.clone(), instr, invariant, what })
    }

    fn run(&self) -> Result<(), Violation> {
        let p = self.p;
        // It runs after every pass of every plan that is tried: buffers are reused, not allocated for each instruction.
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let end = p.instrs.len();
        self.names(end)?;
        let mut values = self.entries(end)?;
        let recomputes = p.instrs.iter().any(|i| i.origin.phase == Phase::Recompute);
        let forward: HashSet<&str> = p
            .instrs
            .iter()
            .filter(|i| recomputes && i.origin.phase == Phase::Forward)
            .map(|i| &*i.origin.path)
            .collect();
        for (at, instr) in p.instrs.iter().enumerate() {
            self.uses(at, instr, &values)?;
            p.signature_into(instr, &mut x, &mut y);
            match instr.op.def().infer(&x) {
                Ok(t) if t == y => {}
                Ok(t) => return self.fail(at, 2, format!("results are {y:?}, op infers {t:?}")),
                Err(why) => return self.fail(at, 2, why),
            }
            self.copies(at, instr, &mut values)?;
            self.donations(at, instr, &mut values)?;
            for v in &instr.outputs {
                if std::mem::replace(&mut values.defined[v.index()], true) {
                    return self.fail(at, 1, format!("{v} is defined twice"));
                }
            }
            if instr.origin.phase == Phase::Recompute && !forward.contains(&*instr.origin.path) {
                return self.fail(at, 7, format!("{} has no original", instr.origin.path));
            }
        }
        self.leaves(end, &values)
    }

    /// Returns the inputs and states at the program's start.
    fn entries(&self, end: usize) -> Result<Values, Violation> {
        let p = self.p;
        let none = || vec![false; p.types.len()];
        let mut values = Values {
            defined: none(),
            dead: none(),
            state_of: vec![None; p.types.len()],
            running: HashMap::new(),
            pending: none(),
            host: none(),
            own: none(),
        };
        let entries = p.inputs.iter().map(|i| i.value).chain(p.states.iter().map(|s| s.enters));
        for v in entries {
            if std::mem::replace(&mut values.defined[v.index()], true) {
                return self.fail(end, 1, format!("{v} enters twice"));
            }
        }
        for (k, s) in p.states.iter().enumerate() {
            let (whole, ty) = (self.session.states[s.state.index()].ty, p.ty(s.enters));
            if !(s.first == 0 && ty == whole || whole.has_part(s.first, ty)) {
                return self.fail(end, 2, format!("state value {} has another type", s.enters));
            }
            values.state_of[s.enters.index()] = Some(k);
            if self.session.states[s.state.index()].home == Space::Host {
                values.host[s.enters.index()] = true;
            }
        }
        Ok(values)
    }

    /// Operands are there, and finished.
    fn uses(&self, at: usize, instr: &Instr, values: &Values) -> Result<(), Violation> {
        for v in &instr.inputs {
            if !values.defined[v.index()] {
                return self.fail(at, 1, format!("{v} is used before it is defined"));
            }
            if values.dead[v.index()] {
                return self.fail(at, 3, format!("{v} is used after it was overwritten"));
            }
            if values.pending[v.index()] && !instr.op.def().props().waits {
                return self.fail(at, 5, format!("{v} is used before its copy is done"));
            }
        }
        Ok(())
    }

    /// Starts, dones, and what reaches the host.
    fn copies(&self, at: usize, instr: &Instr, values: &mut Values) -> Result<(), Violation> {
        let def = instr.op.def();
        let Values { running, pending, host, own, .. } = values;
        if let Some(v) = instr.inputs.iter().find(|v| !def.reaches_host() && host[v.index()]) {
            return self.fail(at, 8, format!("{v} is on the host, where only copies reach it"));
        }
        let queue = def.queue().unwrap_or(0);
        if def.props().starts {
            if def.makes_in() == Space::Host {
                let (from, copy) = (instr.inputs[0], instr.outputs[0]);
                if host[from.index()] {
                    return self.fail(at, 8, format!("{from} is copied from host to host"));
                }
                host[copy.index()] = true;
            }
            let given: Vec<usize> = def.donates().iter().map(|(i, _)| *i).collect();
            if let Some(old) = given.iter().map(|i| instr.inputs[*i]).find(|v| !host[v.index()]) {
                return self.fail(at, 8, format!("{old} is stored to, and is not on the host"));
            }
            let kept = |(i, v): (usize, &ValueId)| (!given.contains(&i)).then_some(*v);
            let sources = instr.inputs.iter().enumerate().filter_map(kept).collect();
            let (token, results) = instr.outputs.split_last().expect("a start makes a token");
            results.iter().for_each(|v| pending[v.index()] = true);
            running.insert(*token, Running { sources, results: results.to_vec(), queue });
        }
        if def.props().waits {
            let (token, rest) = instr.inputs.split_last().expect("a done takes a token");
            let (sources, results) = rest.split_at(rest.len() - instr.outputs.len());
            let done = Running { sources: sources.to_vec(), results: results.to_vec(), queue };
            if running.remove(token) != Some(done) {
                return self.fail(at, 5, "done without its start".to_owned());
            }
            for (started, done) in results.iter().zip(&instr.outputs) {
                pending[started.index()] = false;
                if host[started.index()] {
                    host[done.index()] = true;
                } else if sources.first().is_some_and(|v| host[v.index()]) {
                    own[done.index()] = true;
                }
            }
        }
        Ok(())
    }

    /// What is overwritten may be.
    fn donations(&self, at: usize, instr: &Instr, values: &mut Values) -> Result<(), Violation> {
        let Values { dead, state_of, running, own, .. } = values;
        let def = instr.op.def();
        for (i, o) in def.donates() {
            let (from, to) = (instr.inputs[i], instr.outputs[o]);
            if instr.inputs.iter().filter(|v| **v == from).count() > 1 {
                return self.fail(at, 3, format!("{from} is overwritten and read at once"));
            }
            if running.values().any(|r| r.sources.contains(&from)) {
                return self.fail(at, 5, format!("{from} is overwritten while it is copied"));
            }
            match state_of[from.index()] {
                Some(k) => state_of[to.index()] = Some(k),
                None if def.props().waits => {}
                None if own[from.index()] => own[to.index()] = true,
                None => return self.fail(at, 3, format!("{from} is no state's value")),
            }
            dead[from.index()] = true;
        }
        Ok(())
    }

    /// Copies, states and outputs at the program's end.
    fn leaves(&self, end: usize, values: &Values) -> Result<(), Violation> {
        let Values { defined, dead, state_of, pending, .. } = values;
        if let Some(v) = pending.iter().position(|copied| *copied) {
            return self.fail(end, 5, format!("the copy {} is never done", ValueId(v as u32)));
        }
        for (k, s) in self.p.states.iter().enumerate() {
            if dead[s.leaves.index()] || state_of[s.leaves.index()] != Some(k) {
                return self.fail(end, 4, format!("{} is not the state's last value", s.leaves));
            }
        }
        for o in &self.p.outputs {
            if !defined[o.value.index()] || dead[o.value.index()] {
                return self.fail(end, 6, format!("output {} is undefined", o.name));
            }
        }
        Ok(())
    }

    fn names(&self, end: usize) -> Result<(), Violation> {
        let p = self.p;
        let mut seen = HashSet::new();
        let inputs = p.inputs.iter().map(|i| &i.name);
        for name in inputs.chain(p.outputs.iter().map(|o| &o.name)) {
            if !seen.insert(name) {
                return self.fail(end, 6, format!("input or output {name} is named twice"));
            }
        }
        let end_of = |s: &StateUse| s.first + p.ty(s.enters).shape.elements();
        let mut taken: Vec<_> = p.states.iter().map(|s| (s.state, s.first, end_of(s))).collect();
        taken.sort_unstable();
        match taken.windows(2).find(|w| w[0].0 == w[1].0 && w[1].1 < w[0].2.max(w[0].1 + 1)) {
            Some(w) => self.fail(end, 6, format!("state {} is named twice", w[0].0.0)),
            None => Ok(()),
        }
    }
}
