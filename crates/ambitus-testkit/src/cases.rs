//! One table of op cases, for every test that walks over ops: shapes, decompositions, gradients, executors.
//!
//! Shapes are odd on purpose: empty segments, rows of no segment, heads in groups, columns that are padded in memory,
//! accumulators that must not be read. Numbers are random, small and representable in their type.

mod alignment;
mod dense;
mod losses;
mod segmented;
mod spline;
mod updates;
mod windowed;

use crate::interp::{Interp, InterpError, Tensors};
use crate::tensor::{Rng, Tensor};
use ambitus_ir::ops::collective::{self, AllGatherStart, Group, Mesh, Part, Parts};
use ambitus_ir::ops::copy::{CopyStart, Space};
use ambitus_ir::{Builder, DType, Op, Program, Session, StateKind, TensorType, ValueId};

/// One operand of a case.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its value.
    pub tensor: Tensor,
    /// The op has a gradient for it, continuous around the value.
    pub differentiable: bool,
}

/// An op with operands.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique: the op's name and what is special.
    pub name: String,
    /// The op.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Operand>,
}

impl Case {
    /// Returns the values of the operands.
    pub fn values(&self) -> Vec<Tensor> {
        self.operands.iter().map(|o| o.tensor.clone()).collect()
    }

    /// Returns the types of the operands.
    pub fn types(&self) -> Vec<TensorType> {
        self.operands.iter().map(|o| o.tensor.ty).collect()
    }

    /// Returns the results, by the interpreter.
    ///
    /// # Errors
    /// When the operands do not fit the op.
    pub fn expected(&self, interp: &mut Interp) -> Result<Vec<Tensor>, InterpError> {
        interp.op(&self.op, &self.values())
    }

    /// Returns the case with its float operands of more than one element in an element type: all that the op takes so. `None`
    /// when it takes none.
    pub fn in_type(&self, dtype: DType) -> Option<Case> {
        self.variants_in(dtype).into_iter().next()
    }

    /// Returns the case with its float operands of more than one element in an element type, in every way in which programs mix
    /// types: all of them, or without accumulators, or only the matrices (tables of factors per row or channel stay in
    /// fp32), or what mixed precision makes so, or all but one. Those that the op takes.
    pub fn variants_in(&self, dtype: DType) -> Vec<Case> {
        if dtype == DType::F32 {
            return vec![self.clone()];
        }
        let wide = |t: &Tensor| t.ty.dtype == DType::F32 && t.data.len() > 1;
        let all: Vec<usize> = (0..self.operands.len()).filter(|i| wide(&self.operands[*i].tensor)).collect();
        let fits = |chosen: &[usize]| {
            let mut types = self.types();
            chosen.iter().for_each(|i| types[*i] = TensorType::new(dtype, &types[*i].shape));
            self.op.def().infer(&types).is_ok()
        };
        let among = |keep: &dyn Fn(usize) -> bool| all.iter().copied().filter(|i| keep(*i)).collect();
        let overwritten = |i: usize| self.op.def().donates().iter().any(|d| d.0 == i);
        let matrix = |i: usize| self.operands[i].tensor.ty.shape.len() > 1;
        let mut sets: Vec<Vec<usize>> = vec![
            all.clone(),
            among(&|i| !overwritten(i)),
            among(&matrix),
            among(&|i| matrix(i) && !overwritten(i)),
            among(&|i| self.op.def().narrows(i)),
        ];
        sets.extend(all.iter().map(|out| among(&|i| i != *out)));
        let mut seen: Vec<Vec<usize>> = Vec::new();
        sets.retain(|set| {
            let new = !set.is_empty() && !seen.contains(set) && fits(set);
            seen.push(set.clone());
            new
        });
        let narrowed = |(k, set): (usize, Vec<usize>)| {
            let mut narrow = self.clone();
            for i in set {
                let t = &mut narrow.operands[i].tensor;
                t.ty = TensorType::new(dtype, &t.ty.shape);
                t.round();
            }
            let part = if k == 0 { String::new() } else { format!(", mix {k}") };
            narrow.name = format!("{} in {}{part}", self.name, dtype.name());
            narrow
        };
        sets.into_iter().enumerate().map(narrowed).collect()
    }

    /// Returns the case on f32 operands of the same numbers: what a kernel of narrower types computes before it rounds.
    pub fn widened(&self) -> Case {
        let mut wide = self.clone();
        for o in &mut wide.operands {
            let ty = &mut o.tensor.ty;
            if ty.dtype.is_float() {
                *ty = TensorType::f32(&ty.shape);
            }
        }
        wide
    }

    /// Returns what result `name` of [`Case::program`] should be, of all results: `y{k}`, or the state `x{i}` that holds the
    /// result which overwrote operand i.
    ///
    /// # Panics
    /// For other names.
    pub fn result<'a>(&self, all: &'a [Tensor], name: &str) -> &'a Tensor {
        let number: usize = name[1..].parse().expect("a numbered name");
        let at = match &name[..1] {
            "y" => number,
            _ => {
                let overwrote = |k: &usize| self.overwritten(*k) == Some(number);
                (0..all.len()).find(overwrote).expect("an overwritten operand")
            }
        };
        &all[at]
    }

    /// Returns the operand that result `k` overwrites.
    pub fn overwritten(&self, k: usize) -> Option<usize> {
        if self.op.def().props().waits {
            return None;
        }
        self.op.def().donates().into_iter().find(|d| d.1 == k).map(|d| d.0)
    }

    /// Returns the case as a program, for executors. Operand i is the input `x{i}`, or the state `x{i}` where a result
    /// overwrites it; result k is that state, or else the output `y{k}`. A copy's end is preceded by its start and a
    /// start followed by its end; queue tokens are no outputs.
    pub fn program(&self) -> (Session, Program) {
        let mut session = Session::default();
        let mut b = Builder::new(&mut session, "case");
        let mut results: Vec<Option<usize>> = Vec::new();
        let types = self.types();
        let made = self.op.def().infer(&types).expect("cases fit their ops");
        for k in 0..made.len() {
            results.push(self.overwritten(k));
        }
        let mut ids = Vec::new();
        let mut x = Vec::new();
        for (i, ty) in types.into_iter().enumerate() {
            let name = format!("x{i}");
            if results.contains(&Some(i)) {
                let (id, v) = b.declare(&name, ty, StateKind::Optimizer);
                ids.push(Some(id));
                x.push(v);
            } else {
                ids.push(None);
                x.push(b.input(&name, ty));
            }
        }
        if let Op::CopyDone(op) = &self.op {
            let start = CopyStart { queue: op.queue, to: Space::Host };
            x.splice(1.., b.push(start, &x[..1]));
        }
        if let Op::CollectiveDone(op) = &self.op {
            // A start that makes the same: of the flat, the tensors one after another.
            let mut at = 0;
            let part = |v: &ValueId| {
                let shape = b.ty(*v).shape;
                at += shape.elements();
                Part { at: at - shape.elements(), shape }
            };
            let parts = Parts(x[1..=op.results].iter().map(part).collect());
            let (mesh, group) = (Mesh { ranks: op.members, shard: op.members }, Group::Shard);
            let start = AllGatherStart { queue: op.queue, mesh, group, parts };
            x.splice(1.., b.push(start, &x[..1]));
        }
        let mut y: Vec<ValueId> = b.push(self.op.clone(), &x);
        let def = self.op.def();
        if def.props().starts {
            let queue = def.queue().unwrap_or(0);
            y = match collective::ranks(&self.op) {
                Some(ranks) => b.collective_done(queue, ranks, &x, &y),
                None => vec![b.copy_done(x[0], (y[0], y[1]), queue)],
            };
        }
        for (k, v) in y.into_iter().enumerate() {
            match results[k].and_then(|i| ids[i]) {
                Some(id) => b.give_back(id, v),
                None => b.output(&format!("y{k}"), v),
            }
        }
        let program = b.finish();
        if matches!(self.op, Op::StoreStart(_)) {
            session.states.iter_mut().for_each(|s| s.home = Space::Host);
        }
        (session, program)
    }

    /// Returns what [`Case::program`] reads: (inputs, states).
    pub fn feeds(&self) -> (Tensors, Tensors) {
        let results = self.op.def().donates();
        let named = self.values().into_iter().enumerate();
        let (mut inputs, mut states) = (Tensors::new(), Tensors::new());
        for (i, t) in named {
            let state = results.iter().any(|(o, k)| *o == i && self.overwritten(*k).is_some());
            let to = if state { &mut states } else { &mut inputs };
            to.insert(format!("x{i}"), t);
        }
        (inputs, states)
    }
}

/// Cases being made.
struct Table {
    rng: Rng,
    cases: Vec<Case>,
}

impl Table {
    fn add(&mut self, what: &str, op: impl Into<Op>, operands: Vec<Operand>) {
        let op = op.into();
        let name = format!("{} {what}", op.name()).trim_end().to_owned();
        self.cases.push(Case { name, op, operands });
    }

    /// Returns a differentiable f32 operand in -1..1.
    fn x(&mut self, dims: &[usize]) -> Operand {
        self.within(dims, -1.0, 1.0)
    }

    /// Returns a differentiable f32 operand in low..high.
    fn within(&mut self, dims: &[usize], low: f64, high: f64) -> Operand {
        let tensor = self.rng.tensor(TensorType::f32(dims), low, high);
        Operand { tensor, differentiable: true }
    }

    /// Returns an f32 operand in -1..1 that is not differentiated.
    fn fixed(&mut self, dims: &[usize]) -> Operand {
        constant(self.x(dims).tensor)
    }
}

/// Returns an operand that is not differentiated.
fn constant(tensor: Tensor) -> Operand {
    Operand { tensor, differentiable: false }
}

/// i32 numbers.
fn ints(data: &[i32]) -> Operand {
    constant(Tensor::i32(data))
}

/// Returns the scalar `[1]`.
fn scalar(value: f32) -> Operand {
    constant(Tensor::scalar(value))
}

/// Returns an accumulator whose bytes must not be read.
fn poison(dims: &[usize]) -> Operand {
    constant(Tensor::full(TensorType::f32(dims), f64::NAN))
}

/// Returns an f32 operand of given numbers.
fn numbers(dims: &[usize], data: &[f32]) -> Operand {
    constant(Tensor::f32(dims, data))
}

/// Returns a float operand of another type.
fn typed(rng: &mut Rng, dtype: DType, dims: &[usize]) -> Operand {
    constant(rng.tensor(TensorType::new(dtype, dims), -3.0, 3.0))
}

/// Returns every case; at least one for each op of [`Op::NAMES`].
pub fn cases() -> Vec<Case> {
    let mut t = Table { rng: Rng::new(20_240_607), cases: Vec::new() };
    dense::elementwise(&mut t);
    dense::layout(&mut t);
    dense::products(&mut t);
    dense::activations(&mut t);
    dense::norms(&mut t);
    segmented::tables(&mut t);
    segmented::norms(&mut t);
    segmented::attention(&mut t);
    segmented::conv(&mut t);
    segmented::random(&mut t);
    losses::losses(&mut t);
    updates::updates(&mut t);
    dense::larger(&mut t);
    segmented::larger(&mut t);
    segmented::large_conv(&mut t);
    updates::ranks(&mut t);
    segmented::decoding(&mut t);
    segmented::recurrent(&mut t);
    dense::detached(&mut t);
    alignment::alignment(&mut t);
    dense::reversed(&mut t);
    spline::splines(&mut t);
    windowed::windowed(&mut t);
    t.cases
}
