//! Piper: audio to clips of samples, and texts to ids of phonemes.
//!
//! What the project passes over in silence is named: clips shorter than a slice, which its losses see beside padding, and clips with fewer
//! frames than phonemes, which have no alignment.

use super::folder::Folder;
use super::text::Texts;
use crate::console::Console;
use crate::error::RunError;
use crate::prepare::{
    Bound, Job, Made, PAGES, PREPARE_THREADS, Preparer, Room, What, limited, prepare_options, sets, shortest,
    shown,
};
use ambitus_data::pieces::{self, Counts, PiecesOptions, piece_lengths, prepare_pieces};
use ambitus_data::sources::{Entry, Lines};
use ambitus_data::{PrepareOptions, Source};
use ambitus_models::piper::config::Config;

/// Version of what is made of sound and text.
const SPEC: &str = "piper-voice-v1";
/// Bytes that a byte of text takes while it becomes ids: clauses in phonemes, their letters, two ids of each.
const TEXT_BYTES: u64 = 96;

/// Prepares clips of a voice.
pub(super) struct Voiced<'a>(pub &'a Folder);

impl Preparer for Voiced<'_> {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let (what, bytes) = self.made(job, console)?;
        Ok(Made::new(what, job.recipe, &*bytes))
    }

    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        let room = Room::new(job, PREPARE_THREADS);
        Ok(bound(&self.options(job), &room, held))
    }

    fn stays(&self) -> u64 {
        PAGES
    }
}

/// Returns what preparing takes by the longest clip's seconds, besides `held` bytes that do not depend on it.
fn bound<'a>(options: &PrepareOptions, room: &Room, held: u64) -> Bound<'a> {
    let beside = room.process + held;
    limited(options, move |o| beside + PiecesOptions::fixed_bound(None, o))
}

impl Voiced<'_> {
    fn options(&self, job: &Job<'_>) -> PrepareOptions {
        prepare_options(job.recipe, self.0.config.spectra.rate)
    }

    /// Returns the clips, or only their lengths, and the bound on the memory that preparing them takes.
    fn made<'a>(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<(What, Bound<'a>), RunError> {
        let data = sets(job.recipe)?;
        let (room, options, folder) = (Room::new(job, PREPARE_THREADS), self.options(job), self.0);
        let rows = |counts| rows(&folder.config, counts);
        let pieces = PiecesOptions { frame: None, context: true, rows: &rows, spec: SPEC };
        let beside = PiecesOptions::fixed_bound(None, &shortest(&options));
        let lines = Lines::Spoken { voices: folder.config.speakers > 1, ids: folder.keys.phoneme_ids };
        let source = Source::read_lines(&data, lines, &options.cache, room.left(beside));
        let source = room.read(beside, source)?;
        let held =
            pieces.memory_bound(&source, TEXT_BYTES, &options) - PiecesOptions::fixed_bound(None, &options);
        let bytes = bound(&options, &room, held);
        let texts = Reader::new(folder, &source)?;
        let missing = match &texts.missing {
            Some(why) if job.run => return Err(RunError::Usage(why.clone())),
            Some(why) => Some(format!("{why}; until then each letter is taken for a phoneme")),
            None => None,
        };
        let short = room.too_small(bytes(job.recipe.data.max_seconds), &source)?;
        if let Some(why) = short.or(missing) {
            let lengths = piece_lengths(&source, &texts, &pieces, &options, &shown(console))?;
            return Ok((What::Lengths(Box::new(lengths), why), bytes));
        }
        let prepared = prepare_pieces(&source, &texts, None, &pieces, &options, &shown(console))?;
        Ok((What::Clips(Box::new(prepared)), bytes))
    }
}

/// Returns the frames of a clip.
///
/// # Errors
/// What the model cannot have of it.
fn rows(config: &Config, counts: Counts) -> Result<usize, String> {
    let (frames, least) = (counts.samples / config.spectra.hop, config.segment);
    let phonemes = counts.text - usize::from(config.speakers > 1);
    if frames < least {
        let of = |frames: usize| frames as f64 / config.rows().per_second;
        return Err(format!("{:.2} s of sound, less than a slice, {:.2} s", of(frames), of(least)));
    }
    if frames < phonemes {
        return Err(format!(
            "{phonemes} ids of phonemes in {frames} frames, so that some would take no time; does the text belong to it?"
        ));
    }
    Ok(frames)
}

/// What reads texts, with who speaks.
struct Reader<'a> {
    folder: &'a Folder,
    /// None where all clips bring ids.
    texts: Option<Texts>,
    /// Of those.
    fingerprint: [u8; 32],
    /// Why no text can be read, where one has to be.
    missing: Option<String>,
}

impl<'a> Reader<'a> {
    fn new(folder: &'a Folder, source: &Source) -> Result<Reader<'a>, RunError> {
        let mut reader = Reader { folder, texts: None, fingerprint: [0; 32], missing: None };
        for entry in source.entries() {
            if entry?.ids.is_empty() {
                let texts = Texts::read(&folder.dir)?;
                match texts.fingerprint() {
                    Ok(fingerprint) => reader.fingerprint = fingerprint,
                    Err(why) => reader.missing = Some(why),
                }
                reader.texts = Some(texts);
                break;
            }
        }
        Ok(reader)
    }

    /// Returns the ids of an entry's text, or about as many where nothing makes them.
    fn phonemes(&self, text: &str, entry: &Entry) -> Result<Vec<u32>, String> {
        if let Some(texts) = self.texts.as_ref().filter(|_| entry.ids.is_empty()) {
            return match self.missing {
                None => texts.ids(text),
                Some(_) => Ok(vec![0; 2 * text.chars().count() + 3]),
            };
        }
        match entry.ids.iter().find(|id| **id as usize >= self.folder.config.symbols) {
            None => Ok(entry.ids.clone()),
            Some(id) => {
                Err(format!("the id {id} is not among the {} of the model", self.folder.config.symbols))
            }
        }
    }
}

impl pieces::Texts for Reader<'_> {
    fn ids(&self, text: &str, entry: &Entry) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        if self.folder.config.speakers > 1 {
            let named =
                entry.voice.as_deref().ok_or("nobody is named who speaks: the model has several speakers")?;
            ids.push(self.folder.speaker(named)?);
        }
        ids.extend(self.phonemes(text, entry)?);
        Ok(ids)
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.fingerprint);
        for (name, id) in &self.folder.speakers {
            hash.update(name.as_bytes()).update(&id.to_le_bytes());
        }
        // Of a voice of one speaker the same texts give clips without who speaks.
        if self.folder.config.speakers > 1 {
            hash.update(b"speakers");
        }
        *hash.finalize().as_bytes()
    }
}
