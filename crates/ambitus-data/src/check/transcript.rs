//! A clip's text beside the one that a model that hears finds likeliest.

use super::robust::Usual;
use super::{Clip, Issue, Kind};

/// A text as a model sees it, for one sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// Its words, as they are written, with the logarithms of their probabilities.
    pub words: Vec<(String, f64)>,
    /// Tokens of all of them.
    pub tokens: usize,
    /// Logarithm of the probability that it ends there.
    pub end: f64,
}

impl Likely {
    /// Mean over its tokens and its end.
    fn mean(&self) -> f64 {
        (self.words.iter().map(|(_, logprob)| logprob).sum::<f64>() + self.end) / (self.tokens + 1) as f64
    }
}

/// The text of the data set, and the model's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// As the data set has it.
    pub given: Likely,
    /// What the model writes.
    pub own: Likely,
}

impl Fit {
    /// Returns how much likelier a token of its own text is than one of the given text, in nats.
    fn gain(&self) -> f64 {
        (self.own.mean() - self.given.mean()).max(0.0)
    }
}

/// Deviations from what is usual in the set from which a text is named.
const ODD: f64 = 3.5;
/// The least deviation, nats: a set whose texts are all the model's own has none.
const DEVIATES: f64 = 0.05;
/// Two texts with a smaller share of words in common are of two sounds.
const SHARED: f64 = 0.34;

/// Doubts texts that are less likely than the model's own. `fits`: by clip.
pub(super) fn find(fits: &[(usize, Fit)], clips: &mut [Clip]) {
    let gains: Vec<f64> = fits.iter().map(|(_, fit)| fit.gain()).collect();
    // Of few clips nothing is usual but that texts fit.
    let usual = Usual::of(&gains).unwrap_or(Usual { middle: 0.0, spread: 0.0 });
    for ((clip, fit), gain) in fits.iter().zip(gains) {
        let found = differs(fit);
        let weight = 1.0 - (-2.0 * gain).exp();
        // Another spelling of the same words is little reason.
        let clip = &mut clips[*clip];
        clip.unlikely = if found.is_some() { weight } else { weight / 10.0 };
        let Some((kind, what)) = found.filter(|_| usual.above(gain, DEVIATES) > ODD) else { continue };
        let proposed = written(&fit.own);
        clip.issues.push(Issue {
            kind,
            says: format!("{what}; heard: \"{proposed}\""),
            proposed: Some(proposed),
        });
    }
}

fn written(likely: &Likely) -> String {
    let all: String = likely.words.iter().map(|(word, _)| word.as_str()).collect();
    all.trim().to_owned()
}

/// Returns a word as two texts are compared.
fn plain(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Words of a text without signs: as they are compared, and as they are written.
fn words(likely: &Likely) -> Vec<(String, &str)> {
    let all = likely.words.iter().map(|(word, _)| (plain(word), word.trim()));
    all.filter(|(plain, _)| !plain.is_empty()).collect()
}

/// Returns how the given text differs from the model's; none where it has the same words.
fn differs(fit: &Fit) -> Option<(Kind, String)> {
    let (given, own) = (words(&fit.given), words(&fit.own));
    let same = common(&given, &own);
    if same.len() == given.len().max(own.len()) {
        return None;
    }
    if (same.len() as f64) < SHARED * given.len().max(own.len()) as f64 {
        return Some((Kind::OtherText, "its text is not what is heard".to_owned()));
    }
    // What is heard of words that are not written, by where it is.
    let (first, last) = (same[0], same[same.len() - 1]);
    let (before, after) = (first.1, own.len() - 1 - last.1);
    let whole = given.len() == same.len() && same.iter().all(|(i, j)| j - first.1 == i - first.0);
    let said =
        |from: usize, to: usize| own[from..to].iter().map(|(_, word)| *word).collect::<Vec<_>>().join(" ");
    if whole && before > 0 {
        return Some((Kind::CutText, format!("\"{}\" is heard before its text", said(0, before))));
    }
    if whole && after > 0 {
        return Some((
            Kind::CutText,
            format!("\"{}\" is heard after its text", said(own.len() - after, own.len())),
        ));
    }
    // The first place where they part.
    let at = same.iter().enumerate().position(|(n, (i, j))| *i != n || *j != n).unwrap_or(same.len());
    let (end_given, end_own) = same.get(at).copied().unwrap_or((given.len(), own.len()));
    let has: Vec<&str> = given[at.min(end_given)..end_given].iter().map(|(_, word)| *word).collect();
    let heard = said(at.min(end_own), end_own);
    let says = match (has.join(" "), heard) {
        (has, heard) if has.is_empty() => format!("\"{heard}\" is heard and not written"),
        (has, heard) if heard.is_empty() => format!("\"{has}\" is written and not heard"),
        (has, heard) => format!("\"{has}\" is written, \"{heard}\" is heard"),
    };
    Some((Kind::WrongWords, says))
}

/// Returns the places of a longest common subsequence of words.
fn common(a: &[(String, &str)], b: &[(String, &str)]) -> Vec<(usize, usize)> {
    let width = b.len() + 1;
    let mut longest = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = if a[i].0 == b[j].0 {
                1 + longest[(i + 1) * width + j + 1]
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut places) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i].0 == b[j].0 {
            places.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likely(text: &str, logprob: f64) -> Likely {
        let words: Vec<_> = text.split(' ').map(|word| (format!(" {word}"), logprob)).collect();
        Likely { tokens: words.len(), words, end: -0.01 }
    }

    fn fit(given: &str, own: &str) -> Fit {
        Fit { given: likely(given, -3.0), own: likely(own, -0.1) }
    }

    #[test]
    fn the_words_that_differ_are_named() {
        let own = "The red house, over there.";
        for (given, kind, says) in [
            ("the red mouse over there", Kind::WrongWords, "\"mouse\" is written, \"house,\" is heard"),
            ("the red over there", Kind::WrongWords, "\"house,\" is heard and not written"),
            ("the red big house over there", Kind::WrongWords, "\"big\" is written and not heard"),
            ("red house over there", Kind::CutText, "\"The\" is heard before its text"),
            ("The red house", Kind::CutText, "\"over there.\" is heard after its text"),
            ("Nobody said the words", Kind::OtherText, "its text is not what is heard"),
            ("the red house over there now", Kind::WrongWords, "\"now\" is written and not heard"),
        ] {
            assert_eq!(differs(&fit(given, own)), Some((kind, says.to_owned())), "{given}");
        }
        assert_eq!(differs(&fit("the RED house over there", own)), None);
    }

    #[test]
    fn what_is_much_likelier_is_proposed() {
        let clip = Clip {
            name: String::new(),
            file: String::new(),
            line: None,
            doubt: 0.0,
            issues: vec![],
            seconds: 0.0,
            outline: vec![],
            unlikely: 0.0,
        };
        let mut clips = vec![clip; 20];
        let mut fits: Vec<_> =
            (0..20).map(|i| (i, Fit { given: likely("a b c", -0.2), own: likely("a b c", -0.1) })).collect();
        fits[4].1 = fit("a x c", "a b c");
        find(&fits, &mut clips);
        assert!(
            clips[4].unlikely > 0.9 && clips[4].issues[0].proposed.as_deref() == Some("a b c"),
            "{:?}",
            clips[4]
        );
        assert!(
            clips
                .iter()
                .enumerate()
                .all(|(i, clip)| i == 4 || clip.issues.is_empty() && clip.unlikely < 0.05)
        );
    }
}
