//! Text to token ids as the package does it whose vectors are in `parity/` (`convert_char_to_pinyin`, `list_str_to_idx`,
//! `list_str_to_tensor` of its `model/utils.py`); [`Bpe`] is for language models,
//! [`Unigram`] for the descriptions that speech models read.

mod admit;
mod bpe;
mod chunks;
mod counts;
mod errors;
mod numbers;
mod pinyin;
mod subwords;
mod unigram;
mod vocab;

pub use bpe::{Bpe, ENCODING_BYTES, TOKENIZER_FILE};
pub use chunks::chunks;
pub use errors::Errors;
pub use numbers::{chinese_numbers, english_numbers, is_digit, is_word};
pub use pinyin::Syllables;
pub use subwords::Subwords;
pub use unigram::{SPIECE_FILE, UNIGRAM_ENCODING_BYTES, Unigram};
pub use vocab::Vocab;

use crate::error::DataError;

/// Largest share of tokens that may be missing from the vocabulary. A stray emoji in a long data set is harmless; a
/// wrong vocabulary misses far more than one token in a hundred.
pub const MAX_UNKNOWN_SHARE: f64 = 0.01;

/// Memory of the readings' dictionary that [`Syllables`] loads, bytes; measured: 5.6 MiB, the tables that it is read from among them.
pub const READINGS_BYTES: u64 = 8 << 20;

/// What of it stays when it is gone, bytes: pages of these tables.
pub const READINGS_PAGES: u64 = 2 << 20;

/// Memory of the segmentation dictionary once it is loaded, bytes; measured: 32 MiB, and 4 more once Chinese was read.
const DICTIONARY_BYTES: u64 = 37 << 20;
/// What of it stays when the tokenizer is gone, bytes: pages of the program's file that it was read from; measured: 7.5 MiB.
const DICTIONARY_PAGES: u64 = 8 << 20;

/// Returns a text without the spaces at its ends, as Python's `str.strip` leaves it: it also counts U+001C to U+001F.
pub fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}'))
}

/// Returns a text with accents as characters of their own (Unicode's canonical decomposition, NFD).
pub fn decomposed(text: &str) -> String {
    let mut text = tokenizers::NormalizedString::from(text);
    text.nfd();
    text.get().to_owned()
}

/// How text becomes tokens; the names are those of the package's `model.tokenizer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Chinese to syllables with tone numbers, everything else to characters.
    Pinyin,
    /// Characters.
    Char,
    /// UTF-8 bytes; no vocabulary.
    Byte,
    /// As `pinyin` with the user's vocabulary: the package's inference splits text that way for every vocabulary.
    Custom,
}

/// Token ids of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoded {
    /// Ids; unknown tokens are 0, as in the package.
    pub ids: Vec<u32>,
    /// Tokens that are not in the vocabulary, in order, with repetitions.
    pub unknown: Vec<String>,
}

/// A tokenizer with its vocabulary.
pub struct Tokenizer {
    kind: TokenizerKind,
    vocab: Option<Vocab>,
    segmenter: pinyin::Segmenter,
}

impl Tokenizer {
    /// Returns a tokenizer. `vocab` is needed by every kind but [`TokenizerKind::Byte`], which takes none.
    pub fn new(kind: TokenizerKind, vocab: Option<Vocab>) -> Result<Self, DataError> {
        match (kind, &vocab) {
            (TokenizerKind::Byte, Some(_)) => {
                Err(DataError::Invalid("the byte tokenizer takes no vocabulary".into()))
            }
            (TokenizerKind::Byte, None) | (_, Some(_)) => {
                Ok(Self { kind, vocab, segmenter: pinyin::Segmenter::default() })
            }
            (_, None) => {
                Err(DataError::Invalid(format!("the {kind:?} tokenizer needs a vocabulary (vocab.txt)")))
            }
        }
    }

    /// Returns the kind of tokenizer.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Returns the bytes that the segmentation dictionary takes once the first text was split.
    pub fn dictionary_bytes(&self) -> u64 {
        match self.kind {
            TokenizerKind::Pinyin | TokenizerKind::Custom => DICTIONARY_BYTES,
            TokenizerKind::Char | TokenizerKind::Byte => 0,
        }
    }

    /// Returns the bytes that stay of it, as long as the program runs.
    pub fn dictionary_pages(&self) -> u64 {
        self.dictionary_bytes().min(DICTIONARY_PAGES)
    }

    /// Returns the number of ids: tokens of the vocabulary, or 256.
    pub fn size(&self) -> usize {
        self.vocab.as_ref().map_or(256, Vocab::len)
    }

    /// Returns the id of a space: a vocabulary begins with it.
    pub fn space(&self) -> u32 {
        if self.vocab.is_some() { 0 } else { u32::from(b' ') }
    }

    /// Returns the tokens of a text before the vocabulary; bytes are not tokens, so `byte` gives characters.
    pub fn tokens(&self, text: &str) -> Vec<String> {
        match self.kind {
            TokenizerKind::Pinyin | TokenizerKind::Custom => self.segmenter.tokens(text),
            TokenizerKind::Char | TokenizerKind::Byte => text.chars().map(String::from).collect(),
        }
    }

    /// Returns the token ids of a text.
    pub fn encode(&self, text: &str) -> Encoded {
        let Some(vocab) = &self.vocab else {
            return Encoded { ids: text.bytes().map(u32::from).collect(), unknown: Vec::new() };
        };
        let mut encoded = Encoded::default();
        for token in self.tokens(text) {
            encoded.ids.push(vocab.id(&token).unwrap_or_else(|| {
                encoded.unknown.push(token);
                0
            }));
        }
        encoded
    }

    /// Changes whenever the ids of some text may change; part of every cache key.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?} {}", self.kind, pinyin::VERSION).as_bytes());
        if let Some(vocab) = &self.vocab {
            hash.update(&vocab.fingerprint());
        }
        *hash.finalize().as_bytes()
    }
}
