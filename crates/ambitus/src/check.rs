//! `ambitus prepare --check`.

use crate::args::{PrepareArgs, threads};
use crate::commands;
use crate::terminal::{self, Terminal};
use ambitus_families::EARS;
use ambitus_families::error::RunError;
use ambitus_recipe::recipe::{Precision, Recipe};
use ambitus_train::check::{self, Ear};
use ambitus_train::inference::InferenceOptions;
use std::path::Path;

/// Checks the clips, and their texts with the model of a folder, if one is given.
pub fn run(a: &PrepareArgs, model: Option<&Path>) -> Result<(), RunError> {
    let run = &a.run;
    let recipe = match (&run.recipe, &run.data) {
        // No model is opened.
        (None, Some(data)) => Recipe::new(run.model.clone().unwrap_or_default(), data),
        (None, None) => {
            let why = "name what is checked: ambitus prepare --data DIR --check";
            return Err(RunError::Usage(why.to_owned()));
        }
        _ => commands::recipe(run, false)?.0,
    };
    let threads = threads(run.threads.or(recipe.threads).map(|n| n as usize));
    let memory = run.memory.or(recipe.memory).map(|m| m.0);
    let precision = run.precision.unwrap_or(Precision::Fp32);
    let options = InferenceOptions { precision, device: run.device.unwrap_or_default(), threads, memory };
    let language = a.check_language.as_deref();
    let ear = model.map(|dir| Ear { dir, kinds: EARS, language, options });
    let mut console = Terminal::new();
    let checked = check::check(&recipe, ear.as_ref(), (threads, memory), &mut console)?;
    drop(console);
    if run.json {
        terminal::json(&checked);
    } else {
        checked.describe().iter().for_each(|line| terminal::result(line));
    }
    Ok(())
}
