//! The dynamic loss scale on the CPU executor: a forced overflow skips updates and halves the scale until training continues.

use crate::steps::step;
use ambitus_compile::optimizer::{self, Optimizer, Rule, States};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{GOOD_STEPS, LOSS_SCALE, Precision, declare_loss_scale};
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::{Session, StateId, StateKind};
use ambitus_testkit::Tensor;
use ambitus_testkit::toys::{Toy, states, toys};

const ADAMW: Optimizer = Optimizer {
    rule: Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};
const THREADS: usize = 2;
/// What the executor computes in.
const PRECISIONS: [Precision; 3] = [Precision::Fp32, Precision::Bf16Mixed, Precision::Fp16Mixed];
/// A scale at which gradients are infinite.
const FORCED: f32 = 3e38;

fn open(toy: &Toy, precision: Precision) -> CpuExecutor {
    let target = CpuTarget::new(THREADS);
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    // Where it is of no use the scale does the same: what overflows is another number.
    declare_loss_scale(&mut s);
    let options = Options { precision, ..Options::new(Blocks::None) };
    let micro = pipeline::micro(&mut s, forward, options, &target).expect("the model is differentiable");
    let update = optimizer::update(&mut s, &ADAMW);
    let update = pipeline::plain(&mut s, update, &target);
    s.programs.extend([micro, update]);
    let start = states(&s);
    let mut exec = CpuExecutor::open(plan(s.clone(), &target, 1), THREADS).expect("the arena is small");
    for (i, d) in s.states.iter().enumerate() {
        let data = match d.kind {
            _ if d.name == LOSS_SCALE => vec![FORCED],
            StateKind::Optimizer | StateKind::Counter => vec![0.0; d.ty.shape.elements()],
            _ => start[&d.name].to_f32(),
        };
        exec.write_state(StateId(i as u32), &data).expect("a state");
    }
    exec
}

fn output(exec: &CpuExecutor, program: &str, name: &str) -> f32 {
    let mut out = [0.0];
    exec.read_f32(program, name, 0, &mut out).expect("an output");
    out[0]
}

/// All parameters and moments.
fn trained(exec: &CpuExecutor) -> Vec<Vec<u32>> {
    let states = exec.planned().session.states.iter().enumerate();
    let moved = states.filter(|(_, s)| matches!(s.kind, StateKind::Parameter | StateKind::Optimizer));
    moved
        .map(|(i, s)| {
            let mut data = vec![0.0; s.ty.shape.elements()];
            exec.read_state(StateId(i as u32), &mut data).expect("a state");
            data.into_iter().map(f32::to_bits).collect()
        })
        .collect()
}

#[test]
fn training_recovers_from_a_forced_overflow() {
    for (toy, precision) in toys().iter().flat_map(|t| PRECISIONS.iter().map(move |p| (t, *p))) {
        let mut exec = open(toy, precision);
        let mut inputs = toy.whole.clone();
        for (name, x) in [("beta", 0.0), ("lr", 1e-2), ("clip", 1.0)] {
            inputs.insert(name.to_owned(), Tensor::scalar(x));
        }
        let before = trained(&exec);
        let mut scale = FORCED;
        let mut skipped = 0;
        let first = loop {
            step(&mut exec, "micro", &inputs).expect("a step");
            let loss = output(&exec, "micro", "loss");
            step(&mut exec, "update", &inputs).expect("a step");
            let now = output(&exec, "update", LOSS_SCALE);
            if output(&exec, "update", "apply") == 1.0 {
                assert_eq!(now, scale, "{}", toy.name);
                break loss;
            }
            assert_eq!(now, scale / 2.0, "{}", toy.name);
            assert!(trained(&exec) == before, "{}: a skipped update moved something", toy.name);
            (scale, skipped) = (now, skipped + 1);
            assert!(skipped < 128, "{}: never recovers", toy.name);
        };
        assert!(skipped > 0, "{}: {FORCED} did not overflow", toy.name);
        assert!(output(&exec, "update", "grad_norm").is_finite() && trained(&exec) != before, "{}", toy.name);
        for _ in 0..5 {
            step(&mut exec, "micro", &inputs).expect("a step");
            step(&mut exec, "update", &inputs).expect("a step");
        }
        let good = exec.planned().session.state(GOOD_STEPS).expect("the counter");
        let mut count = [0.0];
        exec.read_state(good, &mut count).expect("a state");
        assert_eq!((output(&exec, "update", "step"), count[0]), (6.0, 6.0), "{}", toy.name);
        let last = output(&exec, "micro", "loss");
        assert!(last < first, "{}: loss {first} to {last}", toy.name);
    }
}
