//! Where a recording is cut: which stretches of speech make a clip together.
//!
//! Of all ways to join neighbours the one with the least cost is taken, by dynamic programming over the stretches in order. The
//! cost of a clip says how far it is from the length that is wanted, and what was heard where it is cut.

use super::pauses::SHORTEST;
use super::{Limits, Span};

/// Silence that a clip keeps before its speech, seconds, at most up to the middle of the pause.
const BEFORE: f64 = 0.15;
/// The same after its speech: voices and rooms fade.
const AFTER: f64 = 0.45;
/// What is kept of both where a clip would else be over the limit, seconds.
const LEAST: f64 = 0.05;
/// What sums of seconds are off by.
const ROUNDING: f64 = 1e-6;
/// A longer pause is never within a clip, seconds.
const LONGEST: f64 = 3.0;
/// Units of a clip: more are no sentences.
const MOST_JOINED: usize = 100;
/// Pauses longer than this cost within a clip, seconds.
const LONG: f64 = 0.8;
/// Pauses from this on are all as good to cut in, seconds: those between sentences.
const GOOD: f64 = 0.45;

// What is to be avoided, from worst to least, in units of a clip whose length is off by a factor of e.
const OVER: f64 = 40.0;
const WITHOUT_PAUSE: f64 = 12.0;
const UNDER: f64 = 6.0;
const SHORT_PAUSE: f64 = 4.0;
const WITHIN_SENTENCE: f64 = 3.0;
const LONG_WITHIN: f64 = 2.0;

/// A stretch that is not cut: speech between pauses, or a segment of a transcript.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unit {
    /// What is spoken, seconds.
    pub(super) speech: Span,
    /// What is said, where a transcript says so.
    pub(super) text: Option<String>,
    /// A pause was heard between it and the next.
    pub(super) paused: bool,
    /// A sentence ends here.
    pub(super) ends: bool,
    /// Something else is between it and the next: no clip has both.
    pub(super) apart: bool,
}

/// A clip to be: units from `first` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Group {
    pub(super) first: usize,
    pub(super) end: usize,
    /// What is cut out, seconds.
    pub(super) span: Span,
}

/// Returns which units make clips, all of them in order. `heard`: speech of the recording, of so many `seconds`.
pub(super) fn group(units: &[Unit], heard: &[Span], seconds: f64, limits: Limits) -> Vec<Group> {
    let edges = Edges { units, heard, seconds };
    // Of the first i units: the least cost, and where the last clip of these begins.
    let mut best = vec![(0.0, 0)];
    for end in 1..=units.len() {
        let mut least = (f64::INFINITY, end - 1);
        for first in (end.saturating_sub(MOST_JOINED)..end).rev() {
            let span = edges.span(first, end, limits.most);
            if first + 1 < end && (span.seconds() > limits.most + ROUNDING || !edges.joins(first)) {
                break;
            }
            let cost = best[first].0 + edges.cost(first, end, span, limits);
            if cost < least.0 {
                least = (cost, first);
            }
        }
        best.push(least);
    }
    let mut groups = Vec::new();
    let mut end = units.len();
    while end > 0 {
        let first = best[end].1;
        groups.push(Group { first, end, span: edges.span(first, end, limits.most) });
        end = first;
    }
    groups.reverse();
    groups
}

struct Edges<'a> {
    units: &'a [Unit],
    heard: &'a [Span],
    seconds: f64,
}

impl Edges<'_> {
    /// Seconds between a unit and the one before it.
    fn gap(&self, unit: usize) -> f64 {
        (self.units[unit].speech.start - self.units[unit - 1].speech.end).max(0.0)
    }

    /// Returns whether a clip may have a unit and the next.
    fn joins(&self, unit: usize) -> bool {
        self.gap(unit + 1) <= LONGEST && !self.units[unit].apart
    }

    /// Returns what a clip of these units has, with silence around it: no two share any.
    fn span(&self, first: usize, end: usize, most: f64) -> Span {
        let speech = Span { start: self.units[first].speech.start, end: self.units[end - 1].speech.end };
        let [quiet_before, quiet_after] = self.quiet(speech);
        let before =
            if first == 0 { quiet_before } else { quiet_before.min(self.gap(first) / 2.0) }.min(BEFORE);
        let is_last = end == self.units.len();
        let after = if is_last { quiet_after } else { quiet_after.min(self.gap(end) / 2.0) }.min(AFTER);
        // Silence goes before a limit is passed.
        let mut spare = (speech.seconds() + before + after - most).max(0.0);
        let less = spare.min((after - LEAST).max(0.0));
        spare -= less;
        let start = speech.start - before + spare.min((before - LEAST).max(0.0));
        Span { start: start.max(0.0), end: speech.end + after - less }
    }

    /// Returns the seconds before and after what is spoken that a clip may have: up to the middle of the pause, or to the end.
    fn quiet(&self, speech: Span) -> [f64; 2] {
        let before = self.heard.partition_point(|heard| heard.start < speech.start - ROUNDING);
        let before = match before.checked_sub(1).map(|at| self.heard[at].end) {
            Some(ended) => (speech.start - ended).max(0.0) / 2.0,
            None => speech.start,
        };
        let after = self.heard.partition_point(|heard| heard.end <= speech.end + ROUNDING);
        let after = match self.heard.get(after) {
            Some(next) => (next.start - speech.end).max(0.0) / 2.0,
            None => self.seconds - speech.end,
        };
        [before, after]
    }

    fn cost(&self, first: usize, end: usize, span: Span, limits: Limits) -> f64 {
        let seconds = span.seconds().max(1e-3);
        let mut cost = (seconds / limits.wanted()).ln().powi(2);
        for inner in first + 1..end {
            cost += LONG_WITHIN * (self.gap(inner) - LONG).max(0.0);
        }
        if seconds > limits.most + ROUNDING {
            cost += OVER;
        }
        if seconds < limits.least {
            cost += UNDER * (2.0 - seconds / limits.least);
        }
        if end < self.units.len() {
            let (last, gap) = (&self.units[end - 1], self.gap(end));
            cost += SHORT_PAUSE * (1.0 - gap / GOOD).max(0.0);
            if !last.paused || gap < SHORTEST {
                cost += WITHOUT_PAUSE;
            }
            if !last.ends {
                cost += WITHIN_SENTENCE;
            }
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { least: 2.0, most: 12.0 };

    /// Units of so many seconds, each with the pause after it.
    fn units(lengths: &[(f64, f64)]) -> (Vec<Unit>, f64) {
        let mut at = 0.5;
        let mut of = |&(seconds, pause): &(f64, f64)| {
            let speech = Span { start: at, end: at + seconds };
            at += seconds + pause;
            Unit { speech, text: None, paused: true, ends: true, apart: false }
        };
        (lengths.iter().map(&mut of).collect(), at)
    }

    fn heard(units: &[Unit]) -> Vec<Span> {
        units.iter().map(|unit| unit.speech).collect()
    }

    fn sizes(lengths: &[(f64, f64)]) -> Vec<usize> {
        let (units, seconds) = units(lengths);
        group(&units, &heard(&units), seconds, LIMITS).iter().map(|g| g.end - g.first).collect()
    }

    #[test]
    fn sentences_are_joined_to_the_wanted_length() {
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&[(4.0, 0.8); 5]), [1; 5]);
        assert_eq!(sizes(&[(2.0, 0.6); 4]), [2, 2]);
        // Not in the short pause, although both halves would be as long as is wanted.
        assert_ne!(sizes(&[(2.0, 0.7), (2.0, 0.2), (2.0, 0.7), (2.0, 0.5)])[..], [2, 2]);
        assert_eq!(sizes(&[(5.0, 0.6), (5.0, 0.6), (5.0, 0.6)]), [1; 3]);
    }

    #[test]
    fn short_ones_are_joined_where_that_fits() {
        assert_eq!(sizes(&[(5.0, 0.5), (0.4, 1.5), (5.0, 0.5)]), [2, 1]);
        assert_eq!(sizes(&[(5.0, 4.0), (0.4, 4.0), (5.0, 0.5)]), [1; 3]);
        assert_eq!(sizes(&[(11.9, 0.5), (0.4, 0.5), (11.9, 0.5)]), [1; 3]);
    }

    #[test]
    fn what_is_over_the_limit_is_alone_and_whole() {
        let (units, seconds) = units(&[(3.0, 0.5), (20.0, 0.5), (3.0, 0.5)]);
        let groups = group(&units, &heard(&units), seconds, LIMITS);
        assert_eq!(groups.len(), 3);
        let span = groups[1].span;
        assert!(span.start <= units[1].speech.start && span.end >= units[1].speech.end);
        // Silence is given up where the limit is passed by it alone.
        let (units, seconds) = self::units(&[(11.85, 0.5), (3.0, 0.5)]);
        assert!(group(&units, &heard(&units), seconds, LIMITS)[0].span.seconds() <= 12.0);
        // Also where several units are joined: a short pause is no reason to cut what fits.
        assert_eq!(sizes(&[(7.6, 0.2), (3.93, 0.9), (4.0, 0.9)]), [2, 1]);
    }

    /// What is said without text is not in the silence around a clip either.
    #[test]
    fn silence_ends_where_others_speak() {
        let (units, seconds) = units(&[(3.0, 0.5)]);
        let mut heard = heard(&units);
        heard.push(Span { start: 3.6, end: 3.9 });
        let span = group(&units, &heard, seconds, LIMITS)[0].span;
        assert!((span.end - 3.55).abs() < 1e-9, "{span:?}");
        // Nor is the rest of a sentence that the text breaks off in.
        heard[0].end = 4.0;
        assert_eq!(group(&units, &heard[..1], seconds, LIMITS)[0].span.end, 3.5);
    }

    /// Whatever the lengths: all units are in one clip, clips do not overlap, and only single units are over the limit.
    #[test]
    fn nothing_is_lost_and_nothing_is_in_two() {
        arbtest::arbtest(|u| {
            let mut lengths = Vec::new();
            for _ in 0..u.int_in_range(0..=40)? {
                lengths.push((
                    f64::from(u.int_in_range(5..=1500u32)?) / 100.0,
                    f64::from(u.int_in_range(0..=500u32)?) / 100.0,
                ));
            }
            let (units, seconds) = units(&lengths);
            let groups = group(&units, &heard(&units), seconds, LIMITS);
            let (mut unit, mut at) = (0, 0.0);
            for g in &groups {
                assert_eq!(g.first, unit);
                assert!(g.end > g.first && g.span.start >= at - 1e-9);
                assert!(g.span.start <= units[g.first].speech.start + 1e-9);
                assert!(g.span.end >= units[g.end - 1].speech.end - 1e-9 && g.span.end <= seconds + 1e-9);
                assert!(g.span.seconds() <= LIMITS.most + ROUNDING || g.end == g.first + 1);
                (unit, at) = (g.end, g.span.end);
            }
            assert_eq!(unit, units.len());
            Ok(())
        });
    }
}
