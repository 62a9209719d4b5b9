//! What is spoken while a run trains: which sentences, in whose voice, and whether that is worth its memory and time.

use crate::asked::Asked;
use crate::budget::{RunPlan, START_BYTES, SpokenBytes, phase};
use crate::data::Data;
use crate::device::Device;
use crate::heard::HeardBy;
use crate::search::Search;
use crate::session::Spoken;
use ambitus_compile::plan::report;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_families::generate::Settings;
use ambitus_families::sampling::Sampling;
use ambitus_families::speech::{Asked as AskedSpeech, Line, Reference, Speech};
use ambitus_ir::{Program, Session};
use ambitus_recipe::recipe::{self, Every, Sentences, Settled};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Validation clips whose texts are spoken where the recipe names none.
const CLIPS: usize = 2;
/// Shorter clips are a word or two: longer ones are preferred.
const LEAST_SECONDS: f64 = 2.0;
/// The length of a reference that is preferred.
const REFERENCE_SECONDS: f64 = 6.0;
/// The longest piece of a text.
const MOST_SECONDS: f64 = 20.0;
/// The longest sound, of models that make it as long as is asked for, where the recipe does not ask.
const MOST_OF_MUSIC: f64 = 10.0;
/// Nobody who did not ask for samples waits longer for them: their share of the arithmetic between two validations.
const MOST_SHARE: f64 = 0.05;
/// Bytes of a name.
const MOST_NAME: usize = 40;

/// What is spoken while a run trains.
pub struct Samples {
    /// Speaks the lines. Rests between.
    pub speech: Mutex<Box<dyn Speech>>,
    /// Of each line, for its file.
    pub names: Vec<String>,
    /// What hears them.
    pub heard_by: Option<HeardBy>,
    /// When.
    pub every: Every,
    /// What the run needs without them.
    pub without_bytes: u64,
}

/// Samples that were read.
pub(crate) struct Ready {
    /// The recipe asks for them.
    given: bool,
    wanted: Sentences,
    pub speech: Box<dyn Speech>,
    names: Vec<String>,
    heard_by: Option<HeardBy>,
}

impl Ready {
    /// Returns what they take.
    pub fn bytes(&self) -> SpokenBytes {
        SpokenBytes::of(&*self.speech, self.heard_by.as_ref().map_or_else(Default::default, |h| h.bytes))
    }
}

/// What was decided.
pub(crate) struct Decided {
    /// The samples, if there are any.
    pub samples: Option<Samples>,
    /// What the settled recipe says of them; `None`: it was not decided.
    pub settled: Option<recipe::Samples>,
    /// For people: what is spoken, and why; empty: the recipe says so.
    pub said: [String; 2],
}

impl Decided {
    fn off(why: &str) -> Decided {
        Decided {
            samples: None,
            settled: Some(recipe::Samples::Off),
            said: ["off".to_owned(), why.to_owned()],
        }
    }
}

/// What decides whether a run has samples.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub recipe: &'a Settled,
    pub model: &'a ModelDir,
    pub data: &'a Data,
    pub device: &'a Device,
    pub updates: u64,
    pub budget: u64,
}

impl Run<'_> {
    /// Reads what is to be spoken, or says why nothing is.
    ///
    /// # Errors
    /// Samples that the recipe asks for and that cannot be spoken.
    pub(crate) fn read(&self) -> Result<Result<Ready, Decided>, RunError> {
        let (given, mut wanted) = match &self.recipe.samples {
            Some(recipe::Samples::Off) => return Ok(Err(Decided::off(""))),
            Some(recipe::Samples::Of(wanted)) => (true, (**wanted).clone()),
            None => (false, Sentences::default()),
        };
        let speaks_words = self.model.opened.speaker().is_none_or(|speaker| !speaker.has_length());
        if wanted.heard_by.is_some() && !speaks_words {
            return Err(RunError::Usage("samples.heard_by: this model speaks no words".to_owned()));
        }
        if self.recipe.ranks() > 1 {
            let said = ["off", "one rank alone speaks, this run has several"].map(str::to_owned);
            return Ok(Err(Decided { samples: None, settled: None, said }));
        }
        if self.data.assumed().is_some() {
            let said = ["not in this plan", "decided when clips are prepared"].map(str::to_owned);
            return Ok(Err(Decided { samples: None, settled: None, said }));
        }
        let read = self.speech(&mut wanted);
        match read.and_then(|read| Ok((read, HeardBy::of(&wanted, self.device.threads())?))) {
            Ok(((speech, names), heard_by)) => Ok(Ok(Ready { given, wanted, speech, names, heard_by })),
            Err(RunError::Usage(why)) if given => {
                Err(RunError::Usage(format!("samples: {why} (samples: false leaves them out)")))
            }
            Err(e) if given => Err(e),
            Err(e) => Ok(Err(Decided::off(e.to_string().lines().next().unwrap_or_default()))),
        }
    }

    /// Decides on samples, and adds them to a plan that was `found` without. Where the recipe asks for them and they do not fit beside
    /// that plan, another is searched for with them.
    ///
    /// # Errors
    /// From planning.
    pub(crate) fn decide(
        &self,
        ready: Ready,
        asked: &mut Asked,
        found: &mut Search,
    ) -> Result<Decided, RunError> {
        let Ready { given, wanted, speech, names, heard_by } = ready;
        let spoken = Spoken::of(&*speech);
        if !given && found.plan.peak_bytes > self.budget {
            return Ok(Decided::off("the run does not fit"));
        }
        if !given && let Some(why) = self.too_slow(&*speech, &spoken, (asked, &found.plan)) {
            return Ok(Decided::off(&why));
        }
        let (without, without_bytes) = (found.plan.shape.clone(), found.plan.peak_bytes);
        let mut with = without.clone();
        with.session.speech = Some(spoken.clone());
        // Two plans have no room at a time.
        drop(found.plan.take_sessions(1));
        found.plan = RunPlan::new(with, self.device.target())?;
        let fits = found.plan.peak_bytes <= self.budget;
        if given {
            // Smallest budgets and changes of a refusal have them.
            asked.shape.session.speech = Some(spoken);
        }
        if given && !fits {
            drop(found.plan.take_sessions(1));
            *found = asked.search(self.device, self.budget)?;
        } else if !given && (!fits || found.plan.highest_phase() == phase::SAMPLE) {
            drop(found.plan.take_sessions(1));
            found.plan = RunPlan::new(without, self.device.target())?;
            return Ok(Decided::off("they would need more memory than any other phase"));
        }
        if let Some(chosen) = found.candidates.first_mut() {
            chosen.peak_bytes = found.plan.peak_bytes;
        }
        let when = match wanted.every {
            Every::Validation => "with every validation".to_owned(),
            Every::Updates(n) => format!("every {n} updates"),
        };
        let heard =
            wanted.heard_by.as_ref().map_or_else(String::new, |dir| format!(", heard by {}", dir.display()));
        let said =
            format!("{} sentence{} {when}{heard}", names.len(), if names.len() == 1 { "" } else { "s" });
        let why = if given { "" } else { "default" };
        let samples =
            Samples { speech: Mutex::new(speech), names, heard_by, every: wanted.every, without_bytes };
        let settled = Some(recipe::Samples::Of(Box::new(wanted)));
        Ok(Decided { samples: Some(samples), settled, said: [said, why.to_owned()] })
    }

    /// Returns what speaks, which rests, and the names of its lines. A file that the recipe names gets its whole path.
    fn speech(&self, wanted: &mut Sentences) -> Result<(Box<dyn Speech>, Vec<String>), RunError> {
        let no = |why: &str| RunError::Usage(why.to_owned());
        let speaker = self.model.opened.speaker().filter(|s| s.example().is_some());
        let speaker = speaker.ok_or_else(|| no("this model makes no samples"))?;
        let (lines, names) = self.lines(wanted)?;
        let reference = self.reference(wanted)?;
        let settings = speaker.settings();
        let sampling = Sampling { seed: self.recipe.seed, ..settings.sampling };
        let settings = Settings { sampling, sequences: CLIPS, ..settings };
        let seconds = match (speaker.has_length(), wanted.seconds) {
            (true, given) => Some(given.unwrap_or_else(|| self.longest_seconds().min(MOST_OF_MUSIC))),
            (false, None) => None,
            (false, Some(_)) => return Err(no("seconds: this model chooses how long it speaks")),
        };
        let room = self.device.prepare_budget(self.budget)?;
        let asked = AskedSpeech {
            lines: &lines,
            reference: reference.as_ref(),
            voice: wanted.voice.as_deref(),
            language: None,
            cleaned: false,
            decoder: None,
            settings: &settings,
            speed: 1.0,
            seconds,
            most_seconds: MOST_SECONDS,
            threads: self.device.threads(),
            room: room.saturating_sub(START_BYTES),
        };
        Ok((speaker.speech(&asked)?, names))
    }

    /// Returns the lines and their names.
    fn lines(&self, wanted: &Sentences) -> Result<(Vec<Line>, Vec<String>), RunError> {
        let mut names: Vec<String> = Vec::new();
        let mut name = |of: &str| {
            let (slug, mut n) = (slug(of), 1);
            let mut name = slug.clone();
            while names.contains(&name) {
                n += 1;
                name = format!("{slug}-{n}");
            }
            names.push(name);
        };
        let mut lines: Vec<Line> = Vec::new();
        for text in &wanted.texts {
            name(text);
            lines.push(Line::Text(text.clone()));
        }
        if lines.is_empty() {
            // Short ones, but no single words; else the longest.
            let mut held = self.held_out();
            held.sort_by_key(|clip| {
                let ms = (clip.seconds * 1e3) as u64;
                let is_short = clip.seconds < LEAST_SECONDS;
                (is_short, if is_short { u64::MAX - ms } else { ms }, clip.index)
            });
            for clip in held.iter().take(CLIPS) {
                let stem = Path::new(clip.name).file_stem().unwrap_or_default();
                name(&stem.to_string_lossy());
                lines.push(Line::Clip(clip.path.clone()));
            }
        }
        match lines.is_empty() {
            true => Err(RunError::Usage("no clip is held out whose text could be said".to_owned())),
            false => Ok((lines, names)),
        }
    }

    /// Returns the clip whose voice speaks, of models that want one.
    fn reference(&self, wanted: &mut Sentences) -> Result<Option<Reference>, RunError> {
        let held = self.held_out();
        let Some(named) = wanted.clip.clone() else {
            let from = |clip: &&HeldOut<'_>| ((clip.seconds - REFERENCE_SECONDS).abs() * 1e3) as u64;
            return Ok(held.iter().min_by_key(from).map(|clip| Reference::Clip(clip.path.clone())));
        };
        if let Some(clip) = held.iter().find(|clip| clip.name.contains(&*named)) {
            return Ok(Some(Reference::Clip(clip.path.clone())));
        }
        let path = PathBuf::from(&named);
        let text = wanted.clip_text.clone();
        match (path.is_file(), text) {
            (true, Some(text)) => {
                let path =
                    std::path::absolute(&path).map_err(|e| RunError::io(&path, "cannot resolve", e))?;
                wanted.clip = Some(path.display().to_string());
                Ok(Some(Reference::Sound(path, text)))
            }
            (true, None) => {
                Err(RunError::Usage(format!("clip: {named} is a file: give the words in it (clip_text)")))
            }
            (false, _) => {
                Err(RunError::Usage(format!("clip: no validation clip and no file is named {named}")))
            }
        }
    }

    /// Returns the seconds of the longest clip.
    fn longest_seconds(&self) -> f64 {
        let rows = self.data.rows.iter().max().copied().unwrap_or_default();
        f64::from(rows) / self.model.model.rows().per_second
    }

    /// Returns the clips that are held out.
    fn held_out(&self) -> Vec<HeldOut<'_>> {
        let Some(clips) = self.data.index() else { return Vec::new() };
        let per_second = self.model.model.rows().per_second;
        let clip = |&index: &usize| HeldOut {
            index,
            name: clips.name(index),
            path: clips.path(index),
            seconds: f64::from(self.data.rows[index]) / per_second,
        };
        self.data.split.validation.iter().map(clip).collect()
    }

    /// Returns why nobody who did not ask for samples should wait for them.
    fn too_slow(
        &self,
        speech: &dyn Speech,
        spoken: &Spoken,
        (asked, plan): (&Asked, &RunPlan),
    ) -> Option<String> {
        if asked.is_long {
            return Some("the model is long".to_owned());
        }
        let programs = spoken.build(&mut Session::default(), plan.shape.session.precision);
        let flops = |p: &Program| report::cost(p, plan.shape.clip_rows).flops;
        let runs = speech.runs();
        let times = |p: &Program| runs.iter().find(|(name, _)| *name == p.name).map_or(0.0, |(_, n)| *n);
        let speaking: f64 = programs.iter().map(|p| times(p) * flops(p)).sum();
        let between = match self.recipe.validate_every {
            0 => self.updates,
            n => n.min(self.updates),
        };
        let share = speaking / (plan.step_flops * between as f64);
        (share > MOST_SHARE).then(|| {
            format!(
                "they would take {:.0} % of the arithmetic between two validations; `samples: true` has them",
                100.0 * share
            )
        })
    }
}

/// A clip that is held out.
struct HeldOut<'a> {
    index: usize,
    name: &'a str,
    path: PathBuf,
    seconds: f64,
}

/// Returns a file's name for a text: its first words.
fn slug(text: &str) -> String {
    let mut out = String::new();
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let gap = usize::from(!out.is_empty());
        if !out.is_empty() && out.len() + gap + word.len() > MOST_NAME {
            break;
        }
        if gap == 1 {
            out.push('-');
        }
        out.extend(word.chars().take(MOST_NAME / 4).flat_map(char::to_lowercase));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::slug;

    #[test]
    fn names_are_the_first_words() {
        for (text, name) in [
            ("Good morning.", "good-morning"),
            ("clip_09", "clip-09"),
            (
                "  \"The quick,\" brown fox / jumps over all the lazy dogs",
                "the-quick-brown-fox-jumps-over-all-the",
            ),
            ("你好，世界", "你好-世界"),
            ("../../etc/passwd", "etc-passwd"),
        ] {
            assert_eq!(slug(text), name);
        }
        let long: String = "é".repeat(400);
        assert!(slug(&long).len() <= 40);
    }
}
