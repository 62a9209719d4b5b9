//! A small generator for shuffles and searches that are the same on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// Returns the stream for a purpose, a seed and a counter.
    pub(crate) fn keyed(purpose: &str, seed: u64, counter: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(purpose.as_bytes());
        hash.update(&seed.to_le_bytes());
        hash.update(&counter.to_le_bytes());
        let bytes = hash.finalize();
        Self(u64::from_le_bytes(bytes.as_bytes()[..8].try_into().expect("eight bytes")))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below `n` (not 0); the bias of 2^-32 and less does not matter here.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
