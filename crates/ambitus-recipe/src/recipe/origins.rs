//! Where the values of a recipe were set: on the command line, or at a place in a file.

use super::read::{Place, Places, place_of};
use std::collections::BTreeSet;

/// Who says which value of a recipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origins {
    /// The file, as it was named.
    file: String,
    /// Where in it the value of each key stands, by path: `data.dir`, `data.validation.0`.
    places: Places,
    /// Keys that the command line says.
    options: BTreeSet<String>,
    /// What stands where it is no longer meant to stand, for people.
    notes: Vec<String>,
}

impl Origins {
    /// Returns the origins of a recipe that is not in a file.
    pub fn new() -> Origins {
        Origins::default()
    }

    pub(super) fn of_file(file: &str, places: Places, notes: Vec<String>) -> Origins {
        Origins { file: file.to_owned(), places, options: BTreeSet::new(), notes }
    }

    /// Returns what of the file stands where it is no longer meant to stand, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Notes that the command line sets this key.
    pub fn option(&mut self, key: &str) {
        self.places.remove(key);
        self.options.insert(key.to_owned());
    }

    /// Returns whether the command line says this key, or a part of it.
    pub fn is_option(&self, key: &str) -> bool {
        let within =
            |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        self.options.iter().any(|o| within(o, key) || within(key, o))
    }

    /// Returns whether the file or the command line says this key.
    pub fn says(&self, key: &str) -> bool {
        let mut at = key;
        loop {
            if self.is_option(key) || self.places.contains_key(at) {
                return true;
            }
            let Some((above, _)) = at.rsplit_once('.') else { return false };
            // A short form, as `micro_batch: 300`, says what is below it; a section says what it has.
            if self.places.keys().any(|k| k.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'))) {
                return false;
            }
            at = above;
        }
    }

    /// Returns who set a value of the recipe: `command line`, or as `recipe.yaml:3:1`.
    pub fn of(&self, key: &str) -> String {
        match place_of(key, &self.places) {
            _ if self.is_option(key) => "command line".to_owned(),
            Some(Place { line, column }) => format!("{}:{line}:{column}", self.file),
            None => "recipe".to_owned(),
        }
    }

    /// Returns those of a stage, whose own keys stand before the recipe's.
    pub fn stage(&self, index: usize) -> Origins {
        let own = format!("stages.{index}.");
        let of_stage = |(key, place): (&String, &Place)| Some((key.strip_prefix(&own)?.to_owned(), *place));
        let mut stage = self.clone();
        stage.places.extend(self.places.iter().filter_map(of_stage));
        stage
    }

    /// Returns whether a stage of the recipe says this key, so that the recipe itself does not; what is trained only stages say.
    pub fn is_of_a_stage(&self, key: &str) -> bool {
        let mut stages = self.places.keys().filter_map(|k| k.strip_prefix("stages."));
        stages.any(|k| key == "lora" || k.split_once('.').is_some_and(|(_, of)| of == key))
    }

    /// Returns the keys of the file and where their values stand.
    pub fn places(&self) -> impl Iterator<Item = (&str, Place)> {
        self.places.iter().map(|(key, place)| (key.as_str(), *place))
    }
}

#[cfg(test)]
mod tests {
    use crate::recipe::Recipe;

    #[test]
    fn a_section_says_what_it_has_and_a_short_form_what_is_below_it() {
        let text = "model: {dir: a}\ndata: {dir: b, validation: [c]}\nmicro_batch: 300\n";
        let (_, mut origins) = Recipe::parse(text, "r.yaml").unwrap();
        origins.option("lora.rank");
        for key in [
            "data.dir",
            "data.validation",
            "data.validation.0",
            "micro_batch",
            "micro_batch.frames",
            "lora.rank",
        ] {
            assert!(origins.says(key), "{key}");
        }
        for key in ["data.cache", "data.min_seconds", "updates", "lora.dropout", "model.from_scratch"] {
            assert!(!origins.says(key), "{key}");
        }
    }

    #[test]
    fn a_value_is_of_the_command_line_of_its_stage_or_of_the_recipe() {
        let text = "model: {dir: a}\ndata: {dir: b}\nupdates: 5\nmicro_batch: 300\nstages:\n  - {updates: 3}\n  - {}\n";
        let (_, mut origins) = Recipe::parse(text, "r.yaml").expect("a recipe");
        assert_eq!(origins.of("updates"), "r.yaml:3:10");
        // What is written short is at the place of its whole.
        assert_eq!(origins.of("micro_batch.frames"), "r.yaml:4:14");
        assert_eq!(origins.stage(0).of("updates"), "r.yaml:6:15");
        assert_eq!(origins.stage(1).of("updates"), "r.yaml:3:10");
        origins.option("micro_batch.frames");
        assert_eq!(origins.of("micro_batch"), "command line");
        assert!(!origins.is_option("micro") && !origins.is_option("updates"));
        assert_eq!(origins.of("threads"), "recipe");
        let of_a_stage = ["updates", "lora", "precision"].map(|key| origins.is_of_a_stage(key));
        assert_eq!(of_a_stage, [true, true, false]);
    }
}
