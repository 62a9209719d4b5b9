//! The parts of a `tokenizer.json` whose model is Unigram. What else there is (`decoder`, `truncation`, `padding`) does not matter to ids,
//! or is for those who batch.

use std::borrow::Cow;

use base64::Engine as _;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::normalizers::{Replace, Sequence, Strip};
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::charsmap::{MAX_CHARSMAP, charsmap};
use super::pieces::Pieces;
use super::{Parts, Pipeline};
use crate::error::short;
use crate::text::admit;
use crate::text::counts::Added;

/// Longest normalizer, bytes: its table of replacements is in it, in base 64.
const MAX_NORMALIZER: usize = MAX_CHARSMAP / 3 * 4 + admit::MAX_PART;

#[derive(Deserialize)]
pub(super) struct File<'a> {
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

impl<'a> File<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// Returns how many pieces and added tokens there are; takes no memory that matters.
    pub(super) fn sizes(&self) -> Result<(Spellings, Added), String> {
        let parsed = |e: serde_json::Error| e.to_string();
        // Another kind's pieces have another form.
        let named: Model<&RawValue> = serde_json::from_str(self.model.get()).map_err(parsed)?;
        if let Some(kind) = named.kind.filter(|kind| kind != "Unigram") {
            return Err(format!("its model is of type {}; T5's are Unigram", short(&kind)));
        }
        let model: Model<Spellings> = serde_json::from_str(self.model.get()).map_err(parsed)?;
        if model.byte_fallback == Some(true) {
            return Err("it falls back to bytes, which no T5's does".to_owned());
        }
        if model.unk_id.is_none() {
            return Err("it has no unk_id, for what has no piece".to_owned());
        }
        let added: Added = match self.added_tokens {
            Some(tokens) => serde_json::from_str(tokens.get()).map_err(parsed)?,
            None => Added::default(),
        };
        Ok((model.vocab, added))
    }

    pub(super) fn build(&self, spellings: &Spellings) -> Result<Parts, String> {
        let parsed = |e: serde_json::Error| e.to_string();
        let list: Model<&RawValue> = serde_json::from_str(self.model.get()).map_err(parsed)?;
        let mut pieces = Pieces::with_capacity(spellings.pieces as usize, spellings.bytes as usize);
        let mut wrong = Ok(());
        each_piece(list.vocab.get(), |piece, score| {
            if wrong.is_ok() {
                wrong = pieces.push(piece, score);
            }
        })?;
        wrong?;
        let mut pipeline = Pipeline::new(pieces.finish(list.unk_id.unwrap_or(usize::MAX))?);
        if let Some(part) = self.normalizer {
            let normalizer = normalizer(&value(part, MAX_NORMALIZER)?)?;
            pipeline.with_normalizer(Some(normalizer)).map_err(|e| e.to_string())?;
        }
        if let Some(part) = self.pre_tokenizer {
            admit::unigram_pre_tokenizer(&value(part, admit::MAX_PART)?)?;
            let part: PreTokenizerWrapper = serde_json::from_str(part.get()).map_err(parsed)?;
            pipeline.with_pre_tokenizer(Some(part));
        }
        if let Some(part) = self.post_processor {
            admit::post_processor(&value(part, admit::MAX_PART)?)?;
            let part: PostProcessorWrapper = serde_json::from_str(part.get()).map_err(parsed)?;
            pipeline.with_post_processor(Some(part));
        }
        let tokens = self.added_tokens.map(|tokens| serde_json::from_str(tokens.get()));
        let tokens: Vec<AddedToken> = tokens.transpose().map_err(parsed)?.unwrap_or_default();
        Ok(Parts { pipeline, tokens })
    }
}

/// Returns a part that is short enough, read.
fn value(part: &RawValue, most: usize) -> Result<Value, String> {
    let text = part.get();
    if text.len() > most {
        return Err(format!("a part of {} bytes, more than any model has: {}", text.len(), short(text)));
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// Returns a normalizer: a table of replacements, taking off spaces at the ends, and replacing.
fn normalizer(part: &Value) -> Result<NormalizerWrapper, String> {
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    for (kind, step) in admit::unigram_normalizer(part)? {
        let step_of = || Value::Object(step.clone());
        steps.push(match kind {
            "Precompiled" => {
                let table = step.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or("");
                let table = base64::engine::general_purpose::STANDARD.decode(table);
                charsmap(&table.map_err(|_| "its table of replacements is no base 64".to_owned())?)?.into()
            }
            "Strip" => serde_json::from_value::<Strip>(step_of()).map_err(|e| e.to_string())?.into(),
            _ => serde_json::from_value::<Replace>(step_of()).map_err(|e| e.to_string())?.into(),
        });
    }
    Ok(Sequence::new(steps).into())
}

/// A model with its pieces as they are asked for.
#[derive(Deserialize)]
struct Model<V> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    vocab: V,
}

/// How many pieces there are, and of how many bytes.
#[derive(Default)]
pub(super) struct Spellings {
    pub(super) pieces: u64,
    pub(super) bytes: u64,
}

impl<'de> Deserialize<'de> for Spellings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut all = Spellings::default();
        let each = Each(|piece: &str, _| {
            all.pieces += 1;
            all.bytes += piece.len() as u64;
        });
        deserializer.deserialize_seq(each)?;
        Ok(all)
    }
}

fn each_piece(list: &str, each: impl FnMut(&str, f64)) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_str(list);
    deserializer.deserialize_seq(Each(each)).map_err(|e| e.to_string())
}

/// Calls a function for every piece and its score, one at a time.
struct Each<F>(F);

impl<'de, F: FnMut(&str, f64)> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of pieces with their scores")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        #[derive(Deserialize)]
        struct Piece<'a>(#[serde(borrow)] Cow<'a, str>, f64);
        while let Some(Piece(piece, score)) = list.next_element::<Piece<'de>>()? {
            (self.0)(&piece, score);
        }
        Ok(())
    }
}
