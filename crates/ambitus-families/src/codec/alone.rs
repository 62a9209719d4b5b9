//! A frozen part's one program: planned by itself, and told how much of its room is filled.

use crate::error::RunError;
use ambitus_compile::{pipeline, plan};
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Program, Session};
use ambitus_models::common::codec::rows::{self, Table};
use std::sync::Arc;

/// Returns the session of one program, planned for so many threads of the CPU.
pub(crate) fn planned(threads: usize, build: impl FnOnce(&mut Session) -> Program) -> Arc<PlannedSession> {
    let (target, mut session) = (CpuTarget::new(threads), Session::default());
    let p = build(&mut session);
    let p = pipeline::plain(&mut session, p, &target);
    session.programs = vec![p];
    Arc::new(plan::plan(session, &target, 1))
}

/// Tells a program how many rows of each of its tables there are. `room`: the samples, or whatever strides count, that it has room for.
///
/// # Errors
/// From the executor.
pub(crate) fn write_tables(
    exec: &mut CpuExecutor,
    program: &str,
    room: usize,
    valid: impl Fn(Table) -> usize,
) -> Result<(), RunError> {
    let tables = exec.planned().program(program).map_or(Vec::new(), |p| rows::tables(&p.program));
    for table in tables {
        let filled = table.fill(room / table.stride, valid(table));
        exec.write_i32(program, &table.name(), 0, &filled)?;
    }
    Ok(())
}
