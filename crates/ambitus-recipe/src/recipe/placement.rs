//! `placement`: whether each of several ranks has some blocks of the model, in place of a share of everything.
//!
//! ```yaml
//! ranks: 2
//! placement: pipeline       # none | model | pipeline
//! ```

use super::validate::{Invalid, refuse};
use super::{Recipe, UpdateAt};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which part of the model a rank has. The numbers are those of one rank, bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// No part of its own: ranks share by `sharding`.
    #[default]
    None,
    /// Some of the blocks, with their gradients and moments. Ranks work one after another.
    Model,
    /// Some of the blocks, as with `model`, and several of an update's micro-batches in the ranks at a time: less waiting, and more
    /// is kept for backward.
    Pipeline,
}

impl fmt::Display for Placement {
    /// Writes the word of a recipe.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::None => "none",
            Placement::Model => "model",
            Placement::Pipeline => "pipeline",
        })
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Placement, String> {
        let all = [Placement::None, Placement::Model, Placement::Pipeline];
        let found = all.into_iter().find(|p| p.to_string() == text);
        found.ok_or_else(|| "is not none, model or pipeline".to_owned())
    }
}

/// What is refused where both are given.
const NOT_BOTH: &str = "puts each block of the model on one rank, sharding shares every tensor among the ranks, and \
                                   they are not combined: leave out sharding (the key, or --sharding), or write placement: none";

impl Recipe {
    /// Returns how the model is placed: not at all where the recipe says nothing, or on one rank.
    pub fn placement(&self) -> Placement {
        self.placement.filter(|_| self.ranks() > 1).unwrap_or_default()
    }

    /// Returns whether each rank has a part of the model.
    pub fn is_placed(&self) -> bool {
        self.placement() != Placement::None
    }

    /// Checks the key `placement`.
    pub(super) fn validate_placement(&self) -> Result<(), Invalid> {
        let Some(placement) = self.placement.filter(|p| *p != Placement::None) else { return Ok(()) };
        if self.sharding.is_some() {
            refuse("placement", format!("{placement} {NOT_BOTH}"))?;
        }
        if placement == Placement::Pipeline && self.update == UpdateAt::Backward {
            refuse(
                "placement",
                "pipeline has several micro-batches of an update in flight, and with update: backward an update is one: \
                 write placement: model, or update: end",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<Recipe, String> {
        let text = format!("model: {{dir: a}}\ndata: {{dir: b}}\n{more}\n");
        Recipe::parse(&text, "r.yaml").map(|r| r.0).map_err(|e| e.to_string())
    }

    #[test]
    fn the_key_is_read_and_written_back() {
        for (more, placement) in [
            ("", Placement::None),
            ("ranks: 2", Placement::None),
            ("ranks: 2\nplacement: model", Placement::Model),
            ("ranks: 3\nplacement: pipeline", Placement::Pipeline),
            // Of a launcher's processes it is known later how many there are.
            ("placement: pipeline", Placement::None),
            ("ranks: 2\nplacement: none\nsharding: {strategy: none}", Placement::None),
        ] {
            let recipe = parse(more).expect(more);
            assert_eq!(recipe.placement(), placement, "{more}");
            let written = recipe.to_yaml().expect("YAML");
            assert_eq!(Recipe::parse(&written, "w.yaml").expect(&written).0, recipe, "{written}");
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
    }

    #[test]
    fn contradictions_are_refused_at_their_line() {
        for (more, message) in [
            (
                "ranks: 2\nplacement: model\nsharding: {}",
                "r.yaml:4:12: placement: model puts each block of the model on one rank",
            ),
            (
                "placement: pipeline\nupdate: backward\nclip_per_tensor: true",
                "r.yaml:3:12: placement: pipeline has several micro-batches",
            ),
            ("placement: tensor", "placement"),
        ] {
            let said = parse(more).expect_err(more);
            assert!(said.contains(message), "{more}: {said}");
        }
        assert!("Model".parse::<Placement>().is_err());
    }
}
