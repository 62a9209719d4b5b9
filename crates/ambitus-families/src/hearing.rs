//! Models that hear: they write what is said in a sound. They are frozen here, and no family that is trained.

use crate::error::RunError;
use crate::generate::Generator;
use crate::weights::Weights;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session, StateDecl};
use serde::Serialize;
use std::path::Path;

/// The kinds of a program.
pub type Kinds = &'static [&'static dyn Kind];

/// A kind of models.
pub trait Kind: Sync {
    /// Returns the name for people.
    fn name(&self) -> &'static str;

    /// Returns the files of its folders, for people.
    fn files(&self) -> &'static str;

    /// Returns whether the folder is one of its own.
    fn recognises(&self, dir: &Path) -> bool;

    /// Opens a folder, checks its configuration, and indexes the weights.
    ///
    /// # Errors
    /// Names the file and key or tensor, and says what to do.
    fn open(&self, dir: &Path) -> Result<Box<dyn Hearing>, RunError>;
}

/// An opened model.
pub trait Hearing: Send + Sync {
    /// Compares the weights' index with the parameters that programs declare.
    ///
    /// # Errors
    /// One message that names every missing, unexpected or misshapen tensor, and says what to do.
    fn check(&self, states: &[StateDecl]) -> Result<(), RunError>;

    /// Returns the weights.
    fn weights(&self) -> &Weights;

    /// Returns what generates from a batch file.
    fn generator(&self) -> &dyn Generator;

    /// Returns what hears files.
    ///
    /// # Errors
    /// A tokenizer that cannot be used; what the model does not know.
    fn ear<'a>(&'a self, asked: &Asked<'a>) -> Result<Box<dyn Ear + 'a>, RunError>;
}

/// What is asked of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// What is spoken (`en`); where nothing is said, it is heard.
    pub language: Option<&'a str>,
    /// The text is wanted in English.
    pub translate: bool,
    /// What repeats itself or is unlikely is written again, with draws.
    pub fallback: bool,
    /// What was written before is context for what follows.
    pub context: bool,
    /// Of draws.
    pub seed: u64,
    /// Texts that are scored, and not written: of each file one.
    pub texts: Option<&'a [String]>,
}

/// A model that hears files, on an executor whose weights are loaded.
pub trait Ear {
    /// Builds the programs. `cache`: the type of keys and values that are kept.
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program>;

    /// Returns the bytes that it holds beside the programs' arena, but for what it has heard.
    fn bytes(&self) -> u64;

    /// Writes what is said in a file of any length. `heard` is told how many seconds of how many are heard.
    ///
    /// # Errors
    /// Audio that cannot be used, by file; the executor.
    fn transcribe(
        &mut self,
        exec: &mut dyn Executor,
        path: &Path,
        heard: &mut dyn FnMut(f64, f64),
    ) -> Result<Transcript, RunError>;

    /// Says how well a text fits a file, which is no longer than the model's window.
    ///
    /// # Errors
    /// Audio that cannot be used, a text or a sound that is too long, by file; the executor.
    fn score(&mut self, exec: &mut dyn Executor, path: &Path, text: &str) -> Result<Scored, RunError>;

    /// Says the same of the text that the model finds likeliest as well. See [`score`](Self::score).
    ///
    /// # Errors
    /// As there.
    fn judge(&mut self, exec: &mut dyn Executor, path: &Path, text: &str) -> Result<Judged, RunError>;
}

/// What is said in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// All of it.
    pub text: String,
    /// Its language.
    pub language: String,
    /// By the times that the model writes.
    pub segments: Vec<Segment>,
}

/// A part of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Seconds of the file.
    pub start: f64,
    /// Seconds of the file.
    pub end: f64,
    /// As the model spells it: with the space before it.
    pub text: String,
    /// With their times.
    pub words: Vec<Word>,
    /// How sure the model was of the window that it is from.
    #[serde(flatten)]
    pub mark: Mark,
}

/// How sure a model was of a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Of the draws; 0: the likeliest tokens.
    pub temperature: f32,
    /// Mean of the logarithms of the tokens' probabilities, among those that may follow.
    pub avg_logprob: f64,
    /// Bytes of the text, by those that it has when it is packed.
    pub compression_ratio: f64,
    /// Probability that nothing is said.
    pub no_speech_prob: f64,
}

/// A word.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Word {
    /// As the model spells it: with the space before it.
    pub word: String,
    /// Seconds of the file.
    pub start: f64,
    /// Seconds of the file.
    pub end: f64,
    /// Sum of the logarithms of its tokens' probabilities, among all tokens.
    pub logprob: f64,
}

/// How well a text fits a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scored {
    /// The text.
    pub text: String,
    /// Its language.
    pub language: String,
    /// Its words.
    pub words: Vec<ScoredWord>,
    /// Tokens of the text.
    pub tokens: usize,
    /// Sum over the words.
    pub logprob: f64,
    /// Logarithm of the probability that the text ends there.
    pub end_logprob: f64,
}

/// How well a text fits a file, beside the model's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The text that was given.
    pub given: Scored,
    /// The one that the model finds likeliest, word by word.
    pub own: Scored,
}

/// A word of a text that was given.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredWord {
    /// With the space before it.
    pub word: String,
    /// Sum of the logarithms of its tokens' probabilities, among all tokens.
    pub logprob: f64,
}

/// Returns the kind of a folder, if it is of one.
pub fn of(kinds: Kinds, dir: &Path) -> Option<&'static dyn Kind> {
    kinds.iter().find(|kind| kind.recognises(dir)).copied()
}

/// Opens a model that hears. `named`: what stands before the folder in an error, where an option or a key named it.
///
/// # Errors
/// A folder of no kind; one that cannot be used.
pub fn open(kinds: Kinds, dir: &Path, named: &str) -> Result<Box<dyn Hearing>, RunError> {
    let kind = of(kinds, dir).ok_or_else(|| {
        let files: Vec<&str> = kinds.iter().map(|kind| kind.files()).collect();
        RunError::Model(format!("{named}{}: give a folder with {}", dir.display(), files.join(", or with ")))
    })?;
    kind.open(dir)
}
