//! `schedule`: how the learning rate moves during a run.

use super::validate::{Invalid, real, refuse};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Milestones of a list.
const MOST: usize = 1000;

/// `schedule:`, how the learning rate moves: it climbs linearly in `warmup` updates, and then follows `kind`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Schedule {
    /// `linear` (to `floor`), `cosine` (to `floor`), `cosine-restarts` (transformers' hard restarts: `cycles` times from the
    /// rate to `floor`), `warm-restarts` (torch's: every `period`), `constant`, `exponential` (times `gamma` each time),
    /// `inverse-sqrt`, or `milestones` (times `gamma` at each).
    pub kind: Kind,
    /// Share of the rate with which warm-up begins. Absent: 0; the family's if no schedule is given.
    pub start: f64,
    /// Share of the rate that is left at the end of a fall. Absent: 0; the family's if no schedule is given.
    pub floor: f64,
    /// Waves of `cosine` [default: 0.5], falls of `cosine-restarts` [default: 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles: Option<f64>,
    /// Length of the first fall of `warm-restarts`, in units of `per`. Absent: the rest of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<f64>,
    /// Length of each fall of `warm-restarts` as a multiple of the previous one [default: 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<f64>,
    /// Factor of `exponential` [default: 0.999] and `milestones` [default: 0.1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// Updates or epochs after warm-up at which the rate of `milestones` falls, ascending, `[30, 80]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<f64>,
    /// Updates after which `inverse-sqrt` has fallen to 1 / sqrt(2). Absent: `warmup`, or 10,000 without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timescale: Option<f64>,
    /// What `warm-restarts`, `exponential` and `milestones` count: each `update`, or each `epoch` (a pass over the data), in which
    /// the rate stays [default: update].
    #[serde(skip_serializing_if = "Per::is_update")]
    pub per: Per,
}

/// [`Schedule::kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Kind {
    #[default]
    Linear,
    Constant,
    Cosine,
    CosineRestarts,
    WarmRestarts,
    Exponential,
    InverseSqrt,
    Milestones,
}

/// [`Schedule::per`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Per {
    #[default]
    Update,
    Epoch,
}

impl Per {
    fn is_update(&self) -> bool {
        *self == Per::Update
    }
}

impl Schedule {
    /// Returns a schedule of this kind, with its defaults.
    pub fn of(kind: Kind) -> Schedule {
        Schedule {
            kind,
            start: 0.0,
            floor: 0.0,
            cycles: None,
            period: None,
            growth: None,
            gamma: None,
            at: Vec::new(),
            timescale: None,
            per: Per::Update,
        }
    }

    /// Returns [`Schedule::gamma`], or its default.
    pub fn gamma(&self) -> f64 {
        self.gamma.unwrap_or(if self.kind == Kind::Milestones { 0.1 } else { 0.999 })
    }

    /// Returns [`Schedule::cycles`], or its default.
    pub fn cycles(&self) -> f64 {
        self.cycles.unwrap_or(if self.kind == Kind::Cosine { 0.5 } else { 1.0 })
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        use Kind::*;
        let share = |x: f64| (0.0..=1.0).contains(&x);
        real("schedule.start", self.start, share(self.start), "a share from 0 to 1")?;
        real("schedule.floor", self.floor, share(self.floor), "a share from 0 to 1")?;
        let positive = |key: &'static str, x: Option<f64>, most: f64| {
            let x = x.unwrap_or(1.0);
            real(key, x, x > 0.0 && x <= most, &format!("above 0 and at most {most}"))
        };
        positive("schedule.cycles", self.cycles, 1e6)?;
        positive("schedule.period", self.period, 1e9)?;
        positive("schedule.gamma", self.gamma, 1.0)?;
        positive("schedule.timescale", self.timescale, 1e12)?;
        let growth = self.growth.unwrap_or(1.0);
        real("schedule.growth", growth, (1.0..=1e6).contains(&growth), "from 1 to 1e6")?;
        if self.at.len() > MOST {
            refuse("schedule.at", format!("{} are more than {MOST} milestones", self.at.len()))?;
        }
        if self.at.iter().any(|x| !(x.is_finite() && *x > 0.0)) || !self.at.is_sorted() {
            refuse("schedule.at", "are not ascending numbers above 0")?;
        }
        if self.kind == Milestones && self.at.is_empty() {
            refuse("schedule.at", "is missing: say at which updates the rate falls, as in [300, 800]")?;
        }
        let only = |key: &'static str, given: bool, kinds: &[Kind]| match given && !kinds.contains(&self.kind)
        {
            true => refuse(key, format!("means nothing to {}: leave it out", word(self.kind))),
            false => Ok(()),
        };
        only("schedule.cycles", self.cycles.is_some(), &[Cosine, CosineRestarts])?;
        only("schedule.period", self.period.is_some(), &[WarmRestarts])?;
        only("schedule.growth", self.growth.is_some(), &[WarmRestarts])?;
        only("schedule.gamma", self.gamma.is_some(), &[Exponential, Milestones])?;
        only("schedule.at", !self.at.is_empty(), &[Milestones])?;
        only("schedule.timescale", self.timescale.is_some(), &[InverseSqrt])?;
        only("schedule.per", self.per == Per::Epoch, &[WarmRestarts, Exponential, Milestones])
    }
}

/// Returns a value as it is written in a recipe.
fn word<T: Serialize>(x: T) -> String {
    serde_json::to_value(x).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

impl fmt::Display for Schedule {
    /// Writes the form that `--schedule` takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&word(self.kind))?;
        let bare = Schedule::of(self.kind);
        let mut numbers = vec![
            ("start", Some(self.start).filter(|x| *x != bare.start)),
            ("floor", Some(self.floor).filter(|x| *x != bare.floor)),
            ("cycles", self.cycles),
            ("period", self.period),
            ("growth", self.growth),
            ("gamma", self.gamma),
            ("timescale", self.timescale),
        ];
        numbers.extend(self.at.iter().map(|x| ("at", Some(*x))));
        for (key, x) in numbers.into_iter().filter_map(|(key, x)| Some((key, x?))) {
            write!(f, ",{key}={x}")?;
        }
        if self.per == Per::Epoch { f.write_str(",per=epoch") } else { Ok(()) }
    }
}

impl FromStr for Schedule {
    type Err = String;
    /// Parses `cosine`, or `cosine,floor=0.1`; with several milestones `milestones,at=300,at=800`.
    fn from_str(text: &str) -> Result<Schedule, String> {
        let mut words = text.split(',').map(str::trim);
        let kind = words.next().unwrap_or_default();
        let parsed = serde_json::from_value(kind.into());
        let mut out = Schedule::of(parsed.map_err(|_| {
            format!(
                "`{kind}` is not linear, cosine, cosine-restarts, warm-restarts, constant, exponential, inverse-sqrt or milestones"
            )
        })?);
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse::<f64>().map_err(|_| format!("`{word}`: write {key}=NUMBER"));
            match key {
                "start" => out.start = number()?,
                "floor" => out.floor = number()?,
                "cycles" => out.cycles = Some(number()?),
                "period" => out.period = Some(number()?),
                "growth" => out.growth = Some(number()?),
                "gamma" => out.gamma = Some(number()?),
                "timescale" => out.timescale = Some(number()?),
                "at" => out.at.push(number()?),
                "per" => {
                    out.per = serde_json::from_value(value.into())
                        .map_err(|_| format!("`{word}`: write per=update or per=epoch"))?;
                }
                _ => {
                    return Err(format!(
                        "`{key}` is not start, floor, cycles, period, growth, gamma, timescale, at or per"
                    ));
                }
            }
        }
        Ok(out)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Schedule, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Schedule;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a schedule as cosine, or a map as {kind: cosine, floor: 0.1}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Schedule, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Schedule, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Full {
                    kind: Kind,
                    start: Option<f64>,
                    floor: Option<f64>,
                    cycles: Option<f64>,
                    period: Option<f64>,
                    growth: Option<f64>,
                    gamma: Option<f64>,
                    timescale: Option<f64>,
                    at: Option<Vec<f64>>,
                    per: Option<Per>,
                }
                let Full { kind, start, floor, cycles, period, growth, gamma, timescale, at, per } =
                    Full::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Schedule {
                    kind,
                    start: start.unwrap_or(0.0),
                    floor: floor.unwrap_or(0.0),
                    cycles,
                    period,
                    growth,
                    gamma,
                    timescale,
                    at: at.unwrap_or_default(),
                    per: per.unwrap_or_default(),
                })
            }
        }
        d.deserialize_any(Forms)
    }
}
