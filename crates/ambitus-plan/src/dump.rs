//! Writes a plan's programs as text, as they are run and after every pass, and measures each pass. Serves bug reports, shows what
//! a pass does, and proves that a change of the compiler changes no program.
//!
//! Passes are watched in a second compilation of the chosen plan: the search itself is not watched.

use crate::budget::RunPlan;
use crate::parts::Parts;
use crate::session;
use ambitus_compile::pipeline::{After, BUILT, Pipeline, Watch};
use ambitus_families::error::RunError;
use ambitus_ir::target::{Packed, Target};
use ambitus_ir::text::{print_program, print_session};
use ambitus_ir::{Program, Session};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What a pass took on a program.
#[derive(Clone, Debug, Serialize)]
pub struct Timing {
    /// The program.
    pub program: String,
    /// Whose it is, where ranks have parts of the model.
    pub rank: Option<usize>,
    /// The pass.
    pub pass: &'static str,
    /// Seconds that it took.
    pub seconds: f64,
    /// Seconds that it took to verify what it left.
    pub verify_seconds: f64,
    /// Instructions that it left.
    pub instructions: usize,
}

/// What every pass took, in their order.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Timings(pub Vec<Timing>);

impl fmt::Display for Timings {
    /// Writes a line for each pass, of all programs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut passes: Vec<(&str, usize, f64)> = Vec::new();
        for t in &self.0 {
            match passes.iter_mut().find(|p| p.0 == t.pass) {
                Some(p) => (p.1, p.2) = (p.1 + 1, p.2 + t.seconds),
                None => passes.push((t.pass, 1, t.seconds)),
            }
        }
        let verified = self.0.iter().map(|t| t.verify_seconds).sum::<f64>();
        let all = verified + passes.iter().map(|p| p.2).sum::<f64>();
        write!(f, "  {:<14}{:>8}{:>12}", "pass", "programs", "seconds")?;
        for (pass, programs, seconds) in passes {
            write!(f, "\n  {pass:<14}{programs:>8}{seconds:>12.6}")?;
        }
        write!(f, "\n  {:<14}{:>8}{verified:>12.6}", "verified after", self.0.len())?;
        write!(f, "\n  {:<14}{:>8}{all:>12.6}", "all", "")
    }
}

impl RunPlan {
    /// Writes every program as it is run, each with the states of its session, in the form that [`ambitus_ir::text::parse`]
    /// reads: `PROGRAM.txt` below `folder`, or below its `rank-N` if ranks have parts of the model. Next to each, writes it as
    /// every pass left it: `PROGRAM/07-checkpoint.txt`; 00 is what the model built.
    ///
    /// # Errors
    /// [`RunError::Io`], [`RunError::Full`].
    pub fn dump(&self, folder: &Path, target: &dyn Target) -> Result<(), RunError> {
        for (rank, planned) in self.whole().iter().enumerate() {
            let folder = of_rank(folder, self.parts.is_some().then_some(rank));
            make(&folder)?;
            for p in &planned.programs {
                let path = folder.join(format!("{}.txt", p.program.name));
                write(&path, &planned.session, &p.program)?;
            }
        }
        let dump = Dump { folder, written: RefCell::default(), failed: RefCell::default() };
        self.watched(target, &|after| dump.after(after))?;
        dump.failed.into_inner().map_or(Ok(()), Err)
    }

    /// Returns what every pass takes.
    ///
    /// # Errors
    /// From the passes.
    pub fn timings(&self, target: &dyn Target) -> Result<Timings, RunError> {
        let timings = RefCell::new(Vec::new());
        let push = |after: &After<'_>| {
            timings.borrow_mut().push(Timing {
                program: after.program.name.clone(),
                rank: after.rank,
                pass: after.pass,
                seconds: after.seconds,
                verify_seconds: after.verify_seconds,
                instructions: after.program.instrs.len(),
            });
        };
        self.watched(target, &|after| {
            if after.pass != BUILT {
                push(after);
            }
        })?;
        Ok(Timings(timings.into_inner()))
    }

    /// Compiles once more, and shows every program after every pass.
    fn watched(&self, target: &dyn Target, watch: &Watch<'_>) -> Result<(), RunError> {
        let shape = &self.shape;
        let packed = &Packed { target, rows: shape.clip_rows };
        let passes = shape.session.passes(&*shape.model);
        let pipeline = Pipeline::new(&passes, packed).watched(watch);
        let whole = session::build_by(&*shape.model, &shape.session, &pipeline)?;
        if let Some(parts) = &self.parts {
            Parts::of(&whole, parts.how.cut.clone(), parts.how.in_flight, &pipeline)?;
        }
        Ok(())
    }
}

/// Files of a program, numbered in the order of its passes.
struct Dump<'f> {
    folder: &'f Path,
    /// How many there are, by rank and program.
    written: RefCell<HashMap<(Option<usize>, String), usize>>,
    /// The first failure; nothing is written after it.
    failed: RefCell<Option<RunError>>,
}

impl Dump<'_> {
    fn after(&self, after: &After<'_>) {
        if self.failed.borrow().is_none() {
            *self.failed.borrow_mut() = self.write(after).err();
        }
    }

    fn write(&self, after: &After<'_>) -> Result<(), RunError> {
        let name = &after.program.name;
        let folder = of_rank(self.folder, after.rank).join(name);
        let mut written = self.written.borrow_mut();
        // A rank's numbering continues from the whole program's.
        let whole = written.get(&(None, name.clone())).copied().unwrap_or(0);
        let number = match written.get(&(after.rank, name.clone())) {
            Some(number) => *number,
            None => {
                make(&folder)?;
                remove_numbered(&folder)?;
                whole
            }
        };
        write(&folder.join(format!("{number:02}-{}.txt", after.pass)), after.session, after.program)?;
        written.insert((after.rank, name.clone()), number + 1);
        Ok(())
    }
}

fn of_rank(folder: &Path, rank: Option<usize>) -> PathBuf {
    rank.map_or_else(|| folder.to_owned(), |rank| folder.join(format!("rank-{rank}")))
}

fn make(folder: &Path) -> Result<(), RunError> {
    fs::create_dir_all(folder).map_err(|e| RunError::io(folder, "cannot make the folder", e))
}

/// Removes what another plan's passes left in the folder: it would be mixed with this one's.
fn remove_numbered(folder: &Path) -> Result<(), RunError> {
    let cannot = |e| RunError::io(folder, "cannot list", e);
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_numbered) {
            fs::remove_file(&path).map_err(|e| RunError::io(&path, "cannot remove", e))?;
        }
    }
    Ok(())
}

/// Returns whether a name is like `07-checkpoint.txt`.
fn is_numbered(name: &str) -> bool {
    let of_pass = |pass: &str| pass.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    let parts = name.strip_suffix(".txt").and_then(|name| name.split_once('-'));
    parts.is_some_and(|(n, pass)| n.len() == 2 && n.bytes().all(|c| c.is_ascii_digit()) && of_pass(pass))
}

fn write(path: &Path, session: &Session, program: &Program) -> Result<(), RunError> {
    let mut states = Session::default();
    states.states.clone_from(&session.states);
    let text = format!("{}\n{}", print_session(&states), print_program(session, program));
    fs::write(path, text).map_err(|e| RunError::io(path, "cannot write", e))
}
