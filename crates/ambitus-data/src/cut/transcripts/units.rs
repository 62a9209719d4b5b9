//! Segments with their edges in the pauses that were heard.

use super::super::Span;
use super::super::pauses::SHORTEST;
use super::super::plan::Unit;
use super::{Segment, Word};

/// How far from a segment's edge a pause is looked for, seconds: times of transcribers are off by some tenths.
const REACH: f64 = 0.5;
/// From this distance on two segments have an edge each, seconds; below it they share a pause.
const APART: f64 = 1.0;
/// Speech without text that is worth a word, seconds.
const WORTH: f64 = 0.3;
/// First letters before which no space parts what was written apart: Thai, kana, Han, full width.
const UNSPACED: [std::ops::RangeInclusive<char>; 4] =
    ['\u{e00}'..='\u{e7f}', '\u{3000}'..='\u{9fff}', '\u{f900}'..='\u{faff}', '\u{ff00}'..='\u{ffef}'];
/// Ends of sentences, of any script.
const ENDS: &str = ".!?…。！？．؟।";
/// What may follow them.
const CLOSES: &str = "\"'”’»)]）」』";

/// Returns what is cut of a recording in which `speech` was heard, and what has no text. Segments whose words have times are parted
/// where a sentence ends or a pause was heard between two words.
pub(in super::super) fn units(
    segments: &[Segment],
    speech: &[Span],
    seconds: f64,
) -> (Vec<Unit>, Vec<(Span, String)>) {
    let pauses = between(speech, seconds);
    let parts: Vec<(Span, String)> = segments.iter().flat_map(|s| spaced(parts(s, &pauses))).collect();
    let mut units: Vec<Unit> = Vec::new();
    for (i, (span, text)) in parts.iter().enumerate() {
        let start = match (i.checked_sub(1).map(|i| parts[i].0), units.last_mut()) {
            (Some(before), Some(last)) => {
                let (end, start, paused) = edges(before, *span, &pauses);
                last.speech.end = end.max(last.speech.start);
                last.paused = paused;
                start.max(last.speech.end)
            }
            _ => nearest(&pauses, span.start, |pause| pause.end).map_or(span.start, |pause| pause.end),
        };
        let speech = Span { start: start.min(span.end), end: span.end };
        units.push(Unit { speech, text: Some(text.clone()), paused: true, ends: ends(text), apart: false });
    }
    if let Some(last) = units.last_mut() {
        let pause = nearest(&pauses, last.speech.end, |pause| pause.start);
        last.speech.end = pause.map_or(last.speech.end, |pause| pause.start.max(last.speech.start));
    }
    let left = untold(&mut units, speech, seconds);
    (units, left)
}

/// Returns the pauses between stretches of speech, and what is before and after all.
fn between(speech: &[Span], seconds: f64) -> Vec<Span> {
    let starts = std::iter::once(0.0).chain(speech.iter().map(|s| s.end));
    let ends = speech.iter().map(|s| s.start).chain([seconds]);
    starts.zip(ends).map(|(start, end)| Span { start, end }).collect()
}

/// Returns those of some spans in order that have something between these times.
fn within(spans: &[Span], from: f64, to: f64) -> &[Span] {
    let first = spans.partition_point(|span| span.end < from);
    let end = spans.partition_point(|span| span.start <= to);
    &spans[first..end.max(first)]
}

/// Returns the pause one of whose edges is nearest, if it is near.
fn nearest(pauses: &[Span], at: f64, edge: impl Fn(&Span) -> f64) -> Option<Span> {
    let off = |pause: &Span| (edge(pause) - at).abs();
    let near = within(pauses, at - REACH, at + REACH).iter();
    near.filter(|pause| off(pause) <= REACH).min_by(|a, b| off(a).total_cmp(&off(b))).copied()
}

/// Returns where one segment ends and the next begins, and whether a pause was heard between.
fn edges(before: Span, after: Span, pauses: &[Span]) -> (f64, f64, bool) {
    let (end, start) = (before.end, after.start);
    if start - end > APART {
        let ended = nearest(pauses, end, |pause| pause.start).filter(|p| p.start > before.start);
        let begun = nearest(pauses, start, |pause| pause.end).filter(|p| p.end < after.end);
        return (
            ended.map_or(end, |p| p.start),
            begun.map_or(start, |p| p.end),
            ended.is_some() && begun.is_some(),
        );
    }
    // No further than the middle of either, so that each keeps some of its own.
    let middle = |span: Span| (span.start + span.end) / 2.0;
    let (low, high) = ((end - REACH).max(middle(before)), (start + REACH).min(middle(after)));
    let at = (end + start) / 2.0;
    let off = |pause: &Span| (pause.start - at).max(at - pause.end).max(0.0);
    let fits = |pause: &&Span| {
        pause.seconds() >= SHORTEST
            && pause.start < high
            && pause.end > low
            && pause.start > before.start
            && pause.end < after.end
    };
    let best = within(pauses, low, high).iter().filter(fits).min_by(|a, b| off(a).total_cmp(&off(b)));
    best.map_or((end, start, false), |pause| (pause.start, pause.end, true))
}

/// Marks units between which something is said that is in no text, and returns that.
fn untold(units: &mut [Unit], speech: &[Span], seconds: f64) -> Vec<(Span, String)> {
    let mut left = Vec::new();
    let mut from = 0.0;
    for i in 0..=units.len() {
        let to = units.get(i).map_or(seconds, |unit| unit.speech.start);
        for heard in within(speech, from, to) {
            let span = Span { start: heard.start.max(from), end: heard.end.min(to) };
            if span.seconds() > WORTH {
                left.push((span, "speech was heard, and the transcript has no text there".to_owned()));
                if let Some(unit) = i.checked_sub(1).and_then(|before| units.get_mut(before)) {
                    unit.apart = true;
                }
            }
        }
        from = units.get(i).map_or(seconds, |unit| unit.speech.end);
    }
    left
}

/// Returns whether a sentence ends with this text.
fn ends(text: &str) -> bool {
    text.trim_end().trim_end_matches(|c| CLOSES.contains(c)).ends_with(|c| ENDS.contains(c))
}

/// Puts a space before a segment, so that texts can be joined as they are.
fn spaced(mut parts: Vec<(Span, String)>) -> Vec<(Span, String)> {
    if let Some((_, first)) = parts.first_mut()
        && first.starts_with(|c| !UNSPACED.iter().any(|range| range.contains(&c)))
    {
        first.insert(0, ' ');
    }
    parts
}

/// Parts a segment between words, where the words are those of its text and have times there. The parts together are the text.
fn parts(segment: &Segment, pauses: &[Span]) -> Vec<(Span, String)> {
    let Segment { span, text, words, .. } = segment;
    let (mut parts, mut from, mut at, mut begun) = (Vec::new(), 0, 0, span.start);
    for (i, Word { text: word, span: said }) in words.iter().enumerate() {
        let word = word.trim();
        let Some(found) = text[at..].find(word) else { return vec![(*span, text.clone())] };
        at += found + word.len();
        let next = words.get(i + 1).and_then(|next| next.span);
        let (Some(said), Some(next)) = (said, next) else { continue };
        let between = || within(pauses, said.end, next.start).iter();
        let paused =
            || between().any(|p| p.seconds() >= SHORTEST && p.start < next.start && p.end > said.end);
        let inside = said.end > begun && said.end <= next.start && next.start < span.end;
        if inside && (ends(word) || paused()) && !text[at..].trim().is_empty() {
            parts.push((Span { start: begun, end: said.end }, text[from..at].to_owned()));
            (from, begun) = (at, next.start);
        }
    }
    parts.push((Span { start: begun, end: span.end }, text[from..].to_owned()));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: f64, end: f64) -> Span {
        Span { start, end }
    }

    fn segment(start: f64, end: f64, text: &str) -> Segment {
        Segment { line: 1, span: span(start, end), text: text.to_owned(), words: Vec::new() }
    }

    fn edges_of(segments: &[Segment], speech: &[Span]) -> Vec<(f64, f64, bool)> {
        let (units, left) = units(segments, speech, 20.0);
        assert_eq!(left, []);
        units.iter().map(|unit| (unit.speech.start, unit.speech.end, unit.paused)).collect()
    }

    #[test]
    fn edges_move_into_the_pauses_that_are_near() {
        let speech = [span(1.0, 4.0), span(4.5, 8.0), span(8.2, 12.0)];
        let segments = [segment(1.3, 4.2, "A."), segment(4.2, 7.9, "B."), segment(7.9, 12.3, "C.")];
        let want = [(1.0, 4.0, true), (4.5, 8.0, true), (8.2, 12.0, true)];
        assert_eq!(edges_of(&segments, &speech), want);
        // None is heard: the transcript's own times.
        let segments = [segment(1.0, 6.0, "A."), segment(6.1, 12.0, "B.")];
        assert_eq!(edges_of(&segments, &[span(1.0, 12.0)]), [(1.0, 6.0, false), (6.1, 12.0, true)]);
    }

    #[test]
    fn speech_without_text_parts_what_is_around_it() {
        let speech = [span(1.0, 4.0), span(5.0, 7.0), span(8.0, 12.0)];
        let (units, left) = units(&[segment(1.0, 4.0, "A."), segment(8.0, 12.0, "B.")], &speech, 20.0);
        assert!(units[0].apart && !units[1].apart);
        assert_eq!((units[0].speech, units[1].speech), (span(1.0, 4.0), span(8.0, 12.0)));
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].0, span(5.0, 7.0));
    }

    #[test]
    fn words_part_a_segment_where_a_sentence_ends() {
        let word = |text: &str, times: Option<(f64, f64)>| Word {
            text: text.to_owned(),
            span: times.map(|(start, end)| span(start, end)),
        };
        let words = vec![
            word(" One", Some((1.0, 2.0))),
            word(" two.", Some((2.0, 3.0))),
            word(" Three", Some((3.4, 4.0))),
            word(" 4", None),
            word(" five", Some((5.0, 6.0))),
        ];
        let segment = Segment { words, ..segment(1.0, 6.0, "One two.  Three 4 five") };
        let of = |segment: &Segment| parts(segment, &[span(0.0, 1.0), span(3.0, 3.4), span(6.0, 20.0)]);
        assert_eq!(
            of(&segment),
            [(span(1.0, 3.0), "One two.".to_owned()), (span(3.4, 6.0), "  Three 4 five".to_owned())]
        );
        // Words of another text are of no use.
        let other = Segment { text: "Quite another.".to_owned(), ..segment };
        assert_eq!(of(&other), [(span(1.0, 6.0), "Quite another.".to_owned())]);
        let texts = |texts: &[&str]| -> String {
            let all: Vec<Segment> = texts.iter().map(|text| self::segment(1.0, 1.0, text)).collect();
            all.iter().flat_map(|s| spaced(parts(s, &[]))).map(|(_, text)| text).collect()
        };
        assert_eq!(texts(&["One.", "Two."]).trim(), "One. Two.");
        assert_eq!(texts(&["你好。", "再见。"]), "你好。再见。");
        assert!(ends("She said: “No.”") && ends("好。") && !ends("and then"));
    }
}
