//! Words in their segments, with the package's corrections of their times (`timing.py`, 20250625).

use crate::hearing::Word;
use ambitus_data::text::strip;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;

/// Signs that belong to the word after them, and before them.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
/// Signs that end a sentence.
const ENDS: &str = ".。!！?？";

/// A word in its window.
pub(super) struct Timing {
    pub word: String,
    /// Tokens of it.
    pub tokens: usize,
    /// Seconds.
    pub start: f64,
    pub end: f64,
    /// Sum over its tokens.
    pub logprob: f64,
}

/// A part of a window between two times.
pub(super) struct Piece {
    /// Seconds of the file.
    pub start: f64,
    pub end: f64,
    /// Its tokens, times among them.
    pub all: Vec<u32>,
    /// Those of its text.
    pub text: Vec<u32>,
    pub words: Vec<Word>,
}

/// Returns how many times smaller a text becomes by packing it (zlib): one that repeats itself much.
pub(super) fn compression_ratio(text: &str) -> f64 {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::new(6));
    let whole = packed.write_all(text.as_bytes()).and_then(|()| packed.finish());
    whole.map_or(1.0, |bytes| text.len() as f64 / bytes.len() as f64)
}

/// Puts words into the pieces of a window that begins at `offset` seconds. `spoken`: when the last word before ended. Returns when the last
/// word ends, or the last piece where there is none.
pub(super) fn place(
    mut timings: Vec<Timing>,
    pieces: &mut [Piece],
    offset: f64,
    spoken: &mut f64,
) -> Option<f64> {
    let usual = usual(&timings);
    let most = 2.0 * usual;
    shorten_at_sentences(&mut timings, most);
    merge(&mut timings);
    let mut timings = timings.into_iter();
    for piece in &mut *pieces {
        let mut taken = 0;
        while taken < piece.text.len() {
            let Some(Timing { word, tokens, start, end, logprob }) = timings.next() else { break };
            taken += tokens;
            if !word.is_empty() {
                let [start, end] = [start, end].map(|t| hundredths(offset + t));
                piece.words.push(Word { word, start, end, logprob });
            }
        }
        correct(piece, (usual, most), spoken);
    }
    let words = pieces.iter().rev().flat_map(|piece| piece.words.iter().rev());
    let end = words.map(|word| word.end).next().or(pieces.last().map(|piece| piece.end));
    *spoken = end.unwrap_or(*spoken);
    end
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round_ties_even() / 100.0
}

/// Returns the median length of words that have one, at most 0.7 s.
fn usual(timings: &[Timing]) -> f64 {
    let mut lengths: Vec<f64> = timings.iter().map(|t| t.end - t.start).filter(|s| *s != 0.0).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    let n = lengths.len();
    let median = match n {
        0 => 0.0,
        n if n % 2 == 1 => lengths[n / 2],
        n => f64::midpoint(lengths[n / 2 - 1], lengths[n / 2]),
    };
    median.min(0.7)
}

/// Words that are long beside the end of a sentence have its pause in them.
fn shorten_at_sentences(timings: &mut [Timing], most: f64) {
    if most == 0.0 {
        return;
    }
    for i in 1..timings.len() {
        if timings[i].end - timings[i].start <= most {
            continue;
        }
        if ENDS.contains(&*timings[i].word) {
            timings[i].end = timings[i].start + most;
        } else if ENDS.contains(&*timings[i - 1].word) {
            timings[i].start = timings[i].end - most;
        }
    }
}

/// Joins signs to their words: those that were joined are left empty.
fn merge(timings: &mut [Timing]) {
    let join = |timings: &mut [Timing], from: usize, to: usize, before: bool| {
        let Timing { word, tokens, logprob, .. } = &mut timings[from];
        let (word, tokens, logprob) = (std::mem::take(word), std::mem::take(tokens), std::mem::take(logprob));
        let to = &mut timings[to];
        to.word = if before { word + &to.word } else { std::mem::take(&mut to.word) + &word };
        to.tokens += tokens;
        to.logprob += logprob;
    };
    let Some(mut following) = timings.len().checked_sub(1) else { return };
    for i in (0..following).rev() {
        let word = &timings[i].word;
        if word.starts_with(' ') && OPENING.contains(strip(word)) {
            join(timings, i, following, true);
        } else {
            following = i;
        }
    }
    let mut previous = 0;
    for i in 1..timings.len() {
        if !timings[previous].word.ends_with(' ') && CLOSING.contains(&*timings[i].word) {
            join(timings, i, previous, false);
        } else {
            previous = i;
        }
    }
}

/// Shortens words after a pause, and lets the piece begin and end with its words, or these with it where a word is too long.
fn correct(piece: &mut Piece, (usual, most): (f64, f64), spoken: &mut f64) {
    let Piece { start, end, words, .. } = piece;
    let [first, rest @ ..] = &mut words[..] else { return };
    let two = rest.first().map(|second| second.end - first.start);
    let long = first.end - first.start > most || two.is_some_and(|two| two > 2.0 * most);
    if first.end - *spoken > 4.0 * usual && long {
        if let Some(second) = rest.first_mut().filter(|second| second.end - second.start > most) {
            let boundary = (second.end / 2.0).max(second.end - most);
            (first.end, second.start) = (boundary, boundary);
        }
        first.start = (first.end - most).max(0.0);
    }
    if *start < first.end && *start - 0.5 > first.start {
        first.start = (first.end - usual).min(*start).max(0.0);
    } else {
        *start = first.start;
    }
    let Some(last) = words.last_mut() else { return };
    if *end > last.start && *end + 0.5 < last.end {
        last.end = (last.start + usual).max(*end);
    } else {
        *end = last.end;
    }
    *spoken = *end;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(word: &str, start: f64, end: f64) -> Timing {
        Timing { word: word.to_owned(), tokens: 1, start, end, logprob: -1.0 }
    }

    #[test]
    fn signs_belong_to_words() {
        let mut all: Vec<Timing> =
            [" (", "Hello", ",", " world", "!", ")"].map(|w| timing(w, 0.0, 0.1)).into_iter().collect();
        merge(&mut all);
        let words: Vec<(&str, usize)> = all.iter().map(|t| (&*t.word, t.tokens)).collect();
        assert_eq!(words, [("", 0), (" (Hello,", 3), ("", 0), (" world!)", 3), ("", 0), ("", 0)]);
        assert!((all[1].logprob + 3.0).abs() < 1e-12);
    }

    #[test]
    fn texts_that_repeat_pack_well() {
        assert!(compression_ratio("Hello world.") < 1.0);
        assert!(compression_ratio(&"thank you ".repeat(20)) > 5.0);
    }
}
