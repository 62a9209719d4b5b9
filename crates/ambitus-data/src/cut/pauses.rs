//! Pauses: stretches without speech, from scores and levels.

use super::Span;
use super::activity::{Frame, SECONDS, percentile};

/// Shortest pause in which may be cut, seconds. Stops within words are shorter.
pub(super) const SHORTEST: f64 = 0.15;
/// Below this score nobody speaks.
const QUIET: f32 = 0.5;
/// What music or noise hides of a pause is looked for within stretches that are longer than a clip may be. First, what is this much below the
/// stretch's middle level, dB, for so long, seconds: longer than dips within speech (measured: 11 of 12 such were pauses).
const DIP: (f32, f64) = (8.0, 0.25);
/// Then a lower score for so long, seconds, where it is somewhat below that level, dB: a dip in the score alone may be an odd sound.
const DOUBT: (f32, f64, f32) = (0.65, 0.2, 6.0);
/// At the edges of a pause, what is louder than its quiet part by so much is still speech, dB.
const LOUDER: f32 = 6.0;
/// How far into a pause the edges are looked for, seconds.
const REACH: f64 = 0.25;
/// What scores as speech for a shorter time, with pauses on both sides, is a click or a breath, seconds.
const CLICK: f64 = 0.1;

/// Returns the stretches of speech, in order, with a pause of at least [`SHORTEST`] between any two. Where one is longer than
/// `most` seconds, pauses are looked for in it with less reserve.
pub(crate) fn speech(frames: &[Frame], most: f64) -> Vec<Span> {
    let all = (0, frames.len());
    let spans = between(&quiet(frames, SHORTEST, |frame| frame.score() < QUIET), all);
    let spans = within_long(
        spans,
        most,
        |from, to, level| quiet(&frames[from..to], DIP.1, |frame| frame.level() < level - DIP.0),
        frames,
    );
    let spans = within_long(
        spans,
        most,
        |from, to, level| {
            let mut pauses = quiet(&frames[from..to], DOUBT.1, |frame| frame.score() < DOUBT.0);
            pauses.retain(|&(a, b)| percentile(&frames[from + a..from + b], 0.25) <= level - DOUBT.2);
            pauses
        },
        frames,
    );
    spans.iter().map(|&(a, b)| Span { start: a as f64 * SECONDS, end: b as f64 * SECONDS }).collect()
}

/// Parts stretches that are longer than `most` seconds at the pauses that `find` finds in them, which it counts from their beginning;
/// it is given where they are, and their middle level.
fn within_long(
    spans: Vec<(usize, usize)>,
    most: f64,
    find: impl Fn(usize, usize, f32) -> Vec<(usize, usize)>,
    frames: &[Frame],
) -> Vec<(usize, usize)> {
    let mut parted = Vec::new();
    for (from, to) in spans {
        if (to - from) as f64 * SECONDS <= most {
            parted.push((from, to));
            continue;
        }
        let mut pauses = find(from, to, percentile(&frames[from..to], 0.5));
        // What is soft at its ends was heard as speech.
        pauses.retain(|&(a, b)| a > 0 && b < to - from);
        let pauses: Vec<_> = pauses.iter().map(|&(a, b)| (from + a, from + b)).collect();
        parted.extend(between(&pauses, (from, to)));
    }
    parted
}

/// Returns pauses of at least so many seconds, as frames.
fn quiet(frames: &[Frame], shortest: f64, is_quiet: impl Fn(Frame) -> bool) -> Vec<(usize, usize)> {
    let least = (SHORTEST / SECONDS).ceil() as usize;
    let shortest = (shortest / SECONDS).ceil() as usize;
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < frames.len() {
        let n = frames[at..].iter().take_while(|&&frame| is_quiet(frame)).count();
        if n >= shortest {
            match found.last_mut() {
                Some(last) if ((at - last.1) as f64) * SECONDS < CLICK => last.1 = at + n,
                _ => found.push((at, at + n)),
            }
        }
        at += n.max(1);
    }
    let mut found: Vec<_> = found.iter().map(|&(a, b)| edges(frames, a, b)).collect();
    found.retain(|(a, b)| b - a >= least || *a == 0 || *b == frames.len());
    found
}

/// Moves the edges of a pause past what is loud there.
fn edges(frames: &[Frame], from: usize, to: usize) -> (usize, usize) {
    let limit = percentile(&frames[from..to], 0.25) + LOUDER;
    let reach = ((REACH / SECONDS) as usize).min((to - from) / 2);
    let loud = |at: &usize| frames[*at].level() > limit;
    // Nobody speaks before the beginning and after the end.
    let a = (from..from + reach).rfind(loud).filter(|_| from > 0).map_or(from, |at| at + 1);
    let b = (to - reach..to).find(loud).filter(|_| to < frames.len()).unwrap_or(to);
    (a, b)
}

/// Returns what is between pauses in a range of frames.
fn between(pauses: &[(usize, usize)], (from, to): (usize, usize)) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut at = from;
    for &(a, b) in pauses {
        spans.push((at, a));
        at = b;
    }
    spans.push((at, to));
    spans.retain(|(a, b)| a < b);
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of speech (loud, sure) and pauses, by seconds.
    fn frames(parts: &[(f32, f32, f64)]) -> Vec<Frame> {
        let of = |&(score, db, seconds): &(f32, f32, f64)| {
            let frame = Frame::new(score, 10f32.powf(db / 10.0));
            std::iter::repeat_n(frame, (seconds / SECONDS).round() as usize)
        };
        parts.iter().flat_map(of).collect()
    }

    fn rounded(spans: &[Span]) -> Vec<(f64, f64)> {
        let tenth = |x: f64| (x * 10.0).round() / 10.0;
        spans.iter().map(|s| (tenth(s.start), tenth(s.end))).collect()
    }

    #[test]
    fn pauses_part_speech() {
        let talk = frames(&[
            (0.1, -60.0, 0.5),
            (0.9, -20.0, 2.0),
            (0.1, -60.0, 0.1), // a stop
            (0.9, -20.0, 1.0),
            (0.1, -60.0, 0.5),
            (0.9, -20.0, 2.0),
        ]);
        assert_eq!(rounded(&speech(&talk, 12.0)), [(0.5, 3.6), (4.1, 6.1)]);
        assert_eq!(speech(&frames(&[(0.1, -60.0, 3.0)]), 12.0), []);
        assert_eq!(speech(&[], 12.0), []);
    }

    #[test]
    fn what_is_loud_at_the_edge_of_a_pause_is_speech() {
        let talk = frames(&[
            (0.9, -20.0, 1.0),
            (0.1, -30.0, 0.2),
            (0.1, -60.0, 0.6),
            (0.1, -30.0, 0.1),
            (0.9, -20.0, 1.0),
        ]);
        assert_eq!(rounded(&speech(&talk, 12.0)), [(0.0, 1.2), (1.8, 2.9)]);
    }

    #[test]
    fn a_click_between_pauses_is_no_speech() {
        let talk = frames(&[
            (0.9, -20.0, 1.0),
            (0.1, -60.0, 0.4),
            (0.9, -20.0, 0.05),
            (0.1, -60.0, 0.4),
            (0.9, -20.0, 1.0),
        ]);
        assert_eq!(rounded(&speech(&talk, 12.0)).len(), 2);
    }

    /// Under music a pause scores higher; it counts where there is no other, and only if it is quieter than what is around it.
    #[test]
    fn long_stretches_are_searched_with_less_reserve() {
        let talk = |db: f32| frames(&[(0.9, -20.0, 4.0), (0.6, db, 0.3), (0.9, -20.0, 4.0)]);
        assert_eq!(speech(&talk(-30.0), 12.0).len(), 1);
        assert_eq!(rounded(&speech(&talk(-30.0), 6.0)), [(0.0, 4.0), (4.3, 8.3)]);
        assert_eq!(speech(&talk(-22.0), 6.0).len(), 1);
    }
}
