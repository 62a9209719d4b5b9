//! 1-d convolution over the rows of each segment, stride 1, zeros beyond a segment's borders; the output has the input's rows:
//! `y[t, o] = bias[o] + Σ_k Σ_c x[t + k - pad_left, c] w[o, c, k]` (c over the channels of o's group).
//!
//! Depthwise convolutions run directly, vectors over channels; all others as products with overlapping windows of a zero-padded
//! copy of a few hundred rows of one group.

mod depthwise;
mod grouped;
#[cfg(test)]
mod tests;

use super::scratch::{SLACK, Scratch};
use super::{Mat, MatMut, Pool};

/// Shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1d {
    /// Input channels.
    pub cin: usize,
    /// Output channels.
    pub cout: usize,
    /// Groups; divides both.
    pub groups: usize,
    /// Taps K.
    pub kernel: usize,
    /// Zeros before a segment; `kernel - 1 - pad_left` follow it.
    pub pad_left: usize,
}

impl Conv1d {
    fn check(&self) {
        assert!(
            self.groups > 0
                && self.kernel > 0
                && self.pad_left < self.kernel
                && self.cin.is_multiple_of(self.groups)
                && self.cout.is_multiple_of(self.groups),
            "convolution shape {self:?}"
        );
    }

    /// Input and output channels per group.
    fn per_group(&self) -> (usize, usize) {
        (self.cin / self.groups, self.cout / self.groups)
    }

    fn depthwise(&self) -> bool {
        self.per_group() == (1, 1)
    }

    /// Returns the elements of the weight `[cout, cin / groups, kernel]`.
    pub fn weights(&self) -> usize {
        self.cout * self.per_group().0 * self.kernel
    }

    /// Returns the convolution that maps output gradients to input gradients.
    fn transposed(&self) -> Conv1d {
        Conv1d { cin: self.cout, cout: self.cin, pad_left: self.kernel - 1 - self.pad_left, ..*self }
    }
}

/// Returns the floats of workspace that suffice for [`conv1d`], [`conv1d_grad_input`] and [`conv1d_grad_weight`].
pub fn conv1d_workspace(spec: &Conv1d, rows: usize, segments: usize, threads: usize) -> usize {
    let floats = if spec.depthwise() {
        depthwise::workspace(spec, rows, segments)
    } else {
        grouped::workspace(spec, threads)
    };
    floats + SLACK
}

/// The convolution. x `[T, cin]`, w `[cout, cin / groups, K]`, bias `[cout]`, out `[T, cout]`; rows of no segment become 0.
#[allow(clippy::too_many_arguments)]
pub fn conv1d(
    pool: &Pool,
    x: Mat,
    seg: &[i32],
    w: &[f32],
    bias: Option<&[f32]>,
    spec: &Conv1d,
    out: MatMut,
    ws: &mut [f32],
) {
    spec.check();
    assert!(x.cols == spec.cin && out.cols == spec.cout && x.rows == out.rows);
    let (w, bias) = (&w[..spec.weights()], bias.map(|b| &b[..spec.cout]));
    let scratch = Scratch::new(ws);
    if spec.depthwise() {
        depthwise::forward(pool, x, seg, w, bias, spec, false, out, scratch);
    } else {
        grouped::forward(pool, x, seg, w, bias, spec, false, out, scratch);
    }
}

/// Gradient by the input: dy `[T, cout]` -> dx `[T, cin]`; rows of no segment become 0.
pub fn conv1d_grad_input(
    pool: &Pool,
    dy: Mat,
    seg: &[i32],
    w: &[f32],
    spec: &Conv1d,
    dx: MatMut,
    ws: &mut [f32],
) {
    spec.check();
    assert!(dx.cols == spec.cin && dy.cols == spec.cout && dx.rows == dy.rows);
    let w = &w[..spec.weights()];
    let (spec, scratch) = (spec.transposed(), Scratch::new(ws));
    if spec.depthwise() {
        depthwise::forward(pool, dy, seg, w, None, &spec, true, dx, scratch);
    } else {
        grouped::forward(pool, dy, seg, w, None, &spec, true, dx, scratch);
    }
}

/// Gradient by the weight: `dw = acc * dw + Σ_t dy[t, o] x[t + k - pad_left, c]`. (The bias's is a column sum of dy.)
#[allow(clippy::too_many_arguments)]
pub fn conv1d_grad_weight(
    pool: &Pool,
    x: Mat,
    dy: Mat,
    seg: &[i32],
    spec: &Conv1d,
    acc: f32,
    dw: &mut [f32],
    ws: &mut [f32],
) {
    spec.check();
    assert!(x.cols == spec.cin && dy.cols == spec.cout && x.rows == dy.rows);
    let dw = &mut dw[..spec.weights()];
    let scratch = Scratch::new(ws);
    if spec.depthwise() {
        depthwise::grad_weight(pool, x, dy, seg, spec, acc, dw, scratch);
    } else {
        grouped::grad_weight(pool, x, dy, seg, spec, acc, dw, scratch);
    }
}
