//! From recordings to a folder of clips: whole or, after an interruption, to be gone on with.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use super::pauses::speech;
use super::plan::{Group, Unit, group};
use super::transcripts::{self, units};
use super::{Clips, Cut, Heard, Left, Limits, Note, Recording, Span, activity, table};
use crate::atomic;
use crate::audio::{AudioInput, AudioReader};
use crate::error::DataError;
use crate::files::read_utf8;
use crate::sound::SoundWriter;

/// Says of what the clips of a folder are made: only the same may be gone on with.
const MADE_FROM: &str = "clips.json";
/// Largest such file, bytes.
const MOST_MADE_FROM: u64 = 64 << 20;
/// Folder of clips.
const WAVS: &str = "wavs";
/// Bytes of a clip's file before its samples.
const HEADER: u64 = 44;

/// How recordings are cut.
pub struct Options<'a> {
    /// How long clips may be.
    pub limits: Limits,
    /// Recordings that are worked on at a time, at least 1. The clips are the same.
    pub threads: usize,
    /// Is told how far a recording is, as a share of its length where that is known; false stops.
    pub progress: &'a (dyn Fn(&Path, &'static str, f64) -> bool + Sync),
}

/// Cuts recordings to clips in a folder that is new, empty, or left by the same call: `wavs/NAME-0001.wav` … (16 bits, the mean of the
/// channels, at the recording's own rate), `clips.tsv`, `clips.json` and, where there are transcripts, `metadata.csv`.
///
/// # Errors
/// A folder with other contents, and whatever is wrong with any recording or transcript: then no clip is written.
pub fn cut(recordings: &[Recording], out: &Path, options: &Options) -> Result<Clips, DataError> {
    let made_from = made_from(recordings, options.limits)?;
    claim(out, &made_from)?;
    let planned = each(recordings, options.threads, |recording| plan(recording, options));
    let planned = all(planned)?;
    atomic::write(&out.join(MADE_FROM), |to| std::io::Write::write_all(to, made_from.as_bytes()))?;
    clean(&out.join(WAVS));
    let there = each(&planned, options.threads, |planned| planned.write(out, options));
    let there = there.into_iter().sum::<Result<usize, DataError>>()?;
    let seconds = planned.iter().map(|p| p.heard.seconds()).sum();
    let mut clips = Clips { seconds, there, ..Clips::default() };
    for one in planned {
        clips.cuts.extend(one.cuts);
        clips.left.extend(one.left);
    }
    table::write(out, &clips)?;
    Ok(clips)
}

/// Returns what was made of each, in their order.
fn each<'a, T: Sync, R: Send>(of: &'a [T], threads: usize, work: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, of.len().max(1)) {
            scope.spawn(|| {
                while let Some((at, one)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    of.get(at).map(|one| (at, one))
                } {
                    let made = work(one);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, made));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, made)| made).collect()
}

/// Returns all, or everything that is wrong with any.
fn all<T>(made: Vec<Result<T, DataError>>) -> Result<Vec<T>, DataError> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for one in made {
        match one {
            Ok(one) => good.push(one),
            Err(DataError::Stopped) => return Err(DataError::Stopped),
            Err(error) => bad.push(error),
        }
    }
    match bad.len() {
        0 => Ok(good),
        1 => Err(bad.remove(0)),
        _ => Err(DataError::Recordings { lines: bad.iter().map(ToString::to_string).collect() }),
    }
}

/// Returns what the clips are made from, as it is kept beside them.
fn made_from(recordings: &[Recording], limits: Limits) -> Result<String, DataError> {
    let hash = |path: &Path| Ok(AudioInput::File(path.to_owned()).hash()?.to_hex().to_string());
    let mut all = Vec::new();
    for Recording { path, transcript, name } in recordings {
        let transcript = transcript.as_deref().map(hash).transpose()?;
        all.push(json!({ "name": name, "source": path, "blake3": hash(path)?, "transcript": transcript }));
    }
    let made_from = json!({ "version": 1, "least": limits.least, "most": limits.most, "recordings": all });
    Ok(format!("{made_from:#}\n"))
}

/// Refuses a folder that holds anything else.
fn claim(out: &Path, made_from: &str) -> Result<(), DataError> {
    let held = out.join(MADE_FROM);
    let refused = |reason: &str| Err(DataError::file(out, format!("{reason}; name a new folder")));
    match fs::read_dir(out) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(DataError::io(out, e)),
        Ok(_) if held.is_file() => match read_utf8(&held, MOST_MADE_FROM)? == made_from {
            true => Ok(()),
            false => {
                refused("it has clips of other recordings, transcripts or limits (its clips.json says which)")
            }
        },
        Ok(items) => match items.count() {
            0 => Ok(()),
            _ => refused("it is not empty, and has no clips of these recordings"),
        },
    }
}

/// Removes what a killed process was writing. What cannot be removed is in nobody's way.
fn clean(wavs: &Path) {
    for item in fs::read_dir(wavs).into_iter().flatten().flatten() {
        if item.file_name().to_string_lossy().starts_with(".ambitus-") {
            let _ = fs::remove_file(item.path());
        }
    }
}

/// What becomes of a recording.
struct Planned<'a> {
    recording: &'a Recording,
    heard: Heard,
    cuts: Vec<Cut>,
    left: Vec<Left>,
}

fn plan<'a>(recording: &'a Recording, options: &Options) -> Result<Planned<'a>, DataError> {
    let path = &recording.path;
    let expected = AudioReader::open(path)?.info();
    let expected = expected.frames.map(|n| n as f64 / f64::from(expected.rate));
    let share = |seconds: f64| expected.map_or(f64::NAN, |all| seconds / all);
    let input = AudioInput::File(path.to_owned());
    let heard = activity::measure(&input, &|at| (options.progress)(path, "reading", share(at)))?;
    let seconds = heard.seconds();
    // Before it is listened to, which takes longer.
    let segments = recording.transcript.as_deref().map(|of| transcripts::read(of, seconds)).transpose()?;
    let frames = activity::listen(&input, &heard, &|at| (options.progress)(path, "listening", at / seconds))?;
    let spans = speech(&frames, options.limits.most);
    let (units, untold) = match &segments {
        Some(segments) => units(segments, &spans, seconds),
        None => {
            let unit = |speech| Unit { speech, text: None, paused: true, ends: true, apart: false };
            (spans.iter().copied().map(unit).collect(), Vec::new())
        }
    };
    let groups = group(&units, &spans, seconds, options.limits);
    let left = |(span, reason): (Span, String)| Left {
        source: path.clone(),
        start: span.start,
        end: span.end,
        reason,
    };
    let mut left: Vec<Left> = untold.into_iter().map(left).collect();
    if groups.is_empty() {
        let reason = "no speech was heard in it".to_owned();
        left.push(Left { source: path.clone(), start: 0.0, end: seconds, reason });
    }
    let cuts = groups.iter().enumerate();
    let cuts = cuts.map(|(i, group)| named(recording, &heard, &units, (i, *group), options.limits)).collect();
    Ok(Planned { recording, heard, cuts, left })
}

/// Returns a clip with its name and why it is as it is.
fn named(
    recording: &Recording,
    heard: &Heard,
    units: &[Unit],
    (number, group): (usize, Group),
    limits: Limits,
) -> Cut {
    let Group { first, end, span } = group;
    // Whole samples.
    let rate = f64::from(heard.rate);
    let sample = |seconds: f64| (seconds * rate).round().min(heard.samples as f64) / rate;
    let (start, stop) = (sample(span.start), sample(span.end));
    let last = &units[end - 1];
    let reason = match units.get(end) {
        None => "the last speech".to_owned(),
        Some(next) if last.paused => format!("a pause of {:.2} s", next.speech.start - last.speech.end),
        Some(_) => "the segment's end; no pause was heard there".to_owned(),
    };
    // Half a sample is no excess.
    let note = match stop - start {
        seconds if seconds > limits.most + 1.0 / rate => {
            Some(if last.text.is_some() { Note::Segment } else { Note::Over })
        }
        seconds if seconds < limits.least - 1.0 / rate => Some(Note::Under),
        _ => None,
    };
    let text: String = units[first..end].iter().filter_map(|unit| unit.text.as_deref()).collect();
    Cut {
        file: PathBuf::from(WAVS).join(format!("{}-{:04}.wav", recording.name, number + 1)),
        source: recording.path.clone(),
        start,
        end: stop,
        joined: end - first,
        text: last.text.is_some().then(|| text.trim().to_owned()),
        reason,
        note,
    }
}

impl Planned<'_> {
    /// Writes the clips that are not there, and returns how many were.
    fn write(&self, out: &Path, options: &Options) -> Result<usize, DataError> {
        let rate = self.heard.rate;
        let at = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        let missing = |cut: &&Cut| {
            let bytes = HEADER + 2 * (at(cut.end) - at(cut.start));
            fs::metadata(out.join(&cut.file)).map_or(true, |there| !there.is_file() || there.len() != bytes)
        };
        let missing: Vec<&Cut> = self.cuts.iter().filter(missing).collect();
        let path = &self.recording.path;
        let mut reader = AudioReader::open(path)?;
        let mut sound: Option<SoundWriter> = None;
        let (mut next, mut begun) = (0, 0);
        while next < missing.len() {
            let Some(chunk) = reader.next_chunk()? else {
                return Err(DataError::file(path, "it changed while it was cut; run the command again"));
            };
            let ended = begun + chunk.len() as u64;
            while let Some(cut) = missing.get(next).filter(|cut| at(cut.start) < ended) {
                let (from, to) = (at(cut.start).max(begun), at(cut.end).min(ended));
                let mut writer = match sound.take() {
                    Some(writer) => writer,
                    None => SoundWriter::create(&out.join(&cut.file), rate, 1)?,
                };
                writer.push(&chunk[(from - begun) as usize..(to - begun) as usize])?;
                if at(cut.end) > ended {
                    sound = Some(writer);
                    break;
                }
                writer.finish()?;
                next += 1;
            }
            begun = ended;
            if !(options.progress)(path, "cutting", begun as f64 / self.heard.samples as f64) {
                return Err(DataError::Stopped);
            }
        }
        Ok(self.cuts.len() - missing.len())
    }
}
