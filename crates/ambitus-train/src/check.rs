//! `ambitus prepare --check`: what is wrong with a data set.

use crate::hear::Listening;
use crate::inference::InferenceOptions;
use ambitus_data::DataError;
use ambitus_data::check::{self, Advised, Fit, Likely, Options};
use ambitus_data::sources::Sets;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::hearing::{self, Kinds, Scored};
use ambitus_families::{prepare, stop};
use ambitus_plan::memory;
use ambitus_recipe::recipe::Recipe;
use std::path::Path;
use std::sync::Mutex;

pub use ambitus_data::check::{Checked, Clip, Issue, Kind};

/// Bytes for the list of clips where nothing is known of memory.
const ROOM: u64 = 1 << 30;

/// A model that hears the clips.
pub struct Ear<'a> {
    /// Its folder.
    pub dir: &'a Path,
    /// The kinds of such models.
    pub kinds: Kinds,
    /// Language of the clips; where nothing is said, it is heard.
    pub language: Option<&'a str>,
    /// On what it is computed.
    pub options: InferenceOptions,
}

/// Returns the data sets of a recipe, and the bytes that a list of their clips may take: those that are given, or what is free.
///
/// # Errors
/// A recipe without data.
pub fn sets(recipe: &Recipe, memory: Option<u64>) -> Result<(Sets, u64), RunError> {
    let free = || memory::default_budget().ok().map(|budget| budget.bytes);
    Ok((prepare::sets(recipe)?, memory.or_else(free).unwrap_or(ROOM)))
}

/// Checks data sets, which are only read, in so many bytes for the list of their clips; with an ear, their texts as well.
/// `advised`: for the model that is to be trained.
///
/// # Errors
/// Data sets of which nothing can be said; a list that is too long; a model that cannot be used; a stop on request.
pub fn check(
    (sets, room): (&Sets, u64),
    ear: Option<&Ear>,
    threads: usize,
    advised: Option<Advised>,
    console: &mut dyn Console,
) -> Result<Checked, RunError> {
    let console = &Mutex::new(console);
    let progress = |done: usize, of: usize| {
        if let Ok(mut console) = console.lock() {
            console.progress(&format!("checking clips: {done} of {of}"));
        }
        !stop::requested()
    };
    let options = Options { threads, room, advised, progress: &progress };
    let model = ear.map(|ear| hearing::open(ear.kinds, ear.dir, "--check ")).transpose()?;
    let asked = hearing::Asked { language: ear.and_then(|ear| ear.language), ..hearing::Asked::default() };
    // Before anything is measured: it may not fit.
    let mut listening = match (&model, ear) {
        (Some(model), Some(ear)) => Some(Listening::open(model, &asked, &ear.options)?),
        _ => None,
    };
    let mut heard = 0;
    let mut hear = listening.as_mut().map(|listening| {
        move |path: &Path, text: &str| -> Result<Result<Fit, String>, RunError> {
            heard += 1;
            if let Ok(mut console) = console.lock() {
                console.progress(&format!("listening to clips: {heard}"));
            }
            if stop::requested() {
                return Err(DataError::Stopped.into());
            }
            match listening.judge(path, text) {
                Ok(judged) => Ok(Ok(Fit { given: likely(judged.given), own: likely(judged.own) })),
                Err(RunError::Data(why)) => Ok(Err(why.to_string())),
                Err(e) => Err(e),
            }
        }
    });
    let hear = hear.as_mut().map(|hear| hear as check::Hear<'_, RunError>);
    match check::check(sets, &std::env::temp_dir(), &options, hear) {
        Err(RunError::Data(DataError::Stopped)) => {
            Err(RunError::Interrupted("nothing was written".to_owned()))
        }
        checked => checked,
    }
}

fn likely(scored: Scored) -> Likely {
    let words = scored.words.into_iter().map(|word| (word.word, word.logprob)).collect();
    Likely { words, tokens: scored.tokens, end: scored.end_logprob }
}
