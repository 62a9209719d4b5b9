//! Byte-pair encoding of a `tokenizer.json`, as the `tokenizers` and `transformers` packages do it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::error::DataError;
use crate::files;

/// Largest `tokenizer.json`, bytes. Llama 3's with Orpheus's 28,683 audio tokens has some 23 MB.
const MAX_BYTES: u64 = 128 << 20;
/// Name of the file in a model folder.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// A tokenizer of a Hugging Face model folder.
pub struct Bpe {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    fingerprint: [u8; 32],
    file_bytes: u64,
}

impl Bpe {
    /// Reads `tokenizer.json` of a model folder.
    ///
    /// # Errors
    /// The file cannot be read, or is no tokenizer.
    pub fn read(model_folder: &Path) -> Result<Self, DataError> {
        let path = model_folder.join(TOKENIZER_FILE);
        let bytes = files::read_bytes(&path, MAX_BYTES)?;
        let refused = |reason: String| {
            DataError::file(
                &path,
                format!("not a tokenizer that can be read ({reason}); copy the model's again"),
            )
        };
        // The package's own checks are not all errors.
        let tokenizer = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(&bytes)))
            .map_err(|_| refused("it contradicts itself".into()))?
            .map_err(|e| refused(e.to_string()))?;
        let fingerprint = *blake3::hash(&bytes).as_bytes();
        Ok(Self { tokenizer, fingerprint, file_bytes: bytes.len() as u64, path })
    }

    /// Ids of a text, with what the tokenizer's post-processor puts around it (Llama: the begin-of-text token).
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded = catch_unwind(AssertUnwindSafe(|| self.tokenizer.encode_fast(text, true)));
        let refused = |reason: String| {
            let shown: String = text.chars().take(40).collect();
            DataError::file(&self.path, format!("cannot encode {shown:?} ({reason})"))
        };
        let encoding = encoded
            .map_err(|_| refused("the tokenizer gave up".into()))?
            .map_err(|e| refused(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Id of a token, by its exact spelling in the file.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// A byte without a token of its own, if there is one: byte-level encoding would leave it out without a word.
    pub(crate) fn missing_byte(&self) -> Option<char> {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        alphabet.into_iter().find(|c| self.tokenizer.token_to_id(c.encode_utf8(&mut [0; 4])).is_none())
    }

    /// The file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes with any byte of the file; part of every cache key.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Bound on the memory that the tokenizer takes, bytes.
    pub fn memory_bytes(&self) -> u64 {
        MEMORY_PER_BYTE * self.file_bytes + (16 << 20)
    }
}

/// Memory per byte of the file while it is read: its text, the merges as strings, and the tables made of both. A file of
/// 17 MB with 157,000 tokens and 131,000 merges was measured at 8.7, and at 6.8 once it was read.
const MEMORY_PER_BYTE: u64 = 14;
