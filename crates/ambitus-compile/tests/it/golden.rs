//! What each pass does to a tiny program, in the text form. `UPDATE_EXPECT=1 cargo test` rewrites the expectations.

use ambitus_compile::autodiff::differentiate;
use ambitus_compile::passes::accumulate::Accumulate;
use ambitus_compile::passes::dead::Dead;
use ambitus_compile::passes::fuse::Fuse;
use ambitus_compile::passes::lora::{Adapt, Lora};
use ambitus_compile::passes::lower::Lower;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::schedule::Schedule;
use ambitus_compile::passes::simplify::Simplify;
use ambitus_compile::pipeline;
use ambitus_ir::target::Target;
use ambitus_ir::text::{parse, print_program, print_session};
use ambitus_ir::verify::verify;
use ambitus_ir::{DType, Op, Program, Session, TensorType};
use ambitus_testkit::paper::{FULL, Paper};
use expect_test::{Expect, expect};

const AFTER: Simplify = Simplify { before_autodiff: false };
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
        p = pipeline::run(&mut session, p, *pass).expect("nothing is refused");
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
    after(
        text,
        &[&AFTER],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ a.fill fwd
          %2 = binary(%0, %1) {kind=add} : f32[2,4] @ a.binary fwd
          %5 = binary(%2, %2) {kind=mul} : f32[2,4] @ c.binary fwd
          output y %5
          unused %3 f32[2,4]
          unused %4 f32[2,4]
        }
    "#]],
    );
}

#[test]
fn lora_adds_a_narrow_way_and_freezes_the_rest() {
    let text = "
    state m.q.weight = parameter f32[8,4] trainable
    state m.q.bias = parameter f32[8] trainable
    program p {
        %0 = input x f32[6,4]
        %1 = input segments i32[3]
        %2 = state m.q.weight
        %3 = state m.q.bias
        %4 = linear(%0, %2, %3) : f32[6,8] @ m.q.linear fwd
        %5 = activation(%4) {kind=silu} : f32[6,8] @ m.activation fwd
        output y %5
    }";
    let (mut session, p) = read(text);
    let lora = Lora {
        rank: 2,
        alpha: 3.0,
        dropout: 0.5,
        rank_stabilised: false,
        targets: vec![Pattern::new("*.q")],
        also_train: Vec::new(),
    };
    let pass = Adapt { lora: &lora, training: true };
    let p = pipeline::run(&mut session, p, &pass).expect("the pattern fits");
    session.programs.push(p);
    expect![[r#"
        state m.q.weight = parameter f32[8,4]
        state m.q.bias = parameter f32[8]
        state m.q.lora_A.weight = parameter f32[2,4] trainable
        state m.q.lora_B.weight = parameter f32[8,2] trainable

        program p {
          %0 = input x f32[6,4]
          %1 = input segments i32[3]
          %6 = input keys i32[2,2]
          %2 = state m.q.weight
          %3 = state m.q.bias
          %8 = state m.q.lora_A.weight
          %9 = state m.q.lora_B.weight
          %4 = linear(%0, %2, %3) : f32[6,8] @ m.q.linear fwd
          %7 = dropout(%0, %6, %1) {p=0.5, id=4191167323322370211} : f32[6,4] @ m.q.linear.lora.dropout fwd
          %10 = linear(%7, %8) : f32[6,2] @ m.q.linear.lora.linear fwd
          %11 = fill() {value=1.5, dtype=f32, shape=[1]} : f32[1] @ m.q.linear.lora.fill fwd
          %12 = scale(%10, %11) : f32[6,2] @ m.q.linear.lora.scale fwd
          %13 = linear(%12, %9) : f32[6,8] @ m.q.linear.lora.linear~2 fwd
          %14 = binary(%4, %13) {kind=add} : f32[6,8] @ m.q.linear.lora.binary fwd
          %5 = activation(%14) {kind=silu} : f32[6,8] @ m.activation fwd
          output y %5
        }
    "#]]
    .assert_eq(&print_session(&session));
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
    after(
        text,
        &[&AFTER],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          %2 = activation(%0) {kind=silu} : f32[2,4] @ a recompute
          %3 = binary(%1, %2) {kind=mul} : f32[2,4] @ c bwd
          output y %3
        }
    "#]],
    );
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
        %6, %7, %8 = linear_cross_entropy_grad(%0, %3, %1, %2, %5) {tile=2, dw=true, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
        output loss %4
        output grad.w %8
    }";
    after(
        text,
        &[&AFTER],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input labels i32[2]
          %2 = input norm f32[1]
          %3 = state w
          %5 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ seed bwd
          %6, %7, %8 = linear_cross_entropy_grad(%0, %3, %1, %2, %5) {tile=2, dw=true, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
          output loss %6
          output grad.w %8
          unused %4 f32[1]
        }
    "#]],
    );
}

#[test]
fn simplify_moves_the_sum_of_losses_behind_the_heads() {
    let text = "
    state w = parameter f32[8,4] trainable
    program p {
        %0 = input x f32[2,4]
        %1 = input labels i32[2]
        %2 = input norm f32[1]
        %3 = state w
        %4 = linear_cross_entropy(%0, %3, %1, %2) {tile=2} : f32[1] @ head fwd
        %5 = binary(%4, %2) {kind=add} : f32[1] @ sum fwd
        %6 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ seed bwd
        %7, %8, %9 = linear_cross_entropy_grad(%0, %3, %1, %2, %6) {tile=2, dw=true, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
        output loss %5
        output grad.w %9
    }";
    after(
        text,
        &[&AFTER],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input labels i32[2]
          %2 = input norm f32[1]
          %3 = state w
          %6 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ seed bwd
          %7, %8, %9 = linear_cross_entropy_grad(%0, %3, %1, %2, %6) {tile=2, dw=true, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
          %5 = binary(%7, %2) {kind=add} : f32[1] @ sum fwd
          output loss %5
          output grad.w %9
          unused %4 f32[1]
        }
    "#]],
    );
    // The gradient of a squared loss needs the loss first.
    let square = text.replace("binary(%4, %2) {kind=add}", "binary(%4, %4) {kind=mul}");
    let square = square.replace("%3, %1, %2, %6)", "%3, %1, %2, %4)");
    after(
        &square,
        &[&AFTER],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input labels i32[2]
          %2 = input norm f32[1]
          %3 = state w
          %4 = linear_cross_entropy(%0, %3, %1, %2) {tile=2} : f32[1] @ head fwd
          %5 = binary(%4, %4) {kind=mul} : f32[1] @ sum fwd
          %7, %8, %9 = linear_cross_entropy_grad(%0, %3, %1, %2, %4) {tile=2, dw=true, acc=false} : f32[1], f32[2,4], f32[8,4] @ head bwd
          output loss %5
          output grad.w %9
          unused %6 f32[1]
        }
    "#]],
    );
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
          %13 = matmul(%12, %0) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ a.linear.matmul bwd
          output loss %7
          output grad.w %13
        }
    "#]]
    .assert_eq(&print_program(&session, &p));
}

#[test]
fn lower_replaces_what_the_target_lacks() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = input m f32[2]
        %2 = scale_rows(%0, %1) : f32[2,4] @ a.scale_rows fwd
        output y %2
    }";
    after(
        text,
        &[&Lower { target: &BARE }],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input m f32[2]
          %3 = reshape(%1) {shape=[2,1]} : f32[2,1] @ a.scale_rows.reshape fwd
          %4 = broadcast(%3) {shape=[2,4]} : f32[2,4] @ a.scale_rows.broadcast fwd
          %5 = binary(%0, %4) {kind=mul} : f32[2,4] @ a.scale_rows.binary fwd
          output y %5
          unused %2 f32[2,4]
        }
    "#]],
    );
    after(
        text,
        &[&Lower { target: &FULL }],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input m f32[2]
          %2 = scale_rows(%0, %1) : f32[2,4] @ a.scale_rows fwd
          output y %2
        }
    "#]],
    );
}

/// A weight used twice: two contributions to one gradient.
const SHARED: &str = "
    state w = parameter f32[3,4] trainable
    program p {
        %0 = input dy f32[2,3]
        %1 = input x f32[2,4]
        %2 = matmul(%0, %1) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ late bwd
        %3 = matmul(%0, %1) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ early bwd
        %4 = binary(%2, %3) {kind=add} : f32[3,4] @ early.binary bwd
        output grad.w %4
    }";

/// A target whose attention takes f32 only.
struct Narrow;

impl Target for Narrow {
    fn name(&self) -> &str {
        "narrow"
    }
    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
        let wide = x.iter().chain(y).all(|t| !t.dtype.is_float() || t.dtype == DType::F32);
        !matches!(op, Op::Attention(_)) || wide
    }
    fn workspace(&self, _: &Op, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }
    fn shares(&self, _: &Op, _: usize, _: usize) -> bool {
        false
    }
    fn seconds(&self, _: &Op, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }
}

#[test]
fn lower_wraps_what_the_target_has_in_f32_only() {
    let text = "program p {
        %0 = input q bf16[4,2]
        %1 = input k bf16[4,2]
        %2 = input seg i32[3]
        %3, %4 = attention(%0, %1, %1, %2, %2) {heads=1, kv_heads=1, head_dim=2, causal=false, scale=1} : bf16[4,2], f32[4,1] @ a.attention fwd
        %5 = binary(%3, %0) {kind=add} : bf16[4,2] @ a.binary fwd
        output y %5
        output lse %4
    }";
    after(
        text,
        &[&Lower { target: &Narrow }],
        expect![[r#"
        program p {
          %0 = input q bf16[4,2]
          %1 = input k bf16[4,2]
          %2 = input seg i32[3]
          %6 = cast(%0) {to=f32} : f32[4,2] @ a.attention.cast fwd
          %7 = cast(%1) {to=f32} : f32[4,2] @ a.attention.cast~2 fwd
          %8, %9 = attention(%6, %7, %7, %2, %2) {heads=1, kv_heads=1, head_dim=2, causal=false, scale=1} : f32[4,2], f32[4,1] @ a.attention fwd
          %10 = cast(%8) {to=bf16} : bf16[4,2] @ a.attention.cast~3 fwd
          %5 = binary(%10, %0) {kind=add} : bf16[4,2] @ a.binary fwd
          output y %5
          output lse %9
          unused %3 bf16[4,2]
          unused %4 f32[4,1]
        }
    "#]],
    );
}

#[test]
fn accumulate_adds_each_contribution_where_it_is_made() {
    after(
        SHARED,
        &[&Accumulate { several_only: false }],
        expect![[r#"
        program p {
          %0 = input dy f32[2,3]
          %1 = input x f32[2,4]
          %5 = input beta f32[1]
          %6 = state grad.w
          %2 = matmul(%0, %1) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ late bwd
          %7 = accumulate(%6, %2, %5) : f32[3,4] @ late.accumulate bwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ early.fill bwd
          %3 = matmul(%0, %1) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ early bwd
          %9 = accumulate(%7, %3, %8) : f32[3,4] @ early.accumulate bwd
          state grad.w leaves %9
          unused %4 f32[3,4]
        }
    "#]],
    );
}

#[test]
fn fuse_adds_in_place() {
    after(
        SHARED,
        &[&Accumulate { several_only: false }, &Fuse { target: &FULL }],
        expect![[r#"
        program p {
          %0 = input dy f32[2,3]
          %1 = input x f32[2,4]
          %5 = input beta f32[1]
          %6 = state grad.w
          %7 = matmul(%0, %1, %6, %5) {ta=true, tb=false, acc=true, wide=false} : f32[3,4] @ late bwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ early.fill bwd
          %9 = matmul(%0, %1, %7, %8) {ta=true, tb=false, acc=true, wide=false} : f32[3,4] @ early bwd
          state grad.w leaves %9
          unused %2 f32[3,4]
          unused %3 f32[3,4]
          unused %4 f32[3,4]
        }
    "#]],
    );
    after(
        SHARED,
        &[&Accumulate { several_only: false }, &Fuse { target: &BARE }],
        expect![[r#"
        program p {
          %0 = input dy f32[2,3]
          %1 = input x f32[2,4]
          %5 = input beta f32[1]
          %6 = state grad.w
          %2 = matmul(%0, %1) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ late bwd
          %7 = accumulate(%6, %2, %5) : f32[3,4] @ late.accumulate bwd
          %8 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ early.fill bwd
          %3 = matmul(%0, %1) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ early bwd
          %9 = accumulate(%7, %3, %8) : f32[3,4] @ early.accumulate bwd
          state grad.w leaves %9
          unused %4 f32[3,4]
        }
    "#]],
    );
}

#[test]
fn dead_code_goes() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
        %2 = activation(%1) {kind=silu} : f32[2,4] @ b fwd
        output y %1
    }";
    after(
        text,
        &[&Dead],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          output y %1
          unused %2 f32[2,4]
        }
    "#]],
    );
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
    after(
        text,
        &[&Schedule],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %2 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          %3 = activation(%2) {kind=mish} : f32[2,4] @ b fwd
          %1 = fill() {value=0, dtype=f32, shape=[2,4]} : f32[2,4] @ zeros fwd
          %4 = binary(%3, %1) {kind=add} : f32[2,4] @ c fwd
          output y %4
        }
    "#]],
    );
}

/// The first reader moves down; what it reads must still come before its second reader, which stays.
#[test]
fn schedule_heeds_every_reader() {
    let text = "program p {
        %0 = input x f32[2,4]
        %1 = input table f32[1,4]
        %2 = broadcast(%1) {shape=[2,4]} : f32[2,4] @ wide fwd
        %4 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
        %3 = concat(%2, %2) {axis=0} : f32[4,4] @ moves fwd
        %5 = binary(%4, %2) {kind=add} : f32[2,4] @ stays fwd
        %6 = activation(%5) {kind=mish} : f32[2,4] @ b fwd
        %7 = concat(%6, %3) {axis=0} : f32[6,4] @ c fwd
        output y %7
    }";
    after(
        text,
        &[&Schedule],
        expect![[r#"
        program p {
          %0 = input x f32[2,4]
          %1 = input table f32[1,4]
          %4 = activation(%0) {kind=silu} : f32[2,4] @ a fwd
          %2 = broadcast(%1) {shape=[2,4]} : f32[2,4] @ wide fwd
          %5 = binary(%4, %2) {kind=add} : f32[2,4] @ stays fwd
          %6 = activation(%5) {kind=mish} : f32[2,4] @ b fwd
          %3 = concat(%2, %2) {axis=0} : f32[4,4] @ moves fwd
          %7 = concat(%6, %3) {axis=0} : f32[6,4] @ c fwd
          output y %7
        }
    "#]],
    );
}
