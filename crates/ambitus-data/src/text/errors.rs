//! How far a text that was heard is from the one that was to be said: word error rate, and character error rate of scripts that put no
//! spaces between words.
//!
//! Both texts are made alike first: NFKC; numbers in words, of English and Chinese; lower case; apostrophes left out; every other
//! character that is no letter, number or mark counts as a space. openai-whisper's `EnglishTextNormalizer` goes further (contractions,
//! titles, fillers, American spelling), so its rates are a little lower.

use super::numbers::{chinese_numbers, english_numbers};
use regex::Regex;
use std::ops::AddAssign;
use std::sync::LazyLock;
use tokenizers::NormalizedString;

/// Combining marks, without which some scripts fall apart.
static MARK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{M}$").expect("a class of Unicode"));

/// The edits that make one text of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Substitutions, deletions and insertions, as few as there can be (Levenshtein 1966).
    pub errors: usize,
    /// Words of the text that was to be said, or its characters.
    pub words: usize,
    /// They are characters: at least half of the letters are of a script without spaces.
    pub by_characters: bool,
}

impl Errors {
    /// Compares what was `heard` with a `text`. `language`: of both (`en`), for their numbers.
    pub fn of(text: &str, heard: &str, language: &str) -> Errors {
        let [text, heard] = [text, heard].map(|text| plain(text, language));
        let letters = || text.chars().filter(|c| *c != ' ');
        let unspaced = letters().filter(|c| is_unspaced(*c)).count();
        let by_characters = unspaced > 0 && 2 * unspaced >= letters().count();
        let (errors, words) = if by_characters {
            let [text, heard] = [&text, &heard].map(|text| text.chars().filter(|c| *c != ' ').collect());
            let (text, heard): (Vec<char>, Vec<char>) = (text, heard);
            (edits(&text, &heard), text.len())
        } else {
            let [text, heard] = [&text, &heard].map(|text| text.split_whitespace().collect::<Vec<_>>());
            (edits(&text, &heard), text.len())
        };
        Errors { errors, words, by_characters }
    }

    /// Returns errors over words: 0 if all was heard, above 1 if more was heard than that.
    pub fn rate(&self) -> f64 {
        self.errors as f64 / self.words.max(1) as f64
    }
}

/// Of several texts: all errors over all words.
impl AddAssign for Errors {
    fn add_assign(&mut self, other: Errors) {
        self.errors += other.errors;
        self.words += other.words;
        self.by_characters |= other.by_characters;
    }
}

/// Returns a text as it is compared.
fn plain(text: &str, language: &str) -> String {
    let mut normal = NormalizedString::from(text);
    normal.nfkc();
    let text = normal.get();
    let has_numbers = text.contains(|c: char| c.is_ascii_digit());
    let said = match language {
        // A number that has no words stays as it is.
        "en" if has_numbers => english_numbers(text).ok(),
        "zh" | "yue" if has_numbers => chinese_numbers(text).ok(),
        _ => None,
    };
    let text = said.as_deref().unwrap_or(text);
    let kept = text.chars().filter(|c| !matches!(c, '\'' | '’')).flat_map(char::to_lowercase);
    kept.map(|c| if is_of_word(c) { c } else { ' ' }).collect()
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || (!c.is_ascii() && MARK.is_match(c.encode_utf8(&mut [0; 4])))
}

/// Returns whether a character is of a script that puts no spaces between words: Han, kana, Thai, Lao, Burmese, Khmer.
fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{0e00}'..='\u{0eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{30ff}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

/// Returns the fewest edits between two sequences, a row of the table at a time.
fn edits<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let other = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], other);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, heard: &str, language: &str) -> (usize, usize, bool) {
        let Errors { errors, words, by_characters } = Errors::of(text, heard, language);
        (errors, words, by_characters)
    }

    #[test]
    fn words_are_compared_as_they_are_said() {
        for (text, heard, language, errors, words) in [
            ("The red house.", "the RED house", "en", 0, 3),
            ("The red house.", "the bed house", "en", 1, 3),
            ("The red house.", "the house", "en", 1, 3),
            ("The red house.", "the big red house", "en", 1, 3),
            ("The red house.", "", "en", 3, 3),
            ("Hello.", "thank you for watching", "en", 4, 1),
            ("Don’t stop - it's well-known", "dont stop, its well known!", "en", 0, 5),
            ("I have 21 cats.", "I have twenty-one cats", "en", 0, 5),
            ("21 Katzen", "einundzwanzig Katzen", "de", 1, 2),
            ("Cafe\u{301} Ⅳ", "café iv", "fr", 0, 2),
            // A virama joins letters.
            ("नमस्ते दुनिया", "नमस्ते", "hi", 1, 2),
            ("?!", "word", "en", 1, 0),
        ] {
            assert_eq!(of(text, heard, language), (errors, words, false), "{text}: {heard}");
        }
        assert!((Errors::of("Hello.", "thank you for watching", "en").rate() - 4.0).abs() < 1e-12);
    }

    #[test]
    fn scripts_without_spaces_are_compared_by_characters() {
        for (text, heard, language, errors, words) in [
            ("你好，世界。", "你好 世界", "zh", 0, 4),
            ("你好，世界。", "你号世", "zh", 2, 4),
            ("你好，世界。", "", "zh", 4, 4),
            ("我有12本书", "我有十二本书", "zh", 0, 6),
            ("ＡＢ你好", "ab你好", "zh", 0, 4),
            ("こんにちは", "こんにちわ", "ja", 1, 5),
        ] {
            assert_eq!(of(text, heard, language), (errors, words, true), "{text}: {heard}");
        }
        // What is heard does not decide.
        assert_eq!(of("good morning", "你好", "zh"), (2, 2, false));
    }

    #[test]
    fn several_texts_are_all_errors_over_all_words() {
        let mut all = Errors::of("a b c", "a b c", "en");
        all += Errors::of("d", "e", "en");
        assert!((all.rate() - 0.25).abs() < 1e-12);
    }

    /// Against the definition, by recursion.
    #[test]
    fn edits_are_the_fewest() {
        fn fewest(a: &[u8], b: &[u8]) -> usize {
            match (a, b) {
                ([], rest) | (rest, []) => rest.len(),
                ([x, a @ ..], [y, b @ ..]) if x == y => fewest(a, b),
                ([_, c @ ..], [_, d @ ..]) => 1 + fewest(c, d).min(fewest(a, d)).min(fewest(c, b)),
            }
        }
        arbtest::arbtest(|u| {
            let mut some = || -> arbtest::arbitrary::Result<Vec<u8>> {
                (0..u.int_in_range(0..=6)?).map(|_| u.int_in_range(0..=2)).collect()
            };
            let (a, b) = (some()?, some()?);
            assert_eq!(edits(&a, &b), fewest(&a, &b));
            Ok(())
        });
    }
}
