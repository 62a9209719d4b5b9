//! The model that hears what a run speaks: frozen, on the processor, in the memory of the run.

use crate::budget::{HeardBytes, LOAD_BYTES, PLANNED_AT_ONCE, PLANNER_BYTES, THREAD_BYTES};
use crate::device::Device;
use crate::inference::{Held, InferencePlan};
use crate::memory;
use ambitus_compile::passes::precision::Precision;
use ambitus_exec::executor::Executor;
use ambitus_families::EARS;
use ambitus_families::error::RunError;
use ambitus_families::hearing::{self, Asked, Ear, Hearing};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateDecl, StateKind};
use ambitus_recipe::recipe::{DeviceChoice, Samples, Sentences};
use std::path::Path;
use std::sync::Arc;

/// What stays of hearing besides the programs: pages of code, and what the allocator keeps. Measured: 0.7 to 3.6 MiB.
const STAYS_BYTES: u64 = 4 << 20;

/// A model that hears, planned and not in memory.
pub struct HeardBy {
    /// Its files.
    pub hearing: Box<dyn Hearing>,
    /// What is said in each line.
    pub texts: Vec<String>,
    language: Option<String>,
    planned: Arc<PlannedSession>,
    device: Device,
    /// What it takes.
    pub bytes: HeardBytes,
}

/// Refuses what cannot hear the samples of a recipe, before its clips are prepared.
///
/// # Errors
/// Files that cannot be used, a language that the model does not know.
pub(crate) fn require(samples: Option<&Samples>) -> Result<(), RunError> {
    if let Some(Samples::Of(wanted)) = samples
        && let Some(dir) = &wanted.heard_by
    {
        ear(&*open(dir)?, wanted.language.as_deref())?;
        memory::return_freed();
    }
    Ok(())
}

fn open(dir: &Path) -> Result<Box<dyn Hearing>, RunError> {
    hearing::open(EARS, dir, "samples.heard_by: ")
}

/// Returns what hears. An error names the key, not an option.
fn ear<'a>(hearing: &'a dyn Hearing, language: Option<&'a str>) -> Result<Box<dyn Ear + 'a>, RunError> {
    hearing.ear(&asked(language)).map_err(|e| match e {
        RunError::Usage(why) => RunError::Usage(format!("samples.{}", why.trim_start_matches('-'))),
        e => e,
    })
}

impl HeardBy {
    /// Plans the model that `wanted` names, if it names one, for `threads` threads. No weight is read.
    ///
    /// # Errors
    /// Files that cannot be used, a language that the model does not know.
    pub(crate) fn of(wanted: &Sentences, threads: usize) -> Result<Option<HeardBy>, RunError> {
        let Some(dir) = &wanted.heard_by else { return Ok(None) };
        let hearing = open(dir)?;
        let device = Device::find(DeviceChoice::Cpu, threads)?;
        let ear = ear(&*hearing, wanted.language.as_deref())?;
        let held = Held { before: ear.bytes(), then: ear.bytes() };
        let programs = |session: &mut _, cache| ear.programs(session, cache);
        let InferencePlan { planned, beside_bytes, programs_bytes, .. } =
            InferencePlan::of(&programs, Precision::Fp32, held, &device)?;
        let is_parameter = |s: &&StateDecl| s.kind == StateKind::Parameter;
        let parameters: Vec<StateDecl> =
            planned.session.states.iter().filter(is_parameter).cloned().collect();
        hearing.check(&parameters)?;
        let bytes = HeardBytes {
            planning: ear.bytes() + PLANNER_BYTES + PLANNED_AT_ONCE[0] * programs_bytes,
            hearing: beside_bytes + LOAD_BYTES + THREAD_BYTES * threads as u64,
            resting: programs_bytes + STAYS_BYTES,
        };
        drop(ear);
        let (texts, language) = (wanted.texts.clone(), wanted.language.clone());
        Ok(Some(HeardBy { hearing, texts, language, planned: planned.into(), device, bytes }))
    }

    /// Returns what is asked of it: the likeliest words, of each sound by itself.
    pub fn asked(&self) -> Asked<'_> {
        asked(self.language.as_deref())
    }

    /// Allocates its memory.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(&self) -> Result<Box<dyn Executor>, RunError> {
        self.device.open(self.planned.clone(), None, "")
    }
}

fn asked(language: Option<&str>) -> Asked<'_> {
    Asked { language, ..Asked::default() }
}
