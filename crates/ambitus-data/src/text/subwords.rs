//! What tokenizers of Hugging Face's folders share, whatever their model: they are read in bounded memory, and their package may panic.

use std::path::{Path, PathBuf};

use tokenizers::{
    DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use crate::error::{DataError, short};
use crate::files;
use crate::guard::guarded;

/// The package's own tokenizer.
pub(super) type Pipeline<M> =
    TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A tokenizer's file while it is read.
pub(super) struct Reading {
    pub(super) path: PathBuf,
    /// Bytes of memory that it may take.
    pub(super) room: u64,
}

impl Reading {
    /// Returns the file's bytes, if they fit and are no more than `most`.
    pub(super) fn bytes(&self, most: u64) -> Result<Vec<u8>, DataError> {
        self.fits(std::fs::metadata(&self.path).map_err(|e| DataError::io(&self.path, e))?.len())?;
        files::read_bytes(&self.path, most)
    }

    /// Refuses what takes more memory than there is.
    pub(super) fn fits(&self, needed: u64) -> Result<(), DataError> {
        let room = self.room;
        match needed > room {
            true => Err(DataError::DoesNotFit { what: self.path.display().to_string(), needed, room }),
            false => Ok(()),
        }
    }

    /// Returns why the file is no tokenizer.
    pub(super) fn refused(&self, reason: String) -> DataError {
        let reason = short(&reason);
        let remedy = "copy that of the model that you fine-tune";
        DataError::file(&self.path, format!("not a tokenizer that can be read ({reason}); {remedy}"))
    }

    /// Builds the tokenizer. The package's own checks are not all errors.
    pub(super) fn built<M: Model>(
        self,
        memory_bytes: u64,
        fingerprint: [u8; 32],
        build: impl FnOnce() -> Result<Pipeline<M>, String>,
    ) -> Result<Subwords<M>, DataError> {
        let built = guarded(build).unwrap_or_else(|| Err("it contradicts itself".into()));
        let pipeline = built.map_err(|reason| self.refused(reason))?;
        Ok(Subwords { path: self.path, pipeline, fingerprint, memory_bytes })
    }
}

/// A tokenizer of a model folder.
pub struct Subwords<M> {
    path: PathBuf,
    pipeline: Pipeline<M>,
    fingerprint: [u8; 32],
    memory_bytes: u64,
}

impl<M: Model> Subwords<M> {
    /// Returns the ids of a text, with what the tokenizer puts around it (Llama: the begin-of-text token; T5: the end token after it).
    /// Takes memory for each byte of it: [`ENCODING_BYTES`](super::ENCODING_BYTES),
    /// [`UNIGRAM_ENCODING_BYTES`](super::UNIGRAM_ENCODING_BYTES).
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.encoded(text, true)
    }

    fn encoded(&self, text: &str, around: bool) -> Result<Vec<u32>, DataError> {
        let refused =
            |reason: &str| DataError::file(&self.path, format!("cannot encode {:?} ({reason})", short(text)));
        let encoding = guarded(|| self.pipeline.encode_fast(text, around))
            .ok_or_else(|| refused("the tokenizer gave up"))?
            .map_err(|e| refused(&short(&e.to_string())))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the ids of a text without what the tokenizer puts around it. See [`encode`](Self::encode).
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode_alone(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.encoded(text, false)
    }

    /// Returns the id of a token, by its exact spelling in the file.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }

    /// Returns a token's spelling in the file.
    pub fn piece(&self, id: u32) -> Option<String> {
        self.pipeline.id_to_token(id)
    }

    /// Returns the number of ids: of the model's tokens and of what was added to them.
    pub fn size(&self) -> usize {
        self.pipeline.get_vocab_size(true)
    }

    /// Returns the file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes with any byte of what was read; part of every cache key.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns the bound on the memory that the tokenizer takes while it is read and then, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
