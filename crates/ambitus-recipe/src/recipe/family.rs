//! What an absent key means: each family keeps its original project's settings.

use super::{Batch, Recipe, Schedule};

/// The rate that adapters want, in every family: a full fine-tune's is one at which they learn next to nothing.
pub const ADAPTER_RATE: f64 = 1e-4;

/// What a family means by keys that a recipe leaves out: settings of its original project, and facts of its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// `learning_rate`, without adapters.
    pub learning_rate: f64,
    /// `weight_decay`.
    pub weight_decay: f64,
    /// `ema`.
    pub ema: bool,
    /// `batch: {clips: N}`.
    pub clips: u64,
    /// `warmup`. `None`: [`by_length`](Recipe::settle_warmup) of the run.
    pub warmup: Option<u64>,
    /// `schedule`.
    pub schedule: Schedule,
    /// `lora.targets`: the linear layers that get adapters, by pattern.
    pub adapted: Vec<String>,
    /// Rows of a packed batch that a second of audio has.
    pub rows_per_second: f64,
    /// A clip can be sampled at the end of a run.
    pub samples: bool,
}

/// The most updates of warm-up where neither recipe nor family says how many.
const MOST_WARMUP: u64 = 100;

impl Recipe {
    /// Fills in what the model's family means by keys that are absent, and what depends on its rows.
    pub fn settle(&mut self, d: &Defaults) {
        let rate = if self.lora.is_some() { ADAPTER_RATE } else { d.learning_rate };
        self.learning_rate.get_or_insert(rate);
        self.weight_decay.get_or_insert(d.weight_decay);
        self.ema.get_or_insert(d.ema);
        self.batch.get_or_insert(Batch::Clips(d.clips));
        self.warmup = self.warmup.or(d.warmup);
        self.schedule.get_or_insert_with(|| d.schedule.clone());
        if let Some(lora) = &mut self.lora {
            lora.targets.get_or_insert_with(|| d.adapted.clone());
        }
        if let Some(seconds) = self.micro_batch.seconds.take() {
            self.micro_batch.frames = Some(((seconds * d.rows_per_second) as u64).max(1));
        }
        if !d.samples {
            self.sample = None;
        }
    }

    /// Fills in a warm-up that is still open when the number of updates is known: min(100, 5 % of them).
    pub fn settle_warmup(&mut self, updates: u64) -> u64 {
        *self.warmup.get_or_insert(MOST_WARMUP.min(updates / 20))
    }

    /// Keep a moving average. Of a settled recipe.
    pub fn ema(&self) -> bool {
        self.ema.unwrap_or(false)
    }
}
