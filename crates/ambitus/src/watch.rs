//! `ambitus watch`: a run, or a folder of runs, while it trains in another process.

use crate::terminal::{self, Terminal, columns};
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::stop;
use ambitus_train::follow::Followed;
use ambitus_train::report::REPORT_FILE;
use ambitus_train::run::tune;
use ambitus_train::runs_table::{self, RECIPE_FILE};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between looks.
const LOOK: Duration = Duration::from_millis(500);
/// Within which Ctrl-C ends it.
const NAP: Duration = Duration::from_millis(50);
/// Looks until new runs in a folder are looked for.
const LIST: usize = 20;
/// Lines about what happened before the first look.
const EARLIER: usize = 8;
/// Widest name in front of a run's line, in columns.
const NAME: usize = 32;

#[derive(Args)]
pub struct WatchArgs {
    /// Folder of a run, or of run folders
    #[arg(default_value = "runs")]
    pub run: PathBuf,
    /// Show what is there now, and end
    #[arg(long)]
    pub once: bool,
}

pub fn run(a: &WatchArgs) -> Result<(), RunError> {
    let mut screen = Terminal::of_results();
    if tune::is_one(&a.run) {
        let why = "is a tuning, which shows itself what it does; `ambitus resume` says what it found";
        return Err(RunError::Usage(format!("{}: {why}", a.run.display())));
    }
    if a.run.join(RECIPE_FILE).is_file() {
        one(&a.run, a.once, &mut screen)
    } else {
        all(&a.run, a.once, &mut screen)
    }
}

/// Returns whether nobody is there to look on for.
fn is_over() -> bool {
    stop::requested() || terminal::is_lost()
}

/// Waits for the next look.
fn pause() {
    let began = Instant::now();
    while began.elapsed() < LOOK && !stop::requested() {
        std::thread::sleep(NAP);
    }
}

fn one(root: &Path, once: bool, screen: &mut Terminal) -> Result<(), RunError> {
    let mut run = Followed::new(root);
    let mut most = EARLIER;
    loop {
        let (earlier, news) = run.look(most)?;
        if earlier > 0 {
            let page = root.join(REPORT_FILE);
            screen.line(&format!(
                "({earlier} lines about earlier updates are left out; see {})",
                page.display()
            ));
        }
        news.iter().for_each(|line| screen.line(line));
        if once || run.has_ended() || is_over() {
            screen.line(&run.line());
            run.how_it_ended().iter().for_each(|line| screen.line(line));
            return Ok(());
        }
        screen.progress(&run.line());
        most = usize::MAX;
        pause();
    }
}

/// A run of a folder.
struct Row {
    path: PathBuf,
    name: String,
    run: Followed,
    /// It has been looked at.
    known: bool,
    ended: bool,
    /// Why it cannot be.
    wrong: Option<String>,
}

impl Row {
    fn look(&mut self, screen: &mut Terminal) {
        let news = self.run.look(if self.known { usize::MAX } else { 0 });
        let ended = news.is_err() || self.run.has_ended();
        let mut lines = Vec::new();
        match news {
            Ok((_, news)) => lines.extend(news),
            Err(e) => self.wrong = Some(e.to_string()),
        }
        if self.known && ended && !self.ended {
            lines.extend(self.run.how_it_ended());
        }
        lines.iter().for_each(|line| screen.line(&format!("{}: {line}", self.name)));
        (self.known, self.ended) = (true, ended);
    }

    fn line(&self, width: usize) -> String {
        let gap = " ".repeat(width.saturating_sub(columns(&self.name)));
        let state = self.wrong.clone().unwrap_or_else(|| self.run.line());
        format!("{}{gap}  {state}", self.name)
    }
}

/// Returns the lines of runs: those that go on first.
fn lines<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Vec<String> {
    let width = rows.clone().map(|row| columns(&row.name)).max().unwrap_or(0).min(NAME);
    let of = |ended| rows.clone().filter(move |row| row.ended == ended);
    of(false).chain(of(true)).map(|row| row.line(width)).collect()
}

/// Finds new runs, and forgets those that are gone.
fn list(folder: &Path, rows: &mut Vec<Row>) -> Result<(), RunError> {
    let found = runs_table::folders(folder).map_err(|e| RunError::io(folder, "cannot list", e))?;
    rows.retain(|row| found.contains(&row.path));
    for path in found {
        if rows.iter().all(|row| row.path != path) {
            let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
            let run = Followed::new(&path);
            rows.push(Row { path, name, run, known: false, ended: false, wrong: None });
        }
    }
    rows.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(())
}

fn all(folder: &Path, once: bool, screen: &mut Terminal) -> Result<(), RunError> {
    let mut rows = Vec::new();
    list(folder, &mut rows)?;
    if rows.is_empty() {
        return Err(RunError::Usage(format!(
            "{}: no runs here; give the folder that `ambitus train` named, or a folder of such folders",
            folder.display()
        )));
    }
    for looks in 1.. {
        rows.iter_mut().for_each(|row| row.look(screen));
        if once || is_over() || rows.iter().all(|row| row.ended) {
            lines(rows.iter()).iter().for_each(|line| screen.line(line));
            break;
        }
        // Where lines stay, those of runs that have ended were said.
        let live = screen.is_live();
        screen.block(&lines(rows.iter().filter(|row| live || !row.ended)));
        pause();
        if looks % LIST == 0 {
            list(folder, &mut rows)?;
        }
    }
    Ok(())
}
