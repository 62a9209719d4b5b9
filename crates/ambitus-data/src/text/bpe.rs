//! Byte-pair encoding of a `tokenizer.json`, as the `tokenizers` and `transformers` packages do it: truncation and padding that
//! a file asks for are for those who batch, and no text here is cut or filled by them; merges are never dropped at random, for a
//! run must repeat. What else a file may ask for, [`admit`](super::admit) says.

use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::admit;
use super::counts::{Added, Count};
use super::subwords::{Reading, Subwords};
use crate::error::{DataError, short};

/// Largest `tokenizer.json`, bytes. Llama 3's with 28,683 audio tokens more has some 23 MB.
const MAX_BYTES: u64 = 128 << 20;
/// Name of the file in a model folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

type Pipeline = super::subwords::Pipeline<BPE>;

/// A byte-pair tokenizer.
pub type Bpe = Subwords<BPE>;

impl Bpe {
    /// Reads `tokenizer.json` of a model folder, in at most `room` bytes of memory.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer of a Llama, or takes more memory.
    pub fn read(model_folder: &Path, room: u64) -> Result<Self, DataError> {
        Self::read_file(&model_folder.join(TOKENIZER_FILE), room)
    }

    /// Reads a file of another name. See [`Self::read`].
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_file(path: &Path, room: u64) -> Result<Self, DataError> {
        let reading = Reading { path: path.to_owned(), room };
        let bytes = reading.bytes(MAX_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|e| reading.refused(e.to_string()))?;
        let file: File<'_> = serde_json::from_str(text).map_err(|e| reading.refused(e.to_string()))?;
        let sizes = file.sizes(text.len()).map_err(|reason| reading.refused(reason))?;
        reading.fits(sizes.memory_bytes())?;
        let mut hash = blake3::Hasher::new();
        hash.update(&bytes);
        if sizes.asks_for_other_ids {
            hash.update(b"without truncation, padding, dropout");
        }
        reading.built(sizes.memory_bytes(), *hash.finalize().as_bytes(), || file.build())
    }

    /// Returns a byte without a token of its own, if there is one: byte-level encoding would leave it out without a word.
    pub(crate) fn missing_byte(&self) -> Option<char> {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        alphabet.into_iter().find(|c| self.id(c.encode_utf8(&mut [0; 4])).is_none())
    }
}

/// The parts of the file. What else there is (`decoder`, for one) does not matter to ids.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow, default)]
    truncation: Option<&'a RawValue>,
    #[serde(borrow, default)]
    padding: Option<&'a RawValue>,
    #[serde(borrow, default)]
    added_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

impl File<'_> {
    /// Checks that every part is admitted, and says how much there is of all; takes no memory that matters.
    fn sizes(&self, file_bytes: usize) -> Result<Sizes, String> {
        for (part, admitted) in [
            (self.normalizer, admit::normalizer as fn(&serde_json::Value) -> Result<(), String>),
            (self.pre_tokenizer, admit::pre_tokenizer),
            (self.post_processor, admit::post_processor),
        ] {
            let Some(part) = part else { continue };
            if part.get().len() > admit::MAX_PART {
                let shown = short(part.get());
                return Err(format!(
                    "a part of {} bytes, more than any model has: {shown}",
                    part.get().len()
                ));
            }
            admitted(&serde_json::from_str(part.get()).map_err(|e| e.to_string())?)?;
        }
        let parsed = |e: serde_json::Error| e.to_string();
        let model: Model = serde_json::from_str(self.model.get()).map_err(parsed)?;
        if let Some(kind) = model.kind.filter(|kind| kind != "BPE") {
            return Err(format!("its model is of type {}; Llama's are BPE", short(&kind)));
        }
        if [model.continuing_subword_prefix, model.end_of_word_suffix].iter().flatten().any(|s| !s.is_empty())
        {
            return Err(
                "its model puts something before or after parts of words, which no Llama's does".into()
            );
        }
        let added: Added = match self.added_tokens {
            Some(tokens) => serde_json::from_str(tokens.get()).map_err(parsed)?,
            None => Added::default(),
        };
        Ok(Sizes {
            file: file_bytes as u64,
            vocabulary: model.vocab.0,
            merges: model.merges.0,
            added,
            asks_for_other_ids: [self.truncation, self.padding].iter().any(Option::is_some)
                || model.dropout.is_some_and(|share| share != 0.0),
        })
    }

    fn build(&self) -> Result<Pipeline, String> {
        fn part<'de, T: Deserialize<'de>>(of: Option<&'de RawValue>) -> Result<Option<T>, String> {
            of.map(|raw| serde_json::from_str(raw.get()).map_err(|e| e.to_string())).transpose()
        }
        let mut bpe: BPE = serde_json::from_str(self.model.get()).map_err(|e| e.to_string())?;
        bpe.dropout = None;
        // Its words would stay with the thread.
        bpe.resize_cache(0);
        let mut pipeline = Pipeline::new(bpe);
        pipeline.with_normalizer(part::<NormalizerWrapper>(self.normalizer)?).map_err(|e| e.to_string())?;
        pipeline.with_pre_tokenizer(part::<PreTokenizerWrapper>(self.pre_tokenizer)?);
        pipeline.with_post_processor(part::<PostProcessorWrapper>(self.post_processor)?);
        let tokens: Vec<AddedToken> = part(self.added_tokens)?.unwrap_or_default();
        pipeline.add_tokens(tokens).map_err(|e| e.to_string())?;
        Ok(pipeline)
    }
}

/// What of a model says how large it becomes, and what it asks for.
#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    vocab: Count,
    merges: Count,
}

/// How much there is of everything that takes memory.
struct Sizes {
    file: u64,
    vocabulary: u64,
    merges: u64,
    added: Added,
    /// It has truncation, padding or dropout, which are not done.
    asks_for_other_ids: bool,
}

/// Memory that a tokenizer takes while it is read, measured by tests with files that are made to take much of it: for each byte
/// of the file (its text, the spellings of both directions), for each token and merge. Added tokens take more.
const MEMORY_PER_BYTE: u64 = 4;
const MEMORY_PER_TOKEN: u64 = 150;
const MEMORY_PER_MERGE: u64 = 400;
/// Expressions and tables.
const MEMORY_FIXED: u64 = 16 << 20;

/// Bound on the memory that encoding takes for each byte of text.
pub const ENCODING_BYTES: u64 = 400;

impl Sizes {
    fn memory_bytes(&self) -> u64 {
        MEMORY_FIXED
            + MEMORY_PER_BYTE * self.file
            + MEMORY_PER_TOKEN * self.vocabulary
            + MEMORY_PER_MERGE * self.merges
            + self.added.memory_bytes()
    }
}
