//! What a search tried, for people.

use super::{Candidate, Verdict};
use ambitus_recipe::size::ByteSize;

/// Candidates that are shown of those that fit, and of those that would be faster.
const NEAREST: usize = 5;
const FASTER: usize = 3;

/// Returns a line for the plan, for its nearest alternatives (less fast, less memory, and what would be faster with more of it),
/// and how many more there are.
pub fn explain(candidates: &[Candidate]) -> Vec<String> {
    let best = candidates.first().map_or(f64::INFINITY, |c| c.seconds);
    let fitting = || candidates.iter().enumerate().filter(|(_, c)| c.verdict.fits());
    let mut shown: Vec<usize> = (0..candidates.len().min(1)).collect();
    shown.extend(fitting().map(|(at, _)| at).take(NEAREST));
    shown.extend(fitting().min_by_key(|(_, c)| c.peak_bytes).map(|(at, _)| at));
    let mut others: Vec<usize> = (0..candidates.len()).filter(|at| !candidates[*at].verdict.fits()).collect();
    // What needs least more is nearest.
    others.sort_by_key(|at| (candidates[*at].seconds >= best, candidates[*at].peak_bytes));
    shown.extend(others.into_iter().take(FASTER));
    shown.sort_unstable();
    shown.dedup();
    let some: Vec<&Candidate> = shown.into_iter().map(|at| &candidates[at]).collect();
    let more = candidates.len() - some.len();
    let mut out = lines(some);
    out.extend((more > 0).then(|| format!("  and {more} more, which --json has (candidates)")));
    out
}

/// Returns a line for each candidate, the first of which the others are compared with.
pub fn lines<'c>(candidates: impl IntoIterator<Item = &'c Candidate> + Clone) -> Vec<String> {
    let options =
        |c: &Candidate| if c.options.is_empty() { "as given".to_owned() } else { c.options.clone() };
    let width = candidates.clone().into_iter().map(|c| options(c).chars().count()).max().unwrap_or(0);
    let best = candidates.clone().into_iter().next().map_or(0.0, |c| c.seconds);
    let line = |c: &Candidate| {
        let why = match c.verdict {
            Verdict::Chosen => "chosen".to_owned(),
            Verdict::Slower => format!("{:+.1} % time", 100.0 * (c.seconds / best - 1.0)),
            Verdict::TooLarge => "does not fit".to_owned(),
            Verdict::HostTooSmall => "host too small".to_owned(),
        };
        let peak = format!("{}{}", if c.planned { "" } else { "about " }, ByteSize(c.peak_bytes));
        let (options, seconds) = (options(c), c.seconds);
        format!("  {options:<width$}  {peak:>15}  {seconds:>9.3} s an update  {why:<14}  {}", c.numerics)
    };
    candidates.into_iter().map(line).collect()
}
