//! `tokenizer_config.json`: what transformers' `T5TokenizerFast` takes from it (4.46).

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokenizers::AddedToken;

use crate::error::{DataError, short};
use crate::files;

const SETTINGS_FILE: &str = "tokenizer_config.json";
/// Largest file, bytes. One with a hundred added tokens has some 20 kB.
const MAX_BYTES: u64 = 256 << 10;
/// Extra ids at most. Published models have 100.
const MAX_EXTRA: usize = 1000;
/// Tokens that a text ends with, that stand for what has no piece and that fill rows, unless the file names others.
const NAMED: [&str; 3] = ["</s>", "<unk>", "<pad>"];

/// The keys that matter to ids.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    /// Whatever it says, ids are made from `spiece.model`, as the package does.
    pub(super) add_prefix_space: Option<IgnoredAny>,
    legacy: Option<bool>,
    extra_ids: Option<usize>,
    eos_token: Option<Named>,
    unk_token: Option<Named>,
    pad_token: Option<Named>,
    additional_special_tokens: Option<Vec<Named>>,
    added_tokens_decoder: BTreeMap<u32, AddedToken>,
    /// Bytes of the file.
    #[serde(skip)]
    pub(super) bytes: Vec<u8>,
}

/// A token, by its spelling or with all that there is to say of it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Plain(String),
    Full { content: String },
}

impl Named {
    fn text(&self) -> &str {
        match self {
            Named::Plain(text) | Named::Full { content: text } => text,
        }
    }
}

impl Settings {
    /// Reads the file of a folder; what it does not say is as the package has it.
    pub(super) fn read(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(SETTINGS_FILE);
        if !path.exists() {
            return Ok(Self::default());
        }
        let bytes = files::read_bytes(&path, MAX_BYTES)?;
        let refused = |why: &str| {
            let why = short(why);
            DataError::file(
                &path,
                format!("cannot be read ({why}); copy that of the model that you fine-tune"),
            )
        };
        let settings: Self = serde_json::from_slice(&bytes).map_err(|e| refused(&e.to_string()))?;
        if settings.extra_ids.is_some_and(|n| n > MAX_EXTRA) {
            return Err(refused(&format!("extra_ids is more than {MAX_EXTRA}")));
        }
        Ok(Self { bytes, ..settings })
    }

    /// Returns the number of extra ids, which follow the pieces of `spiece.model`.
    pub(super) fn extra_ids(&self) -> usize {
        self.extra_ids.unwrap_or(100)
    }

    /// Returns whether only the beginning of a text gets a space put before it, and not also what follows an added token.
    pub(super) fn first_only(&self) -> bool {
        self.legacy == Some(false)
    }

    /// Returns the tokens that a tokenizer has besides those of its own file, `known`, in the package's order.
    pub(super) fn tokens(&self, known: &[AddedToken]) -> Vec<AddedToken> {
        let mut tokens: Vec<AddedToken> = self.added_tokens_decoder.values().cloned().collect();
        let [eos, unk, pad] = [&self.eos_token, &self.unk_token, &self.pad_token];
        let mut special: Vec<String> = [eos, unk, pad]
            .iter()
            .zip(NAMED)
            .map(|(named, usual)| named.as_ref().map_or(usual, Named::text).to_owned())
            .collect();
        let more = self.additional_special_tokens.iter().flatten().map(|named| named.text().to_owned());
        special.extend(more);
        if !special.iter().any(|token| token.contains("<extra_id_")) {
            special.extend((0..self.extra_ids()).map(extra));
        }
        let all: HashSet<&str> = special.iter().map(String::as_str).collect();
        for token in &mut tokens {
            token.special |= all.contains(&*token.content);
        }
        let known: HashSet<String> = known.iter().chain(&tokens).map(|token| token.content.clone()).collect();
        let more = special.iter().filter(|name| !known.contains(*name));
        tokens.extend(more.map(|name| AddedToken::from(name, true)));
        tokens
    }
}

/// Returns the spelling of an extra id.
pub(super) fn extra(i: usize) -> String {
    format!("<extra_id_{i}>")
}
