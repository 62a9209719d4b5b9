//! What is drawn for a clip at a training step: the noise of its latents and of its durations, and where its slice begins. Draws are a
//! pure function of the clip's key.

use crate::f5::draw::normal_pair;
use ambitus_ir::ops::random::philox4x32_10;

/// Streams of a clip's generator; masks of dropout have others.
const LATENTS: u32 = 0;
const SLICE: u32 = 1;
const DURATIONS: u32 = 2;

/// Draws the N(0, 1) of a clip's latents `[T, inter]`.
pub fn noise(key: [u32; 2], out: &mut [f32]) {
    normals(key, LATENTS, out);
}

/// Draws the N(0, 1) of a clip's durations `[P, 2]`.
pub fn duration_noise(key: [u32; 2], out: &mut [f32]) {
    normals(key, DURATIONS, out);
}

/// Draws the first frame of a slice of `segment` frames of a clip of `frames`, each equally likely.
pub fn slice(key: [u32; 2], frames: usize, segment: usize) -> usize {
    let starts = (frames - segment + 1) as u64;
    ((u64::from(philox4x32_10([0, 0, 0, SLICE], key)[0]) * starts) >> 32) as usize
}

fn normals(key: [u32; 2], stream: u32, out: &mut [f32]) {
    for (i, quad) in out.chunks_mut(4).enumerate() {
        let w = philox4x32_10([i as u32, 0, 0, stream], key);
        let [a, b] = [normal_pair(w[0], w[1]), normal_pair(w[2], w[3])];
        quad.copy_from_slice(&[a[0], a[1], b[0], b[1]][..quad.len()]);
    }
}
