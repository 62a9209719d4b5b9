//! A recipe with another value of one key, as it would be read from its file.

use super::{Recipe, RecipeError, Section};
use serde_json::{Map, Value};

impl Recipe {
    /// Returns the recipe with `key`, a path as `lora.rank`, set to the YAML `value`.
    ///
    /// # Errors
    /// A key that recipes do not have, and a value that it cannot have.
    pub fn with(&self, key: &str, value: &str, sections: &[&Section]) -> Result<Recipe, RecipeError> {
        let fail = |why: String| RecipeError {
            file: format!("{key}={value}"),
            place: None,
            key: Some(key.to_owned()),
            why,
        };
        let whole = self.to_yaml().map_err(fail)?;
        let mut whole: Value = serde_saphyr::from_str(&whole).map_err(|e| fail(e.to_string()))?;
        let value: Value = serde_saphyr::from_str(value).map_err(|e| fail(e.to_string()))?;
        let mut at = &mut whole;
        for part in key.split('.') {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[part];
        }
        *at = value;
        // Of these one at most is given.
        for (one, other) in [("updates", "epochs"), ("epochs", "updates")] {
            if let (true, Some(whole)) = (key == one, whole.as_object_mut()) {
                whole.remove(other);
            }
        }
        let text = serde_saphyr::to_string(&whole).map_err(|e| fail(e.to_string()))?;
        let read = Recipe::parse_with(&text, "recipe", sections);
        read.map(|(recipe, _)| recipe).map_err(|e| RecipeError { place: None, ..e })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_set_as_a_file_would_set_it() {
        let recipe = Recipe { epochs: Some(3.0), ..Recipe::new("m", "d") };
        let with = |key: &str, value: &str| recipe.with(key, value, &[]);
        assert_eq!(with("lora.rank", "8").unwrap().lora.unwrap().rank, 8);
        assert_eq!(with("freeze", "['*.a', b]").unwrap().freeze, ["*.a", "b"]);
        assert_eq!(with("learning_rate", "1e-4").unwrap().learning_rate, Some(1e-4));
        let longer = with("updates", "40").unwrap();
        assert_eq!((longer.updates, longer.epochs), (Some(40), None));
        assert_eq!(Recipe { updates: None, epochs: Some(3.0), ..longer }, recipe);
        for (key, value, words) in
            [("lora.rang", "8", "lora.rang"), ("warmup", "many", "warmup"), ("seed", "[", "seed")]
        {
            let why = with(key, value).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }
}
