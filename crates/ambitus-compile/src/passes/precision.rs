//! Precision: forward programs compute in 16 bits where that loses little; parameters, gradients of parameters and sums stay
//! f32 ("Mixed precision training", Micikevicius et al., arXiv 1710.03740).
//!
//! Before: `%3 = linear(%0, %w); %4 = layer_norm(%3, %g, %b); %5 = linear(%4, %u); %6 = masked_mse(%5, ...)`. After:
//! ```text
//! %7 = cast(%0) {bf16}; %8 = cast(%w) {bf16}; %9 = linear(%7, %8)        bf16
//! %10 = layer_norm(%9, %g, %b)                                           bf16, its vectors f32
//! %11 = cast(%u) {bf16}; %12 = linear(%10, %11)                          bf16
//! %13 = cast(%12) {f32}; %6 = masked_mse(%13, ...)                       f32
//! ```
//! Products (attention, convolutions) run in 16 bits; what is bound by memory follows its operands, and of mixed operands the
//! narrower. Which operands may be narrow is each op's own word ([`OpDef::narrows`](ambitus_ir::OpDef::narrows)). What only
//! steers such ops from the side (modulation tables, gates, factors per row, and the products that make them) is per clip or
//! per channel: it stays f32, as it would save nothing. How this compares with PyTorch's autocast is in
//! `docs/decisions/0008-precision.md`.
//!
//! Every value is cast once. Casts of weights are bound by memory and made of states alone, so the policy makes them again in
//! backward: none is kept. Inputs, states and outputs keep their types. Runs after `choose` and before autodiff, on every
//! forward program of a session.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::{
    Builder, DType, Instr, Origin, Phase, Program, Session, StateDecl, StateKind, TensorType, ValueId,
};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Which numbers a model computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// fp32 throughout.
    #[default]
    Fp32,
    /// fp32 throughout, but that matrix products read their operands as TF32 (10 bits of fraction). No pass makes it: it is how
    /// a target multiplies.
    Tf32Mixed,
    /// Activations in bfloat16, fp32 parameters.
    Bf16Mixed,
    /// Activations in half precision, fp32 parameters, a dynamic loss scale.
    Fp16Mixed,
    /// Activations and matrices of parameters in bfloat16, without an fp32 copy ([`super::pure`]).
    Bf16Pure,
}

impl Precision {
    /// Each of them.
    pub const ALL: [Precision; 5] = [
        Precision::Fp32,
        Precision::Tf32Mixed,
        Precision::Bf16Mixed,
        Precision::Fp16Mixed,
        Precision::Bf16Pure,
    ];

    /// Returns the type of activations, if it has 16 bits.
    pub fn narrow(self) -> Option<DType> {
        match self {
            Precision::Fp32 | Precision::Tf32Mixed => None,
            Precision::Bf16Mixed | Precision::Bf16Pure => Some(DType::BF16),
            Precision::Fp16Mixed => Some(DType::F16),
        }
    }

    /// Returns whether gradients in this type's range need a loss scale.
    pub fn scales_loss(self) -> bool {
        self == Precision::Fp16Mixed
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        let found = Precision::ALL.into_iter().find(|p| p.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is not fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure"))
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Precision::Fp32 => "fp32",
            Precision::Tf32Mixed => "tf32-mixed",
            Precision::Bf16Mixed => "bf16-mixed",
            Precision::Fp16Mixed => "fp16-mixed",
            Precision::Bf16Pure => "bf16-pure",
        })
    }
}

/// Name of the state f32 `[1]` that the loss is multiplied by before backward. Where a session declares it, backward begins
/// from it and [`optimizer::update`](crate::optimizer::update) divides by it and adjusts it.
pub const LOSS_SCALE: &str = "loss_scale";
/// Name of the state f32 `[1]` that counts updates in a row without overflow since the scale last changed.
pub const GOOD_STEPS: &str = "good_steps";
/// The loss scale of a fresh run (as `torch.amp.GradScaler`).
pub const INITIAL_SCALE: f32 = 65536.0;

/// Declares the loss scale and its counter.
pub fn declare_loss_scale(session: &mut Session) {
    for name in [LOSS_SCALE, GOOD_STEPS] {
        if session.state(name).is_none() {
            let (name, ty) = (name.to_owned(), TensorType::f32(&[1]));
            session.declare(StateDecl {
                name,
                ty,
                kind: StateKind::Counter,
                trainable: false,
                home: Space::Device,
            });
        }
    }
}

/// The pass.
pub struct Mixed {
    /// The 16-bit type.
    pub dtype: DType,
}

impl Pass for Mixed {
    fn name(&self) -> &'static str {
        "precision"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Changed
    }

    /// Declares the loss scale, if gradients would leave the type's range without it.
    fn declare(&self, session: &mut Session) {
        if self.dtype == DType::F16 {
            declare_loss_scale(session);
        }
    }

    fn run(&self, session: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        let aside = aside(&p);
        let before = p.types.clone();
        let work = std::mem::take(&mut p.instrs);
        let b = Builder::resume(session, p, Phase::Forward);
        let mut r = Rewrite { b, dtype: self.dtype, before, now: HashMap::new(), casts: HashMap::new() };
        for (instr, aside) in work.into_iter().zip(aside) {
            r.instr(instr, aside);
        }
        // A program gives out the types that it gave out before.
        for k in 0..r.b.program().outputs.len() {
            let v = r.b.program().outputs[k].value;
            let maker = r.b.program().instrs.iter().find(|i| i.outputs.contains(&r.current(v)));
            let Some(origin) = maker.map(|i| i.origin.clone()) else { continue };
            let whole = r.cast(v, r.before[v.index()].dtype, &origin);
            r.now.insert(v, whole);
        }
        let now = r.now;
        let mut p = r.b.finish();
        p.outputs.iter_mut().for_each(|o| o.value = now.get(&o.value).copied().unwrap_or(o.value));
        Ok(p)
    }
}

/// A program on its way to 16 bits. Values are named as they were before.
struct Rewrite<'s> {
    b: Builder<'s>,
    dtype: DType,
    /// Types before.
    before: Vec<TensorType>,
    /// What a value became, where its type changed.
    now: HashMap<ValueId, ValueId>,
    /// Casts by operand and type.
    casts: HashMap<(ValueId, DType), ValueId>,
}

impl Rewrite<'_> {
    fn current(&self, v: ValueId) -> ValueId {
        self.now.get(&v).copied().unwrap_or(v)
    }

    /// Returns a value in a type: itself, or its one cast.
    fn cast(&mut self, v: ValueId, to: DType, origin: &Origin) -> ValueId {
        let v = self.current(v);
        if self.b.ty(v).dtype == to {
            return v;
        }
        let made = self.casts.get(&(v, to)).copied();
        made.unwrap_or_else(|| {
            let w = self.b.derived(origin, origin.phase, |b| b.cast(v, to));
            self.casts.insert((v, to), w);
            w
        })
    }

    /// Appends an instruction in the precision that it gets. `aside`: it makes what steers others.
    fn instr(&mut self, mut instr: Instr, aside: bool) {
        let def = instr.op.def();
        let may: Vec<bool> =
            (0..instr.inputs.len()).map(|k| def.narrows(k) && self.is_float(&instr, k)).collect();
        let came = |k: usize| may[k] && self.b.ty(self.current(instr.inputs[k])).dtype == self.dtype;
        let narrow = !aside
            && may.contains(&true)
            && (!def.props().memory_bound || (0..may.len()).any(came))
            && def.donates().is_empty();
        let types = |narrow: bool| -> Vec<DType> {
            let of = |k: usize| match may[k] {
                true if narrow => self.dtype,
                true => DType::F32,
                false => self.before[instr.inputs[k].index()].dtype,
            };
            (0..may.len()).map(of).collect()
        };
        let fits = |types: &Vec<DType>| {
            let shapes = instr.inputs.iter().map(|v| self.before[v.index()].shape);
            let x: Vec<_> = shapes.zip(types).map(|(shape, d)| TensorType::new(*d, &shape)).collect();
            def.infer(&x).is_ok()
        };
        let types = Some(types(narrow)).filter(fits).unwrap_or_else(|| types(false));
        let origin = instr.origin.clone();
        for (v, to) in instr.inputs.iter_mut().zip(types) {
            *v = self.cast(*v, to, &origin);
        }
        let x: Vec<TensorType> = instr.inputs.iter().map(|v| self.b.ty(*v)).collect();
        let y: Vec<TensorType> = instr.outputs.iter().map(|v| self.before[v.index()]).collect();
        if instr.op.def().infer(&x).as_ref() == Ok(&y) {
            self.b.append(instr);
            return;
        }
        let made = self.b.push_at(instr.op, &instr.inputs, origin);
        self.now.extend(instr.outputs.into_iter().zip(made));
    }

    fn is_float(&self, instr: &Instr, k: usize) -> bool {
        self.before[instr.inputs[k].index()].dtype.is_float()
    }
}

/// Returns for every instruction whether its results are read only to steer others from the side, directly or through more
/// such.
fn aside(p: &Program) -> Vec<bool> {
    let mut read = vec![false; p.types.len()];
    // Read as what an op is about, or given out.
    let mut main = vec![false; p.types.len()];
    p.outputs.iter().for_each(|o| main[o.value.index()] = true);
    p.states.iter().for_each(|s| main[s.leaves.index()] = true);
    let mut aside = vec![false; p.instrs.len()];
    for (instr, aside) in p.instrs.iter().zip(&mut aside).rev() {
        let y = || instr.outputs.iter().map(|v| v.index());
        *aside = y().any(|v| read[v]) && !y().any(|v| main[v]);
        let def = instr.op.def();
        let narrows = |k: usize| def.narrows(k) && p.ty(instr.inputs[k]).dtype.is_float();
        let steered = (0..instr.inputs.len()).any(narrows);
        for (k, v) in instr.inputs.iter().enumerate() {
            read[v.index()] = true;
            main[v.index()] |= !(*aside || (steered && !narrows(k)));
        }
    }
    aside
}
