//! What is wrong with a data set, before anything is trained on it.
//!
//! Every clip is measured alone (`sound.rs`, `text.rs`), then held against the others (`rate.rs`, `doubles.rs`, `set.rs`). Nothing is changed
//! and nothing is left out: what is found is an [`Issue`] of its clip, and clips are listed by how much they are doubted. What is measured
//! and where each threshold comes from is in docs/check.md. In memory are a record for each clip, and of the clips that are being measured
//! 12 bytes for every 16 ms. Nothing depends on the number of threads.

mod amount;
mod doubles;
mod pass;
mod pitch;
mod rate;
mod robust;
mod set;
mod sound;
mod text;
mod transcript;
mod verdict;

use std::fmt;
use std::path::Path;

use serde::Serialize;

pub use amount::{Advised, Amount};
pub use pass::{Hear, Options, check};
pub use pitch::{Groups, Pitch};
pub use set::{Set, Voice};
pub use transcript::{Fit, Likely};

/// Kinds of what is wrong with a clip. The words of people and of JSON are the same, and stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Its line, its audio or its transcript cannot be read.
    Unreadable,
    /// Nothing is written that could be said.
    Empty,
    /// A model that hears hears another text.
    OtherText,
    /// It hears other words.
    WrongWords,
    /// It hears words before or after the text.
    CutText,
    /// The sound of another clip.
    DoubledSound,
    /// The text of another clip.
    DoubledText,
    /// Digits, of which a model does not know how they are said.
    Digits,
    /// Symbols, brackets, addresses and invisible characters.
    Symbols,
    /// Written in capitals.
    Capitals,
    /// Letters of another script than the other clips', or of two in a word.
    Script,
    /// More is written than can be said in this time.
    Fast,
    /// Less is written than is said in this time.
    Slow,
    /// Begins within speech.
    CutStart,
    /// Ends within speech.
    CutEnd,
    /// Nobody is heard, or not for long at an end.
    Silence,
    /// Cut off at its largest samples.
    Clipped,
    /// Softer than speech is, or than the voice's other clips.
    Quiet,
    /// Louder.
    Loud,
    /// Noise beside the speech.
    Noisy,
    /// Its samples are not around zero.
    Dc,
}

impl Kind {
    /// All of them, from what doubts a clip most.
    pub const ALL: [Kind; 21] = [
        Kind::Unreadable,
        Kind::Empty,
        Kind::OtherText,
        Kind::WrongWords,
        Kind::CutText,
        Kind::DoubledSound,
        Kind::Fast,
        Kind::Slow,
        Kind::CutStart,
        Kind::CutEnd,
        Kind::Clipped,
        Kind::Noisy,
        Kind::Script,
        Kind::Digits,
        Kind::Symbols,
        Kind::Quiet,
        Kind::Loud,
        Kind::Silence,
        Kind::DoubledText,
        Kind::Capitals,
        Kind::Dc,
    ];

    /// Returns how much it alone makes a clip doubtful, from 0 to 1: what spoils what is learned above what is merely uneven.
    fn weight(self) -> f64 {
        match self {
            Kind::Unreadable | Kind::Empty => 1.0,
            // By how much likelier the other text is.
            Kind::OtherText | Kind::WrongWords | Kind::CutText => 0.0,
            Kind::DoubledSound => 0.7,
            Kind::Fast | Kind::Slow => 0.5,
            Kind::CutStart | Kind::CutEnd | Kind::Clipped | Kind::Noisy => 0.4,
            Kind::Script | Kind::Digits | Kind::Symbols => 0.3,
            Kind::Quiet | Kind::Loud | Kind::Silence => 0.2,
            Kind::DoubledText | Kind::Capitals | Kind::Dc => 0.1,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Unreadable => "unreadable",
            Kind::Empty => "empty",
            Kind::OtherText => "other-text",
            Kind::WrongWords => "wrong-words",
            Kind::CutText => "cut-text",
            Kind::DoubledSound => "doubled-sound",
            Kind::DoubledText => "doubled-text",
            Kind::Digits => "digits",
            Kind::Symbols => "symbols",
            Kind::Capitals => "capitals",
            Kind::Script => "script",
            Kind::Fast => "fast",
            Kind::Slow => "slow",
            Kind::CutStart => "cut-start",
            Kind::CutEnd => "cut-end",
            Kind::Silence => "silence",
            Kind::Clipped => "clipped",
            Kind::Quiet => "quiet",
            Kind::Loud => "loud",
            Kind::Noisy => "noisy",
            Kind::Dc => "dc",
        })
    }
}

/// Something that is wrong with a clip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Issue {
    /// Its kind.
    pub kind: Kind,
    /// What it is, with what was measured.
    pub says: String,
    /// Text that is heard instead, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposed: Option<String>,
}

impl Issue {
    fn new(kind: Kind, says: impl Into<String>) -> Self {
        Self { kind, says: says.into(), proposed: None }
    }
}

/// A clip, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Clip {
    /// As the data set names it.
    pub name: String,
    /// The file that says so.
    pub file: String,
    /// Line or row in it, from 1, where it has lines.
    pub line: Option<u64>,
    /// From 0, nothing is wrong, to 1, not usable.
    pub doubt: f64,
    /// What is wrong, most doubtful first.
    pub issues: Vec<Issue>,
    /// Of sound; 0 where it cannot be read.
    #[serde(skip)]
    pub seconds: f64,
    /// How loud it is from its beginning to its end: amplitudes of at most 160 stretches, of which the loudest is 255.
    #[serde(skip)]
    pub outline: Vec<u8>,
    /// By how much a model that hears doubts its text, from 0 to 1.
    #[serde(skip)]
    unlikely: f64,
}

impl Clip {
    /// Sums up what is wrong: as if each issue were another reason to doubt.
    fn weigh(&mut self) {
        let place = |kind| Kind::ALL.iter().position(|k| *k == kind);
        self.issues.sort_by_key(|issue| place(issue.kind));
        let of_kinds = self.issues.iter().map(|issue| 1.0 - issue.kind.weight());
        self.doubt = 1.0 - of_kinds.product::<f64>() * (1.0 - self.unlikely);
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// In words, the most important first.
    pub verdict: Vec<String>,
    /// All clips, the most doubtful first.
    pub clips: Vec<Clip>,
    /// All of them together.
    pub set: Set,
}

impl Checked {
    /// Returns the verdict and, after it, a table of the most doubtful clips, for people.
    pub fn describe(&self) -> Vec<String> {
        verdict::describe(self)
    }
}

fn written(path: &Path) -> String {
    path.display().to_string()
}
