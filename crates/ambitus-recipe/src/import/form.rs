//! Which form a text has.

use super::flags::{self, Token};
use super::hydra;
use super::python::Wrong;
use crate::recipe::read_tree;
use crate::recipe::tree::Node;

/// How a text is to be read.
pub(super) enum Form {
    /// YAML, and JSON.
    Yaml,
    Python,
    /// Flags, alone or in a launch script.
    Flags,
    /// Flags in a batch file.
    Batch,
}

/// Recognises a form by the name's ending, else by `#!`, by flags in the text, and by the first line that says something.
pub(super) fn form(name: &str, text: &str) -> Form {
    let lower = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|end| lower.ends_with(end));
    if ends(&[".yaml", ".yml", ".json"]) {
        return Form::Yaml;
    }
    if ends(&[".py"]) {
        return Form::Python;
    }
    if ends(&[".bat", ".cmd"]) {
        return Form::Batch;
    }
    if ends(&[".sh", ".bash", ".slurm", ".sbatch"]) {
        return Form::Flags;
    }
    match text.lines().next() {
        Some(first) if first.starts_with("#!") && first.contains("python") => return Form::Python,
        Some(first) if first.starts_with("#!") => return Form::Flags,
        _ => {}
    }
    let flags = |tokens: Vec<Token>| flags::any(&tokens) || hydra::says(&tokens);
    if flags::tokens(text, '\\').is_ok_and(flags) && !is_map(text) {
        return Form::Flags;
    }
    let says = |l: &&str| !l.is_empty() && !l.starts_with('#');
    let first = text.lines().map(str::trim).find(says).unwrap_or_default();
    if first.starts_with("import ") || first.starts_with("from ") {
        return Form::Python;
    }
    let name_end =
        first.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(first.len());
    let (head, rest) = first.split_at(name_end);
    let rest = rest.trim_start();
    let assigns = rest.starts_with('=') && !rest.starts_with("==");
    if !head.is_empty() && (rest.starts_with('(') || assigns || annotated(rest)) {
        Form::Python
    } else if first.starts_with("--") || first.contains(" --") || first.ends_with('\\') {
        Form::Flags
    } else {
        Form::Yaml
    }
}

/// Returns a text's pieces in a form of flags. Remarks of a batch file are taken out, their lines stay.
pub(super) fn pieces(text: &str, batch: bool) -> Result<Vec<Token>, Wrong> {
    if !batch {
        return flags::tokens(text, '\\');
    }
    let remark = |line: &str| {
        let line = line.trim_start().trim_start_matches('@').to_ascii_lowercase();
        line.starts_with("::")
            || line.strip_prefix("rem").is_some_and(|l| !l.starts_with(char::is_alphanumeric))
    };
    let lines: Vec<&str> = text.split('\n').map(|l| if remark(l) { "" } else { l }).collect();
    flags::tokens(&lines.join("\n"), '^')
}

/// Returns whether a text has keys and values of YAML or JSON. A command whose quotes hold `: ` is not a map of plain names.
fn is_map(text: &str) -> bool {
    match read_tree(text, "").map(|t| t.node) {
        Ok(Node::Map(entries)) => entries.iter().all(|(key, _)| !key.name.contains(char::is_whitespace)),
        _ => false,
    }
}

/// Returns whether a text is like `: TrainingArguments = …`, as behind a name.
fn annotated(rest: &str) -> bool {
    let Some((kind, _)) = rest.strip_prefix(':').and_then(|rest| rest.split_once('=')) else { return false };
    let of_type = |c: char| c.is_alphanumeric() || "_.[], |'\"".contains(c);
    !kind.trim().is_empty() && kind.chars().all(of_type)
}
