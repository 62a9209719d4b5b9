//! Plain values of a pickle, as JSON: what trainers keep of their options beside the tensors.

use crate::pickle::{Node, Pickle, Value};
use serde_json::{Map, Value as Json};

/// Nesting of containers at most.
const MAX_DEPTH: usize = 32;

/// Returns a value as JSON: tuples as lists, and what is neither number, text, list nor dictionary as null.
///
/// # Errors
/// Values that are nested too deeply, or unfold to more than the pickle's size: one container may be reached many times.
pub(crate) fn json(pickle: &Pickle<'_>, value: Value) -> Result<Json, String> {
    unfold(pickle, value, 0, &mut pickle.len())
}

/// `left`: values and bytes of text that may still be made.
fn unfold(pickle: &Pickle<'_>, value: Value, depth: usize, left: &mut usize) -> Result<Json, String> {
    if depth == MAX_DEPTH {
        return Err(format!("is nested deeper than {MAX_DEPTH} levels"));
    }
    let mut take = |bytes: usize| match left.checked_sub(bytes) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err("unfolds to more values than its size justifies".to_owned()),
    };
    take(1)?;
    let Value::Node(id) = value else {
        return Ok(match value {
            Value::Bool(b) => b.into(),
            Value::Int(n) => n.into(),
            Value::Float(x) => x.into(),
            Value::Str(text) => {
                let text = pickle.text(text);
                take(text.len())?;
                text.into()
            }
            Value::None | Value::Ignored | Value::Node(_) => Json::Null,
        });
    };
    match &pickle.nodes[id as usize] {
        Node::List(items) | Node::Tuple(items) => {
            items.iter().map(|&item| unfold(pickle, item, depth + 1, left)).collect()
        }
        Node::Dict(items) => {
            let mut map = Map::new();
            for &(key, value) in items {
                let key = unfold(pickle, key, depth + 1, left)?;
                let value = unfold(pickle, value, depth + 1, left)?;
                // Of other keys nobody asks.
                if let Json::String(key) = key {
                    map.insert(key, value);
                }
            }
            Ok(Json::Object(map))
        }
        _ => Ok(Json::Null),
    }
}
