//! The table of an import, for people and for programs.

use super::{Imported, Row, Verdict};
use crate::recipe::short;
use serde::{Serialize, Serializer};
use std::fmt;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Used(what) => write!(f, "used: {what}"),
            Verdict::Default(what) => write!(f, "default: {what}"),
            Verdict::NoEffect(why) => write!(f, "no effect, because {why}"),
            Verdict::Ask(question) => write!(f, "asks: {question}"),
            Verdict::Unknown(Some(near)) => write!(f, "unknown, not taken over; nearest: {near}"),
            Verdict::Unknown(None) => f.write_str("unknown, not taken over"),
        }
    }
}

impl Verdict {
    fn name(&self) -> &'static str {
        match self {
            Verdict::Used(_) => "used",
            Verdict::Default(_) => "default",
            Verdict::NoEffect(_) => "no effect",
            Verdict::Ask(_) => "asks",
            Verdict::Unknown(_) => "unknown",
        }
    }
}

/// For people: a line for every key, by file; then the batch and what is to be known or answered.
impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<String> =
            self.rows.iter().map(|r| format!("{}: {}", short(&r.key), r.value)).collect();
        let width = cells.iter().map(|c| c.chars().count()).filter(|n| *n <= 60).max().unwrap_or(0);
        let mut file = None;
        for (row, cell) in self.rows.iter().zip(&cells) {
            if file != Some(&row.file) {
                writeln!(f, "{}", short(&row.file))?;
                file = Some(&row.file);
            }
            writeln!(f, "  {:>4}  {cell:<width$}  {}", row.line, row.verdict)?;
        }
        if let Some(batch) = &self.effective_batch {
            writeln!(f, "effective batch: {batch} an update")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            file: &'a str,
            line: u64,
            key: &'a str,
            value: &'a str,
            is: &'static str,
            said: String,
        }
        let Row { file, line, key, value, verdict, of: _ } = self;
        Flat { file, line: *line, key, value, is: verdict.name(), said: verdict.to_string() }.serialize(s)
    }
}
