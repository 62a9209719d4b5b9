//! How much there is of each voice, against what is advised for a model.

use std::fmt;

use super::Voice;
use crate::error::many;

/// So much of one voice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Minutes of sound.
    Minutes(f64),
    /// Clips, of a sentence or two.
    Clips(usize),
}

impl Amount {
    /// Returns what there is of a voice, counted in the same way.
    fn there(self, voice: &Voice) -> Amount {
        match self {
            Amount::Minutes(_) => Amount::Minutes(voice.seconds / 60.0),
            Amount::Clips(_) => Amount::Clips(voice.clips),
        }
    }

    fn number(self) -> f64 {
        match self {
            Amount::Minutes(minutes) => minutes,
            Amount::Clips(clips) => clips as f64,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Minutes(minutes) if minutes.fract() == 0.0 => write!(f, "{minutes:.0} min"),
            Amount::Minutes(minutes) => write!(f, "{minutes:.1} min"),
            Amount::Clips(clips) => f.write_str(&many(*clips, "clip")),
        }
    }
}

/// What is advised for a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advised {
    /// By whom, for people: `X's README`.
    pub by: &'static str,
    /// With which it begins to work, where anybody says so.
    pub least: Option<Amount>,
    /// Which is better.
    pub better: Amount,
}

impl Advised {
    /// Returns what is to be said of these voices: of the one of which there is least.
    pub(super) fn of(&self, voices: &[Voice]) -> Option<String> {
        let Self { by, least, better } = *self;
        let share = |voice: &&Voice| better.there(voice).number();
        let voice = voices.iter().min_by(|a, b| share(a).total_cmp(&share(b)))?;
        let advised = match least {
            Some(least) => format!("{least} of a voice, better {better},"),
            None => format!("{better} of a voice"),
        };
        let name = match (&voice.name, voices) {
            (_, [_]) => "there are".to_owned(),
            (Some(name), _) => format!("of {name} there are"),
            (None, _) => "without a voice's name there are".to_owned(),
        };
        let enough = match least {
            _ if better.there(voice).number() >= better.number() => "enough",
            Some(least) if least.there(voice).number() < least.number() => "too little",
            Some(_) => "enough to begin with",
            None => "less",
        };
        Some(format!("{advised} are advised ({by}): {name} {}, {enough}", better.there(voice)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_held_against_advice() {
        let voice = |name: Option<&str>, clips, seconds| Voice {
            name: name.map(str::to_owned),
            clips,
            seconds,
            ..Voice::default()
        };
        let minutes = Amount::Minutes;
        let by_minutes = Advised { by: "X", least: Some(minutes(2.0)), better: minutes(5.0) };
        let by_clips = Advised { by: "X", least: None, better: Amount::Clips(300) };
        for (advised, voices, says) in [
            (
                by_minutes,
                vec![voice(None, 9, 66.0)],
                "2 min of a voice, better 5 min, are advised (X): there are 1.1 min, too little",
            ),
            (by_minutes, vec![voice(None, 9, 180.0)], "there are 3 min, enough to begin with"),
            (
                by_minutes,
                vec![voice(Some("anna"), 90, 900.0), voice(Some("leo"), 90, 300.0)],
                "of leo there are 5 min, enough",
            ),
            (
                by_clips,
                vec![voice(Some("leo"), 90, 300.0)],
                "300 clips of a voice are advised (X): there are 90 clips, less",
            ),
            (
                by_clips,
                vec![voice(Some("leo"), 900, 300.0), voice(None, 1, 3.0)],
                "without a voice's name there are 1 clip, less",
            ),
        ] {
            let said = advised.of(&voices).expect("a sentence");
            assert!(said.ends_with(says), "{said}");
        }
        assert_eq!(by_clips.of(&[]), None);
    }
}
