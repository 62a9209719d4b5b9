//! Which of several data sets the next clip is of.
//!
//! Of the first `n` clips a set with the share `p` has between `p n - d` and `p n + d` for every `n`, with `d = 1 - 1 / (2 k - 2)` of `k`
//! sets: a half of two sets. That is the least that any order can do (R. Tijdeman, The chairman assignment problem, 1980): of the
//! sets that are behind by `1 / (2 k - 2)` or more, the one whose turn would be too late first.

use super::Set;

/// Of sums of shares that are a little off.
const ROUNDING: f64 = 1e-9;

/// The turns so far.
#[derive(Clone)]
pub(super) struct Turns {
    /// Share of each set; together 1.
    shares: Vec<f64>,
    taken: Vec<u64>,
    done: u64,
}

impl Turns {
    pub fn new(sets: &[Set]) -> Turns {
        let sum: f64 = sets.iter().map(|set| set.weight).sum();
        let shares = sets.iter().map(|set| set.weight / sum).collect();
        Turns { shares, taken: vec![0; sets.len()], done: 0 }
    }

    /// Returns the turns from their start.
    pub fn restarted(&self) -> Turns {
        Turns { shares: self.shares.clone(), taken: vec![0; self.taken.len()], done: 0 }
    }

    /// Returns a set's share of all clips.
    pub fn share(&self, set: usize) -> f64 {
        self.shares[set]
    }

    fn next(&self) -> usize {
        let sets = self.shares.len();
        if sets == 1 {
            return 0;
        }
        let spare = 1.0 / (2 * sets - 2) as f64;
        let behind = |set: usize| self.shares[set] * (self.done + 1) as f64 - self.taken[set] as f64;
        let late = |set: usize| (1.0 - spare - behind(set)) / self.shares[set];
        let due = (0..sets).filter(|set| behind(*set) >= spare - ROUNDING);
        // There is always one: what sets are behind is 1 together.
        due.min_by(|a, b| late(*a).total_cmp(&late(*b))).unwrap_or(0)
    }

    /// Takes a turn.
    pub fn take(&mut self) -> usize {
        let set = self.next();
        self.taken[set] += 1;
        self.done += 1;
        set
    }

    /// Returns the next two turns.
    pub fn next_two(&self) -> [usize; 2] {
        if self.shares.len() == 1 {
            return [0, 0];
        }
        let mut ahead = self.clone();
        [ahead.take(), ahead.take()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arbtest::arbtest;

    #[test]
    fn every_set_has_its_share_of_any_stretch() {
        arbtest(|u| {
            let sets = u.int_in_range(1..=7)?;
            let each = |_| Ok(Set { clips: 1, weight: f64::from(u.int_in_range(1..=400u32)?) / 7.0 });
            let sets: Vec<Set> = (0..sets).map(each).collect::<arbtest::arbitrary::Result<_>>()?;
            let mut turns = Turns::new(&sets);
            let most = 1.0 - 1.0 / (2 * sets.len()).saturating_sub(2).max(1) as f64;
            for n in 1..3000u32 {
                let [next, second] = turns.next_two();
                assert_eq!(turns.take(), next);
                assert_eq!(turns.clone().take(), second);
                for (set, taken) in turns.taken.iter().enumerate() {
                    let off = (turns.share(set) * f64::from(n) - *taken as f64).abs();
                    assert!(off <= most + 1e-6, "{sets:?}: set {set} of {n}: {off}");
                }
            }
            Ok(())
        })
        .budget_ms(1_000);
    }
}
