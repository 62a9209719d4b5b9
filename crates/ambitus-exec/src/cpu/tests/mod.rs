//! The CPU executor against the reference interpreter, and against itself.

mod parity;
mod sharing;

use super::host::Host;
use super::{AsyncMode, CpuExecutor, CpuOptions};
use crate::executor::{ExecError, Executor};
use ambitus_compile::plan::plan;
use ambitus_ir::plan::{Address, PlannedSession};
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
    let options = CpuOptions { copies, ..CpuOptions::from(threads) };
    let mut exec = CpuExecutor::open(planned.clone(), options)?;
    let Host::Memory(host) = &mut exec.host else { panic!("no file was asked for") };
    for arena in [&mut exec.arena, host] {
        let all = arena.bytes() as usize;
        // A NaN in every float type.
        arena.raw_mut(0, all).fill(0xff);
    }
    Ok(exec)
}

/// Writes a value with its pads.
fn put(exec: &mut CpuExecutor, at: Address, t: &Tensor) {
    let (held, at) = exec.locate_mut(at, 0);
    held.put(at, &t.to_bytes());
}

/// A result: name, type, and bytes with pads.
type Found = (String, TensorType, Vec<u8>);

/// Runs program `name` on named inputs and states; gives every output's and state's bytes, by name. Pads must be zero.
fn run(exec: &mut CpuExecutor, name: &str, inputs: &Tensors, states: &Tensors) -> Vec<Found> {
    let planned = exec.planned.clone();
    let p = planned.program(name).unwrap();
    for (input, t) in inputs {
        // Queue tokens hold nothing.
        if t.ty.dtype != DType::U8 {
            put(exec, p.place(p.program.input(input).unwrap()), t);
        }
    }
    for (state, t) in states {
        put(exec, planned.state(state).unwrap().1, t);
    }
    exec.run(name, 0).unwrap();
    let outputs = p.program.outputs.iter().map(|o| (o.name.clone(), p.program.ty(o.value), p.place(o.value)));
    let states =
        planned.session.states.iter().zip(&planned.states).map(|(s, at)| (s.name.clone(), s.ty, *at));
    let read = |(name, ty, at): (String, TensorType, Address)| {
        let (held, at) = exec.locate(at, 0);
        let mut bytes = vec![0; ty.bytes() as usize];
        held.get(at, &mut bytes);
        let (row, used) = (ty.pitch * ty.dtype.size(), ty.shape.cols() * ty.dtype.size());
        for row in bytes.chunks(row.max(1)) {
            assert!(row[used..].iter().all(|pad| *pad == 0), "{name}: pads are {row:?}");
        }
        (name, ty, bytes)
    };
    outputs.chain(states).map(read).collect()
}

/// Returns the case's variants in an element type for which the executor has kernels.
fn run_here(case: &Case, dtype: DType, target: &dyn Target) -> Vec<Case> {
    let mut cases = case.variants_in(dtype);
    cases.retain(|case| {
        let types = case.types();
        let made = case.op.def().infer(&types).unwrap();
        target.has_kernel(&case.op, &types, &made)
    });
    cases
}

/// Returns the bytes of results.
fn bits(results: &[Found]) -> Vec<Vec<u8>> {
    results.iter().map(|(_, _, bytes)| bytes.clone()).collect()
}
