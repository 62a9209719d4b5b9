//! What a person should know about the data before training on it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;

use super::changes::Changes;
use super::edits::Edits;
use crate::error::many;
use crate::index::ClipMeta;
use crate::outcomes::{Cause, Outcome, Outcomes, Verdict};
use crate::sources::Entry;

/// Root mean square above which a clip counts as loud: −12 dBFS, where speech has been compressed or is near clipping.
pub const LOUD_RMS: f32 = 0.25;
/// Minutes of audio that authors and users advise for one voice.
pub const ADVISED_MINUTES: (f64, f64) = (3.0, 10.0);
/// Upper bounds of the length classes, seconds.
const CLASSES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 12.0, 20.0, f64::INFINITY];
/// Names that are kept of clips of a kind.
const NAMED: usize = 20;
/// Different tokens that are counted one by one; a vocabulary that lacks more is another language's.
const COUNTED: usize = 1000;

/// Result of the checks over a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Usable clips.
    pub clips: usize,
    /// Clips that cannot be used.
    pub bad: usize,
    /// Of these, how many for what.
    pub causes: BTreeMap<Cause, usize>,
    /// Clips outside the limits.
    pub outside: usize,
    /// Clips taken from the cache.
    pub cached: usize,
    /// Usable audio, minutes.
    pub minutes: f64,
    /// Shortest, median and longest usable clip, seconds.
    pub seconds: [f64; 3],
    /// Shortest, median and longest usable sequence of data that is tokenised already, and all of them together, in ids.
    pub ids: Option<([u32; 3], u64)>,
    /// Usable clips by length: (upper bound in seconds, clips); the last class has no bound.
    pub lengths: Vec<(Option<f64>, usize)>,
    /// Usable clips of more than two sentences, where the family does better with fewer.
    pub over_two_sentences: Named,
    /// Usable clips louder than [`LOUD_RMS`].
    pub loud: Named,
    /// Usable clips with runs of samples at full scale.
    pub clipped: Named,
    /// Clips without sound; they are not used.
    pub silent: Named,
    /// Usable clips that lost silence at their ends to fit the limit.
    pub trimmed: Named,
    /// What was changed about the sound of usable clips, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edits: Option<Changes>,
    /// Tokens of all transcripts.
    pub tokens: u64,
    /// Of these, not in the vocabulary.
    pub missing: u64,
    /// Tokens that are not in it, most frequent first; the first thousand that came where there are more.
    pub unknown: Vec<(String, u64)>,
    /// What more data is advised, if it is.
    pub advice: Option<String>,
}

/// Clips of a kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Named {
    /// How many.
    pub count: usize,
    /// Names of the first.
    pub first: Vec<String>,
}

impl Named {
    pub(super) fn add(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(name.to_owned());
        }
    }
}

/// Tokens that are not in a vocabulary.
#[derive(Default)]
pub(crate) struct Unknown {
    /// All of them.
    pub(crate) missing: u64,
    counts: HashMap<String, u64>,
}

impl Unknown {
    pub(crate) fn add(&mut self, token: String) {
        self.missing += 1;
        let counted = self.counts.len() < COUNTED || self.counts.contains_key(&token);
        if counted {
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// Returns each with its count, most frequent first.
    pub(crate) fn ranked(self) -> Vec<(String, u64)> {
        let mut ranked: Vec<(String, u64)> = self.counts.into_iter().collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        ranked
    }
}

/// What a family's authors and users advise.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Advice {
    /// Least and most minutes of one voice.
    pub(crate) minutes: Option<(f64, f64)>,
    /// Least clips, and clips of each voice.
    pub(crate) clips: Option<(usize, usize)>,
    /// Most sentences of a clip.
    pub(crate) sentences: Option<usize>,
}

impl Advice {
    fn text(&self, clips: usize, minutes: f64) -> Option<String> {
        if let Some((least, most)) = self.minutes.filter(|(least, _)| minutes < *least) {
            return Some(format!("{least:.0} to {most:.0} min of one voice are advised"));
        }
        let (least, each) = self.clips.filter(|(least, _)| clips < *least)?;
        Some(format!("at least {least} clips are advised, better {each} of each voice"))
    }
}

/// What a summary is made of, gathered clip by clip: a number for each, and names of a few.
#[derive(Default)]
pub(crate) struct Tally {
    seconds: Vec<f64>,
    /// Lengths in ids, of data that is tokenised already.
    ids: Option<Vec<u32>>,
    over_two_sentences: Named,
    loud: Named,
    clipped: Named,
    silent: Named,
    trimmed: Named,
    asked: Edits,
    changes: Changes,
    tokens: u64,
}

impl Tally {
    /// Returns an empty summary of clips of which that is changed.
    pub(crate) fn new(asked: Edits) -> Self {
        Self { asked, ..Self::default() }
    }

    /// Returns an empty summary of clips that are already tokenised.
    pub(crate) fn of_ids() -> Self {
        Self { ids: Some(Vec::new()), ..Self::default() }
    }

    pub(crate) fn usable(&mut self, clip: &ClipMeta) {
        self.seconds.push(clip.measured.seconds);
        if let Some(ids) = &mut self.ids {
            ids.push(clip.frames);
            self.tokens += u64::from(clip.tokens);
        }
        for (of, is) in [
            (&mut self.loud, clip.measured.rms > LOUD_RMS),
            (&mut self.clipped, clip.measured.clipped),
            (&mut self.trimmed, clip.measured.trimmed),
        ] {
            if is {
                of.add(&clip.name);
            }
        }
        self.changes.add(&self.asked, clip);
    }

    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        if matches!(outcome.verdict, Verdict::Bad { cause: Cause::Silent, .. }) {
            self.silent.add(&outcome.name);
        }
    }

    pub(crate) fn text(&mut self, entry: &Entry, tokens: usize, usable: bool, advice: &Advice) {
        self.tokens += tokens as u64;
        if usable && advice.sentences.is_some_and(|most| sentences(&entry.text) > most) {
            self.over_two_sentences.add(&entry.name);
        }
    }

    pub(crate) fn summary(mut self, outcomes: &Outcomes, unknown: Unknown, advice: &Advice) -> Summary {
        self.seconds.sort_by(f64::total_cmp);
        let seconds = self.seconds;
        let mut lower = 0.0;
        let lengths = CLASSES
            .iter()
            .map(|&upper| {
                let count = seconds.iter().filter(|&&s| s > lower && s <= upper).count();
                lower = upper;
                (upper.is_finite().then_some(upper), count)
            })
            .collect();
        let minutes = seconds.iter().sum::<f64>() / 60.0;
        let ids = self.ids.map(|mut ids| {
            ids.sort_unstable();
            (middle(&ids), ids.iter().map(|&n| u64::from(n)).sum())
        });
        Summary {
            clips: outcomes.ok,
            bad: outcomes.all_bad(),
            causes: outcomes.bad.clone(),
            outside: outcomes.outside,
            cached: outcomes.cached,
            minutes,
            seconds: middle(&seconds),
            ids,
            lengths,
            over_two_sentences: self.over_two_sentences,
            loud: self.loud,
            clipped: self.clipped,
            silent: self.silent,
            trimmed: self.trimmed,
            edits: self.asked.any().then_some(self.changes),
            tokens: self.tokens,
            missing: unknown.missing,
            unknown: unknown.ranked(),
            advice: advice.text(outcomes.ok, minutes),
        }
    }
}

/// Returns the smallest, median and largest of what is sorted.
fn middle<T: Copy + Default>(sorted: &[T]) -> [T; 3] {
    match sorted {
        [] => [T::default(); 3],
        [first, ..] => [*first, sorted[sorted.len() / 2], sorted[sorted.len() - 1]],
    }
}

/// Counts the sentences of a text: runs of closing punctuation that end it or are followed by a space, or any Chinese ones.
pub(super) fn sentences(text: &str) -> usize {
    let mut count = 0;
    let mut open = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let ends = match c {
            '。' | '！' | '？' => true,
            '.' | '!' | '?' | '…' => {
                chars.peek().is_none_or(|n| n.is_whitespace() || matches!(n, '"' | '\'' | '”' | '’' | ')'))
            }
            _ => false,
        };
        if ends && open {
            count += 1;
            open = false;
        } else if c.is_alphanumeric() {
            open = true;
        }
    }
    count + usize::from(open)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", many(self.clips, "clip"))?;
        match &self.ids {
            Some((_, all)) => write!(f, "{all} tokens")?,
            None => write!(f, "{:.1} min", self.minutes)?,
        }
        if self.cached > 0 {
            write!(f, " ({} from the cache)", self.cached)?;
        }
        if let Some(advice) = &self.advice {
            write!(f, "; {advice}")?;
        }
        const WHICH: &str = "(shortest, median, longest)";
        match &self.ids {
            Some(([short, median, long], _)) => {
                write!(f, "\nlengths {short} / {median} / {long} tokens {WHICH}")?;
            }
            None => {
                let [short, median, long] = self.seconds;
                write!(f, "\nlengths {short:.1} / {median:.1} / {long:.1} s {WHICH}:")?;
                for (upper, count) in self.lengths.iter().filter(|(_, count)| *count > 0) {
                    match upper {
                        Some(upper) => write!(f, " <={upper:.0} s: {count}")?,
                        None => write!(f, " longer: {count}")?,
                    }
                }
            }
        }
        if self.bad + self.outside > 0 {
            write!(f, "\nnot used: {} bad", self.bad)?;
            if self.bad > 0 {
                let causes: Vec<String> = self.causes.iter().map(|(why, n)| format!("{n} {why}")).collect();
                write!(f, " ({})", causes.join(", "))?;
            }
            write!(f, ", {} outside the limits", self.outside)?;
        }
        for (what, named) in [
            ("over two sentences", &self.over_two_sentences),
            ("loud", &self.loud),
            ("clipped", &self.clipped),
            ("silent (not used)", &self.silent),
            ("silence cut off", &self.trimmed),
        ] {
            if let Some(first) = named.first.first() {
                write!(
                    f,
                    "\n{what}: {} ({first}{})",
                    named.count,
                    if named.count > 1 { ", ..." } else { "" }
                )?;
            }
        }
        if let Some(changes) = &self.edits {
            write!(f, "{changes}")?;
        }
        if self.missing > 0 {
            let shown: Vec<String> =
                self.unknown.iter().take(10).map(|(t, n)| format!("{t:?} x {n}")).collect();
            write!(
                f,
                "\nnot in the vocabulary, read as a space: {} of {} tokens: {}",
                self.missing,
                self.tokens,
                shown.join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::sentences;

    #[test]
    fn counts_sentences() {
        for (text, n) in [
            ("One.", 1),
            ("no mark", 1),
            ("One. Two! Three?", 3),
            ("Pi is 3.14 today.", 1),
            ("He said \"no.\" Then left", 2),
            ("Wait... what?", 2),
            ("你好。我很好！真的？", 3),
            ("...", 0),
        ] {
            assert_eq!(sentences(text), n, "{text}");
        }
    }
}
