//! What a search tried, and what came of it.

use ambitus_compile::passes::Numerics;
use serde::Serialize;
use std::cmp::Ordering;
use std::fmt;

/// A combination that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// What differs from the options that are given and the usual ones, as it is typed.
    pub options: String,
    /// What that does to numbers.
    #[serde(serialize_with = "text")]
    pub numerics: Numerics,
    /// The peak; of what was not planned in full, estimated.
    pub peak_bytes: u64,
    /// Predicted seconds of an update.
    pub seconds: f64,
    /// Every byte was planned.
    pub planned: bool,
    /// What became of it.
    pub verdict: Verdict,
}

fn text<T: fmt::Display, S: serde::Serializer>(n: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(n)
}

/// Why a candidate is, or is not, the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The plan.
    Chosen,
    /// Fits (by the estimate, where it was not planned), and another is faster.
    Slower,
    /// Does not fit.
    TooLarge,
    /// The host's memory has no room for what would wait there.
    HostTooSmall,
}

impl Verdict {
    /// Returns whether it can be run.
    pub fn fits(self) -> bool {
        matches!(self, Verdict::Chosen | Verdict::Slower)
    }
}

impl Candidate {
    /// Orders candidates by verdict; those that fit by time, the others by size.
    pub(super) fn before(&self, other: &Candidate) -> Ordering {
        let by_size = self.peak_bytes.cmp(&other.peak_bytes);
        let by = match self.verdict.fits() {
            false => by_size,
            true => self.seconds.total_cmp(&other.seconds).then(by_size),
        };
        self.verdict.cmp(&other.verdict).then(by)
    }
}
