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
    /// β1 and β2 of its optimizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// Largest L2 norm of its gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
}

impl Recipe {
    /// Checks the key `players` against the model's players, of which a model with one has none, and `lora`, which models with several have not.
    ///
    /// # Errors
    /// A name that is none of theirs; adapters.
    pub fn validate_players(&self, names: &[&str]) -> Result<(), Invalid> {
        if self.lora.is_some() && names.len() > 1 {
            let why = "a model of several players has no adapters so far: freeze what should stay as it is"
                .to_owned();
            return Err(Invalid { key: "lora".to_owned(), why });
        }
        let Some(name) = self.players.keys().find(|name| !names.contains(&name.as_str())) else {
            return Ok(());
        };
        let why = match names {
            [] | [_] => "the model is trained by one loss: leave `players` out".to_owned(),
            names => format!("the model has no such player; it has {}", names.join(", ")),
        };
        Err(Invalid { key: format!("players.{name}"), why })
    }

    /// Fills in what a family means by what neither a player says nor the recipe of all.
    pub(super) fn settle_players(&mut self, family: &[(&'static str, Player)]) {
        for (name, meant) in family {
            let mut own = self.players.remove(*name).unwrap_or_default();
            let rate = meant.learning_rate.map(|rate| rate / self.slower());
            own.learning_rate = own.learning_rate.or(rate.filter(|_| self.learning_rate.is_none()));
            // They are AdamW's.
            let betas = meant.betas.filter(|_| self.betas.is_none() && self.slower() == 1.0);
            own.betas = own.betas.or(betas);
            if own != Player::default() {
                self.players.insert((*name).to_owned(), own);
            }
        }
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
    use super::super::Defaults;
    use super::*;
    use crate::rates::LearningRate;

    #[test]
    fn a_familys_settings_of_a_player_give_way_to_the_recipes_of_all() {
        let meant = Player { learning_rate: Some(1e-4), betas: Some([0.5, 0.9]), ..Player::default() };
        let family = Defaults { players: vec![("d", meant)], ..super::super::testing::defaults() };
        let of = |lines: &str| {
            let text = format!("model: {{dir: m}}\ndata: {{dir: d}}\n{lines}");
            let settled = Recipe::parse(&text, "recipe.yaml").unwrap().0.settled(&family);
            let rate = LearningRate::of(&settled, "d", (0, 9), 1.0).base;
            let optimizer = settled.optimizer([("g", &["g.*"][..]), ("d", &["d.*"][..])].into_iter());
            (rate, optimizer.betas("d.w"), optimizer.betas("g.w"))
        };
        let usual = [0.9, 0.999];
        assert_eq!(of(""), (1e-4, [0.5, 0.9], usual));
        assert_eq!(of("learning_rate: 3e-4\n"), (3e-4, [0.5, 0.9], usual));
        assert_eq!(of("betas: [0.8, 0.9]\n"), (1e-4, [0.8, 0.9], [0.8, 0.9]));
        assert_eq!(of("players: {d: {betas: [0.1, 0.2]}}\n"), (1e-4, [0.1, 0.2], usual));
        assert_eq!(of("optimizer: lion\n"), (2e-5, [0.9, 0.99], [0.9, 0.99]));
    }

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
