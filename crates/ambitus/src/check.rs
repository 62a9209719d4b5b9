//! `ambitus prepare --check`.

use crate::args::{PrepareArgs, threads};
use crate::commands;
use crate::terminal::{self, Terminal};
use ambitus_families::error::RunError;
use ambitus_recipe::recipe::Recipe;
use ambitus_train::check;

pub fn run(a: &PrepareArgs) -> Result<(), RunError> {
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
    let memory = run.memory.or(recipe.memory).map(|m| m.0);
    let mut console = Terminal::new();
    let threads = threads(run.threads.or(recipe.threads).map(|n| n as usize));
    let checked = check::check(&recipe, threads, memory, &mut console)?;
    drop(console);
    if run.json {
        terminal::json(&checked);
    } else {
        checked.describe().iter().for_each(|line| terminal::result(line));
    }
    Ok(())
}
