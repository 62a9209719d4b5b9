//! The CPU executor against the reference interpreter, and against itself.

mod parity;
mod sharing;

use super::{AsyncMode, CpuExecutor, CpuOptions};
use crate::executor::{ExecError, Executor};
use ambitus_compile::plan::plan;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{DType, Program, Session, TensorType};
use ambitus_testkit::{Case, Tensor, Tensors};
use std::sync::Arc;

/// Plans one program.
fn planned(mut session: Session, program: Program, target: &dyn Target) -> Arc<PlannedSession> {
    session.programs.push(program);
    Arc::new(plan(session, target, 1))
}

/// Opens with memory full of NaN: what a kernel reads without having written it shows, and so do pads left alone.
fn open(planned: &Arc<PlannedSession>, threads: usize, copies: AsyncMode) -> Result<CpuExecutor, ExecError> {
    let options = CpuOptions { threads, copies, isa: None };
    let mut exec = CpuExecutor::open_with(planned.clone(), options)?;
    for arena in [&mut exec.arena, &mut exec.host] {
        let floats = arena.bytes() as usize / 4;
        arena.floats_mut(0, floats).fill(f32::NAN);
    }
    Ok(exec)
}

/// The numbers in a value's words.
fn numbers(dtype: DType, words: &[f32]) -> Vec<f64> {
    let number = |w: &f32| match dtype {
        DType::I32 => f64::from(w.to_bits() as i32),
        _ => f64::from(*w),
    };
    words.iter().map(number).collect()
}

/// Runs program `name` on named inputs and states; gives every output's and state's words without pads, by name. Pads
/// must be zero.
fn run(
    exec: &mut CpuExecutor,
    name: &str,
    inputs: &Tensors,
    states: &Tensors,
) -> Vec<(String, TensorType, Vec<f32>)> {
    let planned = exec.planned.clone();
    for (input, t) in inputs {
        match t.ty.dtype {
            DType::I32 => {
                let data: Vec<i32> = t.data.iter().map(|x| *x as i32).collect();
                exec.write_i32(name, input, 0, &data).unwrap();
            }
            // Queue tokens hold nothing.
            DType::U8 => {}
            _ => exec.write_f32(name, input, 0, &t.to_f32()).unwrap(),
        }
    }
    for (state, t) in states {
        let id = planned.session.state(state).unwrap();
        exec.write_state(id, &t.to_f32()).unwrap();
    }
    exec.run(name, 0).unwrap();
    let p = planned.program(name).unwrap();
    let outputs = p.program.outputs.iter().map(|o| (o.name.clone(), o.value));
    let states =
        p.program.states.iter().map(|s| (planned.session.states[s.state.index()].name.clone(), s.leaves));
    let read = |(name, value): (String, ambitus_ir::ValueId)| {
        let ty = p.program.ty(value);
        let (arena, offset) = exec.locate(p.place(value), 0);
        let data = arena.floats(offset, ty.bytes() as usize / 4);
        let (cols, pitch) = (ty.shape.cols(), ty.pitch);
        let mut words = Vec::new();
        for row in data.chunks(pitch) {
            words.extend_from_slice(&row[..cols]);
            assert!(row[cols..].iter().all(|pad| pad.to_bits() == 0), "{name}: pads are {row:?}");
        }
        (name, ty, words)
    };
    outputs.chain(states).map(read).collect()
}

/// True when the executor has a kernel for a case and its types.
fn runs_here(case: &Case, target: &dyn Target) -> bool {
    let types = case.types();
    let made = case.op.def().infer(&types).unwrap();
    let half = |t: &TensorType| matches!(t.dtype, DType::F16 | DType::BF16);
    target.has_kernel(&case.op) && !types.iter().chain(&made).any(half)
}

/// Bit patterns of results.
fn bits(results: &[(String, TensorType, Vec<f32>)]) -> Vec<Vec<u32>> {
    results.iter().map(|(_, _, words)| words.iter().map(|w| w.to_bits()).collect()).collect()
}

fn value<'a>(expected: &'a [Tensor], case: &Case, name: &str) -> &'a Tensor {
    let number: usize = name[1..].parse().unwrap();
    // A state x{i} holds the result that overwrote operand i.
    let at = match &name[..1] {
        "y" => number,
        _ => (0..expected.len()).find(|k| case.overwritten(*k) == Some(number)).unwrap(),
    };
    &expected[at]
}
