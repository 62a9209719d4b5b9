//! Printing. Never fails: a malformed program is printed as far as it makes sense.

use super::is_plain;
use crate::ops::copy::Space;
use crate::program::{Instr, Program, Session, StateId, StateUse, ValueId};
use crate::tensor::TensorType;
use std::fmt::{self, Display, Write};

/// Returns the text of a session: its states, then its programs.
pub fn print_session(session: &Session) -> String {
    let mut out = String::new();
    for s in &session.states {
        let ty = Type(s.ty);
        let _ = write!(out, "state {} = {} {ty}", Name(&s.name), s.kind.name());
        out.push_str(if s.trainable { " trainable" } else { "" });
        out.push_str(if s.home == Space::Host { " host\n" } else { "\n" });
    }
    for p in &session.programs {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&print_program(session, p));
    }
    out
}

/// Returns the text of one program of a session.
pub fn print_program(session: &Session, p: &Program) -> String {
    let mut out = format!("program {} {{\n", Name(&p.name));
    let _ = write_program(&mut out, session, p);
    out.push_str("}\n");
    out
}

impl Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_session(self))
    }
}

fn write_program(out: &mut String, session: &Session, p: &Program) -> fmt::Result {
    let mut defined = vec![false; p.types.len()];
    let mut define = |v: ValueId| {
        if let Some(d) = defined.get_mut(v.index()) {
            *d = true;
        }
    };
    let state = |id: StateId| {
        let known = session.states.get(id.index()).map(|s| Name(&s.name).to_string());
        known.unwrap_or_else(|| format!("?{}", id.0))
    };
    for b in &p.blocks {
        writeln!(out, "  block {}", Name(b))?;
    }
    for i in &p.inputs {
        define(i.value);
        writeln!(out, "  {} = input {} {}", i.value, Name(&i.name), type_of(p, i.value))?;
    }
    // A part is named by its first element.
    let is_part = |s: &StateUse| {
        let whole = session.states.get(s.state.index()).map(|decl| decl.ty);
        s.first > 0 || whole.is_some() && p.types.get(s.enters.index()).copied() != whole
    };
    for s in &p.states {
        define(s.enters);
        write!(out, "  {} = state {}", s.enters, state(s.state))?;
        match is_part(s) {
            true => writeln!(out, " from {} {}", s.first, type_of(p, s.enters))?,
            false => writeln!(out)?,
        }
    }
    for instr in &p.instrs {
        instr.outputs.iter().for_each(|v| define(*v));
        write_instr(out, p, instr)?;
    }
    for s in p.states.iter().filter(|s| s.leaves != s.enters) {
        let from = if is_part(s) { format!(" from {}", s.first) } else { String::new() };
        writeln!(out, "  state {}{from} leaves {}", state(s.state), s.leaves)?;
    }
    for o in &p.outputs {
        writeln!(out, "  output {} {}", Name(&o.name), o.value)?;
    }
    for (i, _) in defined.iter().enumerate().filter(|(_, d)| !**d) {
        let v = ValueId(i as u32);
        writeln!(out, "  unused {v} {}", type_of(p, v))?;
    }
    Ok(())
}

fn write_instr(out: &mut String, p: &Program, instr: &Instr) -> fmt::Result {
    let ids = |vs: &[ValueId]| -> Vec<String> { vs.iter().map(ValueId::to_string).collect() };
    let (y, x) = (ids(&instr.outputs).join(", "), ids(&instr.inputs).join(", "));
    let y = if y.is_empty() { "_" } else { &y };
    write!(out, "  {y} = {}({x})", instr.op.name())?;
    let attrs = instr.op.attrs();
    if !attrs.is_empty() {
        let attrs: Vec<String> = attrs.iter().map(|(n, v)| format!("{n}={v}")).collect();
        write!(out, " {{{}}}", attrs.join(", "))?;
    }
    let types: Vec<String> = instr.outputs.iter().map(|v| type_of(p, *v)).collect();
    let (path, phase) = (Name(&instr.origin.path), instr.origin.phase.name());
    writeln!(out, " : {} @ {path} {phase}", types.join(", "))
}

fn type_of(p: &Program, v: ValueId) -> String {
    p.types.get(v.index()).map_or_else(|| "?".to_owned(), |ty| Type(*ty).to_string())
}

/// A type, with its pitch where that is not the usual one.
struct Type(TensorType);

impl Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Type(ty) = self;
        write!(f, "{ty}")?;
        if *ty != ty.with_shape(&ty.shape) {
            write!(f, "/{}", ty.pitch)?;
        }
        Ok(())
    }
}

/// A name, in quotes where needed.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name(name) = self;
        if is_plain(name) {
            return f.write_str(name);
        }
        f.write_char('"')?;
        for c in name.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
