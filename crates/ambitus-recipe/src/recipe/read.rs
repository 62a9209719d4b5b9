//! Reading and writing a recipe. The text is parsed twice: once into the places of its keys, once into the recipe; so every
//! error has a file, a line, a column and a key.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde_saphyr::options::{MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Error as Yaml, Location, Options};
use thiserror::Error;

use super::Recipe;
use super::origins::Origins;
use super::own::{Section, Whole};
use super::tree::{Node, Tree, place};
use crate::near::nearest;

/// Largest recipe file.
pub const MAX_RECIPE_BYTES: u64 = 1 << 20;

/// Where in the file something is, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

/// Where things stand, by path: `data.dir`, `data.validation.0`.
pub(super) type Places = BTreeMap<String, Place>;

/// A recipe that cannot be used: where, which key, why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct RecipeError {
    /// The file, as it was named.
    pub file: String,
    /// Where in it.
    pub place: Option<Place>,
    /// The key's path.
    pub key: Option<String>,
    /// What is wrong and what to do.
    pub why: String,
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Place { line, column }) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl Recipe {
    /// Reads and checks a recipe file of at most [`MAX_RECIPE_BYTES`], with the sections of these families.
    pub fn read(path: &Path, sections: &[&Section]) -> Result<(Recipe, Origins), RecipeError> {
        let file = path.display().to_string();
        Recipe::parse_with(&read_text(path, "a recipe is a YAML file")?, &file, sections)
    }

    /// Reads and checks a recipe without sections from its text; `file` is for messages.
    pub fn parse(text: &str, file: &str) -> Result<(Recipe, Origins), RecipeError> {
        Recipe::parse_with(text, file, &[])
    }

    /// Reads and checks a recipe from its text, with the sections of these families.
    pub fn parse_with(
        text: &str,
        file: &str,
        sections: &[&Section],
    ) -> Result<(Recipe, Origins), RecipeError> {
        let mut places = KeysAndValues::default();
        let tree = read_tree(text, file)?;
        flatten(&tree, &mut String::new(), &mut places);
        let whole: Whole =
            serde_saphyr::from_str_with_options(text, options()).map_err(|e| explain(&e, file, &places))?;
        let (recipe, notes) = whole.settled(sections, file, &places)?;
        let refused = |key: String, why| RecipeError {
            file: file.to_owned(),
            place: place_of(&key, &places.values),
            key: Some(key),
            why,
        };
        if !recipe.data.is_given() {
            return Err(refused("data".to_owned(), "the key `dir` is missing".to_owned()));
        }
        // A list is short for the sets.
        let in_file = |key: &str| match key.strip_prefix("data.sets.") {
            Some(rest) if !places.values.contains_key("data.sets") => format!("data.{rest}"),
            _ => key.to_owned(),
        };
        recipe.validate().map_err(|bad| RecipeError {
            place: place_of(&in_file(&bad.key), &places.values),
            ..refused(bad.key, bad.why)
        })?;
        Ok((recipe, Origins::of_file(file, places.values, notes)))
    }

    /// Returns the recipe as YAML that [`Recipe::parse`] reads back unchanged.
    pub fn to_yaml(&self) -> Result<String, String> {
        let written = |e| format!("the recipe cannot be written as YAML: {e}");
        let text = serde_saphyr::to_string(self).map_err(written)?;
        match self.own.is_empty() {
            true => Ok(text),
            false => Ok(text + &serde_saphyr::to_string(&self.own).map_err(written)?),
        }
    }
}

/// Returns the text of a file of at most [`MAX_RECIPE_BYTES`]; `what` says what is expected of it.
pub fn read_text(path: &Path, what: &str) -> Result<String, RecipeError> {
    let file = path.display().to_string();
    let fail = |why: String| RecipeError { file: file.clone(), place: None, key: None, why };
    let (open, _) = ambitus_store::open_file(path).map_err(|e| {
        fail(e.source.as_ref().map_or_else(|| format!("{}: {what}", e.what), ToString::to_string))
    })?;
    let mut bytes = Vec::new();
    open.take(MAX_RECIPE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
    if bytes.len() as u64 > MAX_RECIPE_BYTES {
        return Err(fail(format!("is larger than 1 MiB: {what}")));
    }
    String::from_utf8(bytes).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..good].iter().filter(|b| **b == b'\n').count() + 1;
        fail(format!("line {line} is not UTF-8 text"))
    })
}

/// Returns a file's keys and values with their places, under the limits of [`options`].
pub(crate) fn read_tree(text: &str, file: &str) -> Result<Tree, RecipeError> {
    serde_saphyr::from_str_with_options(text, options())
        .map_err(|e| explain(&e, file, &KeysAndValues::default()))
}

/// Returns the place of a key, or of the nearest key around it (`micro_batch: 0` is `micro_batch.frames`).
pub(super) fn place_of(key: &str, places: &Places) -> Option<Place> {
    let mut key = key;
    loop {
        if let Some(place) = places.get(key) {
            return Some(*place);
        }
        key = key.rsplit_once('.')?.0;
    }
}

/// Returns the limits of a small file that people write by hand: no anchors, so no bombs; shallow; one document.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 300_000,
            max_nodes: 100_000,
            max_depth: 8,
            flow_nesting_limit: 8,
            max_anchors: 0,
            max_aliases: 0,
            max_merge_keys: 0,
            max_documents: 1,
            max_recorded_anchor_events: 0,
            max_recorded_anchor_bytes: 0,
            max_total_scalar_bytes: MAX_RECIPE_BYTES as usize,
        },
        merge_keys: MergeKeyPolicy::Error,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// Of each path, where its key and where its value stand.
#[derive(Default)]
pub(super) struct KeysAndValues {
    pub keys: Places,
    pub values: Places,
}

fn explain(error: &Yaml, file: &str, places: &KeysAndValues) -> RecipeError {
    let error = error.without_snippet();
    let known = |l: &Location| *l != Location::UNKNOWN && l.line() > 0;
    let place = error.location().filter(known).map(place);
    // The innermost key there, which has the longest path.
    let at = |places: &Places| {
        let here = places.iter().filter(|(_, p)| Some(**p) == place).map(|(k, _)| k);
        here.max_by_key(|k| k.len()).cloned()
    };
    // A missing key is an error of the mapping, which starts where its first key does.
    let of_mapping = matches!(error, Yaml::SerdeMissingField { .. });
    let key = if of_mapping { None } else { at(&places.keys) }.or_else(|| at(&places.values));
    let list = |names: &[&str]| names.join(", ");
    let why = match error {
        Yaml::SerdeUnknownField { field, expected, .. } => {
            let meant = nearest(field, expected.iter().copied());
            let meant = meant.map_or(String::new(), |near| format!(" (did you mean `{near}`?)"));
            format!("unknown key `{}`{meant}; known here: {}", short(field), list(expected))
        }
        Yaml::SerdeMissingField { field, .. } => format!("the key `{field}` is missing"),
        Yaml::DuplicateMappingKey { key: Some(name), .. } => {
            format!("the key `{}` is there twice", short(name))
        }
        Yaml::SerdeUnknownVariant { variant, expected, .. } => {
            format!("`{}` is not one of {}", short(variant), list(expected))
        }
        Yaml::SerdeInvalidType { unexpected, expected, .. }
        | Yaml::SerdeInvalidValue { unexpected, expected, .. } => {
            format!("expected {expected}, found {}", short(unexpected))
        }
        Yaml::InvalidScalar { ty, .. } => match *ty {
            "floating point" => "expected a number".to_owned(),
            "u64" | "u32" => "expected a whole number, 0 or more".to_owned(),
            ty => format!("expected {ty}"),
        },
        Yaml::InvalidBooleanStrict { .. } => "expected true or false".to_owned(),
        Yaml::NullIntoString { .. } => "is empty".to_owned(),
        Yaml::ExpectedMappingEndAfterEnumVariantValue { .. } => "give only one of these keys".to_owned(),
        Yaml::Eof { .. } => "the text ends here; at least model.dir and data.dir are needed".to_owned(),
        Yaml::Budget { .. } => {
            "not a recipe: anchors and aliases (& and *), several documents, and nesting or numbers of \
                                values beyond any recipe are not read"
                .to_owned()
        }
        Yaml::MergeKeyNotAllowed { .. } => "merge keys (<<) are not read in a recipe".to_owned(),
        Yaml::Message { msg, .. } => short(msg),
        other => {
            let text = other.to_string();
            short(text.split(" at line ").next().unwrap_or(&text))
        }
    };
    RecipeError { file: file.to_owned(), place, key, why }
}

/// Shortens a text to one line of bounded length: errors repeat text of untrusted files.
pub fn short(text: &str) -> String {
    const MOST: usize = 300;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut out: String = text.chars().take(MOST).map(clean).collect();
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}

/// Puts the places of what is in a tree below `path` into `places`. Depth is bounded by the parser's `max_depth`.
fn flatten(tree: &Tree, path: &mut String, places: &mut KeysAndValues) {
    let start = path.len();
    let mut visit = |name: &str, key: Option<Place>, child: &Tree| {
        if start > 0 {
            path.push('.');
        }
        path.push_str(name);
        places.values.insert(path.clone(), child.place);
        if let Some(key) = key {
            places.keys.insert(path.clone(), key);
        }
        flatten(child, path, places);
        path.truncate(start);
    };
    match &tree.node {
        Node::List(items) => items.iter().enumerate().for_each(|(i, t)| visit(&i.to_string(), None, t)),
        Node::Map(items) => items.iter().for_each(|(k, t)| visit(&k.name, Some(k.place), t)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
