//! What a folder says of how it writes: `generation_config.json`, and what of it is in `config.json` where there is none.

use super::folder::read_json;
use crate::error::RunError;
use crate::hugging_face::CONFIG;
use ambitus_models::whisper::config::Config;
use ambitus_models::whisper::score::Head;
use serde::Deserialize;
use std::path::Path;

const FILE: &str = "generation_config.json";

/// Keys of both files.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Keys {
    eos_token_id: Option<Ids>,
    suppress_tokens: Option<Vec<i64>>,
    begin_suppress_tokens: Option<Vec<i64>>,
    alignment_heads: Option<Vec<Head>>,
    is_multilingual: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

/// How a model writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Generation {
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// Tokens that are never written, where the folder names them.
    pub never: Option<Vec<u32>>,
    /// Tokens that do not begin a text, where the folder names them.
    pub never_first: Option<Vec<u32>>,
    /// Heads that look at what is said; where nothing is known of them, those of the last half of the layers, as in the package.
    pub heads: Vec<Head>,
    /// Whether texts are written in several languages, where the folder says so.
    pub multilingual: Option<bool>,
}

impl Generation {
    /// Reads the files. Without `generation_config.json` nothing is suppressed.
    ///
    /// # Errors
    /// Files that do not read; heads that the model does not have.
    pub fn read(dir: &Path, config: &Config) -> Result<Generation, RunError> {
        let path = dir.join(FILE);
        let own: Option<Keys> = path.is_file().then(|| read_json(&path)).transpose()?;
        let own = own.unwrap_or_default();
        let ends = match own.eos_token_id {
            Some(ids) => Some(ids),
            None => read_json::<Keys>(&dir.join(CONFIG))?.eos_token_id,
        };
        // Lists for larger vocabularies name what is not there.
        let known = |ids: Option<Vec<i64>>| -> Option<Vec<u32>> {
            let known = |id: i64| u32::try_from(id).ok().filter(|id| (*id as usize) < config.vocab);
            Some(ids?.into_iter().filter_map(known).collect())
        };
        let stack = config.decoder;
        let half = || (stack.layers / 2..stack.layers).flat_map(|l| (0..stack.heads).map(move |h| (l, h)));
        let heads = own.alignment_heads.unwrap_or_else(|| half().collect());
        if let Some((l, h)) = heads.iter().find(|(l, h)| *l >= stack.layers || *h >= stack.heads) {
            return Err(RunError::Model(format!(
                "{}: alignment_heads: there is no head {h} of layer {l}; the decoder has {} layers of {} heads",
                path.display(),
                stack.layers,
                stack.heads
            )));
        }
        Ok(Generation {
            ends: match ends {
                None => Vec::new(),
                Some(Ids::One(id)) => vec![id],
                Some(Ids::Several(ids)) => ids,
            },
            never: known(own.suppress_tokens),
            never_first: known(own.begin_suppress_tokens),
            heads,
            multilingual: own.is_multilingual,
        })
    }

    /// Makes tokens impossible that are not written, or not at the beginning.
    pub fn suppress(&self, logits: &mut [f32], first: bool) {
        let begins = self.never_first.iter().flatten().filter(|_| first);
        self.never.iter().flatten().chain(begins).for_each(|id| logits[*id as usize] = f32::NEG_INFINITY);
    }
}
