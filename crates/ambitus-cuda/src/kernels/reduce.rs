//! Reductions.

use super::{View, kernels, launch};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;
use ambitus_ir::ops::reduce::Reduce;

kernels! { "reduce";
    /// y[r, part] = the elements part * tile .. of row r, combined by `width` threads.
    RowsArgs "reduce_rows" [256 threads, 48 registers] {
        x: View, y: View, kind: i32, tile: i32, parts: i32, width: i32
    }
    /// y[o, part, c] = the elements [o, part * tile .., c] of x [outer, len, cols], combined by a block in columns of
    /// `width` threads.
    ColumnsArgs "reduce_columns" [256 threads, 48 registers] {
        x: View, y: View, kind: i32, len: i64, tile: i64, parts: i32, width: i32
    }
}

/// Threads of a block.
const BLOCK: usize = 256;
/// Longest row that is left to a warp.
const WARP_ROW: usize = 1024;
/// Longest row that is combined at once.
const ROW: usize = 8192;
/// Elements of one column that a thread combines.
const DEPTH: usize = 16;
/// Columns of so few tiles are combined at once: a second kernel would cost more.
const FEW: usize = 4;

/// How an op is carried out: as what matrices, in how many parts.
struct Work {
    /// Along rows, or else along columns.
    rows: bool,
    /// Results (along rows) or groups of columns.
    outer: usize,
    /// Elements that make up a result.
    len: usize,
    /// Rows that lie as one: the axes between the combined one and the last are columns too.
    between: usize,
    /// Results of a group.
    cols: usize,
    /// Threads side by side.
    width: usize,
    /// Elements of one part.
    tile: usize,
    /// Parts of a result.
    parts: usize,
}

fn work(op: &Reduce, x: TensorType) -> Work {
    let rank = x.shape.len();
    if op.axis + 1 == rank {
        let (outer, len) = (x.shape.rows(), x.shape.cols());
        let width = if len <= WARP_ROW { len.next_power_of_two().min(32) } else { BLOCK };
        let (tile, parts) = if len <= ROW { (len, 1) } else { (ROW, len.div_ceil(ROW)) };
        return Work { rows: true, outer, len, between: 1, cols: 1, width, tile, parts };
    }
    let between: usize = x.shape[op.axis + 1..rank - 1].iter().product();
    let outer: usize = x.shape[..op.axis].iter().product();
    let (len, cols) = (x.shape[op.axis], between * x.shape.cols());
    let width = cols.next_power_of_two().min(32);
    let tile = DEPTH * BLOCK / width;
    let (tile, parts) = if len <= FEW * tile { (len, 1) } else { (tile, len.div_ceil(tile)) };
    Work { rows: false, outer, len, between, cols, width, tile, parts }
}

impl Work {
    /// Returns the parts of every result, a matrix in the workspace.
    fn partials(&self) -> TensorType {
        let rows = if self.rows { self.outer } else { self.outer * self.parts };
        TensorType::f32(&[rows, if self.rows { self.parts } else { self.cols }])
    }

    /// Returns a tensor as the kernel along columns sees it.
    fn matrix(&self, v: View, rows: usize) -> View {
        View { rows: rows as i64, cols: self.cols as i32, pitch: self.between as i32 * v.pitch, ..v }
    }
}

/// Returns the scratch bytes.
pub(crate) fn workspace(op: &Reduce, x: TensorType) -> u64 {
    let w = work(op, x);
    if w.parts == 1 { 0 } else { w.partials().bytes() }
}

pub(crate) fn reduce(op: &Reduce, io: &Io) -> Steps {
    let w = work(op, io.x[0].ty);
    let kind = op.kind as i32;
    let (mut x, mut y) = (io.x[0].view(), io.y[0].view());
    if w.outer * w.cols == 0 {
        return Ok(Vec::new());
    }
    if !w.rows {
        (x, y) = (w.matrix(x, w.outer * w.len), w.matrix(y, w.outer));
    }
    let pass = |x: View, y: View, len: usize, tile: usize, parts: usize, width: usize| {
        if w.rows {
            let args = RowsArgs { x, y, kind, tile: tile as i32, parts: parts as i32, width: width as i32 };
            return launch(&args, [(w.outer * parts * width).div_ceil(BLOCK) as u32, 1]);
        }
        let (len, tile, width) = (len as i64, tile as i64, width as i32);
        let tiles = (y.pitch as usize).div_ceil(w.width) * parts * w.outer;
        launch(&ColumnsArgs { x, y, kind, len, tile, parts: parts as i32, width }, [tiles as u32, 1])
    };
    if w.parts == 1 {
        return Ok(vec![pass(x, y, w.len, w.tile, 1, w.width)]);
    }
    let part = View::new(io.workspace, w.partials());
    Ok(vec![pass(x, part, w.len, w.tile, w.parts, w.width), pass(part, y, w.parts, w.parts, 1, w.width)])
}
