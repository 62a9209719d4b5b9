//! The log's file: appended to, cut back on resume, never with a line twice or out of order.
//!
//! A run needs no line of it: if the log is damaged or lost, what can be read is kept, and the run continues.

use ambitus_families::error::RunError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ambitus_store::{open_file, open_own_file, write_atomic};
use thiserror::Error;

use super::{History, Update};

/// A line is about 400 bytes; a longer one is not ours.
const MAX_LINE: u64 = 4096;
/// Bytes of a log that are looked through, at most: of a short run and of a long one.
const MAX_SEARCHED: [u64; 2] = [64 << 20, 4 << 30];
/// Bytes of lines that wait for a full disk; later ones are lost.
const MAX_WAITING: usize = 1 << 20;
/// Gaps that a message lists.
const LISTED: usize = 8;

/// A log that cannot be written.
#[derive(Debug, Error)]
#[error("{}: {source}", file.display())]
pub struct LogError {
    /// The log.
    pub file: PathBuf,
    /// The file system's answer.
    pub source: io::Error,
}

/// `metrics.jsonl`, open for appending.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    /// Bytes of the lines that are written whole; what is behind them is a torn line.
    end: u64,
    /// Lines that are not.
    waiting: Vec<u8>,
}

/// A log that a run resumes.
#[derive(Debug)]
pub struct Resumed {
    /// The log.
    pub log: Log,
    /// What its lines say.
    pub history: History,
    /// What of it was lost, for people.
    pub note: Option<String>,
}

impl From<LogError> for RunError {
    fn from(e: LogError) -> RunError {
        RunError::io(&e.file, "cannot write the log", e.source)
    }
}

impl Log {
    /// Returns the log of a run of `updates` after `update`, 0 for one that begins: later lines are cut off. Where lines
    /// 1..=`update` are not all there ([`Log::sync`] before a checkpoint sees to it), those that are make up a new log, and the
    /// old one is moved aside.
    ///
    /// # Errors
    /// A file that cannot be opened, moved or written.
    pub fn resume(path: &Path, update: u64, updates: u64) -> Result<Resumed, LogError> {
        let io = |source| LogError { file: path.into(), source };
        let there = path.symlink_metadata().is_ok();
        let mut history = History::new(updates);
        let found = match open_own_file(path) {
            Ok(file) => {
                if let Some(end) = intact(&file, update, &mut history) {
                    return Log::cut(file, path, end).map(|log| Resumed { log, history, note: None });
                }
                scan(&file, update)
            }
            Err(e) => match e.source {
                Some(source) => return Err(io(source)),
                None => Found { lines: Vec::new(), fault: e.what },
            },
        };
        let why = if there { found.fault } else { "is missing".to_owned() };
        let aside = if there {
            format!("; what was there is {} now", move_aside(path).map_err(io)?)
        } else {
            String::new()
        };
        let mut text = Vec::new();
        let mut history = History::new(updates);
        for line in &found.lines {
            history.add(line);
            write_line(&mut text, line).map_err(io)?;
        }
        write_atomic(path, &text).map_err(|e| io(e.source.unwrap_or_else(|| io::Error::other(e.what))))?;
        let file = open_own_file(path).map_err(|e| io(io::Error::other(e.to_string())))?;
        let lost = match gaps(&found.lines, update) {
            none if none.is_empty() => "no line is lost".to_owned(),
            gaps => format!("the run continues without the lines of updates {gaps}"),
        };
        let note = Some(format!("{}: {why}; {lost}{aside}", path.display()));
        let log = Log::cut(file, path, text.len() as u64)?;
        Ok(Resumed { log, history, note })
    }

    /// Returns what the log of a run of `updates` says, as far as it can be read; a missing one says nothing.
    ///
    /// # Errors
    /// A file that cannot be opened or read.
    pub fn read(path: &Path, updates: u64) -> Result<History, RunError> {
        let mut history = History::new(updates);
        let file = match open_file(path) {
            Ok((file, _)) => file,
            Err(_) if path.symlink_metadata().is_err() => return Ok(history),
            Err(e) => return Err(e.into()),
        };
        let (mut reader, mut line, mut last) = (BufReader::new(file), Vec::new(), 0);
        while next_line(&mut reader, &mut line).map_err(|e| RunError::io(path, "cannot read", e))? > 0 {
            // Damaged lines are passed over, and those that do not go on from the ones before.
            if let Ok(update) = serde_json::from_slice::<Update>(&line)
                && update.update > last
            {
                last = update.update;
                history.add(&update);
            }
        }
        Ok(history)
    }

    fn cut(file: File, path: &Path, end: u64) -> Result<Log, LogError> {
        let cut = file.set_len(end).and_then(|()| file.sync_all());
        cut.map_err(|source| LogError { file: path.into(), source })?;
        Ok(Log { file, path: path.into(), end, waiting: Vec::with_capacity(MAX_LINE as usize) })
    }

    /// Appends a line, in one write. On a full disk lines wait for room. Allocates nothing where there is some.
    ///
    /// # Errors
    /// A file that cannot be written for another reason.
    pub fn append(&mut self, update: &Update) -> Result<(), LogError> {
        let written = match self.waiting.len() < MAX_WAITING {
            true => write_line(&mut self.waiting, update),
            false => Ok(()),
        };
        match written.and_then(|()| self.write()) {
            Err(e) if ambitus_families::error::is_full(&e) => Ok(()),
            done => done.map_err(|source| LogError { file: self.path.clone(), source }),
        }
    }

    /// Returns once every line is on the disk: to be called before a checkpoint becomes valid.
    ///
    /// # Errors
    /// A file that cannot be written, also for want of room.
    pub fn sync(&mut self) -> Result<(), LogError> {
        let synced = self.write().and_then(|()| self.file.sync_data());
        synced.map_err(|source| LogError { file: self.path.clone(), source })
    }

    fn write(&mut self) -> io::Result<()> {
        // At a place of its own: a write that failed may have left a part of it.
        self.file.write_all_at(&self.waiting, self.end)?;
        self.end += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

fn write_line(text: &mut Vec<u8>, update: &Update) -> io::Result<()> {
    serde_json::to_writer(&mut *text, update)?;
    text.push(b'\n');
    Ok(())
}

/// Gives the file, link or folder a name that nothing has.
fn move_aside(path: &Path) -> io::Result<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let free = |name: &String| path.with_file_name(name).symlink_metadata().is_err();
    let names = (1..).map(|n: u64| format!("{name}.damaged-{n}"));
    let aside = names.into_iter().find(free).unwrap_or_default();
    std::fs::rename(path, path.with_file_name(&aside))?;
    Ok(aside)
}

/// Returns the numbers up to `update` that have no line, as `3, 7 to 9`.
fn gaps(lines: &[Update], update: u64) -> String {
    let ends = lines.iter().map(|l| l.update).chain([update.saturating_add(1)]);
    let starts = [0].into_iter().chain(lines.iter().map(|l| l.update));
    let gaps = starts.zip(ends).filter(|(a, b)| a + 1 < *b);
    let mut shown: Vec<String> = gaps
        .take(LISTED + 1)
        .map(|(a, b)| if a + 2 == b { format!("{}", a + 1) } else { format!("{} to {}", a + 1, b - 1) })
        .collect();
    if shown.len() > LISTED {
        shown[LISTED] = "…".to_owned();
    }
    shown.join(", ")
}

/// Returns where line `update` ends, if a log begins with lines 1..=`update` and nothing else; they are added to `history`.
fn intact(file: &File, update: u64, history: &mut History) -> Option<u64> {
    let mut reader = BufReader::new(file);
    let (mut line, mut end) = (Vec::new(), 0);
    for number in 1..=update {
        end += next_line(&mut reader, &mut line).ok()?;
        let read = serde_json::from_slice::<Update>(&line).ok()?;
        if line.last() != Some(&b'\n') || read.update != number {
            return None;
        }
        history.add(&read);
    }
    Some(end)
}

/// Hands the lines after an update to `take`, of a log that was resumed.
///
/// # Errors
/// A file that cannot be read, and what `take` returns.
pub fn each_after(
    path: &Path,
    update: u64,
    take: &mut dyn FnMut(&Update) -> io::Result<()>,
) -> Result<(), LogError> {
    let mut each = || {
        let mut reader = BufReader::new(open_file(path).map_err(io::Error::other)?.0);
        let mut line = Vec::new();
        while next_line(&mut reader, &mut line)? > 0 {
            let line: Update = serde_json::from_slice(&line)?;
            if line.update > update {
                take(&line)?;
            }
        }
        Ok(())
    };
    each().map_err(|source| LogError { file: path.into(), source })
}

/// What a damaged log holds.
struct Found {
    /// Lines up to an update, each of a later one than the line before.
    lines: Vec<Update>,
    /// The first thing that is wrong.
    fault: String,
}

/// Looks for the lines up to `update` in a log that does not begin with them.
fn scan(mut file: &File, update: u64) -> Found {
    let most = MAX_LINE.saturating_mul(update).clamp(MAX_SEARCHED[0], MAX_SEARCHED[1]);
    let (mut lines, mut first) = (Vec::new(), file.rewind().err().map(|e| e.to_string()));
    let mut reader = BufReader::new(file.take(most));
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        let last = lines.last().map_or(0, |l: &Update| l.update);
        number += 1;
        match next_line(&mut reader, &mut line) {
            Ok(0) => {
                return Found { lines, fault: first.unwrap_or_else(|| format!("ends after update {last}")) };
            }
            Ok(_) => {}
            Err(e) => return Found { lines, fault: first.unwrap_or_else(|| format!("{number}: {e}")) },
        }
        let torn = (line.last() != Some(&b'\n')).then(|| "the line does not end".to_owned());
        let wrong = match serde_json::from_slice::<Update>(&line) {
            Ok(u) => {
                let jumps =
                    (u.update != last + 1).then(|| format!("update {} follows update {last}", u.update));
                take(&mut lines, u, update);
                torn.or(jumps)
            }
            Err(e) => torn.or(Some(e.to_string())),
        };
        first = first.or(wrong.map(|why| format!("{number}: {why}")));
    }
}

/// Keeps a line, if it is of a later update than those before. A number that is damaged may have jumped ahead: what comes after
/// it shows that, and takes its place.
fn take(lines: &mut Vec<Update>, line: Update, update: u64) {
    let jumped = |lines: &[Update]| match lines {
        [.., a, b] => b.update != a.update + 1,
        [a] => a.update != 1,
        [] => false,
    };
    let later = |lines: &[Update]| lines.last().is_none_or(|last| last.update < line.update);
    while !later(lines) && jumped(lines) {
        lines.pop();
    }
    if line.update <= update && later(lines) {
        lines.push(line);
    }
}

/// Returns the bytes of the next line, of which the first [`MAX_LINE`] are given.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let mut n = reader.take(MAX_LINE).read_until(b'\n', line)? as u64;
    if n == MAX_LINE && line.last() != Some(&b'\n') {
        n += reader.skip_until(b'\n')? as u64;
    }
    Ok(n)
}

#[cfg(test)]
mod tests;
