//! Offload to the host: the same bits with every form of it, fewer bytes on the device, and programs that the verifier and
//! the second opinion on plans accept.

mod common;

use ambitus_compile::optimizer::{self, Optimizer, STEP, States};
use ambitus_compile::passes::in_backward::InBackward;
use ambitus_compile::passes::offload::{Kept, Offload};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::{plan, report};
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::{PlannedSession, Region};
use ambitus_ir::target::Target;
use ambitus_ir::text::{parse, print_program, print_session};
use ambitus_ir::{Program, Session, StateKind, TensorType};
use ambitus_models::{Capacity, f5};
use common::toy::{three_updates, toys};
use common::{FULL, owners};
use expect_test::expect;

const ADAMW: Optimizer = Optimizer {
    adamw: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
    states: States::Fp32,
};

type Model<'a> = &'a dyn Fn(&mut Session) -> Program;

/// All programs of an update with averages, as a run has them.
fn session(model: Model<'_>, checkpoint: Blocks, in_backward: bool, offload: &Offload) -> Session {
    let mut s = Session::default();
    let forward = model(&mut s);
    let options = Options::new(checkpoint);
    if in_backward {
        let rule = InBackward { optimizer: &ADAMW, step: STEP };
        let p = pipeline::micro_in_backward(&mut s, forward, options, &FULL, &|_| true, rule);
        s.programs.push(p.expect("the model is differentiable"));
    } else {
        let micro = pipeline::micro(&mut s, forward, options, &FULL).expect("the model is differentiable");
        let update = optimizer::update(&mut s, &ADAMW);
        let update = pipeline::plain(&mut s, update, &FULL);
        s.programs.extend([micro, update]);
    }
    let ema = optimizer::ema(&mut s);
    let ema = pipeline::plain(&mut s, ema, &FULL);
    s.programs.push(ema);
    pipeline::offload(&mut s, offload);
    s
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
    let p = pipeline::run(&mut s, p, &Offload::default());
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
