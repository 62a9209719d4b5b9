//! Sequences that are tokenised already: parquet rows of `input_ids`, and perhaps `labels` and `attention_mask`, as the
//! official training script reads them. They need neither audio nor codec.

use std::path::{Path, PathBuf};

use super::interleave::{FRAME_SAMPLES, SLOTS};
use super::sequence::{FIRST_AUDIO, IGNORED, LAST_AUDIO};
use super::token_clip::{self, Facts, MAX_IDS, TokenClip};
use crate::error::{DataError, many};
use crate::index::ClipMeta;
use crate::measured::{Edited, Measured};
use crate::mel::SAMPLE_RATE;
use crate::outcomes::{Cause, Outcome, Verdict};
use crate::prepare::summary::{Advice, Unknown};
use crate::prepare::{PrepareOptions, Prepared, Progress, Record};
use crate::sources::parquet::{TokenRow, TokenRows};
use crate::sources::{clip_bytes, is_parquet, parquet_files};

const SPEC: &str = "token-rows-v1";
/// Extension of the clip files, as that of prepared speech.
const EXTENSION: &str = "tokens";

/// Files of tokenised rows, all of which can be opened.
#[derive(Debug)]
pub struct TokenSource {
    path: PathBuf,
    files: Vec<PathBuf>,
    /// Rows of all files.
    rows: usize,
    memory_bytes: u64,
}

impl TokenSource {
    /// Looks for rows with `input_ids` at a data path (a file or a folder of them); `None` if it holds something else. Rows of which
    /// one, with what is held of all, takes more than `room` bytes of memory are refused.
    ///
    /// # Errors
    /// A parquet file that cannot be read, also because this build reads none, and what does not fit.
    pub fn open(path: &Path, room: u64) -> Result<Option<Self>, DataError> {
        let mut files = if path.is_dir() {
            parquet_files(path)?
        } else {
            Vec::from_iter(is_parquet(path).then(|| path.to_owned()))
        };
        // As the names of their rows are ordered.
        files.sort_by_key(|file| stem(file) + "#");
        let (mut rows, mut names, mut row_bytes) = (0usize, 0usize, 0);
        for (i, file) in files.iter().enumerate() {
            match TokenRows::open(file, room)? {
                Some(open) => {
                    rows = rows.saturating_add(open.rows() as usize);
                    names = names.saturating_add(open.rows() as usize * name_of(file, &open, 0).len());
                    row_bytes = open.bytes().max(row_bytes);
                }
                None if i == 0 => return Ok(None),
                None => {
                    let reason = "no column `input_ids`; it is no file of tokenised rows";
                    return Err(DataError::file(file, reason));
                }
            }
        }
        if files.is_empty() {
            return Ok(None);
        }
        // And their lengths, for the summary.
        let memory_bytes = row_bytes + clip_bytes(rows, names) + 2 * (rows * size_of::<u32>()) as u64;
        if memory_bytes > room {
            let what = format!("{}: {}", path.display(), many(rows, "row"));
            return Err(DataError::DoesNotFit { what, needed: memory_bytes, room });
        }
        Ok(Some(Self { path: path.to_owned(), files, rows, memory_bytes }))
    }

    /// Returns the number of rows of all files.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the bound on the memory of [`prepare_tokens`] with what it returns, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the name of a row.
fn name_of(file: &Path, rows: &TokenRows, row: u64) -> String {
    format!("{}#{row:0width$}", stem(file), width = rows.rows().to_string().len())
}

/// Checks each row and keeps it as a token clip, one row in memory at a time. Positions that the mask leaves out are
/// dropped where they lie at the ends (padding). Of the limits only `max_tokens` counts: a row has no length in seconds but
/// that of its audio ids, which goes into the index. `vocabulary` is the number of ids that the model knows.
///
/// # Errors
/// What ends the pass: options, the cache, no usable row, or rows outside the limits under `refuse`. What is wrong with one
/// row is its verdict.
pub fn prepare_tokens(
    source: &TokenSource,
    vocabulary: u32,
    max_tokens: Option<usize>,
    options: &PrepareOptions,
    progress: &(dyn Fn(Progress<'_>) -> bool + Sync),
) -> Result<Prepared, DataError> {
    let mut record = Record::of_ids(EXTENSION, options)?;
    let mut done = 0;
    for file in &source.files {
        let Some(mut rows) = TokenRows::open(file, u64::MAX)? else { continue };
        let count = rows.rows();
        let mut failed = false;
        for row in 0..count {
            let name = name_of(file, &rows, row);
            let read = rows.next().map_err(|reason| {
                failed = true;
                format!("{reason}; nor can the {} after it be read", many((count - row - 1) as usize, "row"))
            });
            let clip = read.and_then(|row| clip(row, vocabulary, name.clone()));
            let (verdict, meta) = match clip {
                Err(reason) => (Verdict::Bad { cause: Cause::Metadata, reason }, None),
                Ok(clip) => keep(&clip, max_tokens, &options.cache)?,
            };
            done += 1;
            let go_on = progress(Progress { done, total: source.rows, name: &name });
            let outcome = Outcome { name, file: file.clone(), line: Some(row + 1), verdict };
            record.outcome(outcome, meta.as_ref())?;
            if !go_on {
                return Err(DataError::Stopped);
            }
            if failed {
                // The rest of the file is out of step.
                break;
            }
        }
    }
    record.finish(&source.path, options, Unknown::default(), &Advice::default())
}

/// Writes a clip, or finds it written.
fn keep(
    clip: &TokenClip,
    max_tokens: Option<usize>,
    cache: &Path,
) -> Result<(Verdict, Option<ClipMeta>), DataError> {
    let length = clip.ids.len();
    if let Some(most) = max_tokens.filter(|&most| length > most) {
        return Ok((Verdict::Outside { reason: format!("{length} ids, more than {most}") }, None));
    }
    let mut hash = blake3::Hasher::new();
    hash.update(SPEC.as_bytes());
    for (id, label) in clip.ids.iter().zip(&clip.labels) {
        hash.update(&id.to_le_bytes());
        hash.update(&label.to_le_bytes());
    }
    hash.update(clip.name.as_bytes());
    let key = *hash.finalize().as_bytes();
    let file = ClipMeta::file_name(&key, EXTENSION);
    let path = cache.join(&file);
    let audio = clip.ids.iter().filter(|id| (FIRST_AUDIO..=LAST_AUDIO).contains(id)).count();
    let seconds = (audio / SLOTS * FRAME_SAMPLES) as f64 / f64::from(SAMPLE_RATE);
    let measured = Measured { seconds, ..Measured::default() };
    let facts = Facts { key, text_tokens: (length - audio) as u32, measured };
    let cached = token_clip::read(&path).is_ok_and(|(found, _)| found.key == key);
    if !cached {
        token_clip::save(&path, &facts, clip)?;
    }
    let meta = ClipMeta {
        name: clip.name.clone(),
        frames: length as u32,
        tokens: facts.text_tokens,
        context: 0,
        weight: 1.0,
        measured,
        file,
        key: blake3::Hash::from_bytes(key).to_hex().to_string(),
    };
    Ok((Verdict::Ok { cached, edited: Edited::default() }, Some(meta)))
}

/// Returns a row as a clip; `Err` says what is wrong with it.
fn clip(row: TokenRow, vocabulary: u32, name: String) -> Result<TokenClip, String> {
    let TokenRow { ids, labels, mask } = row;
    let n = ids.len();
    for (what, other) in [("labels", &labels), ("attention_mask", &mask)] {
        if let Some(other) = other.as_ref().filter(|o| o.len() != n) {
            return Err(format!("{} {what} for {n} input_ids", other.len()));
        }
    }
    let kept = match &mask {
        None => 0..n,
        Some(mask) => {
            if let Some(odd) = mask.iter().find(|&&m| m != 0 && m != 1) {
                return Err(format!("{odd} in attention_mask, which is 0 or 1"));
            }
            let start = mask.iter().position(|&m| m == 1).unwrap_or(n);
            let end = mask.iter().rposition(|&m| m == 1).map_or(start, |at| at + 1);
            if mask[start..end].contains(&0) {
                return Err(
                    "attention_mask leaves out ids between others; only padding at the ends can be".into()
                );
            }
            start..end
        }
    };
    if kept.len() > MAX_IDS {
        return Err(format!("{} ids in one row; at most {MAX_IDS} are read", kept.len()));
    }
    let known = |&id: &i64| (0..i64::from(vocabulary)).contains(&id);
    let ids = &ids[kept.clone()];
    if let Some(id) = ids.iter().find(|id| !known(id)) {
        return Err(format!("input id {id}; the model has {vocabulary} ids"));
    }
    let labels = labels.as_ref().map_or(ids, |labels| &labels[kept]);
    if let Some(label) = labels.iter().find(|&l| *l != i64::from(IGNORED) && !known(l)) {
        return Err(format!("label {label}; the model has {vocabulary} ids, and {IGNORED} is not scored"));
    }
    let clip = TokenClip {
        ids: ids.iter().map(|&id| id as u32).collect(),
        labels: labels.iter().map(|&l| l as i32).collect(),
        name,
    };
    if clip.scored() == 0 {
        return Err(format!("{} ids of which none is scored", clip.ids.len()));
    }
    Ok(clip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ids: &[i64], labels: Option<&[i64]>, mask: Option<&[i64]>) -> Result<TokenClip, String> {
        let own = |list: &[i64]| list.to_vec();
        clip(TokenRow { ids: own(ids), labels: labels.map(own), mask: mask.map(own) }, 100, "a".into())
    }

    #[test]
    fn rows_are_checked_and_padding_dropped() {
        let plain = row(&[5, 6, 7], None, None).expect("valid");
        assert_eq!((plain.ids, plain.labels), (vec![5, 6, 7], vec![5, 6, 7]));
        let padded =
            row(&[0, 5, 6, 7, 0], Some(&[-100, -100, 6, 7, -100]), Some(&[0, 1, 1, 1, 0])).expect("valid");
        assert_eq!((padded.ids, padded.labels), (vec![5, 6, 7], vec![-100, 6, 7]));
        for (row, reason) in [
            (row(&[5, 6], Some(&[5]), None), "1 labels for 2"),
            (row(&[5, 6], None, Some(&[1])), "1 attention_mask for 2"),
            (row(&[5, 100], None, None), "input id 100"),
            (row(&[5, -1], None, None), "input id -1"),
            (row(&[5, 6], Some(&[5, -7]), None), "label -7"),
            (row(&[5, 6, 7], None, Some(&[1, 0, 1])), "leaves out"),
            (row(&[5, 6], None, Some(&[1, 2])), "2 in attention_mask"),
            (row(&[5, 6], None, Some(&[0, 0])), "none is scored"),
            (row(&[5, 6], Some(&[5, -100]), None), "none is scored"),
            (row(&[], None, None), "none is scored"),
        ] {
            let error = row.expect_err(reason);
            assert!(error.contains(reason), "{error}");
        }
    }
}
