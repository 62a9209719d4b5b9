//! Numbers in words, as the cleaners of speech models write them before a text is spelled in subwords.

mod chinese;
mod english;
mod expand;

pub use chinese::chinese_numbers;
pub use expand::english_numbers;

use regex::{Captures, Regex};
use std::sync::LazyLock;

/// Returns whether a character belongs to a word for Python's expressions: a letter or number of any script, or `_`. Marks do not,
/// unlike for the package of expressions that is used here.
pub fn is_word(c: char) -> bool {
    static WORD: LazyLock<Regex> = LazyLock::new(|| expression(r"[\p{L}\p{N}_]"));
    if c.is_ascii() {
        c.is_ascii_alphanumeric() || c == '_'
    } else {
        WORD.is_match(c.encode_utf8(&mut [0; 4]))
    }
}

/// Returns whether a character is a decimal digit of any script.
pub fn is_digit(c: char) -> bool {
    static DIGIT: LazyLock<Regex> = LazyLock::new(|| expression(r"\d"));
    if c.is_ascii() { c.is_ascii_digit() } else { DIGIT.is_match(c.encode_utf8(&mut [0; 4])) }
}

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the expressions of this module are sound")
}

/// Puts what `word` says in place of every match, from left to right.
fn substitute(
    pattern: &Regex,
    text: &str,
    mut word: impl FnMut(&Captures<'_>) -> Result<String, String>,
) -> Result<String, String> {
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    for found in pattern.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        out.push_str(&text[done..whole.start()]);
        out.push_str(&word(&found)?);
        done = whole.end();
    }
    out.push_str(&text[done..]);
    Ok(out)
}
