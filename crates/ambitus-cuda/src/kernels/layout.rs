//! Core ops that move elements.

use super::{Axes, View, kernels, launch, launch_over};
use crate::bind::{Io, Steps, Tensor};
use crate::step::Step;
use ambitus_ir::TensorType;
use ambitus_ir::ops::layout::{Concat, Iota, Permute, Reverse, Slice};

kernels! { "layout";
    /// Copies units of `size` bytes between two places of four axes; of the last axis `cols` units, the others become
    /// zero. `from_at` and `to_at` are where the walk starts.
    StridedArgs "strided" [256 threads, 48 registers] {
        x: u64, y: u64, size: i32, dims: Axes, from: Axes, to: Axes, from_at: i64, to_at: i64, cols: i64
    }
    /// For every pair of the two outer axes a matrix [q, p] of y from a matrix [p, q] of x, elements of `size` bytes:
    /// along p y is contiguous, along q x. Rows of y are zero from p to `pitch`.
    TransposeArgs "transpose" [256 threads, 40 registers] {
        x: u64, y: u64, size: i32, p: i64, q: i64, pitch: i64, from_p: i64, to_q: i64,
        outer: Axes, from: Axes, to: Axes
    }
    /// The same elements in rows of another length, where both have pads.
    RegroupArgs "regroup" [256 threads, 48 registers] { x: View, y: View }
    /// y[i] = i / step % len, i counting with pads.
    IotaArgs "iota" [256 threads, 48 registers] { y: View, step: i64, len: i64 }
}

/// Edge of the tile of [`TransposeArgs`].
const EDGE: u64 = 32;
/// Axes shorter than this are not worth a tile: neighbours in cache lines make up for strides.
const SHORT: i64 = 8;

/// A walk over places of two tensors at once, in elements.
struct Walk {
    dims: [i64; 4],
    from: [i64; 4],
    to: [i64; 4],
    from_at: i64,
    to_at: i64,
    /// Elements of the last axis that are copied; the rest become zero.
    cols: i64,
}

/// Returns the axis lengths, four of them (ones come first).
fn lengths(ty: TensorType) -> [i64; 4] {
    let mut dims = [1; 4];
    let rank = ty.shape.len();
    for (to, from) in dims[4 - rank..].iter_mut().zip(ty.shape.iter()) {
        *to = *from as i64;
    }
    dims
}

/// Returns the elements from neighbour to neighbour along each of the four axes.
fn strides(ty: TensorType) -> [i64; 4] {
    let dims = lengths(ty);
    let pitch = ty.pitch as i64;
    [pitch * dims[2] * dims[1], pitch * dims[2], pitch, 1]
}

/// Returns an op's axis among four.
fn of_four(ty: TensorType, axis: usize) -> usize {
    axis + 4 - ty.shape.len()
}

/// Returns the axis lengths with the pads of the last one.
fn stored(ty: TensorType) -> [i64; 4] {
    let mut dims = lengths(ty);
    dims[3] = ty.pitch as i64;
    dims
}

impl Walk {
    /// Returns all of y, from the places in x that `from` and `from_at` say.
    fn all(y: TensorType, from: [i64; 4], from_at: i64) -> Walk {
        let cols = y.shape.cols() as i64;
        Walk { dims: stored(y), from, to: strides(y), from_at, to_at: 0, cols }
    }

    /// Joins axes that lie as one in both tensors, so that few divisions are left; drops those of length 1.
    fn joined(&self) -> Walk {
        let last = (self.dims[3], self.from[3], self.to[3]);
        let mut axes = vec![last];
        // Rows with zeros at their end stay rows.
        let mut whole = self.cols == self.dims[3];
        for i in (0..3).rev().filter(|i| self.dims[*i] != 1) {
            let (n, from, to) = axes[axes.len() - 1];
            if whole && (n == 1 || (self.from[i] == from * n && self.to[i] == to * n)) {
                let inner = if n == 1 { (self.from[i], self.to[i]) } else { (from, to) };
                let end = axes.len() - 1;
                axes[end] = (n * self.dims[i], inner.0, inner.1);
            } else {
                axes.push((self.dims[i], self.from[i], self.to[i]));
                whole = true;
            }
        }
        let mut joined = Walk { dims: [1; 4], from: [0; 4], to: [0; 4], ..*self };
        for (i, axis) in axes.into_iter().enumerate() {
            (joined.dims[3 - i], joined.from[3 - i], joined.to[3 - i]) = axis;
        }
        if self.cols == self.dims[3] {
            joined.cols = joined.dims[3];
        }
        joined
    }

    /// Returns this walk in units of the number of elements of which all its places are multiples, and that number.
    fn widened(&self, most: i64) -> (Walk, i64) {
        let runs = self.from[3] == 1 && self.to[3] == 1;
        let ends = [self.dims[3], self.cols, self.from_at, self.to_at];
        let fits = |k: i64| {
            k == 1 || (runs && ends.iter().chain(&self.from[..3]).chain(&self.to[..3]).all(|n| n % k == 0))
        };
        let mut k = most;
        while !fits(k) {
            k /= 2;
        }
        let narrow = |axes: [i64; 4]| [axes[0] / k, axes[1] / k, axes[2] / k, axes[3]];
        let dims = [self.dims[0], self.dims[1], self.dims[2], self.dims[3] / k];
        let (from_at, to_at) = (self.from_at / k, self.to_at / k);
        let (from, to) = (narrow(self.from), narrow(self.to));
        (Walk { dims, from, to, from_at, to_at, cols: self.cols / k }, k)
    }

    /// Returns the copy from x to y.
    fn steps(mut self, x: &Tensor, y: &Tensor) -> Vec<Step> {
        // Whole rows bring their own zeros.
        let (cols, pitch) = (x.ty.shape.cols() as i64, x.ty.pitch as i64);
        if self.from[3] == 1 && (self.cols, self.dims[3]) == (cols, pitch) {
            self.cols = pitch;
        }
        let element = y.ty.dtype.size() as i64;
        let aligned = (x.at | y.at).is_multiple_of(16);
        let (walk, k) = self.joined().widened(if aligned { 16 / element } else { 1 });
        let n: i64 = walk.dims.iter().product();
        let args = StridedArgs {
            x: x.at,
            y: y.at,
            size: (k * element) as i32,
            dims: Axes(walk.dims),
            from: Axes(walk.from),
            to: Axes(walk.to),
            from_at: walk.from_at,
            to_at: walk.to_at,
            cols: walk.cols,
        };
        launch_over(&args, n as u64)
    }
}

pub(crate) fn reshape(io: &Io) -> Steps {
    let (x, y) = (&io.x[0], &io.y[0]);
    let (a, b) = (x.ty, y.ty);
    // A tensor without pads may be read in rows of any length: those of the other one.
    let rows = |ty: TensorType, dims, from, to| Walk {
        dims: [1, 1, ty.shape.rows() as i64, dims],
        from: [0, 0, from, 1],
        to: [0, 0, to, 1],
        from_at: 0,
        to_at: 0,
        cols: ty.shape.cols() as i64,
    };
    Ok(if a.is_dense() {
        let (cols, pitch) = (b.shape.cols() as i64, b.pitch as i64);
        rows(b, pitch, cols, pitch).steps(x, y)
    } else if b.is_dense() {
        let (cols, pitch) = (a.shape.cols() as i64, a.pitch as i64);
        rows(a, cols, pitch, cols).steps(x, y)
    } else if (a.shape.cols(), a.pitch) == (b.shape.cols(), b.pitch) {
        let pitch = a.pitch as i64;
        rows(a, pitch, pitch, pitch).steps(x, y)
    } else {
        let y = y.view();
        launch_over(&RegroupArgs { x: x.view(), y }, y.stored())
    })
}

/// Nothing, where the result lies on its operand.
pub(crate) fn detach(io: &Io) -> Steps {
    if io.x[0].at == io.y[0].at { Ok(Vec::new()) } else { reshape(io) }
}

pub(crate) fn permute(op: &Permute, io: &Io) -> Steps {
    let (x, y) = (&io.x[0], &io.y[0]);
    let all = strides(x.ty);
    let first = 4 - op.axes.len();
    let mut from = all;
    for (i, &axis) in op.axes.iter().enumerate() {
        from[first + i] = all[first + axis];
    }
    let (dims, to) = (lengths(y.ty), strides(y.ty));
    // Where x's last axis lies in y.
    let at = op.axes.iter().position(|&axis| axis + 1 == op.axes.len()).map_or(3, |i| first + i);
    if at == 3 || dims[3] < SHORT || dims[at] < SHORT {
        return Ok(Walk::all(y.ty, from, 0).steps(x, y));
    }
    let rest: Vec<usize> = (0..3).filter(|i| *i != at).collect();
    let two = |axes: [i64; 4]| Axes([axes[rest[0]], axes[rest[1]], 1, 1]);
    let args = TransposeArgs {
        x: x.at,
        y: y.at,
        size: y.ty.dtype.size() as i32,
        p: dims[3],
        q: dims[at],
        pitch: y.ty.pitch as i64,
        from_p: from[3],
        to_q: to[at],
        outer: two(dims),
        from: two(from),
        to: two(to),
    };
    let outer = (dims[rest[0]] * dims[rest[1]]) as u64;
    let tiles = (args.pitch as u64).div_ceil(EDGE) * (args.q as u64).div_ceil(EDGE) * outer;
    Ok(if tiles == 0 { Vec::new() } else { vec![launch(&args, [tiles as u32, 1])] })
}

pub(crate) fn broadcast(io: &Io) -> Steps {
    let (x, y) = (&io.x[0], &io.y[0]);
    let (mut from, small, large) = (strides(x.ty), lengths(x.ty), lengths(y.ty));
    for i in (0..4).filter(|i| small[*i] != large[*i]) {
        from[i] = 0;
    }
    Ok(Walk::all(y.ty, from, 0).steps(x, y))
}

pub(crate) fn slice(op: &Slice, io: &Io) -> Steps {
    let (x, y) = (&io.x[0], &io.y[0]);
    let from = strides(x.ty);
    let at = op.start as i64 * from[of_four(x.ty, op.axis)];
    Ok(Walk::all(y.ty, from, at).steps(x, y))
}

pub(crate) fn concat(op: &Concat, io: &Io) -> Steps {
    let y = &io.y[0];
    let (to, axis) = (strides(y.ty), of_four(y.ty, op.axis));
    let (mut steps, mut start) = (Vec::new(), 0);
    for x in &io.x {
        let (mut dims, cols) = (lengths(x.ty), x.ty.shape.cols() as i64);
        let to_at = start * to[axis];
        start += dims[axis];
        // Whoever brings a row's end brings its pads.
        if axis != 3 || start == y.ty.shape.cols() as i64 {
            dims[3] += (y.ty.pitch - y.ty.shape.cols()) as i64;
        }
        steps.extend(Walk { dims, from: strides(x.ty), to, from_at: 0, to_at, cols }.steps(x, y));
    }
    Ok(steps)
}

/// A walk backwards through x.
pub(crate) fn reverse(op: &Reverse, io: &Io) -> Steps {
    let (x, y) = (&io.x[0], &io.y[0]);
    let (mut from, axis) = (strides(x.ty), of_four(x.ty, op.axis));
    let at = (x.ty.shape[op.axis] as i64 - 1) * from[axis];
    from[axis] = -from[axis];
    Ok(Walk::all(y.ty, from, at).steps(x, y))
}

pub(crate) fn iota(op: &Iota, io: &Io) -> Steps {
    let ty = io.y[0].ty;
    let (axis, dims) = (of_four(ty, op.axis), stored(ty));
    let y = io.y[0].view();
    Ok(launch_over(&IotaArgs { y, step: dims[axis + 1..].iter().product(), len: dims[axis] }, y.stored()))
}
