//! The pieces of a Unigram model and the best cut of a text into them (Kudo, arXiv 1804.10959), as the `tokenizers` package finds it.
//! Its own model takes a hash table for every prefix of a piece, tens of megabytes for what is one megabyte here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::models::unigram::UnigramTrainer;
use tokenizers::{Model, Token};

use crate::error::short;

/// Longest piece, bytes. SentencePiece makes them of 16 characters unless it is told otherwise.
const MAX_PIECE: usize = 512;
/// What a character without a piece has below the lowest score.
const UNKNOWN_PENALTY: f64 = 10.0;
/// Bytes of memory for each piece besides its spelling: where it ends, its score, its place in the order.
pub(super) const PIECE_BYTES: u64 = 16;

/// Pieces with their scores; ids are their places in the file.
pub struct Pieces {
    /// All spellings, one after another.
    text: String,
    /// Where each ends there.
    ends: Vec<u32>,
    scores: Vec<f64>,
    /// Ids in the order of their spellings; of those that are spelled alike the last.
    sorted: Vec<u32>,
    unknown: u32,
    /// Of a character without a piece.
    unknown_score: f64,
}

/// The best way to a place in a text.
#[derive(Clone, Copy)]
struct Step {
    score: f64,
    /// Where its last piece begins.
    start: usize,
    /// Which it is; none: the place was not reached.
    id: Option<u32>,
}

impl Pieces {
    /// Returns no pieces, with room for so many of so many bytes together.
    pub(super) fn with_capacity(pieces: usize, bytes: usize) -> Self {
        Self {
            text: String::with_capacity(bytes),
            ends: Vec::with_capacity(pieces),
            scores: Vec::with_capacity(pieces),
            sorted: Vec::with_capacity(pieces),
            unknown: 0,
            unknown_score: 0.0,
        }
    }

    /// Adds the next piece.
    pub(super) fn push(&mut self, piece: &str, score: f64) -> Result<(), String> {
        if piece.len() > MAX_PIECE {
            let (bytes, shown) = (piece.len(), short(piece));
            return Err(format!("a piece of {bytes} bytes, more than {MAX_PIECE}: {shown}"));
        }
        if !score.is_finite() {
            return Err(format!("the piece {:?} has the score {score}", short(piece)));
        }
        let id = u32::try_from(self.ends.len()).map_err(|_| "too many pieces".to_owned())?;
        self.text.push_str(piece);
        self.ends.push(u32::try_from(self.text.len()).map_err(|_| "too many pieces".to_owned())?);
        self.scores.push(score);
        self.sorted.push(id);
        Ok(())
    }

    /// Ends the list; `unknown` is the id of what has no piece.
    pub(super) fn finish(mut self, unknown: usize) -> Result<Self, String> {
        if unknown >= self.ends.len() {
            let n = self.ends.len();
            return Err(format!("its unknown token {unknown} is none of its {n} pieces"));
        }
        self.unknown = unknown as u32;
        let lowest = self.scores.iter().copied().fold(f64::INFINITY, f64::min);
        self.unknown_score = lowest - UNKNOWN_PENALTY;
        let mut sorted = std::mem::take(&mut self.sorted);
        // The last of those that are spelled alike comes first, and stays.
        sorted.sort_unstable_by(|a, b| self.spelling(*a).cmp(self.spelling(*b)).then(b.cmp(a)));
        sorted.dedup_by(|a, b| self.spelling(*a) == self.spelling(*b));
        self.sorted = sorted;
        Ok(self)
    }

    fn spelling(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.text.as_bytes()[start..self.ends[id] as usize]
    }

    fn id(&self, piece: &str) -> Option<u32> {
        let found = self.sorted.binary_search_by(|id| self.spelling(*id).cmp(piece.as_bytes()));
        found.ok().map(|at| self.sorted[at])
    }

    /// Calls `found` with the length and id of every piece with which a text begins, shorter ones first.
    fn prefixes(&self, text: &str, mut found: impl FnMut(usize, u32)) {
        // The pieces that begin with what was read so far.
        let mut alike = &self.sorted[..];
        for (k, byte) in text.bytes().enumerate() {
            let next = |id: &u32| self.spelling(*id).get(k).copied();
            let first = alike.partition_point(|id| next(id) < Some(byte));
            let end = first + alike[first..].partition_point(|id| next(id) == Some(byte));
            alike = &alike[first..end];
            let Some(shortest) = alike.first() else { return };
            if self.spelling(*shortest).len() == k + 1 {
                found(k + 1, *shortest);
            }
        }
    }

    /// Returns the cut with the highest sum of scores; of equal ones that whose last piece is longest, and so on to the first. What has no
    /// piece is a character each, and those that follow each other are one token.
    fn cut(&self, text: &str) -> Vec<Token> {
        let mut best = vec![Step { score: 0.0, start: 0, id: None }; text.len() + 1];
        for (start, c) in text.char_indices() {
            let before = best[start].score;
            let mut offer = |end: usize, score: f64, id: u32| {
                let step = &mut best[end];
                if step.id.is_none() || before + score > step.score {
                    *step = Step { score: before + score, start, id: Some(id) };
                }
            };
            let mut known = false;
            self.prefixes(&text[start..], |len, id| {
                offer(start + len, self.scores[id as usize], id);
                known |= len == c.len_utf8();
            });
            if !known {
                offer(start + c.len_utf8(), self.unknown_score, self.unknown);
            }
        }
        // From the end; every character begins a step, so there is one to every place that is walked through.
        let (mut tokens, mut end) = (Vec::new(), text.len());
        while end > 0 {
            let is_unknown = |end: usize| best[end].id == Some(self.unknown);
            let mut start = best[end].start;
            while is_unknown(end) && start > 0 && is_unknown(start) {
                start = best[start].start;
            }
            let value = &text[start..end];
            // Also unknown characters may be a piece together, if it has a score below theirs.
            let id = self.id(value).unwrap_or(self.unknown);
            tokens.push(Token::new(id, value.to_owned(), (start, end)));
            end = start;
        }
        tokens.reverse();
        tokens
    }
}

impl Model for Pieces {
    type Trainer = UnigramTrainer;

    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(self.cut(text))
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        let known = (id as usize) < self.ends.len();
        known.then(|| String::from_utf8_lossy(self.spelling(id)).into_owned())
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let all = (0..self.get_vocab_size() as u32).filter_map(|id| Some((self.id_to_token(id)?, id)));
        all.collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.ends.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("pieces are read, not written".into())
    }

    fn get_trainer(&self) -> UnigramTrainer {
        UnigramTrainer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::models::unigram::Unigram;

    fn pieces(all: &[(String, f64)], unknown: usize) -> Pieces {
        let mut pieces = Pieces::with_capacity(all.len(), 0);
        for (piece, score) in all {
            pieces.push(piece, *score).expect("a piece");
        }
        pieces.finish(unknown).expect("pieces")
    }

    /// The package's own model is the reference; its memory is why there is another.
    #[test]
    fn cuts_are_the_packages() {
        arbtest::arbtest(|u| {
            let letters = ["a", "b", "c", "é", "你", "▁", "x", "😀"];
            let word = |u: &mut arbtest::arbitrary::Unstructured<'_>, most: usize| {
                let n = u.int_in_range(0..=most)?;
                (0..n)
                    .map(|_| Ok(letters[u.int_in_range(0..=letters.len() - 1)?]))
                    .collect::<Result<String, _>>()
            };
            let mut all = vec![("<unk>".to_owned(), 0.0)];
            for _ in 0..u.int_in_range(0..=30)? {
                // Scores that tie, and some above 0: pieces that no training makes.
                let score = f64::from(u.int_in_range(-60..=12)?) / 4.0;
                all.push((word(u, 4)?, score));
            }
            let unknown = u.int_in_range(0..=all.len() - 1)?;
            let ours = pieces(&all, unknown);
            let theirs = Unigram::from(all.clone(), Some(unknown), false).expect("a model");
            for _ in 0..4 {
                let text = word(u, 24)?;
                let want = theirs.tokenize(&text).expect("cut");
                assert_eq!(ours.tokenize(&text).expect("cut"), want, "{text:?} {unknown} {all:?}");
            }
            for (piece, _) in &all {
                assert_eq!(ours.token_to_id(piece), theirs.token_to_id(piece));
            }
            assert!((0..=all.len() as u32).all(|id| ours.id_to_token(id) == theirs.id_to_token(id)));
            Ok(())
        });
    }

    #[test]
    fn pieces_that_cannot_be_are_named() {
        let mut none = Pieces::with_capacity(0, 0);
        assert!(none.push(&"x".repeat(513), 0.0).expect_err("refused").contains("513 bytes"));
        assert!(none.push("x", f64::NAN).expect_err("refused").contains("NaN"));
        assert!(none.finish(0).err().expect("refused").contains("none of its 0 pieces"));
    }
}
