//! Norms of rows, plain and per segment, and sums over rows of what their gradients have per channel.

use super::{View, kernels, launch, teams};
use crate::bind::{Io, Steps};
use crate::step::Step;
use ambitus_ir::TensorType;

kernels! { "norm";
    /// y = norm(x) (factor + plus) + shift.
    NormArgs "norm_rows" [256 threads, 64 registers] {
        x: View, factor: View, shift: View, segments: View, y: View,
        eps: f32, plus: f32, centred: i32, narrow: i32,
    }
    /// Its dx, and (mean, r) of every row.
    NormGradArgs "norm_grad" [256 threads, 112 registers] {
        x: View, factor: View, dy: View, segments: View, dx: View, stats: View,
        eps: f32, plus: f32, centred: i32, narrow: i32,
    }
    /// Sums of dy and dy n over chunks of every segment's rows.
    ColumnSumsArgs "column_sums" [256 threads, 40 registers] {
        dy: View, x: View, stats: View, segments: View, plain: View, weighted: View, chunks: i32,
    }
    /// Sums over the chunks of every segment.
    ChunkSumsArgs "chunk_sums" [256 threads, 48 registers] { partial: View, y: View, chunks: i32 }
}

/// Which norm.
pub(super) struct Norm {
    /// Added to the mean square.
    pub eps: f32,
    /// The row's mean is taken off first.
    pub centred: bool,
    /// Added to factors.
    pub plus: f32,
}

impl Norm {
    /// y = norm(x) (factor + plus) + shift.
    pub(super) fn forward(&self, [x, factor, shift, segments]: [View; 4], y: View) -> Vec<Step> {
        let Norm { eps, plus, .. } = *self;
        let (narrow, grid) = teams(&y);
        if grid[0] == 0 {
            return Vec::new();
        }
        let centred = i32::from(self.centred);
        vec![launch(&NormArgs { x, factor, shift, segments, y, eps, plus, centred, narrow }, grid)]
    }

    /// dx, the sums of dy and those of dy n; `sums` are the results and their scratch.
    pub(super) fn backward(
        &self,
        [x, factor, dy, segments]: [View; 4],
        dx: View,
        sums: &Sums,
        workspace: u64,
    ) -> Vec<Step> {
        let Norm { eps, plus, .. } = *self;
        let (narrow, grid) = teams(&dx);
        let centred = i32::from(self.centred);
        let stats = View::new(workspace, stats(dx.rows as usize));
        let args = NormGradArgs { x, factor, dy, segments, dx, stats, eps, plus, centred, narrow };
        let mut steps = if grid[0] == 0 { Vec::new() } else { vec![launch(&args, grid)] };
        steps
            .extend(sums.steps([dy, x, stats, segments], workspace + aligned(stats_bytes(dx.rows as usize))));
        steps
    }
}

/// Returns the mean and r of every row.
fn stats(rows: usize) -> TensorType {
    TensorType::f32(&[2 * rows])
}

fn stats_bytes(rows: usize) -> u64 {
    stats(rows).bytes()
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(TensorType::ALIGN)
}

/// Sums over the rows of segments in two stages, in an order that depends on shapes and segments only.
pub(super) struct Sums {
    /// Sums of dy; may be [`View::NONE`].
    pub plain: View,
    /// Sums of dy n.
    pub weighted: View,
    /// How many segments; 1 without a table.
    pub segments: usize,
}

/// Chunks that a segment is cut into: about 32 rows where segments are of one length.
fn chunks(rows: usize, segments: usize) -> usize {
    rows.div_ceil(32 * segments.max(1)).clamp(1, 256)
}

/// Sums of one kind of every chunk.
fn partials(rows: usize, segments: usize, cols: usize) -> TensorType {
    TensorType::f32(&[chunks(rows, segments) * segments, cols])
}

impl Sums {
    /// (dy, x, stats, segments) to the sums, by scratch.
    pub(super) fn steps(&self, [dy, x, stats, segments]: [View; 4], workspace: u64) -> Vec<Step> {
        let (rows, cols) = (dy.rows as usize, dy.cols as usize);
        let partial = partials(rows, self.segments, cols);
        let weighted = View::new(workspace, partial);
        let plain = match self.plain {
            View::NONE => View::NONE,
            _ => View::new(workspace + aligned(partial.bytes()), partial),
        };
        let chunks = chunks(rows, self.segments) as i32;
        let grid = [self.segments as u32 * chunks as u32, cols.div_ceil(128) as u32];
        if grid.contains(&0) {
            return Vec::new();
        }
        let mut steps =
            vec![launch(&ColumnSumsArgs { dy, x, stats, segments, plain, weighted, chunks }, grid)];
        for (partial, y) in [(plain, self.plain), (weighted, self.weighted)] {
            if y != View::NONE {
                let grid = [(y.pitch as u32).div_ceil(32), self.segments as u32];
                steps.push(launch(&ChunkSumsArgs { partial, y, chunks }, grid));
            }
        }
        steps
    }
}

/// Returns the scratch of sums of `kinds` kinds over the rows of x.
pub(super) fn sums_workspace(x: TensorType, segments: usize, kinds: u64) -> u64 {
    kinds * aligned(partials(x.shape.rows(), segments, x.shape.cols()).bytes())
}

/// Returns the scratch of a norm's gradient with `kinds` sums.
pub(super) fn grad_workspace(x: TensorType, segments: usize, kinds: u64) -> u64 {
    aligned(stats_bytes(x.shape.rows())) + sums_workspace(x, segments, kinds)
}

pub(crate) fn layer_norm(eps: f32, io: &Io) -> Steps {
    let [x, gamma, beta] = [0, 1, 2].map(|i| io.x[i].view());
    let norm = Norm { eps, centred: true, plus: 0.0 };
    Ok(norm.forward([x, gamma, beta, View::NONE], io.y[0].view()))
}

pub(crate) fn rms_norm(eps: f32, io: &Io) -> Steps {
    let norm = Norm { eps, centred: false, plus: 0.0 };
    Ok(norm.forward([io.x[0].view(), io.x[1].view(), View::NONE, View::NONE], io.y[0].view()))
}

pub(crate) fn layer_norm_grad(eps: f32, io: &Io) -> Steps {
    let [x, gamma, dy] = [0, 1, 2].map(|i| io.x[i].view());
    let norm = Norm { eps, centred: true, plus: 0.0 };
    let sums = Sums { weighted: io.y[1].view(), plain: io.y[2].view(), segments: 1 };
    Ok(norm.backward([x, gamma, dy, View::NONE], io.y[0].view(), &sums, io.workspace))
}

pub(crate) fn rms_norm_grad(eps: f32, io: &Io) -> Steps {
    let [x, gamma, dy] = [0, 1, 2].map(|i| io.x[i].view());
    let norm = Norm { eps, centred: false, plus: 0.0 };
    let sums = Sums { weighted: io.y[1].view(), plain: View::NONE, segments: 1 };
    Ok(norm.backward([x, gamma, dy, View::NONE], io.y[0].view(), &sums, io.workspace))
}

pub(crate) fn layer_norm_grad_workspace(x: TensorType) -> u64 {
    grad_workspace(x, 1, 2)
}

pub(crate) fn rms_norm_grad_workspace(x: TensorType) -> u64 {
    grad_workspace(x, 1, 1)
}
