//! Keys and values of a text with the place of each, before their meaning is known.

use super::Place;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};
use serde_saphyr::{Location, Spanned};
use std::fmt;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tree {
    pub place: Place,
    pub node: Node,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Whole(i128),
    Real(f64),
    Text(String),
    /// What would have to be run to know its value: of Python, never of YAML.
    Code(String),
    List(Vec<Tree>),
    Map(Vec<(Key, Tree)>),
}

impl Node {
    /// Returns whether it, or something in it, would have to be run.
    pub fn has_code(&self) -> bool {
        match self {
            Node::Code(_) => true,
            Node::List(items) => items.iter().any(|t| t.node.has_code()),
            Node::Map(items) => items.iter().any(|(_, t)| t.node.has_code()),
            _ => false,
        }
    }
}

/// A key and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub name: String,
    pub place: Place,
}

pub(super) fn place(l: Location) -> Place {
    Place { line: l.line(), column: l.column() }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Tree, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Node>::deserialize(d)?;
        Ok(Tree { place: place(referenced), node: value })
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
            fn visit_bool<E>(self, on: bool) -> Result<Node, E> {
                Ok(Node::Bool(on))
            }
            fn visit_i64<E>(self, n: i64) -> Result<Node, E> {
                Ok(Node::Whole(n.into()))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Node, E> {
                Ok(Node::Whole(n.into()))
            }
            fn visit_i128<E>(self, n: i128) -> Result<Node, E> {
                Ok(Node::Whole(n))
            }
            fn visit_u128<E>(self, n: u128) -> Result<Node, E> {
                Ok(i128::try_from(n).map_or(Node::Real(n as f64), Node::Whole))
            }
            fn visit_f64<E>(self, x: f64) -> Result<Node, E> {
                Ok(Node::Real(x))
            }
            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.to_owned()))
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Node, E> {
                Ok(Node::Text(String::from_utf8_lossy(bytes).into_owned()))
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
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
                while let Some((key, value)) = map.next_entry::<Spanned<String>, Tree>()? {
                    items.push((Key { place: place(key.referenced), name: key.value }, value));
                }
                Ok(Node::Map(items))
            }
        }
        d.deserialize_any(Visitor)
    }
}
