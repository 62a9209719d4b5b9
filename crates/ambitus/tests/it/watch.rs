//! What people see while a run trains: `train` and `watch` on terminals of any width, and in pipes.

use crate::common;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WIDTHS: [u16; 3] = [60, 80, 200];
const SHORT: &str = "batch: {clips: 3}\nmicro_batch: 200\nvalidate_every: 2\nthreads: 2\nsave_every: 0";
/// Waiting for what does come.
const PATIENCE: Duration = Duration::from_secs(240);

/// The binary, and what it has printed so far.
struct Running {
    child: Child,
    printed: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Running {
    fn start(mut command: Command, mut from: File) -> Running {
        let child = command.spawn().expect("the binary runs");
        // With it goes this process's end for writing.
        drop(command);
        let printed = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&printed);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // A terminal that nobody writes to any more is an error to its reader.
            while let Ok(n @ 1..) = from.read(&mut chunk) {
                into.lock().expect("no panic").extend_from_slice(&chunk[..n]);
            }
        });
        Running { child, printed, reader }
    }

    /// On a terminal: stdout and stderr, or stderr alone.
    fn on_terminal(dir: &Path, args: &[&str], columns: u16, rows: u16) -> Running {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut ours, mut its) = (0, 0);
        // SAFETY: all pointers are to live values or null; the two descriptors are then owned here alone.
        let (ours, its) = unsafe {
            let (name, modes) = (std::ptr::null_mut(), std::ptr::null_mut());
            assert_eq!(libc::openpty(&mut ours, &mut its, name, modes, (&raw const size).cast_mut()), 0);
            // Processes of other tests must not keep it open.
            [ours, its].iter().for_each(|fd| _ = libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC));
            (File::from(OwnedFd::from_raw_fd(ours)), OwnedFd::from_raw_fd(its))
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
        command.current_dir(dir).args(args).stdin(Stdio::null());
        command.stdout(its.try_clone().expect("a terminal")).stderr(its);
        Running::start(command, ours)
    }

    /// With both in one pipe.
    fn in_pipe(dir: &Path, args: &[&str]) -> Running {
        let (ours, its) = std::io::pipe().expect("a pipe");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
        command.current_dir(dir).args(args).stdin(Stdio::null());
        command.stdout(its.try_clone().expect("a pipe")).stderr(its);
        Running::start(command, File::from(OwnedFd::from(ours)))
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.printed.lock().expect("no panic")).into_owned()
    }

    /// Waits for the end: exit code, and all that was printed.
    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().expect("a status").code().unwrap_or(-1);
        self.reader.join().expect("no panic");
        let printed = std::mem::take(&mut *self.printed.lock().expect("no panic"));
        (code, String::from_utf8(printed).expect("text"))
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is ours, and has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

/// Waits until it is so.
#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Columns of a character that these tests print.
fn width(c: char) -> usize {
    if ('\u{2e80}'..='\u{ffef}').contains(&c) { 2 } else { 1 }
}

/// The second cell of a wide character.
const HALF: char = '\0';

fn text(cells: &[char]) -> String {
    cells.iter().filter(|c| **c != HALF).collect()
}

/// What a terminal of so many columns shows at last, as whole lines, and what was overwritten.
fn shown(bytes: &str, columns: u16) -> (Vec<String>, Vec<String>) {
    let columns = usize::from(columns);
    // Cells by row; whether the row goes on in the next one; the overwritten text.
    let mut rows: Vec<(Vec<char>, bool)> = vec![(Vec::new(), false)];
    let (mut row, mut at, mut overwritten) = (0, 0, Vec::new());
    let mut chars = bytes.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                let text = text(&rows[row].0);
                if chars.peek() != Some(&'\n') {
                    // What is overwritten fits in its row, with a column to spare.
                    let wrapped = row > 0 && rows[row - 1].1;
                    assert!(at < columns && !wrapped, "{at} of {columns} columns: {text:?}");
                    let text = text.trim_end().to_owned();
                    (!text.is_empty()).then(|| overwritten.push(text));
                }
                at = 0;
            }
            '\n' => {
                row += 1;
                if row == rows.len() {
                    rows.push((Vec::new(), false));
                }
            }
            '\u{1b}' => {
                assert_eq!((chars.next(), chars.next()), (Some('['), Some('A')), "an order to the terminal");
                row = row.checked_sub(1).expect("a row above");
            }
            c => {
                assert!(!c.is_control(), "{c:?}");
                if at + width(c) > columns {
                    rows[row].1 = true;
                    (row, at) = (row + 1, 0);
                    rows.resize(rows.len().max(row + 1), (Vec::new(), false));
                }
                let cells = &mut rows[row].0;
                // A line begins where nothing stands.
                assert!(at > 0 || c == ' ' || cells.iter().all(|c| *c == ' '), "over {cells:?}");
                cells.resize(cells.len().max(at + width(c)), ' ');
                cells[at] = c;
                cells[at + 1..at + width(c)].fill(HALF);
                at += width(c);
            }
        }
    }
    let mut lines = vec![String::new()];
    for (cells, goes_on) in rows {
        lines.last_mut().expect("a line").push_str(&text(&cells));
        if !goes_on {
            lines.push(String::new());
        }
    }
    (lines.iter().map(|l| l.trim_end().to_owned()).filter(|l| !l.is_empty()).collect(), overwritten)
}

/// Lines of a pipe, each whole and of nothing but text.
#[track_caller]
fn lines(text: &str) -> Vec<String> {
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.ends_with('\n'), "{text:?}");
    text.lines().map(|l| l.trim_end().to_owned()).filter(|l| !l.is_empty()).collect()
}

fn is_progress(line: &str) -> bool {
    line.starts_with("preparing ") || (line.starts_with("update ") && line.contains(" · loss "))
}

/// What two runs of the same say alike: no numbers, no folder, nothing about how long a step took.
fn alike(lines: &[String], dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let kept = lines.iter().filter(|line| !is_progress(line) && !line.contains(" x the median of "));
    let mut out = Vec::new();
    for line in kept {
        let mut text = String::new();
        for c in line.replace(&dir, "DIR").chars() {
            match c {
                '0'..='9' | '.' | '+' | '-' if text.ends_with('#') => {}
                '0'..='9' | '+' | '-' => text.push('#'),
                c => text.push(c),
            }
        }
        out.push(text);
    }
    out
}

/// Clips, one of which has a long name of wide characters and one a name that gives orders.
fn voice(dir: &Path) {
    let data = common::voice(dir, 9);
    for (old, new) in
        [("clip03", "一段很长的声音的名字".repeat(4)), ("clip05", "clip\u{1b}[2J\u{7}05".to_owned())]
    {
        for end in ["wav", "txt"] {
            fs::rename(data.join(format!("{old}.{end}")), data.join(format!("{new}.{end}"))).expect("a clip");
        }
    }
}

#[test]
fn training_shows_one_clean_line_of_any_width_and_loses_nothing() {
    let train = |start: &dyn Fn(&Path, &[&str]) -> Running| {
        let dir = tempfile::tempdir().expect("a folder");
        voice(dir.path());
        let recipe = common::recipe(dir.path(), "run", &format!("{SHORT}\nupdates: 6"));
        let args = ["train", &recipe.display().to_string(), "--memory", "1GiB", "--json"];
        let (code, text) = start(dir.path(), &args).end();
        assert_eq!(code, 0, "{text}");
        (dir, text)
    };
    let (dir, text) = train(&|dir, args| Running::in_pipe(dir, args));
    let piped = alike(&lines(&text), dir.path());
    assert!(piped.iter().any(|l| l.starts_with("report") && l.contains("report.html")), "{text}");
    assert!(piped.iter().any(|l| l.contains("\"loss_last\"")), "{text}");
    for columns in WIDTHS {
        let (dir, text) = train(&|dir, args| Running::on_terminal(dir, args, columns, 24));
        let (lines, overwritten) = shown(&text, columns);
        assert_eq!(alike(&lines, dir.path()), piped, "{columns}");
        assert!(!lines.iter().any(|line| is_progress(line)), "{columns}: {lines:?}");
        assert!(overwritten.iter().all(|line| is_progress(line)), "{columns}: {overwritten:?}");
        let count = |words: &str| overwritten.iter().filter(|l| l.contains(words)).count();
        // Every update was shown, and every clip; the last of one piece is seen at every width.
        assert!(count("update ") >= 6 && count("preparing ") >= 8, "{columns}: {overwritten:?}");
        assert!(count("一段很长的声音") > 0 && count("clip?[2J?05") > 0, "{columns}: {overwritten:?}");
        assert_eq!(count(" · epoch ") > 0, columns == 200, "{columns}: {overwritten:?}");
        assert!(count(" left") >= 6, "{columns}: {overwritten:?}");
    }
}

fn updates(run: &Path) -> usize {
    fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |log| log.lines().count())
}

/// Validations that were told, by update.
fn validated(lines: &[String]) -> BTreeSet<u64> {
    let update = |l: &String| l.strip_prefix("update ")?.split_once(": validation loss ")?.0.parse().ok();
    lines.iter().filter_map(update).collect()
}

/// What lies in a folder: paths, lengths, and when they were written.
fn state(folder: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let (path, meta) = entry.and_then(|e| Ok((e.path(), e.metadata()?))).expect("an entry");
        all.push((path.clone(), meta.len(), meta.modified().expect("a time")));
        if meta.is_dir() {
            all.extend(state(&path));
        }
    }
    all.sort();
    all
}

/// Starts a run that would go on for long.
fn long_run(dir: &Path, args: &[&str]) -> Running {
    let train = Running::in_pipe(dir, args);
    until("a validation", || train.so_far().contains("update 2: validation loss "));
    train
}

#[test]
fn a_run_is_watched_from_outside() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    fs::create_dir(dir.join("runs")).expect("a folder");
    let recipe = common::recipe(dir, "runs/长", &format!("{SHORT}\nupdates: 100000\nsamples: false"));
    let run = dir.join("runs/长");
    let mut train = long_run(dir, &["train", &recipe.display().to_string(), "--memory", "1GiB"]);

    let watch = ["watch", "runs/长"];
    let on: Vec<Running> = WIDTHS.iter().map(|w| Running::on_terminal(dir, &watch, *w, 24)).collect();
    let piped = Running::in_pipe(dir, &watch);
    let folder = Running::on_terminal(dir, &["watch", "runs"], 60, 24);
    // As Ctrl-C, which a shell in the background has ignored: it ends the looking on, not the run.
    let asked = Running::on_terminal(dir, &watch, 60, 24);
    until("a line", || asked.so_far().contains("loss"));
    asked.signal(libc::SIGTERM);
    let (code, text) = asked.end();
    assert_eq!(code, 0, "{text:?}");
    assert!(shown(&text, 60).0.last().is_some_and(|l| l.contains(" · training")), "{text:?}");
    // Nobody reads on, and that is no error.
    let head = format!("'{}' watch runs/长 | head -n 1", env!("CARGO_BIN_EXE_ambitus"));
    let out = Command::new("bash").current_dir(dir).args(["-o", "pipefail", "-c", &head]).output();
    let out = out.expect("a shell");
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    assert!(folder.child.id() > 0 && train.child.try_wait().expect("a status").is_none());

    until("a first look", || on.iter().chain([&piped]).all(|w| w.so_far().contains("loss")));
    let then = updates(&run) as u64 + 10;
    let seen = |w: &Running| w.so_far().contains(&format!("update {}: validation loss", then - then % 2));
    until("a validation", || on.iter().chain([&piped]).all(seen));
    train.child.kill().expect("a process");
    train.end();
    let (code, text) = piped.end();
    assert_eq!(code, 0, "{text}");
    let piped = lines(&text);
    let told = |lines: &[String]| {
        lines.iter().any(|l| l.contains("no process holds it: it was killed or failed after update"))
    };
    assert!(told(&piped) && piped.iter().any(|l| is_progress(l)), "{text}");
    for (watch, columns) in on.into_iter().zip(WIDTHS) {
        let (code, text) = watch.end();
        assert_eq!(code, 0, "{text:?}");
        let (lines, overwritten) = shown(&text, columns);
        assert!(
            overwritten.iter().all(|l| is_progress(l) || l.starts_with("no update for")),
            "{overwritten:?}"
        );
        assert!(told(&lines), "{lines:?}");
        // Each begins with the newest that it finds; from then on all see all.
        let [a, b] = [validated(&lines), validated(&piped)];
        let from = a.first().max(b.first()).expect("validations");
        assert!(a.range(from..).eq(b.range(from..)), "{columns}: {a:?} {b:?}");
        assert!(b.range(from..).count() > 3, "{columns}: {b:?}");
    }
    let (code, text) = folder.end();
    let (lines, overwritten) = shown(&text, 60);
    assert_eq!(code, 0, "{text:?}");
    assert!(overwritten.iter().all(|l| l.starts_with("长  update ")), "{overwritten:?}");
    assert!(lines.iter().any(|l| l.starts_with("长: no process holds it")), "{lines:?}");

    // What is there now, without a trace.
    let before = state(&run);
    let text = common::ok(dir, &["watch", "runs/长", "--once"]);
    assert!(
        text.contains("ended early · update ") && text.contains("go on with: ambitus resume runs/长"),
        "{text}"
    );
    assert_eq!(state(&run), before);
    assert!(common::ok(dir, &["watch", "--once"]).starts_with("长  ended early · update "));
    for (args, words) in [(["watch", "voice"], "no runs here"), (["watch", "none"], "cannot list")] {
        let (code, text) = common::said(dir, &args);
        assert!([2, 6].contains(&code) && text.contains(words), "{code} {text}");
    }

    let resumed = long_run(dir, &["resume", "runs/长"]);
    resumed.signal(libc::SIGTERM);
    assert_eq!(resumed.end().0, 10);
    let text = common::ok(dir, &["watch", "runs/长", "--once"]);
    assert!(text.contains("interrupted after update") && text.contains("which is saved"), "{text}");
}

#[test]
fn many_runs_have_the_rows_that_there_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    for i in 0..9 {
        let run = dir.join(format!("runs/run-{i}"));
        fs::create_dir_all(&run).expect("a folder");
        fs::write(run.join("recipe.yaml"), "").expect("a file");
        // A process that cannot be looked at: the run may go on.
        fs::write(run.join(".lock"), "process 1 on elsewhere.test\n\n").expect("a file");
    }
    let watch = Running::on_terminal(dir, &["watch"], 60, 6);
    until("two frames", || watch.so_far().matches("… and 5 more").count() > 1);
    watch.signal(libc::SIGTERM);
    let (code, text) = watch.end();
    assert_eq!(code, 0, "{text:?}");
    let (lines, overwritten) = shown(&text, 60);
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert!(overwritten.iter().all(|l| l.starts_with("run-") || l == "… and 5 more"), "{overwritten:?}");
    assert_eq!(overwritten.len() % 5, 0, "{overwritten:?}");
}
