//! Helpers of the kernels' tests.

use super::{Isa, Pool};

/// SplitMix64: small, seeded, good enough for test data.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Ascending offsets of `s` segments (some empty) over at most `rows` rows.
    pub fn segments(&mut self, s: usize, rows: usize) -> Vec<i32> {
        let mut cuts: Vec<i32> = (0..s).map(|_| self.below(rows + 1) as i32).collect();
        cuts.push(0);
        cuts.sort_unstable();
        cuts
    }
}

/// One and three threads for every instruction set of this machine.
pub fn pools() -> Vec<Pool> {
    Isa::available().iter().flat_map(|&isa| [1, 3].map(|n| Pool::with_isa(n, isa).unwrap())).collect()
}

/// Every element within `tol * (1 + |want|)`.
#[track_caller]
pub fn close(got: &[f32], want: &[f32], tol: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tol * (1.0 + w.abs()), "{what}: element {i}: got {g}, want {w}");
    }
}

/// Runs `kernel` on every pool; results must be within `tol` of `want` (concatenated outputs) and, for one instruction set, have
/// the same bits at any thread count.
#[track_caller]
pub fn check(want: &[f32], tol: f32, what: &str, kernel: impl Fn(&Pool) -> Vec<f32>) {
    let mut first: Option<(Isa, Vec<f32>)> = None;
    for pool in pools() {
        let got = kernel(&pool);
        close(&got, want, tol, &format!("{what} ({})", pool.isa().name()));
        match &first {
            Some((isa, bits)) if *isa == pool.isa() => {
                let same = bits.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{what}: bits depend on the thread count");
            }
            _ => first = Some((pool.isa(), got)),
        }
    }
}
