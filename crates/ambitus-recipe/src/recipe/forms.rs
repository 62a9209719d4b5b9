//! Values of a recipe that can be written in more than one way.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::policy::Blocks;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess};
use serde::{Deserialize, Serialize, Serializer};

/// What happens to clips outside the length limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outside {
    /// Leave them out, counted and listed.
    #[default]
    Skip,
    /// Cut silence at the ends of long ones; leave out the rest.
    Cut,
    /// End with an error.
    Refuse,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Number of updates.
    Updates(u64),
    /// Passes over the data.
    Epochs(f64),
}

/// Capacity of a micro-batch; what is absent the planner chooses. `N` alone is frames, `max` the most that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Rows, as the model counts them: frames or tokens.
    pub frames: Option<u64>,
    /// The same in seconds of audio, until the family is known.
    pub seconds: Option<f64>,
    /// Clips.
    pub clips: Option<u64>,
    /// The most frames that fit the budget; then `frames` is `None`.
    pub max: bool,
}

impl std::str::FromStr for MicroBatch {
    type Err = String;
    /// Returns a number of frames or tokens, seconds as `20s`, or `max`, as after `--micro-batch`.
    fn from_str(text: &str) -> Result<MicroBatch, String> {
        let seconds = text.strip_suffix('s').and_then(|s| s.parse().ok()).filter(is_length);
        match text {
            "max" => Ok(MicroBatch { max: true, ..MicroBatch::default() }),
            _ if seconds.is_some() => Ok(MicroBatch { seconds, ..MicroBatch::default() }),
            n => match n.parse() {
                Ok(n) => Ok(MicroBatch { frames: Some(n), ..MicroBatch::default() }),
                Err(_) => {
                    Err(format!("`{text}` is not a number of frames or tokens, seconds as 20s, or max"))
                }
            },
        }
    }
}

fn is_length(seconds: &f64) -> bool {
    *seconds > 0.0 && *seconds < 1e6
}

impl Serialize for MicroBatch {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.max {
            return s.serialize_str("max");
        }
        #[derive(Serialize)]
        struct Full {
            #[serde(skip_serializing_if = "Option::is_none")]
            frames: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            seconds: Option<f64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            clips: Option<u64>,
        }
        let MicroBatch { frames, seconds, clips, .. } = *self;
        Full { frames, seconds, clips }.serialize(s)
    }
}

impl MicroBatch {
    /// Returns whether nothing is fixed.
    pub fn is_empty(&self) -> bool {
        *self == MicroBatch::default()
    }
}

/// What backward recomputes, in a recipe and after `--checkpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint(pub Blocks);

impl std::str::FromStr for Checkpoint {
    type Err = String;
    /// Parses [`Blocks`] as they are typed.
    fn from_str(text: &str) -> Result<Checkpoint, String> {
        text.parse().map(Checkpoint)
    }
}

/// How far the planner may go from the numbers of the options that are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The same numbers, bit for bit.
    Same,
    /// The same sums in another order: other micro-batches.
    #[default]
    Reordered,
    /// Other numbers: 16-bit precision, 8-bit optimizer states, clipping per tensor.
    Changed,
}

impl Level {
    /// Returns whether this is the default.
    pub fn is_default(&self) -> bool {
        *self == Level::default()
    }
}

impl From<Level> for Numerics {
    fn from(level: Level) -> Numerics {
        match level {
            Level::Same => Numerics::Exact,
            Level::Reordered => Numerics::Reordered,
            Level::Changed => Numerics::Changed,
        }
    }
}

/// When gradients are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateAt {
    /// After the last micro-batch of the update.
    #[default]
    End,
    /// Each where backward has made it.
    Backward,
}

impl UpdateAt {
    /// Returns whether this is the default.
    pub fn is_end(&self) -> bool {
        *self == UpdateAt::End
    }
}

/// Where a run computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// This machine's processor.
    #[default]
    Cpu,
    /// The NVIDIA card of this number.
    Cuda(usize),
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;
    /// Parses `cpu`, `cuda` or `cuda:N`, as after `--device`.
    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let bad = || format!("`{text}` is not cpu, cuda or cuda:N");
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceChoice::Cpu),
            None if text == "cuda" => Ok(DeviceChoice::Cuda(0)),
            Some(("cuda", n)) => n.parse().map(DeviceChoice::Cuda).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => f.pad("cpu"),
            DeviceChoice::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl Serialize for DeviceChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DeviceChoice, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Validation clips.
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// These, by name.
    Names(Vec<String>),
    /// This share of the clips (0: none), chosen by a hash of the name.
    Share(f64),
    /// Those that this metadata file of the data folder describes.
    File(PathBuf),
}

impl Default for Validation {
    fn default() -> Validation {
        Validation::Share(0.1)
    }
}

/// The clip whose middle is generated at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sample {
    /// Its name. Absent: the first validation clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<String>,
    /// Steps of the ODE solver.
    pub steps: u32,
    /// Strength of classifier-free guidance.
    pub cfg: f64,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { clip: None, steps: 32, cfg: 2.0 }
    }
}

impl Serialize for Checkpoint {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Blocks::First(n) => n.serialize(s),
            word => s.collect_str(word),
        }
    }
}

impl Serialize for Validation {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Validation::Names(names) => names.serialize(s),
            Validation::Share(share) => s.collect_map([("share", share)]),
            Validation::File(file) => s.collect_map([("file", file)]),
        }
    }
}

/// A value that is read from whichever form the file has.
pub(super) trait Forms<'de>: Sized {
    /// What to write, for errors.
    const EXPECTED: &'static str;
    fn text(text: &str) -> Option<Self> {
        let _ = text;
        None
    }
    fn number(n: u64) -> Option<Self> {
        let _ = n;
        None
    }
    fn real(x: f64) -> Option<Self> {
        let _ = x;
        None
    }
    fn flag(on: bool) -> Option<Self> {
        let _ = on;
        None
    }
    fn list<A: SeqAccess<'de>>(list: A) -> Option<Result<Self, A::Error>> {
        let _ = list;
        None
    }
    fn map<A: MapAccess<'de>>(map: A) -> Option<Result<Self, A::Error>> {
        let _ = map;
        None
    }
}

struct FormsVisitor<T>(PhantomData<T>);

impl<'de, T: Forms<'de>> de::Visitor<'de> for FormsVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::text(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        T::number(n).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(n), &self))
    }
    fn visit_f64<E: de::Error>(self, x: f64) -> Result<T, E> {
        T::real(x).ok_or_else(|| E::invalid_type(de::Unexpected::Float(x), &self))
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
        }
    }
    fn visit_bool<E: de::Error>(self, on: bool) -> Result<T, E> {
        T::flag(on).ok_or_else(|| E::invalid_value(de::Unexpected::Bool(on), &self))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::list(list).unwrap_or_else(|| Err(de::Error::invalid_type(de::Unexpected::Seq, &self)))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::map(map).unwrap_or_else(|| Err(de::Error::invalid_type(de::Unexpected::Map, &self)))
    }
}

pub(super) fn read<'de, T: Forms<'de>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    d.deserialize_any(FormsVisitor(PhantomData))
}

impl Forms<'_> for Checkpoint {
    const EXPECTED: &'static str =
        "none, all, a number of blocks, values:N, or names of modules as '*.to_q,*.ff.ff.2'";
    fn text(text: &str) -> Option<Checkpoint> {
        text.parse().ok()
    }
    fn number(n: u64) -> Option<Checkpoint> {
        u32::try_from(n).ok().map(|n| Checkpoint(Blocks::First(n as usize)))
    }
}

impl<'de> Forms<'de> for MicroBatch {
    const EXPECTED: &'static str = "a number of frames, max, or {frames: N, tokens: N, seconds: X, clips: N}";
    fn text(text: &str) -> Option<MicroBatch> {
        text.parse().ok()
    }
    fn number(n: u64) -> Option<MicroBatch> {
        Some(MicroBatch { frames: Some(n), ..MicroBatch::default() })
    }
    fn map<A: MapAccess<'de>>(map: A) -> Option<Result<MicroBatch, A::Error>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            #[serde(alias = "tokens")]
            frames: Option<u64>,
            seconds: Option<f64>,
            clips: Option<u64>,
        }
        let full = Full::deserialize(MapAccessDeserializer::new(map));
        let read = |Full { frames, seconds, clips }: Full| match (frames, seconds) {
            (Some(_), Some(_)) => Err(de::Error::custom("frames and seconds say the same thing: keep one")),
            (None, Some(x)) if !is_length(&x) => {
                Err(de::Error::custom(format!("{x} is not a number of seconds above 0")))
            }
            (frames, seconds) => Ok(MicroBatch { frames, seconds, clips, max: false }),
        };
        Some(full.and_then(read))
    }
}

impl<'de> Forms<'de> for Validation {
    const EXPECTED: &'static str = "a list of clip names, {share: 0.1}, or {file: metadata_eval.csv}";
    fn list<A: SeqAccess<'de>>(list: A) -> Option<Result<Validation, A::Error>> {
        Some(Vec::deserialize(SeqAccessDeserializer::new(list)).map(Validation::Names))
    }
    fn map<A: MapAccess<'de>>(map: A) -> Option<Result<Validation, A::Error>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            share: Option<f64>,
            file: Option<PathBuf>,
        }
        let full = Full::deserialize(MapAccessDeserializer::new(map));
        let read = |Full { share, file }: Full| match (share, file) {
            (Some(share), None) => Ok(Validation::Share(share)),
            (None, Some(file)) => Ok(Validation::File(file)),
            _ => Err(de::Error::custom("holds out a share of the clips or a file of them: say one")),
        };
        Some(full.and_then(read))
    }
}

impl<'de> Forms<'de> for Option<Sample> {
    const EXPECTED: &'static str = "false, or {clip: NAME, steps: 32, cfg: 2.0}";
    fn flag(on: bool) -> Option<Option<Sample>> {
        Some(on.then(Sample::default))
    }
    fn map<A: MapAccess<'de>>(map: A) -> Option<Result<Option<Sample>, A::Error>> {
        Some(Sample::deserialize(MapAccessDeserializer::new(map)).map(Some))
    }
}

macro_rules! deserialize_forms {
    ($($ty:ty),*) => {$(
        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                read(d)
            }
        }
    )*};
}
deserialize_forms!(Checkpoint, MicroBatch, Validation);

/// Seconds of silence that stay where `trim` says no number.
pub const TRIM: f64 = 0.1;

/// Reads `trim`: seconds, `true` or `false`.
pub(super) fn trim<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    struct Trim(Option<f64>);
    impl<'de> Forms<'de> for Trim {
        const EXPECTED: &'static str = "true, false, or the seconds of silence that stay, as 0.2";
        fn flag(on: bool) -> Option<Trim> {
            Some(Trim(on.then_some(TRIM)))
        }
        fn number(n: u64) -> Option<Trim> {
            Some(Trim(Some(n as f64)))
        }
        fn real(x: f64) -> Option<Trim> {
            Some(Trim(Some(x)))
        }
    }
    read(d).map(|Trim(trim)| trim)
}

/// `sample`: a map, or `false`.
pub(super) mod sample {
    use super::*;

    pub fn serialize<S: Serializer>(sample: &Option<Sample>, s: S) -> Result<S::Ok, S::Error> {
        match sample {
            Some(sample) => sample.serialize(s),
            None => s.serialize_bool(false),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Sample>, D::Error> {
        read(d)
    }
}

/// Optional values that are words, of types that the compiler has.
pub(super) mod word {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(x: &Option<T>, s: S) -> Result<S::Ok, S::Error> {
        match x {
            Some(x) => s.collect_str(x),
            None => s.serialize_none(),
        }
    }

    pub fn deserialize<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<T>, D::Error> {
        let word = Option::<String>::deserialize(d)?;
        word.map(|word| word.parse().map_err(Error::custom)).transpose()
    }
}
