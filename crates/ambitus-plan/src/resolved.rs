//! A run that is decided: the recipe with every choice filled in, its model, clips and plan.

use crate::asked::Asked;
use crate::budget::RunPlan;
use crate::data::Data;
use crate::device::Device;
use crate::memory::Meter;
use crate::samples::Samples;
use crate::search::Candidate;
use ambitus_compile::optimizer::Rule;
use ambitus_compile::passes::place::Cut;
use ambitus_compile::passes::precision::Precision;
use ambitus_data::updates::UpdateSize;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_ir::ops::lion::Lion;
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::recipe::{OptimizerChoice, Origins, Recipe};
use ambitus_recipe::size::ByteSize;
use serde::Serialize;

/// A value of the run and where it came from.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// Key of the recipe.
    pub key: &'static str,
    /// The value.
    pub value: String,
    /// `command line`, `recipe.yaml:3:1`, `default`, `the search`, ...
    pub from: String,
}

/// Everything that a run does, decided.
pub struct Resolved {
    /// The recipe with every choice filled in.
    pub recipe: Recipe,
    /// Who said its values.
    pub origins: Origins,
    /// The values that decide the plan, and where they came from.
    pub choices: Vec<Choice>,
    /// The model.
    pub model: ModelDir,
    /// The clips.
    pub data: Data,
    /// Size of an update.
    pub size: UpdateSize,
    /// Updates of the run.
    pub updates: u64,
    /// The learning rate of each of them, by player.
    pub rates: Vec<LearningRate>,
    /// Threads.
    pub threads: usize,
    /// Budget in bytes.
    pub budget: u64,
    /// Budget of the host's memory in bytes; `None` if nothing is offloaded to it, or the host is not known.
    pub host_budget: Option<u64>,
    /// Longest clip, rows.
    pub longest: usize,
    /// The plan.
    pub plan: RunPlan,
    /// What the search tried.
    pub candidates: Vec<Candidate>,
    /// How long it took.
    pub search_seconds: f64,
    /// What was asked for.
    pub asked: Asked,
    /// What is spoken while it trains.
    pub samples: Option<Samples>,
    /// Where it computes.
    pub device: Device,
    /// It resumes a run, whose training so far must stay usable.
    pub resumed: bool,
    /// What this process held so far.
    pub meter: Meter,
}

impl Resolved {
    /// Plans the same run in fp32, after fp16 has failed, and returns the note that says so.
    ///
    /// # Errors
    /// [`RunError::Training`] where that does not fit.
    pub fn in_fp32(&mut self) -> Result<String, RunError> {
        let mut shape = self.plan.shape.clone();
        shape.session.precision = Precision::Fp32;
        let plan = RunPlan::new(shape, self.device.target())?;
        let why = "the loss scale fell below 1: numbers of this run overflow fp16 at any scale";
        if plan.peak_bytes > self.budget {
            return Err(RunError::Training(format!(
                "{why}; in fp32 it would need {} of {}, so it ends here, saved. Set precision: bf16-mixed \
                 (--precision bf16-mixed) where the device has it, or precision: fp32 with a smaller micro_batch, \
                 checkpoint: all or more memory, in a new run",
                ByteSize(plan.peak_bytes),
                ByteSize(self.budget)
            )));
        }
        self.plan = plan;
        let peak = ByteSize(self.plan.peak_bytes);
        Ok(format!("{why}; it continues in fp32 (peak {peak} of {})", ByteSize(self.budget)))
    }

    /// Returns what the same plan would need with Lion, whose rule of updating is never chosen unasked: a line for each form, and none
    /// where it was asked for.
    ///
    /// # Errors
    /// From planning.
    pub fn describe_lion(&self) -> Result<Vec<String>, RunError> {
        if self.recipe.optimizer.is_some_and(OptimizerChoice::is_lion) {
            return Ok(Vec::new());
        }
        let line = |form: OptimizerChoice| {
            let mut shape = self.plan.shape.clone();
            let Some(optimizer) = &mut shape.session.optimizer else { return Ok(None) };
            // No byte depends on the constants.
            let ([beta1, beta2], weight_decay) = (optimizer.rule.betas(), optimizer.rule.weight_decay());
            optimizer.rule = Rule::Lion(Lion { beta1, beta2, weight_decay });
            optimizer.states = form.states();
            let bytes = RunPlan::new(shape, self.device.target())?.peak_bytes;
            let saved = self.plan.peak_bytes.saturating_sub(bytes);
            Ok(Some(format!(
                "  --optimizer {form:<9}  {:>10}, {} less: another rule, which is never chosen for you",
                ByteSize(bytes).to_string(),
                ByteSize(saved)
            )))
        };
        let lines = [OptimizerChoice::Lion, OptimizerChoice::Lion8bit].map(line);
        lines.into_iter().filter_map(Result::transpose).collect()
    }

    /// Plans the same run with the model cut elsewhere, or more or fewer micro-batches at a time, where it is.
    ///
    /// # Errors
    /// From planning.
    pub fn cut_at(&mut self, cut: Cut, in_flight: usize) -> Result<(), RunError> {
        let mut shape = self.plan.shape.clone();
        let known = (Some(cut), Some(in_flight));
        let Some(placement) = &mut shape.session.placement else { return Ok(()) };
        if (&placement.cut, &placement.in_flight) == (&known.0, &known.1) {
            return Ok(());
        }
        (placement.cut, placement.in_flight) = known;
        self.plan = RunPlan::new(shape, self.device.target())?;
        Ok(())
    }
}
