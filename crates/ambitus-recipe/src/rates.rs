//! The learning rate of one update, as torch and transformers have it (recorded in `parity/schedules/`). A pure function of counters:
//! nothing to save, nothing to drift.

use crate::recipe::{Per, Schedule, ScheduleKind, Settled};
use std::f64::consts::PI;

/// transformers' `timescale` of `inverse_sqrt` without warm-up.
const INVERSE_SQRT_UPDATES: f64 = 10_000.0;

/// The learning rate over a run: a linear climb, and then a [`Schedule`].
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRate {
    /// The rate at the end of warm-up.
    pub base: f64,
    /// Updates of warm-up.
    pub warmup: u64,
    /// Updates of the run, warm-up included.
    pub total: u64,
    /// Updates that go once through the data.
    pub per_epoch: f64,
    /// What comes after warm-up.
    pub schedule: Schedule,
}

impl LearningRate {
    /// Returns the rate of a player in a run of `updates` whose warm-up takes `warmup` of them, if the player does not say how many:
    /// its own keys, else the recipe's.
    pub fn of(recipe: &Settled, player: &str, (warmup, updates): (u64, u64), per_epoch: f64) -> LearningRate {
        let own = recipe.players.get(player).cloned().unwrap_or_default();
        LearningRate {
            base: own.learning_rate.unwrap_or(recipe.learning_rate),
            warmup: own.warmup.unwrap_or(warmup),
            total: updates,
            per_epoch,
            schedule: own.schedule.unwrap_or_else(|| recipe.schedule.clone()),
        }
    }

    /// Returns the rate of the update after `applied` applied ones (from 0), N = `total`, w = `warmup`: the base times
    /// `start + (1 - start) i / w` for i < w, then times `floor + (1 - floor) f(i - w)`. The shares f are those of transformers'
    /// `optimization.py` (`linear`, `cosine`, `cosine_with_restarts`, `inverse_sqrt`, with `num_training_steps` = N) and torch's
    /// `lr_scheduler.py` (`CosineAnnealingWarmRestarts`, `ExponentialLR`, `MultiStepLR`; `LinearLR` by `start` and
    /// `floor`). A run no longer than its warm-up only climbs.
    pub fn at(&self, applied: u64) -> f64 {
        let s = &self.schedule;
        if applied < self.warmup {
            return self.base * (s.start + (1.0 - s.start) * (applied as f64 / self.warmup as f64));
        }
        let after = (applied - self.warmup) as f64;
        let rest = self.total.saturating_sub(self.warmup).max(1) as f64;
        let part = (after / rest).min(1.0);
        let (count, length) = match s.per {
            Per::Update => (after, rest),
            Per::Epoch => ((after / self.per_epoch).floor(), rest / self.per_epoch),
        };
        let wave = |x: f64| 0.5 * (1.0 + (PI * x).cos());
        let share = match s.kind {
            ScheduleKind::Linear => 1.0 - part,
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Cosine => wave(2.0 * s.cycles() * part),
            ScheduleKind::CosineRestarts if part >= 1.0 => 0.0,
            ScheduleKind::CosineRestarts => wave((s.cycles() * part) % 1.0),
            ScheduleKind::WarmRestarts => {
                wave(since_restart(count, s.period.unwrap_or(length), s.growth.unwrap_or(1.0)))
            }
            ScheduleKind::Exponential => s.gamma().powf(count),
            ScheduleKind::InverseSqrt => {
                let usual = if self.warmup > 0 { self.warmup as f64 } else { INVERSE_SQRT_UPDATES };
                let scale = s.timescale.unwrap_or(usual);
                (scale / (after + scale)).sqrt()
            }
            ScheduleKind::Milestones => s.gamma().powi(s.at.iter().filter(|at| **at <= count).count() as i32),
        };
        self.base * (s.floor + (1.0 - s.floor) * share)
    }

    /// Returns a run that ends before its rate is reached, for people.
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

/// Returns which part of its fall `count` is in, when falls of `first`, `first * growth`, ... come one after another.
fn since_restart(count: f64, first: f64, growth: f64) -> f64 {
    if growth == 1.0 {
        return (count % first) / first;
    }
    // As torch: the falls before this one are a geometric series.
    let began = |n: f64| first * (growth.powf(n) - 1.0) / (growth - 1.0);
    let n = (1.0 + count / first * (growth - 1.0)).log(growth).floor().max(0.0);
    // The logarithm of a whole power may come out a little under its exponent.
    let n = if count >= began(n + 1.0) { n + 1.0 } else { n };
    (count - began(n)) / (first * growth.powf(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// torch applies some of them as running products, which drift by some 1e-16 an update; here they are closed forms.
    const RATE_TOLERANCE: f64 = 1e-12;
    /// A trainer that ramps by `LinearLR`, up and down.
    const RAMPS: &str = "linear,start=1e-8,floor=1e-8";

    fn read(file: &str) -> Value {
        let path = format!("{}/../../parity/{file}", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn recorded() -> Value {
        read("schedules/fixtures/trainer.json")
    }

    fn rate(base: f64, warmup: u64, total: u64, schedule: &str) -> LearningRate {
        LearningRate { base, warmup, total, per_epoch: 1.0, schedule: schedule.parse().unwrap() }
    }

    #[track_caller]
    fn is_recorded(rate: &LearningRate, rates: &Value) {
        for (s, want) in rates.as_array().unwrap().iter().enumerate() {
            let (got, want) = (rate.at(s as u64), want.as_f64().unwrap());
            assert!((got - want).abs() <= RATE_TOLERANCE * rate.base, "{rate:?} update {s}: {got} {want}");
        }
    }

    #[test]
    fn rates_are_the_recorded_trainers() {
        for run in recorded()["learning_rate"].as_array().unwrap() {
            let (warmup, total) = (run["warmup"].as_u64().unwrap(), run["total"].as_u64().unwrap());
            is_recorded(&rate(run["base"].as_f64().unwrap(), warmup, total, RAMPS), &run["rates"]);
        }
    }

    #[test]
    fn rates_are_torchs_and_transformers() {
        let recorded = read("schedules/fixtures/rates.json");
        let cases = recorded["cases"].as_array().unwrap();
        for case in cases {
            let schedule: Schedule = serde_json::from_value(case["schedule"].clone()).unwrap();
            // A schedule is the same in each of its forms.
            assert_eq!(schedule.to_string().parse(), Ok(schedule.clone()));
            let rate = LearningRate {
                base: recorded["base"].as_f64().unwrap(),
                warmup: case["warmup"].as_u64().unwrap(),
                total: case["total"].as_u64().unwrap(),
                per_epoch: case["per_epoch"].as_f64().unwrap(),
                schedule,
            };
            is_recorded(&rate, &case["rates"]);
        }
        assert!(cases.len() > 40);
    }

    /// Rates at the first update of each fall, also where a logarithm does not say exactly which fall it is.
    #[test]
    fn every_restart_is_at_the_full_rate() {
        for (first, growth) in (1..=12).flat_map(|first| [2, 3, 5, 6, 7, 10].map(|growth| (first, growth))) {
            let schedule = format!("warm-restarts,period={first},growth={growth}");
            let rate = rate(1.0, 0, 1_000_000, &schedule);
            let falls =
                std::iter::successors(Some((0, first)), |(at, length)| Some((at + length, length * growth)));
            for (at, _) in falls.take_while(|(at, _)| *at < 1_000_000) {
                assert_eq!(rate.at(at), 1.0, "{schedule} at {at}");
                // The last of a fall is low.
                assert!(at <= first || rate.at(at - 1) < 0.6, "{schedule} before {at}");
            }
        }
    }

    #[test]
    fn any_lengths_give_rates() {
        arbtest::arbtest(|u| {
            let (warmup, total) = (u.int_in_range(0..=50)?, u.int_in_range(0..=50)?);
            let schedule = *u.choose(&[
                RAMPS,
                "linear",
                "constant",
                "cosine,cycles=1.5,floor=0.1",
                "cosine-restarts,cycles=3",
                "warm-restarts,period=3.5,growth=1.7",
                "warm-restarts,per=epoch",
                "exponential,per=epoch",
                "inverse-sqrt",
                "milestones,at=0.5,at=20",
            ])?;
            let per_epoch = *u.choose(&[0.01, 1.0, 7.3, 1e9])?;
            let rate = LearningRate { per_epoch, ..rate(1.0, warmup, total, schedule) };
            for s in [0, 1, 25, 50, 100, u64::MAX] {
                let at = rate.at(s);
                assert!((-1e-9..=1.0 + 1e-9).contains(&at), "{rate:?} at {s}: {at}");
            }
            Ok(())
        });
        assert_eq!(rate(2.0, 0, 10, RAMPS).at(0), 2.0);
        let warned = |warmup| rate(1e-5, warmup, 10, RAMPS).warning();
        assert!(warned(9).is_none() && warned(10).is_some_and(|w| w.contains("10 updates of warm-up")));
    }
}
