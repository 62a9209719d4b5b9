//! Models in 16 bits: what the pass writes, what is kept for backward, and how far gradients come from fp32's.

use ambitus_compile::optimizer;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{GOOD_STEPS, INITIAL_SCALE, LOSS_SCALE, Mixed, Precision};
use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::text::{parse, print_program};
use ambitus_ir::{DType, Op, Phase, Program, Session, StateKind};
use ambitus_testkit::paper::FULL;
use ambitus_testkit::tolerances::{BF16_GRADIENTS, FP16_GRADIENTS};
use ambitus_testkit::toys::{Gradients, Toy, states, toys};
use ambitus_testkit::{Interp, Rounding, Tensor, Tensors};
use expect_test::expect;

const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

/// The micro-batch program of a model in a precision, alone in its session.
fn micro(model: fn(&mut Session) -> Program, precision: Precision) -> Session {
    let mut session = Session::default();
    let forward = model(&mut session);
    let options = Options { precision, ..Options::new(Blocks::None) };
    let micro = pipeline::micro(&mut session, forward, options, &FULL).expect("the model is differentiable");
    session.programs.push(micro);
    session
}

/// Loss and unscaled gradients.
fn gradients(toy: &Toy, precision: Precision) -> Gradients {
    let session = micro(toy.model, precision);
    let scale = if precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
    let mut held = states(&session);
    held.insert(LOSS_SCALE.to_owned(), Tensor::scalar(scale));
    let mut inputs = toy.whole.clone();
    inputs.insert("beta".to_owned(), Tensor::scalar(0.0));
    let out = Interp::new(Rounding::ToType).run(&session, &session.programs[0], &inputs, &mut held);
    let loss = out.unwrap_or_else(|e| panic!("{}: {e}", toy.name))["loss"].data[0];
    let mut by_name = Vec::new();
    for s in session.states.iter().filter(|s| s.kind == StateKind::Gradient) {
        assert_eq!(s.ty.dtype, DType::F32, "{}", s.name);
        by_name.push((s.name.clone(), held[&s.name].data.iter().map(|x| x / f64::from(scale)).collect()));
    }
    by_name.sort_by(|a: &(String, Vec<f64>), b| a.0.cmp(&b.0));
    Gradients { loss, by_name }
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn gradients_are_near_those_of_fp32() {
    for toy in toys() {
        let whole = gradients(&toy, Precision::Fp32);
        let all = norm(whole.by_name.iter().flat_map(|g| g.1.iter().copied()));
        let cases = [(Precision::Bf16Mixed, BF16_GRADIENTS), (Precision::Fp16Mixed, FP16_GRADIENTS)];
        for (precision, (most, each)) in cases {
            let half = gradients(&toy, precision);
            assert!((half.loss / whole.loss - 1.0).abs() <= most, "{}: loss {}", toy.name, half.loss);
            let mut off = Vec::new();
            for ((name, x), (other, y)) in whole.by_name.iter().zip(&half.by_name) {
                assert_eq!(name, other, "{}", toy.name);
                let d = norm(x.iter().zip(y).map(|(x, y)| x - y));
                let share = d / norm(x.iter().copied()).max(1e-3 * all);
                assert!(share <= each, "{} {precision:?}: {name} is off by {share:.1e}", toy.name);
                off.push(d);
            }
            let off = norm(off.into_iter()) / all;
            assert!(off > 0.0 && off <= most, "{} {precision:?}: gradients are off by {off:.1e}", toy.name);
        }
    }
}

/// No 16-bit weight lives from forward to backward: what reads it there reads another cast.
#[test]
fn casts_of_weights_are_made_again() {
    for toy in toys() {
        let session = micro(toy.model, Precision::Bf16Mixed);
        let p = &session.programs[0];
        let weights: Vec<_> = p.states.iter().map(|s| s.enters).collect();
        let (mut made, mut again) = (0, 0);
        for instr in p.instrs.iter().filter(|i| matches!(i.op, Op::Cast(_)) && weights.contains(&i.inputs[0]))
        {
            let forward = instr.origin.phase == Phase::Forward;
            *(if forward { &mut made } else { &mut again }) += 1;
            let y = instr.outputs[0];
            let read = |there: bool| {
                p.instrs.iter().any(|i| i.inputs.contains(&y) && (i.origin.phase == Phase::Forward) == there)
            };
            assert!(!read(true) || !read(false), "{}: {} is kept", toy.name, instr.origin.path);
        }
        assert!(made > 8 && again > 4, "{}: {made} casts, {again} again", toy.name);
    }
}

#[test]
fn what_steers_from_the_side_stays_f32() {
    let session = micro(toys()[0].model, Precision::Bf16Mixed);
    let p = &session.programs[0];
    let types = |path: &str| {
        let made = p.instrs.iter().find(|i| *i.origin.path == *path && i.origin.phase == Phase::Forward);
        let made = made.unwrap_or_else(|| panic!("no {path}"));
        p.ty(made.outputs[0]).dtype
    };
    let block = "transformer.transformer_blocks.1";
    for path in ["transformer.time_embed.time_mlp.2.linear", &format!("{block}.attn_norm.linear.linear")] {
        assert_eq!(types(path), DType::F32, "{path}");
    }
    for path in ["attn.to_q.linear", "attn.attention", "attn.gated_residual", "ff.ff.2.linear"] {
        assert_eq!(types(&format!("{block}.{path}")), DType::BF16, "{path}");
    }
    assert_eq!(types("transformer.proj_out.linear"), DType::BF16);
}

#[test]
fn evaluation_gives_out_f32() {
    for toy in toys() {
        let mut session = Session::default();
        let forward = (toy.model)(&mut session);
        let forward = pipeline::run(&mut session, forward, &Mixed { dtype: DType::BF16 }).expect("casts");
        let p = pipeline::plain(&mut session, forward, &FULL);
        assert!(p.outputs.iter().all(|o| p.ty(o.value).dtype == DType::F32), "{}", toy.name);
        assert!(p.types.iter().any(|t| t.dtype == DType::BF16), "{}", toy.name);
    }
}

#[test]
fn precision_casts_once_and_widens_where_f32_is_needed() {
    let text = "state a.weight = parameter f32[4,4] trainable
    state a.gamma = parameter f32[4] trainable
    program p {
        %0 = state a.weight
        %1 = state a.gamma
        %2 = input x f32[2,4]
        %3 = linear(%2, %0) : f32[2,4] @ a.linear fwd
        %4 = rms_norm(%3, %1) {eps=0.00001} : f32[2,4] @ a.rms_norm fwd
        %5 = linear(%4, %0) : f32[2,4] @ b.linear fwd
        %6 = unary(%5) {kind=exp} : f32[2,4] @ b.unary fwd
        %7 = binary(%6, %2) {kind=add} : f32[2,4] @ b.binary fwd
        %8 = binary(%5, %2) {kind=add} : f32[2,4] @ c.binary fwd
        output y %7
        output z %8
    }";
    let mut session = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let p = session.programs.remove(0);
    let p = pipeline::run(&mut session, p, &Mixed { dtype: DType::F16 }).expect("casts");
    expect![[r#"
        program p {
          %2 = input x f32[2,4]
          %0 = state a.weight
          %1 = state a.gamma
          %9 = cast(%2) {to=f16} : f16[2,4] @ a.linear.cast fwd
          %10 = cast(%0) {to=f16} : f16[4,4] @ a.linear.cast~2 fwd
          %11 = linear(%9, %10) : f16[2,4] @ a.linear fwd
          %12 = rms_norm(%11, %1) {eps=0.00001} : f16[2,4] @ a.rms_norm fwd
          %13 = linear(%12, %10) : f16[2,4] @ b.linear fwd
          %14 = cast(%13) {to=f32} : f32[2,4] @ b.unary.cast fwd
          %6 = unary(%14) {kind=exp} : f32[2,4] @ b.unary fwd
          %7 = binary(%6, %2) {kind=add} : f32[2,4] @ b.binary fwd
          %15 = binary(%13, %9) {kind=add} : f16[2,4] @ c.binary fwd
          %16 = cast(%15) {to=f32} : f32[2,4] @ c.binary.cast fwd
          output y %7
          output z %16
          unused %3 f32[2,4]
          unused %4 f32[2,4]
          unused %5 f32[2,4]
          unused %8 f32[2,4]
        }
    "#]]
    .assert_eq(&print_program(&session, &p));
}

/// Runs the micro-batch program and the update of a toy, from given scale and count.
struct Scaled {
    session: Session,
    held: Tensors,
    toy: Toy,
    interp: Interp,
}

impl Scaled {
    fn new(precision: Precision) -> Scaled {
        let [toy, ..] = toys();
        let mut session = micro(toy.model, precision);
        let update = optimizer::update(&mut session, &ADAMW.into());
        let update = pipeline::plain(&mut session, update, &FULL);
        session.programs.push(update);
        let mut held = states(&session);
        for s in session.states.iter().filter(|s| s.kind != StateKind::Parameter) {
            held.insert(s.name.clone(), Tensor::full(s.ty, 0.0));
        }
        Scaled { session, held, toy, interp: Interp::new(Rounding::ToType) }
    }

    /// One update: its outputs.
    fn update(&mut self, scale: f32, good: f32) -> Tensors {
        self.held.insert(LOSS_SCALE.to_owned(), Tensor::scalar(scale));
        self.held.insert(GOOD_STEPS.to_owned(), Tensor::scalar(good));
        let mut inputs = self.toy.whole.clone();
        inputs.insert("beta".to_owned(), Tensor::scalar(0.0));
        inputs.insert("lr".to_owned(), Tensor::scalar(1e-3));
        inputs.insert("clip".to_owned(), Tensor::scalar(0.5));
        let mut out = Tensors::new();
        for p in &self.session.programs {
            out.extend(self.interp.run(&self.session, p, &inputs, &mut self.held).expect("it runs"));
        }
        out
    }

    fn state(&self, name: &str) -> f64 {
        self.held[name].data[0]
    }
}

#[test]
fn an_overflow_skips_the_update_and_halves_the_scale() {
    let mut run = Scaled::new(Precision::Fp16Mixed);
    let before = run.held.clone();
    let out = run.update(3e38, 7.0);
    assert_eq!((out["apply"].data[0], out["step"].data[0]), (0.0, 0.0));
    assert_eq!(out[LOSS_SCALE].data[0], f64::from(1.5e38f32));
    assert_eq!((run.state(LOSS_SCALE), run.state(GOOD_STEPS)), (f64::from(1.5e38f32), 0.0));
    for s in
        run.session.states.iter().filter(|s| matches!(s.kind, StateKind::Parameter | StateKind::Optimizer))
    {
        assert_eq!(run.held[&s.name], before[&s.name], "{} moved", s.name);
    }
    // It recovers: the next update at a usual scale is applied and counted.
    let out = run.update(INITIAL_SCALE, 0.0);
    assert_eq!((out["apply"].data[0], out["step"].data[0]), (1.0, 1.0));
    assert_eq!((run.state(LOSS_SCALE), run.state(GOOD_STEPS)), (f64::from(INITIAL_SCALE), 1.0));
    assert_ne!(run.held, before);
}

#[test]
fn the_scale_doubles_after_enough_good_updates() {
    let mut run = Scaled::new(Precision::Fp16Mixed);
    let last = optimizer::GROWTH_INTERVAL as f32 - 1.0;
    run.update(1024.0, last - 1.0);
    assert_eq!((run.state(LOSS_SCALE), run.state(GOOD_STEPS)), (1024.0, f64::from(last)));
    run.update(1024.0, last);
    assert_eq!((run.state(LOSS_SCALE), run.state(GOOD_STEPS)), (2048.0, 0.0));
}

/// The scale is no part of what an update does: the norm is of the gradients themselves, and weights are the same up to
/// what underflows.
#[test]
fn the_scale_cancels() {
    let [one, other] = [1024.0, 65536.0].map(|scale| {
        let mut run = Scaled::new(Precision::Fp16Mixed);
        let out = run.update(scale, 0.0);
        (out["grad_norm"].data[0], run)
    });
    assert!((one.0 / other.0 - 1.0).abs() < 1e-3, "norms {} and {}", one.0, other.0);
    let plain = Scaled::new(Precision::Fp32).update(1.0, 0.0)["grad_norm"].data[0];
    assert!((one.0 / plain - 1.0).abs() < 1e-2, "norms {} and {plain}", one.0);
}
