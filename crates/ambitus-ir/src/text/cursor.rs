//! The lines of a text, and places in them.

use super::is_plain_char;
use crate::program::ValueId;
use crate::tensor::{DType, Shape, TensorType};
use thiserror::Error;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}, column {column}: {message}")]
pub struct TextError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// Bounds elements, so that no count or size overflows.
pub(super) fn check_size(ty: TensorType) -> Result<(), String> {
    let rows = ty.shape.iter().rev().skip(1).copied();
    let fits = Shape::is_bounded(ty.shape.iter().copied()) && Shape::is_bounded(rows.chain([ty.pitch]));
    if fits { Ok(()) } else { Err(format!("{ty} is too large")) }
}

/// Lines that hold something.
pub(super) struct Lines<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    last: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Lines<'a> {
        Lines { lines: text.lines().enumerate(), last: 0 }
    }

    pub(super) fn next(&mut self) -> Option<Cursor<'a>> {
        for (i, line) in self.lines.by_ref() {
            self.last = i;
            let mut c = Cursor { line, at: 0, number: i + 1 };
            c.blanks();
            if !c.rest().is_empty() && !c.rest().starts_with('#') {
                return Some(c);
            }
        }
        None
    }

    pub(super) fn end(&self, what: &str) -> TextError {
        let message = format!("the text ends where {what} is expected");
        TextError { line: self.last + 1, column: 1, message }
    }
}

/// A place in a line.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    line: &'a str,
    /// Bytes before the place.
    at: usize,
    /// Of the line, from 1.
    number: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    pub(super) fn error(&self, message: String) -> TextError {
        let column = self.line[..self.at].chars().count() + 1;
        TextError { line: self.number, column, message }
    }

    pub(super) fn expected(&self, what: &str) -> TextError {
        let found: String = self.rest().trim_start().chars().take(20).collect();
        let found = if found.is_empty() { "the line ends".to_owned() } else { format!("`{found}`") };
        self.error(format!("{what} is expected, found {found}"))
    }

    pub(super) fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a mark if it comes next.
    pub(super) fn mark(&mut self, mark: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(mark);
        if found {
            self.at += mark.len();
        }
        found
    }

    pub(super) fn want(&mut self, mark: &str) -> Result<(), TextError> {
        if self.mark(mark) { Ok(()) } else { Err(self.expected(&format!("`{mark}`"))) }
    }

    /// Takes a whole word if it comes next.
    pub(super) fn word(&mut self, word: &str) -> bool {
        self.blanks();
        let found = self.rest().strip_prefix(word).is_some_and(|after| !after.starts_with(is_plain_char));
        if found {
            self.at += word.len();
        }
        found
    }

    /// The end of the line.
    pub(super) fn done(&mut self) -> Result<(), TextError> {
        self.blanks();
        let rest = self.rest();
        if rest.is_empty() || rest.starts_with('#') {
            Ok(())
        } else {
            Err(self.expected("the end of the line"))
        }
    }

    /// Letters, digits and `_.~/:-`.
    pub(super) fn bare(&mut self) -> Result<&'a str, TextError> {
        self.blanks();
        let rest = self.rest();
        let end = rest.find(|c| !is_plain_char(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a name"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    pub(super) fn name(&mut self) -> Result<String, TextError> {
        if !self.mark("\"") {
            return Ok(self.bare()?.to_owned());
        }
        let mut name = String::new();
        loop {
            let Some(ch) = self.rest().chars().next() else {
                return Err(self.error("the name's closing quote is missing".to_owned()));
            };
            match ch {
                '"' => {
                    self.at += 1;
                    return Ok(name);
                }
                '\\' => name.push(self.escape()?),
                _ => {
                    self.at += ch.len_utf8();
                    name.push(ch);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, TextError> {
        let rest = &self.rest()[1..];
        if let Some(ch) = rest.chars().next().filter(|c| matches!(c, '"' | '\\')) {
            self.at += 2;
            return Ok(ch);
        }
        let code = rest.strip_prefix("u{").and_then(|r| r.split_once('}')).map(|(code, _)| code);
        let ch = code.and_then(|c| char::from_u32(u32::from_str_radix(c, 16).ok()?));
        let (Some(code), Some(ch)) = (code, ch) else {
            return Err(self.expected("`\\\"`, `\\\\` or `\\u{..}`"));
        };
        self.at += code.len() + 4;
        Ok(ch)
    }

    /// `%` and a number.
    pub(super) fn value(&mut self) -> Result<ValueId, TextError> {
        self.blanks();
        let start = self.clone();
        if !self.mark("%") {
            return Err(self.expected("a value such as %3"));
        }
        let digits = self.digits();
        let bad = |_| start.error(format!("`%{digits}` is not a value such as %3"));
        digits.parse().map(ValueId).map_err(bad)
    }

    fn digits(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// `f32[2,3]`, perhaps with a pitch: `f32[2,40]/48`.
    pub(super) fn ty(&mut self) -> Result<TensorType, TextError> {
        self.blanks();
        let start = self.clone();
        let dtype = self.bare().unwrap_or_default();
        let dtype: DType = dtype.parse().map_err(|why| start.error(why))?;
        let rest = self.rest();
        let end = rest.find(']').filter(|_| rest.starts_with('['));
        let end = end.ok_or_else(|| self.expected("a shape such as [2,3]"))?;
        let shape: Shape = rest[..=end].parse().map_err(|why| self.error(why))?;
        self.at += end + 1;
        let mut ty = TensorType::new(dtype, &shape);
        if self.rest().starts_with('/') {
            self.at += 1;
            let pitch = self.digits().parse().ok().filter(|p| *p >= shape.cols());
            ty.pitch = pitch.ok_or_else(|| start.error("the pitch is below a row".to_owned()))?;
        }
        check_size(ty).map_err(|why| start.error(why))?;
        Ok(ty)
    }

    /// `{name=value, ..}` or nothing.
    pub(super) fn attrs(&mut self) -> Result<Vec<(String, String)>, TextError> {
        let mut attrs: Vec<(String, String)> = Vec::new();
        if !self.mark("{") {
            return Ok(attrs);
        }
        loop {
            let start = self.clone();
            let name = self.bare()?.to_owned();
            if attrs.iter().any(|(n, _)| *n == name) {
                return Err(start.error(format!("attribute `{name}` is given twice")));
            }
            self.want("=")?;
            self.blanks();
            let rest = self.rest();
            let mut depth = 0;
            let end = rest.find(|c| {
                depth += i32::from(c == '[') - i32::from(c == ']');
                (depth == 0 && c == ',') || c == '}'
            });
            let end = end.ok_or_else(|| self.expected("`}`"))?;
            attrs.push((name, rest[..end].trim_end().to_owned()));
            self.at += end;
            if self.mark("}") {
                return Ok(attrs);
            }
            self.want(",")?;
        }
    }
}
