//! SRT, and WebVTT (W3C): blocks of lines with times and text, apart by blank lines.

use std::sync::LazyLock;

use regex::Regex;

use super::super::Span;
use super::{Fault, Segment, one_line};

const ARROW: &str = "-->";

/// Marks of SRT that are not said: those of players, and positions.
static SRT_MARKS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)</?(?:i|b|u|s|font)(?:\s[^>]*)?>|\{\\[^}]*\}").expect("an expression"));
/// Tags of WebVTT: voices, classes, times. `<` itself is written `&lt;`.
static VTT_MARKS: LazyLock<Regex> = LazyLock::new(|| Regex::new("<[^>]*>").expect("an expression"));
/// WebVTT's escapes.
const ESCAPES: [(&str, &str); 6] =
    [("&lt;", "<"), ("&gt;", ">"), ("&nbsp;", " "), ("&lrm;", ""), ("&rlm;", ""), ("&amp;", "&")];

/// Reads the cues of a file.
pub(super) fn read(text: &str, is_vtt: bool) -> Result<Vec<Segment>, Fault> {
    let mut lines = (1..).zip(text.lines()).peekable();
    if is_vtt {
        if lines.next().is_none_or(|(_, line)| !line.starts_with("WEBVTT")) {
            return Err((1, "a .vtt file begins with WEBVTT".to_owned()));
        }
        // What the header says beside.
        while lines.next_if(|(_, line)| !line.trim().is_empty() && !line.contains(ARROW)).is_some() {}
    }
    let mut cues = Vec::new();
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let is_note = ["NOTE", "STYLE", "REGION"].iter().any(|kind| line.starts_with(kind));
        if is_vtt && is_note && !line.contains(ARROW) {
            while lines.next_if(|(_, line)| !line.trim().is_empty()).is_some() {}
            continue;
        }
        // A number or name may precede the times.
        let timed = match line.contains(ARROW) {
            true => Some((number, line)),
            false => lines.next_if(|(_, next)| next.contains(ARROW)),
        };
        let Some((number, times)) = timed else {
            return Err((
                number,
                "no times where a cue should begin; expected `00:00:01,000 --> 00:00:02,000`".to_owned(),
            ));
        };
        let span = span(times).map_err(|reason| (number, reason))?;
        let mut said = String::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.trim().is_empty()) {
            said = said + line + "\n";
        }
        let text = one_line(&plain(&said, is_vtt));
        cues.push(Segment { line: number, span, text, words: Vec::new() });
    }
    Ok(cues)
}

/// Returns what is said in a cue.
fn plain(said: &str, is_vtt: bool) -> String {
    match is_vtt {
        true => {
            let text = VTT_MARKS.replace_all(said, "").into_owned();
            ESCAPES.iter().fold(text, |text, (escape, means)| text.replace(escape, means))
        }
        false => SRT_MARKS.replace_all(said, "").into_owned(),
    }
}

/// Reads `FROM --> TO`, perhaps with positions after it.
fn span(times: &str) -> Result<Span, String> {
    let (from, to) = times.split_once(ARROW).unwrap_or_default();
    let to = to.split_whitespace().next().unwrap_or_default();
    Ok(Span { start: time(from.trim())?, end: time(to)? })
}

/// Reads `[HH:]MM:SS,mmm`, with a comma or a point, in seconds.
pub(super) fn time(text: &str) -> Result<f64, String> {
    let bad = || format!("`{}` is no time; expected HH:MM:SS,mmm", crate::error::short(text));
    let digits = |part: &str, most: usize| {
        let fine = (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        fine.then(|| part.parse::<u32>().ok()).flatten()
    };
    let (whole, thousandths) = text.split_once([',', '.']).ok_or_else(bad)?;
    if thousandths.len() != 3 {
        return Err(bad());
    }
    let parts: Vec<&str> = whole.split(':').collect();
    let (hours, minutes, seconds) = match *parts {
        [hours, minutes, seconds] => (hours, minutes, seconds),
        [minutes, seconds] => ("0", minutes, seconds),
        _ => return Err(bad()),
    };
    let read =
        || Some([digits(hours, 4)?, digits(minutes, 2)?, digits(seconds, 2)?, digits(thousandths, 3)?]);
    match read() {
        Some([hours, minutes, seconds, thousandths]) if minutes < 60 && seconds < 60 => {
            Ok(f64::from(3600 * hours + 60 * minutes + seconds) + f64::from(thousandths) / 1000.0)
        }
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, is_vtt: bool) -> Vec<(f64, f64, String)> {
        let cues = read(text, is_vtt).expect("reads");
        cues.into_iter().map(|c| (c.span.start, c.span.end, c.text)).collect()
    }

    #[test]
    fn srt() {
        let file = "1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>Two</i>\r\n lines, a < b\r\n\r\n\r\n2\r\n01:00:03.000 --> 01:00:04,000 X1:40\r\n{\\an8}Naïve – 3 %.\r\n";
        let want = [(1.0, 2.5, "Two lines, a < b".to_owned()), (3603.0, 3604.0, "Naïve – 3 %.".to_owned())];
        assert_eq!(texts(file, false), want);
    }

    #[test]
    fn vtt() {
        let file = "WEBVTT - talk\nKind: captions\n\nNOTE of\nsomebody\n\nintro\n00:01.000 --> 00:02.500 align:start\n<v Ann>Salt &amp; <00:01.500><c>pepper</c>\n\n00:00:03.000 --> 00:00:04.000\n&lt;b&gt;\n";
        assert_eq!(texts(file, true), [(1.0, 2.5, "Salt & pepper".to_owned()), (3.0, 4.0, "<b>".to_owned())]);
    }

    #[test]
    fn times() {
        assert_eq!(time("00:01:02,003"), Ok(62.003));
        assert_eq!(time("59:59.999"), Ok(3599.999));
        for bad in [
            "",
            "1",
            "00:60:00,000",
            "00:00:60,000",
            "00:00:01",
            "00:00:01,5",
            "-0:00:01,000",
            "a:00:01,000",
            "1:2:3:4,000",
        ] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
