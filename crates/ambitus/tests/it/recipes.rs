//! The repository's recipes can be read, and what they name in the repository is there.

use crate::common;
use ambitus_recipe::recipe::{Recipe, Validation};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What the quickstart is to show: a budget that the usual plan exceeds, kept by a plan that was found.
#[test]
fn the_quickstart_fits_a_budget_that_its_usual_plan_does_not() {
    let plan = |more: &[&str]| -> (u64, u64, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
        command.current_dir(common::root()).args(["plan", "recipes/quickstart.yaml", "--json"]).args(more);
        let out = command.output().expect("the binary runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let bytes = |key: &str| json[key].as_u64().expect("bytes");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (bytes("peak_bytes"), bytes("budget_bytes"), said)
    };
    let (found, budget, _) = plan(&[]);
    let (usual, ..) = plan(&["--checkpoint", "none", "--memory", "1GiB"]);
    assert!(found <= budget && budget < usual, "{found} {budget} {usual}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
    let out = command.current_dir(common::root()).args(["plan", "recipes/quickstart.yaml"]).output();
    let out = out.expect("the binary runs");
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let [usual, budget] = [usual, budget].map(ambitus_recipe::size::ByteSize);
    let usual = format!("{usual}, over the budget of {budget}");
    assert!(said.contains("with everything kept the peak is") && said.contains(&usual), "{usual}\n{said}");
}

#[test]
fn recipes_read_and_name_what_exists() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let root = crates.parent().expect("the workspace");
    let folder = fs::read_dir(root.join("recipes")).expect("recipes/");
    let mut seen = Vec::new();
    for item in folder {
        let path = item.expect("a directory entry").path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let (recipe, _) = Recipe::read(&path, &ambitus_families::family::sections(ambitus_families::ALL))
            .unwrap_or_else(|e| panic!("{e}"));
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let model = root.join(&recipe.model.dir);
        // Of the 3B model only the shape is here.
        let files = match (model.join("config.json").is_file(), recipe.model.from_scratch) {
            (true, _) => vec!["config.json"],
            (false, true) => vec!["config.yaml", "vocab.txt"],
            (false, false) => vec!["config.yaml", "model.safetensors"],
        };
        // Made by a script beside the recipe.
        let made = recipe.model.dir.starts_with("target");
        assert!(!made || path.with_extension("").join("make.py").is_file(), "{name}: no {name}/make.py");
        for file in files.into_iter().filter(|_| !made) {
            assert!(model.join(file).is_file(), "{name}: {}: no {file}", recipe.model.dir.display());
        }
        // Data below target/ is made by a script, or somebody's own.
        let dir = recipe.data.dir.expect("a key that must be there");
        if !dir.starts_with("target") {
            let data = root.join(&dir);
            assert!(data.exists(), "{name}: {}: is not there", dir.display());
            if let Validation::Names(names) = &recipe.data.validation {
                for clip in names {
                    assert!(data.join(clip).is_file(), "{name}: no clip {clip}");
                }
            }
        }
        seen.push(name);
    }
    seen.sort();
    let all = [
        "base",
        "musicgen-large-4x24gb",
        "musicgen-large-80gb",
        "musicgen-medium-24gb",
        "musicgen-small-12gb",
        "musicgen-small-stages",
        "musicgen-tiny",
        "orpheus-24gb",
        "orpheus-full",
        "orpheus-lora",
        "orpheus-tiny",
        "parler-large-2x24gb",
        "parler-mini-12gb",
        "parler-mini-8gb",
        "parler-tiny",
        "piper-high-12gb",
        "piper-medium-8gb",
        "piper-tiny",
        "quickstart",
        "scratch",
        "xtts-12gb",
        "xtts-24gb",
        "xtts-4gb",
        "xtts-8gb",
        "xtts-tiny",
    ];
    assert_eq!(seen, all);
}
