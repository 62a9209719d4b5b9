//! Which clips a folder or a metadata file describes: audio path, transcript, and where each was said.
//!
//! Read are, by what is found in a folder (or by a metadata file given directly):
//! - `audio_file|text` CSV as trainers of speech models write it, with AllTalk's further columns (`speaker_name`); quoting as Python's
//!   `csv` reads it;
//! - `metadata.csv` without header, as LJSpeech (`id|text|normalised text`, audio in `wavs/`) and a Gradio page
//!   (`name|text`) write it; nothing is quoted, every character stands for itself;
//! - JSON lines with an audio path and a text;
//! - lines without header that name the voice, or bring ids, where that is asked for ([`Lines::Spoken`]);
//! - audio files with a `.txt` of the same name;
//! - parquet files in the Hugging Face audio layout, with the feature `parquet`: `text`, and `audio` as file bytes, a path
//!   or samples with their rate. All files of one split are read; the text is taken as it stands.
//!
//! Of music ([`Source::read_music`]), JSON lines may be packed (`data.jsonl.gz`, audiocraft's) and need no text: a description and metadata are in
//! a JSON file beside the audio, a text in a `.txt` file, and audio without either is used as well.
//!
//! `corrections.csv` in the folder of a data set ([`CORRECTIONS_FILE`]) says what is written instead of a clip's text, and which clips are left
//! out.
//!
//! A column or key `source` or `speaker_id` names the voice; `text_description` or `description` describes it, where that is asked for.
//!
//! Files are read line by line. Whatever is wrong with one clip becomes a problem and the others are read on. What makes the whole file doubtful
//! (not UTF-8, no known columns) is an error. Relative paths never lead out of the data folder, neither by `..` nor by
//! a link; absolute paths in metadata are the user's own words and are followed.

mod beside;
mod corrections;
mod delimited;
mod folder;
mod headerless;
mod jsonl;
mod listing;
mod metadata;
mod music;
mod named;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
pub(crate) mod parquet;
mod resolve;
mod said;
mod sets;

use std::path::{Path, PathBuf};

use crate::audio::AudioInput;
use crate::error::DataError;
use crate::index::{ClipIndex, Split};
use crate::outcomes::Problem;
use crate::outcomes::{Cause, Outcomes};
use beside::{Beside, Rows};
pub use corrections::{CORRECTIONS_FILE, Correction, corrections};
pub use headerless::Lines;
use listing::{Lister, Listing, Said, listing_bytes};
use metadata::metadata_in;
pub(crate) use metadata::{is_parquet, parquet_files};
use resolve::Root;
use said::{clean, description, voice};
pub use sets::{DataSet, Sets};

/// Names that a column or key of audio paths may have.
const AUDIO_KEYS: [&str; 5] = ["audio_file", "audio_path", "audio_filepath", "audio", "path"];
/// Names that a column or key of transcripts may have.
pub const TEXT_KEYS: [&str; 3] = ["text", "sentence", "transcription"];
/// Names that a column or key of voices may have.
const VOICE_KEYS: [&str; 2] = ["source", "speaker_id"];
/// Names that a column or key of descriptions may have.
pub const DESCRIPTION_KEYS: [&str; 2] = ["text_description", "description"];
/// Names that a column or key of ids may have, by which rows of two data sets are compared.
pub const ID_KEYS: [&str; 1] = ["id"];
/// Name of a key of ids of texts.
const PHONEME_KEYS: [&str; 1] = ["phoneme_ids"];
/// Name of a key of weights, of music.
const WEIGHT_KEYS: [&str; 1] = ["weight"];
/// A list of clips may take so much in any case, bytes.
const LISTED_BYTES: u64 = 1 << 20;
/// Extensions of audio files.
const EXTENSIONS: [&str; 4] = ["wav", "flac", "mp3", "ogg"];

/// Returns whether its name says that it is audio.
fn is_audio(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str());
    extension.is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

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
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Unique name: the audio's path or id as written.
    pub name: String,
    /// Its audio.
    pub audio: Audio,
    /// Transcript: not empty, no control characters; of a parquet row as it stands. Of music its description, or empty.
    pub text: String,
    /// Who speaks, where the data set says so.
    pub voice: Option<String>,
    /// How it is said, where the data set says so and that was read: not empty.
    pub description: Option<String>,
    /// Metadata of music, as audiocraft has it in texts: names (`key`, `bpm`, `genre`, `moods`, `keywords`, `instrument`) and values.
    pub fields: Vec<(String, String)>,
    /// Ids of the text, where the data set brings them.
    pub ids: Vec<u32>,
    /// How often it is trained on in an epoch, of music: in relation to others.
    pub weight: f32,
    /// File that says so.
    pub file: PathBuf,
    /// Line or row in it, from 1.
    pub line: u64,
}

/// Audio of entries, taken in their order.
#[derive(Default)]
pub(crate) struct Feed {
    rows: parquet::AudioRows,
}

impl Feed {
    /// Returns the audio of the next entry; `Err` says why it has none.
    pub(crate) fn audio(&mut self, entry: &Entry) -> Result<AudioInput, String> {
        match &entry.audio {
            Audio::File(path) => Ok(AudioInput::File(path.clone())),
            Audio::Row(row) => self.rows.audio(&entry.file, *row),
        }
    }
}

/// A data set as written down, before any audio is opened.
#[derive(Debug)]
pub struct Source {
    /// Folder or metadata file that was given; of several, for messages.
    pub path: PathBuf,
    /// How it is written, or the last of several.
    pub format: Format,
    listing: Listing,
    /// What cannot be used.
    pub problems: Outcomes,
    /// Bound on what reading a row of a table holds in memory, bytes; 0 if audio lies in files.
    pub row_bytes: u64,
    /// Bound on what a table's footer takes.
    footer_bytes: u64,
}

/// Returns the bytes held for `clips` clips, with `names` bytes of names, while they are prepared: where they are described, what
/// they become, and their lengths for the summary.
pub const fn clip_bytes(clips: usize, names: usize) -> u64 {
    listing_bytes(clips, names) + ClipIndex::bytes_of(clips, names) + 2 * (clips * size_of::<f64>()) as u64
}

impl Source {
    /// Reads data folders or metadata files (`.csv`, `.txt` with `|`, `.jsonl`, `.parquet`). What is read is kept in a file
    /// without a name in the folder `scratch`; in memory are names and places, in at most `room` bytes, and one line.
    ///
    /// # Errors
    /// What makes the whole doubtful, and more clips than there is room for.
    pub fn read(sets: impl Into<Sets>, scratch: &Path, room: u64) -> Result<Self, DataError> {
        Self::read_with(&sets.into(), (Described::No, Lines::Texts), scratch, room)
    }

    /// Reads data sets as they were before they were corrected. See [`read`](Self::read).
    ///
    /// # Errors
    /// As there.
    pub fn read_uncorrected(sets: impl Into<Sets>, scratch: &Path, room: u64) -> Result<Self, DataError> {
        let mut lister = Lister::new((Described::No, Lines::Texts), scratch, room)?;
        lister.corrects = false;
        Self::list(&sets.into(), lister)
    }

    /// Reads a data set of spoken texts, whose lines without a header have these columns. See [`read`](Self::read).
    ///
    /// # Errors
    /// As there.
    pub fn read_lines(
        sets: impl Into<Sets>,
        lines: Lines,
        scratch: &Path,
        room: u64,
    ) -> Result<Self, DataError> {
        Self::read_with(&sets.into(), (Described::No, lines), scratch, room)
    }

    /// Reads a data set and its descriptions: its own, or those of `second`, a file or folder of metadata. A row of that is of the clip
    /// whose audio it names or, where it names none, of the clip in the same row, with the same `id` where both have one. See
    /// [`read`](Self::read).
    ///
    /// # Errors
    /// As there, and rows of the second that are not those of the first, or a second of several.
    pub fn read_described(
        sets: impl Into<Sets>,
        second: Option<&Path>,
        scratch: &Path,
        room: u64,
    ) -> Result<Self, DataError> {
        let sets = sets.into();
        let described = match second {
            Some(second) if sets.single().is_none() => {
                return Err(DataError::file(
                    second,
                    "goes with one data set, not with several: let each have its own descriptions",
                ));
            }
            Some(second) => Described::Beside(Box::new(Beside::open(second, scratch, room)?)),
            None => Described::Own,
        };
        Self::read_with(&sets, (described, Lines::Texts), scratch, room)
    }

    /// Reads a data set of music: a folder of audio files, with JSON and `.txt` files of their names beside them where these have a text, or
    /// lines of JSON (audiocraft's `data.jsonl`, `data.jsonl.gz`, in a folder or by name). See [`read`](Self::read).
    ///
    /// # Errors
    /// As there.
    pub fn read_music(sets: impl Into<Sets>, scratch: &Path, room: u64) -> Result<Self, DataError> {
        Self::read_with(&sets.into(), (Described::Music, Lines::Texts), scratch, room)
    }

    fn read_with(
        sets: &Sets,
        (described, lines): (Described, Lines),
        scratch: &Path,
        room: u64,
    ) -> Result<Self, DataError> {
        Self::list(sets, Lister::new((described, lines), scratch, room)?)
    }

    fn list(sets: &Sets, mut lister: Lister) -> Result<Self, DataError> {
        let mut format = Format::Folder;
        for set in sets.iter() {
            format = read_set(set, &mut lister)?;
        }
        lister.sort(&sets.path())?;
        let Lister { listing, problems, described, row_bytes, footer_bytes, .. } = lister;
        if let Described::Beside(beside) = described {
            beside.finish()?;
        }
        Ok(Self { path: sets.path(), format, listing, problems, row_bytes, footer_bytes })
    }

    /// Returns the number of clips that may be usable.
    pub fn len(&self) -> usize {
        self.listing.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns clip `i` in the order of names.
    ///
    /// # Errors
    /// The disk fails.
    pub fn entry(&self, i: usize) -> Result<Entry, DataError> {
        self.listing.entry(i)
    }

    /// Returns the place of the clip of a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.listing.find(name)
    }

    /// Returns all clips in the order of names, one in memory at a time.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry, DataError>> + '_ {
        (0..self.len()).map(|i| self.entry(i))
    }

    /// Returns the length of the longest transcript, bytes.
    pub fn longest_text(&self) -> usize {
        self.listing.longest_text
    }

    /// Returns the length of the longest description, bytes.
    pub fn longest_description(&self) -> usize {
        self.listing.longest_description
    }

    /// Returns the bytes that are held all the time while the clips are prepared, at most: of each clip, and of a table its
    /// footer.
    pub fn held_bytes(&self) -> u64 {
        clip_bytes(self.len(), self.listing.name_bytes()) + self.footer_bytes
    }
}

/// Lists the clips of a data set: how they are written down.
fn read_set(set: &DataSet, lister: &mut Lister) -> Result<Format, DataError> {
    let path = &*set.path;
    let meta = std::fs::metadata(path).map_err(|e| DataError::io(path, e))?;
    let (root, files) = if meta.is_dir() {
        let listed = lister.is_music().then(|| music::listed_in(path)).flatten();
        (path, listed.map_or_else(|| metadata_in(path), |file| Ok(vec![file]))?)
    } else {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        (parent.unwrap_or(Path::new(".")), vec![path.to_owned()])
    };
    let root = Root::new(root)?;
    let listed = lister.begin(set, &root.given)?;
    let mut format = Format::Folder;
    if files.is_empty() {
        lister.described.needs_no_order()?;
        folder::read(&root, lister)?;
    }
    for file in &files {
        format = match file.extension().and_then(|e| e.to_str()) {
            Some("parquet") => parquet::read(file, lister).map(|()| Format::Parquet)?,
            Some("jsonl") => jsonl::read(&root, file, lister).map(|()| Format::Jsonl)?,
            Some("gz") if lister.is_music() => jsonl::read(&root, file, lister).map(|()| Format::Jsonl)?,
            _ => delimited::read(&root, file, lister)?,
        };
    }
    if lister.listed() == listed {
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
    lister.end()?;
    Ok(format)
}

/// Holds out the clips of an index that metadata files describe, in memory that the index justifies. Clips of the files that are not usable
/// are passed over.
///
/// # Errors
/// A file that cannot be read, files that describe no clip of the index, or far more clips; and no clip left to train on.
pub fn split_described(index: &ClipIndex, files: &Sets, scratch: &Path) -> Result<Split, DataError> {
    let names = (0..index.len()).map(|i| index.name(i).len()).sum::<usize>();
    let source = Source::read(files, scratch, LISTED_BYTES + clip_bytes(2 * index.len(), 2 * names))?;
    let mut held_out = vec![false; index.len()];
    for entry in source.entries() {
        if let Some(i) = index.find(&entry?.name) {
            held_out[i] = true;
        }
    }
    if !held_out.contains(&true) {
        let reason =
            "describes no usable clip of this data: data.dir must name what both describe, their folder";
        return Err(DataError::file(&files.path(), reason));
    }
    Split::new(&held_out)
}

/// Where descriptions are.
enum Described {
    /// Nobody asks for them.
    No,
    /// Where clips are.
    Own,
    /// In a second data set.
    Beside(Box<Beside>),
    /// Where clips are, or in files beside their audio: of music, which need not have any.
    Music,
}

impl Described {
    /// Refuses to compare rows with clips that have no order.
    fn needs_no_order(&self) -> Result<(), DataError> {
        match self {
            Self::Beside(beside) if !beside.is_named() => Err(DataError::Invalid(format!(
                "descriptions in rows go with clips in rows, not with audio files that have their text beside them: name each one's \
                 audio ({})",
                AUDIO_KEYS.join(", ")
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the rows of a second data set's file, and the bytes that reading them holds.
fn rows_of(file: &Path, room: u64) -> Result<(Box<dyn Rows>, u64), DataError> {
    match file.extension().and_then(|e| e.to_str()) {
        Some("parquet") => parquet::rows(file, room),
        Some("jsonl") => Ok((Box::new(jsonl::rows(file)?), 0)),
        _ => Ok((Box::new(delimited::rows(file)?), 0)),
    }
}

/// Adds a clip if its audio is found and its text can be used.
fn add(
    lister: &mut Lister,
    name: &str,
    audio: Result<PathBuf, String>,
    said: &Said<'_>,
) -> Result<(), DataError> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let corrected = lister.corrected(name)?;
    let said = match &corrected {
        Some((file, Correction { keep: Some(false), line, .. })) => {
            let place = lister.path(*file).to_owned();
            return lister.problem(name, &place, Some(*line), corrections::dropped());
        }
        // Ids are those of the text that was written.
        Some((file, Correction { text: Some(text), line, .. })) => {
            &Said { text, ids: &[], file: Some(*file), line: *line, ..*said }
        }
        _ => said,
    };
    let audio = match audio {
        Ok(audio) => audio,
        Err(reason) => {
            let place = lister.place(said, Path::new(name));
            return lister.problem(name, &place, Some(said.line), (Cause::NoAudio, reason));
        }
    };
    if lister.is_music() {
        return music::add(lister, name, &audio, said);
    }
    let beside = lister.beside(name, said.id)?;
    let cleaned = || {
        let of_text = |reason| (Cause::Transcript, reason);
        let text = clean(said.text).map_err(of_text)?;
        let description = beside?.map_or_else(|| description(said.description), |said| Ok(Some(said)));
        Ok((text, voice(said.voice).map_err(of_text)?, description?))
    };
    match cleaned() {
        Ok((text, voice, description)) => lister.add_file(
            name,
            &audio,
            &Said { text: &text, voice, description: description.as_deref(), ..*said },
        ),
        Err(problem) => {
            let place = lister.place(said, &audio);
            lister.problem(name, &place, Some(said.line), problem)
        }
    }
}
