//! The log's file: appended to, cut back on resume, never with a line twice or missing.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Update;

/// A line is about 400 bytes; a longer one is not ours.
const MAX_LINE: u64 = 4096;

/// A log that cannot be continued or read.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file system's answer.
    #[error("{}: {source}", file.display())]
    Io {
        /// The log.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that is not an update, with good lines after it.
    #[error("{}:{line}: {why}: the log is damaged; move it away to go on without the earlier lines", file.display())]
    Damaged {
        /// The log.
        file: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The log ends before the update that the checkpoint was made after.
    #[error("{}: ends after update {last}, but the checkpoint is of update {resumed}: move it away to go on without", file.display())]
    Short {
        /// The log.
        file: PathBuf,
        /// Its last update.
        last: u64,
        /// The checkpoint's.
        resumed: u64,
    },
}

/// `metrics.jsonl`, open for appending.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    line: Vec<u8>,
}

impl Log {
    /// Starts an empty log; an old one at this path is emptied.
    pub fn create(path: &Path) -> Result<Log, LogError> {
        let file = File::create(path).map_err(|source| LogError::Io { file: path.into(), source })?;
        Ok(Log::over(file, path))
    }

    /// Continues the log of a run after `update`: later lines and a torn last one are cut off. Returns the kept lines.
    ///
    /// A missing file is an empty log. Lines 1..=`update` must all be there ([`Log::sync`] before a checkpoint sees to it).
    pub fn resume(path: &Path, update: u64) -> Result<(Log, Vec<Update>), LogError> {
        let io = |source| LogError::Io { file: path.into(), source };
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(io)?;
        let (mut kept, ends) = scan(&file, path)?;
        let keep = kept.partition_point(|u| u.update <= update);
        kept.truncate(keep);
        let last = kept.last().map_or(0, |u| u.update);
        if last < update {
            return Err(LogError::Short { file: path.into(), last, resumed: update });
        }
        let end = keep.checked_sub(1).map_or(0, |i| ends[i]);
        file.set_len(end).map_err(io)?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(end)).map_err(io)?;
        file.sync_all().map_err(io)?;
        Ok((Log::over(file, path), kept))
    }

    fn over(file: File, path: &Path) -> Log {
        Log { file, path: path.into(), line: Vec::with_capacity(MAX_LINE as usize) }
    }

    /// Appends a line, in one write. Allocates nothing.
    pub fn append(&mut self, update: &Update) -> Result<(), LogError> {
        self.line.clear();
        let written = serde_json::to_writer(&mut self.line, update).map_err(std::io::Error::other);
        self.line.push(b'\n');
        let written = written.and_then(|()| self.file.write_all(&self.line));
        written.map_err(|source| LogError::Io { file: self.path.clone(), source })
    }

    /// Returns once every line is on the disk: to be called before a checkpoint becomes valid.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.file.sync_data().map_err(|source| LogError::Io { file: self.path.clone(), source })
    }
}

/// All whole lines of a log. A torn last line is left out.
pub fn read_log(path: &Path) -> Result<Vec<Update>, LogError> {
    let file = File::open(path).map_err(|source| LogError::Io { file: path.into(), source })?;
    Ok(scan(&file, path)?.0)
}

/// The updates of a log and where each one's line ends. Whatever follows the last good line is left out if it is one line,
/// and damage if it is more; updates must count 1, 2, 3, …
fn scan(file: &File, path: &Path) -> Result<(Vec<Update>, Vec<u64>), LogError> {
    let io = |source| LogError::Io { file: path.into(), source };
    let damaged =
        |line: usize, why: String| LogError::Damaged { file: path.into(), line: line as u64 + 1, why };
    let mut reader = BufReader::new(file);
    let (mut updates, mut ends, mut end, mut line) = (Vec::<Update>::new(), Vec::new(), 0, Vec::new());
    loop {
        line.clear();
        let n = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(io)? as u64;
        if n == 0 {
            return Ok((updates, ends));
        }
        let torn = line.last() != Some(&b'\n');
        let parsed = match serde_json::from_slice::<Update>(&line) {
            _ if torn => Err("the line does not end".to_owned()),
            Err(e) => Err(e.to_string()),
            Ok(u) if u.update != updates.len() as u64 + 1 => {
                Err(format!("update {} follows update {}", u.update, updates.len()))
            }
            Ok(u) => Ok(u),
        };
        match parsed {
            Ok(update) => {
                end += n;
                updates.push(update);
                ends.push(end);
            }
            Err(_) if reader.fill_buf().map_err(io)?.is_empty() => return Ok((updates, ends)),
            Err(why) => return Err(damaged(updates.len(), why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sample_update;

    fn log_of(n: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = Log::create(&path).unwrap();
        (1..=n).for_each(|i| log.append(&sample_update(i)).unwrap());
        log.sync().unwrap();
        (folder, path)
    }

    #[test]
    fn resume_continues_as_if_never_stopped() {
        let (_kept, whole) = log_of(9);
        let whole = std::fs::read(whole).unwrap();
        for resumed in 0..=6 {
            let (_kept, path) = log_of(6);
            let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
            torn.write_all(&whole[..37]).unwrap();
            let (mut log, kept) = Log::resume(&path, resumed).unwrap();
            assert_eq!(kept.len() as u64, resumed);
            (resumed + 1..=9).for_each(|i| log.append(&sample_update(i)).unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn every_cut_is_read() {
        let (_kept, path) = log_of(3);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let lines = whole[..cut].iter().filter(|b| **b == b'\n').count();
            assert_eq!(read_log(&path).unwrap().len(), lines);
        }
    }

    #[test]
    fn damage_is_named() {
        let (_kept, path) = log_of(4);
        assert!(matches!(Log::resume(&path, 5), Err(LogError::Short { last: 4, resumed: 5, .. })));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"update\":2", "\"update\":3", 1)).unwrap();
        let why = Log::resume(&path, 4).unwrap_err().to_string();
        assert!(why.contains("metrics.jsonl:2: update 3 follows update 1"), "{why}");
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        assert!(matches!(read_log(&path), Err(LogError::Damaged { line: 1, .. })));
        assert!(read_log(path.parent().unwrap()).is_err());
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null() {
        let (_kept, path) = log_of(0);
        let mut log = Log::create(&path).unwrap();
        log.append(&Update { loss: f64::NAN, grad_norm: f64::INFINITY, ..sample_update(1) }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"loss\":null") && text.contains("\"grad_norm\":null"), "{text}");
        assert!(read_log(&path).unwrap()[0].loss.is_nan());
    }

    #[test]
    fn mutated_logs_never_panic() {
        let (_kept, path) = log_of(3);
        let whole = std::fs::read(&path).unwrap();
        arbtest::arbtest(|u| {
            let mut bytes = whole.clone();
            let at = u.choose_index(bytes.len())?;
            bytes[at] = u.arbitrary()?;
            std::fs::write(&path, &bytes).unwrap();
            let _ = Log::resume(&path, u.int_in_range(0..=3)?);
            Ok(())
        })
        .budget_ms(200);
    }
}
