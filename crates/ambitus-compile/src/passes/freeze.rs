//! Freeze: parameters named by patterns stop being trained.
//!
//! Before: `state blocks.0.w = parameter f32[8,4] trainable`. After: `state blocks.0.w = parameter f32[8,4]`.
//!
//! Runs before autodiff, which then forms no gradient for them: so they have no gradient state, no optimizer state and no
//! average, and what only their gradients would read is not kept for backward. Programs stay as they are.

use super::pattern::{Pattern, shown};
use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::{Program, Session, StateDecl, StateKind};

/// The pass. The same again changes nothing.
pub struct Freeze<'a> {
    /// What is frozen. Each matches a parameter, and together they leave some.
    pub patterns: &'a [Pattern],
}

impl Pass for Freeze<'_> {
    fn name(&self) -> &'static str {
        "freeze"
    }

    /// Gradients that remain have the same bits; an update clips by the norm of fewer.
    fn numerics(&self) -> Numerics {
        Numerics::Changed
    }

    fn run(&self, session: &mut Session, p: Program) -> Result<Program, CompileError> {
        require_parameters(session, self.patterns)?;
        let frozen = |s: &StateDecl| self.patterns.iter().any(|p| p.matches(&s.name));
        keep_training(session, |s| !frozen(s))?;
        Ok(p)
    }
}

/// Freezes every trainable parameter that `keeps` does not pick.
pub(super) fn keep_training(
    session: &mut Session,
    keeps: impl Fn(&StateDecl) -> bool,
) -> Result<(), CompileError> {
    for s in session.states.iter_mut().filter(|s| s.kind == StateKind::Parameter && s.trainable) {
        s.trainable = keeps(s);
    }
    if parameters(session).any(|s| s.trainable) { Ok(()) } else { Err(CompileError::NothingTrains) }
}

/// Returns the parameters of a session.
pub(super) fn parameters(session: &Session) -> impl Iterator<Item = &StateDecl> + Clone {
    session.states.iter().filter(|s| s.kind == StateKind::Parameter)
}

/// Refuses a pattern that matches no parameter of a session.
pub(crate) fn require_parameters(session: &Session, patterns: &[Pattern]) -> Result<(), CompileError> {
    patterns.iter().try_for_each(|p| require_match(p, parameters(session).map(|s| s.name.as_str())))
}

/// Refuses a pattern that matches none of these names.
pub(super) fn require_match<'a>(
    pattern: &Pattern,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), CompileError> {
    if names.clone().any(|name| pattern.matches(name)) {
        return Ok(());
    }
    Err(CompileError::NoMatch { pattern: pattern.to_string(), names: shown(names) })
}
