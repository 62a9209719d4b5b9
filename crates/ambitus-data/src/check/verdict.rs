//! What was found, in words.

use super::{Advised, Checked, Clip, Kind, Set, Voice};
use crate::error::many;
use crate::sources::CORRECTIONS_FILE;

/// Names that a sentence has, and rows of the table.
const NAMED: usize = 5;
const ROWS: usize = 30;
/// Minutes below which models learn little of a voice, and from which more is no longer the first wish.
const AMOUNT: (f64, f64) = (2.0, 10.0);
/// Letters of a text that are enough to miss one.
const ENOUGH_LETTERS: u64 = 500;
/// Level range of a speech without accents, dB.
const UNIFORM: f64 = 3.0;
/// Pitch that varies by less is monotone, semitones.
const MONOTONE: f64 = 2.0;
/// From the 5th to the 95th percentile, LU.
const UNEVEN: f64 = 6.0;
/// Speech over noise that is good, dB.
const CLEAN: f64 = 30.0;

/// Returns the verdict: what is wrong first, then what could be better.
pub(super) fn of(checked: &Checked, advised: Option<&Advised>) -> Vec<String> {
    let Checked { clips, set, .. } = checked;
    let doubted = clips.iter().filter(|clip| !clip.issues.is_empty()).count();
    let minutes = set.seconds / 60.0;
    let voices = many(set.voices.len(), "voice");
    let amount = format!("{}, {minutes:.1} min of sound with {voices}", many(set.clips, "clip"));
    let mut said = vec![match doubted {
        0 => format!("{amount}: nothing is wrong that is measured here"),
        _ => format!("{amount}: {} should be looked at", many(doubted, "clip")),
    }];
    for kind in Kind::ALL {
        let of: Vec<&Clip> = clips.iter().filter(|clip| clip.issues.iter().any(|i| i.kind == kind)).collect();
        if of.is_empty() {
            continue;
        }
        said.push(format!(
            "{} {}: {}",
            of.len(),
            advice(kind),
            listed(of.iter().map(|clip| clip.name.as_str()))
        ));
    }
    said.extend(together(set, advised));
    said
}

/// Returns what a kind means, and what to do.
fn advice(kind: Kind) -> &'static str {
    match kind {
        Kind::Unreadable => "cannot be read (unreadable; training leaves them out)",
        Kind::Empty => "without a text that can be said (empty; training leaves them out)",
        Kind::OtherText => "whose text is not what is heard (other-text; the proposed text is in the table)",
        Kind::WrongWords => {
            "with words that are not heard so (wrong-words; listen, and take the proposed text where it is right)"
        }
        Kind::CutText => "in which more is heard than is written (cut-text; write it, or cut the sound)",
        Kind::DoubledSound => "with the sound of another clip (doubled-sound; leave one of each out)",
        Kind::DoubledText => "with the text of another clip (doubled-text; right if it was said twice)",
        Kind::Digits => "with digits in the text (digits; write the words that are said)",
        Kind::Symbols => "with symbols in the text (symbols; write the words that are said)",
        Kind::Capitals => "all in capitals (capitals; write as usual)",
        Kind::Script => "with letters of another script (script)",
        Kind::Fast => "with more text than fits the sound (fast; listen to them)",
        Kind::Slow => "with less text than the sound has (slow; listen to them)",
        Kind::CutStart => "that begin within speech (cut-start; cut them earlier)",
        Kind::CutEnd => "that end within speech (cut-end; cut them later)",
        Kind::Silence => "with silence at an end, or nobody speaking (silence; trim them)",
        Kind::Clipped => "clipped (clipped; a softer recording has no such noise)",
        Kind::Quiet => "too quiet (quiet; bring them to one loudness)",
        Kind::Loud => "too loud (loud; bring them to one loudness)",
        Kind::Noisy => "noisy (noisy; the model learns the noise)",
        Kind::Dc => "not around zero (dc; remove what is below 20 Hz)",
    }
}

/// Returns what can be said of all clips together.
fn together(set: &Set, advised: Option<&Advised>) -> Vec<String> {
    let mut said: Vec<String> = advised.and_then(|advised| advised.of(&set.voices)).into_iter().collect();
    let minutes = set.speech_seconds / 60.0 / set.voices.len().max(1) as f64;
    if minutes < AMOUNT.0 && said.is_empty() {
        said.push(format!("{minutes:.1} min of speech a voice is little: from {:.0} min on a voice is learned, {:.0} are better", AMOUNT.0, AMOUNT.1));
    }
    if let Some([low, _, high]) = set.loudness.filter(|[low, _, high]| high - low > UNEVEN) {
        said.push(format!(
            "the loudness is uneven: from {low:.0} to {high:.0} LUFS, without the outermost twentieths"
        ));
    }
    if let Some([low, middle, _]) = set.noise.filter(|[_, middle, _]| *middle < CLEAN) {
        said.push(format!(
            "speech is {middle:.0} dB over the noise ({low:.0} in the worst clips); {CLEAN:.0} are good"
        ));
    }
    if let Some(energy) = set.energy.filter(|energy| *energy < UNIFORM) {
        said.push(format!(
            "within clips the level varies by only {energy:.1} dB: a model learns a flat voice"
        ));
    }
    said.extend(pitches(&set.voices));
    if let [first, ..] = &*set.unheard {
        said.push(format!(
            "{} could not be held against what is heard: {first}",
            many(set.unheard.len(), "clip")
        ));
    }
    if set.dropped > 0 {
        said.push(format!("{} left out by {CORRECTIONS_FILE} and not looked at", many(set.dropped, "clip")));
    }
    let letters: u64 = set.letters.values().sum();
    if set.script.as_deref() == Some("Latin") && letters >= ENOUGH_LETTERS {
        let missing: String = ('a'..='z').filter(|c| !set.letters.contains_key(c)).collect();
        if !missing.is_empty() {
            said.push(format!("letters that are in no text: {missing}"));
        }
    }
    if set.clips >= 50 && set.questions == 0 {
        said.push("no text is a question: a model hears none".to_owned());
    }
    said
}

/// Returns what can be said of how high voices are.
fn pitches(voices: &[Voice]) -> Vec<String> {
    let name = |voice: &Voice| voice.name.clone().unwrap_or("the voice".to_owned());
    let mut said = Vec::new();
    let flat: Vec<String> = voices
        .iter()
        .filter_map(|voice| Some((voice, voice.pitch.filter(|pitch| pitch.semitones < MONOTONE)?.semitones)))
        .map(|(voice, semitones)| format!("{} by {semitones:.1}", name(voice)))
        .collect();
    if !flat.is_empty() {
        let some = listed(flat.iter().map(String::as_str));
        said.push(format!(
            "pitch hardly varies within clips: {some} semitones; a model learns a monotone voice"
        ));
    }
    for (voice, groups) in voices.iter().filter_map(|voice| Some((voice, voice.groups?))).take(NAMED) {
        let [low, high] = groups.hertz;
        let [few, more] = groups.clips;
        said.push(format!(
            "clips of {} have two pitches, {few} around {low:.0} Hz and {more} around {high:.0} Hz: if they are several people, give \
             each a voice of its own",
            name(voice)
        ));
    }
    said
}

/// Returns the first names of all.
fn listed<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = (all.len() > NAMED).then_some("…");
    all.take(NAMED).chain(more).collect::<Vec<_>>().join(", ")
}

/// Returns the verdict, and a table of the most doubtful clips.
pub(super) fn describe(checked: &Checked) -> Vec<String> {
    let mut lines = checked.verdict.clone();
    let doubted: Vec<&Clip> = checked.clips.iter().filter(|clip| !clip.issues.is_empty()).collect();
    if doubted.is_empty() {
        return lines;
    }
    lines.push(String::new());
    lines.push("doubt  clip".to_owned());
    for clip in doubted.iter().take(ROWS) {
        let place = clip.line.map_or(clip.file.clone(), |line| format!("{}:{line}", clip.file));
        lines.push(format!(" {:.2}  {} ({place})", clip.doubt, clip.name));
        lines.extend(clip.issues.iter().map(|issue| format!("         {}: {}", issue.kind, issue.says)));
    }
    if doubted.len() > ROWS {
        lines.push(format!("  and {} more: --json has all", doubted.len() - ROWS));
    }
    lines
}
