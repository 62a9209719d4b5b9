//! Transcripts that come along with a recording, and how their segments become what is cut.

mod cues;
mod json;
mod units;

use std::path::Path;

use super::Span;
use crate::error::DataError;
use crate::files::read_utf8;
pub(super) use units::units;

/// Largest transcript, bytes: some 200 hours with the times of all words.
const MOST: u64 = 64 << 20;
/// Seconds by which a segment may begin before the one before it ends: writers round.
const OVERLAP: f64 = 0.021;
/// Seconds by which a segment may end after its recording: decoders keep or drop padding, transcribers see whole windows.
const BEYOND: f64 = 0.5;

/// What is said from when to when.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Segment {
    /// Line of its file, from 1.
    line: u64,
    span: Span,
    /// Without surrounding space and line breaks, else as it is written.
    text: String,
    /// Its words with their times, where the file has them.
    words: Vec<Word>,
}

/// A word, and when it is said where that is known.
#[derive(Debug, Clone, PartialEq)]
struct Word {
    text: String,
    span: Option<Span>,
}

/// Reads the transcript of a recording of so many seconds.
///
/// # Errors
/// With file and line: what is no transcript, bad times, out of order, overlapping, beyond the end, not UTF-8.
pub(super) fn read(path: &Path, seconds: f64) -> Result<Vec<Segment>, DataError> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let text = match extension.as_str() {
        "srt" | "vtt" | "json" => read_utf8(path, MOST)?,
        _ => {
            let reason = "no transcript that is read; name a .srt, .vtt or .json file";
            return Err(DataError::file(path, reason));
        }
    };
    let read = match extension.as_str() {
        "json" => json::read(&text),
        _ => cues::read(&text, extension == "vtt"),
    };
    let segments = read.and_then(|all| checked(all, seconds));
    let segments = segments.map_err(|(line, reason)| DataError::line(path, line, reason))?;
    match segments.is_empty() {
        true => Err(DataError::file(path, "nothing is said in it; remove it to cut without a transcript")),
        false => Ok(segments),
    }
}

/// What is wrong, and on which line.
type Fault = (u64, String);

/// Returns the segments that say something, if the times of all can be those of a recording.
fn checked(mut segments: Vec<Segment>, seconds: f64) -> Result<Vec<Segment>, Fault> {
    let mut before: Option<(Span, u64)> = None;
    for Segment { line, span, .. } in &mut segments {
        let Span { start, end } = *span;
        if end < start {
            return Err((*line, format!("it ends at {end:.3} s, before it begins at {start:.3} s")));
        }
        if end > seconds + BEYOND {
            let reason =
                format!("it ends at {end:.3} s, and the recording at {seconds:.3} s; is it of another?");
            return Err((*line, reason));
        }
        if let Some((last, its)) = before {
            if start < last.start {
                let reason = format!(
                    "out of order: it begins at {start:.3} s, before that of line {its} at {:.3} s",
                    last.start
                );
                return Err((*line, reason));
            }
            if start < last.end - OVERLAP {
                let reason = format!(
                    "it begins at {start:.3} s, before that of line {its} ends at {:.3} s; cues may not overlap",
                    last.end
                );
                return Err((*line, reason));
            }
            span.start = start.max(last.end);
        }
        span.end = end.min(seconds).max(span.start);
        before = Some((*span, *line));
    }
    segments.retain(|segment| !segment.text.is_empty());
    Ok(segments)
}

/// Returns a text on one line, without surrounding space.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ").replace('\t', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let said = read(&path, 10.0).expect_err("refused").to_string();
        said.split_once(name).expect("it names the file").1.to_owned()
    }

    #[test]
    fn whatever_is_wrong_is_said_with_its_line() {
        let cue = |n: u32, from: &str, to: &str| format!("{n}\n00:00:{from} --> 00:00:{to}\nWords.\n\n");
        let two = |a: String, b: String| refused("a.srt", (a + &b).as_bytes());
        let first = || cue(1, "01,000", "02,000");
        assert!(two(first(), cue(2, "00,500", "00,900")).starts_with(":6: out of order"));
        assert!(
            two(first(), cue(2, "01,500", "03,000"))
                .starts_with(":6: it begins at 1.500 s, before that of line 2")
        );
        assert!(two(first(), cue(2, "03,000", "02,900")).starts_with(":6: it ends at 2.900 s, before"));
        assert!(
            two(first(), cue(2, "09,000", "11,000"))
                .starts_with(":6: it ends at 11.000 s, and the recording")
        );
        assert!(two(first(), cue(2, "09:000", "11,000")).starts_with(":6: `00:00:09:000` is no time"));
        assert!(two(first(), "Words without times\n".to_owned()).starts_with(":5: "));
        assert!(
            refused("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nfa\xe7ade\n")
                .starts_with(":3: the text is not UTF-8")
        );
        assert!(refused("a.srt", b"\xff\xfe1\0").starts_with(":1: the text is UTF-16"));
        assert!(refused("a.srt", b"").contains("nothing is said"));
        assert!(refused("a.vtt", b"00:01.000 --> 00:02.000\nWords\n").starts_with(":1: "));
        assert!(refused("a.txt", b"Words").contains("name a .srt, .vtt or .json"));
        assert!(refused("a.json", b"{\"segments\": [\n{\"start\": 1, \"end\": 2, \"text\": \"a\"},\n{\"start\": 0, \"end\": 1, \"text\": \"b\"}]}").starts_with(":3: out of order"));
        assert!(refused("a.json", b"{\"segments\": [\n{\"end\": 2, \"text\": \"a\"}]}").starts_with(":2: "));
        assert!(refused("a.json", b"{\"segments\": [\n{\"start\": 1,").starts_with(":2: "));
        assert!(refused("a.json", b"{\n\"words\": []}").contains("no `segments`"));
    }
}
