//! One clip as the sequence that a language model over codec tokens trains on.
//!
//! `[START_OF_HUMAN] [BEGIN_OF_TEXT] text [END_OF_TEXT] [END_OF_HUMAN] [START_OF_AI] [START_OF_SPEECH] audio
//! [END_OF_SPEECH] [END_OF_AI]`; the text is `voice: text`, or `text` alone. Emotion tags (`<laugh>`) are ordinary text.
//! The begin-of-text id comes from the tokenizer. Labels are the ids themselves, not shifted: loss covers the text and the
//! wrapper ids too, as in the official scripts, unless only audio is asked for.

use super::interleave::{self, CODEBOOK, Codes, SLOTS};
use crate::error::DataError;
use crate::text::Bpe;

/// `<|begin_of_text|>`, which the tokenizer puts before a text.
pub const BEGIN_OF_TEXT: u32 = 128_000;
/// `<|eot_id|>`, after the text.
pub const END_OF_TEXT: u32 = 128_009;
/// Before the audio.
pub const START_OF_SPEECH: u32 = 128_257;
/// After the audio.
pub const END_OF_SPEECH: u32 = 128_258;
/// Before what a person says.
pub const START_OF_HUMAN: u32 = 128_259;
/// After what a person says.
pub const END_OF_HUMAN: u32 = 128_260;
/// Before what the model says.
pub const START_OF_AI: u32 = 128_261;
/// After what the model says.
pub const END_OF_AI: u32 = 128_262;
/// Padding. Not used here: clips are packed.
pub const PAD: u32 = 128_263;
/// Id of code 0 in slot 0.
pub const FIRST_AUDIO: u32 = 128_266;
/// Id of the last code in the last slot.
pub const LAST_AUDIO: u32 = FIRST_AUDIO + SLOTS as u32 * CODEBOOK - 1;
/// A label that is not scored.
pub const IGNORED: i32 = -100;

/// Ids around text and audio that are no part of either: one before the text, four between, two after the audio.
pub const WRAPPERS: usize = 7;

/// Which positions are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabelScope {
    /// Every id, as the official scripts do.
    #[default]
    All,
    /// From the first audio id on, with the two ids that end the speech.
    Audio,
}

/// Makes sequences with a model's tokenizer.
pub struct Sequences {
    bpe: Bpe,
    /// Which positions are scored.
    pub labels: LabelScope,
}

impl Sequences {
    /// Checks that the tokenizer can be one of such a model: it begins a text with [`BEGIN_OF_TEXT`], gives no other
    /// id beyond the text range, and has a token for every byte.
    ///
    /// # Errors
    /// Says what is wrong with `tokenizer.json`.
    pub fn new(bpe: Bpe, labels: LabelScope) -> Result<Self, DataError> {
        let ids = bpe.encode("a")?;
        let [first, rest @ ..] = &ids[..] else {
            return Err(DataError::file(
                bpe.path(),
                "gives no ids for \"a\"; it is not the model's tokenizer",
            ));
        };
        if *first != BEGIN_OF_TEXT || rest.contains(&BEGIN_OF_TEXT) || rest.is_empty() {
            return Err(DataError::file(
                bpe.path(),
                format!(
                    "encodes \"a\" as {ids:?}; the model's begins a text with {BEGIN_OF_TEXT} (<|begin_of_text|>), once. \
                     Use the tokenizer.json of the model"
                ),
            ));
        }
        if let Some(byte) = bpe.missing_byte() {
            let reason = format!(
                "has no token for the byte {byte:?}, so text would be lost; use the model's own file"
            );
            return Err(DataError::file(bpe.path(), reason));
        }
        Ok(Self { bpe, labels })
    }

    /// Returns the tokenizer.
    pub fn bpe(&self) -> &Bpe {
        &self.bpe
    }

    /// Returns the ids of a text as spoken by `voice`, with [`BEGIN_OF_TEXT`] in front.
    ///
    /// # Errors
    /// The tokenizer refuses the text, or finds wrapper or audio ids in it: text that spells `<custom_token_3>` would
    /// end the clip early.
    pub fn text(&self, text: &str, voice: Option<&str>) -> Result<Vec<u32>, DataError> {
        let prompt = match voice {
            Some(voice) => format!("{voice}: {text}"),
            None => text.to_owned(),
        };
        let ids = self.bpe.encode(&prompt)?;
        // Special tokens begin with the one that begins a text.
        match ids.iter().skip(1).find(|&&id| id >= BEGIN_OF_TEXT) {
            Some(id) => {
                let shown: String = prompt.chars().take(40).collect();
                Err(DataError::file(
                    self.bpe.path(),
                    format!("the text {shown:?} spells the special token {id}; take it out of the text"),
                ))
            }
            None => Ok(ids),
        }
    }

    /// Returns what stands before the audio. `text` is what [`text`](Self::text) gave.
    pub fn prompt(&self, text: &[u32]) -> Vec<u32> {
        [&[START_OF_HUMAN], text, &[END_OF_TEXT, END_OF_HUMAN, START_OF_AI, START_OF_SPEECH]].concat()
    }

    /// Returns the whole sequence and its labels. `text` is what [`text`](Self::text) gave.
    pub fn whole(&self, text: &[u32], codes: &Codes) -> (Vec<u32>, Vec<i32>) {
        let audio = interleave::drop_repeated_frames(&interleave::interleave(codes));
        let mut ids = self.prompt(text);
        let first_audio = ids.len();
        ids.extend(audio);
        ids.extend([END_OF_SPEECH, END_OF_AI]);
        let unscored = match self.labels {
            LabelScope::All => 0,
            LabelScope::Audio => first_audio,
        };
        let labels =
            ids.iter().enumerate().map(|(i, &id)| if i < unscored { IGNORED } else { id as i32 }).collect();
        (ids, labels)
    }
}
