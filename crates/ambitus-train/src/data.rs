//! The clips that a run trains on: prepared, or for a plan measured or assumed. What families share of them is their lengths.

mod assumed;
mod speech;

pub use assumed::Assume;

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
use ambitus_data::prepare::{Lengths, Progress, mel_lengths};
use ambitus_data::updates::Updates;
use ambitus_data::{
    ClipIndex, DataError, INDEX_FILE, Limits, Policy, PrepareOptions, Prepared, Source, Split, Tokenizer,
    pack, prepare,
};
use ambitus_models::Model;
use assumed::Assumed;

/// A longest clip is made shorter by at most this many halves, and to the shortest.
const HALVES: i32 = 3;
/// Clips that any update may have beyond what is usual.
const OF_ANY_UPDATE: u64 = 64;
/// What may be read of any data set to say what it needs, however small the budget is.
const READ_BYTES: u64 = 16 << 20;

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
    /// Other longest clips that could be allowed (`--max-seconds`), the longest first.
    pub limits: Vec<Limit>,
    digest: String,
    /// What stays of the tokenizer.
    tokenizer_bytes: u64,
    kind: Kind,
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

enum Kind {
    Mel(Box<Prepared>),
    Tokens(Box<Prepared>),
    /// Nothing was prepared: what it takes is over the budget, or there is no codec. Why.
    Measured(Box<Lengths>, String),
    Assumed(Assumed),
}

/// What became of preparing: the clips, or their lengths and why not.
enum Made {
    Clips(Box<Prepared>),
    Lengths(Box<Lengths>, String),
}

/// What the process takes while clips of so many seconds at most are prepared.
type Bound<'a> = Box<dyn Fn(f64) -> u64 + 'a>;

impl Data {
    /// Prepares the data of a recipe; measures it only where preparing does not fit the budget, as the plan then says.
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
        Self::read(recipe, model, tokenizer, (device, true), console)
    }

    /// For a plan: as [`Data::prepare`] where all is there that preparing needs, else measured; without data, `assume`d. `named`:
    /// the command line names the data.
    ///
    /// # Errors
    /// As [`Data::prepare`], and what cannot be assumed.
    pub fn plan(
        recipe: &Recipe,
        model: &ModelDir,
        tokenizer: Option<&Tokenizer>,
        device: &Device,
        (assume, named): (Option<&Assume>, bool),
        console: &mut dyn Console,
    ) -> Result<Data, RunError> {
        let assumed = match (assume, &recipe.data.dir, &model.model) {
            (Some(assume), ..) => Assumed::named(assume, recipe, &model.model)?,
            (None, None, Model::Orpheus(_)) => Assumed::as_allowed(recipe, &model.model, None),
            (None, None, Model::F5(_)) => return Err(no_data()),
            // A recipe is planned where its data is not.
            (None, Some(dir), Model::Orpheus(_)) if !named && !dir.exists() => {
                Assumed::as_allowed(recipe, &model.model, Some(dir))
            }
            (None, Some(_), _) => return Self::read(recipe, model, tokenizer, (device, false), console),
        };
        let options = prepare_options(recipe);
        let held = assumed.held_bytes();
        let bytes = match tokenizer {
            Some(tokenizer) => {
                let room = Room::new(recipe, device, PREPARE_THREADS)?;
                limited(&options, move |o| room.process + o.fixed_bound(tokenizer) + held)
            }
            None => speech::bound_of_codec(recipe, device, held)?,
        };
        Ok(assumed.data(recipe, stays(tokenizer), &*bytes))
    }

    /// `run`: a run needs them prepared.
    fn read(
        recipe: &Recipe,
        model: &ModelDir,
        tokenizer: Option<&Tokenizer>,
        (device, run): (&Device, bool),
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
        let dir = recipe.data.dir.as_ref().ok_or_else(no_data)?;
        let options = prepare_options(recipe);
        let (source, room);
        let (made, bytes) = match (&model.model, tokenizer) {
            (Model::Orpheus(cfg), _) => speech::read(recipe, model, cfg.vocab, (device, run), console)?,
            (Model::F5(_), Some(tokenizer)) => {
                room = Room::new(recipe, device, PREPARE_THREADS)?;
                let fixed = options.fixed_bound(tokenizer);
                source = room.read(fixed, Source::read(dir, &options.cache, room.left(fixed)))?;
                let bytes = limited(&options, |o| room.process + o.memory_bound(tokenizer, &source));
                let made = match room.too_small(bytes(recipe.data.max_seconds), &source)? {
                    Some(why) => Made::Lengths(
                        Box::new(mel_lengths(&source, tokenizer, &options, &shown(console))?),
                        why,
                    ),
                    None => Made::Clips(Box::new(prepare(&source, tokenizer, &options, &shown(console))?)),
                };
                (made, bytes)
            }
            (Model::F5(_), None) => return Err(no_data()),
        };
        let (kind, ends) = match made {
            Made::Lengths(lengths, why) => {
                let ends = lengths.ends();
                (Kind::Measured(lengths, why), ends)
            }
            Made::Clips(prepared) => {
                let [shortest, _, longest] = prepared.summary.seconds;
                // Of sequences that are tokenised already, seconds limit nothing.
                let ends = if prepared.summary.ids.is_some() { [0.0; 2] } else { [shortest, longest] };
                (if tokenizer.is_some() { Kind::Mel(prepared) } else { Kind::Tokens(prepared) }, ends)
            }
        };
        let limits = seconds_of_limits(ends, recipe).into_iter();
        let limits =
            limits.map(|(seconds, loses)| Limit { seconds, prepare_bytes: bytes(seconds), loses }).collect();
        let Some(index) = kind.index() else { return Err(no_data()) };
        let (rows, split) = (index.frames().to_vec(), split(index, recipe)?);
        let mut digest = index.digest();
        if recipe.seed != VALIDATION_SEED {
            // Part of what a checkpoint must share with the run that goes on with it, where the run's seed does not say it.
            digest += &format!(" validated with seed {VALIDATION_SEED}");
        }
        let tokenizer_bytes = stays(tokenizer);
        let prepare_bytes = bytes(recipe.data.max_seconds);
        Ok(Data { rows, split, prepare_bytes, limits, digest, tokenizer_bytes, kind })
    }

    /// The same under another limit of length, to plan for.
    ///
    /// # Errors
    /// Too few clips are left, or one that is named is not; the index of what was prepared cannot be read again.
    pub fn up_to(&self, limit: &Limit, recipe: &Recipe, model: &Model) -> Result<Data, RunError> {
        let index = match &self.kind {
            Kind::Assumed(assumed) => return assumed.limited(limit, recipe, model, self.tokenizer_bytes),
            Kind::Measured(lengths, _) => lengths.up_to(limit.seconds),
            Kind::Mel(_) | Kind::Tokens(_) => {
                Lengths::read(&cache_dir(recipe).join(INDEX_FILE))?.up_to(limit.seconds)
            }
        };
        let (rows, split) = (index.frames().to_vec(), split(&index, recipe)?);
        let kind = Kind::Measured(Box::new(Lengths { index, seconds: Vec::new() }), String::new());
        let (prepare_bytes, limits, digest) = (limit.prepare_bytes, Vec::new(), String::new());
        Ok(Data { rows, split, prepare_bytes, limits, digest, tokenizer_bytes: self.tokenizer_bytes, kind })
    }

    /// What stands in for clips, or for their lengths, and why; nothing where they are prepared.
    pub fn assumed(&self) -> Option<(String, String)> {
        match &self.kind {
            Kind::Assumed(assumed) => Some((assumed.said.clone(), assumed.why.clone())),
            Kind::Measured(lengths, why) => {
                Some((format!("{} clips by the length of their audio", lengths.index.len()), why.clone()))
            }
            Kind::Mel(_) | Kind::Tokens(_) => None,
        }
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
            Kind::Measured(..) | Kind::Assumed(_) => None,
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
    pub fn run_bytes(&self, model: &Model, update_rows: u64, ranks: usize) -> u64 {
        let (n, train, held_out) = (self.rows.len(), self.split.train.len(), self.split.validation.len());
        let index = match &self.kind {
            Kind::Assumed(assumed) => assumed.index_bytes(),
            kind => kind.index().map_or(0, ClipIndex::bytes),
        };
        let all: u64 = self.rows.iter().map(|&rows| u64::from(rows)).sum();
        let of_mel = matches!(model, Model::F5(_));
        // Updates are nearly alike; some have more of the short clips.
        let of_update = 2 * update_rows.saturating_mul(n as u64) / all.max(1) + OF_ANY_UPDATE;
        let rounds = if of_mel { MelClips::ROUNDS as usize } else { 1 };
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
            Kind::Measured(..) | Kind::Assumed(_) => Err(no_data()),
        }
    }
}

impl Kind {
    fn index(&self) -> Option<&ClipIndex> {
        match self {
            Kind::Mel(prepared) | Kind::Tokens(prepared) => Some(&prepared.index),
            Kind::Measured(lengths, _) => Some(&lengths.index),
            Kind::Assumed(_) => None,
        }
    }
}

/// What stays of a tokenizer; without one, of speech.
fn stays(tokenizer: Option<&Tokenizer>) -> u64 {
    tokenizer.map_or(SPEECH_PAGES, Tokenizer::dictionary_pages)
}

/// Which clips of a recipe are held out.
fn split(index: &ClipIndex, recipe: &Recipe) -> Result<Split, DataError> {
    match &recipe.data.validation {
        recipe::Validation::Names(names) => index.split(names),
        recipe::Validation::Share(share) => index.split_share(*share, VALIDATION_SEED),
    }
}

/// Seconds of the longest clip that could be allowed instead of a recipe's, longest first, and whether they leave out some of
/// these: what the longest has, halves of it, and what the shortest has.
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

/// A run without data.
pub fn no_data() -> RunError {
    RunError::Usage(
        "data.dir: is missing; name the folder of audio (--data DIR), or plan for clips that are assumed (--assume 32x5s)"
            .to_owned(),
    )
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

/// What preparing takes at a longest clip of so many seconds.
fn limited<'a>(options: &PrepareOptions, of: impl Fn(&PrepareOptions) -> u64 + 'a) -> Bound<'a> {
    let options = options.clone();
    Box::new(move |max_seconds| {
        let limits = Limits { max_seconds, ..options.limits };
        of(&PrepareOptions { limits, ..options.clone() })
    })
}

/// The memory in which data is prepared.
struct Room {
    budget: u64,
    /// Of the process, whatever is prepared.
    process: u64,
    on_card: bool,
}

impl Room {
    /// `threads`: that prepare it.
    fn new(recipe: &Recipe, device: &Device, threads: usize) -> Result<Room, RunError> {
        let budget = device.prepare_budget(budget(recipe, device)?.0)?;
        let process = START_BYTES + THREAD_BYTES * threads as u64;
        Ok(Room { budget, process, on_card: device.is_card() })
    }

    /// What may be read beside so many bytes.
    fn left(&self, beside: u64) -> u64 {
        self.budget.saturating_sub(self.process + beside).max(READ_BYTES)
    }

    /// Says that preparing, which takes so many bytes with the process, does not fit. On a card that is not the plan's to say.
    ///
    /// # Errors
    /// [`RunError::DoesNotFit`] in the memory beside a card.
    fn too_small(&self, needed: u64, source: &Source) -> Result<Option<String>, RunError> {
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

    /// What was read beside so many bytes, or by how much it does not fit.
    fn read<T>(&self, beside: u64, read: Result<T, DataError>) -> Result<T, RunError> {
        read.map_err(|e| match e {
            DataError::DoesNotFit { what, needed, .. } => {
                let all = self.process + beside + needed;
                let [needs, has] = ByteSize(all).apart(ByteSize(self.budget));
                RunError::does_not_fit(all, format!(
                    "does not fit: needs {needs} or more, budget {has} ({} short), in prepare\n  {what}: {} · beside that {} · process {}\n  \
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

/// Progress of a pass over the data, for people.
fn shown(console: &mut dyn Console) -> impl Fn(Progress<'_>) -> bool + Sync {
    let console = std::sync::Mutex::new(console);
    move |p: Progress<'_>| {
        if let Ok(mut console) = console.lock() {
            console.progress(&format!("preparing {}/{}: {}", p.done, p.total, p.name));
        }
        !crate::stop::requested()
    }
}
