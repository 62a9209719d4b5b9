//! The seam of speech: a family reads what is to be said, says which programs it needs, and makes sound with them.

use crate::error::RunError;
use crate::generate::Settings;
use crate::prepare::of_tokenizer;
use crate::tokens::Reading;
use ambitus_data::DataError;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is to be said.
#[derive(Clone, Debug)]
pub enum Line {
    /// A text of any length.
    Text(String),
    /// The text of a prepared clip.
    Clip(PathBuf),
}

/// A sound of the voice that speaks, and what is said in it.
#[derive(Clone, Debug)]
pub enum Reference {
    /// An audio file and its transcript.
    Sound(PathBuf, String),
    /// A prepared clip.
    Clip(PathBuf),
}

/// Who speaks what, and how.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The lines.
    pub lines: &'a [Line],
    /// Where the voice is that of a clip.
    pub reference: Option<&'a Reference>,
    /// Where voices have names.
    pub voice: Option<&'a str>,
    /// Of the lines, where languages are read differently.
    pub language: Option<&'a str>,
    /// The lines are as the project's cleaners leave them.
    pub cleaned: bool,
    /// Folder of the codec or vocoder; without, the family's own way, if it has one.
    pub decoder: Option<&'a Path>,
    /// How to generate.
    pub settings: &'a Settings,
    /// 1: as fast as the reference, or as it was trained.
    pub speed: f64,
    /// Of each line's sound, where the model does not choose it.
    pub seconds: Option<f64>,
    /// Longer texts are said in pieces of about as many seconds.
    pub most_seconds: f64,
    /// Of a codec or vocoder.
    pub threads: usize,
    /// Bytes that a tokenizer may take.
    pub room: u64,
}

impl Asked<'_> {
    /// Refuses a language and cleaned texts, for families that read all alike.
    ///
    /// # Errors
    /// [`RunError::Usage`] with the option.
    pub fn refuse_language(&self) -> Result<(), RunError> {
        Reading { language: self.language.map(str::to_owned), cleaned: self.cleaned, voice: None }.has(
            "this model",
            false,
            true,
        )
    }
}

/// Turns the failure of what reads texts into one of the model's folder or, where it has no room, of the budget.
pub fn no_room(e: DataError) -> RunError {
    match e {
        DataError::DoesNotFit { needed, .. } => {
            RunError::does_not_fit(needed, format!("{e}; raise --memory"))
        }
        other => of_tokenizer(other.into()),
    }
}

/// Bytes of text that are spoken in a second, about.
pub const BYTES_A_SECOND: f64 = 15.0;

/// Builds programs in a session; keys and values that are kept are of this type.
pub type Programs = Arc<dyn Fn(&mut Session, DType) -> Vec<Program> + Send + Sync>;

/// Makes speech for a family.
pub trait Speaker {
    /// Returns a text and the options that `ambitus say` takes with it, for people; `None` if the model cannot speak.
    fn example(&self) -> Option<&'static str>;

    /// Returns the original project's settings, for what is not said.
    fn settings(&self) -> Settings {
        Settings::SPEECH
    }

    /// Returns whether a line's sound is as long as is asked for, not as the model chooses.
    fn has_length(&self) -> bool {
        false
    }

    /// Returns whether what is drawn is noise that [`Settings::noise`] scales.
    fn has_noise(&self) -> bool {
        false
    }

    /// Reads and checks what is asked.
    ///
    /// # Errors
    /// By option, file and line.
    fn speech(&self, asked: &Asked<'_>) -> Result<Box<dyn Speech>, RunError>;

    /// Returns speech of `seconds` that is made at a time, at most [`most_seconds`](Speaker::most_seconds), for plans: its text and
    /// voice are of usual lengths, and there is nothing to hear. `threads`: of the codec or vocoder that the recipe names.
    ///
    /// # Errors
    /// The codec's or vocoder's files.
    fn of_length(&self, seconds: f64, threads: usize) -> Result<Box<dyn Speech>, RunError>;

    /// Returns the most seconds that are made at a time: longer speech is made in pieces, one after another.
    fn most_seconds(&self) -> f64;
}

/// Speech that is to be made.
pub trait Speech: Send {
    /// Returns what builds the programs.
    fn programs(&self) -> Programs;

    /// Returns the programs by name, each with the times that it runs for all lines, as long as they are expected to be.
    fn runs(&self) -> Vec<(String, f64)>;

    /// Returns the bytes of the host's memory that it took while lines were read: those of the tokenizer, which is gone.
    fn read_bytes(&self) -> u64;

    /// Returns the bytes of the host's memory that it takes beside the programs' arena: buffers and the codec or vocoder.
    fn bytes(&self) -> u64;

    /// Returns those of [`bytes`](Speech::bytes) that it still takes after [`rest`](Speech::rest).
    fn resting_bytes(&self) -> u64;

    /// Gives back what the next use opens again: the memory of the codec or vocoder.
    fn rest(&mut self);

    /// Returns the rate of the sound, Hz.
    fn rate(&self) -> u32;

    /// Returns the channels of the sound.
    fn channels(&self) -> usize {
        1
    }

    /// Returns the pieces in which each line is said.
    fn pieces(&self) -> Vec<usize>;

    /// Returns what a person should know before.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Speaks the lines one after another into `to`. `name` returns the name of a program from that of [`Programs`]: those
    /// on averaged weights have others.
    ///
    /// # Errors
    /// From the executor and `to`; weights that cannot be read or do not give numbers.
    fn speak(
        &mut self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        to: &mut dyn Listener,
    ) -> Result<(), RunError>;
}

/// Who takes the sound.
pub trait Listener {
    /// Takes the next samples of a line, of each channel in turn. Lines come in order.
    ///
    /// # Errors
    /// Sound that cannot be written.
    fn samples(&mut self, line: usize, samples: &[f32]) -> Result<(), RunError>;

    /// A line is complete.
    ///
    /// # Errors
    /// As [`Listener::samples`].
    fn ended(&mut self, line: usize, spoken: Spoken) -> Result<(), RunError>;
}

/// How a line was spoken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spoken {
    /// Seconds that its text should take, where the model chose the length.
    pub expected_seconds: Option<f64>,
    /// It ended because it may not be longer.
    pub reached_limit: bool,
    /// Malformed frames, which are not heard.
    pub dropped: usize,
    /// What else is odd about it, for people.
    pub oddities: Vec<String>,
}

/// How lines were spoken, each of which a listener hears of once.
pub struct SpokenLines {
    lines: Vec<Spoken>,
    /// Of which the listener knows.
    ended: usize,
}

impl SpokenLines {
    /// Returns as many lines whose texts say how long they should take, of which nothing was spoken.
    pub fn new(lines: usize) -> SpokenLines {
        let none = Spoken { expected_seconds: Some(0.0), ..Spoken::default() };
        SpokenLines { lines: vec![none; lines], ended: 0 }
    }

    /// Returns a line that has not ended.
    pub fn line(&mut self, line: usize) -> &mut Spoken {
        &mut self.lines[line]
    }

    /// Ends the lines before `line`: also those without a text.
    ///
    /// # Errors
    /// From the listener.
    pub fn end_before(&mut self, line: usize, to: &mut dyn Listener) -> Result<(), RunError> {
        while self.ended < line {
            to.ended(self.ended, std::mem::take(&mut self.lines[self.ended]))?;
            self.ended += 1;
        }
        Ok(())
    }
}

/// Joins the pieces of a line: the end of one fades into the beginning of the next (f5-tts 1.1.22, `infer_batch_process`).
pub struct Joined {
    fade: usize,
    /// The end of what came, that the next piece may fade into.
    tail: Vec<f32>,
    /// Samples of the piece so far, and how many of them fade.
    at: Range<usize>,
}

impl Joined {
    /// Returns a line at its start, with fades of at most `fade` samples.
    pub fn new(fade: usize) -> Joined {
        Joined { fade, tail: Vec::new(), at: 0..0 }
    }

    /// Begins a piece of `samples` samples.
    pub fn begin(&mut self, samples: usize) {
        self.at = 0..self.fade.min(samples).min(self.tail.len());
    }

    /// Takes the next samples of a piece, and gives those that no later piece changes.
    ///
    /// # Errors
    /// From `to`.
    pub fn push<E>(&mut self, samples: &[f32], mut to: impl FnMut(&[f32]) -> Result<(), E>) -> Result<(), E> {
        let n = self.at.end;
        let fading = samples.len().min(n.saturating_sub(self.at.start));
        let from = self.tail.len() - n.min(self.tail.len()) + self.at.start;
        for (i, x) in samples[..fading].iter().enumerate() {
            // numpy's linspace(0, 1, n), in double precision.
            let share = if n > 1 { (self.at.start + i) as f64 / (n - 1) as f64 } else { 0.0 };
            let old = &mut self.tail[from + i];
            *old = (f64::from(*old) * (1.0 - share) + f64::from(*x) * share) as f32;
        }
        self.at.start += fading;
        self.tail.extend_from_slice(&samples[fading..]);
        let done = self.tail.len().saturating_sub(self.fade);
        // While a piece fades in, its end is not yet what the next one fades into.
        if self.at.start == n && done > 0 {
            to(&self.tail[..done])?;
            self.tail.drain(..done);
        }
        Ok(())
    }

    /// Gives the rest.
    ///
    /// # Errors
    /// From `to`.
    pub fn finish<E>(&mut self, mut to: impl FnMut(&[f32]) -> Result<(), E>) -> Result<(), E> {
        let rest = std::mem::take(&mut self.tail);
        if rest.is_empty() { Ok(()) } else { to(&rest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole, joined at once.
    fn plainly(pieces: &[Vec<f32>], fade: usize) -> Vec<f32> {
        let mut all: Vec<f32> = Vec::new();
        for piece in pieces {
            let n = fade.min(all.len()).min(piece.len());
            let start = all.len() - n;
            for i in 0..n {
                let share = if n > 1 { i as f64 / (n - 1) as f64 } else { 0.0 };
                all[start + i] =
                    (f64::from(all[start + i]) * (1.0 - share) + f64::from(piece[i]) * share) as f32;
            }
            all.extend_from_slice(&piece[n..]);
        }
        all
    }

    #[test]
    fn pieces_fade_into_one_another() {
        for lengths in
            [&[50][..], &[50, 50], &[3, 20, 50], &[30, 4, 30], &[40, 0, 40], &[9, 9, 9, 9], &[5, 5]]
        {
            let pieces: Vec<Vec<f32>> = lengths
                .iter()
                .enumerate()
                .map(|(k, n)| (0..*n).map(|i| (i * 7 % 11 + k) as f32).collect())
                .collect();
            for fade in [0, 1, 2, 9] {
                for step in [1, 4, 100] {
                    let (mut joined, mut got) = (Joined::new(fade), Vec::new());
                    for piece in &pieces {
                        joined.begin(piece.len());
                        for part in piece.chunks(step) {
                            let taken = joined.push(part, |x| {
                                got.extend_from_slice(x);
                                Ok::<_, ()>(())
                            });
                            taken.expect("nothing fails");
                        }
                    }
                    joined
                        .finish(|x| {
                            got.extend_from_slice(x);
                            Ok::<_, ()>(())
                        })
                        .expect("nothing fails");
                    assert_eq!(got, plainly(&pieces, fade), "{lengths:?} {fade} {step}");
                }
            }
        }
    }
}
