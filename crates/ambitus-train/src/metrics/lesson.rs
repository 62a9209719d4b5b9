//! What limited a run and what to try next, as the summary has it.

use serde::{Deserialize, Serialize};

/// What a lesson is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Updates waited for data.
    Loader,
    /// Checkpoints were written.
    Saving,
    /// Pages came back from disk.
    Paging,
    /// Other programs took the cores.
    OtherPrograms,
    /// Micro-batches computed on padding.
    Padding,
    /// The budget had no room for a faster plan.
    Memory,
    /// Gradients were not finite.
    SkippedUpdates,
    /// Validation rose while training fell.
    Overfitting,
    /// Validation was never better than that of the base.
    NoGain,
    /// Validation still fell at the end.
    StillFalling,
}

/// A lesson.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lesson {
    /// What it is about.
    pub limit: Limit,
    /// How much of it there was: of the time of updates and checkpoints; of the updates that were not applied, or came after the best;
    /// of the base's loss; of the fall.
    pub share: f64,
    /// The numbers that say so, for people.
    pub evidence: String,
    /// What to change, for people.
    pub change: String,
    /// Both in Chinese; not kept.
    #[serde(skip)]
    chinese: [String; 2],
}

impl Lesson {
    /// Returns a lesson. `evidence` and `change` are in English and in Chinese.
    pub fn new(limit: Limit, share: f64, evidence: [String; 2], change: [String; 2]) -> Lesson {
        let ([evidence, of_evidence], [change, of_change]) = (evidence, change);
        Lesson { limit, share, evidence, change, chinese: [of_evidence, of_change] }
    }

    /// Returns it as a line.
    pub fn english(&self) -> String {
        let about = if self.is_of_time() { "what limited it" } else { "what it learned" };
        format!("{about}: {}; try next: {}", self.evidence, self.change)
    }

    /// Returns it as a line in Chinese, of a lesson that was just made.
    pub fn chinese(&self) -> String {
        let about = if self.is_of_time() { "限制因素" } else { "学习情况" };
        format!("{about}：{}；下次可以试试：{}", self.chinese[0], self.chinese[1])
    }

    fn is_of_time(&self) -> bool {
        use Limit::{Loader, Memory, OtherPrograms, Padding, Paging, Saving};
        matches!(self.limit, Loader | Saving | Paging | OtherPrograms | Padding | Memory)
    }
}
