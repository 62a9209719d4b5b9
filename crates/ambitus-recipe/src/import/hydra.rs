//! What hydra composes: files that others name, values that stand for others (`${optim.lr}`), overrides (`optim.lr=1e-5`).

use super::flags::{self, Token, Word};
use super::given::Given;
use crate::recipe::read_tree;
use crate::recipe::tree::{Key, Node, Tree};

/// Returns whether a command's words say that they are hydra's: dora's, or of a solver.
pub(super) fn says(tokens: &[Token]) -> bool {
    tokens.iter().any(|t| matches!(t, Token::Word(w) if w.text == "dora" || w.text.starts_with("solver=")))
}

/// Returns whether words of the form `key=value` among these are overrides: elsewhere a flag may have such values.
pub(super) fn composes(tokens: &[Token]) -> bool {
    says(tokens) || !flags::any(tokens)
}

/// Returns the pieces that are no overrides.
pub(super) fn others(tokens: &[Token]) -> Vec<Token> {
    tokens.iter().filter(|t| !matches!(t, Token::Word(w) if split(w).is_some())).cloned().collect()
}

/// Returns the overrides, each as the nested sections that its key names.
pub(super) fn overrides(tokens: &[Token]) -> Vec<(Key, Tree)> {
    let mut all = Vec::new();
    for token in tokens {
        let Token::Word(word) = token else { continue };
        let Some((key, value)) = split(word) else { continue };
        let mut tree = Tree { place: word.place, node: value };
        let mut names = key.split('.').rev().map(|name| Key { name: name.to_owned(), place: word.place });
        let Some(mut inner) = names.next() else { continue };
        for outer in names {
            tree = Tree { place: word.place, node: Node::Map(vec![(inner, tree)]) };
            inner = outer;
        }
        all.push((inner, tree));
    }
    all
}

/// Returns the key and the value of `key=value`, with `+` before what is added, and `~` before what is taken out. Variables of a shell,
/// which are in capitals, are none.
fn split(word: &Word) -> Option<(&str, Node)> {
    let (key, value) = word.text.split_once('=')?;
    let (key, gone) = match key.strip_prefix('~') {
        Some(key) => (key, true),
        None => (key.trim_start_matches('+'), false),
    };
    let begins = key.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let named = |c: char| c.is_ascii_alphanumeric() || "_./".contains(c);
    if !begins || !key.chars().all(named) || key.split('.').any(str::is_empty) {
        return None;
    }
    let value = match read_tree(value, "") {
        _ if gone => Node::Null,
        _ if word.is_code() => Node::Code(value.to_owned()),
        Ok(tree) => tree.node,
        Err(_) => Node::Text(value.to_owned()),
    };
    Some((key, value))
}

/// Adds overrides, which go before files, as files go before those that they name; and puts values where others stand for them.
pub(super) fn compose(given: &mut Vec<Given>, overrides: Vec<Given>) {
    for i in 0..given.len() {
        let over = overrides.iter().rev().find(|over| over.path == given[i].path);
        let by_name = given.iter().find(|g| g.path == given[i].path && names(given, &g.file, &given[i].file));
        if let Some(first) = over.or(by_name) {
            given[i].hushed = Some(format!("{} goes before it", first.full()));
        }
    }
    // The last of two overrides of one key stands.
    for (i, over) in overrides.iter().enumerate() {
        let mut over = over.clone();
        if let Some(last) = overrides[i + 1..].iter().rev().find(|last| last.path == over.path) {
            over.hushed = Some(format!("{} goes before it", last.full()));
        }
        given.push(over);
    }
    for i in 0..given.len() {
        let Node::Text(text) = &given[i].node else { continue };
        if !text.contains("${") {
            continue;
        }
        let path = text.strip_prefix("${").and_then(|t| t.strip_suffix('}'));
        let stands = |g: &&Given| Some(&*g.path) == path && g.hushed.is_none();
        let value = given.iter().find(stands).map(|g| g.node.clone());
        let value = value.filter(|node| !matches!(node, Node::Text(t) if t.contains("${")));
        given[i].node = value.unwrap_or_else(|| Node::Code(text.clone()));
    }
}

/// Returns whether a file's `defaults` names another one.
fn names(given: &[Given], file: &str, other: &str) -> bool {
    let last = |path: &str| {
        let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
        name.strip_suffix(".yaml").unwrap_or(name).to_owned()
    };
    let list = given.iter().find(|g| g.file == file && g.path == "defaults").map(|g| &g.node);
    let Some(Node::List(list)) = list else { return false };
    let named = |node: &Node| matches!(node, Node::Text(name) if last(name) == last(other));
    file != other
        && list.iter().any(|item| match &item.node {
            Node::Map(items) => items.iter().any(|(_, tree)| named(&tree.node)),
            node => named(node),
        })
}
