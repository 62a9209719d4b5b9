//! What a person should know of the data before training on it.

use std::fmt;

use serde::Serialize;

use super::{Outcome, Verdict};
use crate::index::ClipIndex;
use crate::sources::Entry;

/// Root mean square above which a clip counts as loud: −12 dBFS, where speech has been compressed or is near clipping.
pub const LOUD_RMS: f32 = 0.25;
/// Minutes of audio that the F5-TTS authors and users advise for one voice.
pub const ADVISED_MINUTES: (f64, f64) = (3.0, 10.0);
/// Upper bounds of the length classes, seconds.
const CLASSES: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 12.0, 20.0, f64::INFINITY];

/// Result of the checks over a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Usable clips.
    pub clips: usize,
    /// Clips that cannot be used.
    pub bad: usize,
    /// Clips outside the limits.
    pub outside: usize,
    /// Clips taken from the cache.
    pub cached: usize,
    /// Usable audio, minutes.
    pub minutes: f64,
    /// Shortest, median and longest usable clip, seconds.
    pub seconds: [f64; 3],
    /// Usable clips by length: (upper bound in seconds, clips); the last class has no bound.
    pub lengths: Vec<(Option<f64>, usize)>,
    /// Usable clips of more than two sentences, where the family does better with fewer.
    pub over_two_sentences: Vec<String>,
    /// Usable clips louder than [`LOUD_RMS`].
    pub loud: Vec<String>,
    /// Usable clips with runs of samples at full scale.
    pub clipped: Vec<String>,
    /// Clips without sound; they are not used.
    pub silent: Vec<String>,
    /// Usable clips that lost silence at their ends to fit the limit.
    pub trimmed: Vec<String>,
    /// Tokens of all transcripts.
    pub tokens: u64,
    /// Tokens not in the vocabulary, most frequent first.
    pub unknown: Vec<(String, u64)>,
    /// What more data is advised, if it is.
    pub advice: Option<String>,
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

impl Summary {
    pub(crate) fn new(
        index: &ClipIndex,
        outcomes: &[Outcome],
        entries: &[Entry],
        (tokens, unknown): (u64, Vec<(String, u64)>),
        advice: &Advice,
    ) -> Self {
        let mut seconds: Vec<f64> = index.clips.iter().map(|c| c.measured.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let mut lower = 0.0;
        let lengths = CLASSES
            .iter()
            .map(|&upper| {
                let count = seconds.iter().filter(|&&s| s > lower && s <= upper).count();
                lower = upper;
                (upper.is_finite().then_some(upper), count)
            })
            .collect();
        let names = |keep: &dyn Fn(&crate::index::ClipMeta) -> bool| -> Vec<String> {
            index.clips.iter().filter(|c| keep(c)).map(|c| c.name.clone()).collect()
        };
        let usable: std::collections::HashSet<&str> = index.clips.iter().map(|c| c.name.as_str()).collect();
        let count = |keep: fn(&Verdict) -> bool| outcomes.iter().filter(|o| keep(&o.verdict)).count();
        let minutes = seconds.iter().sum::<f64>() / 60.0;
        Self {
            clips: index.clips.len(),
            bad: count(|v| matches!(v, Verdict::Bad { .. })),
            outside: count(|v| matches!(v, Verdict::Outside { .. })),
            cached: count(|v| matches!(v, Verdict::Ok { cached: true })),
            minutes,
            seconds: match seconds[..] {
                [] => [0.0; 3],
                _ => [seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]],
            },
            lengths,
            over_two_sentences: entries
                .iter()
                .filter(|e| usable.contains(e.name.as_str()))
                .filter(|e| advice.sentences.is_some_and(|most| sentences(&e.text) > most))
                .map(|e| e.name.clone())
                .collect(),
            loud: names(&|c| c.measured.rms > LOUD_RMS),
            clipped: names(&|c| c.measured.clipped),
            trimmed: names(&|c| c.measured.trimmed),
            silent: outcomes
                .iter()
                .filter(|o| matches!(o.verdict, Verdict::Bad { silent: true, .. }))
                .map(|o| o.name.clone())
                .collect(),
            tokens,
            unknown,
            advice: advice.text(index.clips.len(), minutes),
        }
    }
}

/// Sentences of a text: runs of closing punctuation that end it or are followed by a space, or any Chinese ones.
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
        write!(f, "{} clips, {:.1} min", self.clips, self.minutes)?;
        if self.cached > 0 {
            write!(f, " ({} from the cache)", self.cached)?;
        }
        if let Some(advice) = &self.advice {
            write!(f, "; {advice}")?;
        }
        let [short, median, long] = self.seconds;
        write!(f, "\nlengths {short:.1} / {median:.1} / {long:.1} s (shortest, median, longest):")?;
        for (upper, count) in self.lengths.iter().filter(|(_, count)| *count > 0) {
            match upper {
                Some(upper) => write!(f, " <={upper:.0} s: {count}")?,
                None => write!(f, " longer: {count}")?,
            }
        }
        if self.bad + self.outside > 0 {
            write!(f, "\nnot used: {} bad, {} outside the limits", self.bad, self.outside)?;
        }
        for (what, names) in [
            ("over two sentences", &self.over_two_sentences),
            ("loud", &self.loud),
            ("clipped", &self.clipped),
            ("silent (not used)", &self.silent),
            ("silence cut off", &self.trimmed),
        ] {
            if let Some(first) = names.first() {
                write!(
                    f,
                    "\n{what}: {} ({first}{})",
                    names.len(),
                    if names.len() > 1 { ", ..." } else { "" }
                )?;
            }
        }
        if !self.unknown.is_empty() {
            let all: u64 = self.unknown.iter().map(|(_, n)| n).sum();
            let shown: Vec<String> =
                self.unknown.iter().take(10).map(|(t, n)| format!("{t:?} x {n}")).collect();
            write!(
                f,
                "\nnot in the vocabulary, read as a space: {all} of {} tokens: {}",
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
