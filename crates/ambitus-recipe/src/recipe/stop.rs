//! `stop:`, when a run ends before all its updates are done.

use super::validate::{Invalid, refuse};
use serde::{Deserialize, Serialize};

/// Validations in a row, at most.
const MOST: u32 = 1 << 16;

/// What a run ends by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Validations in a row, of those that `validate_every` asks for, without a lower loss than all before.
    pub after: u32,
}

impl Stop {
    /// Checks the values, with what `validate_every` says.
    ///
    /// # Errors
    /// By key.
    pub(super) fn validate(self, every: u64) -> Result<(), Invalid> {
        if !(1..=MOST).contains(&self.after) {
            refuse("stop.after", format!("{} is not between 1 and {MOST}", self.after))?;
        }
        if every == 0 {
            refuse(
                "stop",
                "goes by validations, and validate_every: 0 has none: set how many updates lie between them",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Recipe, Stop};

    #[test]
    fn a_stop_needs_validations() {
        let with = |line: &str| {
            let text = format!("model: {{dir: a}}\ndata: {{dir: b}}\n{line}\n");
            Recipe::parse(&text, "recipe.yaml").map(|(recipe, _)| recipe).map_err(|e| e.to_string())
        };
        let recipe = with("stop: {after: 3}").expect("a recipe");
        assert_eq!(recipe.stop, Some(Stop { after: 3 }));
        let again = Recipe::parse(&recipe.to_yaml().expect("YAML"), "recipe.yaml").map(|(recipe, _)| recipe);
        assert_eq!(again.map_err(|e| e.to_string()), Ok(recipe));
        assert_eq!(with("").expect("a recipe").stop, None);
        for (line, words) in [
            ("stop: {after: 0}", "stop.after: 0 is not between 1 and"),
            ("stop: {after: 3}\nvalidate_every: 0", "validate_every: 0 has none"),
            ("stop: {}", "after"),
            ("stop: {afters: 3}", "afters"),
        ] {
            let said = with(line).expect_err(line);
            assert!(said.contains(words), "{said}");
        }
    }
}
