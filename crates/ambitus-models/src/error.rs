//! What is wrong with a model's configuration.

use thiserror::Error;

/// A configuration that cannot be trained, and why.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{key}: {why}")]
pub struct ConfigError {
    /// The key of the configuration file.
    pub key: &'static str,
    /// What is wrong with it and what to do.
    pub why: String,
}

/// Characters of a reason: it may repeat what a file says.
const SHOWN: usize = 400;
/// Parameters of a model, at most: two and a half times the largest Llama's.
const MOST_PARAMETERS: u64 = 1 << 40;

/// Returns the error of a key.
pub(crate) fn err<T>(key: &'static str, why: impl Into<String>) -> Result<T, ConfigError> {
    let mut why: String = why.into();
    if let Some((cut, _)) = why.char_indices().nth(SHOWN) {
        why.truncate(cut);
        why.push('…');
    }
    Err(ConfigError { key, why })
}

/// Refuses sizes that are each possible and together beyond any model.
pub(crate) fn sensible(key: &'static str, parameters: u64) -> Result<(), ConfigError> {
    if parameters <= MOST_PARAMETERS {
        return Ok(());
    }
    let why = format!(
        "with the other sizes gives a model of {:.1e} parameters; no model is that large",
        parameters as f64
    );
    err(key, why)
}
