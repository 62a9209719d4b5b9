//! The clips that a run trains on: prepared, or for a plan assumed. What families share of them is their lengths.

mod speech;

use crate::budget::{START_BYTES, THREAD_BYTES};
use crate::clips::mel::MelClips;
use crate::clips::tokens::TokenClips;
use crate::clips::{Clips, Use, VALIDATION_SEED};
use crate::device::Device;
use crate::error::RunError;
use crate::model_dir::ModelDir;
use crate::recipe::{self, Recipe};
use crate::resolve::{Console, PREPARE_THREADS, budget, cache_dir};
use crate::size::ByteSize;
use ambitus_data::prepare::Progress;
use ambitus_data::updates::Updates;
use ambitus_data::{
    DataError, Limits, Policy, PrepareOptions, Prepared, Source, Split, Tokenizer, pack, prepare,
};
use ambitus_models::Model;
use std::sync::Mutex;

/// Clips of an assumed data set: enough that updates are formed as of a real one.
const ASSUMED_CLIPS: usize = 64;
/// Clips that any update may have beyond what is usual.
const OF_ANY_UPDATE: u64 = 64;

/// What stays of a speech tokenizer and its codec when they are gone: pages of the program's file, and what the allocator keeps
/// between. Measured.
const SPEECH_PAGES: u64 = 4 << 20;

/// The clips of a run.
pub struct Data {
    /// Rows of each clip.
    pub rows: Vec<u32>,
    /// Which are trained on.
    pub split: Split,
    /// What the process takes while they are prepared, at most.
    pub prepare_bytes: u64,
    digest: String,
    /// What stays of the tokenizer.
    tokenizer_bytes: u64,
    kind: Kind,
}

enum Kind {
    Mel(Box<Prepared>),
    Tokens(Box<Prepared>),
    Assumed,
}

impl Data {
    /// Prepares the data of a recipe.
    ///
    /// # Errors
    /// By file, as `ambitus-data` says, and a family for which nothing is prepared.
    pub fn prepare(
        recipe: &Recipe,
        model: &ModelDir,
        tokenizer: Option<&Tokenizer>,
        device: &Device,
        console: &mut dyn Console,
    ) -> Result<Data, RunError> {
        for (given, key) in [
            (recipe.data.codec.is_some(), "codec (--codec)"),
            (recipe.data.labels.is_some(), "labels"),
            (recipe.data.voice.is_some(), "voice"),
            (recipe.data.max_tokens.is_some(), "max_tokens"),
        ] {
            if given && tokenizer.is_some() {
                return Err(RunError::Usage(format!(
                    "data.{key}: is for Orpheus, and {} holds F5-TTS: leave it out",
                    model.dir.display()
                )));
            }
        }
        let (kind, prepare_bytes) = match (&model.model, tokenizer) {
            (Model::Orpheus(cfg), _) => {
                let (prepared, bytes) = speech::prepare(recipe, model, cfg.vocab, device, console)?;
                (Kind::Tokens(Box::new(prepared)), bytes)
            }
            (Model::F5(_), Some(tokenizer)) => {
                let (prepared, bytes) = prepare_mel(recipe, tokenizer, device, console)?;
                (Kind::Mel(Box::new(prepared)), bytes)
            }
            (Model::F5(_), None) => return Err(no_data()),
        };
        let (Kind::Mel(prepared) | Kind::Tokens(prepared)) = &kind else { return Err(no_data()) };
        let split = match &recipe.data.validation {
            recipe::Validation::Names(names) => prepared.index.split(names)?,
            recipe::Validation::Share(share) => prepared.index.split_share(*share, VALIDATION_SEED)?,
        };
        let mut digest = prepared.index.digest();
        if recipe.seed != VALIDATION_SEED {
            // Part of what a checkpoint must share with the run that goes on with it, where the run's seed does not say it.
            digest += &format!(" validated with seed {VALIDATION_SEED}");
        }
        let rows = prepared.index.frames().to_vec();
        let tokenizer_bytes = tokenizer.map_or(SPEECH_PAGES, Tokenizer::dictionary_pages);
        Ok(Data { rows, split, prepare_bytes, digest, tokenizer_bytes, kind })
    }

    /// Clips of equal length for a plan without data: as long as the micro-batch that a settled recipe asks for, else as
    /// `data.max_seconds` allows.
    pub fn assume(recipe: &Recipe, model: &ModelDir) -> Data {
        let longest = (recipe.data.max_seconds * model.model.rows().per_second).ceil() as u64;
        let rows = recipe.micro_batch.frames.unwrap_or(longest).clamp(1, 1 << 30) as u32;
        let held_out = match &recipe.data.validation {
            recipe::Validation::Share(share) => (share * ASSUMED_CLIPS as f64).ceil() as usize,
            recipe::Validation::Names(names) => names.len(),
        };
        let train = ASSUMED_CLIPS - held_out.min(ASSUMED_CLIPS / 2);
        let split = Split { train: (0..train).collect(), validation: (train..ASSUMED_CLIPS).collect() };
        let rows = vec![rows; ASSUMED_CLIPS];
        Data { rows, split, prepare_bytes: 0, digest: String::new(), tokenizer_bytes: 0, kind: Kind::Assumed }
    }

    /// What they are, where they were assumed.
    pub fn assumed(&self, unit: &str) -> Option<String> {
        matches!(self.kind, Kind::Assumed).then(|| format!("clips of {} {unit}", self.rows[0]))
    }

    /// F5-TTS's prepared clips.
    pub fn mel(&self) -> Option<&Prepared> {
        match &self.kind {
            Kind::Mel(prepared) => Some(prepared),
            _ => None,
        }
    }

    /// The prepared clips, where they are not assumed.
    pub fn prepared(&self) -> Option<&Prepared> {
        match &self.kind {
            Kind::Mel(prepared) | Kind::Tokens(prepared) => Some(prepared),
            Kind::Assumed => None,
        }
    }

    /// What was prepared, for people: the summary, and the first clips that are not used.
    pub fn describe(&self) -> Vec<String> {
        let Some(prepared) = self.prepared() else { return Vec::new() };
        let summary = prepared.summary.to_string();
        summary.lines().map(str::to_owned).chain(prepared.outcomes.describe()).collect()
    }

    /// Bytes that a run holds of its data while it trains, with updates of so many rows, on so many ranks of this process: what stays
    /// of the tokenizer, the index, lengths and split, and of each rank the sequence of updates, an update while it is packed, and the packed validation.
    pub fn run_bytes(&self, update_rows: u64, ranks: usize) -> u64 {
        let (n, train, held_out) = (self.rows.len(), self.split.train.len(), self.split.validation.len());
        let index = self.prepared().map_or(0, |prepared| prepared.index.bytes());
        let all: u64 = self.rows.iter().map(|&rows| u64::from(rows)).sum();
        // Updates are nearly alike; some have more of the short clips.
        let of_update = 2 * update_rows.saturating_mul(n as u64) / all.max(1) + OF_ANY_UPDATE;
        let rounds = if self.mel().is_some() { MelClips::ROUNDS as usize } else { 1 };
        let chosen = 2 * size_of::<u32>();
        let packed = |uses: usize| pack::bytes_of(uses) + (uses * 2 * size_of::<Use>()) as u64;
        let of_rank = Updates::bytes_of(train) + packed(of_update as usize) + packed(rounds * held_out);
        // The split grows by doubling.
        self.tokenizer_bytes
            + index
            + (n * (size_of::<u32>() + 2 * size_of::<usize>())) as u64
            + ranks as u64 * (of_rank + ((train + held_out) * chosen) as u64)
    }

    /// Changes with any clip's content or name, and with what is validated on them.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Those clips, as the loop reads them.
    ///
    /// # Errors
    /// Assumed clips cannot be read.
    pub fn clips(&self, chosen: &[usize], seed: u64) -> Result<Box<dyn Clips>, RunError> {
        match &self.kind {
            Kind::Mel(prepared) => Ok(Box::new(MelClips::new(prepared.index.clone(), chosen, seed))),
            Kind::Tokens(prepared) => Ok(Box::new(TokenClips::new(prepared.index.clone(), chosen))),
            Kind::Assumed => Err(no_data()),
        }
    }
}

/// A run without data.
pub fn no_data() -> RunError {
    RunError::Usage("data.dir: is missing; name the folder of audio (--data DIR)".to_owned())
}

/// Limits, and where prepared clips are kept.
fn prepare_options(recipe: &Recipe) -> PrepareOptions {
    PrepareOptions {
        limits: Limits {
            min_seconds: recipe.data.min_seconds,
            max_seconds: recipe.data.max_seconds,
            ..Limits::default()
        },
        policy: match recipe.data.outside {
            recipe::Outside::Skip => Policy::Skip,
            recipe::Outside::Cut => Policy::Cut,
            recipe::Outside::Refuse => Policy::Refuse,
        },
        cache: cache_dir(recipe),
        threads: PREPARE_THREADS,
    }
}

/// The memory in which data is prepared.
struct Room {
    budget: u64,
    /// Of the process, whatever is prepared.
    process: u64,
}

impl Room {
    /// `threads`: that prepare it.
    fn new(recipe: &Recipe, device: &Device, threads: usize) -> Result<Room, RunError> {
        let budget = device.prepare_budget(budget(recipe, device)?.0)?;
        Ok(Room { budget, process: START_BYTES + THREAD_BYTES * threads as u64 })
    }

    /// What is left beside so many bytes, which must fit themselves. `parts` says what they are for.
    fn beside(&self, bytes: u64, parts: &str) -> Result<u64, RunError> {
        let needed = self.process + bytes;
        if needed <= self.budget {
            return Ok(self.budget - needed);
        }
        Err(RunError::DoesNotFit(format!(
            "does not fit: needs {}, budget {} ({} short), in prepare\n  {parts} · process {}\n  lower \
             data.max_seconds, or raise --memory",
            ByteSize(needed),
            ByteSize(self.budget),
            ByteSize(needed - self.budget),
            ByteSize(self.process),
        )))
    }

    /// What was read beside so many bytes, or by how much it does not fit.
    fn read<T>(&self, beside: u64, read: Result<T, DataError>) -> Result<T, RunError> {
        read.map_err(|e| match e {
            DataError::DoesNotFit { what, needed, .. } => {
                let all = self.process + beside + needed;
                RunError::DoesNotFit(format!(
                    "does not fit: needs {} or more, budget {} ({} short), in prepare\n  {what}: {} · beside that {} · process {}\n  \
                     raise --memory, or prepare less data",
                    ByteSize(all),
                    ByteSize(self.budget),
                    ByteSize(all.saturating_sub(self.budget)),
                    ByteSize(needed),
                    ByteSize(beside),
                    ByteSize(self.process),
                ))
            }
            other => other.into(),
        })
    }
}

/// Shows how far preparing is, and ends it when the run is asked to stop.
fn progress(console: &Mutex<&mut dyn Console>, p: &Progress<'_>) -> bool {
    if let Ok(mut console) = console.lock() {
        console.progress(&format!("preparing {}/{}: {}", p.done, p.total, p.name));
    }
    !crate::stop::requested()
}

/// What of a data set decides the memory that preparing it takes.
fn numbers(source: &Source) -> String {
    format!("{} clips, the longest text {} bytes", source.len(), source.longest_text())
}

/// Mel frames and text ids of every clip, and the bound on the memory that preparing takes.
pub fn prepare_mel(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    device: &Device,
    console: &mut dyn Console,
) -> Result<(Prepared, u64), RunError> {
    let dir = recipe.data.dir.as_ref().ok_or_else(no_data)?;
    let room = Room::new(recipe, device, PREPARE_THREADS)?;
    let options = prepare_options(recipe);
    let fixed = options.fixed_bound(tokenizer);
    let left = room.beside(fixed, &format!("io {}", ByteSize(fixed)))?;
    let source = room.read(fixed, Source::read(dir, &options.cache, left))?;
    let bound = options.memory_bound(tokenizer, &source);
    room.beside(bound, &format!("io {} ({})", ByteSize(bound), numbers(&source)))?;
    let console = Mutex::new(console);
    let prepared = prepare(&source, tokenizer, &options, &|p| progress(&console, &p))?;
    Ok((prepared, room.process + bound))
}
