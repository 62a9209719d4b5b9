//! The update in backward on the CPU executor: weights and moments of three updates are the bits of micro and update
//! programs under the same rule of clipping, on the toy models, at two thread counts.

use crate::ranks::{ADAMW, LION};
use crate::steps::step;
use ambitus_compile::optimizer::{Optimizer, SEED, States};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{Options, Pipeline};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::{Session, StateId, StateKind};
use ambitus_testkit::Tensor;
use ambitus_testkit::toys::{Toy, states, toys};

/// Names and bits of weights, moments and counters after three updates, with the gradient norms.
fn after(
    toy: &Toy,
    optimizer: &Optimizer,
    checkpoint: Blocks,
    in_backward: bool,
    threads: usize,
) -> Vec<(String, Vec<u32>)> {
    let target = CpuTarget::new(threads);
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let options = Options {
        optimizer: Some(optimizer.clone()),
        clip_per_tensor: true,
        update_in_backward: in_backward,
        ..Options::new(checkpoint)
    };
    let s = Pipeline::new(&options, &target).session(s, vec![forward], Vec::new());
    let s = s.expect("the model is differentiable");
    let names: &[&str] = if in_backward { &["micro"] } else { &["micro", "update"] };
    let start = states(&s);
    let mut exec = CpuExecutor::open(plan(s.clone(), &target, 1), threads).expect("the arena is small");
    for (i, d) in s.states.iter().enumerate() {
        let at_zero = matches!(d.kind, StateKind::Optimizer | StateKind::Counter);
        let data = if at_zero { vec![0.0; d.ty.shape.elements()] } else { start[&d.name].to_f32() };
        exec.write_state(StateId(i as u32), &data).expect("a state");
    }
    let mut inputs = toy.whole.clone();
    for (name, x) in [("beta", 0.0), ("lr", 1e-2), ("clip", 0.05)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    let mut out = Vec::new();
    for update in 0..3 {
        inputs.insert(SEED.to_owned(), Tensor::i32(&[7, update]));
        for name in names {
            step(&mut exec, name, &inputs).expect("a step");
        }
        let mut norm = [0.0];
        exec.read_f32(names[names.len() - 1], "grad_norm", 0, &mut norm).expect("an output");
        out.push((format!("norm {update}"), vec![norm[0].to_bits()]));
    }
    for (i, d) in s.states.iter().enumerate().filter(|(_, d)| d.kind != StateKind::Gradient) {
        let mut data = vec![0.0; d.ty.shape.elements()];
        exec.read_state(StateId(i as u32), &mut data).expect("a state");
        assert!(data.iter().all(|x| x.is_finite()), "{}: {}", toy.name, d.name);
        out.push((d.name.clone(), data.iter().map(|x| x.to_bits()).collect()));
    }
    out.sort();
    out
}

#[test]
fn weights_and_moments_are_the_same_bits() {
    let mut narrow = 0;
    for toy in toys() {
        let adamw =
            [States::Fp32, States::Bf16, States::EightBit].map(|states| Optimizer { states, ..ADAMW });
        let lion = [States::Fp32, States::EightBit].map(|states| Optimizer { states, ..LION });
        for optimizer in adamw.into_iter().chain(lion) {
            let states = optimizer.states;
            let want = after(&toy, &optimizer, Blocks::None, false, 1);
            narrow += want.iter().filter(|(name, _)| name.starts_with("exp_avg_scale.")).count();
            let all: &[Blocks] = match states {
                States::Fp32 => &[Blocks::None, Blocks::First(1), Blocks::All],
                _ => &[Blocks::All],
            };
            for checkpoint in all {
                for threads in [1, 2] {
                    let have = after(&toy, &optimizer, checkpoint.clone(), true, threads);
                    assert_eq!(want.len(), have.len());
                    for (w, h) in want.iter().zip(&have) {
                        assert!(
                            w == h,
                            "{}: {}, {optimizer:?}, {checkpoint:?}, {threads} threads",
                            toy.name,
                            w.0
                        );
                    }
                }
            }
        }
    }
    assert!(narrow > 0, "no tensor is large enough for 8 bits");
}
