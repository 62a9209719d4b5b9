//! Counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and dropout.

use super::simd::{Simd, dispatch};
use super::tiles::SegmentTiles;
use super::{Pool, Rows, RowsMut, Stage};

const MUL: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Philox 4x32 with 10 rounds: four random words for a counter and a key.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let out = philox(counter.map(|c| [c]), key);
    out.map(|[w]| w)
}

/// L independent counters, word by word, in a form the compiler vectorises.
#[inline(always)]
fn philox<const L: usize>(mut c: [[u32; L]; 4], mut key: [u32; 2]) -> [[u32; L]; 4] {
    for _ in 0..10 {
        let mut next = [[0; L]; 4];
        for i in 0..L {
            let a = MUL[0] as u64 * c[0][i] as u64;
            let b = MUL[1] as u64 * c[2][i] as u64;
            next[0][i] = (b >> 32) as u32 ^ c[1][i] ^ key[0];
            next[1][i] = b as u32;
            next[2][i] = (a >> 32) as u32 ^ c[3][i] ^ key[1];
            next[3][i] = a as u32;
        }
        c = next;
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

/// Blocks of four words computed together.
const BLOCKS: usize = 16;

/// Counters from `first` on, of an op.
#[inline(always)]
fn counters(first: u64, id: u64) -> [[u32; BLOCKS]; 4] {
    let at = |i: usize| first + i as u64;
    [
        std::array::from_fn(|i| at(i) as u32),
        std::array::from_fn(|i| (at(i) >> 32) as u32),
        [id as u32; BLOCKS],
        [(id >> 32) as u32; BLOCKS],
    ]
}

/// Returns the random words of 256 consecutive elements, of which the first has the counter `first`: word n mod 4 of counter n
/// / 4.
#[inline(always)]
pub(super) fn block_words(first: u64, id: u64, key: [u32; 2]) -> [u32; 256] {
    let mut words = [0; 256];
    for (k, some) in words.chunks_exact_mut(4 * BLOCKS).enumerate() {
        let drawn = philox(counters(first + (k * BLOCKS) as u64, id), key);
        for (i, four) in some.chunks_exact_mut(4).enumerate() {
            four.iter_mut().zip(&drawn).for_each(|(to, word)| *to = word[i]);
        }
    }
    words
}

/// `out = x / (1 - p)` where kept, else 0; x, out `[T, C]`. Element e = (row in its segment) * C + column of segment s is kept when word
/// e mod 4 of `philox4x32_10([lo(e / 4), hi(e / 4), lo(op_id), hi(op_id)], seeds[s])` is at least p 2³², so the mask depends on neither
/// packing nor threads. The gradient is the same function of dy. Rows of no segment become 0.
pub fn dropout<'a>(
    pool: &Pool,
    x: impl Into<Rows<'a>>,
    seg: &[i32],
    seeds: &[[u32; 2]],
    op_id: u64,
    p: f32,
    out: impl Into<RowsMut<'a>>,
) {
    let (x, out) = (x.into(), out.into());
    let (rows, cols) = x.shape();
    let st = SegmentTiles::new(seg, rows);
    assert!(x.shape() == out.shape() && seeds.len() == st.segments());
    assert!((0.0..1.0).contains(&p), "dropout probability {p}");
    let isa = pool.isa();
    // p = 0 keeps every word.
    let threshold = (p as f64 * 4_294_967_296.0) as u32;
    pool.run(st.all(), |i| {
        let (s, rows) = st.get(i);
        let mut from = Stage::new();
        let mut to = Stage::new();
        for t in rows {
            let drop = |out: &mut [f32]| {
                let Some(s) = s else { return out.fill(0.0) };
                let mask = Mask {
                    first: ((t - seg[s] as usize) * cols) as u64,
                    op_id,
                    seed: seeds[s],
                    threshold,
                    scale: 1.0 / (1.0 - p),
                };
                dropout_row(isa, x.row(isa, t, &mut from), &mask, out);
            };
            // SAFETY: one task per row.
            unsafe { out.write(isa, t, &mut to, drop) };
        }
    });
}

/// What decides which elements of a row stay.
struct Mask {
    /// Element number of the row's first column.
    first: u64,
    op_id: u64,
    seed: [u32; 2],
    threshold: u32,
    scale: f32,
}

dispatch! { fn dropout_row(x: &[f32], mask: &Mask, out: &mut [f32]) = dropout_row_body }

#[inline(always)]
fn dropout_row_body<S: Simd>(_: S, x: &[f32], mask: &Mask, out: &mut [f32]) {
    let mut done = 0;
    while done < x.len() {
        let e = mask.first + done as u64;
        let (block, skip) = (e / 4, (e % 4) as usize);
        let words = philox(counters(block, mask.op_id), mask.seed);
        let mut factor = [0.0f32; 4 * BLOCKS];
        for (i, f) in factor.chunks_exact_mut(4).enumerate() {
            for (f, word) in f.iter_mut().zip(&words) {
                *f = if word[i] >= mask.threshold { mask.scale } else { 0.0 };
            }
        }
        let n = (4 * BLOCKS - skip).min(x.len() - done);
        let (x, out) = (&x[done..done + n], &mut out[done..done + n]);
        for ((out, &x), &f) in out.iter_mut().zip(x).zip(&factor[skip..skip + n]) {
            *out = if f == 0.0 { 0.0 } else { x * f };
        }
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::segment_of;
    use crate::cpu::kernels::testing::{Rng, check};
    use crate::cpu::kernels::{Mat, MatMut};

    /// Known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        let f = u32::MAX;
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32_10([f; 4], [f; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn mask_depends_on_the_clip_only() {
        let mut rng = Rng::new(91);
        let (rows, cols) = (90, 37);
        let x = rng.vec(rows * cols);
        let seg = [0, 0, 40, 41, 80];
        let seeds = [[1, 2], [3, 4], [5, 6], [7, 8]];
        let op = 0x1234_5678_9abc_def0;
        for p in [0.0, 0.25] {
            let mut want = vec![0.0; rows * cols];
            for t in 0..rows {
                let Some(s) = segment_of(&seg, t) else { continue };
                for c in 0..cols {
                    let e = ((t - seg[s] as usize) * cols + c) as u64;
                    let counter = [(e / 4) as u32, ((e / 4) >> 32) as u32, op as u32, (op >> 32) as u32];
                    let word = philox4x32_10(counter, seeds[s])[(e % 4) as usize];
                    if word >= (p * 4_294_967_296.0) as u32 {
                        want[t * cols + c] = x[t * cols + c] / (1.0 - p as f32);
                    }
                }
            }
            let kept = want.iter().filter(|v| **v != 0.0).count() as f64 / (80 * cols) as f64;
            assert!((kept - (1.0 - p)).abs() < 0.05, "kept {kept}");
            check(&want, 1e-6, "dropout", |pool| {
                let mut y = vec![f32::NAN; rows * cols];
                let ym = MatMut::dense(&mut y, rows, cols);
                dropout(pool, Mat::dense(&x, rows, cols), &seg, &seeds, op, p as f32, ym);
                y
            });
        }
    }
}
