//! What is spoken while a run trains, into `samples/UPDATE/NAME.wav` of its folder.
//!
//! Nothing that a run computes depends on it: programs that speak write no state but their caches, draws are keyed by the seed, and a
//! disk that is full or weights that give no speech are said, and the run continues.

use crate::export::Source;
use crate::run_dir::RunDir;
use crate::writing::{Out, Writing};
use ambitus_exec::executor::Executor;
use ambitus_families::console::Silent;
use ambitus_families::error::RunError;
use ambitus_plan::memory;
use ambitus_plan::samples::Samples;
use ambitus_plan::session::program;
use ambitus_recipe::recipe::Every;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::PoisonError;

/// What lies beside the sounds of an update.
const FILE: &str = "samples.json";

/// A sound's name, and its file.
pub type Sound = (String, PathBuf);

/// What was spoken after an update.
#[derive(Debug, Default)]
pub struct Heard {
    /// What a person should know.
    pub said: String,
    /// The sounds that there are.
    pub sounds: Vec<Sound>,
}

/// Speaks for a run.
pub struct Speaking<'a> {
    samples: &'a Samples,
    run: &'a RunDir,
}

impl<'a> Speaking<'a> {
    /// Returns what speaks for a run, if anything does.
    pub fn of(samples: Option<&'a Samples>, run: &'a RunDir) -> Option<Speaking<'a>> {
        samples.map(|samples| Speaking { samples, run })
    }

    /// Returns whether an update has samples; `validated`: there was a validation.
    pub fn is_due(&self, update: u64, validated: bool) -> bool {
        match self.samples.every {
            Every::Validation => validated,
            Every::Updates(n) => update.is_multiple_of(n),
        }
    }

    /// Speaks all lines with weights of an update.
    ///
    /// # Errors
    /// A device that failed.
    pub fn speak(&self, exec: &mut dyn Executor, (update, source): (u64, Source)) -> Result<Heard, RunError> {
        let spoken = self.spoken(exec, (update, source));
        self.samples.speech.lock().unwrap_or_else(PoisonError::into_inner).rest();
        // What speaking has left with the allocator is no other phase's.
        memory::return_freed();
        let said = match spoken {
            Ok(heard) => return Ok(heard),
            Err(e @ (RunError::Device(_) | RunError::Ranks(_))) => return Err(e),
            Err(RunError::Interrupted(_)) => {
                format!("update {update}: samples are left out: a stop was asked for")
            }
            Err(why) => format!("update {update}: samples are left out: {why}; the run continues"),
        };
        Ok(Heard { said, sounds: Vec::new() })
    }

    fn spoken(&self, exec: &mut dyn Executor, (update, source): (u64, Source)) -> Result<Heard, RunError> {
        let dir = self.run.folder(&format!("samples/{update}"))?;
        let file = |name: &String| -> PathBuf { dir.join(format!("{name}.wav")) };
        let out = Out::Files(self.samples.names.iter().map(file).collect());
        let before = match source {
            Source::Ema => program::SAY_EMA,
            Source::Raw => program::SAY,
        };
        let mut speech = self.samples.speech.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = speech.pieces();
        let mut silent = Silent;
        let mut writing = Writing::new(&out, &**speech, &pieces, &mut silent);
        speech.speak(exec, &|name| format!("{before}{name}"), &mut writing)?;
        writing.end()?;
        let (seconds, of_speech) = (writing.taken(), writing.of_speech());
        let lines = writing.said;
        let mut said = format!(
            "update {update}: {of_speech:.1} s of speech in {}, of the {} weights; took {seconds:.1} s",
            dir.display(),
            source.name()
        );
        for (line, name) in lines.iter().zip(&self.samples.names) {
            for odd in &line.oddities {
                let _ = write!(said, "\n  listen to {name}.wav: {odd}");
            }
        }
        let facts = json!({ "update": update, "weights": source.name(), "seconds": seconds, "lines": lines });
        RunDir::at(dir).write_json(FILE, &facts)?;
        let sounds = lines.into_iter().zip(&self.samples.names);
        let sounds = sounds.filter_map(|(line, name)| Some((name.clone(), line.file?))).collect();
        Ok(Heard { said, sounds })
    }
}
