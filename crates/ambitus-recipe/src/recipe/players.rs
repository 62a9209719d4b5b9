//! `players`: settings of single losses of a model with several.
//!
//! ```yaml
//! learning_rate: 2e-4                  # what a player does not say is the recipe's own
//! players:
//!   d: {learning_rate: 1e-4, schedule: constant}
//! ```

use super::validate::{Invalid, validate_rates};
use super::{Recipe, Schedule};
use serde::{Deserialize, Serialize};

/// What one player of a model is trained by, where it differs from the recipe's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Player {
    /// Rate at the end of its warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Updates of its warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,
    /// Its rate after the warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Largest L2 norm of its gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
}

impl Recipe {
    /// Checks the key `players` against the model's players; a model with one has none.
    ///
    /// # Errors
    /// A name that is none of theirs.
    pub fn validate_players(&self, names: &[&str]) -> Result<(), Invalid> {
        let Some(name) = self.players.keys().find(|name| !names.contains(&name.as_str())) else {
            return Ok(());
        };
        let why = match names {
            [] | [_] => "the model is trained by one loss: leave `players` out".to_owned(),
            names => format!("the model has no such player; it has {}", names.join(", ")),
        };
        Err(Invalid { key: format!("players.{name}"), why })
    }

    /// Checks the values of the key `players`.
    pub(super) fn validate_own_rates(&self) -> Result<(), Invalid> {
        self.players.iter().try_for_each(|(name, player)| {
            let of_player = |bad: Invalid| Invalid { key: format!("players.{name}.{}", bad.key), ..bad };
            validate_rates(player).map_err(of_player)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::LearningRate;

    #[test]
    fn a_player_has_its_own_and_the_rest_is_the_recipes() {
        let text = "model: {dir: m}\ndata: {dir: d}\nlearning_rate: 2e-4\nclip: 3\nplayers: {d: {learning_rate: 1e-4}}\n";
        let (recipe, _) = Recipe::parse(text, "recipe.yaml").unwrap();
        let settled = recipe.clone().settled(&super::super::testing::defaults());
        let of = |name| (LearningRate::of(&settled, name, (0, 9), 1.0).base, settled.clip(name));
        assert_eq!([of("g"), of("d")], [(2e-4, 3.0), (1e-4, 3.0)]);
        let written = recipe.to_yaml().unwrap();
        assert_eq!(Recipe::parse(&written, "recipe.yaml").unwrap().0, recipe);
        assert_eq!(recipe.validate_players(&["g", "d"]), Ok(()));
        let refused = |names: &[&str]| recipe.validate_players(names).unwrap_err().to_string();
        assert_eq!(refused(&["a", "b"]), "players.d: the model has no such player; it has a, b");
        assert!(refused(&[""]).contains("leave `players` out"));
        let bad = text.replace("1e-4", "-1");
        let why = Recipe::parse(&bad, "recipe.yaml").unwrap_err().to_string();
        assert!(why.contains("players.d.learning_rate: -1 is not above 0"), "{why}");
    }
}
