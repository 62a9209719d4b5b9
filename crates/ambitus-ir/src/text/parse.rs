//! Parsing, line by line.

use super::cursor::{Cursor, Lines, TextError, check_size};
use crate::ops::Op;
use crate::ops::copy::Space;
use crate::program::{
    Input, Instr, Origin, Output, Phase, Program, Session, StateDecl, StateId, StateKind, StateUse, ValueId,
};
use crate::tensor::TensorType;
use std::collections::{HashMap, HashSet};

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
                return Err(p.1.error(format!("program `{}` is defined twice", p.0.name)));
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
    let states = names.map(|(i, s)| (s.name.clone(), StateId(i as u32))).collect();
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
    let home = if c.word("host") { Space::Host } else { Space::Device };
    c.done()?;
    Ok(StateDecl { name, ty, kind, trainable, home })
}

/// Returns the rest of a program after its first word; also the cursor at its name.
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
        p: Program { name, ..Program::default() },
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
    /// Place of a state, or of the part of it from an element on, in [`Program::states`].
    used: HashMap<(StateId, usize), usize>,
    inputs: HashSet<String>,
    outputs: HashSet<String>,
    /// The highest value, and where it is defined.
    highest: Option<(ValueId, Cursor<'a>)>,
}

impl<'a> Reader<'_, 'a> {
    fn line(&mut self, c: &mut Cursor<'a>) -> Result<(), TextError> {
        if c.word("state") {
            let place = (self.state(c)?, self.from(c)?.unwrap_or(0));
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
        } else if c.word("block") {
            let start = c.clone();
            let name = c.name()?;
            if self.p.blocks.contains(&name) {
                return Err(start.error(format!("block `{name}` is named twice")));
            }
            self.p.blocks.push(name);
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
        // `_`: an op without results.
        while !c.word("_") {
            c.blanks();
            let at = c.clone();
            if !c.rest().starts_with('%') {
                return Err(c.expected("a value, `state`, `block`, `output`, `unused` or `}`"));
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
            let whole = self.session.states[state.index()].ty;
            let (first, ty) = match self.from(c)? {
                Some(first) => (first, c.ty()?),
                None => (0, whole),
            };
            if ty != whole && !whole.has_part(first, ty) {
                return Err(start.error(format!("{ty} from element {first} on is no part of {whole}")));
            }
            self.define(at.clone(), *v, ty)?;
            if self.used.insert((state, first), self.p.states.len()).is_some() {
                return Err(start.error("the state enters twice".to_owned()));
            }
            self.p.states.push(StateUse { state, first, enters: *v, leaves: *v });
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
        self.p.instrs.push(Instr { op, inputs, outputs, origin: Origin { path: path.into(), phase } });
        Ok(())
    }

    /// Returns a state by name.
    fn state(&self, c: &mut Cursor<'a>) -> Result<StateId, TextError> {
        c.blanks();
        let start = c.clone();
        let name = c.name()?;
        let found = self.states.get(&name).copied();
        found.ok_or_else(|| start.error(format!("no state is named `{name}`")))
    }

    /// Returns the first element of a part of a state.
    fn from(&self, c: &mut Cursor<'a>) -> Result<Option<usize>, TextError> {
        if !c.word("from") {
            return Ok(None);
        }
        c.blanks();
        let start = c.clone();
        let first = c.bare()?.parse().map_err(|_| start.error("an element is a whole number".to_owned()))?;
        Ok(Some(first))
    }

    /// Returns a value that is defined above, with its type.
    fn known(&self, c: &mut Cursor<'a>) -> Result<(ValueId, TensorType), TextError> {
        c.blanks();
        let start = c.clone();
        let v = c.value()?;
        let ty = self.types.get(&v).copied();
        Ok((v, ty.ok_or_else(|| start.error(format!("{v} is not defined above")))?))
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

    /// Returns the program, its values numbered without gaps: so the text bounds the table of types.
    fn finish(mut self) -> Result<Program, TextError> {
        let count = self.types.len();
        if let Some((v, at)) = self.highest.filter(|(v, _)| v.index() >= count) {
            let why = format!("{v} is too high: {count} values are defined, {} are missing", {
                v.index() + 1 - count
            });
            return Err(at.error(why));
        }
        let mut types: Vec<(ValueId, TensorType)> = self.types.into_iter().collect();
        types.sort_unstable_by_key(|(v, _)| *v);
        self.p.types = types.into_iter().map(|(_, ty)| ty).collect();
        Ok(self.p)
    }
}
