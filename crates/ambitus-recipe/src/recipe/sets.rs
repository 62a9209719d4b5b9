//! Several data sets in place of one.
//!
//! ```yaml
//! data:
//!   sets:
//!     - {dir: anna, weight: 9}           # nine of ten clips of any stretch of updates
//!     - {dir: libri, weight: 1, voice: leo}
//!   max_seconds: 12
//! ```
//! `data: [...]` is `data: {sets: [...]}`.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use super::Data;
use super::validate::{Invalid, real, refuse};

/// Data sets of a run, at most.
const MOST_SETS: usize = 64;
/// Longest name of a data set, which stands before those of its clips.
const MAX_NAME: usize = 80;

/// A data set of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSet {
    /// Folder of audio with transcripts, or a CSV or JSONL file.
    pub dir: PathBuf,
    /// What it is called in losses and names of clips, `NAME/clip.wav`. Absent: the last part of `dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How many of the clips of an update are its own, in relation to the other sets: of weights 9 and 1, nine of ten, however many clips
    /// each has [default: 1].
    #[serde(default = "once")]
    pub weight: f64,
    /// The voice of those of its clips that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voice: Option<String>,
}

fn once() -> f64 {
    1.0
}

impl DataSet {
    /// Returns what it is called.
    pub fn name(&self) -> String {
        let last = || self.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        self.name.clone().or_else(last).unwrap_or_else(|| "data".to_owned())
    }
}

impl Data {
    /// Returns whether it names any data.
    pub fn is_given(&self) -> bool {
        self.dir.is_some() || !self.sets.is_empty()
    }

    /// Returns where data lies.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dir.as_deref().into_iter().chain(self.sets.iter().map(|set| &*set.dir))
    }

    /// Returns where data lies, to be changed.
    pub fn dirs_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.dir.iter_mut().chain(self.sets.iter_mut().map(|set| &mut set.dir))
    }

    /// Takes the data at `dir` in place of all that it names.
    pub fn take(&mut self, dir: PathBuf) {
        self.sets.clear();
        self.dir = Some(dir);
    }

    pub(super) fn validate_sets(&self) -> Result<(), Invalid> {
        if self.dir.is_some() && !self.sets.is_empty() {
            return refuse(
                "data.sets",
                "stands beside data.dir: make that one of the sets, or leave one of the two out",
            );
        }
        if self.sets.len() > MOST_SETS {
            return refuse(
                "data.sets",
                format!("has {} data sets; at most {MOST_SETS} are read", self.sets.len()),
            );
        }
        let names: Vec<String> = self.sets.iter().map(DataSet::name).collect();
        for (i, (set, name)) in self.sets.iter().zip(&names).enumerate() {
            let bad = |key: &str, why: String| Err(Invalid { key: format!("data.sets.{i}.{key}"), why });
            real(
                "data.sets",
                set.weight,
                set.weight > 0.0 && set.weight <= 1e6,
                "a weight above 0 and at most 1e6",
            )
            .or_else(|e| bad("weight", e.why))?;
            let sound = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(['/', '\\']);
            if !sound || name.chars().any(char::is_control) {
                return bad(
                    "name",
                    format!("is not a name of 1 to {MAX_NAME} bytes without slashes: give it one"),
                );
            }
            if let Some(other) = names[..i].iter().position(|other| other == name) {
                return bad(
                    "name",
                    format!(
                        "data sets {} and {} are both called `{name}`: give one another `name`",
                        other + 1,
                        i + 1
                    ),
                );
            }
            if set.voice.as_ref().is_some_and(|voice| voice.trim().is_empty()) {
                return bad("voice", "is empty: name the voice, or leave it out".to_owned());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::recipe::Recipe;

    fn parsed(data: &str) -> Result<Recipe, String> {
        let text = format!("model: {{dir: a}}\n{data}\n");
        let recipe = Recipe::parse(&text, "r.yaml").map_err(|e| e.to_string())?.0;
        let written = recipe.to_yaml()?;
        assert_eq!(Recipe::parse(&written, "w.yaml").expect(&written).0, recipe, "{written}");
        Ok(recipe)
    }

    #[test]
    fn data_is_one_set_or_several() {
        let short = parsed("data: [{dir: x/anna, weight: 9}, {dir: y, voice: leo, name: old}]").unwrap().data;
        let long = parsed(
            "data:\n  sets:\n    - {dir: x/anna, weight: 9}\n    - dir: y\n      voice: leo\n      name: old\n  max_seconds: 12",
        );
        let mut long = long.unwrap().data;
        assert_eq!(long.max_seconds, 12.0);
        long.max_seconds = short.max_seconds;
        assert_eq!(short, long);
        let names: Vec<String> = short.sets.iter().map(|set| set.name()).collect();
        assert_eq!((names, short.sets[1].weight), (vec!["anna".to_owned(), "old".to_owned()], 1.0));
        let mut one = short.clone();
        one.take("z".into());
        assert_eq!(one.dirs().collect::<Vec<_>>(), ["z"]);
        assert_eq!(short.dirs().collect::<Vec<_>>(), ["x/anna", "y"]);
    }

    #[test]
    fn sets_that_make_no_sense_are_refused_where_they_stand() {
        for (data, words) in [
            ("data: [{dir: a, weight: 0}]", "r.yaml:2:25: data.sets.0.weight: 0 is not a weight above 0"),
            ("data: [{dir: a}, {dir: b/a}]", "are both called `a`"),
            ("data: [{dir: a, nam: b}]", "unknown key `nam` (did you mean `name`?)"),
            ("data: [{weight: 1}]", "the key `dir` is missing"),
            ("data: {dir: b, sets: [{dir: a}]}", "stands beside data.dir"),
            ("data: {max_seconds: 3}", "r.yaml:2:7: data: the key `dir` is missing"),
            ("data: []", "the key `dir` is missing"),
            ("data: b", "data"),
            ("data: [{dir: a, name: b/c}]", "without slashes"),
            ("data: [{dir: a, voice: ' '}]", "data.sets.0.voice: is empty"),
        ] {
            let why = parsed(data).expect_err(data);
            assert!(why.contains(words), "{data}: {why}");
        }
    }
}
