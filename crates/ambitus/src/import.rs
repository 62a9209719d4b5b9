//! `ambitus import`: other trainers' configurations into a recipe.

use crate::terminal;
use ambitus_families::ALL;
use ambitus_families::error::RunError;
use ambitus_families::family::trainers;
use ambitus_recipe::import::{self, Folders, Source, WriteError};
use ambitus_recipe::recipe::{Recipe, RecipeError};
use clap::Args;
use std::path::PathBuf;

/// What `import` is asked.
#[derive(Args)]
pub struct ImportArgs {
    /// accelerate's YAML or JSON; TrainingArguments as JSON, YAML, a text of --key value flags, or pasted Python keyword
    /// arguments (read, never run); the configuration of a family's own trainer. Several are merged; where two contradict
    /// each other, both places are named and nothing is written
    #[arg(value_name = "FILE", required_unless_present = "flags")]
    pub files: Vec<PathBuf>,
    /// Flags, or hydra's overrides, as they stood on the original's command line, after `--`
    #[arg(last = true, value_name = "FLAGS", allow_hyphen_values = true)]
    pub flags: Vec<String>,
    /// Write the recipe here, where nothing may be yet [default: to stdout, and the table to stderr]
    #[arg(short, long, value_name = "RECIPE")]
    pub out: Option<PathBuf>,
    /// Folder of the checkpoint, for the recipe; without it a place to write it
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Folder of the audio, for the recipe; without it a place to write it
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Every key with what became of it, and the recipe, as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

pub fn run(a: &ImportArgs) -> Result<(), RunError> {
    let mut sources = read(&a.files)?;
    if !a.flags.is_empty() {
        sources.push(Source::words(&a.flags));
    }
    let folders = Folders { model: a.model.clone(), data: a.data.clone() };
    let imported = import::import(&sources, &folders, &trainers(ALL)).map_err(usage)?;
    if let Some(path) = &a.out {
        import::write(path, &imported.recipe).map_err(|e| match e {
            e @ WriteError::Exists(_) => RunError::Usage(e.to_string()),
            WriteError::Store(e) => e.into(),
        })?;
    }
    if a.json {
        terminal::json(&imported);
        return Ok(());
    }
    let table = imported.to_string();
    match &a.out {
        Some(path) => {
            terminal::result(table.trim_end());
            terminal::message(&format!("{}: next, ambitus plan {0}", path.display()));
        }
        None => {
            terminal::message(table.trim_end());
            terminal::result(imported.recipe.trim_end());
        }
    }
    Ok(())
}

/// Returns what `plan --accelerate` lays over a recipe, with the command line's `options` over both; the table goes to stderr.
pub fn lay_over(
    recipe: &Recipe,
    file: &PathBuf,
    options: impl FnOnce(&mut Recipe),
) -> Result<Recipe, RunError> {
    let sources = read(std::slice::from_ref(file))?;
    let (whole, imported) = import::lay_over(recipe, &sources, &trainers(ALL), options).map_err(usage)?;
    terminal::message(imported.to_string().trim_end());
    Ok(whole)
}

fn read(files: &[PathBuf]) -> Result<Vec<Source>, RunError> {
    files.iter().map(|path| Source::read(path).map_err(usage)).collect()
}

fn usage(e: RecipeError) -> RunError {
    RunError::Usage(e.to_string())
}
