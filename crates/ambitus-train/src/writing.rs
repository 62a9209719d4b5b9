//! Speech into files or a stream, while it is made, and what is odd about it.

use ambitus_data::{SoundWriter, doubts};
use ambitus_families::console::Console;
use ambitus_families::error::{RunError, replaces_a_file};
use ambitus_families::speech::{Listener, Speech, Spoken};
use ambitus_families::stop;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where speech goes.
#[derive(Clone, Debug)]
pub enum Out {
    /// A file; of several lines each has its own, numbered.
    File(PathBuf),
    /// Of each line its own file.
    Files(Vec<PathBuf>),
    /// A pipe that this opens, all lines one after another.
    Stream(fn() -> Box<dyn Write>),
}

impl Out {
    /// Returns a file of sound.
    ///
    /// # Errors
    /// A name that is of no form that is written, or of something else than a file.
    pub fn file(path: PathBuf) -> Result<Out, RunError> {
        if !["wav", "flac"].iter().any(|form| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(form)))
        {
            let why = format!("{}: unknown sound format; name a .wav or .flac file", path.display());
            return Err(RunError::Usage(why));
        }
        replaces_a_file(&path)?;
        Ok(Out::File(path))
    }
}

/// What was said of a line.
#[derive(Clone, Debug, Serialize)]
pub struct Said {
    /// Its file.
    pub file: Option<PathBuf>,
    /// Of the sound.
    pub seconds: f64,
    /// Pieces in which it was said.
    pub pieces: usize,
    /// What is odd about it.
    pub oddities: Vec<String>,
}

/// Writes lines as they come.
pub(crate) struct Writing<'a> {
    out: &'a Out,
    /// Hz.
    rate: u32,
    channels: usize,
    console: &'a mut dyn Console,
    /// What is being written, and its path.
    open: Option<(SoundWriter, Option<PathBuf>)>,
    /// Hears the line that is being spoken.
    ear: doubts::Listener,
    started: Instant,
    /// Of a channel, of all lines.
    samples: u64,
    pieces: &'a [usize],
    /// Of each line that was said the seconds of its sound, and what its text needs; 0 where that is not known.
    paces: Vec<(f64, f64)>,
    /// What was said.
    pub said: Vec<Said>,
}

impl<'a> Writing<'a> {
    /// Begins to write what `speech` makes. `pieces`: of each line.
    pub fn new(
        out: &'a Out,
        speech: &dyn Speech,
        pieces: &'a [usize],
        console: &'a mut dyn Console,
    ) -> Writing<'a> {
        let rate = speech.rate();
        Writing {
            out,
            rate,
            channels: speech.channels(),
            console,
            open: None,
            ear: doubts::Listener::new(rate),
            started: Instant::now(),
            samples: 0,
            pieces,
            paces: Vec::new(),
            said: Vec::new(),
        }
    }
}

impl Writing<'_> {
    fn seconds(&self, samples: u64) -> f64 {
        samples as f64 / f64::from(self.rate)
    }

    /// Returns the file of a line.
    fn path(&self, line: usize) -> Option<PathBuf> {
        let path = match self.out {
            Out::File(path) => path,
            Out::Files(paths) => return paths.get(line).cloned(),
            Out::Stream(_) => return None,
        };
        let lines = self.pieces.len();
        if lines == 1 {
            return Some(path.clone());
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let end = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
        let digits = lines.to_string().len();
        Some(path.with_file_name(format!("{stem}-{:0digits$}{end}", line + 1)))
    }

    fn writer(&mut self, line: usize) -> Result<&mut SoundWriter, RunError> {
        if self.open.is_none() {
            let path = self.path(line);
            let writer = match (self.out, &path) {
                (Out::Stream(open), _) => SoundWriter::stream(open(), self.rate, self.channels as u16)?,
                (_, Some(path)) => SoundWriter::create(path, self.rate, self.channels as u16)?,
                (_, None) => return Err(RunError::Io(format!("line {line} has no file"))),
            };
            self.open = Some((writer, path));
        }
        self.open
            .as_mut()
            .map(|(writer, _)| writer)
            .ok_or_else(|| RunError::Io("no sound is open".to_owned()))
    }

    /// Ends after all lines: of several, each is compared with the others.
    pub fn end(&mut self) -> Result<(), RunError> {
        for (said, doubt) in self.said.iter_mut().zip(doubts::beside_others(&self.paces)) {
            let Some(doubt) = doubt else { continue };
            let odd = format!("{doubt}, by the pace of other lines");
            self.console.line(&format!("{}: listen to it: {odd}", shown(said.file.as_deref())));
            said.oddities.push(odd);
        }
        if matches!(self.out, Out::Stream(_)) {
            // Also where nothing came.
            self.writer(0)?;
        }
        self.finish()
    }

    /// Returns the wall seconds since it began.
    pub fn taken(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns the seconds of speech.
    pub fn of_speech(&self) -> f64 {
        self.seconds(self.samples)
    }

    /// Ends what is open.
    fn finish(&mut self) -> Result<(), RunError> {
        if let Some((writer, _)) = self.open.take() {
            writer.finish()?;
        }
        Ok(())
    }
}

/// Returns where a line is, for people.
fn shown(file: Option<&Path>) -> String {
    file.map_or("standard output".to_owned(), |f| f.display().to_string())
}

impl Listener for Writing<'_> {
    fn samples(&mut self, line: usize, samples: &[f32]) -> Result<(), RunError> {
        if stop::requested() {
            let done = self.said.len();
            let why = format!("lines that are whole: {done}; the one that was being spoken is not kept");
            return Err(RunError::Interrupted(why));
        }
        self.writer(line)?.push(samples)?;
        match self.channels {
            1 => self.ear.push(samples),
            n => {
                let mix = |all: &[f32]| all.iter().sum::<f32>() / n as f32;
                self.ear.push(&samples.chunks(n).map(mix).collect::<Vec<f32>>());
            }
        }
        self.samples += (samples.len() / self.channels) as u64;
        let (speech, took) = (self.seconds(self.samples), self.started.elapsed().as_secs_f64());
        self.console
            .progress(&format!("{speech:.1} s of speech · {:.2} s of speech a second", speech / took));
        Ok(())
    }

    fn ended(&mut self, line: usize, spoken: Spoken) -> Result<(), RunError> {
        let before: f64 = self.said.iter().map(|s| s.seconds).sum();
        let seconds = self.seconds(self.samples) - before;
        let mut file = None;
        if !matches!(self.out, Out::Stream(_)) && self.pieces[line] > 0 {
            // Also where nothing came.
            self.writer(line)?;
            file = self.open.as_ref().and_then(|(_, path)| path.clone());
            self.finish()?;
        }
        let ear = std::mem::replace(&mut self.ear, doubts::Listener::new(self.rate));
        let mut oddities = spoken.oddities;
        if spoken.dropped > 0 {
            oddities.push(format!("malformed frames, dropped: {}", spoken.dropped));
        }
        let mut pace = (0.0, 0.0);
        if self.pieces[line] > 0 {
            let heard = ear.finish(spoken.expected_seconds, spoken.reached_limit);
            oddities.extend(heard.doubts.iter().map(ToString::to_string));
            pace = (heard.sounding, spoken.expected_seconds.unwrap_or(0.0));
            self.console.line(&format!("{}: {seconds:.1} s", shown(file.as_deref())));
            oddities.iter().for_each(|odd| self.console.line(&format!("  listen to it: {odd}")));
        }
        self.paces.push(pace);
        self.said.push(Said { file, seconds, pieces: self.pieces[line], oddities });
        Ok(())
    }
}
