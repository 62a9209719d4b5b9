//! The update in backward against micro and update programs under the same rule of clipping: the same bits, fewer bytes.

use ambitus_compile::optimizer::{Optimizer, Rule, States};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options, Pipeline};
use ambitus_compile::plan::{plan, report};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::text::{parse, print_program};
use ambitus_ir::verify::verify;
use ambitus_ir::{Op, Program, Session, StateKind};
use ambitus_models::{Capacity, f5};
use ambitus_testkit::owners;
use ambitus_testkit::paper::{FULL, Paper};
use ambitus_testkit::toys::{three_updates, toys};
use ambitus_testkit::{Tensor, Tensors};
use expect_test::expect;

const ADAMW: Optimizer = Optimizer {
    rule: Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};

fn per_tensor(checkpoint: Blocks) -> Options {
    Options { optimizer: Some(ADAMW), clip_per_tensor: true, ..Options::new(checkpoint) }
}

type Model<'a> = &'a dyn Fn(&mut Session) -> Program;

/// A session whose programs, one after the other, are one update.
fn session(model: Model<'_>, checkpoint: Blocks, in_backward: bool, target: Paper) -> Session {
    let mut s = Session::default();
    let forward = model(&mut s);
    let options = Options { update_in_backward: in_backward, ..per_tensor(checkpoint) };
    let s = Pipeline::new(&options, &target).session(s, vec![forward], Vec::new());
    s.expect("the model is differentiable")
}

/// Weights, moments and counters after three updates, and what each said.
fn after(s: &Session, batch: &Tensors, clip: f32) -> (Tensors, Vec<Vec<f64>>) {
    let (mut states, said) = three_updates(s, batch, clip);
    states.retain(|name, _| !name.starts_with("grad."));
    (states, said)
}

#[test]
fn three_updates_give_the_same_bits() {
    let bare = Paper { fused: false, shares: true };
    for toy in toys() {
        for (blocks, target) in [(Blocks::None, FULL), (Blocks::All, FULL), (Blocks::First(1), bare)] {
            for clip in [0.05, f32::INFINITY] {
                let run = |backward| {
                    after(&session(&toy.model, blocks.clone(), backward, target), &toy.whole, clip)
                };
                let (want, have) = (run(false), run(true));
                assert_eq!(want.1, have.1, "{}: {blocks:?}", toy.name);
                assert_eq!(have.1[2][2..], [1.0, 3.0], "{}: applied, and counted once per update", toy.name);
                for (name, t) in &want.0 {
                    let same = t.data.iter().zip(&have.0[name].data).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{}: {name}, {blocks:?}, clip {clip}", toy.name);
                    assert!(t.data.iter().all(|x| x.is_finite()), "{}: {name}", toy.name);
                }
                assert_eq!(want.0.len(), have.0.len());
            }
        }
    }
}

#[test]
fn only_the_tensor_whose_gradient_is_not_finite_stays() {
    let text = "
    state a = parameter f32[2] trainable
    state b = parameter f32[2] trainable
    program micro {
        %0 = input x f32[2]
        %1 = state a
        %2 = state b
        %3 = binary(%1, %0) {kind=mul} : f32[2] @ a.mul fwd
        %4 = binary(%3, %2) {kind=add} : f32[2] @ b.add fwd
        %5 = reduce(%4) {kind=sum, axis=0} : f32[1] @ sum fwd
        output loss %5
    }";
    let model = |s: &mut Session| {
        *s = parse(text).expect("the text parses");
        s.programs.remove(0)
    };
    let x = Tensor::f32(&[2], &[f32::INFINITY, 1.0]);
    let inputs: Tensors = [("x".to_owned(), x)].into();
    for backward in [false, true] {
        let s = session(&model, Blocks::None, backward, FULL);
        let before = ambitus_testkit::toys::states(&s);
        let (states, said) = after(&s, &inputs, 1.0);
        assert_eq!(states["a"], before["a"], "the gradient of a is x");
        assert_ne!(states["b"], before["b"], "the gradient of b is 1");
        assert!(states["exp_avg.a"].data.iter().all(|m| *m == 0.0));
        assert_eq!(said[2][2..], [0.0, 3.0], "not all applied; every update counted");
    }
}

const TIED: &str = "
    state w = parameter f32[4,4] trainable
    state up = parameter f32[4,4] trainable
    program p {
        block layers.0
        %0 = input x f32[2,4]
        %1 = input mask f32[2]
        %2 = input norm f32[1]
        %3 = state w
        %4 = state up
        %5 = linear(%0, %3) : f32[2,4] @ embed fwd
        %6 = linear(%5, %4) : f32[2,4] @ layers.0.up fwd
        %7 = activation(%6) {kind=silu} : f32[2,4] @ layers.0.activation fwd
        %8 = linear(%7, %3) : f32[2,4] @ head fwd
        %9 = masked_mse(%8, %0, %1, %2) : f32[1] @ loss fwd
        output loss %9
    }";

#[test]
fn a_tied_weight_is_updated_at_its_last_use() {
    let mut s = parse(TIED).expect("the text parses");
    let forward = s.programs.remove(0);
    let options = Options { update_in_backward: true, ..per_tensor(Blocks::All) };
    let p = pipeline::micro(&mut s, forward, options, &FULL);
    let p = p.expect("the block is differentiable");
    verify(&s, &p).expect("the program is well formed");
    expect![[r#"
        program p {
          block layers.0
          %0 = input x f32[2,4]
          %1 = input mask f32[2]
          %2 = input norm f32[1]
          %19 = input beta f32[1]
          %25 = input lr f32[1]
          %26 = input clip f32[1]
          %3 = state w
          %4 = state up
          %20 = state grad.w
          %29 = state step
          %38 = state exp_avg.up
          %39 = state exp_avg_sq.up
          %50 = state exp_avg.w
          %51 = state exp_avg_sq.w
          %27 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ fill update
          %30 = accumulate(%29, %27, %27) : f32[1] @ accumulate update
          %5 = linear(%0, %3) : f32[2,4] @ embed fwd
          %6 = linear(%5, %4) : f32[2,4] @ layers.0.up fwd
          %7 = activation(%6) {kind=silu} : f32[2,4] @ layers.0.activation fwd
          %8 = linear(%7, %3) : f32[2,4] @ head fwd
          %9 = masked_mse(%8, %0, %1, %2) : f32[1] @ loss fwd
          %10 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ loss.fill bwd
          %11 = masked_mse_grad(%8, %0, %1, %2, %10) : f32[2,4] @ loss.masked_mse_grad bwd
          %12 = matmul(%11, %3) {ta=false, tb=false, acc=false, wide=false} : f32[2,4] @ head.matmul bwd
          %21 = matmul(%11, %7, %20, %19) {ta=true, tb=false, acc=true, wide=false} : f32[4,4] @ head.matmul~2 bwd
          %24 = linear(%5, %4) : f32[2,4] @ layers.0.up recompute
          %14 = activation_grad(%24, %12) {kind=silu} : f32[2,4] @ layers.0.activation.activation_grad bwd
          %15 = matmul(%14, %4) {ta=false, tb=false, acc=false, wide=false} : f32[2,4] @ layers.0.up.matmul bwd
          %16 = matmul(%14, %5) {ta=true, tb=false, acc=false, wide=false} : f32[4,4] @ layers.0.up.matmul~2 bwd
          %31 = sum_squares(%16) : f32[1] @ up.sum_squares update
          %32 = sum_partials(%31) : f32[1] @ up.sum_partials update
          %34 = unary(%32) {kind=sqrt} : f32[1] @ up.unary~2 update
          %28 = fill() {value=0.000001, dtype=f32, shape=[1]} : f32[1] @ fill~2 update
          %35 = binary(%34, %28) {kind=add} : f32[1] @ up.binary update
          %36 = binary(%26, %35) {kind=div} : f32[1] @ up.binary~2 update
          %37 = binary(%36, %27) {kind=min} : f32[1] @ up.binary~3 update
          %33 = unary(%32) {kind=is_finite} : f32[1] @ up.unary update
          %40, %41, %42 = adamw(%4, %16, %38, %39, %25, %37, %30, %33) {beta1=0.9, beta2=0.999, eps=0.00000001, weight_decay=0.01} : f32[4,4], f32[4,4], f32[4,4] @ up.adamw update
          %22 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ embed.matmul.fill bwd
          %23 = matmul(%15, %0, %21, %22) {ta=true, tb=false, acc=true, wide=false} : f32[4,4] @ embed.matmul bwd
          %43 = sum_squares(%23) : f32[1] @ w.sum_squares update
          %44 = sum_partials(%43) : f32[1] @ w.sum_partials update
          %46 = unary(%44) {kind=sqrt} : f32[1] @ w.unary~2 update
          %47 = binary(%46, %28) {kind=add} : f32[1] @ w.binary update
          %48 = binary(%26, %47) {kind=div} : f32[1] @ w.binary~2 update
          %49 = binary(%48, %27) {kind=min} : f32[1] @ w.binary~3 update
          %45 = unary(%44) {kind=is_finite} : f32[1] @ w.unary update
          %52, %53, %54 = adamw(%3, %23, %50, %51, %25, %49, %30, %45) {beta1=0.9, beta2=0.999, eps=0.00000001, weight_decay=0.01} : f32[4,4], f32[4,4], f32[4,4] @ w.adamw update
          %55 = sum_partials(%44, %32) : f32[1] @ sum_partials update
          %56 = unary(%55) {kind=sqrt} : f32[1] @ unary update
          %57 = unary(%55) {kind=is_finite} : f32[1] @ unary~2 update
          state w leaves %52
          state up leaves %40
          state grad.w leaves %23
          state step leaves %30
          state exp_avg.up leaves %41
          state exp_avg_sq.up leaves %42
          state exp_avg.w leaves %53
          state exp_avg_sq.w leaves %54
          output loss %9
          output grad_norm %56
          output apply %57
          output step %30
          unused %13 f32[4,4]
          unused %17 f32[4,4]
          unused %18 f32[4,4]
        }
    "#]].assert_eq(&print_program(&s, &p));
}

#[test]
fn gradients_take_no_bytes_beside_the_one_in_hand() {
    let base = f5::config::Config::v1_base();
    let (dim, dim_head, ff_dim, text_dim) = (96, 48, 192, 48);
    let small = f5::config::Config {
        dim,
        depth: 4,
        heads: 2,
        rotated: 2,
        dim_head,
        ff_dim,
        text_dim,
        ..base.clone()
    };
    for (cfg, frames) in [(base, 512), (small, 1232)] {
        let cap = Capacity { rows: frames, clips: 4 };
        let model = |s: &mut Session| f5::model::loss(s, &cfg, cap, "micro", true);
        for checkpoint in [Blocks::None, Blocks::All] {
            let [at_end, in_backward] =
                [false, true].map(|b| plan(session(&model, checkpoint.clone(), b, FULL), &FULL, 1));
            let gradients = report::state_bytes(&at_end, StateKind::Gradient);
            assert_eq!(report::state_bytes(&in_backward, StateKind::Gradient), 0);
            let states = at_end.session.states.iter().filter(|s| s.kind == StateKind::Gradient);
            let largest = states.map(|s| s.ty.bytes()).max().unwrap_or(0);
            let saved = at_end.arena_bytes() - in_backward.arena_bytes();
            assert!(saved + largest >= gradients, "{frames}, {checkpoint:?}: saves {saved} of {gradients}");
            assert!(report::live_gradients(&in_backward.programs[0]) <= largest);
            owners::check(&in_backward, &FULL);
        }
    }
}

#[test]
fn no_gradient_outlives_its_layer() {
    // From where a gradient is made to where it is applied: the layer's dx and what is recomputed for it.
    const MOST: usize = 30;
    let cfg = f5::config::Config::v1_base();
    let cap = Capacity { rows: 512, clips: 4 };
    let model = |s: &mut Session| f5::model::loss(s, &cfg, cap, "micro", true);
    for checkpoint in [Blocks::None, Blocks::All] {
        let s = session(&model, checkpoint, true, FULL);
        let p = &s.programs[0];
        let made = p.definitions();
        for (i, instr) in p.instrs.iter().enumerate() {
            if matches!(instr.op, Op::AdamW(_)) {
                let from = made[instr.inputs[1].index()].expect("a gradient is made");
                assert!(i - from <= MOST, "{} waits for {} instructions", instr.origin.path, i - from);
            }
        }
    }
}
