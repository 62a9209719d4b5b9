//! Narrow moments and weights: which tensors have them and in how many bytes, the same bits in and after backward, and
//! gradients that stay fp32.

use ambitus_compile::optimizer::{self, Optimizer, SEED, States};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::pure::{self, Pure};
use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::text::{parse, print_program};
use ambitus_ir::{DType, Op, Program, Session, StateKind};
use ambitus_models::{Capacity, f5};
use ambitus_testkit::paper::FULL;
use ambitus_testkit::toys::toys;
use ambitus_testkit::{Interp, Rounding, Tensor, Tensors};
use expect_test::expect;

const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

fn with(states: States) -> Optimizer {
    Optimizer { states, ..ADAMW.into() }
}

type Model<'a> = &'a dyn Fn(&mut Session) -> Program;

/// A session whose programs, one after the other, are one update; with bf16 weights where they are `pure`.
fn session(model: Model<'_>, optimizer: &Optimizer, in_backward: bool, pure: bool) -> Session {
    let mut s = Session::default();
    let forward = model(&mut s);
    let options = Options {
        optimizer: Some(optimizer.clone()),
        update_in_backward: in_backward,
        ..Options::new(Blocks::None)
    };
    let mut micro = pipeline::micro(&mut s, forward, options, &FULL).expect("the model is differentiable");
    if pure {
        micro = pipeline::run(&mut s, micro, &Pure).expect("casts");
    }
    s.programs.push(micro);
    if !in_backward {
        let update = optimizer::update_per_tensor(&mut s, optimizer);
        let update = pipeline::plain(&mut s, update, &FULL);
        s.programs.push(update);
    }
    s
}

/// States after some updates, and the loss of each.
fn after(s: &Session, batch: &Tensors, updates: i32, lr: f32) -> (Tensors, Vec<f64>) {
    let mut states = ambitus_testkit::toys::states(s);
    for d in &s.states {
        let t = states.get_mut(&d.name).expect("a state");
        if matches!(d.kind, StateKind::Optimizer | StateKind::Counter) {
            *t = Tensor::full(d.ty, 0.0);
        }
        t.round();
    }
    let mut inputs = batch.clone();
    for (name, x) in [("beta", 0.0), ("lr", lr), ("clip", f32::INFINITY)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    let mut interp = Interp::new(Rounding::ToType);
    let mut losses = Vec::new();
    for update in 0..updates {
        inputs.insert(SEED.to_owned(), Tensor::i32(&[7, update]));
        let mut out = Tensors::new();
        for p in &s.programs {
            out.extend(interp.run(s, p, &inputs, &mut states).unwrap_or_else(|e| panic!("{e}")));
        }
        losses.push(out["loss"].data[0]);
    }
    states.retain(|name, _| !name.starts_with("grad."));
    (states, losses)
}

#[test]
fn an_update_in_backward_rounds_as_one_at_the_end() {
    for toy in toys() {
        for states in [States::Bf16, States::EightBit] {
            let run = |b| after(&session(&toy.model, &with(states), b, false), &toy.whole, 3, 1e-2);
            let (want, have) = (run(false), run(true));
            assert!(want == have, "{}: {states:?}", toy.name);
        }
    }
}

/// bf16 weights follow fp32 ones although every step is far below their last digit.
#[test]
fn pure_bf16_learns_what_fp32_learns() {
    for toy in toys() {
        let run =
            |pure| after(&session(&toy.model, &with(States::Bf16), false, pure), &toy.whole, 12, 1e-3).1;
        let (wide, pure) = (run(false), run(true));
        let (first, last) = (wide[0], wide[11]);
        assert!(last < first, "{}: {wide:?}", toy.name);
        // The weights' own rounding, not the steps', is what differs.
        assert!(
            (pure[11] - last).abs() < 0.2 * (first - last).abs() + 0.01 * first,
            "{}: {wide:?} {pure:?}",
            toy.name
        );
    }
}

#[test]
fn bytes_of_moments_are_the_known_formulas() {
    let cfg = f5::config::Config::v1_base();
    let cap = Capacity { rows: 512, clips: 4 };
    let bytes = |states: States, pure: bool| {
        let mut s = Session::default();
        let forward = f5::model::loss(&mut s, &cfg, cap, "micro", true);
        let options = Options::new(Blocks::None);
        let p = pipeline::micro(&mut s, forward, options, &FULL).expect("the model is differentiable");
        s.programs.push(p);
        if pure {
            pure::declare(&mut s);
        }
        let p = optimizer::update(&mut s, &with(states));
        s.programs.push(p);
        let of = |kind| s.states.iter().filter(|d| d.kind == kind).map(|d| d.ty.bytes()).sum::<u64>() as f64;
        let trained = s.states.iter().filter(|d| d.kind == StateKind::Parameter && d.trainable);
        let n = trained.map(|d| d.ty.shape.elements() as f64).sum::<f64>();
        assert!(s.states.iter().all(|d| d.kind != StateKind::Gradient || d.ty.dtype == DType::F32));
        (of(StateKind::Optimizer) / n, of(StateKind::Parameter) / n)
    };
    let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 0.01, "{got} instead of {want}");
    near(bytes(States::Fp32, false).0, 8.0);
    near(bytes(States::Bf16, false).0, 4.0);
    near(bytes(States::EightBit, false).0, 2.0 + 8.0 / 256.0);
    near(bytes(States::Bf16, true).1, 2.0);
    near(bytes(States::Fp32, true).0, 8.0);
}

#[test]
fn small_tensors_and_vectors_keep_fp32_moments() {
    let text = "
    state big = parameter f32[64,64] trainable
    state small = parameter f32[63,65] trainable
    state bias = parameter f32[5000] trainable
    state grad.big = gradient f32[64,64]
    state grad.small = gradient f32[63,65]
    state grad.bias = gradient f32[5000]";
    let mut s = parse(text).expect("the text parses");
    let p = optimizer::update(&mut s, &with(States::EightBit));
    let ops: Vec<&str> = p.instrs.iter().map(|i| i.op.name()).filter(|n| n.starts_with("adamw")).collect();
    assert_eq!(ops, ["adamw_8bit", "adamw", "adamw"]);
    assert!(p.input(SEED).is_none(), "nothing is rounded stochastically");
    assert!(s.state("exp_avg_scale.big").is_some() && s.state("exp_avg_scale.bias").is_none());
}

#[test]
fn every_reader_of_a_narrow_parameter_has_a_cast_of_its_own() {
    let text = "
    state w = parameter f32[4,4] trainable
    state bias = parameter f32[4] trainable
    program p {
        %0 = input x f32[2,4]
        %1 = state w
        %2 = state bias
        %3 = linear(%0, %1, %2) : f32[2,4] @ up fwd
        %4 = matmul(%3, %1) {ta=false, tb=false, acc=false, wide=false} : f32[2,4] @ down bwd
        %5 = cast(%1) {to=bf16} : bf16[4,4] @ narrow fwd
        %6 = cast(%5) {to=f32} : f32[4,4] @ wide fwd
        output y %4
        output z %6
    }";
    let mut s = parse(text).expect("the text parses");
    let p = s.programs.remove(0);
    let p = pipeline::run(&mut s, p, &Pure).expect("casts");
    expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = state w
          %2 = state bias
          %7 = cast(%1) {to=f32} : f32[4,4] @ up.cast.1 fwd
          %3 = linear(%0, %7, %2) : f32[2,4] @ up fwd
          %8 = cast(%1) {to=f32} : f32[4,4] @ down.cast.1 bwd
          %4 = matmul(%3, %8) {ta=false, tb=false, acc=false, wide=false} : f32[2,4] @ down bwd
          %6 = cast(%1) {to=f32} : f32[4,4] @ wide fwd
          output y %4
          output z %6
          unused %5 bf16[4,4]
        }
    "#]]
    .assert_eq(&print_program(&s, &p));
    // A program that reads the parameters as they are is left alone.
    assert_eq!(pipeline::run(&mut s, p.clone(), &Pure), Ok(p));
}

/// Averages of bf16 weights are fp32, and a program on them reads them without a rounding that the weights had.
#[test]
fn programs_on_averages_read_fp32() {
    let toy = &toys()[0];
    let mut s = session(&toy.model, &with(States::Fp32), false, true);
    let ema = optimizer::ema(&mut s);
    assert!(
        ema.instrs.iter().any(|i| matches!(i.op, Op::Lerp(_)) && ema.ty(i.inputs[1]).dtype == DType::BF16)
    );
    assert!(s.states.iter().all(|d| d.kind != StateKind::Ema || d.ty.dtype == DType::F32));
    let micro = s.programs[0].clone();
    let p = optimizer::on_averages(&mut s, &micro, "averaged");
    ambitus_ir::verify::verify(&s, &p).expect("the program is well formed");
    let casts = |p: &Program| p.instrs.iter().filter(|i| matches!(i.op, Op::Cast(_))).count();
    assert!(casts(&micro) > 0);
    assert_eq!(casts(&p), 0, "what was cast from bf16 is fp32 already");
}
