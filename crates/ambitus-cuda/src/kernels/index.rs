//! Table look-ups and their gradient.

use super::{View, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;
use ambitus_ir::ops::index::{Gather, ScatterAdd, Sinusoid, SinusoidKind};

kernels! { "index";
    /// Row t of y = row `ids[t]` - `first` of the table, or, `segmented`, the row of t's segment by the table `ids`; where there
    /// is none, the row of `before`, or zero. Rows are `data` units of `size` bytes that are copied, of `stored` units.
    GatherArgs "gather" [256 threads, 40 registers] {
        table: View, ids: View, before: View, y: View,
        first: i32, size: i32, data: i32, stored: i32, table_step: i32, segmented: i32
    }
    /// Row `at[t]` of y = row t of x, where y has one: `data` units of `size` bytes, of `from` a row of x and `to` of y.
    WriteArgs "write_rows" [256 threads, 40 registers] { x: View, at: View, y: View, size: i32, data: i32, from: i32, to: i32 }
    /// The numbers of all ids, 0.. , sorted by id and then number, and the sorted ids, less `first`. Ids outside the table come
    /// last, as the first number after it.
    SortArgs "scatter_sort" [256 threads, 48 registers] { ids: View, first: i32, rows: i32, order: u64, sorted: u64 }
    /// Rows of y that no id names: beta * y. Zeroes are written in units of `size` bytes, `stored` of them a row.
    RestArgs "scatter_rest" [256 threads, 48 registers] {
        sorted: u64, ids: i32, y: View, beta: View, size: i32, stored: i32
    }
    /// Rows of y that ids name: beta * y + the sum of their rows of x, in order.
    SumArgs "scatter_sum" [256 threads, 80 registers] {
        x: View, order: u64, sorted: u64, ids: i32, y: View, beta: View
    }
    /// Sines and cosines of scale * x * f, `half` frequencies f: e^(i * step), or 1 / base^(i / half) where cosines come
    /// first.
    SinusoidArgs "sinusoid" [256 threads, 64 registers] {
        x: View, y: View, base: f64, scale: f32, step: f32, half: i32, cosines_first: i32
    }
}

/// Warps of a block.
const WARPS: usize = 8;
/// Ids that a warp of [`SortArgs`] ranks.
const RANKED: usize = 4;

/// Returns the widest unit, in bytes, that rows of a type are made of.
fn unit(ty: TensorType) -> usize {
    let row = ty.pitch * ty.dtype.size();
    [16, 8, 4, 2, 1].into_iter().find(|size| row.is_multiple_of(*size)).unwrap_or(1)
}

pub(crate) fn sinusoid(op: &Sinusoid, io: &Io) -> Steps {
    let (x, y) = (io.x[0].view(), io.y[0].view());
    let base = f64::from(op.base);
    let args = SinusoidArgs {
        x,
        y,
        base,
        scale: op.scale,
        step: (-base.ln() / (op.half as f64 - 1.0)) as f32,
        half: op.half as i32,
        cosines_first: i32::from(op.kind == SinusoidKind::CosSin),
    };
    Ok(launch_over(&args, y.stored()))
}

pub(crate) fn gather(op: &Gather, io: &Io) -> Steps {
    let before = io.x.get(2).map_or(View::NONE, |x| x.view());
    rows(io, false, (op.part.map_or(0, |p| p.first), before))
}

/// Returns the rows of each segment, by a segment table in place of ids.
pub(crate) fn of_segments(io: &Io) -> Steps {
    rows(io, true, (0, View::NONE))
}

fn rows(io: &Io, segmented: bool, (first, before): (usize, View)) -> Steps {
    let (from, to) = (io.x[0].ty, io.y[0].ty);
    let (table, ids, y) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    let element = to.dtype.size();
    // Rows of one pitch are copied with their pads, which are zero.
    let (size, data, stored, table_step) = if from.pitch == to.pitch {
        let size = unit(to);
        let row = to.pitch * element / size;
        (size, row, row, row)
    } else {
        (element, to.shape.cols(), to.pitch, from.pitch)
    };
    let (size, data, stored) = (size as i32, data as i32, stored as i32);
    let (table_step, segmented) = (table_step as i32, i32::from(segmented));
    let first = first as i32;
    let args = GatherArgs { table, ids, before, y, first, size, data, stored, table_step, segmented };
    Ok(launch_over(&args, y.rows as u64 * stored as u64))
}

/// Its result lies on the rows that it writes.
pub(crate) fn write_rows(io: &Io) -> Steps {
    let (x, y) = (io.x[1].ty, io.y[0].ty);
    // Units of both pitches; rows of one pitch are copied with their pads, which are zero.
    let same = x.pitch == y.pitch;
    let size = if same { unit(y) } else { y.dtype.size() };
    let units = |elements: usize| (elements * y.dtype.size() / size) as i32;
    let args = WriteArgs {
        x: io.x[1].view(),
        at: io.x[2].view(),
        y: io.y[0].view(),
        size: size as i32,
        data: units(if same { y.pitch } else { y.shape.cols() }),
        from: units(x.pitch),
        to: units(y.pitch),
    };
    Ok(launch_over(&args, args.x.rows as u64 * args.data as u64))
}

/// Returns the two lists of [`SortArgs`].
fn list(ids: TensorType) -> u64 {
    ids.bytes().next_multiple_of(TensorType::ALIGN)
}

/// Returns the scratch bytes of a scatter.
pub(crate) fn workspace(ids: TensorType) -> u64 {
    2 * list(ids)
}

pub(crate) fn scatter_add(op: &ScatterAdd, io: &Io) -> Steps {
    let (x, y) = (io.x[0].view(), io.y[0].view());
    let beta = if op.acc { io.x[3].view() } else { View::NONE };
    let (order, sorted) = (io.workspace, io.workspace + list(io.x[1].ty));
    let n = io.x[1].ty.shape.elements();
    let (ids, size) = (n as i32, unit(io.y[0].ty));
    let stored = (io.y[0].ty.pitch * io.y[0].ty.dtype.size() / size) as i32;
    if y.stored() == 0 {
        return Ok(Vec::new());
    }
    let rest = RestArgs { sorted, ids, y, beta, size: size as i32, stored };
    let rest = launch(&rest, [(op.rows.div_ceil(WARPS)) as u32, 1]);
    if n == 0 {
        return Ok(vec![rest]);
    }
    let sort = SortArgs {
        ids: io.x[1].view(),
        first: op.part.map_or(0, |p| p.first) as i32,
        rows: op.rows as i32,
        order,
        sorted,
    };
    let sort = launch(&sort, [n.div_ceil(WARPS * RANKED) as u32, 1]);
    let sum = SumArgs { x, order, sorted, ids, y, beta };
    let sum = launch(&sum, [n as u32, (y.pitch as u32).div_ceil(32 * WARPS as u32)]);
    Ok(vec![sort, rest, sum])
}
