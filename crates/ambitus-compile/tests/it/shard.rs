//! What sharding costs and saves, by plans; what its programs look like.

use ambitus_compile::autodiff::differentiate;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::shard::{Backward, Layout, Prefetch, Shard, Sharding, Strategy};
use ambitus_compile::pipeline::{self, Options, Pipeline};
use ambitus_compile::plan::plan;
use ambitus_ir::ops::collective::{GATHER, REDUCE};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::text::print_program;
use ambitus_ir::{Builder, Phase, Program, Session, StateKind, TensorType};
use ambitus_models::{Capacity, f5, orpheus};
use ambitus_testkit::paper::FULL;
use expect_test::expect;

/// A forward program and its parameters.
type Build = fn(&mut Session) -> Program;

fn llama_of(tied: bool, s: &mut Session) -> Program {
    let cfg = orpheus::config::Config {
        dim: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 768,
        layers: 8,
        vocab: 1000,
        eps: 1e-5,
        rope_base: 10_000.0,
        stretch: None,
        tied,
        spread: 0.02,
    };
    orpheus::model::loss(s, &cfg, Capacity { rows: 64, clips: 2 }, "micro")
}

fn tied(s: &mut Session) -> Program {
    llama_of(true, s)
}

fn untied(s: &mut Session) -> Program {
    llama_of(false, s)
}

fn f5(s: &mut Session) -> Program {
    let cfg = f5::config::Config {
        dim: 256,
        depth: 8,
        heads: 4,
        rotated: 4,
        ff_dim: 512,
        text_dim: 128,
        ..f5::config::Config::v1_base()
    };
    f5::model::loss(s, &cfg, Capacity { rows: 64, clips: 2 }, "micro", true)
}

const MODELS: [(&str, Build); 3] = [("tied llama", tied), ("llama", untied), ("f5", f5)];

fn planned(build: Build, sharding: Option<Sharding>) -> (PlannedSession, Option<Layout>) {
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }.into();
    let mut s = Session::default();
    let forward = build(&mut s);
    let options = Options { sharding, optimizer: Some(adamw), ..Options::new(Blocks::All) };
    let layout = pipeline::layout(&mut s.clone(), forward.clone(), &options).expect("nothing is refused");
    let s = Pipeline::new(&options, &FULL).session(s, vec![forward], Vec::new());
    (plan(s.expect("the model is differentiable"), &FULL, 1), layout)
}

fn full(ranks: usize) -> Sharding {
    Sharding::new(Strategy::Full, ranks).expect("one group")
}

#[test]
fn full_sharding_divides_states_and_gathers_two_units_at_most() {
    for (name, build) in MODELS {
        let (one, _) = planned(build, None);
        for ranks in [2, 3, 4, 8] {
            let (each, layout) = planned(build, Some(full(ranks)));
            let layout = layout.expect("a sharded session");
            // Parameters, gradients and two moments.
            let padding = 16 * layout.padding() as u64;
            let share = one.state_bytes as f64 * (1.0 / ranks as f64 + 0.01);
            let held = each.state_bytes - padding;
            assert!(held as f64 <= share, "{name} on {ranks}: {held} bytes of states, {share} are allowed");
            let flats = |kind| each.session.states.iter().filter(|s| s.kind == kind).count();
            assert_eq!(flats(StateKind::Gradient), layout.flats.iter().filter(|f| f.trainable).count());

            let mut units: Vec<u64> =
                layout.units(|flat| 4 * flat.elements as u64).iter().map(|u| u.1).collect();
            units.sort_unstable();
            let two: u64 = units.iter().rev().take(2).sum();
            let (all, alone) = (each.transient_bytes, one.transient_bytes);
            assert!(
                all <= alone + 2 * two,
                "{name} on {ranks}: {all} bytes of transients, {alone} without ranks, two units are {two}"
            );
        }
    }
}

/// Kept tensors cost a copy of the model; with shards of one rank, everything is there.
#[test]
fn strategies_differ_in_what_they_hold() {
    for (name, build) in MODELS {
        let of = |strategy| {
            let (planned, _) = planned(build, Some(Sharding::new(strategy, 4).expect("whole groups")));
            (planned.state_bytes, planned.transient_bytes)
        };
        let [full, kept, none, hybrid] =
            [Strategy::Full, Strategy::GradOp, Strategy::None, Strategy::Hybrid(2)].map(of);
        assert_eq!(full.0, kept.0, "{name}");
        assert!(full.1 < kept.1, "{name}: {full:?} {kept:?}");
        // But for counters and small frozen tensors.
        let near = |a: u64, b: u64| a.abs_diff(b) < 8 << 10;
        assert!(
            near(2 * full.0, hybrid.0) && near(4 * full.0, none.0),
            "{name}: {full:?} {hybrid:?} {none:?}"
        );
    }
}

#[test]
fn each_unit_is_gathered_once_a_direction_and_summed_once() {
    for (name, build) in MODELS {
        let (planned, layout) = planned(build, Some(full(4)));
        let layout = layout.expect("a sharded session");
        let micro = &planned.program("micro").expect("a program").program;
        let starts = |queue: u32, phase: &dyn Fn(Phase) -> bool, unit: &str| {
            let own = |path: &str| path.strip_prefix(unit).is_some_and(|rest| rest.matches('.').count() == 2);
            let starts = micro.instrs.iter().filter(|i| i.op.def().queue() == Some(queue));
            starts
                .filter(|i| i.op.def().props().starts && phase(i.origin.phase) && own(&i.origin.path))
                .count()
        };
        for block in &micro.blocks {
            let flats = layout.flats.iter().filter(|f| f.unit == *block).count();
            assert_eq!(starts(GATHER, &|p| p == Phase::Forward, block), flats, "{name} {block} in forward");
            assert!(starts(GATHER, &|p| p != Phase::Forward, block) <= flats, "{name} {block} in backward");
            assert_eq!(starts(REDUCE, &|_| true, block), flats, "{name} {block}");
        }
    }
}

#[test]
fn prefetched_gathers_start_a_unit_ahead() {
    let prefetch = Prefetch { forward: true, backward: Backward::Pre };
    for (name, build) in MODELS {
        let lead = |prefetch: Prefetch| {
            let (planned, _) = planned(build, Some(Sharding { prefetch, ..full(4) }));
            let micro = &planned.program("micro").expect("a program").program;
            let defs = micro.definitions();
            let dones = micro.instrs.iter().enumerate().filter(|(_, i)| i.op.def().props().waits);
            // Instructions between start and done that are no collective's.
            let ahead = dones.map(|(at, done)| {
                let start = done.inputs.last().and_then(|token| defs[token.index()]).expect("a start");
                micro.instrs[start..at].iter().filter(|i| i.op.def().queue().is_none()).count()
            });
            let ahead: Vec<usize> = ahead.collect();
            (ahead.iter().filter(|n| **n > 3).count(), ahead.len(), planned.transient_bytes)
        };
        let (none, all, less) = lead(Prefetch::default());
        let (some, same, more) = lead(prefetch);
        assert_eq!((none, all), (0, same), "{name}");
        assert!(3 * some > 2 * all, "{name}: {some} of {all} are ahead");
        assert!(more >= less, "{name}");
    }
}

#[test]
fn tensors_become_parts_of_flats() {
    let mut s = Session::default();
    let mut b = Builder::new(&mut s, "micro");
    let x = b.input("x", TensorType::f32(&[4, 8]));
    let y = b.block("blocks", 0, |b| {
        let (w, bias) = (b.parameter("weight", &[16, 8]), b.parameter("bias", &[16]));
        b.linear(x, w, Some(bias))
    });
    let loss = b.scope("loss", |b| {
        let rows = b.reduce(ReduceKind::Sum, y, 1);
        let sum = b.reduce(ReduceKind::Sum, rows, 0);
        b.reshape(sum, &[1])
    });
    b.output("loss", loss);
    let forward = b.finish();
    let layout = Layout::of(&s, &forward, Sharding::new(Strategy::Hybrid(2), 4).expect("whole groups"), None);
    let p = differentiate(&mut s, forward).expect("a sum has a gradient");
    let p = pipeline::run(&mut s, p, &Shard { layout: &layout }).expect("collectives");
    expect![[r#"
        program micro {
          block blocks.0
          %0 = input x f32[4,8]
          %14 = state shard.blocks.0.matrices
          %18 = state shard.blocks.0.vectors
          %15, %16 = all_gather_start(%14) {queue=2, mesh=4/2, group=shard, parts=[0[16,8]]} : f32[16,8], u8[1] @ blocks.0.matrices.all_gather_start fwd
          %17 = collective_done(%14, %15, %16) {queue=2, members=2, sources=1, results=1} : f32[16,8] @ blocks.0.matrices.collective_done fwd
          %19, %20 = all_gather_start(%18) {queue=2, mesh=4/2, group=shard, parts=[0[16]]} : f32[16], u8[1] @ blocks.0.vectors.all_gather_start fwd
          %21 = collective_done(%18, %19, %20) {queue=2, members=2, sources=1, results=1} : f32[16] @ blocks.0.vectors.collective_done fwd
          %3 = linear(%0, %17, %21) : f32[4,16] @ blocks.0.linear fwd
          %4 = reduce(%3) {kind=sum, axis=1} : f32[4,1] @ loss.reduce fwd
          %5 = reduce(%4) {kind=sum, axis=0} : f32[1,1] @ loss.reduce~2 fwd
          %6 = reshape(%5) {shape=[1]} : f32[1] @ loss.reshape fwd
          %7 = fill() {value=1, dtype=f32, shape=[1]} : f32[1] @ loss.fill bwd
          %8 = reshape(%7) {shape=[1,1]} : f32[1,1] @ loss.reshape.reshape bwd
          %9 = broadcast(%8) {shape=[4,1]} : f32[4,1] @ loss.reduce~2.broadcast bwd
          %10 = broadcast(%9) {shape=[4,16]} : f32[4,16] @ loss.reduce.broadcast bwd
          %11 = matmul(%10, %0) {ta=true, tb=false, acc=false, wide=false} : f32[16,8] @ blocks.0.linear.matmul bwd
          %12 = reduce(%10) {kind=sum, axis=0} : f32[1,16] @ blocks.0.linear.reduce bwd
          %13 = reshape(%12) {shape=[16]} : f32[16] @ blocks.0.linear.reshape bwd
          %22, %23 = reduce_scatter_start(%11) {queue=3, mesh=4/2, parts=[0[16,8]], piece=[4096]} : f32[4096], u8[1] @ blocks.0.matrices.reduce_scatter_start bwd
          %24 = collective_done(%11, %22, %23) {queue=3, members=4, sources=1, results=1} : f32[4096] @ blocks.0.matrices.collective_done~2 bwd
          %25, %26 = all_gather_start(%24) {queue=3, mesh=4/2, group=replica, parts=[0[2,4096]]} : f32[2,4096], u8[1] @ blocks.0.matrices.all_gather_start~2 bwd
          %27 = collective_done(%24, %25, %26) {queue=3, members=2, sources=1, results=1} : f32[2,4096] @ blocks.0.matrices.collective_done~3 bwd
          %28, %29 = reduce_scatter_start(%13) {queue=3, mesh=4/2, parts=[0[16]], piece=[4096]} : f32[4096], u8[1] @ blocks.0.vectors.reduce_scatter_start bwd
          %30 = collective_done(%13, %28, %29) {queue=3, members=4, sources=1, results=1} : f32[4096] @ blocks.0.vectors.collective_done~2 bwd
          %31, %32 = all_gather_start(%30) {queue=3, mesh=4/2, group=replica, parts=[0[8192]]} : f32[8192], u8[1] @ blocks.0.vectors.all_gather_start~2 bwd
          %33 = collective_done(%30, %31, %32) {queue=3, members=2, sources=1, results=1} : f32[8192] @ blocks.0.vectors.collective_done~3 bwd
          output loss %6
          output grad.shard.blocks.0.matrices %27
          output grad.shard.blocks.0.vectors %33
          unused %1 f32[16,8]
          unused %2 f32[16]
        }
    "#]].assert_eq(&print_program(&s, &p));
}
