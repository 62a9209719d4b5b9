//! `vocab.txt`: one token per line, its id is the line number from 0.

use std::collections::HashMap;
use std::path::Path;

use crate::error::{DataError, short};
use crate::files;

/// Largest vocabulary file, bytes. The released one has 14 kB.
const MAX_BYTES: u64 = 16 << 20;

/// Tokens of a model, with their ids.
#[derive(Debug, Clone)]
pub struct Vocab {
    ids: HashMap<String, u32>,
    tokens: Vec<String>,
    fingerprint: [u8; 32],
}

impl Vocab {
    /// Reads a `vocab.txt`. Line 0 must be a single space: the package maps every unknown token to id 0.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let text = files::read_utf8(path, MAX_BYTES)?;
        let mut tokens: Vec<&str> = text.split('\n').collect();
        if tokens.last() == Some(&"") {
            tokens.pop();
        }
        let tokens = tokens.iter().map(|t| t.strip_suffix('\r').unwrap_or(t).to_owned()).collect();
        Self::new(tokens).map_err(|(line, reason)| DataError::line(path, line, reason))
    }

    /// Returns a vocabulary of these tokens in this order; `Err` is the line (from 1) and what is wrong with it.
    pub fn new(tokens: Vec<String>) -> Result<Self, (u64, String)> {
        match tokens.first().map(String::as_str) {
            Some(" ") => {}
            None => return Err((1, "the vocabulary is empty".into())),
            Some(first) => {
                return Err((
                    1,
                    format!(
                        "the first token is {:?}; it must be a single space, because unknown tokens get its id",
                        short(first)
                    ),
                ));
            }
        }
        let mut ids = HashMap::with_capacity(tokens.len());
        let mut hash = blake3::Hasher::new();
        for (id, token) in tokens.iter().enumerate() {
            let line = id as u64 + 1;
            if token.is_empty() || token.contains('\0') {
                return Err((line, "an empty or binary token".into()));
            }
            if let Some(before) = ids.insert(token.clone(), id as u32) {
                let shown = short(token);
                return Err((line, format!("token {shown:?} is already on line {}", before + 1)));
            }
            hash.update(&(token.len() as u64).to_le_bytes());
            hash.update(token.as_bytes());
        }
        Ok(Self { ids, tokens, fingerprint: *hash.finalize().as_bytes() })
    }

    /// Returns the number of tokens; the text embedding has one row more (the filler).
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns false: there is at least the space.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Returns the tokens in order of their ids.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Changes with any token or their order.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
