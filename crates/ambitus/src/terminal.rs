//! Printing, in one place: messages to stderr, results to stdout, and quiet when a pipe closes.
//!
//! On a terminal, progress stands until something else is printed, by whichever function of this module: it is cleared first, so lines
//! are whole.

mod width;

use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
pub use width::columns;
use width::{narrowed, printable};

/// Between progress lines where they cannot be overwritten.
const QUIET: Duration = Duration::from_secs(10);
/// Columns and rows of a terminal that does not say how many it has.
const USUAL: (usize, usize) = (80, 24);
/// What a terminal adds to a line when somebody presses Ctrl-C.
const PRESSED: usize = "^C".len();

/// Where something is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

impl Stream {
    /// Writes in one piece.
    fn write(self, text: &str) -> io::Result<()> {
        match self {
            Stream::Err => io::stderr().write_all(text.as_bytes()),
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
        }
    }

    fn is_terminal(self) -> bool {
        match self {
            Stream::Out => io::stdout().is_terminal(),
            Stream::Err => io::stderr().is_terminal(),
        }
    }

    /// Returns the columns and rows of the terminal that it is.
    fn size(self) -> (usize, usize) {
        let fd = if self == Stream::Out { libc::STDOUT_FILENO } else { libc::STDERR_FILENO };
        // SAFETY: the call fills the structure, or says that it did not.
        let size = unsafe {
            let mut size = std::mem::zeroed::<libc::winsize>();
            (libc::ioctl(fd, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
        };
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(USUAL)
    }
}

/// Lines that stand on a terminal.
struct Standing {
    stream: Stream,
    /// Of each line.
    columns: Vec<usize>,
}

static STANDING: Mutex<Option<Standing>> = Mutex::new(None);

impl Standing {
    /// Returns what clears them and goes back to where they began.
    fn cleared(&self) -> String {
        let room = self.stream.size().0 - 1;
        let blank = |columns: &usize| format!("\r{:width$}\r", "", width = (columns + PRESSED).min(room));
        self.columns.iter().rev().map(blank).collect::<Vec<_>>().join("\u{1b}[A")
    }
}

/// Prints in place of what stands, and leaves `lines` standing.
fn print(stream: Stream, text: &str, lines: Option<Vec<usize>>) {
    let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
    let cleared = standing.as_ref().map(|old| (old.stream, old.cleared()));
    *standing = lines.map(|columns| Standing { stream, columns });
    let written = match cleared {
        Some((of, cleared)) if of == stream => stream.write(&(cleared + text)),
        // Where it cannot be cleared nobody sees it.
        Some((of, cleared)) => of.write(&cleared).or(Ok(())).and_then(|()| stream.write(text)),
        None => stream.write(text),
    };
    // If stderr is closed, there is nowhere to report it.
    if let (Stream::Out, Err(why)) = (stream, written) {
        let _ = LOST.set(why);
    }
}

/// Prints a message for people. It may repeat names, so it is stripped of control characters.
pub fn message(text: &str) {
    // In one write, as launchers mix what ranks write between writes.
    print(Stream::Err, &(printable(text) + "\n"), None);
}

/// Prints an error. It may repeat what a file says, so it is cut to a screen.
pub fn error(text: &str) {
    const SHOWN: usize = 8000;
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { " …" } else { "" };
    message(&format!("error: {shown}{more}"));
}

/// Why a result did not get out, the first time.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Prints a result on stdout. [`finish`] tells whether it got there.
pub fn result(text: &str) {
    print(Stream::Out, &format!("{text}\n"), None);
}

/// Returns whether nobody gets results any more.
pub fn is_lost() -> bool {
    LOST.get().is_some()
}

/// Ends what results there were. A closed pipe is not an error: its reader wanted no more.
///
/// # Errors
/// Results that cannot be written, as on a full disk.
pub fn finish() -> Result<(), RunError> {
    if let Err(why) = io::stdout().flush() {
        let _ = LOST.set(why);
    }
    match LOST.get() {
        Some(why) if why.kind() != ErrorKind::BrokenPipe => Err(lost(why)),
        _ => Ok(()),
    }
}

/// Returns the error of a result that cannot be written.
pub fn lost(why: &io::Error) -> RunError {
    RunError::Io(format!("standard output: the result cannot be written: {why}"))
}

/// Messages and progress on stderr, or results that come one by one on stdout.
pub struct Terminal {
    stream: Stream,
    live: bool,
    /// What was printed last where lines cannot be overwritten, and when.
    last: Option<(Instant, Vec<String>)>,
}

impl Terminal {
    /// Overwrites progress on a terminal; prints it now and then elsewhere.
    pub fn new() -> Terminal {
        Terminal::on(Stream::Err)
    }

    /// The same for results, which [`finish`] looks after.
    pub fn of_results() -> Terminal {
        Terminal::on(Stream::Out)
    }

    fn on(stream: Stream) -> Terminal {
        Terminal { stream, live: stream.is_terminal(), last: None }
    }

    /// Returns whether progress is overwritten.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Prints lines that the next ones replace, if the terminal can; as many as it has room for.
    pub fn block(&mut self, lines: &[String]) {
        let lines = lines.iter().map(|line| printable(line).replace('\n', "?"));
        if self.live {
            let (columns, rows) = self.stream.size();
            let mut lines: Vec<String> = lines.map(|line| narrowed(&line, columns)).collect();
            let room = rows.saturating_sub(1).max(1);
            if lines.len() > room {
                let more = lines.len() + 1 - room;
                lines.truncate(room - 1);
                lines.push(narrowed(&format!("… and {more} more"), columns));
            }
            let standing = lines.iter().map(|line| width::columns(line)).collect();
            print(self.stream, &lines.join("\n"), Some(standing));
        } else if self.last.as_ref().is_none_or(|(at, _)| at.elapsed() >= QUIET) {
            let lines: Vec<String> = lines.collect();
            // What did not change is not said again.
            if self.last.as_ref().is_none_or(|(_, said)| *said != lines) {
                lines.iter().for_each(|line| self.line(line));
            }
            self.last = Some((Instant::now(), lines));
        }
    }
}

impl Console for Terminal {
    fn line(&mut self, text: &str) {
        print(self.stream, &(printable(text) + "\n"), None);
    }

    fn progress(&mut self, text: &str) {
        self.block(&[text.to_owned()]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        print(self.stream, "", None);
    }
}

/// Prints a result for programs on stdout.
pub fn json(value: &impl serde::Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => result(&text),
        Err(e) => message(&format!("error: the result cannot be written as JSON: {e}")),
    }
}
