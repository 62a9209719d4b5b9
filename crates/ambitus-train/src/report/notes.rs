//! `notes.jsonl`: what happened to a run beside its updates, a line each: validations, slow steps, who else used the machine, seconds
//! that were lost, how samples were heard.
//!
//! A run needs none of it. Lines that cannot be read are passed over, and a file that cannot be written costs the notes alone.

use crate::metrics::{Lost, Real};
use ambitus_data::text::Errors;
use ambitus_store::{open_file, open_own_file, write_atomic};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Name of the file in a run folder.
pub const NOTES_FILE: &str = "notes.jsonl";
/// A line is about 100 bytes; a longer one is not ours.
const MAX_LINE: u64 = 4096;
/// Bytes of the file that are read.
const MAX_BYTES: u64 = 4 << 20;
/// Validations that are remembered; where there are more, every second is.
const MOST_VALIDATIONS: usize = 1024;
/// Slow steps that are remembered: the slowest.
const MOST_SLOW: usize = 40;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Note {
    /// A validation.
    Validation(Validation),
    /// A step that took long.
    Slow(Slow),
    /// Who else uses the machine.
    Others(Others),
    /// Seconds that the run has lost.
    Lost(LostBy),
    /// Samples were heard.
    Heard(Heard),
}

/// Validation losses after an update; 0 is the base.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Updates done.
    pub update: u64,
    /// Of the weights.
    pub loss: Real,
    /// Of the average, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average: Option<Real>,
}

impl Validation {
    /// Returns the lower loss.
    pub fn better(&self) -> f64 {
        self.average.map_or(self.loss.0, |average| average.0.min(self.loss.0))
    }
}

/// A step that took long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// Which.
    pub update: u64,
    /// What it took.
    pub seconds: f64,
    /// Why, for people.
    pub why: String,
}

/// Who else uses the machine and the card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Others {
    /// Updates done.
    pub update: u64,
    /// The largest other processes and their resident bytes.
    pub processes: Vec<(String, u64)>,
    /// Who holds memory of the cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<String>,
}

/// Seconds that a run has lost since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LostBy {
    /// Updates done.
    pub update: u64,
    /// By cause.
    #[serde(flatten)]
    pub lost: Lost,
}

/// How the samples after an update were heard; 0 is the base.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// Updates done.
    pub update: u64,
    /// See [`Errors`].
    pub errors: usize,
    /// See [`Errors`].
    pub words: usize,
    /// See [`Errors`].
    #[serde(default)]
    pub by_characters: bool,
}

impl Heard {
    /// Returns what was not heard.
    pub fn errors(&self) -> Errors {
        let Heard { errors, words, by_characters, .. } = *self;
        Errors { errors, words, by_characters }
    }

    /// Returns the word error rate.
    pub fn rate(&self) -> f64 {
        self.errors().rate()
    }
}

impl Note {
    fn update(&self) -> u64 {
        match self {
            Note::Validation(v) => v.update,
            Note::Slow(s) => s.update,
            Note::Others(o) => o.update,
            Note::Lost(l) => l.update,
            Note::Heard(h) => h.update,
        }
    }
}

/// The notes of a run, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Validations in order.
    pub validations: Vec<Validation>,
    /// The slowest steps, in order.
    pub slow: Vec<Slow>,
    /// The newest.
    pub others: Option<Others>,
    /// The newest.
    pub lost: Lost,
    /// How samples were heard, in order.
    pub heard: Vec<Heard>,
}

impl Notes {
    /// Reads the notes of a run; a missing file has none.
    pub fn read(run: &Path) -> Notes {
        let mut notes = Notes::default();
        lines(&run.join(NOTES_FILE), |note| notes.add(note));
        notes
    }

    /// Returns the base's validation loss.
    pub fn base(&self) -> Option<f64> {
        self.validations.iter().find(|v| v.update == 0).map(|v| v.loss.0)
    }

    /// Returns the best validation loss after the base's.
    pub fn best(&self) -> Option<f64> {
        let better = self.validations.iter().filter(|v| v.update > 0).map(Validation::better);
        better.filter(|loss| loss.is_finite()).min_by(f64::total_cmp)
    }

    /// Returns whether a note would be remembered.
    fn takes(&self, note: &Note) -> bool {
        let Note::Slow(slow) = note else { return true };
        self.slow.len() < MOST_SLOW || self.slow.iter().any(|s| s.seconds < slow.seconds)
    }

    /// Adds a note that was made after the others.
    pub fn add(&mut self, note: Note) {
        match note {
            Note::Validation(v) => {
                thin(&mut self.validations);
                self.validations.push(v);
            }
            Note::Heard(heard) => {
                thin(&mut self.heard);
                self.heard.push(heard);
            }
            Note::Slow(slow) => {
                self.slow.push(slow);
                if self.slow.len() > MOST_SLOW {
                    let seconds = |s: &Slow| s.seconds;
                    let least = (0..self.slow.len())
                        .min_by(|a, b| seconds(&self.slow[*a]).total_cmp(&seconds(&self.slow[*b])));
                    least.map(|at| self.slow.remove(at));
                }
            }
            Note::Others(others) => self.others = Some(others),
            Note::Lost(by) => self.lost = by.lost,
        }
    }
}

/// Leaves out every second of what is remembered of validations, where there is no room for more. The first stays.
fn thin<T>(remembered: &mut Vec<T>) {
    if remembered.len() == MOST_VALIDATIONS {
        let mut at = 0;
        remembered.retain(|_| {
            at += 1;
            at % 2 == 1
        });
    }
}

/// Gives every line that can be read.
fn lines(path: &Path, mut take: impl FnMut(Note)) {
    let Ok((file, _)) = open_file(path) else { return };
    let mut reader = BufReader::new(file.take(MAX_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // A torn line reads as none, and so does what is left of one that is too long.
        if let Ok(note) = serde_json::from_slice(&line) {
            take(note);
        }
    }
}

/// Appends a line; what was read can be written.
fn write(text: &mut Vec<u8>, note: &Note) {
    let _ = serde_json::to_writer(&mut *text, note);
    text.push(b'\n');
}

/// The file, open for appending, and what is in it.
#[derive(Debug)]
pub struct NotesFile {
    path: PathBuf,
    file: Option<File>,
    /// What is in it.
    pub notes: Notes,
}

impl NotesFile {
    /// Returns the notes of a run after `update`: later ones are left out.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn resume(run: &Path, update: u64) -> io::Result<NotesFile> {
        let path = run.join(NOTES_FILE);
        let (mut notes, mut text, mut last) = (Notes::default(), Vec::new(), 0);
        lines(&path, |note| {
            if note.update() <= update {
                // Of these the newest is enough, however many there were.
                if matches!(note, Note::Validation(_) | Note::Slow(_) | Note::Heard(_)) {
                    write(&mut text, &note);
                }
                last = last.max(note.update());
                notes.add(note);
            }
        });
        notes.others.iter().for_each(|others| write(&mut text, &Note::Others(others.clone())));
        if notes.lost != Lost::default() {
            write(&mut text, &Note::Lost(LostBy { update: last, lost: notes.lost }));
        }
        write_atomic(&path, &text).map_err(io::Error::other)?;
        let mut file = open_own_file(&path).map_err(io::Error::other)?;
        file.seek(SeekFrom::End(0))?;
        Ok(NotesFile { path, file: Some(file), notes })
    }

    /// Returns notes of which no file is kept.
    pub fn unwritten() -> NotesFile {
        NotesFile { path: PathBuf::new(), file: None, notes: Notes::default() }
    }

    /// Adds a note. Returns what went wrong when it could not be written, once: later ones are not.
    pub fn add(&mut self, note: Note) -> Option<String> {
        // On a busy machine any number of steps is slow.
        if !self.notes.takes(&note) {
            return None;
        }
        let written = self.file.as_mut().map_or(Ok(()), |file| {
            let mut line = serde_json::to_vec(&note)?;
            line.push(b'\n');
            file.write_all(&line)
        });
        self.notes.add(note);
        let why = written.err()?;
        self.file = None;
        Some(format!(
            "{}: {why}: later validations and slow steps are not kept there; the run continues",
            self.path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation(update: u64, loss: f64) -> Note {
        Note::Validation(Validation { update, loss: Real(loss), average: None })
    }

    #[test]
    fn notes_are_cut_back_and_damage_is_passed_over() {
        let run = tempfile::tempdir().unwrap();
        let mut file = NotesFile::resume(run.path(), 0).unwrap();
        for update in [0, 10, 20] {
            assert_eq!(file.add(validation(update, f64::NAN)), None);
        }
        let slow = Slow { update: 12, seconds: 3.0, why: "<b>".to_owned() };
        assert_eq!(file.add(Note::Slow(slow)), None);
        let path = run.path().join(NOTES_FILE);
        let mut text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
        text.insert_str(0, &format!("{{}}\nnonsense\n{}\n", "x".repeat(9000)));
        std::fs::write(&path, text + "{\"kind\":\"slow\",\"upd").unwrap();
        let notes = NotesFile::resume(run.path(), 12).unwrap().notes;
        let updates: Vec<u64> = notes.validations.iter().map(|v| v.update).collect();
        assert_eq!((updates, notes.slow.len()), (vec![0, 10], 1));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    /// What was lost is of the whole run, and a file that is resumed is no longer than its notes.
    #[test]
    fn what_was_lost_goes_on_after_a_resume() {
        let run = tempfile::tempdir().unwrap();
        let mut file = NotesFile::resume(run.path(), 0).unwrap();
        assert_eq!(std::fs::read_to_string(run.path().join(NOTES_FILE)).unwrap(), "");
        for update in 1..=30 {
            let lost = Lost { saving: update as f64, cores: 0.5, ..Lost::default() };
            assert_eq!(file.add(Note::Lost(LostBy { update, lost })), None);
            assert_eq!(file.add(Note::Others(Others { update, ..Others::default() })), None);
        }
        let mut notes = NotesFile::resume(run.path(), 20).unwrap();
        assert_eq!(notes.notes.lost, Lost { saving: 20.0, cores: 0.5, ..Lost::default() });
        assert_eq!(notes.notes.others.as_ref().map(|o| o.update), Some(20));
        let text = std::fs::read_to_string(run.path().join(NOTES_FILE)).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(notes.add(validation(21, 1.0)), None);
        // Whatever is left of it at the same update, it is still there.
        assert_eq!(NotesFile::resume(run.path(), 20).unwrap().notes.lost, notes.notes.lost);
    }

    #[test]
    fn many_notes_take_little_memory() {
        let mut notes = Notes::default();
        for update in 0..100_000 {
            notes.add(validation(update, 1.0));
            let seconds = if update == 500 { 9.0 } else { 1.0 + update as f64 * 1e-9 };
            notes.add(Note::Slow(Slow { update, seconds, why: String::new() }));
        }
        assert!(notes.validations.len() <= MOST_VALIDATIONS && notes.slow.len() <= MOST_SLOW);
        assert!(
            notes.validations.is_sorted_by_key(|v| v.update) && notes.slow.is_sorted_by_key(|s| s.update)
        );
        assert!(notes.slow.iter().any(|s| s.update == 500));
    }
}
