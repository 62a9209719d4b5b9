//! One pass over the clips on several threads, and what follows from all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::pitch::{Groups, Pitch};
use super::rate::Rate;
use super::sound::{self, Sound};
use super::text::{self, Text};
use super::{
    Advised, Checked, Clip, Fit, Issue, Kind, Set, Voice, doubles, rate, robust, set, transcript, verdict,
    written,
};
use crate::audio::AudioInput;
use crate::error::DataError;
use crate::outcomes::{Cause, Outcome, Verdict};
use crate::sources::{Audio, Entry, Feed, Sets, Source};

/// How a data set is checked.
pub struct Options<'a> {
    /// Clips that are measured at a time, at least 1.
    pub threads: usize,
    /// Bytes of memory that the list of clips may take.
    pub room: u64,
    /// What is advised for the model that is to be trained, where one is named.
    pub advised: Option<Advised>,
    /// Is told how many of how many clips are done; false stops.
    pub progress: &'a (dyn Fn(usize, usize) -> bool + Sync),
}

/// Says how likely a model that hears finds a clip's text, or why it cannot.
pub type Hear<'a, E> = &'a mut dyn FnMut(&Path, &str) -> Result<Result<Fit, String>, E>;

/// Measures all clips of a data set, which is only read. `hear` is given those that are files, one after the other. What is read of its list is kept in a file without a name in the folder `scratch`.
///
/// # Errors
/// A data set of which nothing can be said: not there, no clips, not text. What is wrong with a clip is no error.
pub fn check<E: From<DataError>>(
    sets: impl Into<Sets>,
    scratch: &Path,
    options: &Options,
    mut hear: Option<Hear<E>>,
) -> Result<Checked, E> {
    let source = Source::read(sets, scratch, options.room)?;
    let looked = all(&source, options)?;
    let mut found = Found::default();
    for odd in source.problems.iter() {
        found.problem(odd?);
    }
    for (i, one) in looked.into_iter().enumerate() {
        // Texts stay on disk until they are asked for.
        let entry = source.entry(i)?;
        let fit = match (&mut hear, &entry.audio, &one.sound) {
            (Some(hear), Audio::File(path), Some(_)) => Some(hear(path, &entry.text)?),
            (Some(_), Audio::Row(_), _) => Some(Err("sounds in tables are not listened to".to_owned())),
            _ => None,
        };
        found.take(entry, one, fit);
    }
    Ok(found.finish(options.advised.as_ref()))
}

/// What is known of a clip alone.
struct Looked {
    text: Text,
    sound: Option<Sound>,
    issues: Vec<Issue>,
}

/// A clip and its audio, or why it has none.
type Next = (Entry, Result<AudioInput, String>);

/// Looks at all clips, and returns them in their order.
fn all(source: &Source, options: &Options) -> Result<Vec<Looked>, DataError> {
    let total = source.len();
    let (feed, done) = (Mutex::new((0, Feed::default())), Mutex::new(Vec::new()));
    let next = || -> Option<(usize, Result<Next, DataError>)> {
        // Rows of tables are read in their order.
        let mut feed = feed.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, feed) = &mut *feed;
        let at = *next;
        (at < total).then(|| {
            *next += 1;
            let entry = source.entry(at);
            (
                at,
                entry.map(|entry| {
                    let audio = feed.audio(&entry);
                    (entry, audio)
                }),
            )
        })
    };
    let work = || -> Result<(), DataError> {
        while let Some((at, entry)) = next() {
            let (entry, audio) = entry?;
            let count = || done.lock().unwrap_or_else(PoisonError::into_inner).len();
            let looked = look(&entry, audio, &|| (options.progress)(count(), total))?;
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, looked));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..options.threads.clamp(1, total.max(1))).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|why| std::panic::resume_unwind(why)));
        others.fold(own, Result::and)
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, looked)| looked).collect())
}

fn look(
    entry: &Entry,
    audio: Result<AudioInput, String>,
    go_on: &dyn Fn() -> bool,
) -> Result<Looked, DataError> {
    let (text, mut issues) = text::look(&entry.text);
    let measured = match audio {
        Ok(input) => sound::measure(&input, go_on).map_err(|e| match e {
            DataError::Stopped => Err(e),
            e => Ok(e.to_string()),
        }),
        Err(why) => Err(Ok(why)),
    };
    let sound = match measured {
        Ok((sound, found)) => {
            issues.extend(found);
            Some(sound)
        }
        Err(Ok(why)) => {
            issues.push(Issue::new(Kind::Unreadable, why));
            None
        }
        Err(Err(stopped)) => return Err(stopped),
    };
    Ok(Looked { text, sound, issues })
}

/// All clips, and what they are compared by.
#[derive(Default)]
struct Found {
    clips: Vec<Clip>,
    set: Set,
    voices: BTreeMap<Option<String>, u32>,
    by_voice: Vec<(Voice, Vec<f64>, Vec<Pitch>)>,
    keys: Vec<doubles::Key>,
    rates: Vec<Rate>,
    loudness: Vec<(usize, Option<u32>, f64)>,
    scripts: Vec<(usize, text::Script)>,
    lengths: Vec<f64>,
    noise: Vec<f64>,
    energy: Vec<f64>,
    fits: Vec<(usize, Fit)>,
}

impl Found {
    /// Adds what cannot be used before any sound is opened.
    fn problem(&mut self, odd: Outcome) {
        let Verdict::Bad { cause, reason } = odd.verdict else { return };
        if cause == Cause::Dropped {
            self.set.dropped += 1;
            return;
        }
        let kind = if cause == Cause::Transcript { Kind::Empty } else { Kind::Unreadable };
        let issues = vec![Issue::new(kind, reason)];
        self.clips.push(Clip {
            name: odd.name,
            file: written(&odd.file),
            line: odd.line,
            doubt: 0.0,
            seconds: 0.0,
            outline: Vec::new(),
            unlikely: 0.0,
            issues,
        });
    }

    fn take(&mut self, entry: Entry, one: Looked, fit: Option<Result<Fit, String>>) {
        let Looked { text, sound, issues } = one;
        let clip = self.clips.len();
        match fit {
            Some(Ok(fit)) => self.fits.push((clip, fit)),
            Some(Err(why)) => self.set.unheard.push(format!("{}: {why}", entry.name)),
            None => {}
        }
        for c in entry.text.chars().filter(|c| c.is_alphabetic()).flat_map(char::to_lowercase) {
            *self.set.letters.entry(c).or_default() += 1;
        }
        self.set.questions += usize::from(text.ends == '?');
        self.set.exclamations += usize::from(text.ends == '!');
        self.scripts.extend(text.script.map(|script| (clip, script)));
        let heard = sound.as_ref().map(|sound| (sound.hash, sound.print, sound.seconds));
        self.keys.push(doubles::Key { clip, sound: heard, text: text.key });
        let seconds = sound.as_ref().map_or(0.0, |sound| sound.seconds);
        let outline = sound.as_ref().map_or_else(Vec::new, |sound| sound.outline.clone());
        if let Some(sound) = sound {
            let known = self.voices.len() as u32;
            let voice = *self.voices.entry(entry.voice.clone()).or_insert(known);
            if voice == known {
                let one = Voice { name: entry.voice.clone(), ..Voice::default() };
                self.by_voice.push((one, Vec::new(), Vec::new()));
            }
            let (of_voice, loud, pitches) = &mut self.by_voice[voice as usize];
            of_voice.clips += 1;
            of_voice.seconds += sound.seconds;
            loud.push(sound.loudness);
            pitches.extend(sound.pitch);
            self.set.seconds += sound.seconds;
            self.set.speech_seconds += sound.speech;
            self.lengths.push(sound.seconds);
            self.noise.extend(sound.noise);
            self.energy.extend(sound.energy);
            // Where nobody speaks, that is what is wrong.
            if sound.speech > 0.0 {
                self.loudness.push((clip, Some(voice), sound.loudness));
            }
            let of = (Some(voice), text.script.is_some_and(text::Script::is_dense));
            self.rates.push(Rate { clip, of, characters: text.characters, seconds: sound.speech });
        }
        let (file, line) = (written(&entry.file), Some(entry.line));
        let name = entry.name;
        self.clips.push(Clip { name, file, line, doubt: 0.0, issues, seconds, outline, unlikely: 0.0 });
    }

    fn finish(mut self, advised: Option<&Advised>) -> Checked {
        let clips = &mut self.clips;
        doubles::find(&self.keys, clips);
        rate::find(&self.rates, clips);
        set::loudness(&self.loudness, clips);
        transcript::find(&self.fits, clips);
        let script = set::scripts(&self.scripts, clips);
        clips.iter_mut().for_each(Clip::weigh);
        clips.sort_by(|a, b| {
            b.doubt.total_cmp(&a.doubt).then_with(|| (&a.name, a.line).cmp(&(&b.name, b.line)))
        });
        let loud: Vec<f64> = self.loudness.iter().map(|(.., x)| *x).collect();
        let pitches: Vec<f64> = self.by_voice.iter().flat_map(|of| of.2.iter().map(|p| p.hertz)).collect();
        let rates: Vec<f64> = self.rates.iter().filter_map(Rate::a_second).collect();
        let mut voices: Vec<Voice> = self
            .by_voice
            .into_iter()
            .map(|(voice, loud, pitches)| Voice {
                loudness: robust::quantile(&loud, 0.5),
                pitch: Pitch::of_clips(&pitches),
                groups: Groups::of(&pitches),
                ..voice
            })
            .collect();
        voices.sort_by(|a, b| a.name.cmp(&b.name));
        let set = Set {
            clips: self.clips.len(),
            voices,
            lengths: set::percentiles(&self.lengths),
            loudness: set::percentiles(&loud),
            rates: set::percentiles(&rates),
            noise: set::percentiles(&self.noise),
            energy: robust::quantile(&self.energy, 0.5),
            pitches: set::percentiles(&pitches),
            script: script.map(|script| script.to_string()),
            ..self.set
        };
        let mut checked = Checked { verdict: Vec::new(), clips: self.clips, set };
        checked.verdict = verdict::of(&checked, advised);
        checked
    }
}
