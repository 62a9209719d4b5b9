//! JSON of Whisper, faster-whisper and WhisperX (`segments`, seconds, perhaps with words), and of whisper.cpp (`transcription`,
//! milliseconds).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::Span;
use super::{Fault, Segment, Word, one_line};

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow, default)]
    segments: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    transcription: Option<Vec<&'a RawValue>>,
}

/// A segment in seconds.
#[derive(Deserialize)]
#[serde(expecting = "a segment with start, end and text")]
struct Timed {
    start: f64,
    end: f64,
    text: String,
    #[serde(default)]
    words: Option<Vec<TimedWord>>,
}

#[derive(Deserialize)]
struct TimedWord {
    #[serde(alias = "text")]
    word: String,
    // What an aligner could not place has none.
    start: Option<f64>,
    end: Option<f64>,
}

/// A segment of whisper.cpp.
#[derive(Deserialize)]
#[serde(expecting = "a segment with offsets and text")]
struct Offset {
    offsets: Offsets,
    text: String,
}

/// Milliseconds.
#[derive(Deserialize)]
struct Offsets {
    from: u64,
    to: u64,
}

/// Reads the segments of a file.
pub(super) fn read(text: &str) -> Result<Vec<Segment>, Fault> {
    let wrong = |e: &serde_json::Error| (e.line().max(1) as u64, format!("no JSON that is read: {e}"));
    if text.trim_start().starts_with('[') {
        let all: Vec<&RawValue> = serde_json::from_str(text).map_err(|e| wrong(&e))?;
        return each(text, &all, timed);
    }
    let file: File = serde_json::from_str(text).map_err(|e| wrong(&e))?;
    match (file.segments, file.transcription) {
        (Some(all), _) => each(text, &all, timed),
        (None, Some(all)) => each(text, &all, offset),
        (None, None) => {
            let reason = "no `segments` (Whisper, faster-whisper, WhisperX) and no `transcription` (whisper.cpp) in it";
            Err((1, reason.to_owned()))
        }
    }
}

/// Makes segments of values that lie in a file one after another, each with the line on which it begins.
fn each<'a, T: Deserialize<'a>>(
    text: &str,
    all: &[&'a RawValue],
    make: fn(T, u64) -> Result<Segment, Fault>,
) -> Result<Vec<Segment>, Fault> {
    let (mut line, mut at) = (1, 0);
    let mut of = |raw: &&'a RawValue| {
        let begins = (raw.get().as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
        let between = text.as_bytes().get(at..begins).unwrap_or_default();
        line += between.iter().filter(|&&b| b == b'\n').count() as u64;
        at = begins;
        let wrong = |e: serde_json::Error| {
            let line = line + (e.line() as u64).saturating_sub(1);
            (line, format!("a segment that cannot be read: {e}"))
        };
        serde_json::from_str(raw.get()).map_err(wrong).and_then(|read| make(read, line))
    };
    all.iter().map(&mut of).collect()
}

fn timed(read: Timed, line: u64) -> Result<Segment, Fault> {
    if read.start < 0.0 || read.end < 0.0 {
        return Err((line, "it begins or ends before the recording does".to_owned()));
    }
    let word = |word: TimedWord| {
        let span = word.start.zip(word.end).filter(|(start, end)| start <= end);
        Word { text: word.word, span: span.map(|(start, end)| Span { start, end }) }
    };
    let words = read.words.into_iter().flatten().map(word).collect();
    Ok(Segment { line, span: Span { start: read.start, end: read.end }, text: one_line(&read.text), words })
}

fn offset(read: Offset, line: u64) -> Result<Segment, Fault> {
    let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
    let span = Span { start: seconds(read.offsets.from), end: seconds(read.offsets.to) };
    Ok(Segment { line, span, text: one_line(&read.text), words: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let whisper = r#"{"text": " A b.", "language": "en", "segments": [
            {"id": 0, "seek": 0, "start": 0.5, "end": 2.0, "text": " A b.", "tokens": [1], "avg_logprob": -0.2,
             "words": [{"word": " A", "start": 0.5, "end": 0.9, "probability": 0.9}, {"word": " b."}]}]}"#;
        let read = super::read(whisper).expect("reads");
        assert_eq!((read[0].line, read[0].text.as_str()), (2, "A b."));
        assert_eq!(read[0].words[0].span, Some(Span { start: 0.5, end: 0.9 }));
        assert_eq!(read[0].words[1].span, None);
        let cpp = r#"{"result": {"language": "en"}, "transcription": [{"timestamps": {"from": "00:00:00,500", "to": "00:00:02,000"},
            "offsets": {"from": 500, "to": 2000}, "text": " A b."}]}"#;
        let list = r#"[{"start": 0.5, "end": 2, "text": "A b."}]"#;
        for text in [cpp, list] {
            let read = super::read(text).expect("reads");
            assert_eq!(read[0].span, Span { start: 0.5, end: 2.0 });
            assert_eq!(read[0].text, "A b.");
        }
    }
}
