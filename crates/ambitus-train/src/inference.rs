//! Programs without backward, planned and opened: for generation and speech.

use crate::weights;
use ambitus_compile::passes::precision::Precision;
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_families::generate::Generator;
use ambitus_families::hearing::Hearing;
use ambitus_families::weights::load_frozen;
use ambitus_ir::{DType, Program, Session, StateDecl, StateKind};
use ambitus_plan::device::Device;
use ambitus_plan::inference::{Held, InferencePlan};
use ambitus_recipe::recipe::DeviceChoice;
use ambitus_recipe::size::ByteSize;

/// Options of the plan.
#[derive(Clone, Copy, Debug)]
pub struct InferenceOptions {
    /// What to compute in.
    pub precision: Precision,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Threads of the CPU executor.
    pub threads: usize,
    /// Budget in bytes.
    pub memory: Option<u64>,
}

/// A model whose programs run here, and its weights.
pub trait Source {
    /// Returns what generates from a batch file.
    ///
    /// # Errors
    /// A model that does not.
    fn generator(&self) -> Result<&dyn Generator, RunError>;

    /// Compares what there is with the parameters of a session.
    ///
    /// # Errors
    /// Every tensor that does not fit.
    fn check(&self, parameters: &[StateDecl]) -> Result<(), RunError>;

    /// Writes every parameter.
    ///
    /// # Errors
    /// Unreadable files, values that are not finite.
    fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError>;
}

impl Source for ModelDir {
    fn generator(&self) -> Result<&dyn Generator, RunError> {
        self.opened.generator().ok_or_else(|| {
            RunError::Usage(format!("{}: {} does not generate here", self.dir.display(), self.family.name()))
        })
    }

    fn check(&self, parameters: &[StateDecl]) -> Result<(), RunError> {
        ModelDir::check(self, parameters)
    }

    fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        weights::load(exec, self, 0).map(drop)
    }
}

impl Source for Box<dyn Hearing> {
    fn generator(&self) -> Result<&dyn Generator, RunError> {
        Ok((**self).generator())
    }

    fn check(&self, parameters: &[StateDecl]) -> Result<(), RunError> {
        (**self).check(parameters)
    }

    fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        load_frozen(self.weights(), exec)
    }
}

/// A session that is ready to be filled.
pub struct Open {
    /// Its executor.
    pub exec: Box<dyn Executor>,
    /// Planned bytes of the process, or of the card.
    pub planned_bytes: u64,
    /// Of these, keys and values of what was read and written.
    pub cache_bytes: u64,
}

impl InferenceOptions {
    /// Returns the device.
    ///
    /// # Errors
    /// None there, or none that computes so.
    pub fn device(&self) -> Result<Device, RunError> {
        Device::find(self.device, self.threads)?.computing_in(self.precision)
    }
}

/// Plans programs.
///
/// # Errors
/// See [`InferencePlan::of`].
pub fn plan(
    programs: impl Fn(&mut Session, DType) -> Vec<Program>,
    held: Held,
    (options, device): (&InferenceOptions, &Device),
) -> Result<InferencePlan, RunError> {
    InferencePlan::of(&programs, options.precision, held, device)
}

/// Returns the parameters of a plan.
pub fn parameters(plan: &InferencePlan) -> Vec<StateDecl> {
    plan.planned.session.states.iter().filter(|s| s.kind == StateKind::Parameter).cloned().collect()
}

/// Opens what was planned.
///
/// # Errors
/// A plan above the budget (`less`: what takes less), memory that is not free, the device.
pub fn opened(
    plan: InferencePlan,
    (options, device): (&InferenceOptions, &Device),
    less: &str,
) -> Result<Open, RunError> {
    let InferencePlan { planned, peak_bytes, cache_bytes, .. } = plan;
    if let Some(budget) = options.memory.filter(|budget| peak_bytes > *budget) {
        return Err(RunError::does_not_fit(
            peak_bytes,
            format!(
                "generation needs {} ({} of them keys and values), --memory allows {}: {less}",
                ByteSize(peak_bytes),
                ByteSize(cache_bytes),
                ByteSize(budget)
            ),
        ));
    }
    device.require_free(peak_bytes)?;
    let exec = device.open(planned.into(), None, "")?;
    Ok(Open { exec, planned_bytes: peak_bytes, cache_bytes })
}

/// Plans and opens programs, with whose parameters the weights are compared before.
///
/// # Errors
/// As [`plan`] and [`opened`]; weights that do not fit.
pub fn open(
    source: &dyn Source,
    programs: impl Fn(&mut Session, DType) -> Vec<Program>,
    held: Held,
    options: &InferenceOptions,
    less: &str,
) -> Result<Open, RunError> {
    let device = options.device()?;
    let plan = plan(programs, held, (options, &device))?;
    source.check(&parameters(&plan))?;
    opened(plan, (options, &device), less)
}
