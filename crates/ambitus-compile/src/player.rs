//! Who trains what: the parameters of one loss.

use crate::optimizer::STEP;
use crate::passes::pattern::Pattern;
use ambitus_ir::StateDecl;

/// Parameters that one loss trains. Most models are one player; a generator and its discriminator are two, each with a program
/// of a micro-batch and an update of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Player {
    /// What the names of its programs and of its counter end in; empty for the only one.
    pub name: String,
    /// Its parameters; all, where nothing is named. The others are constants to it.
    pub trains: Vec<Pattern>,
}

impl Player {
    /// Returns the name of its own program of a kind: `micro`, or `micro_g`.
    pub fn program(&self, kind: &str) -> String {
        if self.name.is_empty() { kind.to_owned() } else { format!("{kind}_{}", self.name) }
    }

    /// Returns the name of the state that counts its updates: `step`, or `step.g`.
    pub fn counter(&self) -> String {
        if self.name.is_empty() { STEP.to_owned() } else { format!("{STEP}.{}", self.name) }
    }

    /// Returns whether a trainable parameter is one of its own.
    pub fn has(&self, parameter: &StateDecl) -> bool {
        self.trains.is_empty() || self.trains.iter().any(|pattern| pattern.matches(&parameter.name))
    }
}
