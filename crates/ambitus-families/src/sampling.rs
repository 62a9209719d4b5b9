//! Which token follows: transformers' processors, in its order (4.57, `generation/logits_process.py`).

use ambitus_ir::ops::random::philox4x32_10;

/// How a token is chosen from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Take the likeliest; temperature, top-k and top-p are not looked at.
    pub greedy: bool,
    /// Logits of tokens that the sequence has, its prompt among them, are divided by this where they are positive, and else
    /// multiplied (arXiv 1909.05858); each token once.
    pub repetition_penalty: f32,
    /// Logits are divided by it.
    pub temperature: f32,
    /// Only the likeliest k, and those that are as likely as the last of them; 0: all.
    pub top_k: usize,
    /// Only the likeliest whose probabilities make up p, one at least; 1: all.
    pub top_p: f32,
    /// Seed of draws that are not given.
    pub seed: u64,
}

impl Sampling {
    /// By the model's own probabilities.
    pub const PLAIN: Sampling =
        Sampling { greedy: false, repetition_penalty: 1.0, temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };

    /// Checks the numbers.
    ///
    /// # Errors
    /// The option and what it may be.
    pub fn check(&self) -> Result<(), String> {
        let positive = |option: &str, x: f32| match x > 0.0 && x.is_finite() {
            true => Ok(()),
            false => Err(format!("--{option}: {x} is not above 0")),
        };
        positive("temperature", self.temperature)?;
        positive("repetition-penalty", self.repetition_penalty)?;
        positive("top-p", self.top_p)?;
        if self.top_p > 1.0 { Err(format!("--top-p: {} is above 1", self.top_p)) } else { Ok(()) }
    }

    /// Returns the token that follows `before`, prompt and output, from its logits `[V]`, which are changed. `draws` `[V]` of an
    /// exponential distribution decide where nothing is greedy.
    pub fn choose(&self, logits: &mut [f32], before: &[u32], draws: Draws<'_>) -> u32 {
        self.penalise(logits, before);
        if self.greedy {
            return largest(logits);
        }
        if self.temperature != 1.0 {
            logits.iter_mut().for_each(|x| *x /= self.temperature);
        }
        self.keep_k(logits);
        self.keep_p(logits);
        softmax(logits);
        match draws {
            Draws::Given(q) => logits.iter_mut().zip(q).for_each(|(p, q)| *p /= q),
            Draws::Keyed { sequence, step } => {
                let key = [self.seed as u32, (self.seed >> 32) as u32];
                for (i, four) in logits.chunks_mut(4).enumerate() {
                    // What was left out needs no draw.
                    if four.iter().all(|p| *p == 0.0) {
                        continue;
                    }
                    let words = philox4x32_10([i as u32, step, sequence, EXPONENTIAL], key);
                    four.iter_mut().zip(words).for_each(|(p, word)| *p /= exponential(word));
                }
            }
        }
        largest(logits)
    }

    fn penalise(&self, logits: &mut [f32], before: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let mut ids = before.to_vec();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let Some(x) = logits.get_mut(id as usize) else { continue };
            *x = if *x < 0.0 { *x * self.repetition_penalty } else { *x / self.repetition_penalty };
        }
    }

    fn keep_k(&self, logits: &mut [f32]) {
        if self.top_k == 0 || self.top_k >= logits.len() {
            return;
        }
        let mut sorted = logits.to_vec();
        let (_, least, _) = sorted.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
        let least = *least;
        logits.iter_mut().filter(|x| **x < least).for_each(|x| *x = f32::NEG_INFINITY);
    }

    fn keep_p(&self, logits: &mut [f32]) {
        if self.top_p >= 1.0 {
            return;
        }
        // One number for value and place sorts several times faster than places by their values.
        let mut order: Vec<u64> =
            logits.iter().enumerate().map(|(i, x)| ordered(*x) << 32 | i as u64).collect();
        order.sort_unstable();
        let place = |number: &u64| *number as u32 as usize;
        let mut p: Vec<f32> = order.iter().map(|number| logits[place(number)]).collect();
        softmax(&mut p);
        let mut sum = 0.0f32;
        // The likeliest always stays.
        for (number, p) in order.iter().zip(&p).take(logits.len().saturating_sub(1)) {
            sum += p;
            if sum <= 1.0 - self.top_p {
                logits[place(number)] = f32::NEG_INFINITY;
            }
        }
    }
}

/// Where draws come from.
#[derive(Clone, Copy, Debug)]
pub enum Draws<'a> {
    /// These.
    Given(&'a [f32]),
    /// Those of a sequence and a step, by the seed.
    Keyed {
        /// Number of the sequence.
        sequence: u32,
        /// Number of the new token.
        step: u32,
    },
}

/// Returns a number below 2^32 that orders floats as [`f32::total_cmp`] does.
fn ordered(x: f32) -> u64 {
    let bits = x.to_bits();
    u64::from(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
}

/// Stream of the generator: noise and other draws have others.
const EXPONENTIAL: u32 = 2;

/// Returns a draw of an exponential distribution.
fn exponential(word: u32) -> f32 {
    let u = (f64::from(word) + 1.0) / 4_294_967_296.0;
    (-u.ln()).max(f64::from(f32::MIN_POSITIVE)) as f32
}

fn softmax(x: &mut [f32]) {
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - high).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

/// Returns the first of the largest.
fn largest(x: &[f32]) -> u32 {
    let best = x.iter().enumerate().fold(
        (0, f32::NEG_INFINITY),
        |best, (i, x)| {
            if *x > best.1 { (i, *x) } else { best }
        },
    );
    best.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Sampling = Sampling::PLAIN;
    const GREEDY: Sampling = Sampling { greedy: true, ..OFF };

    fn kept(s: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut x = logits.to_vec();
        s.keep_k(&mut x);
        s.keep_p(&mut x);
        (0..x.len()).filter(|i| x[*i] != f32::NEG_INFINITY).collect()
    }

    /// transformers 4.57.6 keeps as many (facts recorded by running it).
    #[test]
    fn top_k_and_top_p_keep_what_transformers_keeps() {
        let logits = [3.0, 1.0, 3.0, 0.0, 1.0, 1.0, -2.0];
        assert_eq!(kept(Sampling { top_k: 3, ..OFF }, &logits).len(), 5);
        assert_eq!(kept(Sampling { top_k: 1, ..OFF }, &logits), [0, 2]);
        let p: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
        for (top_p, n) in [(0.3, 1), (0.4, 1), (0.5, 2), (0.69, 2), (0.71, 3), (0.9, 3), (1e-9, 1), (1.0, 4)]
        {
            assert_eq!(kept(Sampling { top_p, ..OFF }, &p), (0..n).collect::<Vec<_>>(), "{top_p}");
        }
    }

    #[test]
    fn numbers_are_in_the_order_of_their_floats() {
        let floats = [f32::NEG_INFINITY, -3.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, f32::MAX, f32::INFINITY];
        assert!(floats.map(ordered).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_the_penalty_counts_a_token_once() {
        let none = Draws::Keyed { sequence: 0, step: 0 };
        assert_eq!(GREEDY.choose(&mut [0.0, 5.0, 5.0, 5.0], &[], none), 1);
        let s = Sampling { repetition_penalty: 2.0, ..GREEDY };
        let mut x = [4.0, -1.0, 3.0];
        assert_eq!(s.choose(&mut x, &[0, 0, 1, 7], none), 2);
        assert_eq!(x, [2.0, -2.0, 3.0]);
    }

    #[test]
    fn keyed_draws_follow_the_distribution_and_their_key() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.15, 0.1].iter().map(|p| p.ln()).collect();
        let draw = |sequence, step| OFF.choose(&mut logits.clone(), &[], Draws::Keyed { sequence, step });
        let n = 20_000;
        let mut counts = [0.0; 4];
        (0..n).for_each(|step| counts[draw(0, step) as usize] += 1.0 / f64::from(n));
        for (count, p) in counts.iter().zip([0.5, 0.25, 0.15, 0.1]) {
            // Four standard deviations.
            assert!((count - p).abs() < 4.0 * (p * (1.0 - p) / f64::from(n)).sqrt(), "{counts:?}");
        }
        let of = |sequence| (0..50).map(|step| draw(sequence, step)).collect::<Vec<_>>();
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }
}
