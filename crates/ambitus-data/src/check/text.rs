//! A clip's text: what a model cannot know how to say, and of which script it is.

use std::fmt;

use serde::Serialize;

use super::{Issue, Kind};
use crate::error::short;

/// Letters of a text that is wholly in capitals, at least: fewer may be an abbreviation.
const CAPITALS: usize = 12;

/// Scripts that are told apart. Chinese and Japanese are one: they share characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Script {
    Latin,
    Greek,
    Cyrillic,
    Hebrew,
    Arabic,
    Indic,
    Thai,
    Hangul,
    Han,
    Other,
}

impl Script {
    /// Returns that of a letter, by the blocks of Unicode.
    fn of(c: char) -> Script {
        match u32::from(c) {
            0x41..=0x24f | 0x1e00..=0x1eff | 0xff21..=0xff5a => Script::Latin,
            0x370..=0x3ff | 0x1f00..=0x1fff => Script::Greek,
            0x400..=0x52f => Script::Cyrillic,
            0x590..=0x5ff => Script::Hebrew,
            0x600..=0x77f | 0xfb50..=0xfdff | 0xfe70..=0xfefc => Script::Arabic,
            0x900..=0xdff => Script::Indic,
            0xe00..=0xe7f => Script::Thai,
            0x1100..=0x11ff | 0x3130..=0x318f | 0xac00..=0xd7a3 => Script::Hangul,
            0x3005..=0x30ff | 0x3400..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x323af => Script::Han,
            _ => Script::Other,
        }
    }

    /// Returns whether a character is a syllable or a word.
    pub(super) fn is_dense(self) -> bool {
        matches!(self, Script::Han | Script::Hangul)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Script::Latin => "Latin",
            Script::Greek => "Greek",
            Script::Cyrillic => "Cyrillic",
            Script::Hebrew => "Hebrew",
            Script::Arabic => "Arabic",
            Script::Indic => "Indic",
            Script::Thai => "Thai",
            Script::Hangul => "Korean",
            Script::Han => "Chinese or Japanese",
            Script::Other => "other",
        })
    }
}

/// What a text is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    /// Letters and digits.
    pub(super) characters: usize,
    /// Of most letters.
    pub(super) script: Option<Script>,
    /// Without case, spaces and punctuation.
    pub(super) key: Option<[u8; 32]>,
    /// The mark that ends it, of `.?!`; those of other scripts count as these.
    pub(super) ends: char,
}

/// Says what a text is, and what is wrong with it alone.
pub(super) fn look(text: &str) -> (Text, Vec<Issue>) {
    let mut hash = blake3::Hasher::new();
    let spoken = text.chars().filter(|c| c.is_alphanumeric());
    let mut characters = 0;
    for c in spoken.flat_map(char::to_lowercase) {
        hash.update(c.encode_utf8(&mut [0; 4]).as_bytes());
        characters += 1;
    }
    let letters = text.chars().filter(|c| c.is_alphabetic());
    let mut counts = std::collections::BTreeMap::<Script, usize>::new();
    letters.for_each(|c| *counts.entry(Script::of(c)).or_default() += 1);
    let script = counts.iter().max_by_key(|(script, n)| (**n, std::cmp::Reverse(**script)));
    let ends = match text.trim_end_matches(|c: char| "\"'”’»)」』 ".contains(c)).chars().last() {
        Some('?' | '？' | '؟') => '?',
        Some('!' | '！') => '!',
        _ => '.',
    };
    let text_is = Text {
        characters,
        script: script.map(|(script, _)| *script),
        key: (characters > 0).then(|| *hash.finalize().as_bytes()),
        ends,
    };
    let issues = issues(text, characters);
    (text_is, issues)
}

fn issues(text: &str, characters: usize) -> Vec<Issue> {
    let mut issues = Vec::new();
    if characters == 0 {
        issues.push(Issue::new(Kind::Empty, "its text has no letter"));
    }
    let quoted = |part: &str| format!("\"{}\"", short(part));
    if let Some(word) = text.split_whitespace().find(|word| word.chars().any(char::is_numeric)) {
        issues.push(Issue::new(Kind::Digits, format!("{}: write it as it is said", quoted(word))));
    }
    if let Some(says) = symbol(text) {
        issues.push(Issue::new(Kind::Symbols, says));
    }
    let [small, large] =
        [char::is_lowercase, char::is_uppercase].map(|is| text.chars().filter(|c| is(*c)).count());
    if small == 0 && large >= CAPITALS {
        issues.push(Issue::new(Kind::Capitals, "all in capitals: a model may spell it"));
    }
    let mixed = text.split(|c: char| !c.is_alphabetic()).find(|word| of_two(word));
    if let Some(word) = mixed {
        let says = format!("{} has letters of two scripts that look alike", quoted(word));
        issues.push(Issue::new(Kind::Script, says));
    }
    issues
}

/// Returns whether a word has letters of two scripts of which some look alike.
fn of_two(word: &str) -> bool {
    let mut known = word.chars().map(Script::of);
    let alike = |script: &Script| matches!(script, Script::Latin | Script::Greek | Script::Cyrillic);
    let first = known.find(alike);
    first.is_some() && known.any(|script| alike(&script) && Some(script) != first)
}

/// Returns what is in a text that is no letter, mark or punctuation of speech.
fn symbol(text: &str) -> Option<String> {
    let address = |word: &&str| {
        let word = word.to_lowercase();
        word.contains("://")
            || word.starts_with("www.")
            || word.split_once('@').is_some_and(|(_, host)| host.contains('.'))
    };
    if let Some(word) = text.split_whitespace().find(address) {
        return Some(format!("\"{}\": an address: write it as it is said", short(word)));
    }
    text.chars().find_map(|c| match c {
        '[' | ']' | '(' | ')' | '{' | '}' | '<' | '>' | '［' | '］' | '（' | '）' | '【' | '】' | '＜' | '＞' => {
            Some(format!("'{c}': is what is in brackets said?"))
        }
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fffd}'
            // Joiners are letters' own in these scripts.
            if !(matches!(c, '\u{200c}' | '\u{200d}') && text.chars().any(|c| matches!(Script::of(c), Script::Arabic | Script::Indic))) =>
        {
            Some(format!("an invisible character (U+{:04X}): take it out", u32::from(c)))
        }
        _ if c.is_control() => Some(format!("a control character (U+{:04X}): take it out", u32::from(c))),
        '%' | '&' | '$' | '€' | '£' | '¥' | '¢' | '@' | '#' | '+' | '=' | '*' | '/' | '\\' | '^' | '_' | '|' | '~' | '`' | '°' | '§'
        | '©' | '®' | '™' | '×' | '÷' | '％' | '＆' | '＄' | '＠' | '＃' => {
            Some(format!("'{c}': write it as it is said"))
        }
        '\u{2190}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}' => Some(format!("'{c}': it is not said: take it out")),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        look(text).1.iter().map(|issue| issue.kind).collect()
    }

    #[test]
    fn what_is_not_said_as_it_is_written() {
        for plain in [
            "It's time - isn't it? “Yes,” she said; no…",
            "Où est-elle ? Là-bas !",
            "你好，世界。",
            "Ещё раз.",
            "می‌خواهم",
        ] {
            assert_eq!(kinds(plain), [], "{plain}");
        }
        for (text, kind) in [
            ("It is 5 o'clock.", Kind::Digits),
            ("٣ again", Kind::Digits),
            ("fish & chips", Kind::Symbols),
            ("see www.example.org now", Kind::Symbols),
            ("write to me@example.org", Kind::Symbols),
            ("well [laughs] no", Kind::Symbols),
            ("zero\u{200b}width", Kind::Symbols),
            ("a smile 🙂", Kind::Symbols),
            ("THIS IS ALL SHOUTED", Kind::Capitals),
            ("a Сat sat", Kind::Script),
            ("…?!", Kind::Empty),
        ] {
            assert_eq!(kinds(text), [kind], "{text}");
        }
        assert_eq!(kinds("NASA's 3 %"), [Kind::Digits, Kind::Symbols]);
    }

    #[test]
    fn texts_are_compared_by_what_is_said() {
        let key = |text| look(text).0.key;
        assert_eq!(key("Good morning, all."), key("good  MORNING all"));
        assert_ne!(key("Good morning"), key("Good mornings"));
        assert_eq!(key(" ."), None);
        assert_eq!((look("Wirklich?“").0.ends, look("好！").0.ends, look("Ja").0.ends), ('.', '!', '.'));
        assert_eq!((look("Really?\"").0.ends, look("你好 OK").0.script), ('?', Some(Script::Latin)));
    }
}
