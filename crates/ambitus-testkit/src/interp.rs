//! The slow reference interpreter: what a program means, with nothing planned, fused or fast.

mod alignment;
mod collective;
mod core;
mod narrow;
mod spline;
mod world;

pub use world::World;

use crate::tensor::Tensor;
use ambitus_ir::{Builder, Op, Program, Session, TensorType, ValueId};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use thiserror::Error;

/// Values by name.
pub type Tensors = HashMap<String, Tensor>;

/// Why a program cannot be run.
#[derive(Debug, Error)]
pub enum InterpError {
    /// An input or a state was not given.
    #[error("{what} `{name}` of program `{program}` is not given")]
    Missing {
        /// `input` or `state`
        what: &'static str,
        /// its name
        name: String,
        /// the program
        program: String,
    },
    /// An input or a state has another type.
    #[error("{what} `{name}` is {want}, not {got}")]
    Type {
        /// `input` or `state`
        what: &'static str,
        /// its name
        name: String,
        /// declared type
        want: String,
        /// given type
        got: String,
    },
    /// An instruction reads a value that is not there.
    #[error(
        "{at} reads {value}, which is not defined yet or was overwritten by an op that it was donated to"
    )]
    Gone {
        /// path of the instruction, or what else reads
        at: String,
        /// the value
        value: ValueId,
    },
    /// An instruction's operands or results do not fit its op.
    #[error("{at}: {why}")]
    Op {
        /// path of the instruction
        at: String,
        /// what does not fit
        why: String,
    },
}

/// How results are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Floats are f64 throughout: the oracle.
    Exact,
    /// Every result of a core op is rounded to its element type: what a plain f32 executor computes.
    ToType,
    /// Every result of an instruction is rounded to its element type, and nothing inside a fused op: what kernels with wide
    /// registers compute. An op and its decomposition differ.
    Results,
}

/// Runs programs. Core ops are written out in `interp/core.rs`; a fused op is run as its decomposition.
pub struct Interp {
    rounding: Rounding,
    fused: HashMap<String, Rc<Program>>,
    /// The ranks that programs exchange values with, and which of them this is.
    world: Option<(Arc<World>, usize)>,
}

impl Interp {
    /// Returns an interpreter that rounds as given.
    pub fn new(rounding: Rounding) -> Interp {
        Interp { rounding, fused: HashMap::new(), world: None }
    }

    /// Returns an interpreter that is one of several ranks, each on its own thread.
    pub fn of_rank(rounding: Rounding, world: Arc<World>, rank: usize) -> Interp {
        Interp { world: Some((world, rank)), ..Interp::new(rounding) }
    }

    /// Runs a program of a session: reads every input by name, takes in and gives back its states, returns the outputs
    /// by name. A donated operand is gone after the instruction it was donated to.
    ///
    /// # Errors
    /// When an input or state is missing or of another type, or when the program is malformed.
    pub fn run(
        &mut self,
        session: &Session,
        program: &Program,
        inputs: &Tensors,
        states: &mut Tensors,
    ) -> Result<Tensors, InterpError> {
        let mut values: Vec<Option<Rc<Tensor>>> = vec![None; program.types.len()];
        for i in &program.inputs {
            let given = given("input", &i.name, program, inputs, program.ty(i.value))?;
            values[i.value.index()] = Some(Rc::new(given.clone()));
        }
        for s in &program.states {
            let decl = &session.states[s.state.index()];
            let given = given("state", &decl.name, program, states, decl.ty)?;
            let ty = program.ty(s.enters);
            let part = given.data[s.first..s.first + ty.shape.elements()].to_vec();
            values[s.enters.index()] = Some(Rc::new(Tensor::new(ty, part)));
        }
        self.straight(program, &mut values)?;

        let mut outputs = Tensors::new();
        for o in &program.outputs {
            let at = || format!("output `{}`", o.name);
            outputs.insert(o.name.clone(), (*read(&values, o.value, at)?).clone());
        }
        for s in &program.states {
            let name = &session.states[s.state.index()].name;
            let value = read(&values, s.leaves, || format!("state `{name}`"))?;
            if let Some(whole) = states.get_mut(name) {
                whole.data[s.first..s.first + value.data.len()].copy_from_slice(&value.data);
            }
        }
        Ok(outputs)
    }

    /// Runs one op on values.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn op(&mut self, op: &Op, x: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
        let x: Vec<Rc<Tensor>> = x.iter().cloned().map(Rc::new).collect();
        let y = self.apply(op, &x, || op.name().to_owned())?;
        Ok(y.into_iter().map(|t| (*t).clone()).collect())
    }

    /// The instructions in order; values are dropped after their last use.
    fn straight(&mut self, program: &Program, values: &mut [Option<Rc<Tensor>>]) -> Result<(), InterpError> {
        let last = last_uses(program);
        for (at, instr) in program.instrs.iter().enumerate() {
            let path = || instr.origin.path.to_string();
            let x = instr.inputs.iter().map(|v| read(values, *v, path));
            let x = x.collect::<Result<Vec<_>, _>>()?;
            let y = self.apply(&instr.op, &x, path)?;
            for (k, _) in instr.op.def().donates() {
                values[instr.inputs[k].index()] = None;
            }
            for v in &instr.inputs {
                if last[v.index()] == at {
                    values[v.index()] = None;
                }
            }
            let declared: Vec<TensorType> = instr.outputs.iter().map(|v| program.ty(*v)).collect();
            let made: Vec<TensorType> = y.iter().map(|t| t.ty).collect();
            if made != declared {
                let why = format!("results are declared {declared:?} but are {made:?}");
                return Err(InterpError::Op { at: path(), why });
            }
            for (v, t) in instr.outputs.iter().zip(y) {
                values[v.index()] = (last[v.index()] > at).then_some(t);
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        op: &Op,
        x: &[Rc<Tensor>],
        at: impl Fn() -> String,
    ) -> Result<Vec<Rc<Tensor>>, InterpError> {
        let types: Vec<TensorType> = x.iter().map(|t| t.ty).collect();
        let wrong = |why: String| InterpError::Op { at: at(), why };
        let made = op.def().infer(&types).map_err(wrong)?;
        let exchanged = self.world.as_ref().and_then(|(world, rank)| world.run(*rank, op, x, &made));
        if let Some(results) = exchanged.or_else(|| core::run(op, x, &made)) {
            let results = results.into_iter().zip(made).map(|(data, ty)| {
                let mut t = Tensor::new(ty, data);
                if self.rounding != Rounding::Exact {
                    t.round();
                }
                Rc::new(t)
            });
            return Ok(results.collect());
        }
        let key = format!("{op:?} {types:?}");
        let program = match self.fused.get(&key) {
            Some(program) => Rc::clone(program),
            None => {
                let program = decomposition(op, &types);
                let program = Rc::new(program.ok_or_else(|| wrong("does not decompose".into()))?);
                self.fused.insert(key, Rc::clone(&program));
                program
            }
        };
        let mut values = vec![None; program.types.len()];
        for (i, t) in program.inputs.iter().zip(x) {
            values[i.value.index()] = Some(Rc::clone(t));
        }
        if self.rounding != Rounding::Results {
            self.straight(&program, &mut values)?;
            return program.outputs.iter().map(|o| read(&values, o.value, &at)).collect();
        }
        self.rounding = Rounding::Exact;
        let done = self.straight(&program, &mut values);
        self.rounding = Rounding::Results;
        done?;
        let rounded = program.outputs.iter().map(|o| {
            let mut t = (*read(&values, o.value, &at)?).clone();
            t.round();
            Ok(Rc::new(t))
        });
        rounded.collect()
    }
}

/// Returns the decomposition of an op as a program: inputs are the operands, outputs the results. `None` for core ops.
pub fn decomposition(op: &Op, types: &[TensorType]) -> Option<Program> {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, op.name());
    let x: Vec<ValueId> = types.iter().enumerate().map(|(i, t)| b.input(&format!("x{i}"), *t)).collect();
    let y = op.def().decompose(&mut b, &x)?;
    for (i, v) in y.iter().enumerate() {
        b.output(&format!("y{i}"), *v);
    }
    Some(b.finish())
}

fn given<'a>(
    what: &'static str,
    name: &str,
    program: &Program,
    from: &'a Tensors,
    want: TensorType,
) -> Result<&'a Tensor, InterpError> {
    let missing = || InterpError::Missing { what, name: name.to_owned(), program: program.name.clone() };
    let t = from.get(name).ok_or_else(missing)?;
    if t.ty != want {
        let (want, got) = (want.to_string(), t.ty.to_string());
        return Err(InterpError::Type { what, name: name.to_owned(), want, got });
    }
    Ok(t)
}

fn read(
    values: &[Option<Rc<Tensor>>],
    value: ValueId,
    at: impl Fn() -> String,
) -> Result<Rc<Tensor>, InterpError> {
    let found = values.get(value.index()).cloned().flatten();
    found.ok_or_else(|| InterpError::Gone { at: at(), value })
}

/// For every value the last instruction that reads it; past the end for outputs and states.
fn last_uses(program: &Program) -> Vec<usize> {
    let mut last = vec![0; program.types.len()];
    for (at, instr) in program.instrs.iter().enumerate() {
        for v in &instr.inputs {
            last[v.index()] = at;
        }
    }
    let kept = program.outputs.iter().map(|o| o.value);
    for v in kept.chain(program.states.iter().map(|s| s.leaves)) {
        last[v.index()] = program.instrs.len();
    }
    last
}
