//! The package's `convert_char_to_pinyin`: Chinese to syllables with tone numbers, everything else to characters.
//!
//! The package cuts text with rjieba, a binding of the `jieba-rs` crate that is used here too, and reads Chinese segments
//! with pypinyin (`lazy_pinyin`, style TONE3, tone sandhi). pypinyin cuts a segment once more into the longest phrases it
//! knows (its `mmseg`), reads a phrase by its table or character by character, and changes third tones, 不 and 一 within
//! the phrase. No maintained crate has its phrases, so its tables are in `data/` (see `data/NOTICE`). Characters that
//! pypinyin has no reading for stay as they are, as in the package, and then count as unknown tokens.

use std::collections::HashMap;
use std::sync::OnceLock;

use jieba_rs::Jieba;

/// Changes whenever the tokens of some text may change.
pub(super) const VERSION: &str = "jieba-rs 0.11 pypinyin 0.55";

static CHARS: &str = include_str!("../../data/pinyin_chars.txt");
static PHRASES: &str = include_str!("../../data/pinyin_phrases.txt");

/// Splits text into the package's tokens. The dictionaries are loaded at first use.
#[derive(Default)]
pub(super) struct Segmenter {
    jieba: OnceLock<Jieba>,
    readings: OnceLock<Readings>,
}

impl Segmenter {
    pub(super) fn tokens(&self, text: &str) -> Vec<String> {
        let text: String = text
            .chars()
            .map(|c| match c {
                ';' => ',',
                '“' | '”' => '"',
                '‘' | '’' => '\'',
                c => c,
            })
            .collect();
        let mut out: Vec<String> = Vec::new();
        for token in self.jieba.get_or_init(Jieba::new).cut(&text, true) {
            let segment = token.word;
            if segment.is_ascii() {
                let glued = out.last().is_some_and(|last| !matches!(last.as_str(), " " | ":" | "'" | "\""));
                if segment.len() > 1 && glued {
                    out.push(" ".into());
                }
                out.extend(segment.chars().map(String::from));
            } else if segment.len() == 3 * segment.chars().count() {
                // The package's test for "pure east asian"; other mixtures that it lets through are read alike.
                let syllables = self.readings().segment(segment);
                for (c, syllable) in segment.chars().zip(syllables) {
                    if is_chinese(c) {
                        out.push(" ".into());
                    }
                    out.push(syllable);
                }
            } else {
                for c in segment.chars() {
                    if is_chinese(c) {
                        out.push(" ".into());
                        out.extend(self.readings().segment(c.encode_utf8(&mut [0; 4])));
                    } else {
                        out.push(c.into());
                    }
                }
            }
        }
        out
    }

    fn readings(&self) -> &Readings {
        self.readings.get_or_init(Readings::new)
    }
}

/// Returns whether a character is in the package's range of "common Chinese characters".
fn is_chinese(c: char) -> bool {
    ('\u{3100}'..='\u{9fff}').contains(&c)
}

/// Chinese texts in syllables with tone numbers, 5 for the neutral one, without spaces: pypinyin's `pinyin` in style TONE3 with
/// `neutral_tone_with_five`, joined. The dictionary is loaded at first use.
#[derive(Default)]
pub struct Syllables {
    readings: OnceLock<Readings>,
}

impl Syllables {
    /// Returns a text with its Chinese characters read; the rest stays. A character without a reading stays too, with a 5 after it, as
    /// there.
    pub fn read(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let end = rest.find(|other| is_han(other) != is_han(c)).unwrap_or(rest.len());
            let (run, after) = rest.split_at(end);
            rest = after;
            if !is_han(c) {
                out.push_str(run);
                continue;
            }
            let readings = self.readings.get_or_init(Readings::new);
            for syllable in readings.words(run).flat_map(|(_, syllables)| syllables) {
                out.push_str(&syllable);
                if tone(&syllable).is_none() {
                    out.push('5');
                }
            }
        }
        out
    }
}

/// Returns whether pypinyin takes a character for Chinese (its `RE_HANS`).
fn is_han(c: char) -> bool {
    matches!(c, '\u{3007}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{e815}'..='\u{e864}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2a6df}' | '\u{2a703}'..='\u{2b81d}' | '\u{2b825}'..='\u{2bf6e}'
        | '\u{2c029}'..='\u{2ce93}' | '\u{2d016}' | '\u{2d11b}'..='\u{2ebd9}' | '\u{2f80a}'..='\u{2fa1f}'
        | '\u{30000}'..='\u{31288}' | '\u{31350}'..='\u{32389}')
}

/// pypinyin's tables.
struct Readings {
    chars: HashMap<char, &'static str>,
    /// Phrases in the order of their code points, which is that of their UTF-8.
    phrases: Vec<Phrase>,
}

struct Phrase {
    text: &'static str,
    /// Syllables separated by spaces; empty if they are the characters' first readings.
    readings: &'static str,
}

impl Readings {
    fn new() -> Self {
        let mut chars = HashMap::new();
        for line in CHARS.lines() {
            if let Some((syllable, of)) = line.split_once(' ') {
                chars.extend(of.chars().map(|c| (c, syllable)));
            }
        }
        let phrases = PHRASES
            .lines()
            .map(|line| {
                let (text, readings) = line.split_once('\t').unwrap_or((line, ""));
                Phrase { text, readings }
            })
            .collect();
        Self { chars, phrases }
    }

    /// Returns one token per character of a segment, after tone sandhi.
    fn segment(&self, segment: &str) -> Vec<String> {
        let mut out = Vec::new();
        for (word, mut syllables) in self.words(segment) {
            third_tones(&mut syllables);
            before_fourth(word, &mut syllables, '不', "4");
            before_fourth(word, &mut syllables, '一', "1");
            out.append(&mut syllables);
        }
        out
    }

    /// Returns the words of a segment, each with one token per character.
    fn words<'a>(&'a self, segment: &'a str) -> impl Iterator<Item = (&'a str, Vec<String>)> {
        let mut rest = segment;
        let mut single = false;
        std::iter::from_fn(move || {
            let first = rest.chars().next()?.len_utf8();
            let (word, known) =
                if single { (&rest[..first], None) } else { self.longest_phrase(rest, &mut single) };
            rest = &rest[word.len()..];
            let syllables = match known {
                Some(phrase) if !phrase.readings.is_empty() => {
                    phrase.readings.split(' ').map(String::from).collect()
                }
                _ => word
                    .chars()
                    .map(|c| self.chars.get(&c).map_or_else(|| c.into(), |s| (*s).to_owned()))
                    .collect(),
            };
            Some((word, syllables))
        })
    }

    /// pypinyin's `mmseg`: the longest phrase at the start of `text`, or else its first character.
    ///
    /// As there, the end of a text that begins a phrase without being one (书不尽 of 书不尽言) is cut into characters
    /// to its end, even if a phrase begins within it: then there are `single` characters to come.
    fn longest_phrase<'a>(&self, text: &'a str, single: &mut bool) -> (&'a str, Option<&Phrase>) {
        let first = text.chars().next().map_or(0, char::len_utf8);
        let mut found = (&text[..first], None);
        for (at, c) in text.char_indices() {
            let prefix = &text[..at + c.len_utf8()];
            let place = self.phrases.partition_point(|p| p.text < prefix);
            match self.phrases.get(place) {
                Some(phrase) if phrase.text == prefix => found = (prefix, Some(phrase)),
                Some(phrase) if phrase.text.starts_with(prefix) => {}
                _ => return found,
            }
        }
        *single = found.1.is_none();
        found
    }
}

fn tone(syllable: &str) -> Option<char> {
    syllable.chars().last().filter(char::is_ascii_digit)
}

fn set_tone(syllable: &mut String, tone: &str) {
    if self::tone(syllable).is_some() {
        syllable.pop();
        syllable.push_str(tone);
    }
}

/// pypinyin's `_third_tone`: of the third tones that end the phrase in a row (two: the phrase's first third tone; more:
/// all but the last), each but the last becomes second.
fn third_tones(syllables: &mut [String]) {
    let is_third = |s: &String| tone(s) == Some('3');
    let row = syllables.iter().rev().take_while(|s| is_third(s)).count();
    if row < 2 {
        return;
    }
    for syllable in syllables.iter_mut().filter(|s| is_third(s)).take(row - 1) {
        set_tone(syllable, "2");
    }
}

/// pypinyin's `_bu` and `_yi`: second tone before a fourth, fourth before any other, `alone` at the end of the phrase.
fn before_fourth(word: &str, syllables: &mut [String], which: char, alone: &str) {
    for (i, c) in word.chars().enumerate() {
        if c != which {
            continue;
        }
        match syllables.get(i + 1).map(|next| tone(next)) {
            Some(Some('4')) => {
                if tone(&syllables[i]) == Some('4') {
                    set_tone(&mut syllables[i], "2");
                }
            }
            Some(_) => set_tone(&mut syllables[i], "4"),
            None => set_tone(&mut syllables[i], alone),
        }
    }
}
