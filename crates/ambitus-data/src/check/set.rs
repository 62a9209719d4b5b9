//! All clips together: how much there is, how even and how varied it is.

use std::collections::BTreeMap;

use serde::Serialize;

use super::pitch::{Groups, Pitch};
use super::robust::{Usual, quantile};
use super::text::Script;
use super::{Clip, Issue, Kind};

/// Loudness that speech is given, LUFS.
const SPEECH: (f64, f64) = (-30.0, -14.0);
/// How far a clip may be from its voice's others, LU.
const UNEVEN: f64 = 6.0;

/// Who speaks, and how much.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Voice {
    /// As the data set says; none where it says nothing.
    pub name: Option<String>,
    /// Clips that can be read.
    pub clips: usize,
    /// Of these, seconds.
    pub seconds: f64,
    /// Median, LUFS.
    pub loudness: Option<f64>,
    /// Median of its clips' pitches, and of how much these vary.
    pub pitch: Option<Pitch>,
    /// Groups of clips with two pitches, where they are as far apart as two people's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Groups>,
}

/// What was measured of all clips together. Percentiles are the 5th, the 50th and the 95th.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Set {
    /// Clips and lines, whether they can be read or not.
    pub clips: usize,
    /// Left out by hand, and not looked at.
    pub dropped: usize,
    /// Of clips that can be read.
    pub seconds: f64,
    /// In which somebody speaks.
    pub speech_seconds: f64,
    /// Voices, by name.
    pub voices: Vec<Voice>,
    /// Percentiles of clips' lengths, seconds.
    pub lengths: Option<[f64; 3]>,
    /// Percentiles of their loudness, LUFS.
    pub loudness: Option<[f64; 3]>,
    /// Percentiles of letters in a second of speech.
    pub rates: Option<[f64; 3]>,
    /// Percentiles of speech over noise, dB.
    pub noise: Option<[f64; 3]>,
    /// Median of the range of levels within clips' speech, dB.
    pub energy: Option<f64>,
    /// Percentiles of clips' pitches, Hz.
    pub pitches: Option<[f64; 3]>,
    /// Of most letters.
    pub script: Option<String>,
    /// How often each letter is in the texts, without case.
    pub letters: BTreeMap<char, u64>,
    /// Texts that end as questions.
    pub questions: usize,
    /// Texts that end as exclamations.
    pub exclamations: usize,
    /// Clips that the model could not be asked about, with why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<String>,
}

pub(super) fn percentiles(values: &[f64]) -> Option<[f64; 3]> {
    Some([quantile(values, 0.05)?, quantile(values, 0.5)?, quantile(values, 0.95)?])
}

/// Names clips that are softer or louder than speech, or than their voice's others. `of`: clips, their voices and loudness.
pub(super) fn loudness(of: &[(usize, Option<u32>, f64)], clips: &mut [Clip]) {
    let mut by = BTreeMap::<_, Vec<f64>>::new();
    of.iter().for_each(|(_, voice, x)| by.entry(*voice).or_default().push(*x));
    let usual: BTreeMap<_, _> =
        by.iter().filter_map(|(voice, all)| Some((*voice, Usual::of(all)?.middle))).collect();
    for (clip, voice, x) in of {
        let usual = usual.get(voice);
        let beside = usual.map_or(String::new(), |usual| format!("; {usual:.0} is usual here"));
        let says = format!("{x:.0} LUFS{beside}");
        let off = usual.map_or(0.0, |usual| x - usual);
        if *x < SPEECH.0 || off < -UNEVEN {
            clips[*clip].issues.push(Issue::new(Kind::Quiet, says));
        } else if *x > SPEECH.1 || off > UNEVEN {
            clips[*clip].issues.push(Issue::new(Kind::Loud, says));
        }
    }
}

/// Names clips of another script than most, and returns that of most.
pub(super) fn scripts(of: &[(usize, Script)], clips: &mut [Clip]) -> Option<Script> {
    let mut counts = BTreeMap::<Script, usize>::new();
    of.iter().for_each(|(_, script)| *counts.entry(*script).or_default() += 1);
    let (most, n) = counts.into_iter().max_by_key(|(script, n)| (*n, std::cmp::Reverse(*script)))?;
    // Of a set in two languages neither is odd.
    if 10 * n >= 9 * of.len() {
        for (clip, script) in of.iter().filter(|(_, script)| *script != most) {
            let says = format!("its letters are {script}, the other clips' {most}");
            clips[*clip].issues.push(Issue::new(Kind::Script, says));
        }
    }
    Some(most)
}
