//! One key that was given, with its value read in the ways that these files write it.

use crate::recipe::tree::{Node, Tree};
use crate::recipe::{Place, RecipeError, short};

/// Most characters of a value that are shown.
const SHOWN: usize = 60;

/// A key with its value and place.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The file, as it was named.
    pub file: String,
    /// Where the value stands.
    pub place: Place,
    /// The key as the file has it, with the sections around it.
    pub path: String,
    /// What it means to us: a key of [`super::keys`], or `None` if it is unknown.
    pub known: Option<super::keys::Known>,
    /// The value.
    pub node: Node,
    /// Why another place says it instead: as if this one were not there.
    pub hushed: Option<String>,
}

impl Given {
    pub fn new(file: &str, path: String, tree: Tree) -> Given {
        Given { file: file.to_owned(), place: tree.place, known: None, path, node: tree.node, hushed: None }
    }

    /// Returns `file:line:column`.
    pub fn at(&self) -> String {
        format!("{}:{}:{}", short(&self.file), self.place.line, self.place.column)
    }

    /// Returns `key at file:line:column`, for the recipe's comments.
    pub fn from(&self) -> String {
        format!("{} at {}", short(&self.path), self.at())
    }

    /// Returns `key: value (file:line:column)`, for messages about two of them.
    pub fn full(&self) -> String {
        format!("{}: {} ({})", short(&self.path), self.shown(), self.at())
    }

    /// Returns the value on one short line.
    pub fn shown(&self) -> String {
        if super::keys::is_secret(&self.path) && !self.is_off() && self.switch().is_none() {
            return "(not shown)".to_owned();
        }
        let text = short(&show(&self.node));
        match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    /// Returns what is wrong with it.
    pub fn bad(&self, why: impl Into<String>) -> RecipeError {
        RecipeError {
            file: short(&self.file),
            place: Some(self.place),
            key: Some(short(&self.path)),
            why: why.into(),
        }
    }

    /// Returns whether it is the same value as another, however the two are written.
    pub fn same(&self, other: &Given) -> bool {
        loose(&self.node) == loose(&other.node)
    }

    /// Returns whether the value is null, as if the key were absent.
    pub fn is_null(&self) -> bool {
        match &self.node {
            Node::Null => true,
            // `???` is hydra's for what another file has to say.
            Node::Text(t) => {
                t.is_empty() || t == "???" || t.eq_ignore_ascii_case("none") || t.eq_ignore_ascii_case("null")
            }
            Node::List(items) => items.is_empty(),
            Node::Map(items) => items.is_empty(),
            _ => false,
        }
    }

    /// Returns whether it says no more than that the thing is off or empty.
    pub fn is_off(&self) -> bool {
        self.is_null() || self.switch() == Some(false)
    }

    fn switch(&self) -> Option<bool> {
        match &self.node {
            Node::Bool(on) => Some(*on),
            Node::Whole(1) => Some(true),
            Node::Whole(0) => Some(false),
            Node::Text(word) => match word.to_ascii_lowercase().as_str() {
                "y" | "yes" | "t" | "true" | "on" | "1" => Some(true),
                "n" | "no" | "f" | "false" | "off" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether a switch, in any of accelerate's spellings.
    pub fn flag(&self) -> Result<bool, RecipeError> {
        self.switch().ok_or_else(|| self.bad(format!("{} is not true or false", self.shown())))
    }

    /// Returns a number.
    pub fn real(&self) -> Result<f64, RecipeError> {
        let number = match &self.node {
            Node::Whole(n) => Some(*n as f64),
            Node::Real(x) => Some(*x),
            // `5e-5`, which is a text to YAML 1.1, and quoted numbers.
            Node::Text(t) => match super::python::number(&t.trim().replace('_', "")) {
                Some(Node::Whole(n)) => Some(n as f64),
                Some(Node::Real(x)) => Some(x),
                _ => None,
            },
            _ => None,
        };
        let number = number.filter(|x| x.is_finite());
        number.ok_or_else(|| self.bad(format!("{} is not a number", self.shown())))
    }

    /// Returns the numbers of a list.
    pub fn reals(&self) -> Result<Vec<f64>, RecipeError> {
        let Node::List(items) = &self.node else {
            return Err(self.bad(format!("{} is not a list of numbers", self.shown())));
        };
        items.iter().map(|item| Given { node: item.node.clone(), ..self.clone() }.real()).collect()
    }

    /// Returns a whole number, with or without `.0`.
    pub fn whole(&self) -> Result<i64, RecipeError> {
        let x = self.real()?;
        // Every count in use is exact in f64.
        let fits = x.fract() == 0.0 && x.abs() < 9e15;
        if fits { Ok(x as i64) } else { Err(self.bad(format!("{} is not a whole number", self.shown()))) }
    }

    /// Returns a whole number from `least` to `most`.
    pub fn count(&self, least: u64, most: u64) -> Result<u64, RecipeError> {
        let n = self.whole()?;
        let found = u64::try_from(n).ok().filter(|n| (least..=most).contains(n));
        found.ok_or_else(|| self.bad(format!("{n} is not between {least} and {most}")))
    }

    /// Returns a word as it is written.
    pub fn text(&self) -> Result<String, RecipeError> {
        match &self.node {
            Node::Text(t) => Ok(t.clone()),
            Node::Whole(n) => Ok(n.to_string()),
            Node::Bool(on) => Ok(on.to_string()),
            _ => Err(self.bad(format!("{} is not a word", self.shown()))),
        }
    }

    /// Returns one of `names`, in any case, with or without the enum it is of (`StateDictType.FULL`); or its code, 1 for the
    /// first.
    pub fn choice(&self, names: &[&'static str]) -> Result<&'static str, RecipeError> {
        // `1.0` is 1, and no member `0` of an enum `1`.
        let code = self.whole().ok();
        let text = code.map_or_else(|| self.text(), |n| Ok(n.to_string()))?;
        let word = text.rsplit('.').next().unwrap_or_default();
        if let Some(name) = names.iter().find(|n| n.eq_ignore_ascii_case(word)) {
            return Ok(name);
        }
        let code = code.and_then(|n| names.get(usize::try_from(n).ok()?.checked_sub(1)?));
        code.copied().ok_or_else(|| {
            let near = crate::near::nearest(&word.to_ascii_uppercase(), names.iter().copied());
            let near = near.map(|n| format!("; {n} is nearest")).unwrap_or_default();
            let of = names.iter().enumerate().map(|(i, n)| format!("{n} ({})", i + 1));
            self.bad(format!("`{}` is not one of {}{near}", short(&text), of.collect::<Vec<_>>().join(", ")))
        })
    }

    /// Returns words between spaces or commas, or a list of them.
    pub fn words(&self) -> Result<Vec<String>, RecipeError> {
        let split = |t: &str| -> Vec<String> {
            let between = |c: char| c.is_whitespace() || c == ',';
            t.split(between).filter(|w| !w.is_empty()).map(str::to_owned).collect()
        };
        match &self.node {
            Node::List(items) => {
                let text = |t: &Tree| match &t.node {
                    Node::Text(t) => Ok(split(t)),
                    _ => Err(self.bad(format!("{} is not a list of words", self.shown()))),
                };
                items.iter().map(text).collect::<Result<Vec<_>, _>>().map(|w| w.concat())
            }
            Node::Null | Node::Bool(false) => Ok(Vec::new()),
            _ => Ok(split(&self.text()?)),
        }
    }
}

/// Writes a value as a person would.
fn show(node: &Node) -> String {
    let all = |items: &mut dyn Iterator<Item = String>| items.take(20).collect::<Vec<_>>().join(", ");
    match node {
        Node::Null => "null".to_owned(),
        Node::Bool(on) => on.to_string(),
        Node::Whole(n) => n.to_string(),
        Node::Real(x) => super::lines::number(*x),
        Node::Text(t) if t.is_empty() => "\"\"".to_owned(),
        Node::Text(t) | Node::Code(t) => t.clone(),
        Node::List(items) => format!("[{}]", all(&mut items.iter().map(|t| show(&t.node)))),
        Node::Map(items) => {
            format!("{{{}}}", all(&mut items.iter().map(|(k, t)| format!("{}: {}", k.name, show(&t.node)))))
        }
    }
}

/// Returns a value for comparison: numbers by value, words without case.
fn loose(node: &Node) -> String {
    match node {
        Node::Whole(n) => (*n as f64).to_string(),
        Node::Real(x) => x.to_string(),
        Node::Text(t) => match super::python::number(t) {
            Some(n) => loose(&n),
            None => t.to_ascii_lowercase(),
        },
        Node::List(items) => items.iter().map(|t| loose(&t.node)).collect::<Vec<_>>().join(" "),
        other => show(other),
    }
}
