//! SentencePiece's Unigram, from a `tokenizer.json` or from `spiece.model` alone, as transformers' `T5TokenizerFast` reads a folder (4.46):
//! truncation and padding are for those who batch.

mod charsmap;
mod json;
mod pieces;
mod settings;
mod spiece;

use std::path::{Path, PathBuf};

use tokenizers::normalizers::{Replace, Sequence, Strip};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use super::TOKENIZER_FILE;
use super::counts::Added;
use crate::error::{DataError, short};
use crate::files;
use crate::guard::guarded;
use charsmap::{MAX_REPLACEMENT, charsmap};
use json::File;
use pieces::{PIECE_BYTES, Pieces};
use settings::Settings;
use spiece::Spiece;

/// SentencePiece's own file in a model folder.
pub const SPIECE_FILE: &str = "spiece.model";
/// Largest file of either kind, bytes. T5's have 2.4 MB and 0.8 MB, mT5's with 250,000 pieces 16 MB.
const MAX_BYTES: u64 = 64 << 20;
/// What stands for a space in pieces.
const SPACE: char = '▁';
/// The token that a text ends with.
const END: &str = "</s>";

type Pipeline =
    TokenizerImpl<Pieces, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A tokenizer of a folder with T5's files.
pub struct Unigram {
    path: PathBuf,
    pipeline: Pipeline,
    fingerprint: [u8; 32],
    memory_bytes: u64,
}

/// A tokenizer and the tokens that its own file adds.
struct Parts {
    pipeline: Pipeline,
    tokens: Vec<AddedToken>,
}

impl Unigram {
    /// Reads a folder's `tokenizer.json`, else its `spiece.model`, in at most `room` bytes of memory. As the package does, it reads
    /// `spiece.model` in place of the other where `tokenizer_config.json` has `add_prefix_space`.
    ///
    /// # Errors
    /// A file cannot be read, is no tokenizer of a T5, or takes more memory.
    pub fn read(model_folder: &Path, room: u64) -> Result<Self, DataError> {
        let settings = Settings::read(model_folder)?;
        let [json, spiece] = [TOKENIZER_FILE, SPIECE_FILE].map(|name| model_folder.join(name));
        let own = spiece.is_file() && (settings.add_prefix_space.is_some() || !json.exists());
        let path = if own { spiece } else { json };
        let fits = |needed: u64| match needed > room {
            true => Err(DataError::DoesNotFit { what: format!("{}", path.display()), needed, room }),
            false => Ok(()),
        };
        fits(std::fs::metadata(&path).map_err(|e| DataError::io(&path, e))?.len())?;
        let bytes = files::read_bytes(&path, MAX_BYTES)?;
        let refused = |reason: String| {
            let reason = short(&reason);
            let remedy = "copy that of the model that you fine-tune";
            DataError::file(&path, format!("not a tokenizer that can be read ({reason}); {remedy}"))
        };
        // The package's own checks are not all errors.
        let caught = |built: Option<Result<Pipeline, String>>| {
            built.unwrap_or_else(|| Err("it contradicts itself".into())).map_err(&refused)
        };
        let (pipeline, memory_bytes) = if own {
            let file = Spiece::read(&bytes).map_err(&refused)?;
            let memory = of_spiece(&file, &settings).memory_bytes();
            fits(memory)?;
            (caught(guarded(|| build_spiece(&file, &settings)))?, memory)
        } else {
            let text = std::str::from_utf8(&bytes).map_err(|e| refused(e.to_string()))?;
            let file = File::read(text).map_err(&refused)?;
            let (spellings, added) = file.sizes().map_err(&refused)?;
            let pieces = spellings.pieces;
            let memory = Sizes { file: bytes.len() as u64, pieces, added: added.and(&more(&settings)) };
            fits(memory.memory_bytes())?;
            let build = || finished(file.build(&spellings)?, &settings);
            (caught(guarded(build))?, memory.memory_bytes())
        };
        let mut hash = blake3::Hasher::new();
        hash.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes).update(&settings.bytes);
        let fingerprint = *hash.finalize().as_bytes();
        Ok(Self { path, pipeline, fingerprint, memory_bytes })
    }

    /// Returns the ids of a text, with what the tokenizer puts around it (T5: the end token after it). Takes up to
    /// [`UNIGRAM_ENCODING_BYTES`] of memory for each byte of it.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let refused =
            |reason: &str| DataError::file(&self.path, format!("cannot encode {:?} ({reason})", short(text)));
        let encoding = guarded(|| self.pipeline.encode_fast(text, true))
            .ok_or_else(|| refused("the tokenizer gave up"))?
            .map_err(|e| refused(&short(&e.to_string())))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the id of a token, by its exact spelling in the file.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }

    /// Returns a token's spelling in the file.
    pub fn piece(&self, id: u32) -> Option<String> {
        self.pipeline.id_to_token(id)
    }

    /// Returns the number of ids: of pieces and of what was added to them.
    pub fn size(&self) -> usize {
        self.pipeline.get_vocab_size(true)
    }

    /// Returns the file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes with any byte of the files that were read; part of every cache key.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns the bound on the memory that the tokenizer takes while it is read and then, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Adds the tokens of the file and those of the settings.
fn finished(parts: Parts, settings: &Settings) -> Result<Pipeline, String> {
    let Parts { mut pipeline, tokens } = parts;
    let more = settings.tokens(&tokens);
    pipeline.add_tokens(tokens).map_err(|e| e.to_string())?;
    pipeline.add_tokens(more).map_err(|e| e.to_string())?;
    Ok(pipeline)
}

/// Makes of `spiece.model` what transformers' `T5Converter` makes of it.
fn build_spiece(file: &Spiece<'_>, settings: &Settings) -> Result<Pipeline, String> {
    let (pieces, added) = file.build(settings.extra_ids())?;
    let mut pipeline = Pipeline::new(pieces);
    let end = pipeline.token_to_id(END).ok_or_else(|| format!("it has no {END}, with which texts end"))?;
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if !file.charsmap.is_empty() {
        steps.push(charsmap(file.charsmap)?.into());
    }
    steps.push(Strip::new(false, true).into());
    let spaces = tokenizers::normalizers::replace::ReplacePattern::Regex(" {2,}".to_owned());
    steps.push(Replace::new(spaces, SPACE).map_err(|e| e.to_string())?.into());
    let normalizer: NormalizerWrapper = Sequence::new(steps).into();
    pipeline.with_normalizer(Some(normalizer)).map_err(|e| e.to_string())?;
    let scheme = if settings.first_only() { PrependScheme::First } else { PrependScheme::Always };
    pipeline.with_pre_tokenizer(Some(Metaspace::new(SPACE, scheme, true)));
    let template = TemplateProcessing::builder()
        .try_single(format!("$A {END}"))?
        .special_tokens(vec![(END, end)])
        .build()
        .map_err(|e| e.to_string())?;
    pipeline.with_post_processor(Some(template));
    let token = |(text, special): (String, bool)| AddedToken::from(text, special).normalized(false);
    finished(Parts { pipeline, tokens: added.into_iter().map(token).collect() }, settings)
}

/// Returns the tokens that the settings add.
fn more(settings: &Settings) -> Added {
    let tokens = settings.tokens(&[]);
    Added { tokens: tokens.len() as u64, bytes: tokens.iter().map(|token| token.content.len() as u64).sum() }
}

fn of_spiece(file: &Spiece<'_>, settings: &Settings) -> Sizes {
    let (tokens, bytes) = file.added;
    let added = Added { tokens, bytes }.and(&more(settings));
    Sizes { file: file.bytes(), pieces: file.pieces + settings.extra_ids() as u64, added }
}

/// How much there is of everything that takes memory.
struct Sizes {
    file: u64,
    pieces: u64,
    added: Added,
}

/// Memory that a tokenizer takes while it is read, measured by tests with files that are made to take much of it: for each byte of the
/// file (its text, spellings, and of a table of replacements the base 64, the bytes and twice as long a trie). Added tokens take more.
const MEMORY_PER_BYTE: u64 = 5;
/// Expressions, settings and tables.
const MEMORY_FIXED: u64 = 8 << 20;

/// Bound on the memory that [`Unigram::encode`] takes for each byte of text: one may become forty, and each of these a character of four
/// bytes with a piece of its own, for which tests measured 285 bytes. Texts that stay as they are take under 200.
pub const UNIGRAM_ENCODING_BYTES: u64 = 350 * MAX_REPLACEMENT as u64;

impl Sizes {
    fn memory_bytes(&self) -> u64 {
        MEMORY_FIXED + MEMORY_PER_BYTE * self.file + PIECE_BYTES * self.pieces + self.added.memory_bytes()
    }
}
