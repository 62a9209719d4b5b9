//! The CPU executor against the reference interpreter, and against itself.

mod parity;
mod sharing;

use super::{AsyncMode, CpuExecutor, CpuOptions};
use crate::executor::{ExecError, Executor};
use ambitus_compile::plan::plan;
use ambitus_ir::plan::{Address, PlannedSession, Region};
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

/// Writes a value with its pads. Room is planned in multiples of 256 bytes, so whole words may be written.
fn put(exec: &mut CpuExecutor, at: Address, t: &Tensor) {
    let mut bytes = t.to_bytes();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let words = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    let offset = exec.planned.base(at.region, 0) + at.offset;
    let arena = if at.region == Region::Host { &mut exec.host } else { &mut exec.arena };
    arena.floats_mut(offset, words.len()).iter_mut().zip(words).for_each(|(to, word)| *to = word);
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
        let (arena, offset) = exec.locate(at, 0);
        let words = arena.floats(offset, ty.bytes().div_ceil(4) as usize);
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.truncate(ty.bytes() as usize);
        let (row, used) = (ty.pitch * ty.dtype.size(), ty.shape.cols() * ty.dtype.size());
        for row in bytes.chunks(row.max(1)) {
            assert!(row[used..].iter().all(|pad| *pad == 0), "{name}: pads are {row:?}");
        }
        (name, ty, bytes)
    };
    outputs.chain(states).map(read).collect()
}

/// The case's variants in an element type for which the executor has kernels.
fn run_here(case: &Case, dtype: DType, target: &dyn Target) -> Vec<Case> {
    let mut cases = case.variants_in(dtype);
    cases.retain(|case| {
        let types = case.types();
        let made = case.op.def().infer(&types).unwrap();
        target.has_kernel(&case.op, &types, &made)
    });
    cases
}

/// Bytes of results.
fn bits(results: &[Found]) -> Vec<Vec<u8>> {
    results.iter().map(|(_, _, bytes)| bytes.clone()).collect()
}
