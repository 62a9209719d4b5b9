//! One program through one pass: verified, timed and shown.

use crate::CompileError;
use crate::passes::Pass;
use ambitus_ir::verify::verify;
use ambitus_ir::{Program, Session};
use std::time::Instant;

/// In place of a pass, of a program as it is written.
pub const BUILT: &str = "built";

/// What a pass left.
pub struct After<'a> {
    /// Its name, or [`BUILT`].
    pub pass: &'static str,
    /// Whose program it is, where ranks have parts of the model.
    pub rank: Option<usize>,
    /// The states.
    pub session: &'a Session,
    /// The program, which is not in the session yet.
    pub program: &'a Program,
    /// Seconds that the pass took.
    pub seconds: f64,
    /// Seconds that it took to verify the program.
    pub verify_seconds: f64,
}

/// Sees every program after every pass.
pub type Watch<'w> = dyn Fn(&After<'_>) + 'w;

/// Whose programs they are, and who sees them.
#[derive(Clone, Copy, Default)]
pub(super) struct Runner<'w> {
    pub watch: Option<&'w Watch<'w>>,
    pub rank: Option<usize>,
}

impl Runner<'_> {
    /// Runs one pass and verifies its result.
    pub fn run(&self, session: &mut Session, p: Program, pass: &dyn Pass) -> Result<Program, CompileError> {
        let start = self.start();
        pass.declare(session);
        let p = pass.run(session, p)?;
        self.done(session, &p, pass.name(), start);
        Ok(p)
    }

    /// Runs one pass on every program of a session.
    pub fn run_all(&self, session: &mut Session, pass: &dyn Pass) -> Result<(), CompileError> {
        let mut start = self.start();
        pass.declare(session);
        let programs = std::mem::take(&mut session.programs);
        for p in programs {
            let p = pass.run(session, p)?;
            self.done(session, &p, pass.name(), start);
            session.programs.push(p);
            start = self.start();
        }
        Ok(())
    }

    /// Returns the time, if anyone asks.
    pub fn start(&self) -> Option<Instant> {
        self.watch.map(|_| Instant::now())
    }

    /// Verifies what a pass left, and shows it.
    ///
    /// # Panics
    /// When it breaks an invariant: that is a bug of the pass.
    pub fn done(&self, session: &Session, program: &Program, pass: &'static str, start: Option<Instant>) {
        let seconds = |start: Option<Instant>| start.map_or(0.0, |t| t.elapsed().as_secs_f64());
        let (took, verifying) = (seconds(start), self.start());
        if let Err(violation) = verify(session, program) {
            let rank = self.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
            panic!("bug in pass `{pass}`{rank}: {violation}");
        }
        if let Some(watch) = self.watch {
            let verify_seconds = seconds(verifying);
            watch(&After { pass, rank: self.rank, session, program, seconds: took, verify_seconds });
        }
    }

    /// Shows a program as it is written, before any pass.
    pub fn built(&self, session: &Session, program: &Program) {
        if let Some(watch) = self.watch {
            let (pass, rank) = (BUILT, self.rank);
            watch(&After { pass, rank, session, program, seconds: 0.0, verify_seconds: 0.0 });
        }
    }
}

/// Runs one pass and verifies its result.
///
/// # Errors
/// From the pass.
pub fn run(session: &mut Session, p: Program, pass: &dyn Pass) -> Result<Program, CompileError> {
    Runner::default().run(session, p, pass)
}

/// Runs one pass on every program of a session, and verifies each.
///
/// # Errors
/// From the pass.
pub fn run_all(session: &mut Session, pass: &dyn Pass) -> Result<(), CompileError> {
    Runner::default().run_all(session, pass)
}
