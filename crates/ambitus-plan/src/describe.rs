//! Describes a plan for people.

use crate::budget::{Draft, RunPlan};
use crate::precision;
use crate::resolved::Resolved;
use crate::search;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::Trained;
use ambitus_compile::plan::{Heights, report};
use ambitus_families::error::RunError;
use ambitus_models::Rows;
use ambitus_recipe::rates::LearningRate;
use ambitus_recipe::size::ByteSize;

impl Resolved {
    /// Returns the most rows that fit the budget: of a micro-batch with these options, and of one clip with all blocks
    /// recomputed. Not looked for in long models.
    ///
    /// # Errors
    /// From planning.
    pub fn largest(&self) -> Result<[Option<usize>; 2], RunError> {
        if self.asked.is_long {
            return Ok([None, None]);
        }
        let most = self.plan.shape.model.rows().most.unwrap_or(usize::MAX);
        search::largest(&self.plan, self.longest.max(1), most, self.budget, self.device.target())
    }

    /// Describes [`Resolved::largest`] for people.
    ///
    /// # Errors
    /// From planning.
    pub fn describe_largest(&self) -> Result<Vec<String>, RunError> {
        let Rows { unit, per_second, most } = self.plan.shape.model.rows();
        let most = most.unwrap_or(usize::MAX);
        let seconds = |rows: usize| rows as f64 / per_second;
        let [micro_batch, clip] = self.largest()?;
        let micro_batch = micro_batch.map(|n| {
            let clips = (n as f64 / self.plan.shape.clip_rows).round();
            format!(
                "  the largest micro-batch that fits with these options: {n} {unit} ({:.1} s, about {clips} clip{})",
                seconds(n),
                if clips == 1.0 { "" } else { "s" }
            )
        });
        let clip = clip.map(|n| match n == most {
            true => {
                format!("  clips of any length that the model takes fit: {n} {unit} ({:.1} s)", seconds(n))
            }
            false => {
                format!(
                    "  the longest clip that fits, all blocks recomputed: {n} {unit} ({:.1} s)",
                    seconds(n)
                )
            }
        });
        Ok(micro_batch.into_iter().chain(clip).collect())
    }

    /// Returns a size and the budget, told apart.
    fn against_budget(&self, bytes: u64) -> [String; 2] {
        ByteSize(bytes).apart(ByteSize(self.budget))
    }

    /// Returns the plan as people read it.
    ///
    /// # Errors
    /// From planning the neighbours.
    pub fn describe(&self) -> Result<Vec<String>, RunError> {
        let p = &self.plan;
        let cap = p.shape.session.capacity;
        let Rows { unit, per_second: rows_per_second, .. } = p.shape.model.rows();
        let (fixed, per_second) = p.slope(self.device.target())?;
        let [peak, budget] = self.against_budget(p.peak_bytes);
        let mut out = vec![
            format!(
                "plan: peak {peak} of {budget}; arena {} ({} of transient values against a bound of {})",
                ByteSize(p.planned.arena_bytes()),
                ByteSize(p.planned.transient_bytes),
                ByteSize(p.planned.programs.iter().map(|p| p.live_bound_bytes).max().unwrap_or(0)),
            ),
            format!("  at the peak, in {}: {}", p.peak_place(), p.categories.line()),
        ];
        let phases: Vec<String> =
            p.phases.iter().map(|f| format!("{} {}", f.name, ByteSize(f.in_use_bytes))).collect();
        out.push(format!("  in use by phase: {}", phases.join(" · ")));
        out.push(format!(
            "  fixed {}, and {} for each further second of audio in a micro-batch ({} {unit}, {:.0} s now)",
            ByteSize(fixed),
            ByteSize(per_second),
            cap.rows,
            cap.rows as f64 / rows_per_second
        ));
        // Like with like: nobody has counted what a process with PyTorch takes besides its tensors.
        let (of_original, here) = match self.device.is_card() {
            true => ("with its context", format!("the peak is {}", ByteSize(p.peak_bytes))),
            false => (
                "of tensors, besides Python and PyTorch",
                format!("the arena{} is {}", p.of_each_rank(), ByteSize(p.planned.arena_bytes())),
            ),
        };
        out.push(format!(
            "  as the original runs it (PyTorch {}, the same micro-batch, by arithmetic): about {} {of_original}; here {here}",
            if p.shape.session.precision.narrow().is_none() { "fp32" } else { "AMP" },
            ByteSize(p.as_original_runs_it())
        ));
        out.push(format!(
            "  an update: {} micro-batch{}, {:.1} GFLOP, about {:.2} s on {}",
            p.shape.micro_batches_of_rank(),
            if p.shape.micro_batches_of_rank() == 1 { "" } else { "es" },
            p.step_flops / 1e9,
            p.step_seconds,
            self.device.name()
        ));
        out.extend(self.describe_passing_gradients());
        let usual = self.asked.precision_on(&self.device) == p.shape.session.precision;
        let computes = precision::note(&self.asked.recipe, &*p.shape.model, &self.device);
        out.extend(computes.filter(|_| usual).map(|note| format!("  {note}")));
        out.extend(self.rates.iter().find_map(LearningRate::warning));
        out.extend(self.describe_ranks()?);
        out.extend(p.parts.iter().flat_map(|parts| parts.describe()));
        if p.shape.session.trained != Trained::All {
            let (trained, all) = (p.parameters(true), p.parameters(false));
            let share = 100.0 * trained as f64 / all as f64;
            out.push(format!(
                "  trained: {trained} of {all} parameters ({share:.2} %); the others are frozen"
            ));
        }
        if let Some(note) = self.device.reserve_note() {
            out.push(format!("  {note}"));
            if self.device.is_listed() {
                out.push("  seconds follow from the rates of cards.toml; they were not measured".to_owned());
            }
            out.push(format!(
                "  besides, of the machine's own memory: at most {}",
                ByteSize(p.host_process_bytes(self.threads))
            ));
        }
        out.extend(self.describe_host());
        out.extend(self.describe_update_in_backward()?);
        out.extend(self.describe_recomputed()?);
        Ok(out)
    }

    /// Returns the bytes of gradients that are only there from backward to the update.
    fn describe_passing_gradients(&self) -> Option<String> {
        let bytes: u64 = self.plan.here().into_iter().map(report::passing_gradients).sum();
        (bytes > 0).then(|| {
            format!(
                "  gradients: {}, from where backward makes them until they are applied (no update has several micro-batches)",
                ByteSize(bytes)
            )
        })
    }

    /// Returns what applying gradients in backward saves.
    fn describe_update_in_backward(&self) -> Result<Option<String>, RunError> {
        let p = &self.plan;
        if !p.shape.session.update_in_backward {
            return Ok(None);
        }
        let mut at_end = p.shape.clone();
        at_end.session.update_in_backward = false;
        let at_end = RunPlan::new(at_end, self.device.target())?;
        let [peak, budget] = self.against_budget(at_end.peak_bytes);
        Ok(Some(format!(
            "  the update is in backward, gradients are not kept: at the end of the update the peak would be {peak}, {} \
             the budget of {budget}, for the same numbers and time",
            if at_end.peak_bytes > self.budget { "over" } else { "within" },
        )))
    }

    /// Returns what recomputing costs and saves.
    fn describe_recomputed(&self) -> Result<Option<String>, RunError> {
        let p = &self.plan;
        if p.shape.session.checkpoint == Blocks::None {
            return Ok(None);
        }
        let mut without = p.shape.clone();
        without.session.checkpoint = Blocks::None;
        let target = self.device.target();
        let without = Draft::new(without, target)?;
        // Offsets matter only if live bytes do not decide it.
        let (about, peak, place) = match without.least_bytes > self.budget {
            true => ("at least ", without.least_bytes, "over"),
            false => match without.peak_within(self.budget, &Heights::default()) {
                peak if peak > self.budget => ("", peak, "over"),
                peak => ("", peak, "still within"),
            },
        };
        let [peak, budget] = self.against_budget(peak);
        Ok(Some(format!(
            "  recomputed in backward: {} (+{:.1} % time); with everything kept the peak is {about}{peak}, {place} the \
             budget of {budget}",
            p.shape.session.checkpoint,
            100.0 * (p.step_seconds / without.step_seconds(target) - 1.0),
        )))
    }
}
