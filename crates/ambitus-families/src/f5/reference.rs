//! The voice that speaks: a reference clip and its text, as the package's inference takes them (f5-tts 1.1.22, `infer_process`).

use super::folder::Folder;
use crate::error::RunError;
use crate::speech::Reference;
use ambitus_data::audio::{AudioReader, Resampler};
use ambitus_data::mel::{HOP, MELS, MIN_SAMPLES, SAMPLE_RATE, log_mel};
use ambitus_data::{AudioFault, DataError, Tokenizer, load_clip};
use std::path::Path;

/// Level to which a quieter reference is raised, and from which its speech is lowered again (`target_rms`).
const LEVEL: f64 = 0.1;
/// Seconds of reference and speech together that the package has in one piece.
pub(super) const TOGETHER: f64 = 22.0;
/// The longest reference: speech of some seconds must fit beside it.
const MOST_SECONDS: f64 = 18.0;
/// Silence after a reference.
const PAUSE: usize = SAMPLE_RATE as usize / 20;
/// Below this level (root mean square; -42 dBFS) the ends of a reference are silence.
const SILENCE: f64 = 0.008;
/// Samples whose level is looked at: 10 ms.
const BLOCK: usize = SAMPLE_RATE as usize / 100;
/// Texts of fewer bytes are spoken slowly: the package's pace for them.
const SHORT: usize = 10;
const SHORT_PACE: f64 = 0.3;

/// A reference, ready to go before what is generated.
pub(super) struct Voice {
    /// `[R, M]`.
    pub mel: Vec<f32>,
    /// What the speech is multiplied by.
    pub gain: f32,
    /// Of its sound.
    seconds: f64,
    said: Said,
}

/// Its text.
enum Said {
    /// As written, with the end that the package gives it.
    Text(String),
    /// As ids: of a prepared clip.
    Ids(Vec<u32>),
}

/// A text that is said in one piece.
pub(super) struct Piece {
    /// Of the reference and the text.
    pub ids: Vec<i32>,
    /// Of the reference and the text together.
    pub frames: usize,
}

impl Voice {
    /// Reads a reference.
    ///
    /// # Errors
    /// By file: audio that cannot be used, too long or silent; a missing text.
    pub fn read(reference: &Reference) -> Result<Voice, RunError> {
        match reference {
            Reference::Clip(path) => {
                let clip = load_clip(path)?;
                if clip.frames() * HOP > (MOST_SECONDS * f64::from(SAMPLE_RATE)) as usize {
                    return Err(too_long(path));
                }
                let seconds = (clip.frames().saturating_sub(1) * HOP) as f64 / f64::from(SAMPLE_RATE);
                Ok(Voice { mel: clip.mel, gain: 1.0, seconds, said: Said::Ids(clip.ids) })
            }
            Reference::Sound(path, text) => sound(path, text),
        }
    }

    /// Returns silence of `frames` frames, for plans.
    pub fn silent(frames: usize) -> Voice {
        Voice { mel: vec![0.0; frames * MELS], gain: 1.0, seconds: 0.0, said: Said::Ids(Vec::new()) }
    }

    /// Returns the frames of the reference that count: the last one of its centred transform repeats the end.
    pub fn frames(&self) -> usize {
        (self.mel.len() / MELS).saturating_sub(1)
    }

    /// Returns the bytes of text that one piece may have, so that it lasts at most `most_seconds`; where the reference's text is
    /// ids, an id counts as a byte.
    pub fn most_bytes(&self, most_seconds: f64, speed: f64) -> usize {
        let said = match &self.said {
            // The package counts one of the two spaces at its end.
            Said::Text(text) => text.len() - usize::from(text.ends_with("  ")),
            Said::Ids(ids) => ids.len(),
        };
        let per_second = said as f64 / self.seconds.max(0.1);
        let seconds = (TOGETHER - self.seconds).min(most_seconds);
        ((per_second * seconds * speed) as usize).max(1)
    }

    /// Returns a text as a piece, and its tokens that are not in the vocabulary.
    pub fn piece(&self, text: &str, tokenizer: &Tokenizer, speed: f64) -> (Piece, Vec<String>) {
        let (ids, unknown, ratio) = match &self.said {
            Said::Text(said) => {
                let encoded = tokenizer.encode(&(said.clone() + text));
                let pace = if text.len() < SHORT { SHORT_PACE } else { speed };
                (encoded.ids, encoded.unknown, text.len() as f64 / said.len() as f64 / pace)
            }
            Said::Ids(said) => {
                let encoded = tokenizer.encode(text);
                let ratio = encoded.ids.len() as f64 / said.len().max(1) as f64 / speed;
                (after(said, tokenizer, encoded.ids), encoded.unknown, ratio)
            }
        };
        (self.with_ids(ids, ratio), unknown)
    }

    /// Returns the text of a prepared clip as a piece.
    ///
    /// # Errors
    /// A damaged clip.
    pub fn piece_of_clip(&self, path: &Path, tokenizer: &Tokenizer) -> Result<Piece, RunError> {
        let text = load_clip(path)?.ids;
        let said = match &self.said {
            Said::Text(said) => tokenizer.encode(said).ids,
            Said::Ids(ids) => ids.clone(),
        };
        let ratio = text.len() as f64 / said.len().max(1) as f64;
        Ok(self.with_ids(after(&said, tokenizer, text), ratio))
    }

    /// `ratio`: seconds of the text over those of the reference.
    fn with_ids(&self, ids: Vec<u32>, ratio: f64) -> Piece {
        let frames = self.frames() + (self.frames() as f64 * ratio) as usize;
        // As the package's `CFM.sample`: no fewer than ids, or than are given.
        let frames = frames.max(ids.len().max(self.mel.len() / MELS) + 1);
        Piece { ids: ids.into_iter().map(|id| id as i32).collect(), frames }
    }
}

/// Returns ids after those of a clip, with a space between.
fn after(said: &[u32], tokenizer: &Tokenizer, text: Vec<u32>) -> Vec<u32> {
    let space = tokenizer.space();
    let gap = (said.last() != Some(&space)).then_some(space);
    said.iter().copied().chain(gap).chain(text).collect()
}

fn too_long(path: &Path) -> RunError {
    let reason = format!("longer than {MOST_SECONDS} s; take a reference of 3 to 12 s, or cut one out of it");
    DataError::File { path: path.to_owned(), reason }.into()
}

/// Reads audio: mono, silence cut from its ends, a pause after it, raised to [`LEVEL`] where it is quieter.
fn sound(path: &Path, text: &str) -> Result<Voice, RunError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(RunError::Usage(format!(
            "--ref-text: is empty; give the words that are spoken in {}",
            path.display()
        )));
    }
    let bad = |reason: String| RunError::Data(DataError::File { path: path.to_owned(), reason });
    let mut reader = AudioReader::open(path)?;
    let rate = reader.info().rate;
    let mut resampler = Resampler::new(rate, SAMPLE_RATE);
    let (mut samples, mut squares, mut count) = (Vec::new(), 0.0, 0u64);
    while let Some(chunk) = reader.next_chunk()? {
        squares += chunk.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        count += chunk.len() as u64;
        resampler.push(chunk, &mut samples);
        if count as f64 > MOST_SECONDS * f64::from(rate) {
            return Err(too_long(path));
        }
    }
    resampler.finish(&mut samples);
    let loud = |block: &[f32]| {
        let squares: f64 = block.iter().map(|x| f64::from(*x).powi(2)).sum();
        squares > SILENCE * SILENCE * block.len() as f64
    };
    let first = samples.chunks(BLOCK).position(loud).map(|i| i * BLOCK);
    let last = samples.chunks(BLOCK).rposition(loud).map(|i| ((i + 1) * BLOCK).min(samples.len()));
    let (Some(first), Some(last)) = (first, last) else {
        let path = path.to_owned();
        return Err(match count {
            0 => DataError::Audio { path, reason: AudioFault::Empty }.into(),
            _ => bad("is silent; give a clip with speech".to_owned()),
        });
    };
    let mut samples = samples[first..last].to_vec();
    samples.resize(samples.len() + PAUSE, 0.0);
    let rms = (squares / count as f64).sqrt();
    let raised = rms < LEVEL;
    if raised {
        samples.iter_mut().for_each(|x| *x *= (LEVEL / rms) as f32);
    }
    if samples.len() < MIN_SAMPLES {
        return Err(bad("is shorter than 0.1 s; give a reference of 3 to 12 s".to_owned()));
    }
    let mel = log_mel(&samples).unwrap_or_default();
    let mut text = text.to_owned();
    // As the package ends it: a full stop and a space, and one more where the last character is one byte.
    match text.chars().next_back() {
        Some('。') => {}
        Some('.') => text += "  ",
        _ => text += ".  ",
    }
    let seconds = samples.len() as f64 / f64::from(SAMPLE_RATE);
    Ok(Voice { mel, seconds, gain: if raised { (rms / LEVEL) as f32 } else { 1.0 }, said: Said::Text(text) })
}

impl Folder {
    /// Returns why a text cannot be said: more of its characters are unknown than known.
    pub(super) fn unknown(text: &str, unknown: &[String]) -> Option<String> {
        let characters = text.chars().filter(|c| !c.is_whitespace()).count();
        (2 * unknown.len() > characters).then(|| {
            let mut some: Vec<&str> = unknown.iter().map(String::as_str).collect();
            some.sort_unstable();
            some.dedup();
            some.truncate(10);
            let shown: String = text.chars().take(40).collect();
            format!("`{shown}`: the vocabulary has most of its characters not ({})", some.join(" "))
        })
    }
}
