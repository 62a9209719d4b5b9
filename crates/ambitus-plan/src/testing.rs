//! What several modules' tests share.

/// Returns the bytes that decide draws, the same on every machine.
pub fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..256).map(|_| next()).collect()
}
