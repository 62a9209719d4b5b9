//! Whole steps in the text form: what the pipeline makes of a block, and the programs that end an update.
//! `UPDATE_EXPECT=1 cargo test` rewrites the expectations.

use ambitus_compile::autodiff::differentiate;
use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::checkpoint::Checkpoint;
use ambitus_compile::passes::policy::{self, Blocks};
use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::text::{parse, print_program, print_session};
use ambitus_ir::verify::verify;
use ambitus_ir::{Program, Session};
use ambitus_testkit::paper::FULL;
use expect_test::{Expect, expect};

/// The one program of a text, checked, and its session.
fn read(text: &str) -> (Session, Program) {
    let mut session = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let p = session.programs.remove(0);
    verify(&session, &p).unwrap_or_else(|e| panic!("{e}"));
    (session, p)
}

/// A block: norm, product, activation, product, and their gradients.
const BLOCK: &str = "
    state gamma = parameter f32[4] trainable
    state up = parameter f32[6,4] trainable
    state down = parameter f32[4,6] trainable
    program p {
        block layers.0
        %0 = input x f32[2,4]
        %1 = input mask f32[2]
        %2 = input norm f32[1]
        %3 = state gamma
        %4 = state up
        %5 = state down
        %6 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm fwd
        %7 = linear(%6, %4) : f32[2,6] @ layers.0.up fwd
        %8 = activation(%7) {kind=silu} : f32[2,6] @ layers.0.activation fwd
        %9 = linear(%8, %5) : f32[2,4] @ layers.0.down fwd
        %10 = masked_mse(%9, %0, %1, %2) : f32[1] @ loss fwd
        output loss %10
    }";

fn checkpointed(blocks: Blocks, expected: Expect) {
    let (mut session, p) = read(BLOCK);
    let micro = pipeline::micro(&mut session, p, Options::new(blocks), &FULL);
    let micro = micro.expect("the block is differentiable");
    expected.assert_eq(&print_program(&session, &micro));
}

#[test]
fn without_checkpointing_cheap_results_are_made_again() {
    checkpointed(
        Blocks::None,
        expect![[r#"
        program p {
          block layers.0
          %0 = input x f32[2,4]
          %1 = input mask f32[2]
          %2 = input norm f32[1]
          %20 = input beta f32[1]
          %3 = state gamma
          %4 = state up
          %5 = state down
          %21 = state grad.down
          %23 = state grad.up
          %25 = state grad.gamma
          %6 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm fwd
          %7 = linear(%6, %4) : f32[2,6] @ layers.0.up fwd
          %8 = activation(%7) {kind=silu} : f32[2,6] @ layers.0.activation fwd
          %9 = linear(%8, %5) : f32[2,4] @ layers.0.down fwd
          %10 = masked_mse(%9, %0, %1, %2) : f32[1] @ loss fwd
          %11 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ loss.fill bwd
          %12 = masked_mse_grad(%9, %0, %1, %2, %11) : f32[2,4] @ loss.masked_mse_grad bwd
          %13 = matmul(%12, %5) {ta=false, tb=false, acc=false, wide=false} : f32[2,6] @ layers.0.down.matmul bwd
          %27 = activation(%7) {kind=silu} : f32[2,6] @ layers.0.activation recompute
          %22 = matmul(%12, %27, %21, %20) {ta=true, tb=false, acc=true, wide=false} : f32[4,6] @ layers.0.down.matmul~2 bwd
          %15 = activation_grad(%7, %13) {kind=silu} : f32[2,6] @ layers.0.activation.activation_grad bwd
          %16 = matmul(%15, %4) {ta=false, tb=false, acc=false, wide=false} : f32[2,4] @ layers.0.up.matmul bwd
          %28 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm recompute
          %24 = matmul(%15, %28, %23, %20) {ta=true, tb=false, acc=true, wide=false} : f32[6,4] @ layers.0.up.matmul~2 bwd
          %18, %19 = rms_norm_grad(%0, %3, %16) {eps=0.00001} : f32[2,4], f32[4] @ layers.0.rms_norm.rms_norm_grad bwd
          %26 = accumulate(%25, %19, %20) : f32[4] @ layers.0.rms_norm.rms_norm_grad.accumulate bwd
          state grad.down leaves %22
          state grad.up leaves %24
          state grad.gamma leaves %26
          output loss %10
          unused %14 f32[4,6]
          unused %17 f32[6,4]
        }
    "#]],
    );
}

#[test]
fn checkpointing_makes_the_block_again() {
    checkpointed(
        Blocks::All,
        expect![[r#"
        program p {
          block layers.0
          %0 = input x f32[2,4]
          %1 = input mask f32[2]
          %2 = input norm f32[1]
          %20 = input beta f32[1]
          %3 = state gamma
          %4 = state up
          %5 = state down
          %21 = state grad.down
          %23 = state grad.up
          %25 = state grad.gamma
          %6 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm fwd
          %7 = linear(%6, %4) : f32[2,6] @ layers.0.up fwd
          %8 = activation(%7) {kind=silu} : f32[2,6] @ layers.0.activation fwd
          %9 = linear(%8, %5) : f32[2,4] @ layers.0.down fwd
          %10 = masked_mse(%9, %0, %1, %2) : f32[1] @ loss fwd
          %11 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ loss.fill bwd
          %12 = masked_mse_grad(%9, %0, %1, %2, %11) : f32[2,4] @ loss.masked_mse_grad bwd
          %13 = matmul(%12, %5) {ta=false, tb=false, acc=false, wide=false} : f32[2,6] @ layers.0.down.matmul bwd
          %27 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm recompute
          %28 = linear(%27, %4) : f32[2,6] @ layers.0.up recompute
          %29 = activation(%28) {kind=silu} : f32[2,6] @ layers.0.activation recompute
          %22 = matmul(%12, %29, %21, %20) {ta=true, tb=false, acc=true, wide=false} : f32[4,6] @ layers.0.down.matmul~2 bwd
          %15 = activation_grad(%28, %13) {kind=silu} : f32[2,6] @ layers.0.activation.activation_grad bwd
          %16 = matmul(%15, %4) {ta=false, tb=false, acc=false, wide=false} : f32[2,4] @ layers.0.up.matmul bwd
          %24 = matmul(%15, %27, %23, %20) {ta=true, tb=false, acc=true, wide=false} : f32[6,4] @ layers.0.up.matmul~2 bwd
          %18, %19 = rms_norm_grad(%0, %3, %16) {eps=0.00001} : f32[2,4], f32[4] @ layers.0.rms_norm.rms_norm_grad bwd
          %26 = accumulate(%25, %19, %20) : f32[4] @ layers.0.rms_norm.rms_norm_grad.accumulate bwd
          state grad.down leaves %22
          state grad.up leaves %24
          state grad.gamma leaves %26
          output loss %10
          unused %14 f32[4,6]
          unused %17 f32[6,4]
        }
    "#]],
    );
}

#[test]
fn checkpoint_obeys_any_tags() {
    let (mut session, p) = read(BLOCK);
    let p = differentiate(&mut session, p).expect("the block is differentiable");
    let none = policy::tag(&p, &Blocks::None, &FULL);
    let all_off = Checkpoint { recompute: vec![false; none.len()] };
    let same = pipeline::run(&mut session, p.clone(), &all_off).expect("no tag");
    assert_eq!(print_program(&session, &p), print_program(&session, &same), "no tag, no change");
}

#[test]
fn update_and_averages() {
    let mut session = parse(
        "state w = parameter f32[3,4] trainable
        state frozen = parameter f32[3]
        state grad.w = gradient f32[3,4]",
    )
    .expect("the states parse");
    let adamw = Optimizer::from(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 });
    for p in [optimizer::update(&mut session, &adamw), optimizer::ema(&mut session)] {
        verify(&session, &p).expect("the optimizer's programs are well formed");
        session.programs.push(p);
    }
    expect![[r#"
        state w = parameter f32[3,4] trainable
        state frozen = parameter f32[3]
        state grad.w = gradient f32[3,4]
        state step = counter f32[1]
        state exp_avg.w = optimizer f32[3,4]
        state exp_avg_sq.w = optimizer f32[3,4]
        state ema.w = ema f32[3,4]

        program update {
          %0 = input lr f32[1]
          %1 = input clip f32[1]
          %2 = state grad.w
          %12 = state step
          %14 = state w
          %15 = state exp_avg.w
          %16 = state exp_avg_sq.w
          %3 = sum_squares(%2) : f32[1] @ sum_squares update
          %4 = sum_partials(%3) : f32[1] @ sum_partials update
          %5 = unary(%4) {kind=is_finite} : f32[1] @ unary update
          %6 = unary(%4) {kind=sqrt} : f32[1] @ unary~2 update
          %7 = fill() {value=0.000001, dtype=f32, shape=[1]} : f32[1] @ fill update
          %8 = binary(%6, %7) {kind=add} : f32[1] @ binary update
          %9 = binary(%1, %8) {kind=div} : f32[1] @ binary~2 update
          %10 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ fill~2 update
          %11 = binary(%9, %10) {kind=min} : f32[1] @ binary~3 update
          %13 = accumulate(%12, %5, %10) : f32[1] @ accumulate update
          %17, %18, %19 = adamw(%14, %2, %15, %16, %0, %11, %13, %5) {beta1=0.9, beta2=0.999, eps=0.00000001, weight_decay=0.01} : f32[3,4], f32[3,4], f32[3,4] @ w.adamw update
          state step leaves %13
          state w leaves %17
          state exp_avg.w leaves %18
          state exp_avg_sq.w leaves %19
          output grad_norm %6
          output apply %5
          output step %13
        }

        program ema {
          %0 = input decay f32[1]
          %2 = state w
          %3 = state ema.w
          %1 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ fill update
          %4 = lerp(%3, %2, %0, %1) : f32[3,4] @ w.lerp update
          state ema.w leaves %4
        }
    "#]].assert_eq(&print_session(&session));
}
