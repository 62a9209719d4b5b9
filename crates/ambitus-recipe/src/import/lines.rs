//! The recipe that is written: lines in a fixed order, each with its origin as a comment.

use super::Folders;
use crate::recipe::short;
use std::fmt::Write;

/// A key of the recipe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// As `precision`, or `sharding.strategy`.
    pub key: &'static str,
    /// As YAML.
    pub value: String,
    /// The key and place that says so, or whose default it is.
    pub from: String,
}

/// The order of a recipe. A section's keys stand together.
pub(super) const ORDER: &[&str] = &[
    "model.dir",
    "data.dir",
    "data.min_seconds",
    "data.max_seconds",
    "data.validation",
    "device",
    "ranks",
    "sharding.strategy",
    "sharding.group",
    "sharding.units",
    "sharding.backward_prefetch",
    "sharding.forward_prefetch",
    "precision",
    "checkpoint",
    "offload",
    "micro_batch",
    "batch",
    "updates",
    "epochs",
    "learning_rate",
    "warmup",
    "schedule",
    "weight_decay",
    "no_decay",
    "optimizer",
    "betas",
    "eps",
    "ema",
    "clip",
    "players",
    "seed",
    "save_every",
    "keep",
    "validate_every",
    "run_dir",
];

/// Returns the recipe's text. `remarks` stand at its end as comments.
pub(super) fn recipe(lines: &[Line], folders: &Folders, files: &[String], remarks: &[String]) -> String {
    let mut all = Vec::new();
    for (key, given, flag) in [("model.dir", &folders.model, "model"), ("data.dir", &folders.data, "data")] {
        let (value, from) = match given {
            Some(dir) => (quoted(&dir.to_string_lossy()), format!("--{flag}")),
            None => (format!("path/to/{flag}"), format!("write the folder here, or give --{flag} DIR")),
        };
        all.push(Line { key, value, from });
    }
    all.extend_from_slice(lines);
    // What is not listed comes behind it, a family's section last.
    fn place(line: &Line) -> (usize, &str) {
        let section = line.key.split_once('.').map_or("", |(section, _)| section);
        (ORDER.iter().position(|k| *k == line.key).unwrap_or(ORDER.len()), section)
    }
    all.sort_by(|a, b| place(a).cmp(&place(b)));
    let mut out = String::from("# From ");
    out.push_str(&files.iter().map(|f| short(f)).collect::<Vec<_>>().join(", "));
    out.push_str(", by `ambitus import`.\n");
    let mut section = "";
    for Line { key, value, from } in &all {
        let text = match key.split_once('.') {
            Some((of, inner)) => {
                if of != section {
                    let _ = writeln!(out, "{of}:");
                }
                section = of;
                format!("  {inner}: {value}")
            }
            None => {
                section = "";
                format!("{key}: {value}")
            }
        };
        let _ = writeln!(out, "{text:<34} # {}", one_line(from));
    }
    for remark in remarks {
        let _ = writeln!(out, "# {}", one_line(remark));
    }
    out
}

/// Makes one line of a text from an untrusted file, so that it does not end its comment.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') { ' ' } else { c })
        .collect()
}

/// Returns a text as YAML: JSON's quotes are YAML's.
pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Returns a number in its shorter form.
pub(super) fn number(x: f64) -> String {
    let small = x != 0.0 && !(1e-3..1e7).contains(&x.abs());
    if small { format!("{x:e}") } else { x.to_string() }
}
