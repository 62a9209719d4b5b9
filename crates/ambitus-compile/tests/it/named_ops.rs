//! Passes ask ops for properties. Where one names an op, its rewrite is about that op: all such places, with their reasons.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The pass, the op, and why it is named.
const NAMED: &[(&str, &str, &str)] = &[
    ("accumulate", "Binary", "undoes autodiff's sums of contributions, which are additions"),
    ("fuse", "Accumulate", "is about accumulations"),
    ("lora", "Linear", "adapts linear layers"),
    ("lora", "LinearIn", "adapts linear layers"),
    ("pure", "Cast", "drops casts to what a parameter is stored as"),
    ("rows", "Cast", "is about casts of tables"),
    ("rows", "Gather", "is about look-ups in them"),
    ("shard/layout", "Cast", "a parameter's readers are those of its casts"),
    ("shard/prefetch", "Cast", "a shard's cast goes with its gather"),
    ("shard/uses", "Cast", "parameters that are only read as 16 bits are gathered so"),
    ("simplify", "LinearCrossEntropy", "the head's loss, which its gradient forms anyway"),
    ("simplify", "LinearCrossEntropyGrad", "the head's gradient, which forms the loss"),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { sources(&path, found) } else { found.push(path) }
    }
}

/// What stands behind each `Op::` that is a variant.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("Op::").skip(1);
    let name = |rest: &'_ str| rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
    let names = after.map(move |rest| &rest[..name(rest)]);
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
}

#[test]
fn passes_name_ops_only_where_they_are_about_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![src.join("autodiff.rs"), src.join("passes.rs")];
    sources(&src.join("passes"), &mut files);
    let mut have: BTreeMap<(String, String), usize> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        let pass = file.strip_prefix(src.join("passes")).unwrap_or(&file).with_extension("");
        for op in named(&text) {
            *have.entry((pass.display().to_string(), op.to_owned())).or_default() += 1;
        }
    }
    let want = NAMED.iter().map(|(pass, op, _)| ((*pass).to_owned(), (*op).to_owned()));
    let have: Vec<(String, String)> = have.into_keys().collect();
    assert_eq!(have, want.collect::<Vec<_>>(), "give a reason, or ask for a property");
}
