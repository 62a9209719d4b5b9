//! Learning rate and EMA decay of one update, as the F5-TTS trainer has them (`trainer.py`; recorded in
//! `parity/f5/fixtures/schedule_vectors.json`). Pure functions of counters: nothing to save, nothing to drift.

use crate::recipe::Recipe;

/// Both ends of the reference's ramps: LinearLR starts at, and decays to, this factor.
const FLOOR: f64 = 1e-8;
/// `EMA(beta=0.9999)`: the largest decay.
const EMA_BETA: f32 = 0.9999;
/// `EMA(update_after_step=100)`: until here the average is a copy.
const EMA_AFTER: u64 = 100;
/// `EMA(update_every=10)`.
const EMA_EVERY: u64 = 10;
/// `EMA(power=2/3)`.
const EMA_POWER: f64 = 2.0 / 3.0;

/// torch's `SequentialLR(LinearLR 1e-8 -> 1 over warmup, LinearLR 1 -> 1e-8 over the rest)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The rate at the end of warm-up.
    pub base: f64,
    /// Updates of warm-up.
    pub warmup: u64,
    /// Updates of the run, warm-up included.
    pub total: u64,
}

impl LearningRate {
    /// That of a settled recipe whose run has so many updates.
    pub fn of(recipe: &Recipe, updates: u64) -> LearningRate {
        let (base, warmup) = (recipe.learning_rate.unwrap_or(0.0), recipe.warmup.unwrap_or(0));
        LearningRate { base, warmup, total: updates }
    }

    /// The rate of the update after `applied` applied ones (from 0).
    ///
    /// `f = FLOOR + (1 - FLOOR) s / warmup` for `s < warmup`, then `1 + (FLOOR - 1)(s - warmup) / (total - warmup)`, constant
    /// at `FLOOR` after the end. A run no longer than its warm-up only climbs; at `warmup == 0` it only falls.
    pub fn at(&self, applied: u64) -> f64 {
        let part = |n: u64, of: u64| n as f64 / of as f64;
        let factor = if applied < self.warmup {
            FLOOR + (1.0 - FLOOR) * part(applied, self.warmup)
        } else {
            let rest = self.total.saturating_sub(self.warmup).max(1);
            1.0 + (FLOOR - 1.0) * part((applied - self.warmup).min(rest), rest)
        };
        self.base * factor
    }

    /// A run that ends before its rate is reached, for people.
    pub fn warning(&self) -> Option<String> {
        (self.total > 0 && self.warmup >= self.total).then(|| {
            format!(
                "warning: {} updates of warm-up, and the run has {}: it ends at a rate of {:.1e}, and never reaches {:.1e}; \
                 lower warmup",
                self.warmup,
                self.total,
                self.at(self.total - 1),
                self.base
            )
        })
    }
}

/// Warm-up when the recipe names none: the smaller of 100 updates and 5 % of the run.
pub fn default_warmup(total: u64) -> u64 {
    (total / 20).min(100)
}

/// What ema-pytorch does after an update, `step` being the updates done before it: `None` = nothing; `Some(0.0)` = copy the
/// weights; `Some(d)` = `ema += (1 - d)(weights - ema)` with `d = min(beta, 1 - (step + 1 - 100)^(-2/3))`.
pub fn ema_decay(step: u64) -> Option<f32> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// torch applies the ramps as running products, which drift by some 1e-16 an update; here they are closed forms.
    const RATE_TOLERANCE: f64 = 1e-12;
    /// One unit in the last place of an f32 near 1.
    const DECAY_TOLERANCE: f32 = 6e-8;

    fn recorded() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parity/f5/fixtures/schedule_vectors.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn rates_are_torchs() {
        for run in recorded()["learning_rate"].as_array().unwrap() {
            let schedule = LearningRate {
                base: run["base"].as_f64().unwrap(),
                warmup: run["warmup"].as_u64().unwrap(),
                total: run["total"].as_u64().unwrap(),
            };
            for (s, want) in run["rates"].as_array().unwrap().iter().enumerate() {
                let (got, want) = (schedule.at(s as u64), want.as_f64().unwrap());
                assert!(
                    (got - want).abs() <= RATE_TOLERANCE * schedule.base,
                    "{schedule:?} update {s}: {got} {want}"
                );
            }
        }
    }

    #[test]
    fn any_lengths_give_rates() {
        arbtest::arbtest(|u| {
            let (warmup, total) = (u.int_in_range(0..=50)?, u.int_in_range(0..=50)?);
            let schedule = LearningRate { base: 1.0, warmup, total };
            for s in [0, 1, 25, 50, 100, u64::MAX] {
                let rate = schedule.at(s);
                assert!((FLOOR * 0.5..=1.0).contains(&rate), "{schedule:?} at {s}: {rate}");
            }
            assert!(default_warmup(total) <= total);
            Ok(())
        });
        assert_eq!([default_warmup(0), default_warmup(60), default_warmup(100_000)], [0, 3, 100]);
        assert_eq!(LearningRate { base: 2.0, warmup: 0, total: 10 }.at(0), 2.0);
        let warned = |warmup| LearningRate { base: 1e-5, warmup, total: 10 }.warning();
        assert!(warned(9).is_none() && warned(10).is_some_and(|w| w.contains("10 updates of warm-up")));
    }

    #[test]
    fn decays_are_the_packages() {
        let recorded = recorded();
        let mut blends = 0;
        for list in ["ema_from_0", "ema_from_1200000"] {
            for row in recorded[list].as_array().unwrap() {
                let (step, kind, want) =
                    (row[0].as_u64().unwrap(), row[1].as_str().unwrap(), row[2].as_f64().unwrap());
                match (kind, ema_decay(step)) {
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
        assert_eq!(ema_decay(u64::MAX / 10 * 10), Some(EMA_BETA));
    }
}
