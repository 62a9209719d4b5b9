//! Rotary position embedding (Su et al., arXiv 2104.09864).

use super::math::sin_cos;
use super::simd::{At, Simd, dispatch, each_vector};
use super::tiles::SegmentTiles;
use super::{Pool, Rows, RowsMut, Stage};

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Elements 2i and 2i + 1 (GPT-J, x-transformers).
    Interleaved,
    /// Elements i and i + n/2 of the n rotated ones (Llama, GPT-NeoX).
    HalfSplit,
}

/// Options of [`rotary`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Width of a head.
    pub head_dim: usize,
    /// Heads that are rotated, from the first; the others pass through.
    pub rot_heads: usize,
    /// Pairing of elements.
    pub pairing: Pairing,
    /// Rotate back: the gradient.
    pub inverse: bool,
}

/// Most frequencies: half of the widest head.
pub const MAX_FREQUENCIES: usize = 256;

/// Rotates pair i of the first `2 * inv_freq.len()` elements of each rotated head by `position * inv_freq[i]`, the position being
/// the row's in its segment, or `at` its own. x, out [T, H·hd]; `x` None rotates `out` in place. Rows of no segment become 0.
pub fn rotary<'a>(
    pool: &Pool,
    x: Option<impl Into<Rows<'a>>>,
    (seg, at): (&[i32], Option<&[i32]>),
    spec: &Rotary,
    inv_freq: &[f32],
    out: impl Into<RowsMut<'a>>,
) {
    let (x, out): (Option<Rows>, RowsMut) = (x.map(Into::into), out.into());
    let (rows, cols) = out.shape();
    let st = SegmentTiles::new(seg, rows);
    assert!(x.is_none_or(|x| x.shape() == (rows, cols)));
    assert!(
        2 * inv_freq.len() <= spec.head_dim
            && inv_freq.len() <= MAX_FREQUENCIES
            && spec.rot_heads * spec.head_dim <= cols,
        "rotary: {spec:?} with {} frequencies over {} columns",
        inv_freq.len(),
        cols
    );
    let isa = pool.isa();
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        let mut from = Stage::new();
        let mut to = Stage::new();
        for t in rows {
            let x = match (x, &out) {
                (Some(x), _) => Some(x.row(isa, t, &mut from)),
                // SAFETY: one task per row.
                (None, RowsMut::Half(..)) => Some(unsafe { out.old(isa, t, 0, cols, &mut from) }),
                (None, RowsMut::F32(_)) => None,
            };
            let rotate = |row: &mut [f32]| {
                let Some(s) = s else { return row.fill(0.0) };
                if let Some(x) = x {
                    row.copy_from_slice(x);
                }
                let position = at.map_or(t as i32 - seg[s], |at| at[t]);
                rotate_row(isa, row, spec, inv_freq, position as f32);
            };
            // SAFETY: one task per row.
            unsafe { out.write(isa, t, &mut to, rotate) };
        }
    });
}

dispatch! { fn rotate_row(row: &mut [f32], spec: &Rotary, inv_freq: &[f32], position: f32) = rotate_row_body }

#[inline(always)]
fn rotate_row_body<S: Simd>(s: S, row: &mut [f32], spec: &Rotary, inv_freq: &[f32], position: f32) {
    let n = inv_freq.len();
    let mut angles = [[0.0; MAX_FREQUENCIES]; 2];
    let [sin, cos] = &mut angles;
    let (sin, cos) = (&mut sin[..n], &mut cos[..n]);
    let p = s.splat(if spec.inverse { -position } else { position });
    each_vector!(S, n, |at| {
        let (a, b) = sin_cos(s, s.mul(p, at.load(s, inv_freq)));
        at.store(s, sin, a);
        at.store(s, cos, b);
    });
    for head in row.chunks_exact_mut(spec.head_dim).take(spec.rot_heads) {
        match spec.pairing {
            Pairing::Interleaved => {
                for ((pair, &sin), &cos) in head.chunks_exact_mut(2).zip(&*sin).zip(&*cos) {
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * cos - b * sin;
                    pair[1] = b * cos + a * sin;
                }
            }
            Pairing::HalfSplit => {
                let (left, right) = head[..2 * n].split_at_mut(n);
                each_vector!(S, n, |at| {
                    let (a, b) = (at.load(s, left), at.load(s, right));
                    let (sn, cs) = (at.load(s, sin), at.load(s, cos));
                    at.store(s, left, s.fnma(b, sn, s.mul(a, cs)));
                    at.store(s, right, s.fma(a, sn, s.mul(b, cs)));
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, check};
    use crate::cpu::kernels::{Mat, MatMut, segment_of};

    /// Rounding of angles up to 90 radians.
    const TOL: f32 = 1e-5;

    #[test]
    fn rotates_and_back() {
        let mut rng = Rng::new(51);
        for pairing in [Pairing::Interleaved, Pairing::HalfSplit] {
            for (head_dim, freqs, rot_heads) in [(64, 32, 3), (10, 3, 1), (34, 17, 2)] {
                let (rows, cols) = (130, 3 * head_dim);
                let seg = [0, 90, 90, 120];
                let x = rng.vec(rows * cols);
                let inv: Vec<f32> = (0..freqs).map(|i| 1e4f32.powf(-(i as f32) / freqs as f32)).collect();
                let mut want = x.clone();
                for t in 0..rows {
                    let Some(s) = segment_of(&seg, t) else {
                        want[t * cols..][..cols].fill(0.0);
                        continue;
                    };
                    for h in 0..rot_heads {
                        for (i, f) in inv.iter().enumerate() {
                            let angle = ((t - seg[s] as usize) as f32 * f) as f64;
                            let (a, b) = match pairing {
                                Pairing::Interleaved => (2 * i, 2 * i + 1),
                                Pairing::HalfSplit => (i, i + freqs),
                            };
                            let (a, b) = (t * cols + h * head_dim + a, t * cols + h * head_dim + b);
                            let (u, v) = (x[a] as f64, x[b] as f64);
                            want[a] = (u * angle.cos() - v * angle.sin()) as f32;
                            want[b] = (v * angle.cos() + u * angle.sin()) as f32;
                        }
                    }
                }
                let mut back = x.clone();
                back[120 * cols..].fill(0.0);
                check(&[want, back].concat(), TOL, &format!("{pairing:?} {head_dim}"), |pool| {
                    let mut spec = Rotary { head_dim, rot_heads, pairing, inverse: false };
                    let mut y = vec![f32::NAN; x.len()];
                    let xm = Mat::dense(&x, rows, cols);
                    rotary(pool, Some(xm), (&seg, None), &spec, &inv, MatMut::dense(&mut y, rows, cols));
                    let mut back = y.clone();
                    spec.inverse = true;
                    rotary(
                        pool,
                        None::<Mat>,
                        (&seg, None),
                        &spec,
                        &inv,
                        MatMut::dense(&mut back, rows, cols),
                    );
                    [y, back].concat()
                });
            }
        }
    }
}
