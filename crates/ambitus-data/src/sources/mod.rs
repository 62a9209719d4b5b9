//! Which clips a folder or a metadata file describes: audio path, transcript, and where each was said.
//!
//! Read are, by what is found in a folder (or by a metadata file given directly):
//! - `audio_file|text` CSV as F5-TTS writes it, with AllTalk's further columns (`speaker_name`); quoting as Python's
//!   `csv` reads it;
//! - `metadata.csv` without header, as LJSpeech (`id|text|normalised text`, audio in `wavs/`) and F5's Gradio page
//!   (`name|text`) write it; nothing is quoted, every character stands for itself;
//! - JSON lines with an audio path and a text;
//! - audio files with a `.txt` of the same name;
//! - parquet files in the Hugging Face audio layout, with the feature `parquet`: `text`, and `audio` as file bytes, a path
//!   or samples with their rate. All files of one split are read; the text is taken as it stands.
//!
//! A column or key `source` or `speaker_id` names the voice.
//!
//! Whatever is wrong with one clip becomes a [`Problem`] and the others are read on. What makes the whole file doubtful
//! (not UTF-8, no known columns) is an error. Relative paths never lead out of the data folder, neither by `..` nor by
//! a link; absolute paths in metadata are the user's own words and are followed.

mod delimited;
mod folder;
mod jsonl;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
pub(crate) mod parquet;
mod resolve;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::audio::AudioInput;
use crate::error::DataError;
use resolve::Root;

/// Largest metadata file, bytes.
const MAX_METADATA: u64 = 512 << 20;
/// Names that a column or key of audio paths may have.
const AUDIO_KEYS: [&str; 5] = ["audio_file", "audio_path", "audio_filepath", "audio", "path"];
/// Names that a column or key of transcripts may have.
const TEXT_KEYS: [&str; 3] = ["text", "sentence", "transcription"];
/// Names that a column or key of voices may have.
const VOICE_KEYS: [&str; 2] = ["source", "speaker_id"];
/// Extensions of audio files.
const EXTENSIONS: [&str; 4] = ["wav", "flac", "mp3", "ogg"];

/// How a data set is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `audio_file|text` with a header line.
    Csv,
    /// LJSpeech or Gradio `metadata.csv` without header.
    Headerless,
    /// JSON lines.
    Jsonl,
    /// Audio files with `.txt` files.
    Folder,
    /// Parquet in the Hugging Face audio layout.
    Parquet,
}

/// Where a clip's audio lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audio {
    /// An audio file, found.
    File(PathBuf),
    /// A row of a parquet file, counted from 0.
    Row(u64),
}

/// One clip that the data set describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Unique name: the audio's path or id as written.
    pub name: String,
    /// Its audio.
    pub audio: Audio,
    /// Transcript: not empty, no control characters; of a parquet row as it stands.
    pub text: String,
    /// Who speaks, where the data set says so.
    pub voice: Option<String>,
    /// File that says so.
    pub file: PathBuf,
    /// Line or row in it, from 1.
    pub line: u64,
}

/// Something that cannot be used, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Name of the clip, or what stands in its place.
    pub name: String,
    /// File to look at.
    pub file: PathBuf,
    /// Line in it, from 1, where it has lines.
    pub line: Option<u64>,
    /// What is wrong.
    pub reason: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: {}", self.name, self.reason)
    }
}

/// Audio of entries, taken in their order.
#[derive(Default)]
pub(crate) struct Feed {
    rows: parquet::AudioRows,
}

impl Feed {
    /// Audio of the next entry; `Err` says why it has none.
    pub(crate) fn audio(&mut self, source: &Source, entry: &Entry) -> Result<AudioInput, String> {
        match &entry.audio {
            Audio::File(path) => Ok(AudioInput::File(path.clone())),
            Audio::Row(row) => self.rows.audio(&source.path, &entry.file, *row),
        }
    }
}

/// A data set as written down, before any audio is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Folder or metadata file that was given.
    pub path: PathBuf,
    /// How it is written.
    pub format: Format,
    /// Clips, sorted by name.
    pub entries: Vec<Entry>,
    /// What cannot be used.
    pub problems: Vec<Problem>,
    /// Bound on what reading a row of a table holds in memory, bytes; 0 where audio lies in files.
    pub row_bytes: u64,
}

impl Source {
    /// Reads a data folder or a metadata file (`.csv`, `.txt` with `|`, `.jsonl`, `.parquet`).
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let meta = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
        let (root, files) = if meta.is_dir() {
            (path, metadata_in(path)?)
        } else {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            (parent.unwrap_or(Path::new(".")), vec![path.to_owned()])
        };
        let root = Root::new(root)?;
        let mut collected = Collector::default();
        let mut format = Format::Folder;
        if files.is_empty() {
            folder::read(&root, &mut collected)?;
        }
        for file in &files {
            if is_parquet(file) {
                parquet::read(&root, file, &mut collected)?;
                format = Format::Parquet;
                continue;
            }
            let text = crate::files::read_utf8(file, MAX_METADATA)?;
            let json = file.extension().is_some_and(|e| e == "jsonl");
            format = if json {
                jsonl::read(&root, file, &text, &mut collected);
                Format::Jsonl
            } else {
                delimited::read(&root, file, &text, &mut collected)?
            };
        }
        let Collector { mut entries, problems, row_bytes, .. } = collected;
        if entries.is_empty() && problems.is_empty() {
            return Err(DataError::NoClips {
                path: path.to_owned(),
                reason: if files.is_empty() {
                    "no metadata.csv, no .jsonl, no .parquet and no audio files (wav, flac, mp3, ogg) in it"
                        .into()
                } else {
                    "the metadata has no lines".into()
                },
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { path: path.to_owned(), format, entries, problems, row_bytes })
    }
}

/// The metadata files of a folder; none means that the audio files speak for themselves.
fn metadata_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let path = item.map_err(|e| DataError::io(folder, e))?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        if matches!(extension, "csv" | "jsonl") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    let named = |name: &str| found.iter().find(|p| p.file_name().is_some_and(|n| n == name)).cloned();
    if let Some(one) = named("metadata.csv").or_else(|| named("metadata.jsonl")) {
        return Ok(vec![one]);
    }
    // AllTalk writes its own split; both halves are the data set.
    if let (Some(train), Some(eval)) = (named("metadata_train.csv"), named("metadata_eval.csv")) {
        return Ok(vec![train, eval]);
    }
    if found.is_empty() {
        return parquet_files(folder);
    }
    if found.len() > 1 {
        let names: Vec<_> = found.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
        return Err(DataError::file(
            folder,
            format!("several metadata files ({}); give the one to use as the data path", names.join(", ")),
        ));
    }
    Ok(found)
}

/// Whether a file's name says that it is parquet.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "parquet")
}

/// The parquet files of a folder, sorted, all of one split: `train-00003-of-00007.parquet` is a part of `train`.
pub(crate) fn parquet_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let path = item.map_err(|e| DataError::io(folder, e))?.path();
        if is_parquet(&path) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    let split = |path: &PathBuf| -> String {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let numbers = |part: &str| part.chars().all(|c| c.is_ascii_digit());
        let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
        match parts[..] {
            [of, "of", part, name] if numbers(of) && numbers(part) => name.to_owned(),
            _ => stem.into_owned(),
        }
    };
    let mut splits: Vec<String> = found.iter().map(split).collect();
    splits.dedup();
    if splits.len() > 1 {
        let reason = format!(
            "parquet files of several splits ({}); give the file to use as the data path, or a folder with one split",
            splits.join(", ")
        );
        return Err(DataError::file(folder, reason));
    }
    Ok(found)
}

/// Entries and problems while reading, with what has been seen.
#[derive(Default)]
struct Collector {
    entries: Vec<Entry>,
    problems: Vec<Problem>,
    names: HashMap<String, (PathBuf, u64)>,
    audio: HashMap<PathBuf, (PathBuf, u64)>,
    row_bytes: u64,
}

impl Collector {
    fn problem(&mut self, name: &str, file: &Path, line: Option<u64>, reason: impl Into<String>) {
        self.problems.push(Problem {
            name: name.to_owned(),
            file: file.to_owned(),
            line,
            reason: reason.into(),
        });
    }

    /// Adds a clip if its audio is found and its text can be used.
    fn add(
        &mut self,
        name: &str,
        audio: Result<PathBuf, String>,
        (text, voice): (&str, Option<&str>),
        file: &Path,
        line: u64,
    ) {
        let name = name.strip_prefix("./").unwrap_or(name);
        let checked = audio.and_then(|audio| Ok((audio, clean(text)?)));
        let (audio, text) = match checked {
            Ok(both) => both,
            Err(reason) => return self.problem(name, file, Some(line), reason),
        };
        let earlier = self.audio.get(&audio).or_else(|| self.names.get(name));
        if let Some((other, at)) = earlier {
            let reason = format!("the same audio is already at {}:{at}", other.display());
            return self.problem(name, file, Some(line), reason);
        }
        self.audio.insert(audio.clone(), (file.to_owned(), line));
        self.names.insert(name.to_owned(), (file.to_owned(), line));
        self.entries.push(Entry {
            name: name.to_owned(),
            audio: Audio::File(audio),
            text,
            voice: voice.map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned),
            file: file.to_owned(),
            line,
        });
    }
}

/// A transcript without surrounding space; line breaks and tabs inside become spaces.
fn clean(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("empty transcript".into());
    }
    let text: String = text.replace("\r\n", " ").replace(['\n', '\r', '\t'], " ");
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return Err(format!("binary data in the transcript (U+{:04X})", c as u32));
    }
    Ok(text)
}
