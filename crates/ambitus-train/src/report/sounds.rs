//! The sounds of a run, in the page itself as long as there are not too many.

use super::MOST_SOUND_BYTES;
use ambitus_store::{open_file, read_file};
use askama::filters::HtmlSafe;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Updates whose samples are shown.
const MOST_UPDATES: usize = 12;
/// Lines of an update that are shown.
const MOST_LINES: usize = 24;
/// Entries of a folder that are looked at.
const MOST_ENTRIES: usize = 10_000;
/// Largest `samples.json`.
const MOST_JSON: u64 = 1 << 20;
/// Bytes that are encoded at a time: whole groups of three.
const CHUNK: usize = 3 << 10;

/// A sound, or the way to it.
#[derive(Clone, Debug)]
pub struct Sound {
    path: PathBuf,
    bytes: u64,
    /// It is in the page.
    pub embedded: bool,
    /// Its path from the page.
    pub link: String,
}

impl Sound {
    /// Returns a file of sound.
    fn of(run: &Path, file: String) -> Option<Sound> {
        let path = run.join(&file);
        let (mut opened, bytes) = open_file(&path).ok()?;
        let mut head = [0; 4];
        opened.read_exact(&mut head).ok()?;
        let link = super::in_link(&file);
        (&head == b"RIFF").then_some(Sound { path, bytes, embedded: false, link })
    }

    /// Returns it as a `data:` URI.
    pub fn data(&self) -> Data<'_> {
        Data(self)
    }
}

/// A file as a `data:` URI, which is read as it is written.
pub struct Data<'a>(&'a Sound);

impl fmt::Display for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("data:audio/wav;base64,")?;
        let Ok((file, _)) = open_file(&self.0.path) else { return Ok(()) };
        let mut file = file.take(self.0.bytes);
        let (mut chunk, mut text) = ([0; CHUNK], [0; CHUNK / 3 * 4]);
        loop {
            let mut n = 0;
            // A file that ends early is a sound that ends early.
            while n < CHUNK
                && let Ok(read @ 1..) = file.read(&mut chunk[n..])
            {
                n += read;
            }
            let written = STANDARD.encode_slice(&chunk[..n], &mut text).map_err(|_| fmt::Error)?;
            f.write_str(std::str::from_utf8(&text[..written]).map_err(|_| fmt::Error)?)?;
            if n < CHUNK {
                return Ok(());
            }
        }
    }
}

/// Base64 has no markup.
impl HtmlSafe for Data<'_> {}

/// What a line sounded like after an update.
#[derive(Clone, Debug)]
pub struct Take {
    /// Updates done.
    pub update: u64,
    /// `raw` or `ema`.
    pub weights: String,
    /// What is odd about it.
    pub oddities: Vec<String>,
    /// What another model heard, and its error rate in percent.
    pub heard: Option<(String, f64)>,
    /// The sound.
    pub sound: Sound,
}

/// A line that is spoken.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of its files.
    pub name: String,
    /// What is said, where that is known.
    pub text: String,
    /// By update.
    pub takes: Vec<Take>,
}

/// A held-out clip of which a part was generated.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// `true`, `base` or `tuned`.
    pub name: &'static str,
    /// The sound.
    pub sound: Sound,
}

/// `samples.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// `raw` or `ema`.
    pub weights: String,
    /// The lines that were spoken.
    pub lines: Vec<FactsOfLine>,
}

/// A line that was spoken.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct FactsOfLine {
    /// Where it is.
    pub file: PathBuf,
    /// Seconds of sound.
    pub seconds: f64,
    /// What is odd about it.
    pub oddities: Vec<String>,
    /// What another model heard.
    pub heard: Option<String>,
    /// Its error rate.
    pub wer: f64,
}

/// Returns what is known of the samples in a folder, once all of them are there.
pub fn facts(folder: &Path) -> Option<Facts> {
    serde_json::from_slice(&read_file(folder.join("samples.json"), MOST_JSON).ok()?).ok()
}

/// Returns the updates that a run has samples of, from low to high.
pub fn sampled(run: &Path) -> Vec<u64> {
    let mut updates: Vec<u64> = names(&run.join("samples")).iter().filter_map(|n| n.parse().ok()).collect();
    updates.sort_unstable();
    updates
}

/// Returns the names in a folder, which may be missing.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_ENTRIES);
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the first, the last and some between, evenly.
fn some(updates: Vec<u64>) -> Vec<u64> {
    let n = updates.len();
    if n <= MOST_UPDATES {
        return updates;
    }
    (0..MOST_UPDATES).map(|i| updates[i * (n - 1) / (MOST_UPDATES - 1)]).collect()
}

/// Returns the sounds of a run, which speaks `texts`: lines by their updates, and the held-out clip. Those that people compare first are in the page:
/// the held-out clip, the newest, the base, then the newer ones.
pub fn sounds(run: &Path, texts: &[String]) -> (Vec<Line>, Vec<HeldOut>) {
    let held_out = ["true", "base", "tuned"].into_iter();
    let held_out = held_out
        .filter_map(|name| Some(HeldOut { name, sound: Sound::of(run, format!("audio/{name}.wav"))? }));
    let mut held_out: Vec<HeldOut> = held_out.collect();
    let mut lines: Vec<Line> = Vec::new();
    let folder = run.join("samples");
    for update in some(sampled(run)) {
        let folder = folder.join(update.to_string());
        let facts = facts(&folder).unwrap_or_default();
        let mut files: Vec<String> = names(&folder).into_iter().filter(|n| n.ends_with(".wav")).collect();
        files.sort_unstable();
        for file in files.into_iter().take(MOST_LINES) {
            let Some(sound) = Sound::of(run, format!("samples/{update}/{file}")) else { continue };
            let of_file = |l: &FactsOfLine| l.file.file_name().is_some_and(|n| n.to_string_lossy() == file);
            let at = facts.lines.iter().position(of_file);
            let oddities = at.map_or_else(Vec::new, |at| facts.lines[at].oddities.clone());
            let heard = at.and_then(|at| Some((facts.lines[at].heard.clone()?, 100.0 * facts.lines[at].wer)));
            let take = Take { update, weights: facts.weights.clone(), oddities, heard, sound };
            let name = file.trim_end_matches(".wav").to_owned();
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.takes.push(take),
                None => {
                    let text = at.and_then(|at| texts.get(at)).cloned().unwrap_or_default();
                    lines.push(Line { name, text, takes: vec![take] });
                }
            }
        }
    }
    embed(&mut lines, &mut held_out);
    (lines, held_out)
}

/// Chooses what is in the page.
fn embed(lines: &mut [Line], held_out: &mut [HeldOut]) {
    let mut left = MOST_SOUND_BYTES;
    let mut take = |sound: &mut Sound| {
        if let Some(rest) = left.checked_sub(sound.bytes) {
            (sound.embedded, left) = (true, rest);
        }
    };
    held_out.iter_mut().for_each(|h| take(&mut h.sound));
    let mut updates: Vec<u64> = lines.iter().flat_map(|l| &l.takes).map(|t| t.update).collect();
    updates.sort_unstable_by(|a, b| b.cmp(a));
    updates.dedup();
    if updates.len() > 2
        && let Some(base) = updates.pop()
    {
        updates.insert(1, base);
    }
    for update in updates {
        lines
            .iter_mut()
            .flat_map(|l| &mut l.takes)
            .filter(|t| t.update == update)
            .for_each(|t| take(&mut t.sound));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sound_is_encoded_whole_and_what_is_none_is_left_out() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join("samples/3");
        std::fs::create_dir_all(&folder).unwrap();
        for n in [4, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let bytes: Vec<u8> = b"RIFF".iter().copied().chain((4..n).map(|i| i as u8)).collect();
            std::fs::write(folder.join("a.wav"), &bytes).unwrap();
            std::fs::write(folder.join("b.wav"), "no sound").unwrap();
            let (lines, _) = sounds(run.path(), &[]);
            let [line] = &lines[..] else { panic!("{lines:?}") };
            let text = line.takes[0].sound.data().to_string();
            let text = text.strip_prefix("data:audio/wav;base64,").unwrap();
            assert_eq!(STANDARD.decode(text).unwrap(), bytes);
        }
    }

    #[test]
    fn the_newest_and_the_base_are_in_the_page_first() {
        let run = tempfile::tempdir().unwrap();
        for update in (0..100).map(|i| i * 50) {
            let folder = run.path().join(format!("samples/{update}"));
            std::fs::create_dir_all(&folder).unwrap();
            let file = std::fs::File::create(folder.join("x.wav")).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"RIFF", 0).unwrap();
            file.set_len(MOST_SOUND_BYTES / 3).unwrap();
        }
        let (lines, _) = sounds(run.path(), &[]);
        let takes = &lines[0].takes;
        let updates: Vec<u64> = takes.iter().map(|t| t.update).collect();
        assert_eq!((updates.len(), updates[0], updates[MOST_UPDATES - 1]), (MOST_UPDATES, 0, 4950));
        let embedded: Vec<u64> = takes.iter().filter(|t| t.sound.embedded).map(|t| t.update).collect();
        assert_eq!(embedded, [0, updates[MOST_UPDATES - 2], 4950]);
    }
}
