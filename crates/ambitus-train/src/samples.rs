//! What is spoken while a run trains, into `samples/UPDATE/NAME.wav` of its folder.
//!
//! Nothing that a run computes depends on it: programs that speak write no state but their caches, draws are keyed by the seed, and a
//! disk that is full or weights that give no speech are said, and the run continues.

use crate::export::Source;
use crate::metrics::heard_with;
use crate::run_dir::RunDir;
use crate::writing::{Out, Writing};
use ambitus_data::text::Errors;
use ambitus_exec::executor::Executor;
use ambitus_families::console::Silent;
use ambitus_families::error::RunError;
use ambitus_families::stop;
use ambitus_families::weights::load_frozen;
use ambitus_plan::budget::phase;
use ambitus_plan::heard::HeardBy;
use ambitus_plan::memory::{self, Meter};
use ambitus_plan::samples::Samples;
use ambitus_plan::session::program;
use ambitus_recipe::recipe::Every;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Instant;

/// What lies beside the sounds of an update.
const FILE: &str = "samples.json";

/// A sound's name, and its file.
pub type Sound = (String, PathBuf);

/// What was spoken after an update.
#[derive(Debug, Default)]
pub struct Spoken {
    /// What a person should know.
    pub said: String,
    /// The sounds that there are.
    pub sounds: Vec<Sound>,
    /// What was not heard of their texts, of all that could be heard.
    pub errors: Option<Errors>,
    /// What [`FILE`] holds of them.
    facts: Value,
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

    /// Speaks all lines with weights of an update, and then hears them, where the recipe names a model for it.
    ///
    /// # Errors
    /// A device that failed.
    pub fn speak(
        &self,
        exec: &mut dyn Executor,
        (update, source): (u64, Source),
        meter: &mut Meter,
    ) -> Result<Spoken, RunError> {
        let spoken = self.spoken(exec, (update, source));
        self.samples.speech.lock().unwrap_or_else(PoisonError::into_inner).rest();
        // What speaking has left with the allocator is no other phase's.
        memory::return_freed();
        meter.ended(phase::SAMPLE);
        let said = match spoken {
            Ok(mut spoken) => {
                if let Some(by) = &self.samples.heard_by {
                    self.hear(by, update, &mut spoken);
                    memory::return_freed();
                    meter.ended(phase::HEAR);
                }
                return Ok(spoken);
            }
            Err(e @ (RunError::Device(_) | RunError::Ranks(_))) => return Err(e),
            Err(RunError::Interrupted(_)) => {
                format!("update {update}: samples are left out: a stop was asked for")
            }
            Err(why) => format!("update {update}: samples are left out: {why}; the run continues"),
        };
        Ok(Spoken { said, ..Spoken::default() })
    }

    /// Hears what was spoken. What goes wrong is said, and nothing else comes of it.
    fn hear(&self, by: &HeardBy, update: u64, spoken: &mut Spoken) {
        let began = Instant::now();
        let heard = self.heard(by, spoken).and_then(|()| {
            let dir = self.run.folder(&format!("samples/{update}"))?;
            RunDir::at(dir).write_json(FILE, &spoken.facts)
        });
        if heard.is_err() {
            // A rate of some of them would be compared with that of all.
            spoken.errors = None;
        }
        let said = match (heard, &spoken.errors) {
            (Ok(()), Some(errors)) => {
                format!("{}; took {:.1} s", heard_with(update, errors), began.elapsed().as_secs_f64())
            }
            (Ok(()), None) => format!("update {update}: no sample was heard"),
            (Err(RunError::Interrupted(_)), _) => {
                format!("update {update}: samples are not heard: a stop was asked for")
            }
            (Err(why), _) => format!("update {update}: samples are not heard: {why}; the run continues"),
        };
        let _ = write!(spoken.said, "\n{said}");
    }

    fn heard(&self, by: &HeardBy, spoken: &mut Spoken) -> Result<(), RunError> {
        let asked = by.asked();
        let mut ear = by.hearing.ear(&asked)?;
        let mut exec = by.open()?;
        load_frozen(by.hearing.weights(), &mut *exec)?;
        let lines = self.samples.names.iter().zip(&by.texts).enumerate();
        for (i, (name, text)) in lines {
            let Some((_, file)) = spoken.sounds.iter().find(|(of, _)| of == name) else { continue };
            if stop::requested() {
                return Err(RunError::Interrupted(String::new()));
            }
            let heard = match ear.transcribe(&mut *exec, file, &mut |_, _| {}) {
                Ok(heard) => heard,
                Err(why) => {
                    let _ = write!(spoken.said, "\n  {name}.wav is not heard: {why}");
                    continue;
                }
            };
            let errors = Errors::of(text, &heard.text, &heard.language);
            let facts = &mut spoken.facts["lines"][i];
            facts["heard"] = heard.text.into();
            facts["wer"] = errors.rate().into();
            facts["errors"] = errors.errors.into();
            facts["words"] = errors.words.into();
            facts["by_characters"] = errors.by_characters.into();
            *spoken.errors.get_or_insert_default() += errors;
        }
        spoken.facts["wer"] = json!(spoken.errors.as_ref().map(Errors::rate));
        Ok(())
    }

    fn spoken(&self, exec: &mut dyn Executor, (update, source): (u64, Source)) -> Result<Spoken, RunError> {
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
        Ok(Spoken { said, sounds, errors: None, facts })
    }
}
