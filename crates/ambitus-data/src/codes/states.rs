//! Descriptions as states of a text encoder: one file for each different text, whatever clips have it.
//!
//! Layout, little-endian: magic (8 bytes), key (32), ids U u32, width E u32, states f32 `[U, E]`, blake3 of all before (32).

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{CodeClip, CodesOptions, Texts};
use crate::error::DataError;
use crate::index::ClipMeta;
use crate::prepare::{PrepareOptions, Progress};
use crate::sealed::{self, BEGINNING, Kind};
use crate::sources::{Entry, Source};
use crate::text::strip;

const HEADER: usize = BEGINNING + 2 * 4;
/// States of thousands of ids.
const KIND: Kind = Kind { magic: b"ambstat1", name: "file of states", header: HEADER, most: 1 << 30 };
/// Of the files.
const EXTENSION: &str = "states";
/// Version of what is made of a description; part of every key.
const SPEC: &[u8] = b"states-v1";

/// The text encoder. It is called in the order of the clips.
pub trait Encoder {
    /// Returns the states of a text, `[U, E]` row-major for U ids.
    ///
    /// # Errors
    /// Only what is wrong with the encoder: an error ends the pass.
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String>;

    /// Returns the states of a text with the encoder's dropout, of a draw by its number.
    ///
    /// # Errors
    /// As [`states`](Encoder::states); an encoder without dropout.
    fn drawn(&mut self, ids: &[u32], number: usize) -> Result<Vec<f32>, String> {
        let _ = (ids, number);
        Err("the encoder draws no dropout".to_owned())
    }

    /// Returns the width E of a state.
    fn width(&self) -> usize;
}

/// Returns the bytes that a description of `ids` ids takes while its states are saved or loaded, besides the encoder.
pub fn states_bytes(ids: usize, width: usize) -> u64 {
    2 * (4 * ids * width + HEADER + 32) as u64
}

/// Returns the key of a description's states.
pub(crate) fn key(text: &str, texts: &[u8; 32], encoder: &[u8; 32]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(SPEC).update(texts).update(encoder).update(text.as_bytes());
    *hash.finalize().as_bytes()
}

/// Returns the key of a draw of states with dropout.
fn key_of_draw(key: &[u8; 32], number: usize) -> [u8; 32] {
    *blake3::Hasher::new().update(key).update(&(number as u64).to_le_bytes()).finalize().as_bytes()
}

fn path(folder: &Path, key: &[u8; 32]) -> PathBuf {
    folder.join(ClipMeta::file_name(key, EXTENSION))
}

/// Returns what is said of how an entry is spoken, if anything is.
pub(super) fn description<'e>(entry: &'e Entry, codes: &'e CodesOptions<'_>) -> Option<&'e str> {
    let said = entry.description.as_deref().or(codes.description.as_deref());
    said.map(strip).filter(|said| !said.is_empty())
}

/// Gives each different description, once, with the name of the first clip that has it, and all other texts. What is remembered of each
/// is less than what later passes hold of a clip.
fn distinct(
    source: &Source,
    texts: &dyn Texts,
    codes: &CodesOptions<'_>,
    mut each: impl FnMut(usize, &str, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut seen: HashSet<[u8; 16]> = HashSet::new();
    for (i, entry) in source.entries().enumerate() {
        let entry = entry?;
        if let Some(text) = description(&entry, codes)
            && seen.insert(sealed::array(blake3::hash(text.as_bytes()).as_bytes(), 0))
        {
            each(i, &entry.name, text)?;
        }
        let others = (0..texts.others()).map(|number| texts.other(&entry, number));
        others.filter(|text| !text.is_empty()).try_for_each(|text| each(i, &entry.name, &text))?;
    }
    Ok(())
}

/// Returns the ids of the longest text that clips may have, which an encoder is planned for.
///
/// # Errors
/// The disk fails.
pub fn longest_description(
    source: &Source,
    texts: &dyn Texts,
    codes: &CodesOptions<'_>,
) -> Result<usize, DataError> {
    let mut longest = 0;
    distinct(source, texts, codes, |_, _, text| {
        let ids = texts.description(text).map_or(0, |ids| ids.len());
        longest = longest.max(Some(ids).filter(|ids| *ids <= codes.most_description).unwrap_or(0));
        Ok(())
    })?;
    Ok(longest)
}

/// Makes the states of every different description and every other text of a source that are not in the cache yet, and their draws. What is
/// wrong with a description is said of the clips that have it, by [`prepare_codes`](super::prepare_codes()).
///
/// # Errors
/// What ends the pass: options, the cache, the encoder.
pub fn prepare_states(
    source: &Source,
    texts: &dyn Texts,
    (encoder, fingerprint): (&mut dyn Encoder, &[u8; 32]),
    codes: &CodesOptions<'_>,
    options: &PrepareOptions,
    progress: &dyn Fn(Progress<'_>) -> bool,
) -> Result<(), DataError> {
    options.check()?;
    let of_texts = texts.fingerprint();
    distinct(source, texts, codes, |i, name, text| {
        let plain = key(text, &of_texts, fingerprint);
        // The draw's number; the description without dropout has none.
        for draw in std::iter::once(None).chain((0..codes.draws).map(Some)) {
            let key = draw.map_or(plain, |number| key_of_draw(&plain, number));
            let path = path(&options.cache, &key);
            if path.exists() && read(&path).is_ok_and(|bytes| sealed::key(&bytes) == key) {
                continue;
            }
            let ids = texts.description(text).ok();
            let Some(ids) = ids.filter(|ids| (1..=codes.most_description).contains(&ids.len())) else {
                continue;
            };
            let failed = |reason| DataError::Encoder { clip: name.to_owned(), reason };
            let states = match draw {
                None => encoder.states(&ids),
                Some(number) => encoder.drawn(&ids, number),
            };
            let (states, width) = (states.map_err(failed)?, encoder.width());
            if states.len() != ids.len() * width {
                let (n, u) = (states.len(), ids.len());
                return Err(failed(format!("{n} numbers for {u} ids; {width} expected of each")));
            }
            let mut file = KIND.begin(&key, 4 * states.len());
            sealed::put(&mut file, [ids.len(), width].map(|n| n as u32));
            sealed::put(&mut file, states.iter().map(|x| x.to_bits()));
            KIND.save(&path, file)?;
        }
        match progress(Progress { done: i + 1, total: source.len(), name }) {
            true => Ok(()),
            false => Err(DataError::Stopped),
        }
    })
}

fn shape(file: &[u8]) -> [u64; 2] {
    [0, 4].map(|at| u64::from(sealed::number(file, BEGINNING + at)))
}

fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    KIND.read(path, |file| {
        let [ids, width] = shape(file);
        ids.saturating_mul(width).saturating_mul(4)
    })
}

/// Loads the states `[U, E]` of a clip's description, E of them `width`, or a draw of them with dropout by its number. The clip lies in
/// `folder`. Length and checksum are verified.
///
/// # Errors
/// The file cannot be read, is damaged, or has other states.
pub fn load_states(
    folder: &Path,
    clip: &CodeClip,
    draw: Option<usize>,
    width: usize,
) -> Result<Vec<f32>, DataError> {
    let key = draw.map_or(clip.states, |number| key_of_draw(&clip.states, number));
    load_states_of(folder, (&key, clip.described), width)
}

/// Loads the states of a key, of so many ids. See [`load_states`].
pub(crate) fn load_states_of(
    folder: &Path,
    (key, ids): (&[u8; 32], usize),
    width: usize,
) -> Result<Vec<f32>, DataError> {
    let path = path(folder, key);
    let bytes = read(&path)?;
    let (has, wants) = (shape(&bytes), [ids, width].map(|n| n as u64));
    if sealed::key(&bytes) != *key || has != wants {
        return Err(
            KIND.damaged(&path, &format!("{has:?} ids and numbers of each, where {wants:?} are expected"))
        );
    }
    Ok(sealed::numbers(&bytes[HEADER..]).map(f32::from_bits).collect())
}
