//! Texts as a Piper voice reads them (piper-tts 1.8.0): espeak-ng's phonemes, a code point each, with the marks between its clauses, and
//! the ids that `config.json` has for them: `^ _ p1 _ … pn _ $` for each sentence.
//!
//! The installed espeak-ng is asked, and read as its library speaks to the package. Marks and ends of sentences are the package's; phonemes as
//! far as the versions agree: its own is one between 1.52 and 1.53. The program also writes tones of languages that have them, which the
//! library does not. Two things of the package are left out: a mark that its last text left behind, which begins the next one there, and the vowel
//! signs that it adds to Arabic before it speaks it.

mod clauses;
mod file;
mod program;

use crate::error::RunError;
use crate::hugging_face::CONFIG;
use crate::tokens::{Reader, Tokens};
use ambitus_data::text::{decomposed, strip};
use ambitus_recipe::recipe::short;
use clauses::{Clause, clauses};
use std::collections::{BTreeMap, BTreeSet};

/// What stands in the map for the start and the end of a sentence, and between phonemes.
const START: &str = "^";
const END: &str = "$";
const PAD: &str = "_";
/// Before a stressed syllable.
const STRESS: char = 'ˈ';
/// Ends a clause without a mark: espeak-ng's command to change to another voice, of none.
const NO_TUNE: &str = "\u{1}V";
/// What makes phonemes of a text.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// espeak-ng, in this voice.
    Espeak(String),
    /// Nothing: its characters are phonemes.
    Text,
}

/// How a voice reads texts.
#[derive(Debug)]
pub struct Texts {
    source: Source,
    map: BTreeMap<String, Vec<u32>>,
    clusters: BTreeSet<Vec<String>>,
}

/// The phonemes of a sentence, with its marks and spaces.
pub type Sentence = Vec<String>;

/// Makes what espeak-ng prints of a text: the phonemes of its clauses.
type Say<'a> = dyn Fn(&str) -> Result<Vec<String>, String> + 'a;

impl Texts {
    /// Returns the phonemes of each sentence of a text, as the trainer makes them: one sentence at least, and some may be empty (a quote that
    /// closes after the last full stop is one). `[[` is nothing special.
    ///
    /// # Errors
    /// For people: no espeak-ng, a voice that it does not have, a text that it cannot read, or that it hangs.
    pub fn phonemes(&self, text: &str) -> Result<Vec<Sentence>, String> {
        self.with(&|text| self.say(text), text)
    }

    /// Returns the phonemes of each sentence of a text that is spoken: what stands between `[[` and `]]` on a line are phonemes, as the package
    /// reads them before it speaks and not when it trains. They go on in the sentence before them.
    ///
    /// # Errors
    /// As [`phonemes`](Self::phonemes).
    pub fn spoken(&self, text: &str) -> Result<Vec<Sentence>, String> {
        self.spoken_with(&|text| self.say(text), text)
    }

    /// Returns the ids of a text for training: those of all sentences of [`phonemes`](Self::phonemes), one after the other.
    ///
    /// # Errors
    /// As [`phonemes`](Self::phonemes).
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, String> {
        let sentences = self.phonemes(text)?;
        Ok(sentences.iter().flat_map(|sentence| self.ids_of(sentence)).collect())
    }

    /// Returns the ids of each sentence of a text that is spoken ([`spoken`](Self::spoken)), without those that have no phoneme.
    ///
    /// # Errors
    /// As [`phonemes`](Self::phonemes).
    pub fn sentences(&self, text: &str) -> Result<Vec<Vec<u32>>, String> {
        let mut sentences = self.spoken(text)?;
        sentences.retain(|sentence| !sentence.is_empty());
        Ok(sentences.iter().map(|sentence| self.ids_of(sentence)).collect())
    }

    /// Returns the ids of a sentence. Phonemes that the map lacks have none.
    pub fn ids_of(&self, sentence: &[String]) -> Vec<u32> {
        self.spelled(sentence).into_iter().map(|(id, _)| id).collect()
    }

    /// Returns the phonemes that the map lacks: voices are mute there.
    pub fn unknown<'a>(&self, sentences: &'a [Sentence]) -> BTreeSet<&'a str> {
        let all = sentences.iter().flatten().map(String::as_str);
        all.filter(|phoneme| !self.map.contains_key(*phoneme)).collect()
    }

    /// Returns a digest of all that ids depend on besides the text: the map, the clusters, the voice and the version of the installed espeak-ng.
    ///
    /// # Errors
    /// For people: no espeak-ng, where the voice needs one.
    pub fn fingerprint(&self) -> Result<[u8; 32], String> {
        let (voice, version) = match &self.source {
            Source::Espeak(voice) => (Some(voice), program::version()?),
            Source::Text => (None, String::new()),
        };
        let all = serde_json::to_vec(&(voice, version, &self.map, &self.clusters));
        let all = all.map_err(|e| format!("{CONFIG}: {e}"))?;
        Ok(*blake3::hash(&all).as_bytes())
    }

    /// Returns what reads texts as the trainer does, for `ambitus tokens`.
    pub(super) fn reader<'a>(self) -> Reader<'a> {
        Box::new(move |text| {
            let sentences = self.phonemes(text);
            let sentences = sentences.map_err(|why| RunError::Usage(format!("{:?}: {why}", short(text))))?;
            let spelled = sentences.iter().flat_map(|sentence| self.spelled(sentence));
            let (ids, pieces) = spelled.map(|(id, phoneme)| (id, phoneme.to_owned())).unzip();
            Ok(Tokens { ids, pieces })
        })
    }

    /// Returns the ids of a sentence, each with its phoneme.
    fn spelled<'a>(&'a self, sentence: &'a [String]) -> Vec<(u32, &'a str)> {
        let known = sentence.iter().map(String::as_str).filter(|phoneme| self.map.contains_key(*phoneme));
        let padded = known.flat_map(|phoneme| [phoneme, PAD]);
        let all = [START, PAD].into_iter().chain(padded).chain([END]);
        let ids =
            |phoneme: &'a str| self.map.get(phoneme).into_iter().flatten().map(move |id| (*id, phoneme));
        all.flat_map(ids).collect()
    }

    fn say(&self, text: &str) -> Result<Vec<String>, String> {
        match &self.source {
            Source::Espeak(voice) => program::lines(voice, text),
            Source::Text => Ok(vec![text.to_owned()]),
        }
    }

    fn with(&self, say: &Say<'_>, text: &str) -> Result<Vec<Sentence>, String> {
        let Source::Espeak(voice) = &self.source else { return Ok(vec![symbols_of(text).collect()]) };
        let (mut sentences, mut sentence) = (Vec::new(), String::new());
        for (line, end) in said(text, voice, say)? {
            sentence.push_str(&without_switches(&line));
            sentence.extend(end.mark);
            if end.mark.is_some_and(|mark| ",:;".contains(mark)) {
                sentence.push(' ');
            }
            if end.sentence {
                sentences.push(self.clustered(&std::mem::take(&mut sentence)));
            }
        }
        if !sentence.is_empty() {
            sentences.push(self.clustered(&sentence));
        }
        Ok(sentences)
    }

    fn spoken_with(&self, say: &Say<'_>, text: &str) -> Result<Vec<Sentence>, String> {
        if self.source == Source::Text {
            return self.with(say, text);
        }
        let (mut sentences, mut after_block) = (Vec::<Sentence>::new(), false);
        let parts = parts(text);
        for (at, part) in parts.iter().enumerate() {
            let mut read = match part {
                Part::Text(text) => self.with(say, text)?.into_iter(),
                Part::Phonemes(block) => {
                    let space = |text: &str, near: fn(&str) -> bool| near(text).then(|| " ".to_owned());
                    let before =
                        at.checked_sub(1).and_then(|at| space(parts[at].text(), |t| t.ends_with(' ')));
                    let after = parts.get(at + 1).and_then(|part| space(part.text(), |t| t.starts_with(' ')));
                    let block = strip(block).chars().map(String::from);
                    vec![before.into_iter().chain(block).chain(after).collect()].into_iter()
                }
            };
            let is_block = matches!(part, Part::Phonemes(_));
            if let (true, Some(last)) = (is_block || after_block, sentences.last_mut()) {
                last.extend(read.next().unwrap_or_default());
            }
            sentences.extend(read);
            after_block = is_block;
        }
        Ok(sentences)
    }

    /// Returns the phonemes of a sentence, the known clusters of vowels as one each: the longest that begins at a phoneme.
    fn clustered(&self, sentence: &str) -> Sentence {
        let symbols: Vec<String> = symbols_of(sentence).collect();
        let longest = self.clusters.iter().map(Vec::len).max().unwrap_or(0);
        let (mut out, mut rest) = (Vec::with_capacity(symbols.len()), &symbols[..]);
        while !rest.is_empty() {
            let mut lengths = (2..=longest.min(rest.len())).rev();
            let length = lengths.find(|n| self.clusters.contains(&rest[..*n])).unwrap_or(1);
            out.push(rest[..length].concat());
            rest = &rest[length..];
        }
        out
    }
}

/// Returns the code points of a text, with accents as ones of their own.
fn symbols_of(text: &str) -> impl Iterator<Item = String> {
    decomposed(text).chars().map(String::from).collect::<Vec<_>>().into_iter()
}

/// Returns what espeak-ng says of each clause of a text, and how the clause ends.
fn said(text: &str, voice: &str, say: &Say<'_>) -> Result<Vec<(String, clauses::End)>, String> {
    let text = &apart(text);
    let clauses = clauses(text, voice);
    let of = |text: &str| if text.is_empty() { Ok(vec![String::new()]) } else { say(text) };
    let mut lines = of(text)?;
    if lines.len() != clauses.len() {
        // Of a version with other rules: clause by clause, and all that it makes of one is one.
        let one = |clause: &Clause<'_>| Ok(of(clause.text)?.join(" "));
        lines = clauses.iter().map(one).collect::<Result<_, String>>()?;
    }
    let plain = without_tunes(&lines, &clauses, say)?;
    for (line, plain) in lines.iter_mut().zip(plain) {
        if let Some(plain) = plain.filter(|plain| unstressed(plain) == unstressed(line)) {
            *line = plain;
        }
    }
    Ok(lines.into_iter().zip(clauses.iter().map(|clause| clause.end)).collect())
}

/// Reads the clauses again that have one stressed syllable at most, each with an end that has no tune, and returns what is printed of them. The
/// program prints phonemes once it has chosen a tune, for which it stresses a syllable where none is stressed; the library does not.
fn without_tunes(
    lines: &[String],
    clauses: &[Clause<'_>],
    say: &Say<'_>,
) -> Result<Vec<Option<String>>, String> {
    let mut out = vec![None; lines.len()];
    let few = |line: &str| !line.is_empty() && line.matches(STRESS).count() < 2;
    let doubtful: Vec<usize> = (0..lines.len()).filter(|at| few(&lines[*at])).collect();
    if doubtful.is_empty() {
        return Ok(out);
    }
    let words = doubtful.iter().map(|at| format!("{} {NO_TUNE}", clauses[*at].words()));
    let again = say(&words.collect::<Vec<_>>().join(" "))?;
    if again.len() == doubtful.len() {
        for (at, line) in doubtful.into_iter().zip(again) {
            out[at] = Some(line);
        }
    }
    Ok(out)
}

/// Returns phonemes without stress.
fn unstressed(line: &str) -> String {
    line.replace([STRESS, 'ˌ'], "")
}

/// Returns a text without `[[` and `]]`, between which the program reads phonemes of its own; the package does not let it.
fn apart(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '[' | ']') && out.ends_with(c) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// Returns the phonemes of a clause without the languages that espeak-ng changes to and back, such as `(en)`.
fn without_switches(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(open) = rest.find('(') {
        let inner = &rest[open + 1..];
        let close = inner.find(')');
        let keep = if close.is_some_and(|close| close > 0) { open } else { open + 1 };
        out.push_str(&rest[..keep]);
        rest = match close {
            Some(close) if close > 0 => &inner[close + 1..],
            _ => inner,
        };
    }
    out + rest
}

/// A part of a text that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    /// What stood between `[[` and `]]`.
    Phonemes(&'a str),
}

impl<'a> Part<'a> {
    fn text(self) -> &'a str {
        match self {
            Part::Text(text) => text,
            Part::Phonemes(_) => "",
        }
    }
}

/// Cuts a text at its blocks of phonemes: texts, which may be empty, before, between and after them.
fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut out, mut from, mut at) = (Vec::new(), 0, 0);
    while let Some(open) = text[at..].find("[[").map(|open| at + open) {
        let inner = &text[open + 2..];
        match inner.find("]]").map(|close| &inner[..close]) {
            Some(block) if !block.contains('\n') => {
                out.extend([Part::Text(&text[from..open]), Part::Phonemes(block)]);
                from = open + block.len() + 4;
                at = from;
            }
            _ => at = open + 1,
        }
    }
    out.push(Part::Text(&text[from..]));
    out
}

#[cfg(test)]
mod tests;
