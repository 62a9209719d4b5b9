//! Which short runs are tried, and what follows from them. A pure function of their losses: tuning that was killed goes through the
//! same trials again, and those that are recorded cost nothing.

use ambitus_families::error::RunError;
use ambitus_ir::ops::random::philox4x32_10;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rates are tried at thirds of a decade.
const DECADE: i32 = 3;
/// Steps around the best decade that are tried, at least and at most.
const REACH: std::ops::RangeInclusive<i32> = DECADE - 1..=2 * DECADE - 1;
/// Rates that are tried at all.
const RATES: std::ops::RangeInclusive<f64> = 1e-9..=1.0;
/// Decades that are tried, at most.
const MOST_DECADES: usize = 9;
/// Updates of all trials over those of each in the search for the decade.
const OF_A_DECADE: u64 = 30;
/// Updates below which a trial in the search for the decade says little.
const LEAST: u64 = 4;
/// One in so many goes on to the next rung; two at least.
const KEPT: usize = 3;
/// Draws of what is trained in the last rung: those that the run begins with, and those that follow.
const DRAWS: u64 = 2;
/// The share of the best improvement that a choice is good with.
const GOOD: f64 = 0.9;
/// A lower rate is taken with this share of the best improvement: longer runs want lower rates.
const AS_GOOD: f64 = 0.95;
/// Resamples of the draws of validation.
const RESAMPLES: u32 = 2000;
/// Updates of all trials where a run is short, and their share where it is not.
const SPEND: (u64, u64) = (150, 5);

/// What is tried: a combination of settings, at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Candidate {
    /// Index of the combination.
    pub settings: usize,
    /// The rate: that of the combination, times 10^(step / 3).
    pub step: i32,
}

/// A short run from the base, at its whole schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// What is tried.
    pub candidate: Candidate,
    /// Its updates. 0: the base is validated.
    pub updates: u64,
    /// The update of the run from which it has its clips and draws.
    pub from: u64,
}

/// Validation losses of a trial, by batch; nothing where it diverged.
pub type Losses = Option<Vec<f64>>;

/// Runs a trial, or finds it among those that were run.
pub type Run<'a> = &'a mut dyn FnMut(Trial) -> Result<Losses, RunError>;

/// What is looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The rate of each combination of settings.
    pub rates: Vec<f64>,
    /// The rate is looked for, of the only combination; not which combination is best.
    pub looks_for_rate: bool,
    /// Updates of a full run.
    pub updates: u64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The best.
    pub best: Candidate,
    /// How probable it is, by the draws of validation and of training, that it gains over the base at least nine tenths of what every
    /// other candidate of the last rung gains. Of n draws at most 1 - 2^-n: so often as many agree by chance.
    pub confidence: f64,
    /// It lowers the validation loss.
    pub improves: bool,
}

impl Question {
    /// Returns a candidate's rate, with three digits where it is not the recipe's own.
    pub fn rate(&self, c: Candidate) -> f64 {
        let own = self.rates[c.settings];
        let rate = own * 10f64.powf(f64::from(c.step) / f64::from(DECADE));
        if c.step == 0 { own } else { format!("{rate:.2e}").parse().unwrap_or(rate) }
    }

    /// Returns the updates that all trials may take: a fifth of a full run's; 150, where that is less.
    pub fn spend(&self) -> u64 {
        (self.updates / SPEND.1).max(SPEND.0)
    }

    /// Tries what there is to try.
    ///
    /// # Errors
    /// What `run` meets; more combinations than there are updates; no trial that did not diverge.
    pub fn answer(&self, run: Run<'_>) -> Result<Found, RunError> {
        let first = Candidate { settings: 0, step: 0 };
        let base = run(Trial { candidate: first, updates: 0, from: 0 })?
            .ok_or_else(|| RunError::Model("the validation loss of the base is not a number".to_owned()))?;
        let mut left = self.spend();
        let all = match self.looks_for_rate {
            true => {
                let best = self.decade(&mut left, run)?;
                // Further, where there are updates for whole runs of more.
                let whole = |reach: &i32| (2 * *reach as u64 + 1) * self.updates <= left;
                let reach = REACH.rev().find(whole).unwrap_or(*REACH.start());
                let around = (best - reach..=best + reach).map(|step| Candidate { settings: 0, step });
                around.filter(|c| RATES.contains(&self.rate(*c))).collect()
            }
            false => (0..self.rates.len()).map(|settings| Candidate { settings, step: 0 }).collect(),
        };
        self.halve(all, left, &base, run)
    }

    /// Returns the best decade around the recipe's rate, as far as single decades lead to better ones.
    fn decade(&self, left: &mut u64, run: Run<'_>) -> Result<i32, RunError> {
        let updates = (*left / OF_A_DECADE).max(LEAST).min(self.updates);
        let mut tried: BTreeMap<i32, f64> = BTreeMap::new();
        let mut next = Some(0);
        while let Some(step) = next {
            let trial = Trial { candidate: Candidate { settings: 0, step }, updates, from: 0 };
            let loss = run(trial)?.map_or(f64::INFINITY, |losses| losses.iter().sum());
            *left = left.saturating_sub(updates);
            tried.insert(step, loss);
            let (lowest, highest) = (tried.first_key_value(), tried.last_key_value());
            let (Some((lowest, _)), Some((highest, _))) = (lowest, highest) else { return Ok(0) };
            let best = best_step(&tried);
            next = [lowest - DECADE, highest + DECADE].into_iter().find(|next| {
                (best - next).abs() == DECADE
                    && RATES.contains(&self.rate(Candidate { settings: 0, step: *next }))
            });
            next = next.filter(|_| tried.len() < MOST_DECADES);
        }
        Ok(best_step(&tried))
    }

    /// Successive halving (Jamieson and Talwalkar 2016): all for a few updates, the best third of them for more, until two are left.
    /// Every rung has as many updates in all, the last twice as many. Where there are enough for whole runs, these are the last rung.
    fn halve(
        &self,
        mut alive: Vec<Candidate>,
        mut left: u64,
        base: &[f64],
        run: Run<'_>,
    ) -> Result<Found, RunError> {
        let rung = loop {
            let n = alive.len() as u64;
            let whole = n * self.updates <= left;
            let last = whole || n <= 2;
            let draws = if last && !whole { DRAWS } else { 1 };
            let share = if last { left } else { left / (rungs(alive.len()) + 1) };
            let updates = (share / (n * draws)).min(self.updates);
            if updates == 0 {
                return Err(RunError::Usage(format!(
                    "tune: {n} combinations are more than {} updates can tell apart, a fifth of a run or 150: give fewer values",
                    self.spend()
                )));
            }
            left -= updates * n * draws;
            let mut rung = Vec::new();
            for candidate in &alive {
                let mut gains = Vec::new();
                // Within the run: its plan is for these clips.
                let other = updates.min(self.updates - updates);
                let froms = [0, other].into_iter().take(if other > 0 { draws as usize } else { 1 });
                for from in froms {
                    let losses = run(Trial { candidate: *candidate, updates, from })?;
                    gains.push(losses.map(|losses| gain(base, &losses)));
                }
                rung.push((*candidate, gains.into_iter().collect::<Option<Vec<_>>>()));
            }
            rung.sort_by(|(_, a), (_, b)| total(b).total_cmp(&total(a)));
            if last && self.looks_for_rate && !whole {
                let enough = rung.first().map_or(0.0, |(_, best)| AS_GOOD * total(best));
                let as_good =
                    rung.iter().take_while(|(_, gains)| enough > 0.0 && total(gains) >= enough).count();
                rung[..as_good].sort_by_key(|(candidate, _)| candidate.step);
            }
            if last {
                break rung;
            }
            alive = rung.iter().take(kept(alive.len())).map(|(candidate, _)| *candidate).collect();
        };
        let best = rung.first().and_then(|(best, gains)| Some((best, gains.as_ref()?)));
        let (best, gains) = best.ok_or_else(|| {
            RunError::Training(
                "every trial diverged: look at the data and the model, or lower learning_rate".to_owned(),
            )
        })?;
        let improves = sum(gains) > 0.0;
        let gains: Vec<&Draws> = rung.iter().filter_map(|(_, gains)| gains.as_ref()).collect();
        Ok(Found { best: *best, confidence: confidence(&gains), improves })
    }
}

/// Returns how many of a rung go on to the next.
fn kept(n: usize) -> usize {
    n.div_ceil(KEPT).max(2)
}

/// Returns the rungs from `n` candidates on.
fn rungs(n: usize) -> u64 {
    std::iter::successors(Some(n), |n| (*n > 2).then(|| kept(*n))).count() as u64
}

/// Returns the step of the lowest loss. Where losses are alike the higher one: a rate so low that nothing moves tells nothing. Of those
/// that all diverged the lowest.
fn best_step(tried: &BTreeMap<i32, f64>) -> i32 {
    let finite = tried.iter().filter(|(_, loss)| loss.is_finite());
    let best = finite.rev().min_by(|(_, a), (_, b)| a.total_cmp(b));
    best.or(tried.first_key_value()).map_or(0, |(step, _)| *step)
}

/// Returns what each batch of a validation gained over the base; as one draw where the batches are others.
fn gain(base: &[f64], losses: &[f64]) -> Vec<f64> {
    match base.len() == losses.len() {
        true => base.iter().zip(losses).map(|(base, loss)| base - loss).collect(),
        false => vec![base.iter().sum::<f64>() - losses.iter().sum::<f64>()],
    }
}

/// Gains of a candidate's trials, each by batch of the validation.
type Draws = Vec<Vec<f64>>;

fn total(gains: &Option<Draws>) -> f64 {
    gains.as_ref().map_or(f64::NEG_INFINITY, sum)
}

fn sum(gains: &Draws) -> f64 {
    gains.iter().flatten().sum()
}

/// Returns the share of resamples of the draws (the bootstrap of Efron 1979, the same draws of all candidates) in which the first
/// candidate has nine tenths of the gain of every other. Where validations are cut into other batches, a trial is one draw.
fn confidence(gains: &[&Draws]) -> f64 {
    let Some(first) = gains.first() else { return 0.0 };
    let lengths = |of: &Draws| of.iter().map(Vec::len).collect::<Vec<_>>();
    let alike = gains.iter().all(|of| lengths(of) == lengths(first));
    let drawn = |of: &Draws| match alike {
        true => of.concat(),
        false => of.iter().map(|of| of.iter().sum()).collect(),
    };
    let all: Vec<Vec<f64>> = gains.iter().map(|of| drawn(of)).collect();
    let n = all[0].len();
    let good = |resample: u32| {
        let drawn = |i: usize| philox4x32_10([resample, i as u32, 0, 0], [0; 2])[0] as usize % n;
        let mut sums = all.iter().map(|of| (0..n).map(|i| of[drawn(i)]).sum::<f64>());
        let first = sums.next().unwrap_or(0.0);
        sums.all(|other| first >= GOOD * other || first >= other)
    };
    let good = (0..RESAMPLES).filter(|resample| good(*resample)).count() as f64 / f64::from(RESAMPLES);
    good.min(1.0 - 0.5f64.powi(n as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run whose loss after `n` updates falls by a parabola over the logarithm of the rate, with its best at `best`, and which diverges
    /// from a hundred times that on. Each of four batches has a noise of its own, by draw.
    fn model(question: &Question, best: f64, noise: f64) -> impl Fn(Trial) -> Losses + '_ {
        move |trial: Trial| {
            let rate = question.rate(trial.candidate);
            let decades = (rate / best).log10();
            if trial.updates > 0 && decades > 2.0 {
                return None;
            }
            let whole = trial.updates as f64 / (trial.updates as f64 + 10.0);
            let gain = whole * (1.0 - 0.3 * decades * decades).max(-1.0);
            let of = |batch: u32| {
                let drawn = philox4x32_10([batch, trial.from as u32, rate.to_bits() as u32, 7], [1, 2])[0];
                0.5 - gain / 4.0 + noise * (f64::from(drawn) / f64::from(u32::MAX) - 0.5)
            };
            Some((0..4).map(of).collect())
        }
    }

    fn question(rate: f64, updates: u64) -> Question {
        Question { rates: vec![rate], looks_for_rate: true, updates }
    }

    #[test]
    fn a_rate_is_found_from_any_start_within_its_updates() {
        for updates in [1, 3, 12, 300, 749, 750, 2000, 1_000_000] {
            for exponent in -16..=-2 {
                let q = question(10f64.powf(f64::from(exponent) / 2.0), updates);
                let mut spent = 0;
                let losses = model(&q, 3e-4, 0.0);
                let found = q.answer(&mut |trial| {
                    assert!(trial.updates <= updates, "{trial:?}");
                    spent += trial.updates;
                    Ok(losses(trial))
                });
                let found = found.expect("trials");
                let off = (q.rate(found.best) / 3e-4).log10().abs();
                // A third of a decade is between two rates.
                assert!(off <= 0.34, "{exponent}: {found:?}, {off} decades off");
                assert!(found.improves && found.confidence > 0.9, "{found:?}");
                let most = if updates < 750 { 150 } else { updates / 5 };
                assert!(spent <= most, "{spent} of {most} for a run of {updates}");
            }
        }
    }

    #[test]
    fn noise_of_the_draws_does_not_hide_the_rate() {
        for noise in [0.01, 0.05, 0.2] {
            let q = question(1e-5, 300);
            let losses = model(&q, 3e-4, noise);
            let found = q.answer(&mut |trial| Ok(losses(trial))).expect("trials");
            let off = (q.rate(found.best) / 3e-4).log10().abs();
            assert!(off < 0.7, "{noise}: {found:?}, {off} decades off");
        }
    }

    #[test]
    fn confidence_is_that_of_the_draws() {
        let many = |gains: [f64; 2]| vec![gains.to_vec(); 8];
        let of = |first: [f64; 2], other: [f64; 2]| confidence(&[&many(first), &many(other)]);
        let sure = 1.0 - 0.5f64.powi(16);
        assert_eq!(of([1.0, 1.0], [0.5, 0.5]), sure);
        assert_eq!(of([0.5, 0.5], [1.0, 1.0]), 0.0);
        // Nine tenths are enough.
        assert_eq!(of([0.91, 0.91], [1.0, 1.0]), sure);
        // Which is better differs from draw to draw.
        let even = of([1.0, 0.0], [0.0, 1.0]);
        assert!((0.45..0.75).contains(&even), "{even}");
        let mostly = of([1.0, 0.4], [0.0, 0.5]);
        assert!(mostly > even, "{mostly}");
        // Losses only rise: the one that rises least is still the best.
        assert_eq!(of([-1.0, -1.0], [-2.0, -2.0]), sure);
        // One number says little, however far apart two are; nor does being alone.
        assert_eq!(confidence(&[&vec![vec![1.0]], &vec![vec![0.1]]]), 0.5);
        assert_eq!(confidence(&[&vec![vec![1.0, 1.0]]]), 0.75);
        // Other batches: the trials are compared whole.
        assert_eq!(confidence(&[&vec![vec![1.0, 0.0]; 2], &vec![vec![2.0]; 2]]), 0.0);
    }

    #[test]
    fn a_rate_that_diverges_is_never_chosen_and_one_that_does_not_help_is_said() {
        let q = question(1.0, 300);
        let found =
            q.answer(&mut |trial| Ok((trial.updates == 0).then(|| vec![1.0]))).expect_err("all diverge");
        assert!(matches!(found, RunError::Training(_)), "{found}");
        // Whatever is trained raises the loss.
        let found =
            q.answer(&mut |trial| Ok(Some(vec![1.0 + q.rate(trial.candidate) * trial.updates as f64])));
        assert!(!found.expect("trials").improves);
        let far = |trial: Trial| if q.rate(trial.candidate) > 1e-3 { None } else { Some(vec![0.5]) };
        let found = q.answer(&mut |trial| Ok(if trial.updates == 0 { Some(vec![1.0]) } else { far(trial) }));
        assert!(q.rate(found.expect("trials").best) <= 1e-3);
    }

    #[test]
    fn of_rates_that_are_as_good_the_lowest_is_taken() {
        let q = question(1e-3, 300);
        let flat = |trial: Trial| {
            let decades = q.rate(trial.candidate).log10() + 3.0;
            1.0 - if trial.updates == 0 { 0.0 } else { 0.5 - 1e-3 * (decades - 0.3) * (decades - 0.3) }
        };
        let found = q.answer(&mut |trial| Ok(Some(vec![flat(trial)]))).expect("trials");
        // The best is 2.15e-3, and 1e-3 is next.
        assert_eq!(found.best.step, 0, "{found:?}");
    }

    #[test]
    fn combinations_are_halved() {
        let q = Question { rates: vec![1e-4; 9], looks_for_rate: false, updates: 1000 };
        let mut rungs: BTreeMap<u64, usize> = BTreeMap::new();
        let found = q.answer(&mut |trial| {
            *rungs.entry(trial.updates).or_default() += 1;
            let wrong = (trial.candidate.settings as f64 - 6.0).abs();
            Ok(Some(vec![1.0 - trial.updates as f64 * 1e-3 / (1.0 + wrong); 2]))
        });
        assert_eq!(found.expect("trials").best, Candidate { settings: 6, step: 0 });
        // The base; nine, three, and two with two draws each.
        assert_eq!(rungs.values().copied().collect::<Vec<_>>(), [1, 9, 3, 4]);
        let spent: u64 = rungs.iter().map(|(updates, n)| updates * *n as u64).sum();
        assert!((150..=200).contains(&spent), "{spent}");
        // Whole runs of all, where these are as many updates.
        let short = Question { updates: 16, ..q };
        let mut trials = Vec::new();
        let found = short.answer(&mut |trial| {
            trials.push(trial.updates);
            Ok(Some(vec![1.0 - trial.updates as f64 * (trial.candidate.settings + 1) as f64 * 1e-3]))
        });
        assert_eq!(found.expect("trials").best.settings, 8);
        assert_eq!(trials, [&[0][..], &[16; 9]].concat());
        let many = Question { rates: vec![1e-4; 400], looks_for_rate: false, updates: 10 };
        assert!(matches!(many.answer(&mut |_| Ok(Some(vec![1.0]))), Err(RunError::Usage(_))));
    }
}
