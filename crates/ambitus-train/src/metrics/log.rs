//! The log's file: appended to, cut back on resume, never with a line twice or out of order.
//!
//! A run needs no line of it: what of a damaged or lost log can be read is kept, and the run goes on.

use ambitus_families::error::RunError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ambitus_store::{open_own_file, write_atomic};
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

/// A log that a run goes on with.
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
    /// The log of a run of `updates` after `update`, 0 for one that begins: later lines are cut off. Where lines 1..=`update` are not all
    /// there ([`Log::sync`] before a checkpoint sees to it), those that are make up a new log, and the old one is moved aside.
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
            gaps => format!("the run goes on without the lines of updates {gaps}"),
        };
        let note = Some(format!("{}: {why}; {lost}{aside}", path.display()));
        let log = Log::cut(file, path, text.len() as u64)?;
        Ok(Resumed { log, history, note })
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

/// `3, 7 to 9`: the numbers up to `update` of which there is no line.
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

/// Where line `update` ends, if a log begins with lines 1..=`update` and nothing else; they are added to `history`.
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
                let jumps = u.update != last + 1;
                take(&mut lines, u, update);
                torn.or(jumps.then(|| format!("update {} follows update {last}", u.update)))
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

/// Bytes of the next line, of which the first [`MAX_LINE`] are given.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let mut n = reader.take(MAX_LINE).read_until(b'\n', line)? as u64;
    if n == MAX_LINE && line.last() != Some(&b'\n') {
        n += reader.skip_until(b'\n')? as u64;
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sample_update;
    use std::fs;
    use std::io::Write;

    fn log_of(n: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = resume(&path, 0).0;
        (1..=n).for_each(|i| log.append(&sample_update(i)).unwrap());
        log.sync().unwrap();
        (folder, path)
    }

    /// The log, its lines, and what was lost; what the run remembers agrees with them.
    fn resume(path: &Path, update: u64) -> (Log, Vec<Update>, Option<String>) {
        let Resumed { log, history, note } = Log::resume(path, update, 50).unwrap();
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<Update> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let summary = history.summary();
        assert_eq!(summary.updates, lines.last().map_or(0, |l| l.update));
        assert_eq!(summary.frames, lines.iter().map(|l| l.frames).sum::<u64>());
        (log, lines, note)
    }

    fn numbers(lines: &[Update]) -> Vec<u64> {
        lines.iter().map(|l| l.update).collect()
    }

    #[test]
    fn resume_continues_as_if_never_stopped() {
        let (_kept, whole) = log_of(9);
        let whole = fs::read(whole).unwrap();
        for resumed in 0..=6 {
            let (folder, path) = log_of(6);
            let mut torn = fs::OpenOptions::new().append(true).open(&path).unwrap();
            torn.write_all(&whole[..37]).unwrap();
            let (mut log, lines, note) = resume(&path, resumed);
            assert_eq!((lines.len() as u64, note), (resumed, None));
            (resumed + 1..=9).for_each(|i| log.append(&sample_update(i)).unwrap());
            assert_eq!(fs::read(&path).unwrap(), whole);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn every_cut_is_gone_on_with() {
        let (_kept, path) = log_of(3);
        let whole = fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            // Of a line that lacks only its end, nothing is lost.
            let there = whole[..(cut + 1).min(whole.len())].iter().filter(|b| **b == b'\n').count() as u64;
            let (mut log, lines, note) = resume(&path, 3);
            assert_eq!(numbers(&lines), (1..=there).collect::<Vec<_>>());
            assert_eq!(note.is_some(), cut < whole.len(), "{note:?}");
            log.append(&sample_update(4)).unwrap();
            assert_eq!(numbers(&resume(&path, 4).1), [numbers(&lines), vec![4]].concat());
        }
    }

    /// What a log of 50 lines may have met: name, change, lines that must be kept, words of the note.
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path, Vec<&str>), Vec<u64>, &'a str);

    #[test]
    fn no_damage_ends_a_run() {
        let write = |path: &Path, lines: &[&str]| fs::write(path, lines.concat()).unwrap();
        let without = |gone: &[u64]| (1..=50).filter(|n| !gone.contains(n)).collect::<Vec<u64>>();
        let replaced = |path: &Path, lines: &[&str], n: usize, by: &[u8]| {
            let (before, after) = (lines[..n - 1].concat(), lines[n..].concat());
            fs::write(path, [before.as_bytes(), by, after.as_bytes()].concat()).unwrap();
        };
        let renumbered = |path: &Path, lines: &[&str], n: usize, to: u64| {
            let by = lines[n - 1].replacen(&format!("\"update\":{n}"), &format!("\"update\":{to}"), 1);
            replaced(path, lines, n, by.as_bytes());
        };
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        fs::write(&target, "not ours\n").unwrap();
        let cases: [Damage<'_>; 16] = [
            ("lost", &|p, _| fs::remove_file(p).unwrap(), vec![], "is missing"),
            ("emptied", &|p, _| fs::write(p, "").unwrap(), vec![], "ends after update 0"),
            (
                "a bit of a key",
                &|p, l| replaced(p, &l, 7, l[6].replacen("loss", "lnss", 1).as_bytes()),
                without(&[7]),
                "7: missing field `loss`",
            ),
            (
                "a number too high",
                &|p, l| renumbered(p, &l, 5, 37),
                without(&[5]),
                "5: update 37 follows update 4",
            ),
            (
                "a number too low",
                &|p, l| renumbered(p, &l, 30, 3),
                without(&[30]),
                "30: update 3 follows update 29",
            ),
            (
                "the last as number",
                &|p, l| renumbered(p, &l, 5, 50),
                without(&[5]),
                "5: update 50 follows update 4",
            ),
            (
                "cut",
                &|p, l| fs::write(p, &l.concat()[..l[..20].concat().len() + 9]).unwrap(),
                (1..=20).collect(),
                "does not end",
            ),
            (
                "its beginning lost",
                &|p, l| write(p, &l[10..]),
                (11..=50).collect(),
                "1: update 11 follows update 0",
            ),
            ("a line missing", &|p, l| write(p, &[&l[..8], &l[9..]].concat()), without(&[9]), "updates 9;"),
            ("a line twice", &|p, l| write(p, &[&l[..9], &l[8..]].concat()), without(&[]), "no line is lost"),
            (
                "two lines in one",
                &|p, l| replaced(p, &l, 12, l[11].trim_end().as_bytes()),
                without(&[12, 13]),
                "12 to 13",
            ),
            ("NUL bytes", &|p, l| replaced(p, &l, 40, &[0; 5000]), without(&[40, 41]), "40 to 41"),
            (
                "a line of 80 MB",
                &|p, l| replaced(p, &l, 2, &[vec![b'x'; 80 << 20], vec![b'\n']].concat()),
                vec![1],
                "2 to 50",
            ),
            (
                "a folder",
                &|p, _| {
                    fs::remove_file(p).unwrap();
                    fs::create_dir(p).unwrap()
                },
                vec![],
                "is not a file",
            ),
            (
                "a pipe",
                &|p, _| {
                    fs::remove_file(p).unwrap();
                    assert!(std::process::Command::new("mkfifo").arg(p).status().unwrap().success());
                },
                vec![],
                "is not a file",
            ),
            (
                "a link",
                &|p, _| {
                    fs::remove_file(p).unwrap();
                    std::os::unix::fs::symlink(&target, p).unwrap()
                },
                vec![],
                "is not a file",
            ),
        ];
        let (_kept, whole) = log_of(50);
        let text = fs::read_to_string(whole).unwrap();
        for (name, damage, kept, words) in cases {
            let (folder, path) = log_of(50);
            fs::write(folder.path().join("metrics.jsonl.damaged-1"), "of an earlier time").unwrap();
            damage(&path, text.split_inclusive('\n').collect());
            let was = path.symlink_metadata().ok().map(|m| m.file_type());
            let (mut log, lines, note) = resume(&path, 50);
            let note = note.unwrap_or_else(|| panic!("{name}: nothing is said"));
            assert!(note.contains(words), "{name}: {note}");
            assert_eq!(numbers(&lines), kept, "{name}: {note}");
            log.append(&sample_update(51)).unwrap();
            log.sync().unwrap();
            // What was there is there still, and the next time there is nothing to say.
            let aside = folder.path().join("metrics.jsonl.damaged-2").symlink_metadata();
            assert_eq!(aside.ok().map(|m| m.file_type()), was, "{name}");
            assert_eq!(
                fs::read_to_string(folder.path().join("metrics.jsonl.damaged-1")).unwrap(),
                "of an earlier time"
            );
            let after = fs::read_to_string(&path).unwrap();
            assert_eq!(after.lines().count(), kept.len() + 1, "{name}");
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "not ours\n");
    }

    #[test]
    fn what_follows_the_checkpoint_is_cut_unread() {
        let (folder, path) = log_of(6);
        let want = fs::read(&path).unwrap();
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&[0xff; 9000]).unwrap();
        // A hole that would take minutes to read.
        file.set_len(1 << 40).unwrap();
        let (_, lines, note) = resume(&path, 6);
        assert_eq!((lines.len(), note), (6, None));
        assert_eq!(fs::read(&path).unwrap(), want);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn gaps_are_listed_and_bounded() {
        let of = |numbers: &[u64]| numbers.iter().map(|n| sample_update(*n)).collect::<Vec<_>>();
        assert_eq!(gaps(&of(&[1, 2, 4, 5, 9]), 11), "3, 6 to 8, 10 to 11");
        assert_eq!(gaps(&of(&[]), 3), "1 to 3");
        assert_eq!(gaps(&of(&[1, 2]), 2), "");
        let odd: Vec<u64> = (0..100).map(|n| 2 * n + 1).collect();
        assert_eq!(gaps(&of(&odd), 199), "2, 4, 6, 8, 10, 12, 14, 16, …");
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null() {
        let (_kept, path) = log_of(0);
        let mut log = resume(&path, 0).0;
        log.append(&Update { loss: f64::NAN, grad_norm: f64::INFINITY, ..sample_update(1) }).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"loss\":null") && text.contains("\"grad_norm\":null"), "{text}");
        assert!(resume(&path, 1).1[0].loss.is_nan());
    }

    /// A device on which there is never room.
    #[test]
    fn lines_wait_for_room() {
        let (_kept, path) = log_of(2);
        let mut log = resume(&path, 2).0;
        let real =
            std::mem::replace(&mut log.file, fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        for n in 3..=5 {
            log.append(&sample_update(n)).unwrap();
        }
        let full = ambitus_families::error::RunError::from(log.sync().unwrap_err());
        assert!(matches!(full, ambitus_families::error::RunError::Full(_)), "{full:?}");
        // However long that takes, no more waits than fits.
        for _ in 0..2 * MAX_WAITING / 300 {
            log.append(&sample_update(6)).unwrap();
        }
        assert!(log.waiting.len() < MAX_WAITING + MAX_LINE as usize);
        log.file = real;
        log.sync().unwrap();
        assert_eq!(numbers(&resume(&path, 5).1), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn mutated_logs_never_end_a_run() {
        let (_kept, path) = log_of(3);
        let whole = fs::read(&path).unwrap();
        arbtest::arbtest(|u| {
            let mut bytes = whole.clone();
            for _ in 0..u.int_in_range(1..=4)? {
                let at = u.choose_index(bytes.len())?;
                bytes[at] = u.arbitrary()?;
            }
            fs::write(&path, &bytes).unwrap();
            let update = u.int_in_range(0..=3)?;
            let (_, found, _) = resume(&path, update);
            assert!(found.is_sorted_by(|a, b| a.update < b.update));
            assert!(found.iter().all(|l| (1..=update).contains(&l.update)));
            Ok(())
        })
        .budget_ms(200);
    }
}
