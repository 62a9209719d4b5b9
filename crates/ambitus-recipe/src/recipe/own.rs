//! Keys of a single model family: they are in a section named after it, which the family reads.

use super::Recipe;
use super::read::{KeysAndValues, RecipeError, place_of, short};
use crate::near::nearest;
use serde::de::value::{MapDeserializer, SeqAccessDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// Values of families' sections, by section and key.
pub type Own = BTreeMap<String, Map<String, Value>>;

/// The section of a family.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// Its keys.
    pub keys: &'static [OwnKey],
}

/// A key of a section.
#[derive(Clone, Copy, Debug)]
pub struct OwnKey {
    /// Its name.
    pub name: &'static str,
    /// What it says, for `docs/recipe.md`.
    pub says: &'static str,
    /// Where it stood before there were sections, as `data.voice`: there it is still read.
    pub before: Option<&'static str>,
    /// Its option on the command line.
    pub option: Option<OwnOption>,
}

/// An option on the command line.
#[derive(Clone, Copy, Debug)]
pub struct OwnOption {
    /// Without the dashes.
    pub flag: &'static str,
    /// Of its value. `None`: it is given or not.
    pub value: Option<&'static str>,
    /// For `--help`.
    pub help: &'static str,
    /// Its value is a path: made absolute, so that a run means the same from anywhere.
    pub is_path: bool,
}

/// A value at a path that the recipe itself has no key for.
struct Other {
    path: String,
    value: Value,
    /// Keys that are known there.
    known: &'static [&'static str],
}

impl Recipe {
    /// Returns the value of a family's own key.
    pub fn own(&self, section: &str, key: &str) -> Option<&Value> {
        self.own.get(section)?.get(key)
    }

    /// Says a family's own key.
    pub fn set_own(&mut self, section: &str, key: &str, value: impl Into<Value>) {
        self.own.entry(section.to_owned()).or_default().insert(key.to_owned(), value.into());
    }

    /// Returns every value with its key, those of sections too.
    pub fn to_value(&self) -> Value {
        let mut all = serde_json::to_value(self).unwrap_or_default();
        if let Value::Object(all) = &mut all {
            all.extend(self.own.iter().map(|(section, keys)| (section.clone(), Value::Object(keys.clone()))));
        }
        all
    }
}

/// A recipe as it stands in a file, and what of the file it has no key for.
pub(super) struct Whole {
    /// `Err`: what is wrong where the file was read to its end, as a key that is missing. One that is misspelled goes before it.
    recipe: Result<Box<Recipe>, String>,
    others: Vec<Other>,
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Whole, D::Error> {
        let others = Others::default();
        let recipe = Recipe::deserialize(Keys { inner: d, path: "", others: &others });
        let (others, ended) = (others.all.into_inner(), others.ended.into_inner());
        match recipe {
            Ok(recipe) => Ok(Whole { recipe: Ok(Box::new(recipe)), others }),
            Err(e) if ended && !others.is_empty() => Ok(Whole { recipe: Err(e.to_string()), others }),
            Err(e) => Err(e),
        }
    }
}

impl Whole {
    /// Returns the recipe with what belongs to sections; and what stands where it stood before there were any, for people.
    ///
    /// # Errors
    /// Keys that no section has, keys that are said twice.
    pub fn settled(
        self,
        sections: &[&Section],
        file: &str,
        places: &KeysAndValues,
    ) -> Result<(Recipe, Vec<String>), RecipeError> {
        let Whole { recipe, others } = self;
        let (mut recipe, lacks) = match recipe {
            Ok(recipe) => (*recipe, None),
            Err(why) => (Recipe::without_data(""), Some(why)),
        };
        let fail = |path: &str, why: String| RecipeError {
            file: file.to_owned(),
            place: place_of(path, &places.keys),
            key: Some(path.to_owned()),
            why,
        };
        let mut notes = Vec::new();
        for Other { path, value, known } in others {
            let section = sections.iter().find(|s| s.name == path);
            let before = sections
                .iter()
                .find_map(|s| s.keys.iter().find(|k| k.before == Some(&*path)).map(|k| (s.name, k.name)));
            match (section, value, before) {
                (Some(section), Value::Object(keys), _) => {
                    for (key, value) in keys {
                        let known: Vec<&str> = section.keys.iter().map(|k| k.name).collect();
                        let path = format!("{}.{key}", section.name);
                        if !known.contains(&&*key) {
                            return Err(fail(&path, unknown(&key, &known)));
                        }
                        if recipe.own(section.name, &key).is_some() {
                            let before = section.keys.iter().find_map(|k| k.before.filter(|_| k.name == key));
                            return Err(fail(&path, twice(before.unwrap_or_default())));
                        }
                        recipe.set_own(section.name, &key, value);
                    }
                }
                (Some(_), ..) => return Err(fail(&path, "is not a map of keys and values".to_owned())),
                (None, value, Some((section, key))) => {
                    if recipe.own(section, key).is_some() {
                        return Err(fail(&path, twice(&format!("{section}.{key}"))));
                    }
                    recipe.set_own(section, key, value);
                    notes
                        .push(format!("{path} has moved to its family's section: `{section}: {{{key}: …}}`"));
                }
                (None, ..) => {
                    let key = path.rsplit('.').next().unwrap_or(&path);
                    let more: Vec<&str> = match path.contains('.') {
                        true => Vec::new(),
                        false => sections.iter().map(|s| s.name).collect(),
                    };
                    let known: Vec<&str> = known.iter().copied().chain(more).collect();
                    return Err(fail(&path, unknown(key, &known)));
                }
            }
        }
        match lacks {
            None => Ok((recipe, notes)),
            Some(why) => Err(RecipeError { file: file.to_owned(), place: None, key: None, why: short(&why) }),
        }
    }
}

/// What was kept aside, and whether the file was read to its end.
#[derive(Default)]
struct Others {
    all: RefCell<Vec<Other>>,
    ended: Cell<bool>,
}

/// Returns what is said of a key that another place says.
fn twice(other: &str) -> String {
    format!("`{other}` sets it too: keep one")
}

/// Returns the message about an unknown key.
fn unknown(key: &str, known: &[&str]) -> String {
    let meant = nearest(key, known.iter().copied());
    let meant = meant.map_or(String::new(), |near| format!(" (did you mean `{near}`?)"));
    format!("unknown key `{}`{meant}; known here: {}", short(key), known.join(", "))
}

/// A deserializer whose maps keep aside what a structure has no field for; also of the recipe's `model` and `data`.
struct Keys<'a, D> {
    inner: D,
    path: &'a str,
    others: &'a Others,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Keys<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Keys { inner, path, others } = self;
        let fields = Fields { visitor, known, path, others };
        match path {
            // It may be a list.
            "data" => inner.deserialize_any(fields),
            _ => inner.deserialize_struct(name, known, fields),
        }
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Fields<'a, V> {
    visitor: V,
    known: &'static [&'static str],
    path: &'a str,
    others: &'a Others,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let Fields { visitor, known, path, others } = self;
        visitor.visit_map(Known { map, known, path, others, at: String::new() })
    }

    /// A list of data sets is short for the map that has it as `sets`.
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(MapDeserializer::new([("sets", SeqAccessDeserializer::new(list))].into_iter()))
    }
}

/// The entries of a map that a structure has fields for.
struct Known<'a, A> {
    map: A,
    known: &'static [&'static str],
    path: &'a str,
    others: &'a Others,
    /// The key whose value comes next.
    at: String,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Known<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            let Some(key) = self.map.next_key::<String>()? else {
                self.others.ended.set(self.path.is_empty());
                return Ok(None);
            };
            if self.known.contains(&&*key) {
                self.at.clone_from(&key);
                let key: StringDeserializer<A::Error> = key.into_deserializer();
                return seed.deserialize(key).map(Some);
            }
            let path = if self.path.is_empty() { key } else { format!("{}.{key}", self.path) };
            let value = self.map.next_value()?;
            self.others.all.borrow_mut().push(Other { path, value, known: self.known });
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let has_own = self.path.is_empty() && ["model", "data"].contains(&&*self.at);
        if !has_own {
            return self.map.next_value_seed(seed);
        }
        self.map.next_value_seed(Within { seed, path: &self.at, others: self.others })
    }
}

/// The value of a key whose own keys are looked at too.
struct Within<'a, S> {
    seed: S,
    path: &'a str,
    others: &'a Others,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Within<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.seed.deserialize(Keys { inner, path: self.path, others: self.others })
    }
}

/// Returns the values of a section as the family's own structure.
///
/// # Errors
/// What is not a value of its key, with the section's name.
pub fn read<T: de::DeserializeOwned>(own: &Own, section: &str) -> Result<T, String> {
    let keys = own.get(section).cloned().unwrap_or_default();
    // One at a time, so that an error has its key.
    for (key, value) in &keys {
        let one = Map::from_iter([(key.clone(), value.clone())]);
        T::deserialize(Value::Object(one))
            .map_err(|e| format!("{section}.{key}: {}", short(&e.to_string())))?;
    }
    T::deserialize(Value::Object(keys)).map_err(|e| format!("{section}: {}", short(&e.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTIONS: [&Section; 1] = [&Section {
        name: "singer",
        keys: &[
            OwnKey { name: "voice", says: "", before: Some("data.voice"), option: None },
            OwnKey { name: "notes", says: "", before: None, option: None },
        ],
    }];

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Singer {
        voice: Option<String>,
        notes: u32,
    }

    fn parsed(data: &str, more: &str) -> Result<(Recipe, Vec<String>), String> {
        let text = format!("model: {{dir: a}}\ndata: {{dir: b{data}}}\n{more}\n");
        let parsed = Recipe::parse_with(&text, "r.yaml", &SECTIONS).map_err(|e| e.to_string())?;
        let written = parsed.0.to_yaml()?;
        assert_eq!(
            Recipe::parse_with(&written, "w.yaml", &SECTIONS).expect(&written).0,
            parsed.0,
            "{written}"
        );
        Ok((parsed.0, parsed.1.notes().to_vec()))
    }

    #[test]
    fn a_section_is_read_by_its_family() {
        let (recipe, notes) = parsed("", "singer: {voice: ana, notes: 3}").unwrap();
        let read = |recipe: &Recipe| read::<Singer>(&recipe.own, "singer");
        assert_eq!(read(&recipe), Ok(Singer { voice: Some("ana".to_owned()), notes: 3 }));
        assert!(notes.is_empty());
        assert_eq!(recipe.to_value()["singer"]["notes"], 3);
        // Where it stood before.
        let (recipe, notes) = parsed(", voice: ana", "").unwrap();
        assert_eq!(read(&recipe).unwrap().voice.as_deref(), Some("ana"));
        assert!(notes[0].contains("data.voice") && notes[0].contains("singer: {voice: …}"), "{notes:?}");
        assert_eq!(read(&Recipe::new("a", "b")), Ok(Singer::default()));
        let (recipe, _) = parsed("", "singer: {notes: high}").unwrap();
        assert!(read(&recipe).unwrap_err().starts_with("singer.notes: invalid type"));
    }

    #[test]
    fn what_no_section_has_is_refused_where_it_stands() {
        let why = |data: &str, more: &str| parsed(data, more).expect_err(more);
        assert!(
            why("", "singer: {voic: x}")
                .starts_with("r.yaml:3:10: singer.voic: unknown key `voic` (did you mean `voice`?)")
        );
        assert!(why("", "singer: 3").contains("is not a map"));
        let misspelled =
            Recipe::parse_with("model: {dir: a, dirr: b}\n", "r.yaml", &SECTIONS).expect_err("no data");
        assert!(misspelled.to_string().starts_with("r.yaml:1:17: model.dirr: unknown key"), "{misspelled}");
        let lacks = Recipe::parse_with("singer: {notes: 1}\n", "r.yaml", &SECTIONS).expect_err("no model");
        assert!(lacks.to_string().contains("model"), "{lacks}");
        assert!(why("", "sniger: {voice: x}").contains("did you mean `singer`?"));
        assert!(why(", voyce: x", "").contains("data.voyce: unknown key `voyce`"));
        assert!(why(", voice: x", "singer: {voice: y}").contains("sets it too"));
    }
}
