//! The order of an epoch: random, with the lengths of any stretch of it like those of the whole.
//!
//! A plain shuffle gives some updates many long clips and others few, and where only one or two of the long go into a
//! micro-batch, those with one too many need a micro-batch more than their frames do. So the clips are sorted by length and
//! halved again and again, and the orders of two halves are merged by pairs, one clip of each in random order. A stretch
//! then has of every half the same number of clips, to within one, at every level. Each clip is still equally likely
//! to be anywhere in the epoch.

use crate::rng::SplitMix;

/// Returns every clip once; `lengths` are in frames.
pub(crate) fn epoch(lengths: &[u32], rng: &mut SplitMix) -> Vec<u32> {
    let mut clips: Vec<u32> = (0..lengths.len() as u32).collect();
    // Clips of one length have no order among themselves.
    rng.shuffle(&mut clips);
    clips.sort_by_key(|&i| lengths[i as usize]);
    spread(&clips, rng)
}

/// Merges the halves of `sorted`, each spread out itself.
fn spread(sorted: &[u32], rng: &mut SplitMix) -> Vec<u32> {
    if sorted.len() < 2 {
        return sorted.to_vec();
    }
    // Of an odd number either half may have one more, which has no partner, wherever it comes to stand.
    let odd = sorted.len() % 2;
    let (low, high) = sorted.split_at(sorted.len() / 2 + odd * rng.below(2));
    let (low, high) = (spread(low, rng), spread(high, rng));
    let (more, fewer) = if low.len() > high.len() { (low, high) } else { (high, low) };
    let alone = (odd == 1).then(|| rng.below(more.len()));
    let (mut out, mut partners) = (Vec::with_capacity(sorted.len()), fewer.into_iter());
    for (i, clip) in more.into_iter().enumerate() {
        let partner = if alone == Some(i) { None } else { partners.next() };
        match rng.below(2) {
            0 => out.extend([Some(clip), partner].into_iter().flatten()),
            _ => out.extend([partner, Some(clip)].into_iter().flatten()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stretch_has_its_share_of_every_length() {
        for (n, seed) in (2..70).chain([500]).zip(0..) {
            let lengths: Vec<u32> = (0..n).map(|i| 100 + i * 7919 % n).collect();
            let order = epoch(&lengths, &mut SplitMix::keyed("test", seed, 0));
            let mut all = order.clone();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n), "every clip once");
            // A clip at each end of the stretch, and one for odd numbers.
            for parts in [2, 4] {
                for part in 0..parts {
                    let within = |rank: u32| rank * parts / n == part;
                    let has: Vec<f64> =
                        order.iter().map(|&i| f64::from(within(lengths[i as usize] - 100))).collect();
                    let share = has.iter().sum::<f64>() / f64::from(n);
                    for start in 0..has.len() {
                        let mut sum = 0.0;
                        for (k, x) in has[start..].iter().enumerate() {
                            sum += x;
                            let expected = share * (k + 1) as f64;
                            assert!(
                                (sum - expected).abs() <= 3.0,
                                "{n} clips, from {start}: {sum} of {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_clip_may_come_anywhere() {
        const EPOCHS: u64 = 4000;
        let lengths = [5, 1, 9, 3, 7];
        let mut counts = [[0u32; 5]; 5];
        for seed in 0..EPOCHS {
            let order = epoch(&lengths, &mut SplitMix::keyed("test", seed, 0));
            order.iter().enumerate().for_each(|(at, &clip)| counts[clip as usize][at] += 1);
        }
        for (clip, at) in counts.iter().enumerate() {
            // A fifth each; the standard deviation of a count is 25.
            assert!(at.iter().all(|&n| n.abs_diff(800) < 400), "clip {clip}: {at:?}");
        }
    }
}
