//! LoRA: chosen products get a trained addition of low rank; everything else is frozen (Hu et al., arXiv 2106.09685).
//!
//! Before: `%y = linear(%x, %w, %bias) @ to_q.linear`. After, with `A [r, In]` and `B [Out, r]`:
//! ```text
//! %y0 = linear(%x, %w, %bias)  @ to_q.linear
//! %d  = dropout(%x)            @ to_q.linear.lora.dropout   (in training, when it is asked for)
//! %h  = linear(%d, %A)         @ to_q.linear.lora.linear
//! %hs = scale(%h, s)           @ to_q.linear.lora.scale     (in the narrow middle: r columns)
//! %z  = linear(%hs, %B)        @ to_q.linear.lora.linear~2
//! %y  = binary(%y0, %z) {add}  @ to_q.linear.lora.binary
//! ```
//! s = alpha / r, or alpha / sqrt(r) in rank-stabilised LoRA (Kalajdzievski, arXiv 2312.03732). It is part of the model's
//! mathematics as the scale of attention is: a constant. A and B are named as Hugging Face's PEFT names them after the
//! module. As `w` is frozen, autodiff never forms its gradient `[Out, In]`: only `[r, In]` and `[Out, r]`. With B = 0 the
//! program computes what it did before, bit for bit.
//!
//! Runs before autodiff, on every forward program of a session; programs share the adapters by name.

use super::freeze::{keep_training, parameters, require_match};
use super::pattern::Pattern;
use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::elementwise::BinaryKind;
use ambitus_ir::{
    Builder, DType, Instr, Op, Program, Session, StateDecl, StateId, StateKind, TensorType, ValueId,
};
use std::collections::{HashMap, HashSet};

/// What follows the module in the name of A, `[r, In]`.
pub const A: &str = ".lora_A.weight";
/// What follows the module in the name of B, `[Out, r]`.
pub const B: &str = ".lora_B.weight";
/// What follows the module in the name of the adapted weight, `[Out, In]` or, of y = x w, `[In, Out]`.
const WEIGHT: &str = ".weight";

/// Which products are adapted, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// r: inner width of the addition.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Probability of dropping an element of the addition's input in training.
    pub dropout: f32,
    /// rsLoRA: divide by sqrt(r) instead of r.
    pub rank_stabilised: bool,
    /// Weights of linear layers that are adapted.
    pub targets: Vec<Pattern>,
    /// Parameters that are trained as they are besides the adapters.
    pub also_train: Vec<Pattern>,
}

impl Lora {
    /// Returns s: alpha / r or alpha / sqrt(r).
    pub fn scale(&self) -> f64 {
        let r = self.rank as f64;
        self.alpha / if self.rank_stabilised { r.sqrt() } else { r }
    }
}

/// Returns the module of an adapter's parameter: its name without [`A`] or [`B`].
pub fn adapted_module(parameter: &str) -> Option<&str> {
    parameter.strip_suffix(A).or_else(|| parameter.strip_suffix(B))
}

/// The pass.
///
/// Dropout draws from the inputs `keys` i32 `[S, 2]` and `segments` i32 `[S+1]` as the models' own does, and declares `keys`
/// where a program lacks it. A value of S rows has one row per clip, any other one row per position.
///
/// It refuses patterns that match nothing or contradict each other, a rank above a matrix' smaller side, and a program without
/// `segments` to draw dropout by.
pub struct Adapt<'a> {
    /// What is adapted, and how.
    pub lora: &'a Lora,
    /// With dropout.
    pub training: bool,
}

impl Pass for Adapt<'_> {
    fn name(&self) -> &'static str {
        "lora"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Changed
    }

    fn run(&self, session: &mut Session, p: Program) -> Result<Program, CompileError> {
        adapt(session, p, self.lora, self.training)
    }
}

fn adapt(
    session: &mut Session,
    mut p: Program,
    lora: &Lora,
    training: bool,
) -> Result<Program, CompileError> {
    let adapters = declare(session, &p, lora, training)?;
    freeze_the_rest(session, &p, lora, &adapters)?;
    let drops = training && lora.dropout > 0.0;
    if drops && p.input("segments").is_none() {
        return Err(CompileError::NoSegments(p.name));
    }
    let work = std::mem::take(&mut p.instrs);
    let mut b = Builder::resume(session, p, ambitus_ir::Phase::Forward);
    let mut with: HashMap<ValueId, ValueId> = HashMap::new();
    for (mut instr, adapter) in work.into_iter().zip(adapters) {
        for v in &mut instr.inputs {
            *v = with.get(v).copied().unwrap_or(*v);
        }
        let Some(adapter) = adapter else {
            b.append(instr);
            continue;
        };
        let (x, y, origin) = (instr.inputs[0], instr.outputs[0], instr.origin.clone());
        b.append(instr);
        let sum = b.derived(&origin, origin.phase, |b| {
            b.scope("lora", |b| {
                let x = if drops { dropped(b, x, lora.dropout) } else { x };
                let [a, up] = adapter.map(|id| b.state(id));
                let h = b.linear(x, a, None);
                let s = b.fill(TensorType::f32(&[1]), lora.scale() as f32);
                let h = b.scale(h, s);
                let z = b.linear(h, up, None);
                b.binary(BinaryKind::Add, y, z)
            })
        });
        with.insert(y, sum);
    }
    let mut p = b.finish();
    for o in &mut p.outputs {
        o.value = with.get(&o.value).copied().unwrap_or(o.value);
    }
    Ok(p)
}

fn dropped(b: &mut Builder<'_>, x: ValueId, p: f32) -> ValueId {
    let segments = b.program().input("segments").expect("checked before the rewrite");
    let clips = b.dim(segments, 0) - 1;
    let keys = b.input("keys", TensorType::i32(&[clips, 2]));
    let segments = if b.dim(x, 0) == clips { b.iota(DType::I32, &[clips + 1], 0) } else { segments };
    b.dropout(x, p, keys, segments)
}

/// Returns A and B of every instruction that is adapted; declares those that are new. A program that trains has layers for every
/// pattern; others may be of a part of the model.
fn declare(
    session: &mut Session,
    p: &Program,
    lora: &Lora,
    training: bool,
) -> Result<Vec<Option<[StateId; 2]>>, CompileError> {
    let weights: HashMap<ValueId, StateId> = p
        .states
        .iter()
        .filter(|u| session.states[u.state.index()].kind == StateKind::Parameter)
        .map(|u| (u.enters, u.state))
        .collect();
    // The weight's name for every instruction that is a linear layer of the model.
    let layers: Vec<Option<String>> = p.instrs.iter().map(|i| layer(session, &weights, i)).collect();
    for pattern in lora.targets.iter().filter(|_| training) {
        require_match(pattern, layers.iter().flatten().map(String::as_str))?;
    }
    let mut adapters = vec![None; p.instrs.len()];
    for ((instr, weight), adapter) in p.instrs.iter().zip(&layers).zip(&mut adapters) {
        let Some(weight) = weight.as_deref().filter(|name| lora.targets.iter().any(|t| t.matches(name)))
        else {
            continue;
        };
        let ty = p.ty(instr.inputs[1]);
        let (out, inner) = match instr.op {
            Op::LinearIn(_) => (ty.shape[1], ty.shape[0]),
            _ => (ty.shape[0], ty.shape[1]),
        };
        if lora.rank == 0 || lora.rank > out.min(inner) {
            return Err(CompileError::Rank { rank: lora.rank, weight: weight.to_owned(), shape: ty.shape });
        }
        let module = weight.strip_suffix(WEIGHT).unwrap_or(weight);
        let mut parameter = |end: &str, dims: &[usize]| {
            let name = format!("{module}{end}");
            session.state(&name).unwrap_or_else(|| {
                let ty = ty.with_shape(dims);
                let (kind, home) = (StateKind::Parameter, Space::Device);
                session.declare(StateDecl { name, ty, kind, trainable: true, home })
            })
        };
        *adapter = Some([parameter(A, &[lora.rank, inner]), parameter(B, &[out, lora.rank])]);
    }
    Ok(adapters)
}

/// Returns the weight's name of an instruction y = x w^T or y = x w with a parameter w.
fn layer(session: &Session, weights: &HashMap<ValueId, StateId>, instr: &Instr) -> Option<String> {
    let (Op::Linear(_) | Op::LinearIn(_)) = instr.op else { return None };
    let id = weights.get(&instr.inputs[1])?;
    Some(session.states[id.index()].name.clone())
}

/// Leaves trainable what adapts and what `also_train` names.
fn freeze_the_rest(
    session: &mut Session,
    p: &Program,
    lora: &Lora,
    adapters: &[Option<[StateId; 2]>],
) -> Result<(), CompileError> {
    let base = || parameters(session).map(|s| s.name.as_str()).filter(|n| adapted_module(n).is_none());
    for pattern in &lora.also_train {
        require_match(pattern, base())?;
    }
    let adapted: HashSet<ValueId> =
        p.instrs.iter().zip(adapters).filter(|(_, a)| a.is_some()).map(|(i, _)| i.inputs[1]).collect();
    for used in p.states.iter().filter(|u| adapted.contains(&u.enters)) {
        let name = &session.states[used.state.index()].name;
        if let Some(pattern) = lora.also_train.iter().find(|pattern| pattern.matches(name)) {
            return Err(CompileError::Both { pattern: pattern.to_string(), weight: name.clone() });
        }
    }
    let also = |s: &StateDecl| lora.also_train.iter().any(|pattern| pattern.matches(&s.name));
    keep_training(session, |s| adapted_module(&s.name).is_some() || also(s))
}
