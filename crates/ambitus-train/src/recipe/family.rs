//! What an absent key means: each family keeps its original project's settings.

use super::{Batch, Recipe, Schedule, ScheduleKind};
use ambitus_models::Model;

/// The rate that adapters want, in every family: a full fine-tune's is one at which they learn next to nothing.
pub const ADAPTER_RATE: f64 = 1e-4;

/// Settings of an original project.
struct Defaults {
    learning_rate: f64,
    weight_decay: f64,
    ema: bool,
    clips: u64,
    /// `None`: by the length of the run.
    warmup: Option<u64>,
    schedule: Schedule,
}

/// Both ends of the ramps of F5-TTS's trainer: LinearLR starts at, and falls to, this share.
const FLOOR: f64 = 1e-8;

impl Defaults {
    fn of(model: &Model) -> Defaults {
        let schedule = Schedule::of(ScheduleKind::Linear);
        match model {
            Model::F5(_) => Defaults {
                learning_rate: 1e-5,
                weight_decay: 0.01,
                ema: true,
                clips: 8,
                warmup: None,
                schedule: Schedule { start: FLOOR, floor: FLOOR, ..schedule },
            },
            // finetune/train.py: Hugging Face's defaults but for the rate.
            Model::Orpheus(_) => Defaults {
                learning_rate: 5e-5,
                weight_decay: 0.0,
                ema: false,
                clips: 1,
                warmup: Some(0),
                schedule,
            },
        }
    }
}

impl Recipe {
    /// Fills in what the model's family means by keys that are absent, and what depends on its rows.
    pub fn settle(&mut self, model: &Model) {
        let d = Defaults::of(model);
        let rate = if self.lora.is_some() { ADAPTER_RATE } else { d.learning_rate };
        self.learning_rate.get_or_insert(rate);
        self.weight_decay.get_or_insert(d.weight_decay);
        self.ema.get_or_insert(d.ema);
        self.batch.get_or_insert(Batch::Clips(d.clips));
        self.warmup = self.warmup.or(d.warmup);
        self.schedule.get_or_insert(d.schedule);
        if let Some(lora) = &mut self.lora {
            lora.targets.get_or_insert_with(|| model.adapted().iter().map(|t| (*t).to_owned()).collect());
        }
        if let Some(seconds) = self.micro_batch.seconds.take() {
            self.micro_batch.frames = Some(((seconds * model.rows().per_second) as u64).max(1));
        }
        if matches!(model, Model::Orpheus(_)) {
            // It is not sampled by whole clips.
            self.sample = None;
        }
    }

    /// Keep a moving average. Of a settled recipe.
    pub fn ema(&self) -> bool {
        self.ema.unwrap_or(false)
    }
}
