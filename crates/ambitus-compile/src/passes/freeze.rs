//! Freeze: parameters named by patterns stop being trained.
//!
//! Before: `state blocks.0.w = parameter f32[8,4] trainable`. After: `state blocks.0.w = parameter f32[8,4]`.
//!
//! Runs before autodiff, which then forms no gradient for them: so they have no gradient state, no optimizer state and no
//! average, and what only their gradients would read is not kept for backward. Programs stay as they are.

use super::pattern::{Pattern, shown};
use crate::CompileError;
use ambitus_ir::{Session, StateDecl, StateKind};

/// Freezes every parameter that matches one of `patterns`. The same again changes nothing.
///
/// # Errors
/// A pattern that matches no parameter, and patterns that leave nothing to train.
pub fn freeze(session: &mut Session, patterns: &[Pattern]) -> Result<(), CompileError> {
    for pattern in patterns {
        require_match(pattern, parameters(session).map(|s| s.name.as_str()))?;
    }
    let frozen = |s: &StateDecl| patterns.iter().any(|p| p.matches(&s.name));
    keep_training(session, |s| !frozen(s))
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

/// The parameters of a session.
pub(super) fn parameters(session: &Session) -> impl Iterator<Item = &StateDecl> + Clone {
    session.states.iter().filter(|s| s.kind == StateKind::Parameter)
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
