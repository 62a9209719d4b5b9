//! `offload`: what is kept in the host's memory until it is used.

use super::validate::{Invalid, real, refuse};
use super::{Average, Recipe};
use ambitus_compile::passes::offload::{Kept, Offload as Pass};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What waits in the host's memory and comes to the device while it is used; `all`, or what of it. Same numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Offload {
    /// Weights.
    pub parameters: bool,
    /// Gradients that are kept from one micro-batch to the next.
    pub gradients: bool,
    /// Share of the optimizer states, from 0 to 1; `true` is all of them.
    pub optimizer: f64,
    /// Moving averages.
    pub ema: bool,
    /// `true`: all that forward keeps for backward; `blocks`: what one block hands to the next.
    pub activations: Activations,
    /// CPU only: the folder of a file that holds what is offloaded, in place of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<PathBuf>,
}

/// Which activations wait on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// None.
    #[default]
    None,
    /// What one block hands to the next.
    Blocks,
    /// All that forward keeps for backward.
    All,
}

/// What to write, for errors.
const WORDS: &str = "all, none, parameters, gradients, optimizer, optimizer=0.5, ema, activations, activations=blocks or disk=FOLDER";

impl Offload {
    /// Offloads everything.
    pub fn all() -> Offload {
        let activations = Activations::All;
        Offload { parameters: true, gradients: true, optimizer: 1.0, ema: true, activations, disk: None }
    }

    /// Returns what is left of it where no average is kept. As a part of `all` an average means: if there is one.
    pub fn without_average(self) -> Offload {
        let all = Offload { disk: self.disk.clone(), ..Offload::all() };
        match (self == all, Offload { ema: false, ..self.clone() }) {
            (true, _) => self,
            (false, left) if left.pass().is_none() => Offload::default(),
            (false, left) => left,
        }
    }

    /// Returns whether nothing is offloaded and no place for it is named.
    pub fn is_empty(&self) -> bool {
        *self == Offload::default()
    }

    /// Returns what it asks of the compiler.
    pub fn pass(&self) -> Pass {
        Pass {
            parameters: self.parameters,
            gradients: self.gradients,
            optimizer: self.optimizer,
            ema: self.ema,
            activations: match self.activations {
                Activations::None => Kept::Nothing,
                Activations::Blocks => Kept::Blocks,
                Activations::All => Kept::All,
            },
            ..Pass::default()
        }
    }
}

impl FromStr for Offload {
    type Err = String;
    /// Returns a list as after `--offload`.
    fn from_str(text: &str) -> Result<Offload, String> {
        let mut out = Offload::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                None if word == "all" => out = Offload { disk: out.disk, ..Offload::all() },
                None if word == "none" => out = Offload { disk: out.disk, ..Offload::default() },
                None if word == "parameters" => out.parameters = true,
                None if word == "gradients" => out.gradients = true,
                None if word == "optimizer" => out.optimizer = 1.0,
                None if word == "ema" => out.ema = true,
                None if word == "activations" => out.activations = Activations::All,
                Some(("activations", "blocks")) => out.activations = Activations::Blocks,
                Some(("optimizer", share)) => {
                    let share = share.parse().ok().filter(|x| (0.0..=1.0).contains(x));
                    out.optimizer = share.ok_or_else(|| format!("`{word}`: write a share from 0 to 1"))?;
                }
                Some(("disk", folder)) if !folder.is_empty() => out.disk = Some(folder.into()),
                _ => return Err(format!("`{word}` is not one of {WORDS}")),
            }
        }
        Ok(out)
    }
}

impl fmt::Display for Offload {
    /// Writes the list that `--offload` takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = Offload { disk: self.disk.clone(), ..Offload::all() };
        let mut words: Vec<String> = Vec::new();
        let mut word = |on: bool, text: &str| words.extend(on.then(|| text.to_owned()));
        if *self == all {
            word(true, "all");
        } else {
            word(self.parameters, "parameters");
            word(self.gradients, "gradients");
            word(self.optimizer == 1.0, "optimizer");
            word(self.optimizer > 0.0 && self.optimizer < 1.0, &format!("optimizer={}", self.optimizer));
            word(self.ema, "ema");
            word(self.activations == Activations::All, "activations");
            word(self.activations == Activations::Blocks, "activations=blocks");
        }
        if words.is_empty() {
            words.push("none".to_owned());
        }
        words.extend(self.disk.iter().map(|folder| format!("disk={}", folder.display())));
        f.write_str(&words.join(","))
    }
}

impl Recipe {
    /// Returns what is offloaded; nothing if the recipe leaves it open.
    pub fn offloaded(&self) -> Offload {
        self.offload.clone().unwrap_or_default()
    }

    /// Checks the keys of offloading.
    pub(super) fn validate_offload(&self) -> Result<(), Invalid> {
        let o = &self.offloaded();
        real("offload.optimizer", o.optimizer, (0.0..=1.0).contains(&o.optimizer), "a share from 0 to 1")?;
        let nothing = o.pass().is_none();
        if nothing && o.disk.is_some() {
            refuse(
                "offload.disk",
                "names a folder, and nothing is offloaded: say what, as in parameters: true",
            )?;
        }
        if o.disk.as_ref().is_some_and(|d| d.as_os_str().is_empty() || d.to_str().is_none()) {
            refuse("offload.disk", "is empty or not UTF-8: write a folder")?;
        }
        // As a part of `all` it means: if there is one.
        let all = Offload { disk: o.disk.clone(), ..Offload::all() };
        if o.ema && self.ema == Some(Average::Off) && *o != all {
            refuse(
                "offload.ema",
                "offloads the average, and ema: false keeps none: leave out one of the two",
            )?;
        }
        let Some(size) = self.host_memory else { return Ok(()) };
        if size.0 == 0 {
            refuse("host_memory", "is zero: write a budget, as in 20GiB, or offload nothing")?;
        }
        if o.disk.is_some() {
            refuse(
                "host_memory",
                "(--host-memory) bounds memory, and offload.disk has what is offloaded in a file: leave out one of the two",
            )?;
        }
        Ok(())
    }
}

impl Serialize for Activations {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Activations::None => s.serialize_bool(false),
            Activations::Blocks => s.serialize_str("blocks"),
            Activations::All => s.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for Activations {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Activations, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Activations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or blocks")
            }
            fn visit_bool<E>(self, on: bool) -> Result<Activations, E> {
                Ok(if on { Activations::All } else { Activations::None })
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<Activations, E> {
                let blocks = (word == "blocks").then_some(Activations::Blocks);
                blocks.ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
            }
        }
        d.deserialize_any(Words)
    }
}

/// `true`, `false` or a number.
struct Share(f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Share, D::Error> {
        struct Numbers;
        impl Visitor<'_> for Numbers {
            type Value = Share;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a share from 0 to 1")
            }
            fn visit_bool<E>(self, on: bool) -> Result<Share, E> {
                Ok(Share(f64::from(u8::from(on))))
            }
            fn visit_f64<E>(self, x: f64) -> Result<Share, E> {
                Ok(Share(x))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Share, E> {
                Ok(Share(n as f64))
            }
            fn visit_i64<E>(self, n: i64) -> Result<Share, E> {
                Ok(Share(n as f64))
            }
        }
        d.deserialize_any(Numbers)
    }
}

impl<'de> Deserialize<'de> for Offload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Offload, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Offload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("all, or a map as {parameters: true, optimizer: 0.5, activations: true}")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<Offload, E> {
                let all = (word == "all").then(Offload::all);
                all.ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Offload, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Full {
                    parameters: Option<bool>,
                    gradients: Option<bool>,
                    optimizer: Option<Share>,
                    ema: Option<bool>,
                    activations: Option<Activations>,
                    disk: Option<PathBuf>,
                }
                let full = Full::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Offload {
                    parameters: full.parameters.unwrap_or(false),
                    gradients: full.gradients.unwrap_or(false),
                    optimizer: full.optimizer.map_or(0.0, |share| share.0),
                    ema: full.ema.unwrap_or(false),
                    activations: full.activations.unwrap_or_default(),
                    disk: full.disk,
                })
            }
        }
        d.deserialize_any(Forms)
    }
}
