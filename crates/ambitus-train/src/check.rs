//! `ambitus prepare --check`: what is wrong with a data set.

use ambitus_data::DataError;
use ambitus_data::check::{self, Options};
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::{prepare, stop};
use ambitus_plan::memory;
use ambitus_recipe::recipe::Recipe;
use std::sync::Mutex;

pub use ambitus_data::check::{Checked, Clip, Issue, Kind};

/// Bytes for the list of clips where nothing is known of memory.
const ROOM: u64 = 1 << 30;

/// Checks the data sets of a recipe, which are only read. `memory`: bytes that the list of clips may take; else what is free.
///
/// # Errors
/// Data sets of which nothing can be said; a list that is too long; a stop on request.
pub fn check(
    recipe: &Recipe,
    threads: usize,
    memory: Option<u64>,
    console: &mut dyn Console,
) -> Result<Checked, RunError> {
    let sets = prepare::sets(recipe)?;
    let room = memory.or_else(|| memory::default_budget().ok().map(|b| b.bytes)).unwrap_or(ROOM);
    let console = Mutex::new(console);
    let progress = |done: usize, of: usize| {
        if let Ok(mut console) = console.lock() {
            console.progress(&format!("checking clips: {done} of {of}"));
        }
        !stop::requested()
    };
    let options = Options { threads, room, progress: &progress };
    match check::check(&sets, &std::env::temp_dir(), &options) {
        Err(DataError::Stopped) => Err(RunError::Interrupted("nothing was written".to_owned())),
        checked => Ok(checked?),
    }
}
