//! Reading and writing a recipe. The text is parsed twice: once into the places of its keys, once into the recipe; so every
//! error has a file, a line, a column and a key.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};
use serde_saphyr::options::{MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Error as Yaml, Location, Options, Spanned};
use thiserror::Error;

use super::Recipe;

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

/// Where the value of each key that the file has stands, by path: `data.dir`, `data.validation.0`.
pub type Origins = BTreeMap<String, Place>;

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
    /// Reads and checks a recipe file of at most [`MAX_RECIPE_BYTES`].
    pub fn read(path: &Path) -> Result<(Recipe, Origins), RecipeError> {
        let file = path.display().to_string();
        let fail = |why: String| RecipeError { file: file.clone(), place: None, key: None, why };
        let open = std::fs::File::open(path).map_err(|e| fail(e.to_string()))?;
        if !open.metadata().map_err(|e| fail(e.to_string()))?.is_file() {
            return Err(fail("is not a file: a recipe is a YAML file".to_owned()));
        }
        let mut bytes = Vec::new();
        open.take(MAX_RECIPE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
        if bytes.len() as u64 > MAX_RECIPE_BYTES {
            return Err(fail("is larger than 1 MiB: this is not a recipe".to_owned()));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Recipe::parse(text, &file),
            Err(e) => {
                let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
                Err(fail(format!("line {line} is not UTF-8 text")))
            }
        }
    }

    /// Reads and checks a recipe from its text; `file` is for messages.
    pub fn parse(text: &str, file: &str) -> Result<(Recipe, Origins), RecipeError> {
        let mut places = Places::default();
        let tree = serde_saphyr::from_str_with_options::<Tree>(text, options())
            .map_err(|e| explain(&e, file, &places))?;
        tree.flatten(&mut String::new(), &mut places);
        let recipe: Recipe =
            serde_saphyr::from_str_with_options(text, options()).map_err(|e| explain(&e, file, &places))?;
        recipe.validate().map_err(|bad| RecipeError {
            file: file.to_owned(),
            place: place_of(&bad.key, &places.values),
            key: Some(bad.key),
            why: bad.why,
        })?;
        Ok((recipe, places.values))
    }

    /// The recipe as YAML that [`Recipe::parse`] reads back unchanged.
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(self).map_err(|e| format!("the recipe cannot be written as YAML: {e}"))
    }
}

/// The place of a key, or of the nearest key around it (`micro_batch: 0` is `micro_batch.frames`).
fn place_of(key: &str, places: &Origins) -> Option<Place> {
    let mut key = key;
    loop {
        if let Some(place) = places.get(key) {
            return Some(*place);
        }
        key = key.rsplit_once('.')?.0;
    }
}

/// Limits of a small file that people write by hand: no anchors, so no bombs; shallow; one document.
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
struct Places {
    keys: Origins,
    values: Origins,
}

fn explain(error: &Yaml, file: &str, places: &Places) -> RecipeError {
    let error = error.without_snippet();
    let known = |l: &Location| *l != Location::UNKNOWN && l.line() > 0;
    let place = error.location().filter(known).map(place);
    // The innermost key there, which has the longest path.
    let at = |origins: &Origins| {
        let here = origins.iter().filter(|(_, p)| Some(**p) == place).map(|(k, _)| k);
        here.max_by_key(|k| k.len()).cloned()
    };
    // A missing key is an error of the mapping, which starts where its first key does.
    let of_mapping = matches!(error, Yaml::SerdeMissingField { .. });
    let key = if of_mapping { None } else { at(&places.keys) }.or_else(|| at(&places.values));
    let list = |names: &[&str]| names.join(", ");
    let why = match error {
        Yaml::SerdeUnknownField { field, expected, .. } => {
            format!("unknown key `{}`; known here: {}", short(field), list(expected))
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

/// One line of bounded length: errors repeat text of a file nobody vouches for.
fn short(text: &str) -> String {
    const MOST: usize = 300;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut out: String = text.chars().take(MOST).map(clean).collect();
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}

/// The file's keys and where their values stand; nothing else of it.
struct Tree {
    place: Place,
    inner: Node,
}

enum Node {
    Scalar,
    List(Vec<Tree>),
    Map(Vec<(Spanned<String>, Tree)>),
}

impl Tree {
    /// Depth is bounded by the parser's `max_depth`.
    fn flatten(&self, path: &mut String, places: &mut Places) {
        let start = path.len();
        let mut visit = |name: &str, key: Option<Location>, child: &Tree| {
            if start > 0 {
                path.push('.');
            }
            path.push_str(name);
            places.values.insert(path.clone(), child.place);
            if let Some(key) = key {
                places.keys.insert(path.clone(), place(key));
            }
            child.flatten(path, places);
            path.truncate(start);
        };
        match &self.inner {
            Node::Scalar => {}
            Node::List(items) => items.iter().enumerate().for_each(|(i, t)| visit(&i.to_string(), None, t)),
            Node::Map(items) => items.iter().for_each(|(k, t)| visit(&k.value, Some(k.referenced), t)),
        }
    }
}

fn place(l: Location) -> Place {
    Place { line: l.line(), column: l.column() }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Tree, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Node>::deserialize(d)?;
        Ok(Tree { place: place(referenced), inner: value })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Node, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_str<E>(self, _: &str) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Scalar)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = map.next_entry()? {
                    items.push(item);
                }
                Ok(Node::Map(items))
            }
        }
        d.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests;
