//! Keyword arguments as they stand in Python source: literals are read, nothing is run.
//!
//! ```python
//! args = TrainingArguments(
//!     fsdp="full_shard auto_wrap",   # read
//!     num_train_epochs=epochs,       # a name: said, not known
//! )
//! ```
//!
//! Read are calls, `key=value` lines (with or without a type: `args: TrainingArguments = …`) or lists, and between them
//! imports and comments. `args = {…}` stands for the keys in it. Of calls inside a value, `dict(…)` is a value and one with a
//! capital letter (a class) has its own arguments read; whatever else is not a literal stays text ([`Node::Code`]).

use super::keys;
use crate::recipe::Place;
use crate::recipe::tree::{Key, Node, Tree};

/// Deepest nesting of values.
const MAX_DEPTH: usize = 16;
/// The most values of a text.
const MAX_VALUES: usize = 20_000;
/// What ends or separates values.
const ENDS: &[char] = &[',', ')', ']', '}', ':', ';', '#', '\n'];

/// What is wrong, and where.
pub(super) type Wrong = (Place, String);

/// Returns all keyword arguments of a text, in order.
pub(super) fn parse(text: &str) -> Result<Vec<(Key, Tree)>, Wrong> {
    let mut p = Parser { chars: text.chars().collect(), at: 0, place: START, values: 0, found: Vec::new() };
    p.statements()?;
    Ok(p.found)
}

const START: Place = Place { line: 1, column: 1 };

struct Parser {
    chars: Vec<char>,
    at: usize,
    place: Place,
    values: usize,
    found: Vec<(Key, Tree)>,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        self.place = match c {
            '\n' => Place { line: self.place.line + 1, column: 1 },
            _ => Place { column: self.place.column + 1, ..self.place },
        };
        Some(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let here = self.peek() == Some(c);
        if here {
            self.next();
        }
        here
    }

    fn wrong<T>(&self, why: impl Into<String>) -> Result<T, Wrong> {
        Err((self.place, why.into()))
    }

    /// Skips spaces, joined lines, comments, and with `lines` ends of lines.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '\\' if matches!(self.peek_at(1), Some('\n' | '\r')) => {
                    self.next();
                    while self.peek().is_some_and(|c| c == '\r') {
                        self.next();
                    }
                    self.next();
                }
                '\n' if !lines => return,
                c if c.is_whitespace() || c == '\u{feff}' => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    /// Returns a name, with dots.
    fn name(&mut self) -> Option<Key> {
        let place = self.place;
        if !self.peek().is_some_and(|c| c.is_alphabetic() || c == '_') {
            return None;
        }
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_alphanumeric() || *c == '_' || *c == '.') {
            name.push(c);
            self.next();
        }
        Some(Key { name, place })
    }

    fn statements(&mut self) -> Result<(), Wrong> {
        loop {
            self.space(true);
            match self.peek() {
                None => return Ok(()),
                Some(',' | ';') => {
                    self.next();
                    continue;
                }
                _ => {}
            }
            let Some(name) = self.name() else {
                return self.wrong(format!(
                    "`{}` begins no keyword argument: only key=value, calls such as TrainingArguments(…), imports and \
                     comments are read",
                    self.peek().unwrap_or(' ')
                ));
            };
            if matches!(name.name.as_str(), "import" | "from") {
                self.expression(false)?;
                while self.eat(',') {
                    self.expression(false)?;
                }
                continue;
            }
            self.space(false);
            if self.peek() == Some(':') {
                self.annotation();
            }
            match self.peek() {
                Some('(') => self.call(&name.name, 0)?,
                Some('=') if self.peek_at(1) != Some('=') => {
                    self.next();
                    let before = self.found.len();
                    self.argument(name, 0, false)?;
                    self.keys_of_variable(before);
                }
                _ => {
                    return Err((
                        name.place,
                        format!(
                            "`{}` is no keyword argument: only key=value, calls such as TrainingArguments(…), imports \
                             and comments are read, and nothing is run",
                            name.name
                        ),
                    ));
                }
            }
        }
    }

    /// Skips a type, up to the `=` behind it.
    fn annotation(&mut self) {
        let mut open = 0_usize;
        while let Some(c) = self.peek().filter(|c| open > 0 || !matches!(c, '=' | '\n' | '#')) {
            match c {
                '[' | '(' => open += 1,
                ']' | ')' => open = open.saturating_sub(1),
                _ => {}
            }
            self.next();
        }
    }

    /// Replaces `args = {…}`, found last, by what it holds; a section keeps its name.
    fn keys_of_variable(&mut self, before: usize) {
        match &mut self.found[before..] {
            [(key, Tree { node: Node::Map(entries), .. })]
                if keys::find("", &key.name).is_none()
                    && !keys::is_section(&key.name)
                    && !entries.is_empty() =>
            {
                let entries = std::mem::take(entries);
                self.found.truncate(before);
                self.found.extend(entries);
            }
            _ => {}
        }
    }

    /// Reads a call from the opening bracket to the closing one.
    fn call(&mut self, of: &str, depth: usize) -> Result<(), Wrong> {
        let opened = self.place;
        self.next();
        let mut position = 0;
        loop {
            self.space(true);
            if self.eat(')') {
                return Ok(());
            }
            if self.eat(',') {
                continue;
            }
            if self.peek().is_none() {
                return Err((opened, format!("the bracket of {of}( is not closed")));
            }
            let (start, place) = (self.at, self.place);
            if let Some(name) = self.name() {
                self.space(true);
                if self.peek() == Some('=') && self.peek_at(1) != Some('=') {
                    self.next();
                    self.argument(name, depth, true)?;
                    continue;
                }
                (self.at, self.place) = (start, place);
            }
            position += 1;
            let code = self.expression(true)?;
            if code.is_empty() {
                return self.wrong(format!("`{}` does not belong here", self.peek().unwrap_or(' ')));
            }
            let name = format!("{of}(argument {position})");
            self.found.push((Key { name, place }, Tree { place, node: Node::Code(code) }));
        }
    }

    /// Reads what stands behind `key=`.
    fn argument(&mut self, key: Key, depth: usize, inside: bool) -> Result<(), Wrong> {
        self.space(inside);
        let (start, place) = (self.at, self.place);
        if let Some(class) = self.name() {
            let last = class.name.rsplit('.').next().unwrap_or_default();
            if self.peek() == Some('(') && last.starts_with(char::is_uppercase) {
                if depth >= MAX_DEPTH {
                    return self.wrong("is nested deeper than any arguments");
                }
                return self.call(&class.name, depth + 1);
            }
            (self.at, self.place) = (start, place);
        }
        let value = self.value(depth, inside)?;
        self.found.push((key, value));
        Ok(())
    }

    /// Returns a literal, or the text of what is none.
    fn value(&mut self, depth: usize, inside: bool) -> Result<Tree, Wrong> {
        self.values += 1;
        if depth >= MAX_DEPTH || self.values > MAX_VALUES {
            return self.wrong("is nested deeper, or has more values, than any arguments");
        }
        self.space(inside);
        let (start, place) = (self.at, self.place);
        if let Some(node) = self.literal(depth, inside)? {
            self.space(inside);
            if self.peek().is_none_or(|c| ENDS.contains(&c)) {
                return Ok(Tree { place, node });
            }
            // `2 * 4`, `1 if x else 2`.
        }
        (self.at, self.place) = (start, place);
        let code = self.expression(inside)?;
        if code.is_empty() {
            return Err((place, "the value is missing".to_owned()));
        }
        Ok(Tree { place, node: Node::Code(code) })
    }

    fn literal(&mut self, depth: usize, inside: bool) -> Result<Option<Node>, Wrong> {
        let Some(c) = self.peek() else { return Ok(None) };
        let node = match c {
            '[' => self.items(']', depth)?,
            '(' => self.tuple(depth)?,
            '{' => self.dict(depth)?,
            '\'' | '"' => self.text(inside)?,
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => {
                let Some(Key { name, .. }) = self.name() else { return Ok(None) };
                match (name.as_str(), self.peek()) {
                    ("None", _) => Some(Node::Null),
                    ("True", _) => Some(Node::Bool(true)),
                    ("False", _) => Some(Node::Bool(false)),
                    ("dict", Some('(')) => {
                        let before = self.found.len();
                        if depth + 1 >= MAX_DEPTH {
                            return self.wrong("is nested deeper than any arguments");
                        }
                        self.call("dict", depth + 1)?;
                        Some(Node::Map(self.found.split_off(before)))
                    }
                    ("r" | "R" | "b" | "B" | "u" | "U", Some('\'' | '"')) => {
                        let raw = name.eq_ignore_ascii_case("r");
                        self.quoted(raw)?.map(Node::Text)
                    }
                    _ => None,
                }
            }
        };
        Ok(node)
    }

    fn items(&mut self, close: char, depth: usize) -> Result<Option<Node>, Wrong> {
        let opened = self.place;
        self.next();
        let mut items = Vec::new();
        loop {
            self.space(true);
            if self.eat(close) {
                return Ok(Some(Node::List(items)));
            }
            match self.peek() {
                None => return Err((opened, "the bracket is not closed".to_owned())),
                Some(',') if !items.is_empty() => {
                    self.next();
                }
                Some(_) => {
                    items.push(self.value(depth + 1, true)?);
                    self.space(true);
                    if !matches!(self.peek(), Some(',')) && self.peek() != Some(close) {
                        return self.wrong(format!("expected `,` or `{close}`"));
                    }
                }
            }
        }
    }

    /// Reads a tuple: `(1, 2)` is a list, `(1)` is 1.
    fn tuple(&mut self, depth: usize) -> Result<Option<Node>, Wrong> {
        let start = self.at;
        let Some(Node::List(mut items)) = self.items(')', depth)? else { return Ok(None) };
        let comma =
            self.chars[start..self.at].iter().rev().skip(1).find(|c| !c.is_whitespace()) == Some(&',');
        match (items.len(), comma) {
            (1, false) => Ok(items.pop().map(|t| t.node)),
            _ => Ok(Some(Node::List(items))),
        }
    }

    /// `None` of a set, a comprehension, and what has other keys than texts: these are code.
    fn dict(&mut self, depth: usize) -> Result<Option<Node>, Wrong> {
        let opened = self.place;
        self.next();
        let mut items: Vec<(Key, Tree)> = Vec::new();
        loop {
            self.space(true);
            if self.eat('}') {
                return Ok(Some(Node::Map(items)));
            }
            if self.peek().is_none() {
                return Err((opened, "the bracket is not closed".to_owned()));
            }
            if self.peek() == Some(',') && !items.is_empty() {
                self.next();
                continue;
            }
            let key = self.value(depth + 1, true)?;
            let Node::Text(name) = key.node else { return Ok(None) };
            self.space(true);
            if !self.eat(':') {
                return Ok(None);
            }
            let value = self.value(depth + 1, true)?;
            items.push((Key { name, place: key.place }, value));
            self.space(true);
            if !matches!(self.peek(), Some(',' | '}')) {
                return self.wrong("expected `,` or `}`");
            }
        }
    }

    /// Neighbouring texts are one, as in Python.
    fn text(&mut self, inside: bool) -> Result<Option<Node>, Wrong> {
        let mut text = String::new();
        while matches!(self.peek(), Some('\'' | '"')) {
            let Some(part) = self.quoted(false)? else { return Ok(None) };
            text.push_str(&part);
            self.space(inside);
        }
        Ok(Some(Node::Text(text)))
    }

    fn quoted(&mut self, raw: bool) -> Result<Option<String>, Wrong> {
        let opened = self.place;
        let Some(quote) = self.next() else { return Ok(None) };
        let long = self.peek() == Some(quote) && self.peek_at(1) == Some(quote);
        if long {
            self.next();
            self.next();
        }
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err((opened, "the text is not closed".to_owned())),
                Some('\n') if !long => return Err((opened, "the text is not closed on its line".to_owned())),
                Some(c) if c == quote => {
                    if !long {
                        return Ok(Some(text));
                    }
                    if self.peek() == Some(quote) && self.peek_at(1) == Some(quote) {
                        self.next();
                        self.next();
                        return Ok(Some(text));
                    }
                    text.push(c);
                }
                Some('\\') => match self.next() {
                    None => return Err((opened, "the text is not closed".to_owned())),
                    Some(c) if raw => text.extend(['\\', c]),
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('\n') => {}
                    Some(c @ ('\\' | '\'' | '"')) => text.push(c),
                    // Others mean characters that no argument here needs: as they stand.
                    Some(c) => text.extend(['\\', c]),
                },
                Some(c) => text.push(c),
            }
        }
    }

    fn number(&mut self) -> Option<Node> {
        let mut digits = String::new();
        while let Some(c) = self.peek() {
            let sign = matches!(c, '-' | '+') && (digits.is_empty() || digits.ends_with(['e', 'E']));
            if !sign && !c.is_ascii_digit() && !matches!(c, '.' | 'e' | 'E' | '_') {
                break;
            }
            if c != '_' {
                digits.push(c);
            }
            self.next();
        }
        number(&digits)
    }

    /// Returns the text up to the end of what stands here, brackets and quotes balanced. The commas between a lambda's own
    /// arguments end nothing.
    fn expression(&mut self, inside: bool) -> Result<String, Wrong> {
        let opened = self.place;
        let start = self.at;
        let mut open = Vec::new();
        while let Some(c) = self.peek() {
            match c {
                c if c.is_alphabetic() || c == '_' => {
                    if self.name().is_some_and(|word| word.name == "lambda") {
                        open.push(':');
                    }
                    continue;
                }
                ':' if open.last() == Some(&':') => {
                    open.pop();
                }
                '\'' | '"' => {
                    self.quoted(false)?;
                    continue;
                }
                '#' => {
                    if open.is_empty() && !inside {
                        break;
                    }
                    self.space(false);
                    continue;
                }
                '(' => open.push(')'),
                '[' => open.push(']'),
                '{' => open.push('}'),
                ')' | ']' | '}' => match open.pop() {
                    None => break,
                    Some(expected) if expected != c => return self.wrong(format!("expected `{expected}`")),
                    Some(_) => {}
                },
                ',' if open.is_empty() => break,
                '\n' | ';' if open.is_empty() && !inside => break,
                _ => {}
            }
            self.next();
        }
        if !open.is_empty() {
            return Err((opened, "a bracket is not closed".to_owned()));
        }
        let text: String = self.chars[start..self.at].iter().collect();
        Ok(text.trim().to_owned())
    }
}

/// Returns a number as YAML, JSON and Python write it, without its underscores.
pub(super) fn number(text: &str) -> Option<Node> {
    if let Ok(n) = text.parse::<i64>() {
        return Some(Node::Whole(n.into()));
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    text.parse::<f64>().ok().filter(|x| plain && x.is_finite()).map(Node::Real)
}
