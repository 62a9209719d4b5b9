//! Options in place of a recipe's own, as they are appended to a command.

use crate::session::SessionOptions;
use ambitus_compile::optimizer::States;
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::Blocks;
use ambitus_families::prepare::Limit;
use ambitus_recipe::recipe::{
    Average, Checkpoint, MicroBatch, Offload, OptimizerChoice, Precision, Recipe, Samples, UpdateAt,
};

/// By how much a plan of other numbers must be faster than one of the recipe's, for each kind of change: moments in bf16, in 8
/// bits; activations in another precision, weights in bf16; clipping per tensor. Together less than a hundredth and a half.
const MOMENTS_BF16: f64 = 0.002;
const MOMENTS_8BIT: f64 = 0.004;
const ACTIVATIONS: f64 = 0.002;
const WEIGHTS: f64 = 0.006;
const CLIPPING: f64 = 0.004;

/// Options in place of a recipe's own; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// How the optimizer keeps its moments: another form of the recipe's own rule.
    pub optimizer: Option<OptimizerChoice>,
    /// No average is kept.
    pub no_average: bool,
    /// Nothing is spoken while it trains.
    pub no_samples: bool,
    /// What the model computes in.
    pub precision: Option<Precision>,
    /// Each gradient is clipped by its own norm and applied in backward; an update is one micro-batch.
    pub in_backward: bool,
    /// Adapters of this rank.
    pub lora: Option<u32>,
    /// Another longest clip.
    pub limit: Option<Limit>,
    /// What is recomputed.
    pub checkpoint: Option<Blocks>,
    /// What waits on the host.
    pub offload: Option<Offload>,
    /// Rows of a micro-batch.
    pub micro_batch: Option<usize>,
}

impl Change {
    /// Returns these options with `other`'s, which take precedence.
    pub fn with(&self, other: &Change) -> Change {
        Change {
            optimizer: other.optimizer.or(self.optimizer),
            no_average: other.no_average || self.no_average,
            no_samples: other.no_samples || self.no_samples,
            precision: other.precision.or(self.precision),
            in_backward: other.in_backward || self.in_backward,
            lora: other.lora.or(self.lora),
            limit: other.limit.or(self.limit),
            checkpoint: other.checkpoint.clone().or_else(|| self.checkpoint.clone()),
            offload: other.offload.clone().or_else(|| self.offload.clone()),
            micro_batch: other.micro_batch.or(self.micro_batch),
        }
    }

    /// Puts what a session has of the options into it.
    pub fn to_session(&self, session: &mut SessionOptions) {
        session.precision = self.precision.unwrap_or(session.precision);
        if let (Some(o), Some(optimizer)) = (self.optimizer, &mut session.optimizer) {
            optimizer.states = o.states();
        }
        session.update_in_backward |= self.in_backward;
        session.clip_per_tensor |= self.in_backward;
        session.offload = self.offload.as_ref().map_or(session.offload, Offload::pass);
    }

    /// Returns the share by which a plan must be faster for these numbers to be taken in place of the recipe's.
    pub fn worth(&self) -> f64 {
        let moments = match self.optimizer.map(OptimizerChoice::states) {
            Some(States::Bf16) => MOMENTS_BF16,
            Some(States::EightBit) => MOMENTS_8BIT,
            Some(States::Fp32) | None => 0.0,
        };
        let computed = match self.precision {
            Some(Precision::Bf16Pure) => WEIGHTS,
            Some(_) => ACTIVATIONS,
            None => 0.0,
        };
        moments + computed + if self.in_backward { CLIPPING } else { 0.0 }
    }

    /// Puts the options over a recipe, as the command line does.
    pub fn to_recipe(&self, recipe: &mut Recipe) {
        recipe.optimizer = self.optimizer.or(recipe.optimizer);
        recipe.precision = self.precision.or(recipe.precision);
        if self.no_average {
            recipe.ema = Some(Average::Off);
        }
        if self.no_samples {
            recipe.samples = Some(Samples::Off);
        }
        if self.in_backward {
            (recipe.update, recipe.clip_per_tensor) = (UpdateAt::Backward, true);
        }
        if let Some(rank) = self.lora {
            recipe.lora.get_or_insert_default().rank = rank;
            if wants_rate(recipe) {
                recipe.learning_rate = Some(recipe.adapter_rate());
            }
        }
        if let Some(limit) = self.limit {
            recipe.data.max_seconds = limit.seconds;
        }
        if let Some(blocks) = &self.checkpoint {
            recipe.checkpoint = Some(Checkpoint(blocks.clone()));
        }
        if let Some(offload) = &self.offload {
            recipe.offload = Some(offload.clone());
        }
        if let Some(rows) = self.micro_batch {
            let clips = recipe.micro_batch.clips;
            recipe.micro_batch = MicroBatch { frames: Some(rows as u64), clips, ..MicroBatch::default() };
        }
    }

    /// Returns the options as they are typed after a command with this recipe, the largest change of numbers first.
    pub fn options(&self, recipe: &Recipe) -> String {
        let mut words = Vec::new();
        let mut word = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("--{name} {value}").trim_end().to_owned()));
        };
        let flag = |on: bool| on.then(String::new);
        word("max-seconds", self.limit.map(|limit| limit.seconds.to_string()));
        word("lora", self.lora.map(|rank| rank.to_string()));
        let rate = self.lora.filter(|_| wants_rate(recipe)).map(|_| format!("{:e}", recipe.adapter_rate()));
        word("learning-rate", rate);
        word("precision", self.precision.map(|p| p.to_string()));
        word("clip-per-tensor", flag(self.in_backward && !recipe.clip_per_tensor));
        word("update-in-backward", flag(self.in_backward));
        word("no-ema", flag(self.no_average));
        word("no-samples", flag(self.no_samples));
        word("optimizer", self.optimizer.map(|o| o.to_string()));
        word("micro-batch", self.micro_batch.map(|rows| rows.to_string()));
        word("checkpoint", self.checkpoint.as_ref().map(|blocks| blocks.to_string()));
        word("offload", self.offload.as_ref().map(|offload| offload.to_string()));
        words.join(" ")
    }

    /// Returns what they do to numbers.
    pub fn numerics(&self) -> Numerics {
        let changed = self.optimizer.is_some()
            || self.no_average
            || self.precision.is_some()
            || self.in_backward
            || self.lora.is_some()
            || self.limit.is_some_and(|limit| limit.loses);
        match (changed, self.micro_batch.is_some()) {
            (true, _) => Numerics::Changed,
            (false, true) => Numerics::Reordered,
            (false, false) => Numerics::Exact,
        }
    }
}

/// Returns whether adapters would learn next to nothing at the recipe's rate.
fn wants_rate(recipe: &Recipe) -> bool {
    recipe.learning_rate.is_none_or(|rate| rate < recipe.adapter_rate())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_typed_as_the_command_line_reads_them() {
        let mut recipe = Recipe::new("m", "d");
        let change = Change {
            optimizer: Some(OptimizerChoice::AdamW8bit),
            no_average: true,
            no_samples: true,
            precision: Some(Precision::Bf16Pure),
            in_backward: true,
            lora: Some(8),
            limit: Some(Limit { seconds: 2.5, prepare_bytes: 0, loses: true }),
            checkpoint: Some(Blocks::All),
            offload: Some(Offload::all()),
            micro_batch: Some(300),
        };
        let typed = "--max-seconds 2.5 --lora 8 --learning-rate 1e-4 --precision bf16-pure --clip-per-tensor \
                     --update-in-backward --no-ema --no-samples --optimizer adamw-8bit --micro-batch 300 --checkpoint all --offload all";
        assert_eq!(change.options(&recipe), typed);
        change.to_recipe(&mut recipe);
        recipe.validate().expect("it can be meant");
        assert_eq!((recipe.learning_rate, recipe.data.max_seconds), (Some(1e-4), 2.5));
        // A rate that is high enough stays.
        recipe.learning_rate = Some(1e-3);
        assert!(!change.options(&recipe).contains("rate"));
        let reordered = Change { micro_batch: Some(3), ..Change::default() };
        assert_eq!(
            [Change::default().numerics(), reordered.numerics()],
            [Numerics::Exact, Numerics::Reordered]
        );
        assert_eq!(change.numerics(), Numerics::Changed);
    }
}
