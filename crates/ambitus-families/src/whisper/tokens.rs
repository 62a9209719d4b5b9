//! Tokens by name, texts to tokens and back, and the words that tokens spell.

use crate::error::RunError;
use ambitus_data::DataError;
use ambitus_data::text::{Bpe, strip};
use std::path::Path;

/// Python's `string.punctuation`, in its order: the package asks whether a word is a part of it.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// Languages that are written without spaces: a word is what is a whole character.
const UNSPACED: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Signs that are heard as no words, which the package never writes; of the last ones any token that begins one.
const SYMBOLS: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
const NOTES: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";

/// The vocabulary and its special tokens.
pub(super) struct Tokens {
    bpe: Bpe,
    /// Ends a text; ids from here on are no text.
    pub eot: u32,
    pub sot: u32,
    /// Before the text of the window before.
    pub prev: u32,
    pub transcribe: u32,
    pub translate: u32,
    pub no_timestamps: u32,
    /// The first time, 0 s; the others follow.
    pub times: u32,
    /// What a window without speech begins with.
    pub no_speech: Option<u32>,
    lm: Option<u32>,
    /// Codes and ids.
    pub languages: Vec<(String, u32)>,
}

impl Tokens {
    /// Reads `tokenizer.json` of a folder.
    ///
    /// # Errors
    /// The file does not read, or lacks a token.
    pub fn read(dir: &Path) -> Result<Tokens, RunError> {
        let bpe = Bpe::read(dir, u64::MAX).map_err(|e| RunError::Model(e.to_string()))?;
        let id = |name: &str| bpe.id(&format!("<|{name}|>"));
        let must = |name: &str| {
            let lacks = || {
                format!(
                    "{}: has no token <|{name}|>; copy the tokenizer of the model's own folder",
                    bpe.path().display()
                )
            };
            id(name).ok_or_else(|| RunError::Model(lacks()))
        };
        let no_timestamps = must("notimestamps")?;
        let code = |id: u32| {
            let piece = bpe.piece(id)?;
            let code = piece.strip_prefix("<|")?.strip_suffix("|>")?;
            let is_code = (2..=3).contains(&code.len()) && code.bytes().all(|b| b.is_ascii_lowercase());
            is_code.then(|| (code.to_owned(), id))
        };
        let eot = must("endoftext")?;
        Ok(Tokens {
            eot,
            sot: must("startoftranscript")?,
            prev: must("startofprev")?,
            transcribe: must("transcribe")?,
            translate: must("translate")?,
            no_timestamps,
            // Older folders do not spell them.
            times: id("0.00").unwrap_or(no_timestamps + 1),
            no_speech: id("nospeech").or(id("nocaptions")),
            lm: id("startoflm"),
            languages: (eot..bpe.size() as u32).filter_map(code).collect(),
            bpe,
        })
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bpe.memory_bytes()
    }

    /// Returns the most ids: a vocabulary must have as many.
    pub fn size(&self) -> usize {
        self.bpe.size()
    }

    /// Returns the ids of a text, without what stands around it.
    ///
    /// # Errors
    /// A text that the tokenizer refuses, or that names special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RunError> {
        let ids = self.bpe.encode_alone(text)?;
        match ids.iter().find(|id| **id >= self.eot) {
            None => Ok(ids),
            Some(id) => Err(RunError::Data(DataError::Invalid(format!(
                "the text has {}, which is no text to the model: take it out",
                self.bpe.piece(*id).unwrap_or_default()
            )))),
        }
    }

    fn spelled(&self, ids: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for id in ids {
            let piece = self.bpe.piece(*id).unwrap_or_default();
            match piece.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
                Some(own) if *id < self.eot => bytes.extend(own),
                _ => bytes.extend(piece.as_bytes()),
            }
        }
        bytes
    }

    /// Returns the text of ids; what is no character is a replacement character.
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.spelled(ids)).into_owned()
    }

    /// Returns the tokens that stand before a text, and are none of it.
    pub fn special(&self) -> Vec<u32> {
        let always = [self.transcribe, self.translate, self.sot, self.prev];
        always.into_iter().chain(self.lm).chain(self.no_speech).collect()
    }

    /// Returns the tokens of signs that are heard as no words, as the package has them.
    pub fn signs(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        let first = |text: &str| self.bpe.encode_alone(text).unwrap_or_default();
        ids.extend([" -", " '"].iter().filter_map(|text| first(text).first().copied()));
        for (all, alone) in [(SYMBOLS, true), (NOTES, false)] {
            for text in all.split(' ').flat_map(|sign| [sign.to_owned(), format!(" {sign}")]) {
                let tokens = first(&text);
                ids.extend(tokens.first().filter(|_| tokens.len() == 1 || !alone));
            }
        }
        ids
    }

    /// Returns what begins no text: a space, and the end.
    pub fn blank(&self) -> Vec<u32> {
        let mut ids = self.bpe.encode_alone(" ").unwrap_or_default();
        ids.push(self.eot);
        ids
    }

    /// Returns the words that ids spell, with their ids: what begins with a space, signs, and special tokens; in languages without spaces
    /// whatever is a whole character. Numbers of ids are the words' own.
    pub fn words(&self, ids: &[u32], language: Option<&str>) -> Vec<(String, Vec<u32>)> {
        let pieces = self.whole(ids);
        if language.is_some_and(|code| UNSPACED.contains(&code)) {
            return pieces;
        }
        let mut words: Vec<(String, Vec<u32>)> = Vec::new();
        for (piece, ids) in pieces {
            let apart = ids[0] >= self.eot || piece.starts_with(' ') || PUNCTUATION.contains(strip(&piece));
            match words.last_mut().filter(|_| !apart) {
                Some((word, of)) => {
                    word.push_str(&piece);
                    of.extend(ids);
                }
                None => words.push((piece, ids)),
            }
        }
        words
    }

    /// Cuts ids where they spell whole characters.
    fn whole(&self, ids: &[u32]) -> Vec<(String, Vec<u32>)> {
        const BROKEN: char = '\u{fffd}';
        let full: Vec<char> = self.decode(ids).chars().collect();
        let (mut pieces, mut open, mut at) = (Vec::new(), Vec::new(), 0);
        for id in ids {
            open.push(*id);
            let text = self.decode(&open);
            let broken = text.chars().position(|c| c == BROKEN);
            // Or the text itself is broken there.
            if broken.is_none_or(|i| full.get(at + i) == Some(&BROKEN)) {
                at += text.chars().count();
                pieces.push((text, std::mem::take(&mut open)));
            }
        }
        pieces
    }
}

/// Returns the byte that a character of a byte-level token stands for (GPT-2's table): printable ones themselves, the others from U+0100
/// on.
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    match u32::from(c) {
        code @ 0..256 => Some(code as u8).filter(|b| printable(*b)),
        code => (0..=255u8).filter(|b| !printable(*b)).nth(code as usize - 256),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut bytes: Vec<u8> = (0..512).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(['Ġ', 'Ċ', 'a', 'é'].map(byte_of), [Some(b' '), Some(b'\n'), Some(b'a'), Some(0xe9)]);
    }
}
