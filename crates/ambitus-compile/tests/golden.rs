//! What each pass does to a tiny program, in the text form. `UPDATE_EXPECT=1 cargo test` rewrites the expectations.

mod common;

use ambitus_compile::autodiff::differentiate;
use ambitus_compile::optimizer;
use ambitus_compile::passes::accumulate::Accumulate;
use ambitus_compile::passes::checkpoint::Checkpoint;
use ambitus_compile::passes::dead::Dead;
use ambitus_compile::passes::fuse::Fuse;
use ambitus_compile::passes::lower::Lower;
use ambitus_compile::passes::policy::{self, Blocks};
use ambitus_compile::passes::schedule::Schedule;
use ambitus_compile::passes::simplify::Simplify;
use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::text::{parse, print_program, print_session};
use ambitus_ir::verify::verify;
use ambitus_ir::{Program, Session};
use common::{FULL, Paper};
use expect_test::{Expect, expect};

const BARE: Paper = Paper { fused: false, shares: false };

/// The one program of a text, checked, and its session.
fn read(text: &str) -> (Session, Program) {
    let mut session = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let p = session.programs.remove(0);
    verify(&session, &p).unwrap_or_else(|e| panic!("{e}"));
    (session, p)
}

/// Runs passes over a text, each one's result verified.
fn after(text: &str, passes: &[&dyn ambitus_compile::passes::Pass], expected: Expect) {
    let (mut session, mut p) = read(text);
    for pass in passes {
        p = pipeline::run(&mut session, p, *pass);
    }
    expected.assert_eq(&print_program(&session, &p));
}

#[test]
fn simplify_merges_equal_instructions() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ a.fill fwd
        %2 = binary(%0, %1) {kind=add} : f32[2,4] @ a.binary fwd
        %3 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ b.fill bwd
        %4 = binary(%0, %3) {kind=add} : f32[2,4] @ b.binary bwd
        %5 = binary(%2, %4) {kind=mul} : f32[2,4] @ c.binary fwd
        output y %5
    }";
    after(text, &[&Simplify], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ a.fill fwd
          %2 = binary(%0, %1) {kind=add} : f32[2,4] @ a.binary fwd
          %5 = binary(%2, %2) {kind=mul} : f32[2,4] @ c.binary fwd
          output y %5
          unused %3 f32[2,4]
          unused %4 f32[2,4]
        }
    "#]]);
}

#[test]
fn simplify_keeps_clones_apart_from_their_originals() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
        %2 = activation(%0) {kind=silu} : f32[2,4] @ a recompute
        %3 = binary(%1, %2) {kind=mul} : f32[2,4] @ c bwd
        output y %3
    }";
    after(text, &[&Simplify], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          %2 = activation(%0) {kind=silu} : f32[2,4] @ a recompute
          %3 = binary(%1, %2) {kind=mul} : f32[2,4] @ c bwd
          output y %3
        }
    "#]]);
}

#[test]
fn simplify_takes_the_loss_from_the_heads_gradient() {
    let text = "
    state w = parameter f32[8,4] trainable
    program p {
        %0 = input x f32[2,4]
        %1 = input labels i32[2]
        %2 = input norm f32[1]
        %3 = state w
        %4 = linear_cross_entropy(%0, %3, %1, %2) {tile=2} : f32[1] @ head fwd
        %5 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ seed bwd
        %6, %7, %8 = linear_cross_entropy_grad(%0, %3, %1, %2, %5) {tile=2, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
        output loss %4
        output grad.w %8
    }";
    after(text, &[&Simplify], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input labels i32[2]
          %2 = input norm f32[1]
          %3 = state w
          %5 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ seed bwd
          %6, %7, %8 = linear_cross_entropy_grad(%0, %3, %1, %2, %5) {tile=2, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
          output loss %6
          output grad.w %8
          unused %4 f32[1]
        }
    "#]]);
}

#[test]
fn autodiff_appends_the_backward() {
    let text = "
    state w = parameter f32[3,4] trainable
    state table = parameter f32[2,3]
    program p {
        %0 = input x f32[2,4]
        %1 = input mask f32[2]
        %2 = input norm f32[1]
        %3 = state w
        %4 = state table
        %5 = linear(%0, %3) : f32[2,3] @ a.linear fwd
        %6 = binary(%5, %5) {kind=mul} : f32[2,3] @ a.square fwd
        %7 = masked_mse(%6, %4, %1, %2) : f32[1] @ loss fwd
        output loss %7
    }";
    let (mut session, p) = read(text);
    let p = differentiate(&mut session, p).expect("the loss depends on w");
    verify(&session, &p).expect("autodiff keeps the invariants");
    expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input mask f32[2]
          %2 = input norm f32[1]
          %3 = state w
          %4 = state table
          %5 = linear(%0, %3) : f32[2,3] @ a.linear fwd
          %6 = binary(%5, %5) {kind=mul} : f32[2,3] @ a.square fwd
          %7 = masked_mse(%6, %4, %1, %2) : f32[1] @ loss fwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ loss.fill bwd
          %9 = masked_mse_grad(%6, %4, %1, %2, %8) : f32[2,3] @ loss.masked_mse_grad bwd
          %10 = binary(%9, %5) {kind=mul} : f32[2,3] @ a.square.binary bwd
          %11 = binary(%9, %5) {kind=mul} : f32[2,3] @ a.square.binary~2 bwd
          %12 = binary(%10, %11) {kind=add} : f32[2,3] @ a.square.binary~3 bwd
          %13 = matmul(%12, %0) {ta=true, tb=false, acc=false} : f32[3,4] @ a.linear.matmul bwd
          output loss %7
          output grad.w %13
        }
    "#]].assert_eq(&print_program(&session, &p));
}

#[test]
fn lower_replaces_what_the_target_lacks() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = input m f32[2]
        %2 = scale_rows(%0, %1) : f32[2,4] @ a.scale_rows fwd
        output y %2
    }";
    after(text, &[&Lower { target: &BARE }], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input m f32[2]
          %3 = reshape(%1) {shape=[2,1]} : f32[2,1] @ a.scale_rows.reshape fwd
          %4 = broadcast(%3) {shape=[2,4]} : f32[2,4] @ a.scale_rows.broadcast fwd
          %5 = binary(%0, %4) {kind=mul} : f32[2,4] @ a.scale_rows.binary fwd
          output y %5
          unused %2 f32[2,4]
        }
    "#]]);
    after(text, &[&Lower { target: &FULL }], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input m f32[2]
          %2 = scale_rows(%0, %1) : f32[2,4] @ a.scale_rows fwd
          output y %2
        }
    "#]]);
}

/// A weight used twice: two contributions to one gradient.
const SHARED: &str = "
    state w = parameter f32[3,4] trainable
    program p {
        %0 = input dy f32[2,3]
        %1 = input x f32[2,4]
        %2 = matmul(%0, %1) {ta=true, tb=false, acc=false} : f32[3,4] @ late bwd
        %3 = matmul(%0, %1) {ta=true, tb=false, acc=false} : f32[3,4] @ early bwd
        %4 = binary(%2, %3) {kind=add} : f32[3,4] @ early.binary bwd
        output grad.w %4
    }";

#[test]
fn accumulate_adds_each_contribution_where_it_is_made() {
    after(SHARED, &[&Accumulate], expect![[r#"
        program p {
          %0 = input dy f32[2,3]
          %1 = input x f32[2,4]
          %5 = input beta f32[1]
          %6 = state grad.w
          %2 = matmul(%0, %1) {ta=true, tb=false, acc=false} : f32[3,4] @ late bwd
          %7 = accumulate(%6, %2, %5) : f32[3,4] @ late.accumulate bwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ early.fill bwd
          %3 = matmul(%0, %1) {ta=true, tb=false, acc=false} : f32[3,4] @ early bwd
          %9 = accumulate(%7, %3, %8) : f32[3,4] @ early.accumulate bwd
          state grad.w leaves %9
          unused %4 f32[3,4]
        }
    "#]]);
}

#[test]
fn fuse_adds_in_place() {
    after(SHARED, &[&Accumulate, &Fuse { target: &FULL }], expect![[r#"
        program p {
          %0 = input dy f32[2,3]
          %1 = input x f32[2,4]
          %5 = input beta f32[1]
          %6 = state grad.w
          %7 = matmul(%0, %1, %6, %5) {ta=true, tb=false, acc=true} : f32[3,4] @ late bwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ early.fill bwd
          %9 = matmul(%0, %1, %7, %8) {ta=true, tb=false, acc=true} : f32[3,4] @ early bwd
          state grad.w leaves %9
          unused %2 f32[3,4]
          unused %3 f32[3,4]
          unused %4 f32[3,4]
        }
    "#]]);
    after(SHARED, &[&Accumulate, &Fuse { target: &BARE }], expect![[r#"
        program p {
          %0 = input dy f32[2,3]
          %1 = input x f32[2,4]
          %5 = input beta f32[1]
          %6 = state grad.w
          %2 = matmul(%0, %1) {ta=true, tb=false, acc=false} : f32[3,4] @ late bwd
          %7 = accumulate(%6, %2, %5) : f32[3,4] @ late.accumulate bwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ early.fill bwd
          %3 = matmul(%0, %1) {ta=true, tb=false, acc=false} : f32[3,4] @ early bwd
          %9 = accumulate(%7, %3, %8) : f32[3,4] @ early.accumulate bwd
          state grad.w leaves %9
          unused %4 f32[3,4]
        }
    "#]]);
}

#[test]
fn dead_code_goes() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
        %2 = activation(%1) {kind=silu} : f32[2,4] @ b fwd
        output y %1
    }";
    after(text, &[&Dead], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          output y %1
          unused %2 f32[2,4]
        }
    "#]]);
}

#[test]
fn schedule_moves_makers_to_their_first_reader() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ zeros fwd
        %2 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
        %3 = activation(%2) {kind=mish} : f32[2,4] @ b fwd
        %4 = binary(%3, %1) {kind=add} : f32[2,4] @ c fwd
        output y %4
    }";
    after(text, &[&Schedule], expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %2 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          %3 = activation(%2) {kind=mish} : f32[2,4] @ b fwd
          %1 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ zeros fwd
          %4 = binary(%3, %1) {kind=add} : f32[2,4] @ c fwd
          output y %4
        }
    "#]]);
}

/// A block: norm, product, activation, product, and their gradients.
const BLOCK: &str = "
    state gamma = parameter f32[4] trainable
    state up = parameter f32[6,4] trainable
    state down = parameter f32[4,6] trainable
    program p {
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
    let (mut session, mut p) = read(BLOCK);
    p.blocks = vec!["layers.0".to_owned()];
    let micro = pipeline::micro(&mut session, p, Options { checkpoint: blocks }, &FULL);
    let micro = micro.expect("the block is differentiable");
    expected.assert_eq(&print_program(&session, &micro));
}

#[test]
fn without_checkpointing_cheap_results_are_made_again() {
    checkpointed(Blocks::None, expect![[r#"
        program p {
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
          %13 = matmul(%12, %5) {ta=false, tb=false, acc=false} : f32[2,6] @ layers.0.down.matmul bwd
          %27 = activation(%7) {kind=silu} : f32[2,6] @ layers.0.activation recompute
          %22 = matmul(%12, %27, %21, %20) {ta=true, tb=false, acc=true} : f32[4,6] @ layers.0.down.matmul~2 bwd
          %15 = activation_grad(%7, %13) {kind=silu} : f32[2,6] @ layers.0.activation.activation_grad bwd
          %16 = matmul(%15, %4) {ta=false, tb=false, acc=false} : f32[2,4] @ layers.0.up.matmul bwd
          %28 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm recompute
          %24 = matmul(%15, %28, %23, %20) {ta=true, tb=false, acc=true} : f32[6,4] @ layers.0.up.matmul~2 bwd
          %18, %19 = rms_norm_grad(%0, %3, %16) {eps=0.00001} : f32[2,4], f32[4] @ layers.0.rms_norm.rms_norm_grad bwd
          %26 = accumulate(%25, %19, %20) : f32[4] @ layers.0.rms_norm.rms_norm_grad.accumulate bwd
          state grad.down leaves %22
          state grad.up leaves %24
          state grad.gamma leaves %26
          output loss %10
          unused %14 f32[4,6]
          unused %17 f32[6,4]
        }
    "#]]);
}

#[test]
fn checkpointing_makes_the_block_again() {
    checkpointed(Blocks::All, expect![[r#"
        program p {
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
          %13 = matmul(%12, %5) {ta=false, tb=false, acc=false} : f32[2,6] @ layers.0.down.matmul bwd
          %27 = rms_norm(%0, %3) {eps=0.00001} : f32[2,4] @ layers.0.rms_norm recompute
          %28 = linear(%27, %4) : f32[2,6] @ layers.0.up recompute
          %29 = activation(%28) {kind=silu} : f32[2,6] @ layers.0.activation recompute
          %22 = matmul(%12, %29, %21, %20) {ta=true, tb=false, acc=true} : f32[4,6] @ layers.0.down.matmul~2 bwd
          %15 = activation_grad(%28, %13) {kind=silu} : f32[2,6] @ layers.0.activation.activation_grad bwd
          %16 = matmul(%15, %4) {ta=false, tb=false, acc=false} : f32[2,4] @ layers.0.up.matmul bwd
          %24 = matmul(%15, %27, %23, %20) {ta=true, tb=false, acc=true} : f32[6,4] @ layers.0.up.matmul~2 bwd
          %18, %19 = rms_norm_grad(%0, %3, %16) {eps=0.00001} : f32[2,4], f32[4] @ layers.0.rms_norm.rms_norm_grad bwd
          %26 = accumulate(%25, %19, %20) : f32[4] @ layers.0.rms_norm.rms_norm_grad.accumulate bwd
          state grad.down leaves %22
          state grad.up leaves %24
          state grad.gamma leaves %26
          output loss %10
          unused %14 f32[4,6]
          unused %17 f32[6,4]
        }
    "#]]);
}

#[test]
fn checkpoint_obeys_any_tags() {
    let (mut session, p) = read(BLOCK);
    let p = differentiate(&mut session, p).expect("the block is differentiable");
    let none = policy::tag(&p, Blocks::None);
    let all_off = Checkpoint { recompute: vec![false; none.len()] };
    let same = pipeline::run(&mut session, p.clone(), &all_off);
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
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
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
