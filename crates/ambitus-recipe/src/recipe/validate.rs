//! Refuses, by name, values that parse but make no sense.

use thiserror::Error;

use super::{Average, Batch, Player, Precision, Recipe, Samples, Schedule, UpdateAt, Validation};

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {why}")]
pub struct Invalid {
    /// The key's path, as `data.min_seconds`.
    pub key: String,
    /// What is wrong and what to write.
    pub why: String,
}

/// Longest clip that is accepted, in seconds.
const MAX_SECONDS: f64 = 600.0;
/// Bound on counts: far above any use, low enough that sums and products of counts stay inside 64 bits.
const MAX_COUNT: u64 = 1 << 31;

pub(super) fn refuse(key: &'static str, why: impl Into<String>) -> Result<(), Invalid> {
    Err(Invalid { key: key.to_owned(), why: why.into() })
}

pub(super) fn real(key: &'static str, x: f64, good: bool, range: &str) -> Result<(), Invalid> {
    if x.is_finite() && good { Ok(()) } else { refuse(key, format!("{x} is not {range}")) }
}

fn count(key: &'static str, n: u64, least: u64) -> Result<(), Invalid> {
    if (least..=MAX_COUNT).contains(&n) {
        Ok(())
    } else {
        refuse(key, format!("{n} is not between {least} and {MAX_COUNT}"))
    }
}

/// Checks rate, warm-up, schedule and clip of a run or of one of its players.
pub(super) fn validate_rates(p: &Player) -> Result<(), Invalid> {
    let rate = p.learning_rate.unwrap_or(1.0);
    real("learning_rate", rate, rate > 0.0 && rate <= 1.0, "above 0 and at most 1")?;
    count("warmup", p.warmup.unwrap_or(0), 0)?;
    p.schedule.as_ref().map_or(Ok(()), Schedule::validate)?;
    for beta in p.betas.into_iter().flatten() {
        real("betas", beta, (0.0..1.0).contains(&beta), "from 0 to below 1")?;
    }
    let clip = p.clip.unwrap_or(1.0);
    real("clip", clip, clip > 0.0, "above 0 (1e9 never clips)")
}

impl Recipe {
    /// Checks every value's range. [`Recipe::read`] has done it; needed again after options were put over a recipe.
    pub fn validate(&self) -> Result<(), Invalid> {
        let Recipe { model, data, .. } = self;
        let dirs = data.dirs().map(|dir| ("data.dir", Some(dir)));
        let others = [
            ("model.dir", Some(&*model.dir)),
            ("data.cache", data.cache.as_deref()),
            ("run_dir", self.run_dir.as_deref()),
        ];
        for (key, path) in others.into_iter().chain(dirs) {
            if let Some(path) = path {
                if path.as_os_str().is_empty() {
                    refuse(key, "is empty: write a path")?;
                }
                if path.to_str().is_none() {
                    refuse(key, format!("{} is not UTF-8: rename the folder", path.display()))?;
                }
            }
        }
        data.validate_sets()?;
        real(
            "data.min_seconds",
            data.min_seconds,
            data.min_seconds >= 0.0,
            "a number of seconds, 0 or more",
        )?;
        let (least, most) = (data.min_seconds, data.max_seconds);
        real(
            "data.max_seconds",
            most,
            most > least && most <= MAX_SECONDS,
            "above min_seconds and at most 600",
        )?;
        let loudness = data.loudness.unwrap_or(-23.0);
        real("data.loudness", loudness, (-40.0..=-5.0).contains(&loudness), "from -40 to -5 (LUFS)")?;
        let trim = data.trim.unwrap_or(0.0);
        real("data.trim", trim, (0.0..=1.0).contains(&trim), "from 0 to 1 (seconds of silence that stay)")?;
        match &data.validation {
            Validation::Share(x) => {
                real("data.validation.share", *x, (0.0..1.0).contains(x), "a share from 0 to below 1")?
            }
            Validation::Names(names) if names.is_empty() => {
                refuse(
                    "data.validation",
                    "is empty: list clip names, or write {share: 0} for no validation",
                )?;
            }
            Validation::File(file) if file.as_os_str().is_empty() => {
                refuse("data.validation.file", "is empty: name a metadata file of the data folder")?;
            }
            Validation::Names(_) | Validation::File(_) => {}
        }
        if self.memory.is_some_and(|m| m.0 == 0) {
            refuse("memory", "is zero: write a budget, as in 20GiB")?;
        }
        count("micro_batch.frames", self.micro_batch.frames.unwrap_or(1), 1)?;
        count("micro_batch.clips", self.micro_batch.clips.unwrap_or(1), 1)?;
        match self.batch {
            None => {}
            Some(Batch::Clips(n)) => count("batch.clips", n, 1)?,
            Some(Batch::Frames(n)) => count("batch.frames", n, 1)?,
            Some(Batch::Seconds(x)) => {
                real("batch.seconds", x, x > 0.0 && x <= 1e6, "a number of seconds above 0")?
            }
        }
        self.validate_sharding()?;
        self.validate_placement()?;
        self.validate_offload()?;
        self.ema.map_or(Ok(()), Average::validate)?;
        self.validate_trained()?;
        self.validate_training()?;
        self.validate_stages()
    }

    /// Checks the keys of optimizer, length and reports.
    fn validate_training(&self) -> Result<(), Invalid> {
        if self.updates.is_some() && self.epochs.is_some() {
            refuse("epochs", "cannot be combined with `updates`: keep one of the two")?;
        }
        count("updates", self.updates.unwrap_or(1), 1)?;
        let epochs = self.epochs.unwrap_or(1.0);
        real("epochs", epochs, epochs > 0.0 && epochs <= 1e6, "a number of epochs above 0")?;
        let open = |x: f64| x > 0.0 && x <= 1.0;
        let half_open = |x: f64| (0.0..1.0).contains(&x);
        let Recipe { learning_rate, warmup, ref schedule, betas, clip, .. } = *self;
        let schedule = schedule.clone();
        validate_rates(&Player { learning_rate, warmup, schedule, betas, clip })?;
        self.validate_own_rates()?;
        let decay = self.weight_decay.unwrap_or(0.0);
        real("weight_decay", decay, half_open(decay), "from 0 to below 1")?;
        let eps = self.eps.unwrap_or(1.0);
        real("eps", eps, open(eps), "above 0 and at most 1")?;
        if self.precision == Some(Precision::Fp16Mixed)
            && (self.update == UpdateAt::Backward || self.clip_per_tensor)
        {
            refuse(
                "precision",
                "fp16-mixed skips an update when any gradient overflows, so all must be there before one is applied: \
                 set update: end and clip_per_tensor: false, or precision: bf16-mixed (--precision bf16-mixed), which \
                 needs no loss scale",
            )?;
        }
        if self.update == UpdateAt::Backward && !self.clip_per_tensor {
            refuse(
                "update",
                "backward applies each gradient before the others exist, so there is no global norm to clip by: set \
                 clip_per_tensor: true (--clip-per-tensor), which changes numbers (with clip: 1e9, no clipping), or \
                 update: end",
            )?;
        }
        let dropout = self.dropout.unwrap_or(0.0);
        real("dropout", dropout, half_open(dropout), "a probability from 0 to below 1")?;
        count("validate_every", self.validate_every, 0)?;
        if let Some(stop) = self.stop {
            stop.validate(self.validate_every)?;
        }
        count("save_every", self.save_every, 0)?;
        count("keep", self.keep.into(), 1)?;
        if !(1..=1024).contains(&self.threads.unwrap_or(1)) {
            refuse("threads", "is not between 1 and 1024")?;
        }
        if let Some(sample) = &self.sample {
            if !(1..=1000).contains(&sample.steps) {
                refuse("sample.steps", format!("{} is not between 1 and 1000", sample.steps))?;
            }
            real("sample.cfg", sample.cfg, (0.0..=100.0).contains(&sample.cfg), "from 0 to 100")?;
        }
        if let Some(Samples::Of(sentences)) = &self.samples {
            sentences.validate()?;
        }
        Ok(())
    }
}
