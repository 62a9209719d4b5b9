//! Offload to the host: the same bits with every form of it, fewer bytes on the device, and programs that the verifier and
//! the second opinion on plans accept.

use ambitus_compile::optimizer::{Optimizer, Rule, States};
use ambitus_compile::passes::Pass;
use ambitus_compile::passes::offload::{Kept, Offload};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::pipeline::{self, Options, Pipeline};
use ambitus_compile::plan::{plan, report};
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::{PlannedSession, Region};
use ambitus_ir::target::Target;
use ambitus_ir::text::{parse, print_program, print_session};
use ambitus_ir::{Program, Session, StateKind, TensorType};
use ambitus_models::{Capacity, f5, orpheus};
use ambitus_testkit::owners;
use ambitus_testkit::paper::FULL;
use ambitus_testkit::toys::{three_updates, toys};
use expect_test::expect;

const ADAMW: Optimizer = Optimizer {
    rule: Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};

type Model<'a> = &'a dyn Fn(&mut Session) -> Program;

/// All programs of an update with averages, as a run has them.
fn session(model: Model<'_>, checkpoint: Blocks, in_backward: bool, offload: &Offload) -> Session {
    let mut s = Session::default();
    let forward = model(&mut s);
    let options = Options {
        optimizer: Some(ADAMW),
        update_in_backward: in_backward,
        ema: true,
        offload: *offload,
        ..Options::new(checkpoint)
    };
    session_of(s, forward, &options)
}

fn session_of(s: Session, forward: Program, options: &Options) -> Session {
    let s = Pipeline::new(options, &FULL).session(s, vec![forward], Vec::new());
    s.expect("the model is differentiable")
}

/// Every form alone, and all together, for tensors of any size.
fn forms(near: usize) -> Vec<(&'static str, Offload)> {
    let (least, none) = (0, Offload { least: 0, near, ..Offload::default() });
    vec![
        ("parameters", Offload { parameters: true, ..none }),
        ("gradients", Offload { gradients: true, ..none }),
        ("half the optimizer", Offload { optimizer: 0.5, ..none }),
        ("optimizer", Offload { optimizer: 1.0, ..none }),
        ("ema", Offload { ema: true, ..none }),
        ("what blocks hand on", Offload { activations: Kept::Blocks, ..none }),
        ("activations", Offload { activations: Kept::All, ..none }),
        ("all", Offload { least, near, ..Offload::all() }),
    ]
}

#[test]
fn three_updates_give_the_same_bits_with_every_form() {
    for toy in toys() {
        for (blocks, in_backward, near) in
            [(Blocks::None, false, 2), (Blocks::All, false, 8), (Blocks::First(1), true, 0)]
        {
            let run = |offload: &Offload| {
                let s = session(&toy.model, blocks.clone(), in_backward, offload);
                let moved = s.states.iter().filter(|d| d.home == Space::Host).count();
                let copies = s.programs.iter().flat_map(|p| &p.instrs);
                (
                    three_updates(&s, &toy.whole, 0.5),
                    moved,
                    copies.filter(|i| i.op.def().queue().is_some()).count(),
                )
            };
            let (want, _, _) = run(&Offload::default());
            for (name, form) in forms(near) {
                let (have, moved, copies) = run(&form);
                let gone = in_backward && name == "gradients" && moved == 0;
                assert!(copies > 0 || gone, "{}: {name} moves nothing", toy.name);
                assert_eq!(want.1, have.1, "{}: {name}, {blocks:?}", toy.name);
                assert_eq!(want.0.len(), have.0.len());
                for (state, t) in &want.0 {
                    let same =
                        t.data.iter().zip(&have.0[state].data).all(|(a, b)| a.to_bits() == b.to_bits());
                    let finite = state.starts_with("grad.") || t.data.iter().all(|x| x.is_finite());
                    assert!(finite, "{}: {state}", toy.name);
                    assert!(same, "{}: {state} with {name} on the host, {blocks:?}", toy.name);
                }
            }
        }
    }
}

#[test]
fn plans_hold_byte_by_byte() {
    for toy in toys() {
        for (blocks, in_backward, near) in [(Blocks::None, false, 32), (Blocks::All, true, 3)] {
            for (name, form) in forms(near) {
                let s = session(&toy.model, blocks.clone(), in_backward, &form);
                let text = print_session(&s);
                assert_eq!(
                    print_session(&parse(&text).expect(name)),
                    text,
                    "homes and stores have a text form"
                );
                let planned = plan(s, &FULL, 1);
                owners::check(&planned, &FULL);
                assert!(planned.host_bytes >= planned.host_state_bytes);
                for (decl, at) in planned.session.states.iter().zip(&planned.states) {
                    let region = if decl.home == Space::Host { Region::Host } else { Region::State };
                    assert_eq!(at.region, region, "{}", decl.name);
                }
            }
        }
    }
}

const PAIR: &str = "
    state w = parameter f32[4,4] trainable host
    state grad.w = gradient f32[4,4] host
    program p {
        %0 = input x f32[4,4]
        %1 = input beta f32[1]
        %2 = state w
        %3 = state grad.w
        %4 = linear(%0, %2) : f32[4,4] @ layer fwd
        %5 = activation(%4) {kind=silu} : f32[4,4] @ silu fwd
        %6 = matmul(%5, %2) {ta=false, tb=false, acc=false, wide=false} : f32[4,4] @ layer.dx bwd
        %7 = matmul(%6, %0, %3, %1) {ta=true, tb=false, acc=true, wide=false} : f32[4,4] @ layer.dw bwd
        output dx %6
        state grad.w leaves %7
    }";

#[test]
fn before_and_after() {
    let mut s = parse(PAIR).expect("the text parses");
    let p = s.programs.remove(0);
    let p = pipeline::run(&mut s, p, &Offload::default()).expect("copies");
    expect![[r#"
        program p {
          %0 = input x f32[4,4]
          %1 = input beta f32[1]
          %2 = state w
          %3 = state grad.w
          %8, %9 = copy_start(%2) {queue=0, to=device} : f32[4,4], u8[1] @ layer.copy_start fwd
          %10, %11 = copy_start(%3) {queue=0, to=device} : f32[4,4], u8[1] @ layer.dw.copy_start bwd
          %12 = copy_done(%2, %8, %9) {queue=0} : f32[4,4] @ layer.copy_done fwd
          %4 = linear(%0, %12) : f32[4,4] @ layer fwd
          %5 = activation(%4) {kind=silu} : f32[4,4] @ silu fwd
          %6 = matmul(%5, %12) {ta=false, tb=false, acc=false, wide=false} : f32[4,4] @ layer.dx bwd
          %13 = copy_done(%3, %10, %11) {queue=0} : f32[4,4] @ layer.dw.copy_done bwd
          %7 = matmul(%6, %0, %13, %1) {ta=true, tb=false, acc=true, wide=false} : f32[4,4] @ layer.dw bwd
          %14, %15 = store_start(%7, %3) {queue=1} : f32[4,4], u8[1] @ layer.dw.store_start bwd
          %16 = copy_done(%7, %14, %15) {queue=1} : f32[4,4] @ layer.dw.copy_done~2 bwd
          state grad.w leaves %16
          output dx %6
        }
    "#]]
    .assert_eq(&print_program(&s, &p));
}

const LARGE: &str = "
    state w = parameter f32[6144,12] trainable host
    state grad.w = gradient f32[6144,12]
    state m = optimizer bf16[6144,12] host
    state v = optimizer bf16[6144,12]
    program p {
        %0 = input ids i32[5]
        %1 = input s f32[1]
        %2 = input seed i32[2]
        %3 = state w
        %4 = state grad.w
        %5 = state m
        %6 = state v
        %7 = cast(%3) {to=bf16} : bf16[6144,12] @ table fwd
        %8 = gather(%7, %0) {part=whole} : bf16[5,12] @ rows fwd
        %9 = sum_squares(%4) : f32[18] @ squares update
        %10 = sum_partials(%9) : f32[1] @ total update
        %11, %12, %13 = adamw_bf16(%3, %4, %5, %6, %1, %10, %1, %1, %2) {beta1=0.9, beta2=0.99, eps=0.1, weight_decay=0, id=7, part=whole} : f32[6144,12], bf16[6144,12], bf16[6144,12] @ adamw update
        state w leaves %11
        state m leaves %12
        state v leaves %13
        output y %8
    }";

/// Rows of w are taken whole, moments and the gradient alike, whether they are on the host or not; the cast of w is made for
/// each part where it is used.
#[test]
fn large_tensors_before_and_after() {
    let mut s = parse(LARGE).expect("the text parses");
    let p = s.programs.remove(0);
    let p = pipeline::run(&mut s, p, &Offload { part: 1, ..Offload::default() }).expect("copies");
    expect![[r#"
        program p {
          %0 = input ids i32[5]
          %1 = input s f32[1]
          %2 = input seed i32[2]
          %14 = state w from 0 f32[4096,12]
          %15 = state w from 49152 f32[2048,12]
          %16 = state grad.w from 0 f32[4096,12]
          %17 = state grad.w from 49152 f32[2048,12]
          %18 = state m from 0 bf16[4096,12]
          %19 = state m from 49152 bf16[2048,12]
          %20 = state v from 0 bf16[4096,12]
          %21 = state v from 49152 bf16[2048,12]
          %35, %36 = copy_start(%14) {queue=0, to=device} : f32[4096,12], u8[1] @ rows.copy_start fwd
          %37, %38 = copy_start(%14) {queue=0, to=device} : f32[4096,12], u8[1] @ adamw.copy_start update
          %39, %40 = copy_start(%15) {queue=0, to=device} : f32[2048,12], u8[1] @ rows.copy_start~2 fwd
          %41, %42 = copy_start(%18) {queue=0, to=device} : bf16[4096,12], u8[1] @ adamw.copy_start~2 update
          %43 = copy_done(%14, %35, %36) {queue=0} : f32[4096,12] @ rows.copy_done fwd
          %22 = cast(%43) {to=bf16} : bf16[4096,12] @ rows fwd
          %23 = gather(%22, %0) {part=0+4096/6144} : bf16[5,12] @ rows fwd
          %44 = copy_done(%15, %39, %40) {queue=0} : f32[2048,12] @ rows.copy_done~2 fwd
          %24 = cast(%44) {to=bf16} : bf16[2048,12] @ rows fwd
          %25 = gather(%24, %0, %23) {part=4096+2048/6144} : bf16[5,12] @ rows fwd
          %26 = sum_squares(%16) : f32[12] @ squares update
          %27 = sum_squares(%17) : f32[6] @ squares update
          %28 = concat(%26, %27) {axis=0} : f32[18] @ squares update
          %10 = sum_partials(%28) : f32[1] @ total update
          %45, %46 = copy_start(%15) {queue=0, to=device} : f32[2048,12], u8[1] @ adamw.copy_start~3 update
          %47, %48 = copy_start(%19) {queue=0, to=device} : bf16[2048,12], u8[1] @ adamw.copy_start~4 update
          %49 = copy_done(%14, %37, %38) {queue=0} : f32[4096,12] @ adamw.copy_done update
          %50 = copy_done(%18, %41, %42) {queue=0} : bf16[4096,12] @ adamw.copy_done~2 update
          %29, %30, %31 = adamw_bf16(%49, %16, %50, %20, %1, %10, %1, %1, %2) {beta1=0.9, beta2=0.99, eps=0.1, weight_decay=0, id=7, part=0+49152/73728} : f32[4096,12], bf16[4096,12], bf16[4096,12] @ adamw update
          %51, %52 = store_start(%29, %14) {queue=1} : f32[4096,12], u8[1] @ adamw.store_start update
          %53, %54 = store_start(%30, %18) {queue=1} : bf16[4096,12], u8[1] @ adamw.store_start~2 update
          %55 = copy_done(%15, %45, %46) {queue=0} : f32[2048,12] @ adamw.copy_done~3 update
          %56 = copy_done(%19, %47, %48) {queue=0} : bf16[2048,12] @ adamw.copy_done~4 update
          %32, %33, %34 = adamw_bf16(%55, %17, %56, %21, %1, %10, %1, %1, %2) {beta1=0.9, beta2=0.99, eps=0.1, weight_decay=0, id=7, part=49152+24576/73728} : f32[2048,12], bf16[2048,12], bf16[2048,12] @ adamw update
          %57, %58 = store_start(%32, %15) {queue=1} : f32[2048,12], u8[1] @ adamw.store_start~3 update
          %59, %60 = store_start(%33, %19) {queue=1} : bf16[2048,12], u8[1] @ adamw.store_start~4 update
          %61 = copy_done(%29, %51, %52) {queue=1} : f32[4096,12] @ adamw.copy_done~5 update
          %62 = copy_done(%32, %57, %58) {queue=1} : f32[2048,12] @ adamw.copy_done~6 update
          %63 = copy_done(%30, %53, %54) {queue=1} : bf16[4096,12] @ adamw.copy_done~7 update
          %64 = copy_done(%33, %59, %60) {queue=1} : bf16[2048,12] @ adamw.copy_done~8 update
          state w from 0 leaves %61
          state w from 49152 leaves %62
          state m from 0 leaves %63
          state m from 49152 leaves %64
          state v from 0 leaves %31
          state v from 49152 leaves %34
          output y %25
          unused %3 f32[6144,12]
          unused %4 f32[6144,12]
          unused %5 bf16[6144,12]
          unused %6 bf16[6144,12]
          unused %7 bf16[6144,12]
          unused %8 bf16[5,12]
          unused %9 f32[18]
          unused %11 f32[6144,12]
          unused %12 bf16[6144,12]
          unused %13 bf16[6144,12]
        }
    "#]].assert_eq(&print_program(&s, &p));
    let mut text = print_session(&s);
    text.push_str(&print_program(&s, &p));
    assert_eq!(parse(&text).map(|s| s.programs[0] == p), Ok(true), "parts have a text form");

    // What cannot be done in parts leaves all that it meets whole.
    let whole = |line: &str| {
        let text = LARGE.replace("output y %8", &format!("{line}\n        output y %8"));
        let mut s = parse(&text).expect("the text parses");
        let p = s.programs.remove(0);
        let p = pipeline::run(&mut s, p, &Offload { part: 1, ..Offload::default() }).expect("copies");
        p.states.iter().all(|u| u.first == 0 && p.ty(u.enters) == s.states[u.state.index()].ty)
    };
    assert!(!whole(""));
    assert!(whole("%14 = scale(%7, %1) : bf16[6144,12] @ scaled fwd"), "a product needs the whole cast");
    assert!(whole("output updated %13"), "the host reads a moment");
    assert!(!whole("%14 = gather(%11, %0) {part=whole} : f32[5,12] @ new fwd"));
    assert!(whole("%14 = gather(%7, %0) {part=whole} : bf16[5,12] @ late fwd"), "w is overwritten by then");
}

/// Models as large as they come: what an update needs of the device does not grow with a tensor, and little of it is lost
/// between what is there at once. A micro-batch holds no whole matrix of the vocabulary.
#[test]
fn what_comes_in_parts_takes_under_a_gib() {
    const SLACK: f64 = 1.05;
    let cfg = orpheus::config::Config {
        dim: 3072,
        heads: 24,
        kv_heads: 8,
        head_dim: 128,
        ..ambitus_models::small::wide_config()
    };
    let cfg = orpheus::config::Config { ffn: 8192, layers: 2, vocab: 156_940, ..cfg };
    let shape = Capacity { rows: 2461, clips: 2 };
    for (precision, states, per_tensor) in [
        (Precision::Fp32, States::Fp32, false),
        (Precision::Fp32, States::EightBit, true),
        (Precision::Bf16Pure, States::Bf16, false),
    ] {
        let mut s = Session::default();
        let forward = orpheus::model::loss(&mut s, &cfg, shape, "micro");
        let options = Options {
            precision,
            optimizer: Some(Optimizer { states, ..ADAMW }),
            clip_per_tensor: per_tensor,
            ema: true,
            offload: Offload::all(),
            ..Options::new(Blocks::All)
        };
        let planned = plan(session_of(s, forward, &options), &FULL, 1);
        owners::check(&planned, &FULL);
        for (p, most) in planned.programs.iter().zip([1.5, 1.0, 1.0]) {
            let (bytes, bound) = (p.transient_bytes as f64, p.live_bound_bytes as f64);
            let name = format!("{} {precision:?} {states:?} {per_tensor}", p.program.name);
            assert!(bytes <= most * f64::from(1 << 30), "{name}: {bytes} bytes");
            assert!(bytes <= SLACK * bound, "{name}: {bytes} bytes of {bound}");
        }
    }
}

#[test]
fn the_fraction_takes_whole_tensors_in_order_and_small_ones_stay() {
    let ty = |n: usize| TensorType::f32(&[n]);
    let mut s = Session::default();
    let mut b = ambitus_ir::Builder::new(&mut s, "p");
    for (name, n) in [("a", 1000), ("small", 10), ("b", 1000), ("c", 1000), ("d", 1000)] {
        b.declare(name, ty(n), StateKind::Optimizer);
    }
    b.declare("step", ty(100_000), StateKind::Counter);
    let p = b.finish();
    s.programs.push(p);
    let homes = |optimizer: f64| {
        let mut s = s.clone();
        Offload { optimizer, least: 100, ..Offload::default() }.declare(&mut s);
        let moved = s.states.iter().filter(|d| d.home == Space::Host);
        moved.map(|d| d.name.clone()).collect::<String>()
    };
    assert_eq!([0.0, 0.25, 0.5, 0.51, 1.0].map(homes), ["", "a", "ab", "abc", "abcd"]);
}

fn base(frames: usize, checkpoint: Blocks, in_backward: bool, offload: &Offload) -> PlannedSession {
    let cfg = f5::config::Config::v1_base();
    let cap = Capacity { rows: frames, clips: 8 };
    let model = |s: &mut Session| f5::model::loss(s, &cfg, cap, "micro", true);
    plan(session(&model, checkpoint, in_backward, offload), &FULL, 1)
}

#[test]
fn what_waits_on_the_host_takes_little_of_the_device() {
    const MIB: u64 = 1 << 20;
    let full = base(1600, Blocks::All, false, &Offload::default());
    let states = |p: &PlannedSession, kind| report::state_bytes(p, kind);
    // A few tensors in flight; the largest is the modulation of a block, 24 MiB.
    let few = 8 * 24 * MIB;
    for (name, kind, form) in [
        ("parameters", StateKind::Parameter, Offload { parameters: true, ..Offload::default() }),
        ("gradients", StateKind::Gradient, Offload { gradients: true, ..Offload::default() }),
        ("optimizer", StateKind::Optimizer, Offload { optimizer: 1.0, ..Offload::default() }),
        ("ema", StateKind::Ema, Offload { ema: true, ..Offload::default() }),
    ] {
        let planned = base(1600, Blocks::All, false, &form);
        owners::check(&planned, &FULL);
        let (was, left) = (states(&full, kind), states(&planned, kind));
        assert!(left * 100 < was, "{name}: {left} of {was} stay");
        assert_eq!(planned.host_bytes, planned.host_state_bytes);
        assert!(planned.host_bytes + left >= was && planned.host_bytes <= was, "{name}");
        let saved = full.arena_bytes() - planned.arena_bytes();
        assert!(saved + left + few >= was, "{name}: saves {saved} of {was}");
    }
    let all = base(1600, Blocks::All, false, &Offload::all());
    owners::check(&all, &FULL);
    assert!(all.transient_bytes <= full.transient_bytes + few, "{}", all.transient_bytes);
    assert!(all.arena_bytes() < full.transient_bytes + full.slot_bytes + few);
}

#[test]
fn a_copy_costs_what_computing_does_not_cover() {
    let text = |before: &str, between: &str| {
        format!(
            "state w = parameter f32[1000] host
            program p {{
                %0 = input x f32[1000]
                %1 = state w
                {before}
                %2, %3 = copy_start(%1) {{queue=0, to=device}} : f32[1000], u8[1] @ a fwd
                {between}
                %5 = copy_done(%1, %2, %3) {{queue=0}} : f32[1000] @ c fwd
                %6 = binary(%5, %0) {{kind=add}} : f32[1000] @ d fwd
                output y %6
            }}"
        )
    };
    let other = "%4 = binary(%0, %0) {kind=add} : f32[1000] @ b fwd";
    let seconds = |text: &str| {
        let planned = plan(parse(text).expect("the text parses"), &FULL, 1);
        let each = planned.programs[0].program.instrs.iter().map(|i| {
            let (x, y) = planned.programs[0].program.signature(i);
            (i.op.name(), FULL.seconds(&i.op, &x, &y))
        });
        let of = |name: &str| each.clone().find(|(n, _)| *n == name).map_or(0.0, |(_, s)| s);
        (report::seconds(&planned.programs[0].program, &FULL), of("copy_start"), of("binary"))
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
    let (waited, copy, add) = seconds(&text(other, ""));
    assert!(copy > 0.0 && near(waited, copy + 2.0 * add), "{waited}");
    let (covered, ..) = seconds(&text("", other));
    assert!(near(covered, copy.max(add) + add), "{covered}");
}
