//! What an absent key means: each family keeps its original project's settings.

use super::{Average, Batch, OptimizerChoice, Player, Recipe, Schedule};
use std::ops::Deref;

/// The rate that adapters want of AdamW, in every family: a full fine-tune's is one at which they learn next to nothing.
pub(super) const ADAPTER_RATE: f64 = 1e-4;

/// How many times as large a rate AdamW wants as Lion, whose steps are all of one size; Lion's weight decay is as many times
/// AdamW's, so that weights shrink as fast. Its authors say 3 to 10 of both (arXiv 2302.06675, section 5).
const LION_SLOWER: f64 = 5.0;
/// Lion's β1 and β2, as its authors have them.
const LION_BETAS: [f64; 2] = [0.9, 0.99];

/// What a family means by keys that a recipe leaves out: settings of its original project, and facts of its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// `learning_rate`, without adapters.
    pub learning_rate: f64,
    /// `weight_decay`.
    pub weight_decay: f64,
    /// `no_decay`. Each pattern matches a parameter of the model.
    pub no_decay: Vec<String>,
    /// `betas`.
    pub betas: [f64; 2],
    /// `eps`.
    pub eps: f64,
    /// `clip`.
    pub clip: f64,
    /// `players`: what single ones have instead, where the recipe does not say it of all.
    pub players: Vec<(&'static str, Player)>,
    /// `ema`.
    pub ema: Average,
    /// `batch: {clips: N}`.
    pub clips: u64,
    /// `warmup`. `None`: it follows from the length of the run ([`Settled::settle_warmup`]).
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

/// A recipe with what the model's family means by keys that were absent, filled in. What the search may still choose stays open.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    recipe: Recipe,
    /// The rate at the end of warm-up.
    pub learning_rate: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Parameters without weight decay, by pattern.
    pub no_decay: Vec<String>,
    /// β1 and β2.
    pub betas: [f64; 2],
    /// AdamW's ε.
    pub eps: f64,
    /// Largest L2 norm of the gradients.
    clip: f64,
    /// The moving average.
    pub ema: Average,
    /// Audio of one update.
    pub batch: Batch,
    /// How the rate goes on after warm-up.
    pub schedule: Schedule,
}

impl Deref for Settled {
    type Target = Recipe;

    fn deref(&self) -> &Recipe {
        &self.recipe
    }
}

impl Settled {
    /// Returns the recipe as it is written down, whose options can be changed.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Returns the updates of warm-up in a run of `updates`: where neither recipe nor family says how many, min(100, 5 % of
    /// them), which the recipe then says.
    pub fn settle_warmup(&mut self, updates: u64) -> u64 {
        *self.recipe.warmup.get_or_insert(MOST_WARMUP.min(updates / 20))
    }

    /// Returns the largest L2 norm of a player's gradients: its own, else the recipe's.
    pub fn clip(&self, player: &str) -> f64 {
        self.recipe.players.get(player).and_then(|own| own.clip).unwrap_or(self.clip)
    }
}

impl Recipe {
    /// Returns how many times as large a rate AdamW wants as the recipe's optimizer.
    pub(super) fn slower(&self) -> f64 {
        if self.optimizer.is_some_and(OptimizerChoice::is_lion) { LION_SLOWER } else { 1.0 }
    }

    /// Returns the rate that adapters want.
    pub fn adapter_rate(&self) -> f64 {
        ADAPTER_RATE / self.slower()
    }

    /// Fills in what the model's family means by keys that are absent, and what depends on its rows.
    pub fn settled(mut self, d: &Defaults) -> Settled {
        self.settle_players(&d.players);
        let slower = self.slower();
        let rate = if self.lora.is_some() { self.adapter_rate() } else { d.learning_rate / slower };
        let learning_rate = *self.learning_rate.get_or_insert(rate);
        let weight_decay = *self.weight_decay.get_or_insert(d.weight_decay * slower);
        let no_decay = self.no_decay.get_or_insert_with(|| d.no_decay.clone()).clone();
        let betas = *self.betas.get_or_insert(if slower > 1.0 { LION_BETAS } else { d.betas });
        let eps = *self.eps.get_or_insert(d.eps);
        let clip = *self.clip.get_or_insert(d.clip);
        let ema = *self.ema.get_or_insert(d.ema);
        let batch = *self.batch.get_or_insert(Batch::Clips(d.clips));
        let schedule = self.schedule.get_or_insert_with(|| d.schedule.clone()).clone();
        self.warmup = self.warmup.or(d.warmup);
        if let Some(lora) = &mut self.lora {
            lora.targets.get_or_insert_with(|| d.adapted.clone());
        }
        if let Some(seconds) = self.micro_batch.seconds.take() {
            self.micro_batch.frames = Some(((seconds * d.rows_per_second) as u64).max(1));
        }
        if !d.samples {
            self.sample = None;
        }
        Settled {
            recipe: self,
            learning_rate,
            weight_decay,
            no_decay,
            betas,
            eps,
            clip,
            ema,
            batch,
            schedule,
        }
    }
}
