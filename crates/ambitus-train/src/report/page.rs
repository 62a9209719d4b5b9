//! The page of a run that trains: what it needs beside the log, and when it is written.

use super::notes::{Heard, LostBy, Note, Notes, NotesFile, Others, Slow, Validation};
use crate::metrics::{History, Lost, Real};
use ambitus_data::text::Errors;
use ambitus_families::console::Console;
use ambitus_plan::{device, memory};
use std::path::{Path, PathBuf};

/// Other processes that are named.
const MOST_PROCESSES: usize = 5;

/// Writes the page of a run. What goes wrong with it is said once and costs the run nothing.
#[derive(Debug)]
pub struct Page {
    run: PathBuf,
    on_card: bool,
    notes: NotesFile,
    /// What was lost before this process.
    lost_before: Lost,
    /// What went wrong and has not been said.
    wrong: Option<String>,
    fails: bool,
}

impl Page {
    /// Returns the page of a run after `update`. `base`: its first validation loss.
    pub fn resume(
        run: &Path,
        on_card: bool,
        update: u64,
        base: Option<f64>,
        console: &mut dyn Console,
    ) -> Page {
        let notes = NotesFile::resume(run, update).unwrap_or_else(|e| {
            console.line(&format!("{e}: validations and slow steps are not kept; the run continues"));
            NotesFile::unwritten()
        });
        let known = notes.notes.validations.iter().any(|v| v.update == 0);
        let lost_before = notes.notes.lost;
        let mut page = Page { run: run.to_owned(), on_card, notes, lost_before, wrong: None, fails: false };
        if let Some(base) = base.filter(|_| !known) {
            page.validated(0, base, None);
        }
        page
    }

    /// Notes a validation.
    pub fn validated(&mut self, update: u64, loss: f64, average: Option<f64>) {
        self.add(Note::Validation(Validation { update, loss: Real(loss), average: average.map(Real) }));
    }

    /// Notes how samples were heard.
    pub fn heard(&mut self, update: u64, errors: &Errors) {
        let Errors { errors, words, by_characters } = *errors;
        self.add(Note::Heard(Heard { update, errors, words, by_characters }));
    }

    /// Notes a slow step.
    pub fn slow(&mut self, update: u64, seconds: f64, why: String) {
        self.add(Note::Slow(Slow { update, seconds, why }));
    }

    /// Notes what this process has lost until an update.
    pub fn lost(&mut self, update: u64, lost: Lost) {
        self.add(Note::Lost(LostBy { update, lost: self.lost_before.and(lost) }));
    }

    /// Returns the notes of the whole run.
    pub fn notes(&self) -> &Notes {
        &self.notes.notes
    }

    fn add(&mut self, note: Note) {
        let wrong = self.notes.add(note);
        self.wrong = self.wrong.take().or(wrong);
    }

    /// Writes the page after an update.
    pub fn write(&mut self, history: &History, update: u64, console: &mut dyn Console) {
        let processes = memory::top_processes(MOST_PROCESSES);
        let cards = if self.on_card { device::report().cards } else { Vec::new() };
        let cards = cards.into_iter().flat_map(|card| card.holders).collect();
        let processes = processes.into_iter().map(|p| (p.name, p.rss_bytes)).collect();
        self.add(Note::Others(Others { update, processes, cards }));
        if let Some(wrong) = self.wrong.take() {
            console.line(&wrong);
        }
        match super::write(&self.run, history, &self.notes.notes) {
            Err(e) if !self.fails => {
                console.line(&format!("{e}: the page of the run is not written; the run continues"));
                self.fails = true;
            }
            Err(_) => {}
            Ok(()) => self.fails = false,
        }
        memory::return_freed();
    }
}
