//! espeak-ng as a program of its own: its licence is not this project's, so nothing of it is linked.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Its name, looked for where programs are.
const NAME: &str = "espeak-ng";
/// The longest that it may take for a text.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of a text.
const MOST_TEXT: usize = 1 << 20;
/// The most bytes that it may print: for every byte of a text, and besides.
const PER_BYTE: usize = 64;
const BESIDES: usize = 64 << 10;

/// Returns what the program prints of a text, a line for each clause: its phonemes in the International Phonetic Alphabet, without spaces
/// around them. The text goes to its standard input. `voice` must be checked: it is an argument.
///
/// # Errors
/// For people: no such program or voice, a text that is too long or has a zero byte, a program that fails or hangs.
pub(super) fn lines(voice: &str, text: &str) -> Result<Vec<String>, String> {
    if text.contains('\0') {
        return Err("has a zero byte, which ends a text for espeak-ng: take it out".to_owned());
    }
    if text.len() > MOST_TEXT {
        return Err(format!("has {} bytes, more than {MOST_TEXT}: give it in parts", text.len()));
    }
    let most = PER_BYTE * text.len() + BESIDES;
    let arguments = ["-q", "--ipa", "-b", "1", "-v", voice, "--stdin"];
    let (status, printed) = run(NAME, &arguments, text, most, PATIENCE)?;
    if !status.success() {
        return Err(format!(
            "{NAME} does not read it in the voice `{voice}` ({status}): `{NAME} --voices` lists those that it has; config.json names one in \
             espeak.voice"
        ));
    }
    Ok(printed.lines().map(|line| line.trim_matches(' ').to_owned()).collect())
}

/// Returns the name and version of the installed program, without the place of its data.
///
/// # Errors
/// As [`lines`].
pub(super) fn version() -> Result<String, String> {
    let (status, printed) = run(NAME, &["--version"], "", BESIDES, PATIENCE)?;
    let line = printed.lines().next().unwrap_or_default();
    let line = line.split("Data at").next().unwrap_or_default().trim();
    match status.success() && !line.is_empty() {
        true => Ok(line.to_owned()),
        false => Err(format!("{NAME} does not say its version ({status}): install it again")),
    }
}

/// Runs a program with a text as its standard input. Returns how it ended and what it printed, of at most `most` bytes.
fn run(
    name: impl AsRef<OsStr>,
    arguments: &[&str],
    text: &str,
    most: usize,
    patience: Duration,
) -> Result<(ExitStatus, String), String> {
    let name = name.as_ref();
    let until = Instant::now() + patience;
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!(
            "{} is not installed, and makes the phonemes of this voice's texts. Install it (Debian and Ubuntu: `apt-get install espeak-ng`; \
             macOS: `brew install espeak-ng`; Windows: `winget install eSpeak-NG.eSpeak-NG`, and its folder into PATH), or give phoneme \
             ids instead of texts",
            name.display()
        ),
        _ => format!("cannot start {}: {e}", name.display()),
    })?;
    let ended = talk(&mut child, text, most, until);
    if ended.is_err() {
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    ended.map_err(|why| format!("{} {why}", name.display()))
}

/// Writes the text and reads what is printed, at the same time: neither side may wait for the other.
fn talk(child: &mut Child, text: &str, most: usize, until: Instant) -> Result<(ExitStatus, String), String> {
    let slow = || "takes too long for this text: run it by hand to see why".to_owned();
    let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("has no input or output".to_owned());
    };
    let text = text.to_owned();
    // A program that ends early says so by its status.
    thread::spawn(move || to.write_all(text.as_bytes()));
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut out = Vec::new();
        let read = from.take(most as u64 + 1).read_to_end(&mut out);
        let _ = send.send(read.map(|_| out));
    });
    let left = until.saturating_duration_since(Instant::now());
    let printed = receive.recv_timeout(left).map_err(|_| slow())?;
    let printed = printed.map_err(|e| format!("cannot be read: {e}"))?;
    if printed.len() > most {
        return Err(format!("prints more than {most} bytes of this text"));
    }
    let status = loop {
        match child.try_wait().map_err(|e| format!("cannot be waited for: {e}"))? {
            Some(status) => break status,
            None if Instant::now() > until => return Err(slow()),
            None => thread::sleep(Duration::from_micros(200)),
        }
    };
    let printed = String::from_utf8(printed).map_err(|_| "prints what is not UTF-8".to_owned())?;
    Ok((status, printed))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_what_to_do() {
        let why = run("no-such-program", &[], "", 10, PATIENCE).unwrap_err();
        assert!(why.contains("no-such-program is not installed") && why.contains("apt-get install"), "{why}");
        assert!(why.contains("phoneme ids"), "{why}");
    }

    #[test]
    fn a_program_that_hangs_or_prints_too_much_is_ended() {
        let began = Instant::now();
        let why = run("sleep", &["30"], "text", 10, Duration::from_millis(100)).unwrap_err();
        assert!(why.contains("sleep takes too long"), "{why}");
        let long = "text\n".repeat(100_000);
        let why = run("cat", &[], &long, 1000, PATIENCE).unwrap_err();
        assert!(why.contains("cat prints more than 1000 bytes"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn long_texts_pass_through_and_a_status_is_told() {
        let long = "text\n".repeat(100_000);
        let (status, printed) = run("cat", &[], &long, long.len(), PATIENCE).unwrap();
        assert!(status.success() && printed == long);
        let (status, _) = run("false", &[], &long, 10, PATIENCE).unwrap();
        assert!(!status.success());
        assert!(lines("en", "a\0b").unwrap_err().contains("zero byte"));
        assert!(lines("en", &"a".repeat(MOST_TEXT + 1)).unwrap_err().contains("in parts"));
    }
}
