//! How much is said in how long.

use std::collections::BTreeMap;

use super::robust::Usual;
use super::{Clip, Issue, Kind};

/// Letters and digits a second that nobody speaks less or more than: of alphabets, and of scripts whose characters are syllables.
const SPOKEN: [(f64, f64); 2] = [(5.0, 25.0), (2.0, 9.0)];
/// Deviations from what is usual that are odd.
const ODD: f64 = 3.5;
/// A rate varies by this share of the usual one in any speech.
const VARIES: f64 = 0.08;
/// Texts and stretches of speech that are shorter say little of a rate.
const SHORTEST: (usize, f64) = (5, 0.3);

/// A clip's rate.
pub(super) struct Rate {
    pub(super) clip: usize,
    /// Of whom, and whether of syllables: what is usual is theirs.
    pub(super) of: (Option<u32>, bool),
    pub(super) characters: usize,
    /// In which somebody speaks.
    pub(super) seconds: f64,
}

impl Rate {
    /// Returns letters and digits a second, where there are enough of them.
    pub(super) fn a_second(&self) -> Option<f64> {
        let enough = self.characters >= SHORTEST.0 && self.seconds >= SHORTEST.1;
        enough.then(|| self.characters as f64 / self.seconds)
    }
}

/// Names clips that are faster or slower than anybody speaks, or than the voice's others.
pub(super) fn find(rates: &[Rate], clips: &mut [Clip]) {
    let mut by = BTreeMap::<_, Vec<f64>>::new();
    for rate in rates {
        by.entry(rate.of).or_default().extend(rate.a_second());
    }
    let usual: BTreeMap<_, _> =
        by.iter().filter_map(|(of, values)| Some((*of, Usual::of(values)?))).collect();
    for rate in rates {
        let Some(x) = rate.a_second() else { continue };
        let (least, most) = SPOKEN[usize::from(rate.of.1)];
        let usual = usual.get(&rate.of);
        let odd = usual.map_or(0.0, |usual| usual.above(x, VARIES * usual.middle));
        let beside = usual.map_or(String::new(), |usual| format!("; {:.1} is usual here", usual.middle));
        let says = |what: &str| format!("{x:.1} letters in a second of speech{beside}: {what}");
        if x > most || odd > ODD {
            clips[rate.clip].issues.push(Issue::new(Kind::Fast, says("is more written than is said?")));
        } else if x < least || odd < -ODD {
            clips[rate.clip].issues.push(Issue::new(Kind::Slow, says("is more said than is written?")));
        }
    }
}
