//! Scaled dot-product attention over segments, forward and backward, without an n x n matrix.
//!
//! Forward: online softmax over key tiles (Milakov & Gimelshein, arXiv 1805.02867; tiling as FlashAttention, arXiv 2205.14135),
//! keeping per row and head only the output and lse = ln Σ exp(scale q·k). Backward recomputes the probabilities from lse
//! (arXiv 2307.08691, section 3.1.2).

mod backward;
mod forward;
mod one;
#[cfg(test)]
mod tests;
mod window;

pub use backward::{attention_grad, attention_grad_workspace};
pub use forward::{attention, attention_workspace};
pub use window::{Window, windowed_attention, windowed_attention_grad, windowed_attention_grad_workspace};

use super::gemm::micro::nr;
use super::gemm::pack::pack_b;
use super::scratch::padded;
use super::simd::Simd;
use super::{Isa, Mat, Rows, RowsMut, check_segments};

/// Shape and options of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads H.
    pub heads: usize,
    /// Key and value heads; divides `heads`. Query head h uses key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head, at most 256.
    pub head_dim: usize,
    /// Query i of a segment sees keys 0..=i of its segment.
    pub causal: bool,
    /// Factor of q·k, usually 1 / √head_dim.
    pub scale: f32,
}

/// Widest head.
pub const MAX_HEAD_DIM: usize = 256;
/// Keys per tile.
const KT: usize = 256;
/// Row stride of a score tile: one cache line more than the tile, so that rows do not share cache sets.
const LDS: usize = KT + 16;
/// Columns of the widest packed panel of any instruction set.
const NR_MAX: usize = 32;

impl Attention {
    fn check(&self, q_cols: usize, kv_cols: usize) {
        let d = self.head_dim;
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads) && d <= MAX_HEAD_DIM,
            "attention shape {self:?}"
        );
        assert!(
            q_cols == self.heads * d && kv_cols == self.kv_heads * d,
            "attention {self:?} over {q_cols} and {kv_cols} columns"
        );
    }

    /// Query heads per key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Of the `m` keys from `k0` on those that any query before `end` sees, and the rest of their panel of `nr`.
    fn seen(&self, m: usize, end: usize, k0: usize, nr: usize) -> usize {
        if self.causal { (end - k0).next_multiple_of(nr).min(m) } else { m }
    }

    /// Panel width of a head, for any instruction set.
    fn head_panels(&self) -> usize {
        self.head_dim.next_multiple_of(NR_MAX)
    }
}

/// Both segment tables, checked; returns the number of segments.
fn check_tables(q_seg: &[i32], q_rows: usize, k_seg: &[i32], k_rows: usize) -> usize {
    let s = check_segments(q_seg, q_rows);
    assert!(check_segments(k_seg, k_rows) == s, "query and key segments differ in number");
    s
}

/// Returns where a task sums the part of a result at row `r`, column `c`, and the distance of its rows: in place, or in `wide`,
/// of rows of `d`, where the result has 16 bits.
fn sums(m: &RowsMut, (r, c): (usize, usize), wide: &mut [f32], d: usize) -> (*mut f32, usize) {
    match m {
        RowsMut::F32(m) => {
            assert!(r < m.rows && c + d <= m.cols);
            // SAFETY: inside the view by the assertion.
            (unsafe { m.ptr().add(r * m.pitch + c) }, m.pitch)
        }
        RowsMut::Half(..) => (wide.as_mut_ptr(), d),
    }
}

/// Rounds `n` rows of such sums to their places.
///
/// # Safety
/// No other task may use these elements.
unsafe fn settle(isa: Isa, m: &RowsMut, (r, n): (usize, usize), (c, d): (usize, usize), wide: &[f32]) {
    if let RowsMut::Half(..) = m {
        for i in 0..n {
            // SAFETY: the caller's promise.
            unsafe { m.put(isa, r + i, c, &wide[i * d..][..d]) };
        }
    }
}

/// `n` floats of scratch where 16-bit values are widened, else none.
fn extra(narrow: bool, n: usize) -> usize {
    if narrow { padded(n) } else { 0 }
}

/// Packs the transpose of rows `r..r + n` of a head (columns `c..c + d`) into panels `[d][NR]` over the rows.
#[inline(always)]
fn pack_rows_t<S: Simd>(s: S, x: &Mat, r: usize, n: usize, c: usize, d: usize, to: &mut [f32]) {
    let nr = nr::<S>();
    let from = &x.data[r * x.pitch + c..];
    assert!(n == 0 || (n - 1) * x.pitch + d <= from.len());
    for (p, panel) in to[..n.next_multiple_of(nr) * d].chunks_exact_mut(nr * d).enumerate() {
        let j = p * nr;
        // SAFETY: element (row j + i, column p) is inside `from` by the assertion.
        unsafe { pack_b(s, from.as_ptr().add(j * x.pitch), 1, x.pitch, d, nr.min(n - j), panel) };
    }
}

/// Packs rows `r..r + n` of a head (columns `c..c + d`) into panels `[n][NR]` over the columns.
#[inline(always)]
fn pack_rows<S: Simd>(s: S, x: &Mat, r: usize, n: usize, c: usize, d: usize, to: &mut [f32]) {
    let nr = nr::<S>();
    let from = &x.data[r * x.pitch + c..];
    assert!(n == 0 || (n - 1) * x.pitch + d <= from.len());
    for (p, panel) in to[..d.next_multiple_of(nr) * n].chunks_exact_mut(nr * n).enumerate() {
        let j = p * nr;
        // SAFETY: as above.
        unsafe { pack_b(s, from.as_ptr().add(j), x.pitch, 1, n, nr.min(d - j), panel) };
    }
}
