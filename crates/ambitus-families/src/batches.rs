//! Writes batches to the inputs of a planned program.

use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::Batch;

/// Writes a number that a program takes, or not: a rank with a part of the model has that part's inputs.
///
/// # Errors
/// From the executor.
pub fn write_f32(exec: &mut dyn Executor, name: &str, input: &str, value: f32) -> Result<(), RunError> {
    if has_input(exec.planned(), name, input) {
        exec.write_f32(name, input, 0, &[value])?;
    }
    Ok(())
}

/// Writes those inputs of a batch that a program takes.
///
/// # Errors
/// From the executor.
pub fn write_batch(exec: &mut dyn Executor, name: &str, host: &Batch) -> Result<(), RunError> {
    write_inputs(exec, name, host, &str::to_owned)
}

/// Writes a batch to a program that calls an input `input(name)`. See [`write_batch`].
///
/// # Errors
/// From the executor.
pub fn write_inputs(
    exec: &mut dyn Executor,
    name: &str,
    host: &Batch,
    input: &dyn Fn(&str) -> String,
) -> Result<(), RunError> {
    for (plain, data) in host.floats() {
        let input = input(plain);
        if has_input(exec.planned(), name, &input) {
            exec.write_f32(name, &input, 0, data)?;
        }
    }
    for (plain, data) in host.ints() {
        let input = input(plain);
        if has_input(exec.planned(), name, &input) {
            exec.write_i32(name, &input, 0, data)?;
        }
    }
    Ok(())
}

/// Returns true when a program of the plan has such an input.
pub fn has_input(planned: &PlannedSession, program: &str, input: &str) -> bool {
    planned.program(program).is_some_and(|p| p.program.input(input).is_some())
}
