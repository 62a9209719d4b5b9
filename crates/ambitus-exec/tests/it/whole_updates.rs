//! Gradients without bytes of their own on the CPU executor: weights, moments and averages of three updates are the bits of those
//! with, whatever other programs leave in the arena, with two slots and offload.

use crate::steps::step;
use ambitus_compile::optimizer::{Optimizer, SEED, States};
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{Options, Pipeline};
use ambitus_compile::plan::{Gradients, Needs};
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::Region;
use ambitus_ir::{Session, StateId, StateKind};
use ambitus_testkit::Tensor;
use ambitus_testkit::toys::{Toy, states, toys};

/// Options of a case, by name.
fn cases() -> Vec<(&'static str, Options)> {
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let with = |checkpoint, states| Options {
        optimizer: Some(Optimizer { states, ..adamw.clone().into() }),
        ema: true,
        ..Options::new(checkpoint)
    };
    let plain = with(Blocks::None, States::Fp32);
    let offload = Offload { least: 0, near: 4, gradients: false, ..Offload::all() };
    let in_backward = Options { clip_per_tensor: true, update_in_backward: true, ..plain.clone() };
    vec![
        ("plain", plain.clone()),
        ("recomputed", with(Blocks::All, States::EightBit)),
        ("offloaded", Options { offload, ..plain }),
        ("in backward", in_backward),
    ]
}

/// Names and bits of what is kept after three updates, the arena's bytes, and whether gradients pass.
fn after(toy: &Toy, options: &Options, gradients: Gradients) -> (Vec<(String, Vec<u32>)>, u64, bool) {
    let target = CpuTarget::new(2);
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let evaluate = ambitus_ir::Program { name: "evaluate".to_owned(), ..(toy.model)(&mut s) };
    let others = vec![(evaluate, "evaluate_ema".to_owned())];
    let s = Pipeline::new(options, &target).session(s, vec![forward], others);
    let s = s.expect("the model is differentiable");
    let start = states(&s);
    let planned = Needs::of(s.clone(), &target, 1, gradients).plan();
    let arena = planned.arena_bytes();
    let passing = planned.states.iter().zip(&s.states);
    let passing =
        passing.filter(|(place, s)| s.kind == StateKind::Gradient && place.region == Region::Transient);
    let is_passing = passing.count() > 0;
    let mut exec = CpuExecutor::open(planned, 2).expect("the arena is small");
    for (i, d) in s.states.iter().enumerate() {
        let at_zero = matches!(d.kind, StateKind::Optimizer | StateKind::Counter | StateKind::Ema);
        let data = match d.kind {
            StateKind::Gradient => continue,
            _ if at_zero => vec![0.0; d.ty.shape.elements()],
            _ => start[&d.name].to_f32(),
        };
        exec.write_state(StateId(i as u32), &data).expect("a state");
    }
    let mut inputs = toy.whole.clone();
    for (name, x) in [("beta", 0.0), ("lr", 1e-2), ("clip", 0.05), ("decay", 0.25)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    let mut out = Vec::new();
    for update in 0..3 {
        inputs.insert(SEED.to_owned(), Tensor::i32(&[7, update]));
        for p in s.programs.iter().map(|p| &*p.name) {
            step(&mut exec, p, &inputs).expect("a step");
            let mut loss = [0.0];
            if exec.planned().program(p).expect("it ran").program.output("loss").is_some() {
                exec.read_f32(p, "loss", 0, &mut loss).expect("an output");
                out.push((format!("{p} {update}"), vec![loss[0].to_bits()]));
            }
        }
    }
    for (i, d) in s.states.iter().enumerate().filter(|(_, d)| d.kind != StateKind::Gradient) {
        let mut data = vec![0.0; d.ty.shape.elements()];
        exec.read_state(StateId(i as u32), &mut data).expect("a state");
        assert!(data.iter().all(|x| x.is_finite()), "{}: {}", toy.name, d.name);
        out.push((d.name.clone(), data.iter().map(|x| x.to_bits()).collect()));
    }
    (out, arena, is_passing)
}

#[test]
fn weights_moments_and_averages_are_the_same_bits() {
    for (name, options) in cases() {
        let mut passing = 0;
        for toy in toys() {
            let (kept, more, _) = after(&toy, &options, Gradients::Kept);
            let (passed, less, is_passing) = after(&toy, &options, Gradients::Passing);
            assert_eq!(kept.len(), passed.len());
            for (k, p) in kept.iter().zip(&passed) {
                assert!(k == p, "{}: {}, {name}", toy.name, k.0);
            }
            assert!(less <= more, "{}: {less} bytes after {more}, {name}", toy.name);
            passing += usize::from(is_passing);
        }
        // Those of the smallest toys are few bytes beside their batches', and in backward there are none.
        assert!(passing > 1 || options.update_in_backward, "{name}: {passing} toys");
    }
}
