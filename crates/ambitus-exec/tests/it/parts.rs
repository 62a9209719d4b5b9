//! Large tensors that come and go in parts, on the CPU executor: the bits of a session without, for every numerics, rule of clipping
//! and place, with copies as early and as late as is legal; and never all of a large tensor on the device.

use crate::ranks::{ADAMW, LION};
use crate::steps::step;
use ambitus_compile::optimizer::{Optimizer, SEED, States};
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{LOSS_SCALE, Precision};
use ambitus_compile::pipeline::{Options, Pipeline};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{AsyncMode, CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Session, StateId, StateKind};
use ambitus_testkit::Tensor;
use ambitus_testkit::owners;
use ambitus_testkit::toys::{Toy, states, wide_toys};
use std::path::Path;

const THREADS: usize = 2;
/// Parts are as small as they can be.
const SMALL: u64 = 1;

/// How gradients are applied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Apply {
    Globally,
    PerTensor,
    InBackward,
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    precision: Precision,
    states: States,
    apply: Apply,
    lion: bool,
}

fn planned(toy: &Toy, how: Numbers, offload: &Offload) -> PlannedSession {
    let target = CpuTarget::new(THREADS);
    let rule = if how.lion { LION.rule } else { ADAMW.rule };
    let optimizer = Optimizer { rule, states: how.states, ..ADAMW };
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let options = Options {
        precision: how.precision,
        optimizer: Some(optimizer),
        clip_per_tensor: how.apply != Apply::Globally,
        update_in_backward: how.apply == Apply::InBackward,
        ema: true,
        offload: *offload,
        ..Options::new(Blocks::All)
    };
    let s = Pipeline::new(&options, &target).session(s, vec![forward], Vec::new());
    let planned = plan(s.expect("the model is differentiable"), &target, 1);
    owners::check(&planned, &target);
    planned
}

/// Names and bits of all states after two updates.
fn after(
    toy: &Toy,
    planned: &PlannedSession,
    copies: AsyncMode,
    disk: Option<&Path>,
) -> Vec<(String, Vec<u32>)> {
    let options = CpuOptions { threads: THREADS, copies, disk, ..CpuOptions::default() };
    let mut exec = CpuExecutor::open(planned.clone(), options).expect("small arenas");
    let s = &planned.session;
    let start = states(s);
    for (i, d) in s.states.iter().enumerate() {
        let data = match d.kind {
            _ if d.name == LOSS_SCALE => vec![256.0],
            StateKind::Optimizer | StateKind::Counter | StateKind::Ema => vec![0.0; d.ty.shape.elements()],
            _ => start[&d.name].to_f32(),
        };
        exec.write_state(StateId(i as u32), &data).expect("a state");
    }
    let mut inputs = toy.whole.clone();
    for (name, x) in [("beta", 0.0), ("lr", 1e-2), ("clip", 0.5), ("decay", 0.25)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    for update in 0..2 {
        inputs.insert(SEED.to_owned(), Tensor::i32(&[7, update]));
        for p in &planned.programs {
            step(&mut exec, &p.program.name, &inputs).expect("a step");
        }
    }
    let read = |(i, d): (usize, &ambitus_ir::StateDecl)| {
        let mut data = vec![0.0; d.ty.shape.elements()];
        exec.read_state(StateId(i as u32), &mut data).expect("a state");
        let finite = data.iter().all(|x| x.is_finite()) || d.kind == StateKind::Gradient;
        assert!(finite, "{}: {}", toy.name, d.name);
        (d.name.clone(), data.iter().map(|x| x.to_bits()).collect())
    };
    s.states.iter().enumerate().map(read).collect()
}

/// States that some program takes in parts.
fn cut(planned: &PlannedSession) -> usize {
    let uses = planned.programs.iter().flat_map(|p| &p.program.states);
    uses.filter(|u| u.first > 0).count()
}

#[test]
fn every_numerics_has_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = Offload { least: 0, part: SMALL, ..Offload::default() };
    let all = Offload { least: 0, part: SMALL, ..Offload::all() };
    let of = |precision, states, apply| Numbers { precision, states, apply, lion: false };
    let lion = |precision, states, apply| Numbers { lion: true, ..of(precision, states, apply) };
    use Apply::{Globally, InBackward, PerTensor};
    let numerics = [
        of(Precision::Fp32, States::Fp32, Globally),
        of(Precision::Fp32, States::EightBit, PerTensor),
        of(Precision::Fp32, States::Bf16, InBackward),
        of(Precision::Bf16Mixed, States::EightBit, Globally),
        of(Precision::Fp16Mixed, States::Fp32, Globally),
        of(Precision::Bf16Pure, States::Fp32, PerTensor),
        of(Precision::Bf16Pure, States::Bf16, Globally),
        of(Precision::Bf16Pure, States::EightBit, Globally),
        of(Precision::Bf16Pure, States::EightBit, InBackward),
        lion(Precision::Fp32, States::Fp32, Globally),
        lion(Precision::Bf16Pure, States::Fp32, Globally),
        lion(Precision::Bf16Pure, States::EightBit, InBackward),
    ];
    for (toy, how) in wide_toys().iter().flat_map(|toy| numerics.map(|how| (toy, how))) {
        let plain = planned(toy, how, &Offload::default());
        let want = after(toy, &plain, AsyncMode::Early, None);
        for (form, copies, disk) in [
            (all, AsyncMode::Early, None),
            (all, AsyncMode::Late, Some(folder.path())),
            (Offload { optimizer: 1.0, ..none }, AsyncMode::Early, None),
            (Offload { optimizer: 0.3, ema: true, ..none }, AsyncMode::Late, None),
            (Offload { parameters: true, ..none }, AsyncMode::Early, None),
            (Offload { gradients: true, ..none }, AsyncMode::Late, None),
        ] {
            let gone = form.gradients && !form.parameters && how.apply == Apply::InBackward;
            let planned = planned(toy, how, &form);
            assert!(cut(&planned) > 0 || gone, "{}: {how:?}, {form:?} cuts nothing", toy.name);
            for (want, have) in want.iter().zip(after(toy, &planned, copies, disk)) {
                assert!(*want == have, "{}: {}, {how:?}, {form:?}, {copies:?}", toy.name, want.0);
            }
        }
    }
}

#[test]
fn no_large_tensor_is_on_the_device_at_once() {
    for toy in wide_toys() {
        let (precision, states, apply) = (Precision::Fp32, States::Fp32, Apply::Globally);
        let how = Numbers { precision, states, apply, lion: false };
        let planned = planned(&toy, how, &Offload { least: 0, part: SMALL, ..Offload::all() });
        let all = planned.session.states.iter().map(|s| s.ty.bytes()).max().expect("states");
        for p in &planned.programs {
            let values = p.lives.iter().filter(|l| l.value.is_some());
            let most = values.map(|l| l.place.bytes).max().unwrap_or(0);
            assert!(most < all, "{}: {most} of {all} bytes in {}", toy.name, p.program.name);
        }
    }
}
