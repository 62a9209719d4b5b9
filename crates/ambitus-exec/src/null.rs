//! The null executor: everything but arithmetic. It allocates no arena, checks every transfer, and walks programs as the
//! real executors do; reads give zeros.

use crate::executor::{ExecError, Executor, check_places, input_place, output_place, program, state_place};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{DType, StateId};
use std::sync::Arc;

/// A planned session on no device.
#[derive(Debug)]
pub struct NullExecutor {
    planned: PlannedSession,
    /// Instructions of every program.
    lengths: Vec<u64>,
    instructions: u64,
}

impl NullExecutor {
    /// Opens a planned session after checking every place of every program.
    ///
    /// # Errors
    /// A value outside its region.
    pub fn open(planned: impl Into<Arc<PlannedSession>>) -> Result<NullExecutor, ExecError> {
        let planned: Arc<PlannedSession> = planned.into();
        check_places(&planned)?;
        let lengths = planned.programs.iter().map(|p| p.program.instrs.len() as u64).collect();
        Ok(NullExecutor { planned: planned.without_instructions(), lengths, instructions: 0 })
    }

    /// Returns the instructions walked so far, over all runs.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }
}

impl Executor for NullExecutor {
    fn planned(&self) -> &PlannedSession {
        &self.planned
    }

    fn arena_bytes(&self) -> u64 {
        0
    }

    fn write_state_at(&mut self, state: StateId, start: usize, data: &[f32]) -> Result<(), ExecError> {
        state_place(&self.planned, state, start, data.len()).map(drop)
    }

    fn read_state_at(&self, state: StateId, start: usize, out: &mut [f32]) -> Result<(), ExecError> {
        state_place(&self.planned, state, start, out.len())?;
        out.fill(0.0);
        Ok(())
    }

    fn write_f32(&mut self, program: &str, input: &str, slot: usize, data: &[f32]) -> Result<(), ExecError> {
        input_place(&self.planned, (program, input), slot, DType::F32, data.len()).map(drop)
    }

    fn write_i32(&mut self, program: &str, input: &str, slot: usize, data: &[i32]) -> Result<(), ExecError> {
        input_place(&self.planned, (program, input), slot, DType::I32, data.len()).map(drop)
    }

    fn run(&mut self, name: &str, slot: usize) -> Result<(), ExecError> {
        self.instructions += self.lengths[program(&self.planned, name, slot)?.0];
        Ok(())
    }

    fn read_f32(&self, program: &str, output: &str, slot: usize, out: &mut [f32]) -> Result<(), ExecError> {
        output_place(&self.planned, (program, output), slot, DType::F32, out.len())?;
        out.fill(0.0);
        Ok(())
    }
}
