//! Clips that a plan assumes if there is no data: `--assume 32x5s,1x17s`, or as long as the recipe allows.

use super::{Data, Kind, Stays};
use ambitus_data::sources::clip_bytes;
use ambitus_data::{ClipIndex, Split};
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_families::prepare::{Limit, limits};
use ambitus_models::{Model, Rows};
use ambitus_recipe::recipe::{Outside, Recipe, Validation};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Clips of an assumed data set: enough that updates are formed as of a real one.
const CLIPS: usize = 64;
/// More clips than any data set that is planned for.
const MOST_CLIPS: usize = 1 << 20;
/// Bytes of a clip's name.
const NAME: usize = 32;
/// The shortest clips that a plan of clips as long as allowed is made shorter to.
const SHORTEST: f64 = 1.0;

/// Clips by count and length, as after `--assume`.
#[derive(Clone, Debug, PartialEq)]
pub struct Assume(Vec<(usize, Length)>);

/// How long a clip is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Length {
    Seconds(f64),
    /// Rows, and the first letter of their unit.
    Rows(u32, char),
}

impl FromStr for Assume {
    type Err = String;

    fn from_str(text: &str) -> Result<Assume, String> {
        let part = |part: &str| {
            let bad = || {
                format!(
                    "`{part}` is not a number of clips and their length: write 32x5s, or 32x800t of tokens, 32x400f of frames"
                )
            };
            let (count, length) = part.trim().split_once('x').unwrap_or(("1", part.trim()));
            let count: usize = count.parse().map_err(|_| bad())?;
            let unit = length.chars().last().ok_or_else(bad)?;
            let number = &length[..length.len() - unit.len_utf8()];
            let rows = || number.parse().ok().filter(|n| (1..1 << 24).contains(n)).ok_or_else(bad);
            let length = match unit {
                's' => Length::Seconds(number.parse().ok().filter(|s| *s > 0.0 && *s < 1e5).ok_or_else(bad)?),
                'f' | 't' => Length::Rows(rows()?, unit),
                _ => return Err(bad()),
            };
            if count == 0 { Err(bad()) } else { Ok((count, length)) }
        };
        let parts = text.split(',').map(part).collect::<Result<Vec<_>, _>>()?;
        match parts.iter().map(|(n, _)| *n as u128).sum::<u128>() {
            n if n > MOST_CLIPS as u128 => {
                Err(format!("{n} clips are more than the {MOST_CLIPS} that can be assumed"))
            }
            _ => Ok(Assume(parts)),
        }
    }
}

impl fmt::Display for Assume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |(count, length): &(usize, Length)| match length {
            Length::Seconds(s) => format!("{count}x{s}s"),
            Length::Rows(n, unit) => format!("{count}x{n}{unit}"),
        };
        f.write_str(&self.0.iter().map(part).collect::<Vec<_>>().join(","))
    }
}

/// Clips that are assumed.
pub(super) struct Assumed {
    clips: Vec<Clip>,
    /// Those outside the limits too.
    all: usize,
    /// For people.
    pub said: String,
    /// Why they are.
    pub why: String,
    /// They are as long as the recipe allows, and shorter ones where it allows less.
    as_allowed: bool,
}

#[derive(Clone, Copy)]
struct Clip {
    seconds: f64,
    rows: u32,
}

impl Assumed {
    /// Assumes clips of equal length: as long as the micro-batch that a settled recipe asks for, else as `data.max_seconds` allows, and
    /// no longer than the model takes.
    /// `gone`: the data folder that is missing.
    pub fn as_allowed(recipe: &Recipe, model: &dyn Model, gone: Option<&Path>) -> Assumed {
        let Rows { unit, per_second, most } = model.rows();
        let longest = (recipe.data.max_seconds * per_second).ceil() as u64;
        let most = most.map_or(1 << 30, |most| most as u64).max(1);
        let rows = recipe.micro_batch.frames.unwrap_or(longest).clamp(1, most) as u32;
        let clip = Clip { seconds: f64::from(rows) / per_second, rows };
        let said = format!("{CLIPS} clips of {rows} {unit} ({:.0} s)", clip.seconds);
        let why = gone.map_or("assumed".to_owned(), |dir| format!("assumed: {} is not there", dir.display()));
        Assumed { clips: vec![clip; CLIPS], all: CLIPS, said, why, as_allowed: true }
    }

    /// Returns the named clips. Those outside the recipe's limits are left out, as real ones are.
    ///
    /// # Errors
    /// A unit of another family, or clips outside the limits that may not be left out.
    pub fn named(assume: &Assume, recipe: &Recipe, model: &ModelDir) -> Result<Assumed, RunError> {
        let usage = |why: String| Err(RunError::Usage(format!("--assume {assume}: {why}")));
        let per_second = model.model.rows().per_second;
        let (mut clips, mut left_out) = (Vec::new(), 0);
        for (count, length) in &assume.0 {
            let clip = match clip(*length, model) {
                Ok(clip) => clip,
                Err(why) => return usage(why),
            };
            let data = &recipe.data;
            // As many rows as `as_allowed` assumes are within the limit, though they are a fraction of a row longer.
            let longest = (data.max_seconds * per_second).ceil() / per_second;
            let within = (data.min_seconds..=longest).contains(&clip.seconds)
                && model.opened.most_rows().is_none_or(|most| u64::from(clip.rows) <= most);
            match within {
                true => clips.resize(clips.len() + count, clip),
                false => left_out += count,
            }
        }
        if clips.is_empty() || (left_out > 0 && recipe.data.outside == Outside::Refuse) {
            return usage(format!(
                "{left_out} clips are outside the limits ({} to {} s): change them (--max-seconds)",
                recipe.data.min_seconds, recipe.data.max_seconds
            ));
        }
        let counted = assume.0.iter().all(|(_, length)| matches!(length, Length::Rows(..)));
        let text = model.opened.text_assumed(counted);
        let out =
            if left_out > 0 { format!(", {left_out} of them outside the limits") } else { String::new() };
        let said = format!("{assume}{out}; {text}");
        Ok(Assumed {
            all: clips.len() + left_out,
            clips,
            said,
            why: "command line: --assume".to_owned(),
            as_allowed: false,
        })
    }

    /// Returns these clips under another limit of length.
    fn up_to(&self, seconds: f64, recipe: &Recipe, model: &dyn Model) -> Assumed {
        if self.as_allowed {
            let mut shorter = recipe.clone();
            shorter.data.max_seconds = seconds;
            return Assumed::as_allowed(&shorter, model, None);
        }
        let clips = self.clips.iter().filter(|c| c.seconds <= seconds).copied().collect();
        Assumed { clips, all: self.all, said: self.said.clone(), why: self.why.clone(), as_allowed: false }
    }

    /// Returns the seconds of the shortest and longest clip that a limit leaves out, or shortens.
    fn ends(&self) -> [f64; 2] {
        let seconds = || self.clips.iter().map(|c| c.seconds);
        let shortest = seconds().chain(self.as_allowed.then_some(SHORTEST)).fold(f64::INFINITY, f64::min);
        [shortest, seconds().fold(0.0, f64::max)]
    }

    /// Returns what preparing would hold of them all the time.
    pub fn held_bytes(&self) -> u64 {
        clip_bytes(self.all, self.all * NAME)
    }

    /// Returns what their index would take.
    pub fn index_bytes(&self) -> u64 {
        ClipIndex::bytes_of(self.clips.len(), self.clips.len() * NAME)
    }

    /// Returns these clips as data. `prepare_bytes` gives the bytes of preparing by the longest clip's seconds, `stays` what of the
    /// data stays in memory.
    pub fn data(self, recipe: &Recipe, stays: Stays, prepare_bytes: &dyn Fn(f64) -> u64) -> Data {
        Data {
            limits: limits(self.ends(), recipe, prepare_bytes),
            rows: self.clips.iter().map(|c| c.rows).collect(),
            split: split(self.clips.len(), &recipe.data.validation),
            sets: Vec::new(),
            prepare_bytes: prepare_bytes(recipe.data.max_seconds),
            digest: String::new(),
            stays,
            kind: Kind::Assumed(self),
        }
    }

    /// Returns these clips as data under another limit. See [`Data::up_to`].
    pub(super) fn limited(
        &self,
        limit: &Limit,
        recipe: &Recipe,
        model: &dyn Model,
        stays: Stays,
    ) -> Result<Data, RunError> {
        let shorter = self.up_to(limit.seconds, recipe, model);
        if shorter.clips.is_empty() {
            return Err(super::no_data());
        }
        Ok(shorter.data(recipe, stays, &|_| limit.prepare_bytes))
    }
}

/// Returns a clip of that length in the model's rows; the inner error is a unit that it has not.
fn clip(length: Length, model: &ModelDir) -> Result<Clip, String> {
    let Rows { unit, per_second, .. } = model.model.rows();
    match length {
        Length::Seconds(seconds) => Ok(Clip { seconds, rows: model.opened.rows_of(seconds) }),
        Length::Rows(n, letter) if unit.starts_with(letter) => {
            Ok(Clip { seconds: f64::from(n) / per_second, rows: n })
        }
        Length::Rows(..) => {
            Err(format!("this model's clips are counted in {unit}: write {} or seconds", &unit[..1]))
        }
    }
}

/// Returns the share, or as many as are named, held out: evenly, as names that do not exist cannot decide it.
fn split(clips: usize, validation: &Validation) -> Split {
    let held_out = match validation {
        Validation::Share(share) if clips >= 2 && *share > 0.0 => {
            ((clips as f64 * share).round() as usize).max(1)
        }
        Validation::Share(_) => 0,
        Validation::Names(names) => names.len(),
        // How many are in a file that is not there nobody knows: the usual share.
        Validation::File(_) => return split(clips, &Validation::default()),
    };
    let held_out = held_out.min(clips / 2);
    let is_held_out = |i: &usize| (i + 1) * held_out / clips > i * held_out / clips;
    let (validation, train) = (0..clips).partition(is_held_out);
    Split { train, validation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_are_read_as_they_are_written() {
        for text in ["32x5s,1x17s", "1x0.5s", "64x800t", "3x400f,1x2s"] {
            assert_eq!(text.parse::<Assume>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("5s".parse::<Assume>(), "1x5s".parse());
        for bad in
            ["", "x", "5", "0x5s", "-1x5s", "3x0s", "3xs", "3x5m", "3x5s,", "9999999x1s", "1x99999999t", "ä"]
        {
            assert!(bad.parse::<Assume>().is_err(), "{bad}");
        }
    }

    #[test]
    fn as_many_are_held_out_as_of_real_clips() {
        for (clips, validation, held_out) in [
            (40, Validation::Share(0.1), 4),
            (3, Validation::Share(0.1), 1),
            (1, Validation::Share(0.5), 0),
            (9, Validation::Share(0.0), 0),
            (9, Validation::Names(vec!["a".into(), "b".into()]), 2),
        ] {
            let split = split(clips, &validation);
            assert_eq!((split.validation.len(), split.train.len()), (held_out, clips - held_out));
        }
    }
}
