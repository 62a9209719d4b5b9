//! What is drawn for a clip at a training step: noise, time, masked span, dropped conditions.
//!
//! Draws are a pure function of (seed, epoch, sample id): packing, ranks and plans do not change them. The reference package
//! draws the dropped conditions once per batch; here every clip draws its own, with the same probabilities.

use ambitus_ir::ops::random::philox4x32_10;

/// Streams of a clip's generator.
const NOISE: u32 = 0;
const SCALARS: u32 = 1;

/// Probability that the audio condition is dropped alone (`audio_drop_prob`).
const AUDIO_DROP: f32 = 0.3;
/// Probability that audio and text are dropped together (`cond_drop_prob`).
const COND_DROP: f32 = 0.2;
/// Masked share of a clip, lower end; the upper end is 1 (`frac_lengths_mask`).
const SPAN_FROM: f32 = 0.7;

/// The random choices for one clip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Flow time in 0..1.
    pub time: f32,
    /// First predicted frame and one past the last.
    pub span: (usize, usize),
    /// The audio condition is dropped.
    pub drop_audio: bool,
    /// The text is dropped.
    pub drop_text: bool,
    /// Key of the noise ([`noise`]) and of dropout masks.
    pub key: [u32; 2],
}

/// Returns a number uniform in 0..1 with 24 bits.
fn uniform(bits: u32) -> f32 {
    (bits >> 8) as f32 / (1 << 24) as f32
}

/// Returns two N(0, 1) from two words (Box-Muller, in double precision).
pub(crate) fn normal_pair(a: u32, b: u32) -> [f32; 2] {
    let u = (f64::from(a) + 1.0) / 4_294_967_296.0;
    let r = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * f64::from(b) / 4_294_967_296.0).sin_cos();
    [(r * cos) as f32, (r * sin) as f32]
}

/// Draws for a clip of `frames` frames.
pub fn draw(key: [u32; 2], frames: usize) -> Draw {
    let s = philox4x32_10([0, 0, 0, SCALARS], key);
    let d = philox4x32_10([1, 0, 0, SCALARS], key);
    let share = SPAN_FROM + (1.0 - SPAN_FROM) * uniform(s[0]);
    let len = ((share * frames as f32) as usize).min(frames);
    let start = (uniform(s[1]) * (frames - len) as f32) as usize;
    let both = uniform(d[1]) < COND_DROP;
    Draw {
        time: uniform(s[2]),
        span: (start, start + len),
        drop_audio: both || uniform(d[0]) < AUDIO_DROP,
        drop_text: both,
        key,
    }
}

/// Draws N(0, 1) `[N, M]` of a clip, row-major; `out` has N * M elements.
pub fn noise(key: [u32; 2], out: &mut [f32]) {
    for (i, quad) in out.chunks_mut(4).enumerate() {
        let w = philox4x32_10([i as u32, 0, 0, NOISE], key);
        let [a, b] = [normal_pair(w[0], w[1]), normal_pair(w[2], w[3])];
        quad.copy_from_slice(&[a[0], a[1], b[0], b[1]][..quad.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::clip_key;
    use crate::f5::config::MELS;

    #[test]
    fn draws_have_the_stated_distributions() {
        let n = 4000;
        let draws: Vec<Draw> = (0..n).map(|i| draw(clip_key(1, 0, i), 40)).collect();
        let share = |f: &dyn Fn(&Draw) -> bool| draws.iter().filter(|d| f(d)).count() as f64 / n as f64;
        // P(text dropped) = 0.2, P(audio dropped) = 1 - 0.7 * 0.8; three standard deviations of n draws.
        assert!((share(&|d| d.drop_text) - 0.2).abs() < 0.02);
        assert!((share(&|d| d.drop_audio) - 0.44).abs() < 0.025);
        assert!(draws.iter().all(|d| !d.drop_text || d.drop_audio));
        assert!(draws.iter().all(|d| d.span.1 <= 40 && d.span.1 - d.span.0 >= 27));
        let mut all = Vec::new();
        for d in draws.iter().take(400) {
            let mut x = vec![0.0; 40 * MELS];
            noise(d.key, &mut x);
            all.extend(x.into_iter().map(f64::from));
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let var = all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64;
        assert!(mean.abs() < 3e-3 && (var - 1.0).abs() < 5e-3, "{mean} {var}");
    }

    #[test]
    fn draws_depend_on_seed_epoch_and_sample_only() {
        assert_eq!(draw(clip_key(3, 1, 7), 12), draw(clip_key(3, 1, 7), 12));
        let keys = [clip_key(3, 1, 7), clip_key(4, 1, 7), clip_key(3, 2, 7), clip_key(3, 1, 8)];
        for i in 0..4 {
            for j in 0..i {
                assert_ne!(keys[i], keys[j]);
            }
        }
    }
}
