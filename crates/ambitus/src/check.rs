//! `ambitus prepare --check` and `--page`.

use crate::args::{PrepareArgs, threads};
use crate::commands;
use crate::terminal::{self, Terminal};
use ambitus_families::error::RunError;
use ambitus_families::{ALL, EARS, family};
use ambitus_recipe::recipe::{Precision, Recipe};
use ambitus_train::check::{self, Ear};
use ambitus_train::inference::InferenceOptions;
use ambitus_train::listen::Page;
use serde::Serialize;
use std::path::PathBuf;

/// What was found, and the page that shows it.
#[derive(Serialize)]
struct Found {
    #[serde(flatten)]
    checked: check::Checked,
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<PathBuf>,
}

/// Checks the clips, and their texts with the model of a folder, if one is given; writes the page, if that is asked for.
pub fn run(a: &PrepareArgs) -> Result<(), RunError> {
    let model = a.check.as_ref().and_then(Option::as_deref);
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
    let advised = match &run.model {
        Some(dir) => family::of(ALL, dir)?.advised(),
        // A recipe's model may not be here yet.
        None => family::of(ALL, &recipe.model.dir).ok().and_then(|family| family.advised()),
    };
    let mut console = Terminal::new();
    let (sets, room) = check::sets(&recipe, memory)?;
    let page = a.page.as_ref().map(|to| Page::open(&sets, to.as_deref(), room)).transpose()?;
    let checked = check::check((&sets, room), ear.as_ref(), threads, advised, &mut console)?;
    let page = page.map(|page| page.write(&checked)).transpose()?;
    drop(console);
    if run.json {
        terminal::json(&Found { checked, page });
        return Ok(());
    }
    checked.describe().iter().for_each(|line| terminal::result(line));
    if let Some(page) = page {
        terminal::result(&format!("\nto listen and correct, open {} in a browser", page.display()));
    }
    Ok(())
}
