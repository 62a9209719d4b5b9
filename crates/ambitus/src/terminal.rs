//! Printing, in one place: messages to stderr, results to stdout, and quiet when a pipe closes.

use ambitus_train::resolve::Console;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between progress lines where they cannot be overwritten.
const QUIET: Duration = Duration::from_secs(10);

/// A message for people.
pub fn message(text: &str) {
    // In one write, as launchers mix what ranks write between writes. A closed stderr leaves nobody to tell.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A result on stdout. A closed pipe ends the output, not the program.
pub fn result(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

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
