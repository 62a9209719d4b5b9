//! The programs that end an update: gradient norm, clipping, AdamW or Lion, and the moving average.

use crate::passes::accumulate::GRAD;
use crate::passes::pattern::Pattern;
use crate::passes::precision::{GOOD_STEPS, LOSS_SCALE};
use crate::passes::pure;
use crate::passes::shard::{Flat, Layout};
use ambitus_ir::ops::collective::{AllGatherStart, GATHER, Group, Mesh, Part, Parts};
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::lion::{Lion, Lion8bit, LionBf16};
use ambitus_ir::ops::narrow::{self, AdamW8bit, AdamWBf16};
use ambitus_ir::ops::optim::{AdamW, Lerp, SumPartials, SumSquares};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{
    Builder, DType, Op, Origin, Phase, Program, Session, Shape, StateDecl, StateId, StateKind, TensorType,
    ValueId,
};

/// Name of the state that counts applied updates, f32 `[1]`.
pub const STEP: &str = "step";

/// Prefix of the state of the first moment, which of Lion is the only one.
pub const FIRST_MOMENT: &str = "exp_avg.";
/// Prefix of the scales of the first moment, where it is kept in 8 bits.
pub const FIRST_SCALES: &str = "exp_avg_scale.";
/// Prefix of the second moment's state.
pub const SECOND_MOMENT: &str = "exp_avg_sq.";
/// Prefix of the scales of the second moment, where it is kept in 8 bits.
pub const SECOND_SCALES: &str = "exp_avg_sq_scale.";
/// Input of what rounds stochastically, i32 `[2]`: the run's seed and the update's number. Of ranks that share flats, `[3]`: also
/// the shard that the rank holds.
pub const SEED: &str = "seed";

/// How moments are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// fp32: 8 bytes a parameter.
    #[default]
    Fp32,
    /// bf16, the second moment stochastically rounded: 4 bytes a parameter.
    Bf16,
    /// 8-bit with a scale for every 256 elements: 2 bytes and 1/32 a parameter. Vectors, and tensors of fewer than
    /// [`LEAST_8BIT`] elements, stay fp32: they are few bytes and their moments spread widest.
    EightBit,
}

/// Elements from which on a tensor's moments are kept in 8 bits, as bitsandbytes and torchao have it.
pub const LEAST_8BIT: usize = 4096;

/// How a gradient becomes a step, with its constants.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// By two moments.
    AdamW(AdamW),
    /// By one.
    Lion(Lion),
}

impl Rule {
    /// Returns the decoupled weight decay.
    pub fn weight_decay(&self) -> f64 {
        match self {
            Rule::AdamW(of) => of.weight_decay,
            Rule::Lion(of) => of.weight_decay,
        }
    }

    /// Returns β1 and β2.
    pub fn betas(&self) -> [f64; 2] {
        match self {
            Rule::AdamW(of) => [of.beta1, of.beta2],
            Rule::Lion(of) => [of.beta1, of.beta2],
        }
    }
}

/// What applies gradients: a rule, and how its moments are stored. Weights are updated in the type that they are declared in; those
/// of bf16 are rounded stochastically.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule. With Lion, moments are in fp32 or in 8 bits.
    pub rule: Rule,
    /// Parameters with β1 and β2 of their own, by pattern.
    pub own_betas: Vec<(Vec<Pattern>, [f64; 2])>,
    /// Parameters whose weight decay is 0. Each pattern matches one, trained or not.
    pub no_decay: Vec<Pattern>,
    /// Storage of the moments.
    pub states: States,
}

impl From<AdamW> for Optimizer {
    /// Returns an optimizer that decays every parameter, with moments in fp32.
    fn from(adamw: AdamW) -> Optimizer {
        let rule = Rule::AdamW(adamw);
        Optimizer { rule, own_betas: Vec::new(), no_decay: Vec::new(), states: States::Fp32 }
    }
}

impl Optimizer {
    /// Returns the number of elements below which matrices have moments of another type.
    pub fn few(&self) -> usize {
        if self.states == States::EightBit { LEAST_8BIT } else { 0 }
    }

    /// Returns the weight decay of a parameter.
    pub fn decay(&self, parameter: &str) -> f64 {
        if self.no_decay.iter().any(|p| p.matches(parameter)) { 0.0 } else { self.rule.weight_decay() }
    }

    /// Returns β1 and β2 of a parameter.
    pub fn betas(&self, parameter: &str) -> [f64; 2] {
        let own = self.own_betas.iter().find(|(patterns, _)| patterns.iter().any(|p| p.matches(parameter)));
        own.map_or(self.rule.betas(), |(_, betas)| *betas)
    }

    /// Returns whether moments of this parameter are kept in 8 bits. A flat's tensors are treated as each would be alone.
    fn in_8_bits(&self, decl: &StateDecl, flat: Option<&Flat>) -> bool {
        let small = flat.map_or(decl.ty.shape.elements() < self.few(), |flat| flat.small);
        self.states == States::EightBit && decl.ty.shape.len() > 1 && !small
    }

    /// Declares the moments of a parameter, with their scales if they are in 8 bits, in the order of an op's operands.
    fn moments(&self, b: &mut Builder<'_>, decl: &StateDecl, eight_bits: bool) -> Vec<(StateId, ValueId)> {
        let second = matches!(self.rule, Rule::AdamW(_));
        let prefixes = [(FIRST_MOMENT, FIRST_SCALES), (SECOND_MOMENT, SECOND_SCALES)];
        let mut moment = |prefix: &str, ty: TensorType| {
            b.declare(&format!("{prefix}{}", decl.name), ty, StateKind::Optimizer)
        };
        let mut all = Vec::new();
        for (moments, of_scales) in &prefixes[..1 + usize::from(second)] {
            if eight_bits {
                let (codes, scales) = narrow::eight_bit(decl.ty);
                all.extend([moment(moments, codes), moment(of_scales, scales)]);
            } else {
                let dtype = if self.states == States::Bf16 { DType::BF16 } else { DType::F32 };
                all.push(moment(moments, TensorType::new(dtype, &decl.ty.shape)));
            }
        }
        all
    }

    /// Builds the update of a parameter with gradient `grad`, whose old value nothing reads afterwards: declares its moments,
    /// and gives all back. `scalars`: lr, coef, t, apply of [`AdamW`]; Lion takes all but t. `layout`: of ranks that share flats.
    fn apply(
        &self,
        b: &mut Builder<'_>,
        param: StateId,
        grad: ValueId,
        scalars: [ValueId; 4],
        layout: Option<&Layout>,
    ) {
        let decl = b.session().states[param.index()].clone();
        let w = b.state(param);
        // Tensors of a flat decay alike.
        let flat = layout.and_then(|layout| layout.flat(&decl.name));
        let name = flat.map_or(&decl.name, |flat| &flat.tensors[0].name);
        let (weight_decay, [beta1, beta2]) = (self.decay(name), self.betas(name));
        let id = |b: &Builder<'_>, op: &str| Origin { path: b.path(op).into(), phase: Phase::Update }.op_id();
        let rounds = decl.ty.dtype == DType::BF16;
        let eight_bits = self.in_8_bits(&decl, flat);
        let moments = self.moments(b, &decl, eight_bits);
        let [lr, coef, t, apply] = scalars;
        let mut operands = vec![w, grad];
        operands.extend(moments.iter().map(|(_, value)| *value));
        let op = match &self.rule {
            Rule::AdamW(AdamW { eps, .. }) => {
                let (eps, part) = (*eps, None);
                operands.extend([lr, coef, t, apply]);
                if eight_bits {
                    let id = id(b, AdamW8bit::NAME);
                    Op::from(AdamW8bit { beta1, beta2, eps, weight_decay, id, part })
                } else if rounds || self.states == States::Bf16 {
                    let id = id(b, AdamWBf16::NAME);
                    Op::from(AdamWBf16 { beta1, beta2, eps, weight_decay, id, part })
                } else {
                    Op::from(AdamW { beta1, beta2, eps, weight_decay })
                }
            }
            Rule::Lion(_) => {
                let part = None;
                operands.extend([lr, coef, apply]);
                if eight_bits {
                    let id = id(b, Lion8bit::NAME);
                    Op::from(Lion8bit { beta1, beta2, weight_decay, id, part })
                } else if rounds {
                    let id = id(b, LionBf16::NAME);
                    Op::from(LionBf16 { beta1, beta2, weight_decay, id, part })
                } else {
                    Op::from(Lion { beta1, beta2, weight_decay })
                }
            }
        };
        if rounds || matches!(op, Op::AdamWBf16(_)) {
            operands.push(b.input(SEED, TensorType::i32(&[2])));
        }
        let new = b.push(op, &operands);
        b.give_back(param, new[0]);
        for ((state, _), value) in moments.iter().zip(&new[1..]) {
            b.give_back(*state, *value);
        }
    }
}

/// Returns the trainable parameters of the group with their gradient states, in declaration order.
fn trained(session: &Session, group: &dyn Fn(&StateDecl) -> bool) -> Vec<(StateId, StateId)> {
    let ids = (0..session.states.len() as u32).map(StateId);
    ids.filter_map(|id| {
        let s = &session.states[id.index()];
        let trained = s.kind == StateKind::Parameter && s.trainable && group(s);
        let grad = session.state(&format!("{GRAD}{}", s.name))?;
        trained.then_some((id, grad))
    })
    .collect()
}

fn start<'s>(session: &'s mut Session, name: &str) -> Builder<'s> {
    let program = Program { name: name.to_owned(), ..Program::default() };
    Builder::resume(session, program, Phase::Update)
}

/// Builds `update`: clips by global norm and applies the optimizer, all of it selected by `apply`, which is computed here: every
/// gradient is finite.
///
/// Inputs `lr` `[1]` and `clip` `[1]` (largest norm; infinite for none), and [`SEED`] where bf16 is written. Outputs `grad_norm`, `apply`, `step` `[1]`.
/// The clip factor is min(1, clip / (norm + 1e-6)), as `torch.nn.utils.clip_grad_norm_`.
///
/// In a session with a loss scale, gradients are this many times too large: norm and update are of what they mean, and the
/// scale follows `torch.amp.GradScaler`, as `LossScale` says. Output `loss_scale` `[1]` is the next update's.
pub fn update(session: &mut Session, optimizer: &Optimizer) -> Program {
    update_for(session, "update", STEP, optimizer, &|_| true)
}

/// Builds the update of one group's parameters, with its own program name and counter. See [`update`].
pub fn update_for(
    session: &mut Session,
    name: &str,
    step: &str,
    optimizer: &Optimizer,
    group: &dyn Fn(&StateDecl) -> bool,
) -> Program {
    update_on(session, (name, step), optimizer, group, None)
}

/// Builds the update of the shards that a rank holds. The norm is that of all gradients, with the same bits on every rank and
/// however many share a flat. See [`update`].
pub fn update_sharded(session: &mut Session, optimizer: &Optimizer, layout: &Layout) -> Program {
    update_on(session, ("update", STEP), optimizer, &|_| true, Some(layout))
}

/// Returns the sum of squares of flats' gradients, of which the rank holds shards: sums in fp32 of each rank's piece, flat by
/// flat, and these together in the order of the pieces. A rank that holds several pieces sums each for itself.
fn sum_of_squares(b: &mut Builder<'_>, grads: &[ValueId], mesh: Mesh) -> ValueId {
    let held = mesh.replicas();
    let columns: Vec<ValueId> = grads
        .iter()
        .map(|g| {
            let partials = b.push1(SumSquares {}, &[*g]);
            let parts = b.dim(partials, 0);
            let by_piece = b.reshape(partials, &[held, parts / held]);
            b.reduce(ReduceKind::Sum, by_piece, 1)
        })
        .collect();
    let mine = b.concat(&columns, 1);
    let mut all = b.reshape(mine, &[held * grads.len()]);
    if mesh.shard > 1 {
        let shape = Shape::new(&[mesh.ranks * grads.len()]);
        let parts = Parts(vec![Part { at: 0, shape }]);
        all = b.all_gather(all, AllGatherStart { queue: GATHER, mesh, group: Group::Shard, parts })[0];
    }
    b.push1(SumPartials {}, &[all])
}

fn update_on(
    session: &mut Session,
    (name, step): (&str, &str),
    optimizer: &Optimizer,
    group: &dyn Fn(&StateDecl) -> bool,
    layout: Option<&Layout>,
) -> Program {
    let trained = trained(session, group);
    let mut b = start(session, name);
    let lr = b.input("lr", TensorType::f32(&[1]));
    let clip = b.input("clip", TensorType::f32(&[1]));
    let grads: Vec<_> = trained.iter().map(|(_, g)| b.state(*g)).collect();
    let rounds = |id: StateId| b.session().states[id.index()].ty.dtype == DType::BF16;
    if layout.is_some() && (optimizer.states == States::Bf16 || trained.iter().any(|(w, _)| rounds(*w))) {
        b.input(SEED, TensorType::i32(&[3]));
    }
    let total = match layout {
        Some(layout) => sum_of_squares(&mut b, &grads, layout.mesh()),
        None => b.sum_of_squares(&grads),
    };
    let apply = b.unary(UnaryKind::IsFinite, total);
    let norm = b.unary(UnaryKind::Sqrt, total);
    let scale = LossScale::of(&mut b);
    let norm = scale.as_ref().map_or(norm, |s| b.div(norm, s.scale));
    let tiny = b.fill_like(norm, 1e-6);
    let padded = b.add(norm, tiny);
    let ratio = b.div(clip, padded);
    let one = b.fill_like(norm, 1.0);
    let coef = b.binary(BinaryKind::Min, ratio, one);
    let coef = scale.as_ref().map_or(coef, |s| b.div(coef, s.scale));
    let (step_id, step) = b.declare(step, TensorType::f32(&[1]), StateKind::Counter);
    // `apply` is 0 or 1: the counter moves by exactly that.
    let next = b.accumulate(step, apply, one);
    b.give_back(step_id, next);
    for ((param, _), grad) in trained.iter().zip(&grads) {
        let name = b.session().states[param.index()].name.clone();
        b.scope(&name, |b| optimizer.apply(b, *param, *grad, [lr, coef, next, apply], layout));
    }
    b.output("grad_norm", norm);
    b.output("apply", apply);
    b.output("step", next);
    if let Some(scale) = scale {
        scale.follow(&mut b, apply);
    }
    b.finish()
}

/// The loss scale of a session that declares one: halved by an update that overflowed, doubled by the last of
/// [`GROWTH_INTERVAL`] that did not, but never to infinity.
struct LossScale {
    scale: ValueId,
    good: ValueId,
    ids: [StateId; 2],
}

/// Updates in a row without overflow after which the loss scale doubles (as `torch.amp.GradScaler`).
pub const GROWTH_INTERVAL: u32 = 2000;

impl LossScale {
    fn of(b: &mut Builder<'_>) -> Option<LossScale> {
        let ids = [b.session().state(LOSS_SCALE)?, b.session().state(GOOD_STEPS)?];
        Some(LossScale { scale: b.state(ids[0]), good: b.state(ids[1]), ids })
    }

    /// Gives back the next scale and count, and the scale as output.
    fn follow(&self, b: &mut Builder<'_>, apply: ValueId) {
        let number = |b: &mut Builder<'_>, x: f32| b.fill(TensorType::f32(&[1]), x);
        let (zero, one) = (number(b, 0.0), number(b, 1.0));
        let (half, two) = (number(b, 0.5), number(b, 2.0));
        // The count is of updates before this one.
        let last = number(b, (GROWTH_INTERVAL - 1) as f32);
        let waits = b.binary(BinaryKind::Less, self.good, last);
        let doubled = b.mul(self.scale, two);
        let finite = b.unary(UnaryKind::IsFinite, doubled);
        let grown = b.select(finite, two, one);
        let factor = b.select(waits, one, grown);
        let factor = b.select(apply, factor, half);
        let counts = b.mul(apply, waits);
        // Exact: a power of two times the scale; the count or nothing, and one more.
        let scale = b.accumulate(self.scale, zero, factor);
        let good = b.accumulate(self.good, counts, counts);
        b.give_back(self.ids[0], scale);
        b.give_back(self.ids[1], good);
        b.output(LOSS_SCALE, scale);
    }
}

/// Builds `update` with every gradient clipped by its own norm and applied by itself: what
/// [`in_backward`](crate::passes::in_backward) computes, bit for bit, from gradients that are kept.
///
/// Inputs and outputs are those of [`update`], with what `PerTensor` says of `apply` and `step`.
pub fn update_per_tensor(session: &mut Session, optimizer: &Optimizer) -> Program {
    update_per_tensor_for(session, "update", STEP, optimizer, &|_| true)
}

/// Builds the per-tensor update of one group's parameters, with its own program name and counter. See [`update_per_tensor`].
pub fn update_per_tensor_for(
    session: &mut Session,
    name: &str,
    step: &str,
    optimizer: &Optimizer,
    group: &dyn Fn(&StateDecl) -> bool,
) -> Program {
    let trained = trained(session, group);
    let mut b = start(session, name);
    let rule = PerTensor::begin(&mut b, step, optimizer);
    let mut squares = Vec::new();
    for (param, grad) in trained {
        let grad = b.state(grad);
        squares.push(rule.update(&mut b, param, grad));
    }
    rule.end(&mut b, &squares);
    b.finish()
}

/// The optimizer on one parameter after the other, each as soon as its gradient is there. No tensor waits for another, so
/// - a gradient is clipped by its own norm: by min(1, clip / (norm + 1e-6));
/// - a tensor whose gradient is not finite keeps its bytes, and the others are updated all the same;
/// - the counter counts every update, and all tensors take the bias correction of that one count.
pub(crate) struct PerTensor {
    optimizer: Optimizer,
    lr: ValueId,
    clip: ValueId,
    step: ValueId,
    one: ValueId,
    tiny: ValueId,
}

impl PerTensor {
    /// Brings in `lr` and `clip` and counts the update.
    pub(crate) fn begin(b: &mut Builder<'_>, step: &str, optimizer: &Optimizer) -> PerTensor {
        let scalar = TensorType::f32(&[1]);
        let (lr, clip) = (b.input("lr", scalar), b.input("clip", scalar));
        let (one, tiny) = (b.fill(scalar, 1.0), b.fill(scalar, 1e-6));
        let (id, before) = b.declare(step, scalar, StateKind::Counter);
        let step = b.accumulate(before, one, one);
        b.give_back(id, step);
        PerTensor { optimizer: optimizer.clone(), lr, clip, step, one, tiny }
    }

    /// Clips `grad` and applies it to `param`, which nothing may read afterwards; gives its sum of squares `[1]`.
    pub(crate) fn update(&self, b: &mut Builder<'_>, param: StateId, grad: ValueId) -> ValueId {
        let name = b.session().states[param.index()].name.clone();
        b.scope(&name, |b| {
            let squares = b.sum_of_squares(&[grad]);
            let apply = b.unary(UnaryKind::IsFinite, squares);
            let norm = b.unary(UnaryKind::Sqrt, squares);
            let padded = b.add(norm, self.tiny);
            let ratio = b.div(self.clip, padded);
            let coef = b.binary(BinaryKind::Min, ratio, self.one);
            self.optimizer.apply(b, param, grad, [self.lr, coef, self.step, apply], None);
            squares
        })
    }

    /// Adds outputs from all sums of squares, in declaration order: `grad_norm` (of all gradients together), `apply` (every
    /// gradient was finite), `step`.
    pub(crate) fn end(&self, b: &mut Builder<'_>, squares: &[ValueId]) {
        let total = if squares.is_empty() {
            b.fill(TensorType::f32(&[1]), 0.0)
        } else {
            b.push1(SumPartials {}, squares)
        };
        let norm = b.unary(UnaryKind::Sqrt, total);
        let apply = b.unary(UnaryKind::IsFinite, total);
        b.output("grad_norm", norm);
        b.output("apply", apply);
        b.output("step", self.step);
    }
}

/// Builds `ema`: average = average + (1 - decay) * (weight - average) for every trainable parameter, in fp32. Inputs `decay`
/// `[1]`.
pub fn ema(session: &mut Session) -> Program {
    // Those with an update: their gradients may have no states.
    let trained: Vec<StateId> = (0..session.states.len() as u32)
        .map(StateId)
        .filter(|id| {
            let s = &session.states[id.index()];
            let has = |prefix: &str| session.state(&format!("{prefix}{}", s.name)).is_some();
            s.kind == StateKind::Parameter && s.trainable && (has(GRAD) || has(FIRST_MOMENT))
        })
        .collect();
    let mut b = start(session, "ema");
    let decay = b.input("decay", TensorType::f32(&[1]));
    let apply = b.fill_like(decay, 1.0);
    for param in trained {
        let decl = b.session().states[param.index()].clone();
        b.scope(&decl.name, |b| {
            let w = b.state(param);
            // Steps of (1 - decay) are far below bf16's digits.
            let ty = TensorType::f32(&decl.ty.shape);
            let (id, e) = b.declare(&format!("ema.{}", decl.name), ty, StateKind::Ema);
            let new = b.push1(Lerp {}, &[e, w, decay, apply]);
            b.give_back(id, new);
        });
    }
    b.finish()
}

/// Returns `program` reading the averages, which are fp32, instead of the trainable parameters.
pub fn on_averages(session: &mut Session, program: &Program, name: &str) -> Program {
    let mut p = program.clone();
    name.clone_into(&mut p.name);
    for used in &mut p.states {
        let decl = &session.states[used.state.index()];
        if let Some(id) = session.state(&format!("ema.{}", decl.name)) {
            used.state = id;
        }
    }
    pure::as_declared(session, p)
}
