//! Makes clips of audio and text in bounded memory: what all families share.

use crate::console::Console;
use crate::error::RunError;
use crate::stop;
use ambitus_data::prepare::{Edits, Lengths, Progress};
use ambitus_data::sources::{DataSet, Sets};
use ambitus_data::{DataError, Limits, Policy, PrepareOptions, Prepared, Source};
use ambitus_recipe::recipe::{self, Recipe};
use ambitus_recipe::size::ByteSize;
use std::path::PathBuf;

/// Threads that prepare clips. One reads audio some hundred times faster than it plays, and the bound on preparing does not
/// grow with the machine.
pub const PREPARE_THREADS: usize = 1;
/// A longest clip is made shorter by at most this many halves, and to the shortest.
const HALVES: i32 = 3;
/// What may be read of any data set to say what it needs, however small the budget is.
const READ_BYTES: u64 = 16 << 20;
/// What stays of a speech tokenizer and its codec when they are gone: pages of the program's file, and what the allocator keeps
/// between. Measured.
pub const PAGES: u64 = 4 << 20;

/// Makes a family's clips of audio and text.
pub trait Preparer {
    /// Prepares the data of a recipe, or measures it where preparing does not fit.
    ///
    /// # Errors
    /// By file, as `ambitus-data` says.
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError>;

    /// Returns what the process takes while clips are prepared that are assumed, of which `held` bytes are held all the time.
    ///
    /// # Errors
    /// A codec that cannot be used; no memory that is known.
    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError>;

    /// Returns what stays of it when it is dropped.
    fn stays(&self) -> u64;
}

/// What is to be prepared, and where.
pub struct Job<'a> {
    /// A settled recipe.
    pub recipe: &'a Recipe,
    /// A run needs clips: a plan takes their lengths where something is missing that makes them.
    pub run: bool,
    /// Compute threads, for a codec.
    pub threads: usize,
    /// Bytes in which data is prepared.
    pub budget: u64,
    /// The budget is that of the host's memory next to a GPU's, about which the plan says nothing.
    pub on_card: bool,
    /// Bytes of the process before it does anything, and of each thread.
    pub process_bytes: [u64; 2],
}

/// What became of preparing.
pub struct Made {
    /// The clips, or their lengths.
    pub what: What,
    /// What the process takes while they are prepared, at most.
    pub prepare_bytes: u64,
    /// Other longest clips that could be allowed (`--max-seconds`), the longest first.
    pub limits: Vec<Limit>,
}

/// Clips, or their lengths.
pub enum What {
    /// They are prepared.
    Clips(Box<Prepared>),
    /// Only their lengths are known, because of this.
    Lengths(Box<Lengths>, String),
}

/// Another longest clip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Seconds.
    pub seconds: f64,
    /// What preparing may then use.
    pub prepare_bytes: u64,
    /// Some clips would be left out.
    pub loses: bool,
}

/// What the process takes while clips of at most that many seconds are prepared.
pub type Bound<'a> = Box<dyn Fn(f64) -> u64 + 'a>;

impl Made {
    /// Returns made clips with the limits of length that `bytes` allows.
    pub fn new(what: What, recipe: &Recipe, bytes: &dyn Fn(f64) -> u64) -> Made {
        let ends = match &what {
            What::Lengths(lengths, _) => lengths.ends(),
            // Of sequences that are tokenised already, seconds limit nothing.
            What::Clips(prepared) if prepared.summary.ids.is_some() => [0.0; 2],
            What::Clips(prepared) => {
                let [shortest, _, longest] = prepared.summary.seconds;
                [shortest, longest]
            }
        };
        Made { what, prepare_bytes: bytes(recipe.data.max_seconds), limits: limits(ends, recipe, bytes) }
    }
}

/// Returns other limits than the recipe's on the longest clip, for clips between `ends` seconds.
pub fn limits(ends: [f64; 2], recipe: &Recipe, bytes: &dyn Fn(f64) -> u64) -> Vec<Limit> {
    let all = seconds_of_limits(ends, recipe).into_iter();
    all.map(|(seconds, loses)| Limit { seconds, prepare_bytes: bytes(seconds), loses }).collect()
}

/// Returns where prepared clips are kept.
pub fn cache_dir(recipe: &Recipe) -> PathBuf {
    recipe.data.cache.clone().unwrap_or_else(|| PathBuf::from("runs").join("cache"))
}

/// Returns the seconds of the longest clip that could be allowed instead of a recipe's, longest first, and whether they leave
/// out some of these: what the longest has, halves of it, and what the shortest has.
fn seconds_of_limits([shortest, longest]: [f64; 2], recipe: &Recipe) -> Vec<(f64, bool)> {
    // A file's header may say a little more than its samples are.
    let up = |s: f64| ((s + 0.002) * 100.0).ceil() / 100.0;
    let halves = (0..=HALVES).map(|k| longest / 2f64.powi(k)).filter(|s| *s > shortest);
    let mut all: Vec<(f64, bool)> = halves.chain([shortest]).map(|s| (up(s), s < longest)).collect();
    all.dedup();
    let loses_none = recipe.data.outside != recipe::Outside::Skip;
    // What is cut to a limit is another clip under another limit.
    all.retain(|(s, loses)| {
        *s < recipe.data.max_seconds
            && *s > recipe.data.min_seconds
            && recipe.data.outside != recipe::Outside::Cut
            && !(loses_none && *loses)
    });
    all
}

/// Returns the data sets of a recipe.
///
/// # Errors
/// It names none.
pub fn sets(recipe: &Recipe) -> Result<Sets, RunError> {
    let of = |set: &recipe::DataSet| DataSet {
        path: set.dir.clone(),
        name: Some(set.name()),
        voice: set.voice.clone(),
    };
    match &recipe.data.dir {
        Some(dir) => Ok(dir.into()),
        None if recipe.data.sets.is_empty() => Err(no_data()),
        None => Ok(Sets::new(recipe.data.sets.iter().map(of).collect())),
    }
}

/// Returns a run without data.
pub fn no_data() -> RunError {
    RunError::Usage(
        "data.dir: is missing; name the folder of audio (--data DIR), or plan for clips that are assumed (--assume 32x5s)"
            .to_owned(),
    )
}

/// Returns a recipe's limits, and where prepared clips are kept. `rate`: of the model's audio, Hz.
pub fn prepare_options(recipe: &Recipe, rate: u32) -> PrepareOptions {
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
        rate,
        edits: Edits { loudness: recipe.data.loudness, trim: recipe.data.trim },
    }
}

/// Returns options under which no clip is longer than the shortest may be: what files are read beside, at least. Where longer clips have
/// no room, their lengths are measured, and a limit of length can be named.
pub fn shortest(options: &PrepareOptions) -> PrepareOptions {
    let limits = Limits { max_seconds: options.limits.min_seconds, ..options.limits };
    PrepareOptions { limits, ..options.clone() }
}

/// Returns what preparing takes by the seconds of the longest clip.
pub fn limited<'a>(options: &PrepareOptions, of: impl Fn(&PrepareOptions) -> u64 + 'a) -> Bound<'a> {
    let options = options.clone();
    Box::new(move |max_seconds| {
        let limits = Limits { max_seconds, ..options.limits };
        of(&PrepareOptions { limits, ..options.clone() })
    })
}

/// The memory in which data is prepared.
pub struct Room {
    budget: u64,
    /// Of the process, whatever is prepared.
    pub process: u64,
    on_card: bool,
}

impl Room {
    /// Returns the room for preparing on `threads` threads.
    pub fn new(job: &Job<'_>, threads: usize) -> Room {
        let [start, of_thread] = job.process_bytes;
        Room { budget: job.budget, process: start + of_thread * threads as u64, on_card: job.on_card }
    }

    /// Returns the bytes that may be read in addition to `beside` bytes.
    pub fn left(&self, beside: u64) -> u64 {
        self.budget.saturating_sub(self.process + beside).max(READ_BYTES)
    }

    /// Reports that preparing does not fit, where it takes `needed` bytes with the process. On a GPU that is not the plan's to say.
    ///
    /// # Errors
    /// [`RunError::DoesNotFit`] in the host's memory.
    pub fn too_small(&self, needed: u64, source: &Source) -> Result<Option<String>, RunError> {
        if needed <= self.budget {
            return Ok(None);
        }
        let [needs, has] = ByteSize(needed).apart(ByteSize(self.budget));
        let why = format!(
            "preparing the data ({} clips, the longest text {} bytes) needs {needs}, budget {has}",
            source.len(),
            source.longest_text()
        );
        if self.on_card {
            return Err(RunError::does_not_fit(
                needed,
                format!("does not fit: {why} of the host's memory: lower data.max_seconds (--max-seconds)"),
            ));
        }
        Ok(Some(why))
    }

    /// Returns what was read in addition to `beside` bytes, or by how much it does not fit.
    pub fn read<T>(&self, beside: u64, read: Result<T, DataError>) -> Result<T, RunError> {
        read.map_err(|e| match e {
            DataError::DoesNotFit { what, needed, .. } => {
                let all = self.process + beside + needed;
                let [needs, has] = ByteSize(all).apart(ByteSize(self.budget));
                RunError::does_not_fit(all, format!(
                    "does not fit: needs {needs} or more, budget {has} ({} short), in prepare\n  {what}: {} · besides {} · process {}\n  \
                     raise --memory, or prepare less data",
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

/// Shows the progress of a pass over the data.
pub fn shown(console: &mut dyn Console) -> impl Fn(Progress<'_>) -> bool + Sync {
    let console = std::sync::Mutex::new(console);
    move |p: Progress<'_>| {
        if let Ok(mut console) = console.lock() {
            console.progress(&format!("preparing {}/{}: {}", p.done, p.total, p.name));
        }
        !stop::requested()
    }
}

/// Turns a tokenizer's error into a model's error: it is not the data's.
pub fn of_tokenizer(e: RunError) -> RunError {
    match e {
        RunError::Data(e @ (DataError::File { .. } | DataError::Io { .. })) => RunError::Model(e.to_string()),
        other => other,
    }
}
