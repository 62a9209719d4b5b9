//! What hydra composes: files that others name, values that stand for others (`${optim.lr}`), overrides (`optim.lr=1e-5`).

use super::flags::{self, Token, Word};
use super::given::Given;
use crate::recipe::read_tree;
use crate::recipe::tree::{Key, Node, Tree};

/// Sections within each other, at most: values are read, shown and dropped section by section.
const MOST_SECTIONS: usize = 16;

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
    let deep = key.split('.').nth(MOST_SECTIONS).is_some();
    if !begins || deep || !key.chars().all(named) || key.split('.').any(str::is_empty) {
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
    let order = Order::of(given);
    for i in 0..given.len() {
        let over = overrides.iter().rev().find(|over| over.path == given[i].path);
        let by_name =
            given.iter().find(|g| g.path == given[i].path && order.precedes(&g.file, &given[i].file));
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

/// Which file goes before which.
struct Order(Vec<(String, String)>);

impl Order {
    fn of(given: &[Given]) -> Order {
        let mut files: Vec<&str> = Vec::new();
        for g in given {
            if !files.contains(&g.file.as_str()) {
                files.push(&g.file);
            }
        }
        let first: Vec<bool> = files.iter().map(|file| is_first(given, file)).collect();
        let named = |a: usize, b: usize| a != b && names(given, files[a], files[b]);
        let mut before = Vec::new();
        for a in 0..files.len() {
            // What it names, and what that names.
            let (mut reached, mut next) = (vec![a], 0);
            while let Some(from) = reached.get(next).copied() {
                let more: Vec<usize> =
                    (0..files.len()).filter(|b| !reached.contains(b) && named(from, *b)).collect();
                reached.extend(more);
                next += 1;
            }
            let goes = |b: &usize| *b != a && (reached.contains(b) || (first[*b] && !first[a]));
            before.extend((0..files.len()).filter(goes).map(|b| (files[a].to_owned(), files[b].to_owned())));
        }
        Order(before)
    }

    /// Returns whether a file goes before another: it names the other one, itself or through those that it names, or the other says
    /// that what it names goes before it. Two that name each other contradict each other, as files do that name none.
    fn precedes(&self, file: &str, other: &str) -> bool {
        let has = |a: &str, b: &str| self.0.iter().any(|(x, y)| x == a && y == b);
        has(file, other) && !has(other, file)
    }
}

fn defaults<'a>(given: &'a [Given], file: &str) -> &'a [Tree] {
    match given.iter().find(|g| g.file == file && g.path == "defaults").map(|g| &g.node) {
        Some(Node::List(list)) => list,
        _ => &[],
    }
}

/// Returns whether a file's own keys come first, before what it names.
fn is_first(given: &[Given], file: &str) -> bool {
    matches!(defaults(given, file), [Tree { node: Node::Text(first), .. }, _, ..] if first == "_self_")
}

/// Returns whether a file's `defaults` names another one, as far as both say where it lies.
fn names(given: &[Given], file: &str, other: &str) -> bool {
    let other = other.strip_suffix(".yaml").unwrap_or(other);
    let named = |node: &Node| match node {
        Node::Text(name) => {
            let parts = |path: &str| path.rsplit(['/', '\\']).map(str::to_owned).collect::<Vec<_>>();
            let mut pairs = parts(name.trim_start_matches('/')).into_iter().zip(parts(other));
            pairs.all(|(a, b)| a == b)
        }
        _ => false,
    };
    // What it names goes before it, where its own keys come first.
    !is_first(given, file)
        && defaults(given, file).iter().any(|item| match &item.node {
            Node::Map(items) => items.iter().any(|(_, tree)| named(&tree.node)),
            node => named(node),
        })
}
