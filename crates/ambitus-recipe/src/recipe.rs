//! A whole run as YAML. Everything is optional except `model.dir` and `data.dir`, and an absent key means what the model's
//! family means by it; unknown and duplicate keys are errors.
//!
//! ```yaml
//! model: {dir: models/base}            # the checkpoint to fine-tune
//! data: {dir: my-voice}                # the folder of audio
//! memory: 20GiB
//! batch: {seconds: 60}
//! updates: 2000
//! ```
//!
//! Relative paths are relative to the **current directory**, as in every other argument of the command line (so
//! `ambitus train recipes/quickstart.yaml` is typed in the repository's root); they do not depend on where the recipe
//! lies. The resolved recipe, written into the run folder, reads back as the same [`Recipe`].

mod average;
mod batch;
mod family;
mod forms;
mod offload;
mod optimizer;
mod origins;
mod own;
mod placement;
mod players;
mod read;
mod samples;
mod schedule;
mod sets;
mod sharding;
mod stages;
mod stop;
#[cfg(test)]
mod testing;
mod trained;
pub(crate) mod tree;
mod validate;
mod with;

pub use ambitus_compile::passes::precision::Precision;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::size::ByteSize;
pub use average::{Average, Unbiased};
pub use batch::Batch;
pub use family::{Defaults, Settled};
pub use forms::{
    Checkpoint, DeviceChoice, Length, Level, MicroBatch, Outside, Sample, TRIM, UpdateAt, Validation,
};
pub use offload::{Activations, Offload};
pub use optimizer::OptimizerChoice;
pub use origins::Origins;
pub use own::{Own, OwnKey, OwnOption, Section, read as read_own};
pub use placement::Placement;
pub use players::Player;
pub(crate) use read::read_tree;
pub use read::{MAX_RECIPE_BYTES, Place, RecipeError};
pub use read::{read_text, short};
pub use samples::{Every, Samples, Sentences};
pub use schedule::{Kind as ScheduleKind, Per, Schedule};
pub use sets::DataSet;
pub use sharding::{BackwardPrefetch, MAX_RANKS, Sharding, Strategy, Units};
pub use stages::Stage;
pub use stop::Stop;
pub use trained::Lora;
pub use validate::Invalid;

/// Updates of a run whose recipe says neither `updates` nor `epochs`.
pub const DEFAULT_UPDATES: u64 = 1000;

/// One training run. The fields' defaults are what an absent key means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// What is trained.
    pub model: Model,
    /// What it is trained on.
    pub data: Data,
    /// Where to compute: `cpu`, `cuda` (the first GPU) or `cuda:N`. Absent: cpu.
    #[serde(default)]
    pub device: DeviceChoice,
    /// Number of ranks over which the run is spread, each a GPU or a CPU. Absent: 1. On one machine without a launcher they are
    /// threads of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// What each of several ranks keeps, `{strategy: full, units: block, ...}` (see [`Sharding`]). Same numbers; trades time of
    /// gathering for less memory on each rank. Absent: full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Sharding>,
    /// `none`, or which part of the model each of several ranks has instead of a share of everything: `model` or `pipeline`
    /// (see [`Placement`]). Same bits as one rank. Not together with `sharding`. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The memory budget of the process (with `device: cuda`, of the GPU), as `20GiB` or `512MB`. Absent: 90 % of the smaller
    /// of available memory and the container's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// What the model computes in: `fp32`, `tf32-mixed`, `bf16-mixed`, `fp16-mixed` or `bf16-pure`. The 16-bit ones halve
    /// activations; `bf16-pure` halves parameters as well, and rounds updates to them stochastically. With the others,
    /// parameters, their gradients and the optimizer stay fp32. `tf32-mixed` is fp32 with matrix products of operands rounded to
    /// 10 bits of fraction, on GPUs from Ampere on. Absent: `bf16-mixed` on GPUs with tensor cores, `fp16-mixed` on those without
    /// bfloat16 (Turing), else fp32, unless `numerics: changed` lets the planner choose; with `numerics: same`, fp32.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "forms::word")]
    pub precision: Option<Precision>,
    /// The budget of what is offloaded; with `device: cuda`, of the process too. Absent: what is free besides `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<ByteSize>,
    /// What is kept in the host's memory until it is used, `all` or `{parameters: true, gradients: true, optimizer: 0.5, ema:
    /// true, activations: true}`. Same numbers and less of the device's memory, at the cost of copies. Absent: on a GPU what
    /// the budget needs, elsewhere nothing unless `host_memory` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// What is recomputed in the backward pass: `none`, `all` blocks, a number of blocks, `values:N` for the N cheapest values
    /// of every block (`values:N+M`: one more in M blocks), or names of modules, `'*.to_q,*.ff.ff.2'`. Same numbers, less
    /// memory, more time. Absent: what the budget needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// How far the planner may go, for what the recipe leaves open: `same` numbers (fp32 too), `reordered` sums, or `changed`
    /// numbers.
    #[serde(default, skip_serializing_if = "Level::is_default")]
    pub numerics: Level,
    /// What is computed at once, `{frames: N, clips: N}` or `N` rows of the model (frames, tokens); the update does not depend on it.
    /// Absent: chosen by the planner.
    #[serde(default, skip_serializing_if = "MicroBatch::is_empty")]
    pub micro_batch: MicroBatch,
    /// Audio of one update: `{clips: N}`, `{frames: N}` (or `{tokens: N}`) or `{seconds: X}`. Absent: the family's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// Number of updates. Not together with `epochs`; without both, [`DEFAULT_UPDATES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<u64>,
    /// Number of passes over the data; fractions are fine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// The learning rate at the end of warm-up. Absent: the family's; with `lora` 1e-4; with Lion a fifth of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Updates of linear warm-up. Absent: the family's, else min(100, 5 % of the updates).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,
    /// The rate after warm-up: `linear`, `cosine`, `constant`, ..., or `{kind: cosine, floor: 0.1}` (see
    /// [`Schedule`]). Absent: the family's, which is linear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Decoupled weight decay. Absent: the family's; with Lion five times that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Parameters and modules without weight decay, by pattern as in `freeze`; `[]` for none. Absent: the family's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_decay: Option<Vec<String>>,
    /// What applies gradients, and how its moments are kept. AdamW has two: `adamw` (fp32, 8 bytes a parameter), `adamw-bf16`
    /// (4) or `adamw-8bit` (2, with a scale for every 256; vectors and small tensors fp32). Lion has one: `lion` (4 bytes) or
    /// `lion-8bit` (1); it wants another rate and weight decay, and is never chosen unasked. 16 and 8 bits change numbers.
    /// Absent: adamw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerChoice>,
    /// β1 and β2 of the optimizer. Absent: the family's; with Lion [0.9, 0.99].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// AdamW's ε, which Lion has not. Absent: the family's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// Largest global L2 norm of the gradients; longer ones are scaled down to it. Absent: the family's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// `clip` is the largest norm of each tensor's gradient, by itself: other numbers than clipping by the global norm. A
    /// gradient that is not finite then leaves only its own tensor as it was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clip_per_tensor: bool,
    /// `end`, or `backward`: each gradient is applied as soon as backward has computed it, and takes no memory afterwards.
    /// Needs `clip_per_tensor: true` and updates of one micro-batch; then the same numbers (on a GPU to rounding). Absent: end.
    #[serde(default, skip_serializing_if = "UpdateAt::is_end")]
    pub update: UpdateAt,
    /// Dropout probability. Absent: the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Parameters and modules that are not trained, by pattern: `*` is anything, `transformer.text_embed` is all of it. They
    /// keep no gradient, no optimizer state and no average. Absent: everything is trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Train small additions to a frozen model, `{rank: 16, ...}` (see [`Lora`]). Absent: the model itself is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// Runs one after another, `[{name: head, freeze: [...], updates: 200, learning_rate: 1e-4}, ...]` (see [`Stage`]), each on
    /// the result of the previous one. Needs the memory of the largest; costs an export, a load and a new optimizer between
    /// them. Absent: one run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Settings of single losses of a model with several, `{d: {learning_rate: 1e-4}}` (see [`Player`]). Absent: what the
    /// recipe says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub players: BTreeMap<String, Player>,
    /// Keep an exponential moving average of the weights: `true` with ema-pytorch's decay and intervals, `{decay: 0.99, every: 10}`
    /// audiocraft's, which moves every 10 updates. Absent: the family's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<Average>,
    /// Updates between validations; 0: only before the first and after the last.
    #[serde(default = "default::every")]
    pub validate_every: u64,
    /// When to end before all updates are done: `{after: N}`, after N validations in a row without gain (see [`Stop`]). The best
    /// checkpoint is kept, and is what is exported. Absent: after the last update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Updates between checkpoints; 0: only after the last.
    #[serde(default = "default::every")]
    pub save_every: u64,
    /// Number of newest checkpoints that are kept besides the best one.
    #[serde(default = "default::keep")]
    pub keep: u32,
    /// Seed of all random draws in training: order, noise, spans, dropout. Validation does not depend on it.
    #[serde(default)]
    pub seed: u64,
    /// Compute threads. Absent: all cores. The result does not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Folder of the run's results. Absent: a new one under `runs/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<PathBuf>,
    /// The clip plotted and rendered to audio at the end, `{clip: NAME, steps: N, cfg: X}`, or `false` for none. Only for
    /// families that generate whole clips.
    #[serde(default = "default::sample", with = "forms::sample")]
    pub sample: Option<Sample>,
    /// Sentences that are spoken while it trains, `{texts: [...], clip: NAME, every: validation}`, into `samples/UPDATE/NAME.wav` of the
    /// run's folder, or `false` for none. They change no number of the run. Absent: what is said in two of the validation clips, where
    /// that takes no more memory than other phases and at most 5 % of the arithmetic between two validations. Only with one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<Samples>,
    /// What sections of families say, by section and key.
    #[serde(skip)]
    pub own: Own,
}

/// `model:`, the checkpoint and how it is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Folder of the model's files, which depend on its family (`ambitus train --help`). From scratch: without weights.
    pub dir: PathBuf,
    /// Start from random weights.
    #[serde(default)]
    pub from_scratch: bool,
}

/// `data:`, the audio and how it is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Folder of audio with transcripts, or a CSV or JSONL file. `None` with `sets`, and in plans that assume the clips' lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Several of them, mixed in every stretch of updates as their weights say, `[{dir: X, weight: 9}, {dir: Y}]`; also as the whole of
    /// `data: [...]`. Validation says the loss of each as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<DataSet>,
    /// Shortest clip in seconds.
    #[serde(default = "default::min_seconds")]
    pub min_seconds: f64,
    /// Longest clip in seconds.
    #[serde(default = "default::max_seconds")]
    pub max_seconds: f64,
    /// Clips outside these limits: `skip`, `cut` or `refuse`.
    #[serde(default)]
    pub outside: Outside,
    /// Loudness that clips are brought to while they are prepared, in LUFS (ITU-R BS.1770-4), from -40 to -5: -23 is EBU R128's. One gain
    /// for a clip, no larger than its peak allows. The files stay as they are. Absent: clips are as loud as their files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loudness: Option<f64>,
    /// Leave out the silence before and after speech while clips are prepared, but for so many seconds, from 0 to 1; `true`: 0.1. The
    /// files stay as they are. Not for music. Absent: clips are as long as their files.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "forms::trim")]
    pub trim: Option<f64>,
    /// Validation clips: a list of names, `{share: X}` of the clips by a hash of the name, or `{file: metadata_eval.csv}`, those that
    /// another metadata file of the data folder describes.
    #[serde(default)]
    pub validation: Validation,
    /// Folder of prepared clips. Absent: `runs/cache`, shared by runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
}

impl Recipe {
    /// Returns the recipe that names a model and data and nothing else: `ambitus train --model DIR --data DIR`.
    pub fn new(model: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Recipe {
        let mut recipe = Recipe::without_data(model);
        recipe.data.dir = Some(data.into());
        recipe
    }

    /// Returns the recipe of a plan for clips whose lengths are assumed: `ambitus plan --model DIR`.
    pub fn without_data(model: impl Into<PathBuf>) -> Recipe {
        Recipe {
            model: Model { dir: model.into(), ..Model::default() },
            data: Data {
                dir: None,
                sets: Vec::new(),
                min_seconds: default::min_seconds(),
                max_seconds: default::max_seconds(),
                outside: Outside::default(),
                loudness: None,
                trim: None,
                validation: Validation::default(),
                cache: None,
            },
            device: DeviceChoice::default(),
            ranks: None,
            sharding: None,
            placement: None,
            memory: None,
            precision: None,
            host_memory: None,
            offload: None,
            checkpoint: None,
            numerics: Level::default(),
            micro_batch: MicroBatch::default(),
            batch: None,
            updates: None,
            epochs: None,
            learning_rate: None,
            warmup: None,
            schedule: None,
            weight_decay: None,
            no_decay: None,
            optimizer: None,
            betas: None,
            eps: None,
            clip: None,
            clip_per_tensor: false,
            update: UpdateAt::default(),
            dropout: None,
            freeze: Vec::new(),
            lora: None,
            stages: Vec::new(),
            players: BTreeMap::new(),
            ema: None,
            validate_every: default::every(),
            stop: None,
            save_every: default::every(),
            keep: default::keep(),
            seed: 0,
            threads: None,
            run_dir: None,
            sample: default::sample(),
            samples: None,
            own: Own::new(),
        }
    }

    /// Returns how long the run is.
    pub fn length(&self) -> Length {
        match (self.updates, self.epochs) {
            (_, Some(epochs)) => Length::Epochs(epochs),
            (updates, None) => Length::Updates(updates.unwrap_or(DEFAULT_UPDATES)),
        }
    }
}

/// Defaults as functions, which is how serde wants them.
mod default {
    use super::Sample;

    pub fn every() -> u64 {
        100
    }
    pub fn keep() -> u32 {
        2
    }
    pub fn min_seconds() -> f64 {
        0.3
    }
    pub fn max_seconds() -> f64 {
        30.0
    }
    pub fn sample() -> Option<Sample> {
        Some(Sample::default())
    }
}
