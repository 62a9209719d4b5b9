//! What programs without backward need, when nothing is trained: generation and speech.

use crate::budget::{LOAD_BYTES, OF_PAGE_TABLE, PLANNED_AT_ONCE, PLANNER_BYTES, ProgramBytes, START_BYTES};
use crate::device::Device;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::{pipeline, plan};
use ambitus_families::error::RunError;
use ambitus_families::recorded::Spare;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{DType, Program, Session, StateKind};
use ambitus_recipe::recipe::DeviceChoice;

/// Bytes of the host's memory beside the arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Until the programs are planned: tokenizers.
    pub before: u64,
    /// From then on: buffers, codecs, results.
    pub then: u64,
}

/// Returns what may be used of a budget before anything is planned. A card's says nothing of the host's memory.
pub fn spare(device: DeviceChoice, threads: usize, memory: Option<u64>) -> Spare {
    let budget = memory.filter(|_| device == DeviceChoice::Cpu);
    Spare { threads, bytes: budget.map_or(u64::MAX, |bytes| bytes.saturating_sub(START_BYTES)) }
}

/// A planned session of programs without backward.
pub struct InferencePlan {
    /// Every byte of the arena.
    pub planned: PlannedSession,
    /// The highest peak: the smallest budget that is accepted.
    pub peak_bytes: u64,
    /// Keys and values of what was read and written.
    pub cache_bytes: u64,
    /// Bytes of the process that the programs take once they are planned.
    pub programs_bytes: u64,
    /// What running takes besides these and the process itself, on the processor: the bound programs, the arena and what is held.
    pub beside_bytes: u64,
}

impl InferencePlan {
    /// Plans programs. `held`: see [`InferencePlan::new`].
    ///
    /// # Errors
    /// See [`pipeline::inference`].
    pub fn of(
        programs: &dyn Fn(&mut Session, DType) -> Vec<Program>,
        precision: Precision,
        held: Held,
        device: &Device,
    ) -> Result<InferencePlan, RunError> {
        let mut session = Session::default();
        let programs = programs(&mut session, precision.narrow().unwrap_or(DType::F32));
        let session = pipeline::inference(session, programs, precision, device.target())?;
        Ok(InferencePlan::new(session, device, held))
    }

    /// Plans a session that [`pipeline::inference`] made. On a card only the card's memory counts.
    pub fn new(session: Session, device: &Device, held: Held) -> InferencePlan {
        let programs = ProgramBytes::of(&session, 1);
        let planned = plan::plan(session, device.target(), 1);
        let (arena, beside) = (planned.arena_bytes(), device.beside());
        let programs_bytes = programs.planned;
        let beside_bytes = programs.running() - programs_bytes + held.then + arena + arena / OF_PAGE_TABLE;
        let peak_bytes = match beside.with_host {
            false => beside.fixed_bytes + arena,
            true => {
                let planning =
                    START_BYTES + PLANNER_BYTES + held.then + PLANNED_AT_ONCE[0] * programs.planned;
                let running = beside.fixed_bytes + programs_bytes + beside_bytes + LOAD_BYTES;
                planning.max(running).max(START_BYTES + held.before)
            }
        };
        let caches = planned.session.states.iter().filter(|s| s.kind == StateKind::Cache);
        let cache_bytes = caches.map(|s| s.ty.bytes()).sum();
        InferencePlan { planned, peak_bytes, cache_bytes, programs_bytes, beside_bytes }
    }
}
