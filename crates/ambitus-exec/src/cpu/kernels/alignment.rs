//! Monotonic alignment search (Kim, Kim, Kong & Yoon, arXiv 2005.11129), without a table of scores: those of a few frames are made at
//! a time, and of all that led to them there is one row of values, and a bit for each frame and text row.

use super::pool::DisjointMut;
use super::scratch::{SLACK, Scratch, padded};
use super::simd::{At, Simd, dispatch, each_vector};
use super::{Mat, Pool, check_segments, segment};
use std::ops::Range;

/// Frames whose scores are made at a time: a text row is read once for them.
const FRAMES: usize = 4;
/// What stands for a path that there is not.
const NONE: f32 = -1e9;
/// Bits of a word.
const WORD: usize = u32::BITS as usize;

/// The rows of a text that a frame may belong to: a normal density each.
#[derive(Clone, Copy, Debug)]
pub struct Densities<'a> {
    /// `[U, D]`
    pub mean: Mat<'a>,
    /// `[U, D]`: 1 / σ
    pub scale: Mat<'a>,
    /// `[U]`: the logarithm at the mean
    pub base: &'a [f32],
}

/// Returns the floats of workspace of [`monotonic_path`] for F frames and U text rows: a row of values, the scores of some frames,
/// and the bits. One clip may have all frames and rows, as far as types say, and then needs all of it.
pub fn monotonic_path_workspace(frames: usize, rows: usize) -> usize {
    padded(rows) + padded(FRAMES * rows) + padded(frames * rows.div_ceil(WORD)) + SLACK
}

/// The text row of every frame, by its number in the table of all texts: of the path through each clip with the largest sum of
/// scores `base[u] - ½ Σ_d ((z[f, d] - mean[u, d]) scale[u, d])²`, which begins in the clip's first text row, ends in its last, and
/// stays or goes on by one from frame to frame. z `[F, D]`, path `[F]` as words; -1 for frames of no clip, or of one without text.
pub fn monotonic_path(
    pool: &Pool,
    z: Mat,
    of: &Densities,
    frame_seg: &[i32],
    text_seg: &[i32],
    path: &mut [f32],
    ws: &mut [f32],
) {
    let rows = of.mean.rows;
    let clips = check_segments(frame_seg, z.rows);
    assert!(check_segments(text_seg, rows) == clips, "alignment: frames and texts differ in number");
    assert!((of.scale.rows, of.scale.cols) == (rows, z.cols) && of.mean.cols == z.cols, "alignment: shapes");
    assert!(of.base.len() == rows && path.len() == z.rows, "alignment: lengths");
    let (isa, words) = (pool.isa(), rows.div_ceil(WORD));
    let mut scratch = Scratch::new(ws);
    let values = DisjointMut::new(scratch.take(rows));
    let scores = DisjointMut::new(scratch.take(FRAMES * rows));
    let bits = DisjointMut::new(scratch.take(z.rows * words));
    path[frame_seg[clips] as usize..].fill(word(-1));
    let path = DisjointMut::new(path);
    pool.run(clips, |s| {
        let (frames, texts) = (segment(frame_seg, s), segment(text_seg, s));
        let (n, m) = (frames.len(), texts.len());
        // SAFETY: no two clips have a frame or a text row in common.
        let (values, scores, bits, path) = unsafe {
            (
                values.slice(texts.start, m),
                scores.slice(FRAMES * texts.start, FRAMES * m),
                bits.slice(words * frames.start, words * n),
                path.slice(frames.start, n),
            )
        };
        if n == 0 || m == 0 {
            path.fill(word(-1));
            return;
        }
        let clip = Clip { n, m };
        for first in (0..n).step_by(FRAMES) {
            let some = first..n.min(first + FRAMES);
            let band = clip.band(some.start).start..clip.band(some.end - 1).end;
            score(isa, z, of, frames.start + first, some.len(), texts.start, band, scores);
            for (y, scores) in some.zip(scores.chunks_exact(m)) {
                clip.step(y, scores, values, &mut bits[y * words..][..words]);
            }
        }
        let mut at = m - 1;
        for (path, bits) in path.iter_mut().zip(bits.chunks_exact(words)).rev() {
            *path = word((texts.start + at) as i32);
            at -= (bits[at / WORD].to_bits() >> (at % WORD) & 1) as usize;
        }
    });
}

/// An integer in a place for floats.
fn word(x: i32) -> f32 {
    f32::from_bits(x as u32)
}

/// A clip of `n` frames and `m` text rows.
struct Clip {
    n: usize,
    m: usize,
}

impl Clip {
    /// Returns the text rows of frame `y` that paths come by. With fewer frames than rows: those that the way back comes by.
    fn band(&self, y: usize) -> Range<usize> {
        let end = if self.n < self.m { self.m } else { self.m.min(y + 1) };
        (self.m + y).saturating_sub(self.n)..end
    }

    /// Makes frame `y`'s values of those of the frame before, and the bits of where the way back leaves its row.
    fn step(&self, y: usize, scores: &[f32], values: &mut [f32], bits: &mut [f32]) {
        let band = self.band(y);
        let first = band.start / WORD;
        // From the last row down: the row before still has the value of the frame before.
        for (w, bits) in bits.iter_mut().enumerate().take(band.end.div_ceil(WORD)).skip(first).rev() {
            let mut leaves = 0u32;
            for x in (band.start.max(w * WORD)..band.end.min((w + 1) * WORD)).rev() {
                let stays = if x == y { NONE } else { values[x] };
                let comes = match (x, y) {
                    (0, 0) => 0.0,
                    (0, _) => NONE,
                    _ => values[x - 1],
                };
                let better = stays < comes;
                let leave = x > 0 && y > 0 && (x == y || better);
                leaves |= u32::from(leave) << (x % WORD);
                // Without a path the scores are all that the way back goes by.
                values[x] =
                    if self.n < self.m { scores[x] } else { scores[x] + if better { comes } else { stays } };
            }
            *bits = f32::from_bits(leaves);
        }
    }
}

dispatch! {
    /// Scores of `n` frames from `frame` on with the text rows `band`, counted from `row`: `out[k * (rows of the text) + x]`.
    fn score(
        z: Mat, of: &Densities, frame: usize, n: usize, row: usize, band: Range<usize>, out: &mut [f32],
    ) = score_body
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn score_body<S: Simd>(
    s: S,
    z: Mat,
    of: &Densities,
    frame: usize,
    n: usize,
    row: usize,
    band: Range<usize>,
    out: &mut [f32],
) {
    let m = out.len() / FRAMES;
    // Where there are fewer frames the last one stands for the others.
    let z: [&[f32]; FRAMES] = std::array::from_fn(|k| z.row(frame + k.min(n - 1)));
    for x in band {
        let (mean, scale) = (of.mean.row(row + x), of.scale.row(row + x));
        let mut sums = [s.zero(); FRAMES];
        each_vector!(S, mean.len(), |at| {
            let (mean, scale) = (at.load(s, mean), at.load(s, scale));
            for (sum, z) in sums.iter_mut().zip(z) {
                // Zero beyond the end: the scale is.
                let off = s.mul(s.sub(at.load(s, z), mean), scale);
                *sum = s.fma(off, off, *sum);
            }
        });
        for (k, sum) in sums.into_iter().enumerate().take(n) {
            out[k * m + x] = of.base[row + x] - 0.5 * s.sum(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};

    /// The search with the whole table, in f64.
    fn plain(z: &[f32], of: [&[f32]; 3], cols: usize, n: usize, m: usize) -> Vec<i32> {
        let wide = |x: &[f32], row: usize| x[row * cols..][..cols].iter().map(|x| f64::from(*x)).collect();
        let score = |y: usize, u: usize| -> f64 {
            let (z, mean, scale): (Vec<f64>, Vec<f64>, Vec<f64>) =
                (wide(z, y), wide(of[0], u), wide(of[1], u));
            let square: f64 = (0..cols).map(|c| ((z[c] - mean[c]) * scale[c]).powi(2)).sum();
            f64::from(of[2][u]) - 0.5 * square
        };
        let mut best = vec![vec![f64::NEG_INFINITY; m]; n];
        for y in 0..n {
            for x in 0..m.min(y + 1) {
                let comes = if x > 0 { best[y - 1][x - 1] } else { f64::NEG_INFINITY };
                let stays = if x < y { best[y - 1][x] } else { f64::NEG_INFINITY };
                best[y][x] = score(y, x) + if y == 0 { 0.0 } else { comes.max(stays) };
            }
        }
        let (mut at, mut path) = (m - 1, vec![0; n]);
        for y in (0..n).rev() {
            path[y] = at as i32;
            if y > 0 && at > 0 && (at == y || best[y - 1][at] < best[y - 1][at - 1]) {
                at -= 1;
            }
        }
        path
    }

    #[test]
    fn paths_are_those_of_the_whole_table() {
        let mut rng = Rng::new(51);
        for (clips, cols) in [(vec![(40, 9)], 192), (vec![(1, 1), (75, 70), (130, 33)], 5), (vec![(9, 9)], 1)]
        {
            let ends = |of: &dyn Fn(&(usize, usize)) -> usize| -> Vec<i32> {
                let mut end = 0;
                let mut table = vec![0];
                table.extend(clips.iter().map(|clip| {
                    end += of(clip) as i32;
                    end
                }));
                table
            };
            let (frames, texts) = (ends(&|c| c.0), ends(&|c| c.1));
            let [f, u] = [&frames, &texts].map(|t| t[clips.len()] as usize);
            let (z, mean, base) = (rng.vec((f + 2) * cols), rng.vec(u * cols), rng.vec(u));
            let scale: Vec<f32> = rng.vec(u * cols).iter().map(|x| 1.5 + x).collect();
            let mut want = Vec::new();
            for (s, &(n, m)) in clips.iter().enumerate() {
                let (first, row) = (frames[s] as usize, texts[s] as usize);
                let of = [&mean[row * cols..], &scale[row * cols..], &base[row..]];
                want.extend(
                    plain(&z[first * cols..], of, cols, n, m).iter().map(|x| (x + row as i32) as f32),
                );
            }
            want.extend([-1.0; 2]);
            check(&want, 0.0, &format!("{clips:?}"), |pool| {
                let mut path = vec![f32::NAN; f + 2];
                let mut ws = vec![f32::NAN; monotonic_path_workspace(f + 2, u)];
                let of = Densities {
                    mean: Mat::dense(&mean, u, cols),
                    scale: Mat::dense(&scale, u, cols),
                    base: &base,
                };
                let z = Mat::dense(&z, f + 2, cols);
                monotonic_path(pool, z, &of, &frames, &texts, &mut path, &mut ws);
                path.iter().map(|x| x.to_bits() as i32 as f32).collect()
            });
        }
    }
}
