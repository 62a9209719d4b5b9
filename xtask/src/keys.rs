//! `cargo xtask keys`: the keys of a recipe for people, from what the source says of each.

use ambitus_families::f5::F5;
use ambitus_families::musicgen::Musicgen;
use ambitus_families::orpheus::Orpheus;
use ambitus_families::parler::Parler;
use ambitus_families::piper::Piper;
use ambitus_families::xtts::Xtts;
use ambitus_recipe::recipe::{Defaults, Player};
use std::fmt::Write;
use std::path::PathBuf;

/// Files, structures in them, and the heads of their tables.
const TABLES: [(&str, &str, &str); 13] = [
    ("recipe.rs", "Recipe", "A recipe"),
    ("recipe.rs", "Model", "`model:`"),
    ("recipe.rs", "Data", "`data:`"),
    ("recipe/sets.rs", "DataSet", "A data set of `data.sets:`"),
    ("recipe/schedule.rs", "Schedule", "`schedule:`"),
    ("recipe/trained.rs", "Lora", "`lora:`"),
    ("recipe/forms.rs", "Sample", "`sample:`"),
    ("recipe/samples.rs", "Sentences", "`samples:`"),
    ("recipe/offload.rs", "Offload", "`offload:`"),
    ("recipe/sharding.rs", "Sharding", "`sharding:`"),
    ("recipe/stages.rs", "Stage", "A stage of `stages:`"),
    ("recipe/stop.rs", "Stop", "`stop:`"),
    ("recipe/players.rs", "Player", "A player of `players:`"),
];
const HEAD: &str = "\
# Keys of a recipe

A recipe is a YAML file: `ambitus train RECIPE`, `ambitus plan RECIPE`. Only `model.dir` and `data.dir` are required; options of
the command line override it. Relative paths start from the folder in which the command is run. Sizes are written `20GiB` or
`512MB`. The recipe with everything that was chosen is `recipe.yaml` in the run's folder.

Written by `cargo xtask keys` from the source, where each key is explained.
";

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns where the page lies.
pub fn path() -> PathBuf {
    root().join("docs/recipe.md")
}

/// Writes the page.
///
/// # Errors
/// Files that cannot be read or written, and a structure that is not where it should be.
pub fn write() -> Result<(), String> {
    std::fs::write(path(), page()?).map_err(|e| format!("{}: {e}", path().display()))
}

/// Returns the page.
///
/// # Errors
/// As [`write()`].
pub fn page() -> Result<String, String> {
    let mut out = HEAD.to_owned();
    for (file, name, head) in TABLES {
        let source = root().join("crates/ambitus-recipe/src").join(file);
        let text = std::fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        let fields = fields(&text, name).ok_or_else(|| format!("{}: no struct {name}", source.display()))?;
        let _ = write!(out, "\n## {head}\n\n| key | what it says |\n|---|---|\n");
        // Families' own keys have tables below.
        fields
            .iter()
            .filter(|(key, _)| key != "own")
            .for_each(|(key, says)| out += &format!("| `{key}` | {says} |\n"));
    }
    for family in ambitus_families::ALL {
        let section = family.section();
        let _ = write!(
            out,
            "\n## `{}:`, for {} alone\n\n| key | what it says |\n|---|---|\n",
            section.name,
            family.name()
        );
        section.keys.iter().for_each(|key| out += &format!("| `{}` | {} |\n", key.name, key.says));
    }
    out += "\nKeys of these sections that stood elsewhere before there were sections are still read there:\n";
    let before = ambitus_families::ALL.iter().flat_map(|f| f.section().keys);
    let before: Vec<String> = before.filter_map(|key| Some(format!("`{}`", key.before?))).collect();
    out += &format!("{}.\n", before.join(", "));
    out += &defaults();
    Ok(out)
}

/// Returns what families mean by keys that a recipe leaves out.
fn defaults() -> String {
    let families = [
        F5::shaped(ambitus_models::f5::config::Config::v1_base()),
        Orpheus::shaped(ambitus_models::orpheus::config::Config::orpheus_3b()),
        Parler::shaped(ambitus_models::parler::config::Config::mini_v1()),
        Xtts::shaped(ambitus_models::xtts::config::Config::v2()),
        Musicgen::shaped(ambitus_models::musicgen::config::Config::small()),
        Piper::shaped(ambitus_models::piper::config::Config::medium()),
    ];
    let mut out = "\n## What families mean by keys that are left out\n\n| key |".to_owned();
    let mut row = |key: &str, of: &dyn Fn(&Defaults) -> String| {
        let cells = families.iter().map(|model| format!(" {} |", of(&model.defaults())));
        out += &format!("\n| `{key}` |{}", cells.collect::<String>());
    };
    row("learning_rate", &|d| format!("{:e}", d.learning_rate));
    row("weight_decay", &|d| d.weight_decay.to_string());
    let patterns = |all: &[String]| all.iter().map(|t| format!("`{t}`")).collect::<Vec<_>>().join(" ");
    row("no_decay", &|d| if d.no_decay.is_empty() { "none".to_owned() } else { patterns(&d.no_decay) });
    row("betas", &|d| format!("{:?}", d.betas));
    row("eps", &|d| format!("{:e}", d.eps));
    row("clip", &|d| if d.clip < 1e9 { d.clip.to_string() } else { "1e9, none".to_owned() });
    row("players", &|d| players(&d.players));
    row("ema", &|d| d.ema.is_kept().to_string());
    row("batch", &|d| format!("{{clips: {}}}", d.clips));
    row("warmup", &|d| d.warmup.map_or("5 % of the updates, at most 100".to_owned(), |n| n.to_string()));
    row("schedule", &|d| d.schedule.to_string());
    row("sample", &|d| if d.samples { "a held-out clip" } else { "none" }.to_owned());
    row("lora.targets", &|d| patterns(&d.adapted));
    let names: Vec<&str> = families.iter().map(|model| model.family.name()).collect();
    let head = format!("| key | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    out.replacen("| key |", &head, 1) + "\n"
}

/// Returns what single players have by themselves.
fn players(all: &[(&str, Player)]) -> String {
    let own = |(name, player): &(&str, Player)| {
        let rate = player.learning_rate.map(|rate| format!("learning_rate: {rate:e}"));
        let betas = player.betas.map(|betas| format!("betas: {betas:?}"));
        format!("{name}: {{{}}}", rate.into_iter().chain(betas).collect::<Vec<_>>().join(", "))
    };
    if all.is_empty() { "none".to_owned() } else { all.iter().map(own).collect::<Vec<_>>().join(", ") }
}

/// Returns the public fields of a structure, and the comment on each.
fn fields(text: &str, name: &str) -> Option<Vec<(String, String)>> {
    let mut lines = text.lines().skip_while(|line| *line != format!("pub struct {name} {{"));
    lines.next()?;
    let (mut fields, mut said) = (Vec::new(), Vec::new());
    for line in lines.take_while(|line| *line != "}").map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            said.push(comment.trim());
        } else if let Some((key, _)) = line.strip_prefix("pub ").and_then(|field| field.split_once(':')) {
            fields.push((key.to_owned(), plain(&std::mem::take(&mut said).join(" "))));
        }
    }
    Some(fields)
}

/// Removes the links of the source's documentation.
fn plain(said: &str) -> String {
    let said = said.replace("[`DEFAULT_UPDATES`]", &ambitus_recipe::recipe::DEFAULT_UPDATES.to_string());
    // The tables stand below.
    let said = said.split(" (see [`").enumerate().map(|(i, part)| match i {
        0 => part,
        _ => part.split_once(')').map_or(part, |(_, rest)| rest),
    });
    let said: String = said.collect();
    said.replace("[`Recipe::freeze`]", "`freeze`").replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_what_the_source_says() {
        let page = super::page().expect("the source is there");
        let there = std::fs::read_to_string(super::path()).unwrap_or_default();
        assert!(there == page, "docs/recipe.md is not what recipe.rs says: run `cargo xtask keys`");
        for key in ["`learning_rate`", "`max_seconds`", "`rank`", "`backward_prefetch`"] {
            assert!(page.contains(key), "{key}");
        }
        assert!(!page.contains("| `dir` |  |") && !page.contains("[`"), "{page}");
    }
}
