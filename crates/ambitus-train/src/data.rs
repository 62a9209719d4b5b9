//! The clips that a run trains on: prepared, or for a plan assumed. What families share of them is their lengths.

mod speech;

use crate::clips::Clips;
use crate::clips::mel::MelClips;
use crate::clips::tokens::TokenClips;
use crate::device::Device;
use crate::error::RunError;
use crate::model_dir::ModelDir;
use crate::recipe::{self, Recipe};
use crate::resolve::{Console, PREPARE_THREADS, cache_dir};
use crate::size::ByteSize;
use ambitus_data::prepare::Verdict;
use ambitus_data::{DataError, Limits, Policy, PrepareOptions, Prepared, Source, Split, Tokenizer, prepare};
use ambitus_models::Model;

/// Clips of an assumed data set: enough that updates are formed as of a real one.
const ASSUMED_CLIPS: usize = 64;

/// The clips of a run.
pub struct Data {
    /// Rows of each clip.
    pub rows: Vec<u32>,
    /// Which are trained on.
    pub split: Split,
    /// What preparing them may use.
    pub prepare_bytes: u64,
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
            recipe::Validation::Share(share) => prepared.index.split_share(*share, recipe.seed)?,
        };
        Ok(Data { rows: prepared.index.frames().to_vec(), split, prepare_bytes, kind })
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
        Data { rows: vec![rows; ASSUMED_CLIPS], split, prepare_bytes: 0, kind: Kind::Assumed }
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

    /// What was prepared, for people.
    pub fn describe(&self) -> Vec<String> {
        let Some(prepared) = self.prepared() else { return Vec::new() };
        let odd = prepared.outcomes.iter().filter(|o| !matches!(o.verdict, Verdict::Ok { .. }));
        let summary = prepared.summary.to_string();
        summary.lines().map(str::to_owned).chain(odd.map(|o| format!("  {o}"))).collect()
    }

    /// Changes with any clip's content or name.
    pub fn digest(&self) -> String {
        self.prepared().map_or(String::new(), |prepared| prepared.index.digest())
    }

    /// Those clips, as the loop reads them.
    ///
    /// # Errors
    /// Assumed clips cannot be read.
    pub fn clips(&self, chosen: &[usize], seed: u64) -> Result<Box<dyn Clips>, RunError> {
        match &self.kind {
            Kind::Mel(prepared) => Ok(Box::new(MelClips::new(&prepared.index, chosen, seed))),
            Kind::Tokens(prepared) => Ok(Box::new(TokenClips::new(&prepared.index, chosen))),
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

/// Mel frames and text ids of every clip, and the bound on the memory that preparing takes.
pub fn prepare_mel(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    device: &Device,
    console: &mut dyn Console,
) -> Result<(Prepared, u64), RunError> {
    let budget = device.prepare_budget(crate::resolve::budget(recipe, device)?.0)?;
    let source = Source::read(recipe.data.dir.as_ref().ok_or_else(no_data)?)?;
    let options = prepare_options(recipe);
    let bound = options.memory_bound(tokenizer);
    let needed = crate::budget::process_bytes(PREPARE_THREADS) + bound;
    if needed > budget {
        return Err(RunError::DoesNotFit(format!(
            "does not fit: needs {}, budget {} ({} short), in prepare\n  io {} · process {}\n  \
             lower data.max_seconds, or raise --memory",
            ByteSize(needed),
            ByteSize(budget),
            ByteSize(needed - budget),
            ByteSize(bound),
            ByteSize(needed - bound),
        )));
    }
    let shared = std::sync::Mutex::new(console);
    let prepared = prepare(&source, tokenizer, &options, &|p| {
        if let Ok(mut console) = shared.lock() {
            console.progress(&format!("preparing {}/{}: {}", p.done, p.total, p.name));
        }
        !crate::stop::requested()
    })
    .map_err(|e: DataError| RunError::from(e))?;
    Ok((prepared, bound))
}
