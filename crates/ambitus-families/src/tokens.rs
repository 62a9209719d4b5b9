//! What a model reads of a text, for checks from outside (`ambitus tokens`).

use crate::error::RunError;

/// What goes into a model for a text.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Tokens {
    /// The text's ids, with what the model has around a text.
    pub ids: Vec<u32>,
    /// The spelling of each id, as the tokenizer's file or the package has it; of unknown tokens their own.
    pub pieces: Vec<String>,
}

/// How a text is read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The text's language.
    pub language: Option<String>,
    /// The text is as the project's cleaners leave it.
    pub cleaned: bool,
    /// Who speaks it.
    pub voice: Option<String>,
}

impl Reading {
    /// Refuses what a family does not have: languages and cleaners of their own, or named voices.
    ///
    /// # Errors
    /// [`RunError::Usage`] with the option.
    pub fn has(&self, family: &str, languages: bool, voices: bool) -> Result<(), RunError> {
        match self {
            Reading { language: Some(l), .. } if !languages => Err(RunError::Usage(format!(
                "--language {l}: {family} reads all languages alike: leave it out"
            ))),
            Reading { cleaned: true, .. } if !languages => {
                Err(RunError::Usage(format!("--cleaned: {family} reads texts as they are: leave it out")))
            }
            Reading { voice: Some(v), .. } if !voices => {
                Err(RunError::Usage(format!("--voice {v}: {family} has no named voices: leave it out")))
            }
            _ => Ok(()),
        }
    }
}

/// Reads texts, one at a time.
pub type Reader<'a> = Box<dyn Fn(&str) -> Result<Tokens, RunError> + 'a>;
