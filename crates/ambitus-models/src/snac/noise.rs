//! What the decoder's noise blocks add: standard normal numbers, a function of (seed, block, row of the whole sound).

use crate::f5::draw::normal_pair;
use ambitus_ir::ops::random::philox4x32_10;

/// Draws N(0, 1) for the rows from `first` on of a decoder block.
pub fn noise(seed: u64, block: usize, first: u64, out: &mut [f32]) {
    let key = [seed as u32, (seed >> 32) as u32];
    for (i, x) in (first..).zip(out) {
        let at = i / 4;
        let w = philox4x32_10([at as u32, (at >> 32) as u32, block as u32, 0], key);
        let pair = if i % 4 < 2 { normal_pair(w[0], w[1]) } else { normal_pair(w[2], w[3]) };
        *x = pair[(i % 2) as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::noise;

    #[test]
    fn noise_does_not_depend_on_where_a_piece_begins() {
        let (mut whole, mut part, mut other) = ([0.0; 4001], [0.0; 90], [0.0; 90]);
        noise(7, 1, 0, &mut whole);
        noise(7, 1, 11, &mut part);
        noise(7, 2, 11, &mut other);
        assert_eq!(part, whole[11..101]);
        assert_ne!(part, other);
        let mean = whole.iter().sum::<f32>() / 4001.0;
        let square = whole.iter().map(|x| x * x).sum::<f32>() / 4001.0;
        assert!(mean.abs() < 0.06 && (square - 1.0).abs() < 0.09, "{mean} {square}");
    }
}
