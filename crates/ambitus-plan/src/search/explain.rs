//! What a search tried, for people.

use super::{Candidate, Verdict};
use ambitus_recipe::size::ByteSize;

/// Returns a line for each candidate: the plan first, then what is slower, then what does not fit.
pub fn explain(candidates: &[Candidate]) -> Vec<String> {
    let options =
        |c: &Candidate| if c.options.is_empty() { "as given".to_owned() } else { c.options.clone() };
    let width = candidates.iter().map(|c| options(c).chars().count()).max().unwrap_or(0);
    let best = candidates.first().map_or(0.0, |c| c.seconds);
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
    candidates.iter().map(line).collect()
}
