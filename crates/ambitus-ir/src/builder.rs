//! The only way to make instructions: infers shapes, names provenance.

use crate::ops::Op;
use crate::ops::copy::Space;
use crate::program::{
    Input, Instr, Origin, Output, Phase, Program, Session, StateDecl, StateId, StateKind, StateUse, ValueId,
};
use crate::tensor::TensorType;
use std::collections::HashMap;
use std::sync::Arc;

/// Appends instructions to one program of a session.
///
/// Model code reads like eager code: `let y = b.linear(x, w, Some(bias));`. Every op family adds its own methods, in
/// the op's file.
///
/// # Panics
/// Methods panic when shapes do not fit: that is a bug of the caller, as configurations are checked before.
pub struct Builder<'s> {
    session: &'s mut Session,
    program: Program,
    scope: Vec<Arc<str>>,
    phase: Phase,
    names: HashMap<Arc<str>, u32>,
    /// Places in the program's states, by state.
    uses: HashMap<StateId, usize>,
    /// What every instruction that is pushed carries, in place of a path of its own.
    origin: Option<Origin>,
}

impl<'s> Builder<'s> {
    /// Starts an empty program.
    pub fn new(session: &'s mut Session, name: &str) -> Builder<'s> {
        let program = Program { name: name.to_owned(), ..Program::default() };
        Builder::resume(session, program, Phase::Forward)
    }

    /// Continues a program; new instructions get `phase`.
    pub fn resume(session: &'s mut Session, program: Program, phase: Phase) -> Builder<'s> {
        let mut names = HashMap::new();
        for instr in &program.instrs {
            *names.entry(instr.origin.path.clone()).or_insert(0) += 1;
        }
        let uses = program.states.iter().enumerate().map(|(k, u)| (u.state, k)).collect();
        Builder { session, program, scope: Vec::new(), phase, names, uses, origin: None }
    }

    /// Ends the program.
    pub fn finish(self) -> Program {
        self.program
    }

    /// Returns the program so far.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the session being built.
    pub fn session(&self) -> &Session {
        self.session
    }

    /// Returns the type of a value.
    pub fn ty(&self, v: ValueId) -> TensorType {
        self.program.ty(v)
    }

    /// Returns the length of a value's axis.
    pub fn dim(&self, v: ValueId, axis: usize) -> usize {
        self.ty(v).shape[axis]
    }

    /// Runs `body` with `name` appended to the provenance path.
    pub fn scope<R>(&mut self, name: &str, body: impl FnOnce(&mut Self) -> R) -> R {
        self.scope.push(name.into());
        let out = body(self);
        self.scope.pop();
        out
    }

    /// Runs `body` in the scope `name.index` and records it as one of the model's repeated blocks.
    pub fn block<R>(&mut self, name: &str, index: usize, body: impl FnOnce(&mut Self) -> R) -> R {
        let name = format!("{name}.{index}");
        let prefix = self.path(&name);
        if !self.program.blocks.contains(&prefix) {
            self.program.blocks.push(prefix);
        }
        self.scope(&name, body)
    }

    /// Returns the provenance path of the current scope followed by `name`.
    pub fn path(&self, name: &str) -> String {
        let scopes = self.scope.iter().map(|s| s.len() + 1).sum::<usize>();
        let mut path = String::with_capacity(scopes + name.len());
        for scope in &self.scope {
            path.push_str(scope);
            path.push('.');
        }
        path + name
    }

    /// Returns a host input.
    pub fn input(&mut self, name: &str, ty: TensorType) -> ValueId {
        if let Some(v) = self.program.input(name) {
            return v;
        }
        let value = self.program.new_value(ty);
        self.program.inputs.push(Input { name: name.to_owned(), value });
        value
    }

    /// A host output.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.program.outputs.push(Output { name: name.to_owned(), value });
    }

    /// Returns a trainable parameter named by the current scope and `name`; declared on first use, shared after.
    pub fn parameter(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let name = self.path(name);
        let id = self.session.state(&name).unwrap_or_else(|| {
            let ty = TensorType::f32(dims);
            self.session.declare(StateDecl {
                name: name.clone(),
                ty,
                kind: StateKind::Parameter,
                trainable: true,
                home: Space::Device,
            })
        });
        let have = self.session.states[id.index()].ty;
        assert_eq!(&*have.shape, dims, "parameter {name} is declared twice with two shapes");
        self.state(id)
    }

    /// Returns a parameter that training leaves alone.
    pub fn frozen_parameter(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let value = self.parameter(name, dims);
        let used = self.program.states.iter().rev().find(|u| u.leaves == value);
        let id = used.expect("a parameter is a state in use").state;
        self.session.states[id.index()].trainable = false;
        value
    }

    /// Returns the current value of a state in this program.
    pub fn state(&mut self, id: StateId) -> ValueId {
        if let Some(&k) = self.uses.get(&id) {
            return self.program.states[k].leaves;
        }
        let value = self.program.new_value(self.session.states[id.index()].ty);
        self.uses.insert(id, self.program.states.len());
        self.program.states.push(StateUse { state: id, first: 0, enters: value, leaves: value });
        value
    }

    /// Declares a state and brings it into the program.
    pub fn declare(&mut self, name: &str, ty: TensorType, kind: StateKind) -> (StateId, ValueId) {
        let id = self.session.state(name).unwrap_or_else(|| {
            let (trainable, home) = (false, Space::Device);
            let decl = StateDecl { name: name.to_owned(), ty, kind, trainable, home };
            self.session.declare(decl)
        });
        (id, self.state(id))
    }

    /// Gives a state its new value, made by an op that donates the old one.
    ///
    /// # Panics
    /// If the state was not brought in before.
    pub fn give_back(&mut self, id: StateId, value: ValueId) {
        let used = self.uses.get(&id).expect("a state is given back only after it was taken in");
        self.program.states[*used].leaves = value;
    }

    /// Appends an instruction and returns its results.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Vec<ValueId> {
        let op = op.into();
        if let Some(origin) = self.origin.clone() {
            return self.push_at(op, inputs, origin);
        }
        let path: Arc<str> = self.path(op.name()).into();
        let count = self.names.entry(path.clone()).or_insert(0);
        *count += 1;
        let path = if *count == 1 { path } else { format!("{path}~{count}").into() };
        let origin = Origin { path, phase: self.phase };
        self.push_at(op, inputs, origin)
    }

    /// Appends an instruction with one result.
    pub fn push1(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        let out = self.push(op, inputs);
        assert_eq!(out.len(), 1);
        out[0]
    }

    /// Appends an instruction with a given provenance.
    pub fn push_at(&mut self, op: Op, inputs: &[ValueId], origin: Origin) -> Vec<ValueId> {
        let types: Vec<TensorType> = inputs.iter().map(|v| self.ty(*v)).collect();
        let made = op
            .def()
            .infer(&types)
            .unwrap_or_else(|why| panic!("{} at {}: {why}; operands {types:?}", op.name(), origin.path));
        let outputs: Vec<ValueId> = made.into_iter().map(|t| self.program.new_value(t)).collect();
        self.program.instrs.push(Instr { op, inputs: inputs.to_vec(), outputs: outputs.clone(), origin });
        outputs
    }

    /// Appends an instruction as it is; its values exist already.
    pub fn append(&mut self, instr: Instr) {
        self.program.instrs.push(instr);
    }

    /// Runs `body` so that every instruction it pushes carries `origin`: of one instruction done by several.
    pub fn at<R>(&mut self, origin: &Origin, body: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.origin.replace(origin.clone());
        let out = body(self);
        self.origin = before;
        out
    }

    /// Runs `body` so that every instruction it pushes carries the path of `origin` and the phase `phase`.
    pub fn derived<R>(&mut self, origin: &Origin, phase: Phase, body: impl FnOnce(&mut Self) -> R) -> R {
        let scope = std::mem::replace(&mut self.scope, vec![origin.path.clone()]);
        let before = std::mem::replace(&mut self.phase, phase);
        let out = body(self);
        self.scope = scope;
        self.phase = before;
        out
    }
}
