//! Printing, in one place: messages to stderr, results to stdout, and quiet when a pipe closes.

use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Between progress lines where they cannot be overwritten.
const QUIET: Duration = Duration::from_secs(10);

/// Prints a message for people.
pub fn message(text: &str) {
    // In one write, as launchers mix what ranks write between writes. If stderr is closed, there is nowhere to report it.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints an error. It may repeat what a file says, so it is cut to a screen and stripped of control characters.
pub fn error(text: &str) {
    const SHOWN: usize = 8000;
    let shown: String =
        text.chars().take(SHOWN).map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect();
    let more = if shown.len() < text.len() { " …" } else { "" };
    message(&format!("error: {shown}{more}"));
}

/// Why a result did not get out, the first time.
static LOST: OnceLock<std::io::Error> = OnceLock::new();

/// Prints a result on stdout. [`finish`] tells whether it got there.
pub fn result(text: &str) {
    if let Err(why) = writeln!(std::io::stdout().lock(), "{text}") {
        let _ = LOST.set(why);
    }
}

/// Ends what results there were. A closed pipe is not an error: its reader wanted no more.
///
/// # Errors
/// Results that cannot be written, as on a full disk.
pub fn finish() -> Result<(), RunError> {
    if let Err(why) = std::io::stdout().flush() {
        let _ = LOST.set(why);
    }
    match LOST.get() {
        Some(why) if why.kind() != ErrorKind::BrokenPipe => Err(lost(why)),
        _ => Ok(()),
    }
}

/// Returns the error of a result that cannot be written.
pub fn lost(why: &std::io::Error) -> RunError {
    RunError::Io(format!("standard output: the result cannot be written: {why}"))
}

/// Returns the columns of the terminal that stderr is, if it is one.
fn columns() -> Option<usize> {
    // SAFETY: the call fills the structure, or says that it did not.
    let size = unsafe {
        let mut size = std::mem::zeroed::<libc::winsize>();
        (libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
    };
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns `text` cut to `columns`, without the parts that have no room. The last column stays free: some terminals wrap when it
/// is written.
fn narrowed(text: &str, columns: usize) -> String {
    let room = columns.saturating_sub(1);
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(room).collect();
    if let Some(end) = out.rfind(SEPARATOR) {
        out.truncate(end);
    }
    out
}

/// Between the parts of a progress line.
const SEPARATOR: &str = " · ";

/// Messages and progress on stderr.
pub struct Terminal {
    live: bool,
    /// Characters of the progress line that stands.
    shown: usize,
    last: Option<Instant>,
}

impl Terminal {
    /// Overwrites progress on a terminal; prints it now and then elsewhere.
    pub fn new() -> Terminal {
        Terminal { live: std::io::stderr().is_terminal(), shown: 0, last: None }
    }

    fn clear(&mut self) {
        if self.shown > 0 {
            let _ = write!(std::io::stderr().lock(), "\r{:width$}\r", "", width = self.shown);
            self.shown = 0;
        }
    }
}

impl Console for Terminal {
    fn line(&mut self, text: &str) {
        self.clear();
        message(text);
    }

    fn progress(&mut self, text: &str) {
        if self.live {
            self.clear();
            let text = &columns().map_or(text.to_owned(), |columns| narrowed(text, columns));
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "{text}");
            let _ = err.flush();
            self.shown = text.chars().count();
        } else if self.last.is_none_or(|at| at.elapsed() >= QUIET) {
            message(text);
            self.last = Some(Instant::now());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Prints a result for programs on stdout.
pub fn json(value: &impl serde::Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => result(&text),
        Err(e) => message(&format!("error: the result cannot be written as JSON: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_whole_parts() {
        let line = "update  12/200 · loss 0.5123 · 1 min 34 s left · 1840 frames/s";
        for columns in 1..100 {
            let shown = narrowed(line, columns);
            assert!(shown.chars().count() < columns.max(2), "{columns}: {shown}");
            let cut = line.strip_prefix(shown.as_str()).expect("its beginning");
            assert!(cut.is_empty() || cut.starts_with(SEPARATOR) || !shown.contains(SEPARATOR));
        }
        assert_eq!(narrowed(line, 60), "update  12/200 · loss 0.5123 · 1 min 34 s left");
    }
}
