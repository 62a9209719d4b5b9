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

/// The error of a key.
pub(crate) fn err<T>(key: &'static str, why: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { key, why: why.into() })
}
