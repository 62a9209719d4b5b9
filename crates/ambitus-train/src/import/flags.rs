//! `--key value` as after a command: in a text (of one or many lines) or as words of our own command line.

use super::python::{Wrong, number};
use crate::recipe::Place;
use crate::recipe::tree::{Key, Node, Tree};

/// A word and where it stands.
pub(super) type Word = (String, Place);

/// The words of a text as a shell splits it: quotes, comments, lines joined by a backslash.
pub(super) fn words(text: &str) -> Result<Vec<Word>, Wrong> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote: Option<(char, Place)> = None;
    let mut place = Place { line: 1, column: 1 };
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let here = place;
        place = match c {
            '\n' => Place { line: here.line + 1, column: 1 },
            _ => Place { column: here.column + 1, ..here },
        };
        match (c, quote) {
            (c, Some((q, _))) if c == q => quote = None,
            ('\\', q) if q.is_none_or(|(q, _)| q == '"') => match chars.next() {
                Some('\n') => place = Place { line: here.line + 1, column: 1 },
                // Of a text with \r\n.
                Some('\r') => {}
                Some(c) => {
                    place.column += 1;
                    if quote.is_some() && !matches!(c, '"' | '\\' | '$' | '`') {
                        push(&mut word, here, Some('\\'));
                    }
                    push(&mut word, here, Some(c));
                }
                None => {}
            },
            (c, Some(_)) => push(&mut word, here, Some(c)),
            ('\'' | '"', None) => {
                push(&mut word, here, None);
                quote = Some((c, here));
            }
            ('#', None) if word.is_none() => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            (c, None) if c.is_whitespace() || c == '\u{feff}' => words.extend(word.take()),
            (c, None) => push(&mut word, here, Some(c)),
        }
    }
    if let Some((_, opened)) = quote {
        return Err((opened, "the quote is not closed".to_owned()));
    }
    words.extend(word);
    Ok(words)
}

/// Puts a character on the word, which begins here if there is none.
fn push(word: &mut Option<Word>, here: Place, c: Option<char>) {
    word.get_or_insert_with(|| (String::new(), here)).0.extend(c);
}

/// The flags among words. Words before the first are the command, a script's name (`train.py`) is nobody's value.
pub(super) fn parse(words: &[Word]) -> Vec<(Key, Tree)> {
    let mut found: Vec<(Key, Vec<Word>)> = Vec::new();
    let mut open = false;
    for (word, place) in words {
        if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some((value.to_owned(), *place))),
                None => (flag, None),
            };
            open = value.is_none();
            let key = Key { name: name.replace('-', "_"), place: *place };
            found.push((key, value.into_iter().collect()));
        } else if word.ends_with(".py") {
            open = false;
        } else if open && let Some((_, values)) = found.last_mut() {
            values.push((word.clone(), *place));
        }
    }
    let flag = |(key, mut values): (Key, Vec<Word>)| {
        let tree = match values.len() {
            0 => Tree { place: key.place, node: Node::Bool(true) },
            1 => leaf(values.remove(0)),
            _ => Tree { place: key.place, node: Node::List(values.into_iter().map(leaf).collect()) },
        };
        (key, tree)
    };
    found.into_iter().map(flag).collect()
}

fn leaf((text, place): Word) -> Tree {
    Tree { place, node: number(&text).unwrap_or(Node::Text(text)) }
}
