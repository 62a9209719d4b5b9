//! `ema:`, the moving average of the weights, and how it moves. A pure function of a counter.

use super::forms::{Forms, read};
use super::validate::{Invalid, real, refuse};
use serde::de::MapAccess;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `EMA(beta=0.9999)` of ema-pytorch: the largest decay.
const EMA_BETA: f32 = 0.9999;
/// `EMA(update_after_step=100)`: until here the average is a copy.
const EMA_AFTER: u64 = 100;
/// `EMA(update_every=10)`.
const EMA_EVERY: u64 = 10;
/// `EMA(power=2/3)`.
const EMA_POWER: f64 = 2.0 / 3.0;
/// The most updates between two moves.
const MOST_EVERY: u64 = 1 << 31;

/// The average that a run keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Average {
    /// None.
    Off,
    /// ema-pytorch's (recorded in `parity/schedules/fixtures/trainer.json`), which warms up.
    Warming,
    /// One of all weights since the first move, in which those of a move before count `decay` times as much.
    Unbiased(Unbiased),
}

/// audiocraft's average (`optim/ema.py` of 1.3.0, `unbias=True`; recorded in `parity/schedules/fixtures/average.json`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unbiased {
    /// How much weights count at the next move, from 0 to below 1.
    pub decay: f64,
    /// Updates between two moves.
    pub every: u64,
}

impl Average {
    /// Returns whether there is one.
    pub fn is_kept(self) -> bool {
        self != Average::Off
    }

    /// Returns how it moves after an update, `step` being the updates done before it: `None` = not; `Some(0.0)` = copy the weights;
    /// `Some(d)` = `ema += (1 - d)(weights - ema)`.
    ///
    /// ema-pytorch's d is `min(beta, 1 - (step + 1 - 100)^(-2/3))`. audiocraft's is, at the n-th move, `1 - (1 - decay) / (1 - decay^n)`: it
    /// counts `count = count decay + 1` and takes `1 / count` of the weights.
    pub fn decay_after(self, step: u64) -> Option<f32> {
        match self {
            Average::Off => None,
            Average::Warming => warming(step),
            Average::Unbiased(Unbiased { decay, every }) => {
                let done = step + 1;
                let moves = done.is_multiple_of(every).then(|| done / every)?;
                // Powers of so many moves are 0 long before.
                let left = decay.powi(i32::try_from(moves).unwrap_or(i32::MAX));
                Some((1.0 - (1.0 - decay) / (1.0 - left)) as f32)
            }
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// By key.
    pub(super) fn validate(self) -> Result<(), Invalid> {
        let Average::Unbiased(Unbiased { decay, every }) = self else { return Ok(()) };
        real("ema.decay", decay, (0.0..1.0).contains(&decay), "from 0 to below 1")?;
        match (1..=MOST_EVERY).contains(&every) {
            true => Ok(()),
            false => refuse("ema.every", format!("{every} is not between 1 and {MOST_EVERY}")),
        }
    }
}

impl From<bool> for Average {
    fn from(on: bool) -> Average {
        if on { Average::Warming } else { Average::Off }
    }
}

fn warming(step: u64) -> Option<f32> {
    if !step.is_multiple_of(EMA_EVERY) {
        return None;
    }
    if step <= EMA_AFTER {
        return Some(0.0);
    }
    // The package counts in f32 after incrementing its step; the power is taken in f64 so that every machine rounds alike.
    let n = (step + 1 - EMA_AFTER) as f32;
    let fade = f64::from(n).powf(-EMA_POWER) as f32;
    Some((1.0 - fade).clamp(0.0, EMA_BETA))
}

impl Serialize for Average {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Average::Unbiased(of) => of.serialize(s),
            other => s.serialize_bool(other.is_kept()),
        }
    }
}

impl<'de> Forms<'de> for Average {
    const EXPECTED: &'static str = "true, false, or {decay: 0.99, every: 10}";
    fn flag(on: bool) -> Option<Average> {
        Some(on.into())
    }
    fn map<A: MapAccess<'de>>(map: A) -> Option<Result<Average, A::Error>> {
        Some(Unbiased::deserialize(MapAccessDeserializer::new(map)).map(Average::Unbiased))
    }
}

impl<'de> Deserialize<'de> for Average {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Average, D::Error> {
        read(d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// One unit in the last place of an f32 near 1.
    const DECAY_TOLERANCE: f32 = 6e-8;

    fn recorded(name: &str) -> Value {
        let path = format!("{}/../../parity/schedules/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn decays_are_ema_pytorchs() {
        let recorded = recorded("trainer.json");
        let mut blends = 0;
        for list in ["ema_from_0", "ema_from_1200000"] {
            for row in recorded[list].as_array().unwrap() {
                let (step, kind, want) =
                    (row[0].as_u64().unwrap(), row[1].as_str().unwrap(), row[2].as_f64().unwrap());
                match (kind, Average::Warming.decay_after(step)) {
                    ("keep", None) | ("copy", Some(0.0)) => {}
                    ("blend", Some(d)) => {
                        blends += 1;
                        assert!((d - want as f32).abs() <= DECAY_TOLERANCE, "step {step}: {d} {want}");
                    }
                    (_, got) => panic!("step {step}: {kind}, got {got:?}"),
                }
            }
        }
        assert!(blends > 20);
        assert_eq!(Average::Warming.decay_after(u64::MAX / 10 * 10), Some(EMA_BETA));
    }

    #[test]
    fn averages_are_audiocrafts() {
        let recorded = recorded("average.json");
        let numbers = |of: &Value, key: &str| -> Vec<f64> {
            of[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        for of in recorded.as_array().unwrap() {
            let text = format!(
                "model: {{dir: m}}\ndata: {{dir: d}}\nema: {{decay: {}, every: {}}}",
                of["decay"], of["every"]
            );
            let average = crate::recipe::Recipe::parse(&text, "r.yaml").unwrap().0.ema.unwrap();
            // What is recorded began so.
            let mut now = 0.5;
            let all = numbers(of, "weights").into_iter().zip(numbers(of, "averages"));
            for (step, (weight, want)) in all.enumerate() {
                if let Some(decay) = average.decay_after(step as u64) {
                    now += (1.0 - f64::from(decay)) * (weight - now);
                }
                assert!((now - want).abs() < 1e-6, "{text}, update {step}: {now} {want}");
            }
        }
        let far = Average::Unbiased(Unbiased { decay: 0.99, every: 1 }).decay_after(u64::MAX - 1);
        assert_eq!(far, Some(0.99));
    }
}
