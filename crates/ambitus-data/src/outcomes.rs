//! What became of each clip of a data set. The list is on disk; counts and the first few unusable clips are in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use crate::error::{DataError, many};
use crate::measured::Edited;
use crate::scratch::Scratch;

/// File of all outcomes in the cache folder: one JSON object a line.
pub const OUTCOMES_FILE: &str = "outcomes.jsonl";
/// Clips that are not usable and are shown; the others are in the file.
const SHOWN: usize = 20;

/// What became of one clip of the source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the clip, or what stands in its place.
    pub name: String,
    /// File to look at when it is not usable.
    #[serde(serialize_with = "lossy")]
    pub file: PathBuf,
    /// Line in it, from 1, where it has lines.
    pub line: Option<u64>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Serializes a path; one that is not UTF-8 is still worth showing.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Usable or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// Usable.
    Ok {
        /// It was in the cache already.
        cached: bool,
        /// What was changed about its sound.
        #[serde(flatten)]
        edited: Edited,
    },
    /// Cannot be used.
    Bad {
        /// What kind of thing is wrong.
        cause: Cause,
        /// Why.
        reason: String,
    },
    /// Outside the limits.
    Outside {
        /// How.
        reason: String,
    },
}

/// Kinds of what makes a clip unusable, to count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A line or row of the metadata that cannot be read.
    Metadata,
    /// Its audio is not there, or out of bounds.
    NoAudio,
    /// Its audio belongs to an earlier clip already.
    Twice,
    /// Its transcript is missing or cannot be used.
    Transcript,
    /// Its description is missing or cannot be used.
    Description,
    /// Its audio cannot be decoded.
    Audio,
    /// Nothing is to be heard in it.
    Silent,
    /// Left out by hand.
    Dropped,
}

/// What is wrong with a clip.
pub(crate) type Problem = (Cause, String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "unreadable lines",
            Self::NoAudio => "without audio",
            Self::Twice => "named twice",
            Self::Transcript => "by their transcripts",
            Self::Description => "by their descriptions",
            Self::Audio => "by their audio",
            Self::Silent => "silent",
            Self::Dropped => "left out by hand",
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match &self.verdict {
            Verdict::Ok { .. } => write!(f, ": {}: ok", self.name),
            Verdict::Bad { reason, .. } => write!(f, ": {}: not used: {reason}", self.name),
            Verdict::Outside { reason } => {
                write!(f, ": {}: outside the limits: {reason}", self.name)
            }
        }
    }
}

/// Outcomes in the order in which they were found: what is wrong with the metadata first, then clips by their names.
#[derive(Debug)]
pub struct Outcomes {
    folder: PathBuf,
    lines: Scratch,
    /// Usable.
    pub ok: usize,
    /// Of these, found in the cache.
    pub cached: usize,
    /// Outside the limits.
    pub outside: usize,
    /// Not usable, by what is wrong.
    pub bad: BTreeMap<Cause, usize>,
    /// The first that are not usable.
    pub odd: Vec<Outcome>,
}

impl Outcomes {
    /// Returns empty outcomes; later ones are kept in a folder, which is made if missing.
    pub(crate) fn new(folder: &Path) -> Result<Self, DataError> {
        let lines = Scratch::new(folder)?;
        let (bad, odd) = (BTreeMap::new(), Vec::new());
        Ok(Self { folder: folder.to_owned(), lines, ok: 0, cached: 0, outside: 0, bad, odd })
    }

    pub(crate) fn push(&mut self, outcome: Outcome) -> Result<(), DataError> {
        let mut line = serde_json::to_vec(&outcome).map_err(|e| DataError::io(&self.folder, e.into()))?;
        line.push(b'\n');
        self.lines.append(&line)?;
        match &outcome.verdict {
            Verdict::Ok { cached, .. } => {
                self.ok += 1;
                self.cached += usize::from(*cached);
                return Ok(());
            }
            Verdict::Bad { cause, .. } => *self.bad.entry(*cause).or_default() += 1,
            Verdict::Outside { .. } => self.outside += 1,
        }
        if self.odd.len() < SHOWN {
            self.odd.push(outcome);
        }
        Ok(())
    }

    /// Returns a copy that can be written on.
    pub(crate) fn copy(&self, folder: &Path) -> Result<Self, DataError> {
        let mut lines = Scratch::new(folder)?;
        lines.append_all(self.lines.reader())?;
        let (bad, odd) = (self.bad.clone(), self.odd.clone());
        let Self { ok, cached, outside, .. } = *self;
        Ok(Self { folder: folder.to_owned(), lines, ok, cached, outside, bad, odd })
    }

    /// Returns all of them.
    pub fn len(&self) -> usize {
        self.ok + self.outside + self.all_bad()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of clips that are not usable, for any reason.
    pub fn all_bad(&self) -> usize {
        self.bad.values().sum()
    }

    /// Reads them back, one at a time.
    ///
    /// # Errors
    /// The disk fails.
    pub fn iter(&self) -> impl Iterator<Item = Result<Outcome, DataError>> + '_ {
        let failed = |e: std::io::Error| DataError::io(&self.folder, e);
        self.lines()
            .map(move |line| line.and_then(|l| serde_json::from_str(&l).map_err(|e| failed(e.into()))))
    }

    /// Returns the outcomes of [`iter`](Self::iter), each as its JSON.
    ///
    /// # Errors
    /// As there.
    pub fn lines(&self) -> impl Iterator<Item = Result<String, DataError>> + '_ {
        let lines = BufReader::new(self.lines.reader()).lines();
        lines.map(|line| line.map_err(|e| DataError::io(&self.folder, e)))
    }

    /// Returns where all of them are once the pass has ended.
    pub fn path(&self) -> PathBuf {
        self.folder.join(OUTCOMES_FILE)
    }

    /// Makes [`path`](Self::path), whole or not at all.
    pub(crate) fn publish(&self) -> Result<(), DataError> {
        self.lines.publish(&self.path())
    }

    /// Returns the lines for people: the first that are not usable, and where the others are.
    pub fn describe(&self) -> Vec<String> {
        let mut odd: Vec<&Outcome> = self.odd.iter().collect();
        odd.sort_by_key(|o| (&o.name, o.line));
        let mut lines: Vec<String> = odd.iter().map(|o| format!("  {o}")).collect();
        let more = self.outside + self.all_bad() - self.odd.len();
        if more > 0 {
            lines.push(format!("  and {}: all are in {}", many(more, "other"), self.path().display()));
        }
        lines
    }
}
