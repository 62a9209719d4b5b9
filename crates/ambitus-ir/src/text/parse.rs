//! Parsing: line by line, with a cursor in the line.

use super::is_plain_char;
use crate::ops::Op;
use crate::program::{
    Input, Instr, Origin, Output, Phase, Program, Session, StateDecl, StateId, StateKind, StateUse,
    ValueId,
};
use crate::tensor::{DType, Shape, TensorType};
use std::collections::{HashMap, HashSet};
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

/// Reads the text of a session.
///
/// # Errors
/// The first thing that is not as [`super::print_session`] prints it: syntax, unknown ops, attributes, states or values,
/// names or values defined twice, results of other types than the op infers.
pub fn parse(text: &str) -> Result<Session, TextError> {
    let mut lines = Lines::new(text);
    let mut session = Session::default();
    let mut states = HashMap::new();
    let mut names = HashSet::new();
    while let Some(mut c) = lines.next() {
        if c.word("state") {
            c.blanks();
            let start = c.clone();
            let decl = state_decl(&mut c)?;
            let id = StateId(session.states.len() as u32);
            if states.insert(decl.name.clone(), id).is_some() {
                return Err(start.error(format!("state `{}` is declared twice", decl.name)));
            }
            session.states.push(decl);
        } else if c.word("program") {
            let p = program(&mut lines, c, &session, &states)?;
            if !names.insert(p.0.name.clone()) {
                return Err(p
                    .1
                    .error(format!("program `{}` is defined twice", p.0.name)));
            }
            session.programs.push(p.0);
        } else {
            return Err(c.expected("`state` or `program`"));
        }
    }
    Ok(session)
}

/// Reads the text of one program over the states of a session.
///
/// # Errors
/// As [`parse`]; also when something follows the program.
pub fn parse_program(session: &Session, text: &str) -> Result<Program, TextError> {
    let names = session.states.iter().enumerate();
    let states = names
        .map(|(i, s)| (s.name.clone(), StateId(i as u32)))
        .collect();
    let mut lines = Lines::new(text);
    let Some(mut c) = lines.next() else {
        return Err(lines.end("`program`"));
    };
    if !c.word("program") {
        return Err(c.expected("`program`"));
    }
    let (p, _) = program(&mut lines, c, session, &states)?;
    match lines.next() {
        None => Ok(p),
        Some(c) => Err(c.expected("nothing after the program")),
    }
}

fn state_decl(c: &mut Cursor<'_>) -> Result<StateDecl, TextError> {
    let name = c.name()?;
    c.want("=")?;
    let kind = StateKind::ALL.into_iter().find(|(_, n)| c.word(n));
    let Some((kind, _)) = kind else {
        return Err(c.expected("a kind of state"));
    };
    let ty = c.ty()?;
    let trainable = c.word("trainable");
    c.done()?;
    Ok(StateDecl {
        name,
        ty,
        kind,
        trainable,
    })
}

/// The rest of a program after its first word; also the cursor at its name.
fn program<'a>(
    lines: &mut Lines<'a>,
    mut head: Cursor<'a>,
    session: &Session,
    states: &HashMap<String, StateId>,
) -> Result<(Program, Cursor<'a>), TextError> {
    head.blanks();
    let start = head.clone();
    let name = head.name()?;
    head.want("{")?;
    head.done()?;
    let mut reader = Reader {
        session,
        states,
        p: Program {
            name,
            ..Program::default()
        },
        types: HashMap::new(),
        used: HashMap::new(),
        inputs: HashSet::new(),
        outputs: HashSet::new(),
        highest: None,
    };
    loop {
        let Some(mut c) = lines.next() else {
            return Err(lines.end("`}`"));
        };
        if c.mark("}") {
            c.done()?;
            return Ok((reader.finish()?, start));
        }
        reader.line(&mut c)?;
        c.done()?;
    }
}

/// A program being read.
struct Reader<'s, 'a> {
    session: &'s Session,
    states: &'s HashMap<String, StateId>,
    p: Program,
    types: HashMap<ValueId, TensorType>,
    /// Place of a state in [`Program::states`].
    used: HashMap<StateId, usize>,
    inputs: HashSet<String>,
    outputs: HashSet<String>,
    /// The highest value, and where it is defined.
    highest: Option<(ValueId, Cursor<'a>)>,
}

impl<'a> Reader<'_, 'a> {
    fn line(&mut self, c: &mut Cursor<'a>) -> Result<(), TextError> {
        if c.word("state") {
            let place = self.state(c)?;
            if !c.word("leaves") {
                return Err(c.expected("`leaves`"));
            }
            let Some(&place) = self.used.get(&place) else {
                return Err(c.error("the state did not enter the program".to_owned()));
            };
            let (leaves, _) = self.known(c)?;
            self.p.states[place].leaves = leaves;
        } else if c.word("output") {
            let start = c.clone();
            let name = c.name()?;
            let (value, _) = self.known(c)?;
            if !self.outputs.insert(name.clone()) {
                return Err(start.error(format!("output `{name}` is named twice")));
            }
            self.p.outputs.push(Output { name, value });
        } else if c.word("unused") {
            let at = c.clone();
            let v = c.value()?;
            let ty = c.ty()?;
            self.define(at, v, ty)?;
        } else {
            self.definition(c)?;
        }
        Ok(())
    }

    fn definition(&mut self, c: &mut Cursor<'a>) -> Result<(), TextError> {
        let mut results = Vec::new();
        loop {
            c.blanks();
            let at = c.clone();
            if !c.rest().starts_with('%') {
                return Err(c.expected("a value, `state`, `output`, `unused` or `}`"));
            }
            results.push((at, c.value()?));
            if !c.mark(",") {
                break;
            }
        }
        c.want("=")?;
        c.blanks();
        let start = c.clone();
        let op = c.bare()?;
        if op != "input" && op != "state" {
            return self.instr(c, results, op, &start);
        }
        let [(at, v)] = results.as_slice() else {
            return Err(start.error(format!("`{op}` defines one value")));
        };
        if op == "state" {
            let state = self.state(c)?;
            let ty = self.session.states[state.index()].ty;
            self.define(at.clone(), *v, ty)?;
            if self.used.insert(state, self.p.states.len()).is_some() {
                return Err(start.error("the state enters twice".to_owned()));
            }
            self.p.states.push(StateUse {
                state,
                enters: *v,
                leaves: *v,
            });
        } else {
            let name = c.name()?;
            let ty = c.ty()?;
            self.define(at.clone(), *v, ty)?;
            if !self.inputs.insert(name.clone()) {
                return Err(start.error(format!("input `{name}` is named twice")));
            }
            self.p.inputs.push(Input { name, value: *v });
        }
        Ok(())
    }

    fn instr(
        &mut self,
        c: &mut Cursor<'a>,
        results: Vec<(Cursor<'a>, ValueId)>,
        name: &str,
        start: &Cursor<'a>,
    ) -> Result<(), TextError> {
        c.want("(")?;
        let (mut inputs, mut types) = (Vec::new(), Vec::new());
        if !c.mark(")") {
            loop {
                let (v, ty) = self.known(c)?;
                inputs.push(v);
                types.push(ty);
                if !c.mark(",") {
                    break;
                }
            }
            c.want(")")?;
        }
        let op = Op::read(name, c.attrs()?).map_err(|why| start.error(why))?;
        let made = op.def().infer(&types);
        let made = made.map_err(|why| start.error(format!("{name} on {types:?}: {why}")))?;
        if made.len() != results.len() {
            let (n, m) = (made.len(), results.len());
            return Err(start.error(format!("{name} has {n} results, {m} are named")));
        }
        c.want(":")?;
        for (i, ((at, v), inferred)) in results.iter().zip(made).enumerate() {
            if i > 0 {
                c.want(",")?;
            }
            c.blanks();
            let here = c.clone();
            let written = c.ty()?;
            if written != inferred {
                let why = format!("{v} is {inferred}, as {name} says, not {written}");
                return Err(here.error(why));
            }
            self.define(at.clone(), *v, inferred)?;
        }
        c.want("@")?;
        let path = c.name()?;
        let phase = Phase::ALL.into_iter().find(|(_, n)| c.word(n));
        let Some((phase, _)) = phase else {
            return Err(c.expected("a phase"));
        };
        let outputs = results.into_iter().map(|(_, v)| v).collect();
        self.p.instrs.push(Instr {
            op,
            inputs,
            outputs,
            origin: Origin { path, phase },
        });
        Ok(())
    }

    /// A state by name.
    fn state(&self, c: &mut Cursor<'a>) -> Result<StateId, TextError> {
        c.blanks();
        let start = c.clone();
        let name = c.name()?;
        let found = self.states.get(&name).copied();
        found.ok_or_else(|| start.error(format!("no state is named `{name}`")))
    }

    /// A value that is defined above, with its type.
    fn known(&self, c: &mut Cursor<'a>) -> Result<(ValueId, TensorType), TextError> {
        c.blanks();
        let start = c.clone();
        let v = c.value()?;
        let ty = self.types.get(&v).copied();
        Ok((
            v,
            ty.ok_or_else(|| start.error(format!("{v} is not defined above")))?,
        ))
    }

    fn define(&mut self, at: Cursor<'a>, v: ValueId, ty: TensorType) -> Result<(), TextError> {
        if let Err(why) = check_size(ty) {
            return Err(at.error(why));
        }
        if self.types.insert(v, ty).is_some() {
            return Err(at.error(format!("{v} is defined twice")));
        }
        if self.highest.as_ref().is_none_or(|(h, _)| v > *h) {
            self.highest = Some((v, at));
        }
        Ok(())
    }

    /// The program, its values numbered without gaps: so the text bounds the table of types.
    fn finish(mut self) -> Result<Program, TextError> {
        let count = self.types.len();
        if let Some((v, at)) = self.highest.filter(|(v, _)| v.index() >= count) {
            let why = format!(
                "{v} is too high: {count} values are defined, {} are missing",
                { v.index() + 1 - count }
            );
            return Err(at.error(why));
        }
        let mut types: Vec<(ValueId, TensorType)> = self.types.into_iter().collect();
        types.sort_unstable_by_key(|(v, _)| *v);
        self.p.types = types.into_iter().map(|(_, ty)| ty).collect();
        Ok(self.p)
    }
}

/// Bounds elements, so that no count or size overflows.
fn check_size(ty: TensorType) -> Result<(), String> {
    let rows = ty.shape.iter().rev().skip(1).copied();
    let fits =
        Shape::is_bounded(ty.shape.iter().copied()) && Shape::is_bounded(rows.chain([ty.pitch]));
    if fits {
        Ok(())
    } else {
        Err(format!("{ty} is too large"))
    }
}

/// Lines that hold something.
struct Lines<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    last: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Lines<'a> {
        Lines {
            lines: text.lines().enumerate(),
            last: 0,
        }
    }

    fn next(&mut self) -> Option<Cursor<'a>> {
        for (i, line) in self.lines.by_ref() {
            self.last = i;
            let mut c = Cursor {
                line,
                at: 0,
                number: i + 1,
            };
            c.blanks();
            if !c.rest().is_empty() && !c.rest().starts_with('#') {
                return Some(c);
            }
        }
        None
    }

    fn end(&self, what: &str) -> TextError {
        let message = format!("the text ends where {what} is expected");
        TextError {
            line: self.last + 1,
            column: 1,
            message,
        }
    }
}

/// A place in a line.
#[derive(Clone)]
struct Cursor<'a> {
    line: &'a str,
    /// Bytes before the place.
    at: usize,
    /// Of the line, from 1.
    number: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn error(&self, message: String) -> TextError {
        let column = self.line[..self.at].chars().count() + 1;
        TextError {
            line: self.number,
            column,
            message,
        }
    }

    fn expected(&self, what: &str) -> TextError {
        let found: String = self.rest().trim_start().chars().take(20).collect();
        let found = if found.is_empty() {
            "the line ends".to_owned()
        } else {
            format!("`{found}`")
        };
        self.error(format!("{what} is expected, found {found}"))
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a mark if it comes next.
    fn mark(&mut self, mark: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(mark);
        if found {
            self.at += mark.len();
        }
        found
    }

    fn want(&mut self, mark: &str) -> Result<(), TextError> {
        if self.mark(mark) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{mark}`")))
        }
    }

    /// Takes a whole word if it comes next.
    fn word(&mut self, word: &str) -> bool {
        self.blanks();
        let found = self
            .rest()
            .strip_prefix(word)
            .is_some_and(|after| !after.starts_with(is_plain_char));
        if found {
            self.at += word.len();
        }
        found
    }

    /// The end of the line.
    fn done(&mut self) -> Result<(), TextError> {
        self.blanks();
        let rest = self.rest();
        if rest.is_empty() || rest.starts_with('#') {
            Ok(())
        } else {
            Err(self.expected("the end of the line"))
        }
    }

    /// Letters, digits and `_.~/:-`.
    fn bare(&mut self) -> Result<&'a str, TextError> {
        self.blanks();
        let rest = self.rest();
        let end = rest.find(|c| !is_plain_char(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a name"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn name(&mut self) -> Result<String, TextError> {
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
        let code = rest
            .strip_prefix("u{")
            .and_then(|r| r.split_once('}'))
            .map(|(code, _)| code);
        let ch = code.and_then(|c| char::from_u32(u32::from_str_radix(c, 16).ok()?));
        let (Some(code), Some(ch)) = (code, ch) else {
            return Err(self.expected("`\\\"`, `\\\\` or `\\u{..}`"));
        };
        self.at += code.len() + 4;
        Ok(ch)
    }

    /// `%` and a number.
    fn value(&mut self) -> Result<ValueId, TextError> {
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
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// `f32[2,3]`, perhaps with a pitch: `f32[2,40]/48`.
    fn ty(&mut self) -> Result<TensorType, TextError> {
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
    fn attrs(&mut self) -> Result<Vec<(String, String)>, TextError> {
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
