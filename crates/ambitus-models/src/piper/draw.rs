//! What is drawn for a clip at a training step: the noise of its latents and of its durations, and where its slice begins. Draws are a
//! pure function of the clip's key.

use crate::f5::draw::normal_pair;
use ambitus_ir::ops::random::philox4x32_10;

/// Streams of a clip's generator; masks of dropout and what is spoken have others.
const LATENTS: u32 = 0;
const SLICE: u32 = 1;
const DURATIONS: u32 = 2;

/// Draws the N(0, 1) of a clip's latents `[T, inter]`.
pub fn noise(key: [u32; 2], out: &mut [f32]) {
    normals(key, LATENTS, 0, out);
}

/// Draws the N(0, 1) of a clip's durations `[P, 2]`.
pub fn duration_noise(key: [u32; 2], out: &mut [f32]) {
    normals(key, DURATIONS, 0, out);
}

/// Draws the first frame of a slice of `segment` frames of a clip of `frames`, each equally likely.
pub fn slice(key: [u32; 2], frames: usize, segment: usize) -> usize {
    let starts = (frames - segment + 1) as u64;
    ((u64::from(philox4x32_10([0, 0, 0, SLICE], key)[0]) * starts) >> 32) as usize
}

/// Draws N(0, 1) number `first` of a stream, and those behind it.
pub(super) fn normals(key: [u32; 2], stream: u32, first: usize, out: &mut [f32]) {
    let mut block = None;
    for (i, x) in out.iter_mut().enumerate() {
        let at = first + i;
        let four = match block {
            Some((of, four)) if of == at / 4 => four,
            _ => {
                let w = philox4x32_10([(at / 4) as u32, ((at / 4) as u64 >> 32) as u32, 0, stream], key);
                let [[a, b], [c, d]] = [normal_pair(w[0], w[1]), normal_pair(w[2], w[3])];
                [a, b, c, d]
            }
        };
        block = Some((at / 4, four));
        *x = four[at % 4];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_inside_their_clip_and_reach_all_of_it() {
        for (frames, segment) in [(32, 32), (33, 32), (40, 8)] {
            let mut seen = vec![0_usize; frames - segment + 1];
            (0..4000).for_each(|n| seen[slice([n, 7], frames, segment)] += 1);
            let usual = 4000 / seen.len();
            assert!(seen.iter().all(|n| n.abs_diff(usual) < usual / 2), "{seen:?}");
        }
        let mut drawn = [[0.0; 6]; 2];
        noise([1, 2], &mut drawn[0]);
        duration_noise([1, 2], &mut drawn[1]);
        assert_ne!(drawn[0], drawn[1]);
    }
}
