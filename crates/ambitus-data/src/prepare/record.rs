//! What a pass records of each clip, and the result at its end.

use std::path::Path;
use std::sync::Arc;

use super::summary::{Advice, Tally, Unknown};
use super::{Policy, PrepareOptions, Prepared};
use crate::audio::AudioReader;
use crate::error::DataError;
use crate::index::{ClipMeta, IndexWriter};
use crate::outcomes::{Cause, Outcome, Outcomes, Verdict};
use crate::sources::{Audio, Source};

use super::engine::Done;

/// Reasons that are named where no clip is usable.
const NAMED: usize = 3;

/// Outcomes, index and summary while they are made.
pub(crate) struct Record {
    outcomes: Outcomes,
    index: IndexWriter,
    tally: Tally,
}

impl Record {
    /// Begins with what is known to be wrong; `extension` is that of the clip files.
    pub(crate) fn new(
        problems: &Outcomes,
        extension: &str,
        options: &PrepareOptions,
    ) -> Result<Self, DataError> {
        let outcomes = problems.copy(&options.cache)?;
        Ok(Self {
            outcomes,
            index: IndexWriter::new(&options.cache, extension)?,
            tally: Tally::new(options.edits),
        })
    }

    /// Returns a record of clips that are already tokenised.
    pub(crate) fn of_ids(extension: &str, options: &PrepareOptions) -> Result<Self, DataError> {
        let outcomes = Outcomes::new(&options.cache)?;
        Ok(Self { outcomes, index: IndexWriter::new(&options.cache, extension)?, tally: Tally::of_ids() })
    }

    /// Notes what became of a clip. Usable ones come in the order of their names.
    pub(crate) fn outcome(&mut self, outcome: Outcome, clip: Option<&ClipMeta>) -> Result<(), DataError> {
        if let Some(clip) = clip {
            self.index.push(clip)?;
            self.tally.usable(clip);
        }
        self.tally.outcome(&outcome);
        self.outcomes.push(outcome)
    }

    /// Records the outcome of an entry. See [`outcome`](Self::outcome).
    pub(crate) fn done(&mut self, done: Done, advice: &Advice) -> Result<(), DataError> {
        let Done { entry, verdict, clip, tokens } = done;
        self.tally.text(&entry, tokens, clip.is_some(), advice);
        let outcome = Outcome { name: entry.name, file: entry.file, line: Some(entry.line), verdict };
        self.outcome(outcome, clip.as_ref())
    }

    /// Looks at every audio file's beginning and notes those that are not audio: what can be said of them without going through
    /// all.
    pub(crate) fn look_at_audio(&mut self, source: &Source) -> Result<(), DataError> {
        for entry in source.entries() {
            let entry = entry?;
            let Audio::File(path) = &entry.audio else { continue };
            if let Err(error) = AudioReader::open(path) {
                let verdict = Verdict::Bad { cause: Cause::Audio, reason: error.to_string() };
                let line = Some(entry.line);
                self.outcomes.push(Outcome { name: entry.name, file: entry.file, line, verdict })?;
            }
        }
        Ok(())
    }

    /// Ends the pass before any clip was made, because of the vocabulary.
    pub(crate) fn refuse(self, unknown: Unknown, total: u64) -> DataError {
        match self.outcomes.publish() {
            Ok(()) => DataError::UnknownTokens {
                missing: unknown.missing,
                total,
                tokens: unknown.ranked(),
                others: self.outcomes.describe(),
            },
            Err(error) => error,
        }
    }

    /// Writes the files of the data set at `path`, and the summary.
    pub(crate) fn finish(
        self,
        path: &Path,
        options: &PrepareOptions,
        unknown: Unknown,
        advice: &Advice,
    ) -> Result<Prepared, DataError> {
        let Self { outcomes, index, tally } = self;
        outcomes.publish()?;
        if options.policy == Policy::Refuse && outcomes.outside > 0 {
            return Err(DataError::OutsideLimits { clips: outcomes.outside, lines: outcomes.describe() });
        }
        if index.index().is_empty() {
            let first: Vec<String> = outcomes.odd.iter().take(NAMED).map(Outcome::to_string).collect();
            let mut reason = first.join("; ");
            if outcomes.len() > first.len() {
                reason += &format!("; the others are in {}", outcomes.path().display());
            }
            return Err(DataError::NoClips { path: path.to_owned(), reason });
        }
        let summary = tally.summary(&outcomes, unknown, advice);
        Ok(Prepared { index: Arc::new(index.finish()?), outcomes, summary })
    }
}
