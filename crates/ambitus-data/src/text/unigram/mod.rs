//! SentencePiece's Unigram, from a `tokenizer.json` or from `spiece.model` alone, as transformers' `T5TokenizerFast` reads a folder (4.46):
//! truncation and padding are for those who batch.

mod charsmap;
mod json;
mod pieces;
mod settings;
mod spiece;

use std::path::Path;

use tokenizers::normalizers::{Replace, Sequence, Strip};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper};

use super::TOKENIZER_FILE;
use super::counts::Added;
use super::subwords::{Reading, Subwords};
use crate::error::DataError;
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

type Pipeline = super::subwords::Pipeline<Pieces>;

/// A tokenizer of a folder with T5's files.
pub type Unigram = Subwords<Pieces>;

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
        let reading = Reading { path: if own { spiece } else { json }, room };
        let bytes = reading.bytes(MAX_BYTES)?;
        let refused = |reason: String| reading.refused(reason);
        let mut hash = blake3::Hasher::new();
        hash.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes).update(&settings.bytes);
        let fingerprint = *hash.finalize().as_bytes();
        if own {
            let file = Spiece::read(&bytes).map_err(refused)?;
            let memory = of_spiece(&file, &settings).memory_bytes();
            reading.fits(memory)?;
            return reading.built(memory, fingerprint, || build_spiece(&file, &settings));
        }
        let text = std::str::from_utf8(&bytes).map_err(|e| refused(e.to_string()))?;
        let file = File::read(text).map_err(refused)?;
        let (spellings, added) = file.sizes().map_err(refused)?;
        let pieces = spellings.pieces;
        let memory = Sizes { file: bytes.len() as u64, pieces, added: added.and(&more(&settings)) };
        let memory = memory.memory_bytes();
        reading.fits(memory)?;
        reading.built(memory, fingerprint, || finished(file.build(&spellings)?, &settings))
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

/// Bound on the memory that [`Subwords::encode`] takes for each byte of text: one may become forty, and each of these a character of four
/// bytes with a piece of its own, for which tests measured 285 bytes. Texts that stay as they are take under 200.
pub const UNIGRAM_ENCODING_BYTES: u64 = 350 * MAX_REPLACEMENT as u64;

impl Sizes {
    fn memory_bytes(&self) -> u64 {
        MEMORY_FIXED + MEMORY_PER_BYTE * self.file + PIECE_BYTES * self.pieces + self.added.memory_bytes()
    }
}
