//! Sums of squares, updates and averages of many tensors in one launch.

use crate::{Emulation, emulated, emulation};
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::plan::plan;
use ambitus_cuda::{CudaExecutor, CudaTarget, launches};
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::optim::{AdamW, Lerp, SumSquares};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Builder, DType, Op, Session, StateKind, TensorType};
use ambitus_models::Capacity;
use ambitus_models::orpheus::config::Config as Llama;
use ambitus_plan::cards::Cards;
use ambitus_plan::device::Device;
use ambitus_testkit::Rng;
use std::sync::Arc;
use xtask::programs::{F5Shape, f5_config, plan_f5, plan_llama};

/// More than a launch takes, of every odd shape; one of several blocks, one of several partial sums with pads, one without elements.
fn tensors() -> Vec<TensorType> {
    let odd = (0..70).map(|i| match i % 3 {
        0 => TensorType::f32(&[1 + 7 * i]),
        1 => TensorType::f32(&[3, 33 + i]),
        _ => TensorType::f32(&[2, 3, i]),
    });
    odd.chain([TensorType::f32(&[95, 99]), TensorType::f32(&[5001]), TensorType::f32(&[0])]).collect()
}

/// The op of each kind on each of `types`, with scalars in common: a program, and its tensors' numbers by name.
fn planned(types: &[TensorType], target: &CudaTarget) -> Arc<PlannedSession> {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "all");
    let scalar = TensorType::f32(&[1]);
    let [lr, coef, t, apply, decay] = ["lr", "coef", "t", "apply", "decay"].map(|name| b.input(name, scalar));
    let op = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    for (i, ty) in types.iter().enumerate() {
        // Averages also of narrow weights, which have other pads.
        let narrow = TensorType::new(DType::BF16, &ty.shape);
        let state =
            |b: &mut Builder<'_>, name: &str, ty| b.declare(&format!("{name}{i}"), ty, StateKind::Optimizer);
        let of = ["w", "g", "m", "v", "e"].map(|name| state(&mut b, name, *ty));
        let (_, copy) = state(&mut b, "n", narrow);
        let squares = b.push1(SumSquares {}, &[of[1].1]);
        b.output(&format!("squares{i}"), squares);
        let new = b.push(Op::from(op.clone()), &[of[0].1, of[1].1, of[2].1, of[3].1, lr, coef, t, apply]);
        for (k, value) in [0, 2, 3].into_iter().zip(new) {
            b.give_back(of[k].0, value);
        }
        let from = if i % 2 == 0 { copy } else { of[1].1 };
        let average = b.push1(Lerp {}, &[of[4].1, from, decay, apply]);
        b.give_back(of[4].0, average);
    }
    let program = b.finish();
    session.programs.push(program);
    Arc::new(plan(session, target, 1))
}

/// Runs the program on random numbers, the same for the same shape: the bytes of each tensor's results.
fn run(types: &[TensorType]) -> Vec<Vec<u8>> {
    let card = emulated::card();
    let target = CudaTarget::new(card.info().capability, card.info().rates);
    let planned = planned(types, &target);
    let mut exec = CudaExecutor::open(planned.clone(), card, None).map_err(|e| e.why).expect("it opens");
    exec.poison().expect("a card");
    for (name, value) in [("lr", 0.01), ("coef", 0.5), ("t", 3.0), ("apply", 1.0), ("decay", 0.75)] {
        exec.write_f32("all", name, 0, &[value]).expect("an input");
    }
    for (state, at) in planned.session.states.iter().zip(&planned.states) {
        let low = if state.name.starts_with('v') { 0.01 } else { -1.0 };
        let mut rng = Rng::new(state.ty.shape.elements() as u64 * 7 + u64::from(state.name.as_bytes()[0]));
        exec.write_bytes(*at, &rng.tensor(state.ty, low, 1.0).to_bytes()).expect("a state");
    }
    exec.run("all", 0).expect("the program runs");
    let p = planned.program("all").expect("the program");
    let read = |at, ty: TensorType| exec.read_bytes(at, ty.bytes() as usize).expect("a card");
    let of_tensor = |i: usize| {
        let output = p.program.outputs.iter().find(|o| o.name == format!("squares{i}")).expect("an output");
        let mut bytes = read(p.place(output.value), p.program.ty(output.value));
        for name in ["w", "m", "v", "e"] {
            let (ty, at) = planned.state(&format!("{name}{i}")).expect("a state");
            bytes.extend(read(at, ty));
        }
        bytes
    };
    (0..types.len()).map(of_tensor).collect()
}

#[test]
fn a_tensor_has_the_bits_that_it_has_alone() {
    let Some(one) = emulation(Emulation { races: true, ..Emulation::default() }) else { return };
    let types = tensors();
    let target = {
        let card = emulated::card();
        CudaTarget::new(card.info().capability, card.info().rates)
    };
    let planned = planned(&types, &target);
    let launched = launches(&planned, &planned.programs[0]).expect("a plan");
    // Tables of 59, 29 and 59 tuples.
    assert_eq!(launched, 2 + 3 + 2);
    let all = run(&types);
    drop(one);
    let Some(_one) = emulation(Emulation { turns: 3, ..Emulation::default() }) else { return };
    assert!(all == run(&types), "other bits with threads in another order");
    for (i, (ty, all)) in types.iter().zip(&all).enumerate().filter(|(i, _)| i % 20 == 0 || *i >= 70) {
        // Its number decides which average it has.
        let alone: Vec<TensorType> = if i % 2 == 0 { vec![*ty] } else { vec![TensorType::f32(&[0]), *ty] };
        assert!(run(&alone).last() == Some(all), "{ty:?}: other bits alone");
    }
}

#[test]
fn an_update_of_hundreds_of_tensors_takes_some_launches() {
    let card = Cards::load(None).expect("the table of cards");
    let device = Device::for_card(card.find("rtx4090").expect("a card"), 1);
    let shape = F5Shape { frames: 3200, clips: 4 };
    let f5 = plan_f5(&f5_config(false), shape, Precision::Bf16Mixed, device.target()).expect("a plan");
    let tokens = Capacity { rows: 8192, clips: 8 };
    let llama =
        plan_llama(&Llama::orpheus_3b(), tokens, Precision::Bf16Mixed, device.target()).expect("a plan");
    // What is left of Orpheus' are tensors so large that a launch is little beside their work.
    for (model, planned, most) in [("F5 Base", f5, [40, 10]), ("Orpheus 3B", llama, [310, 0])] {
        for (p, most) in planned.programs[1..].iter().zip(most) {
            let launches = launches(&planned, p).expect("a plan");
            let (name, instrs) = (&p.program.name, p.program.instrs.len());
            println!("{model}, {name}: {instrs} instructions, {launches} launches");
            assert!(launches <= most, "{model}, {name}: {launches}");
        }
    }
}
