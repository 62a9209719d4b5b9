//! Segment tables: ids, positions, rows repeated and summed by segment.

use super::{View, index, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;

kernels! { "segment";
    /// The segment of every row, or -1.
    IdsArgs "segment_ids" [256 threads, 40 registers] { segs: View, y: View }
    /// Every row's index within its segment, 0 for rows of none.
    PositionsArgs "segment_positions" [256 threads, 40 registers] { segs: View, y: View }
    /// Sums of up to `tile` rows, tiles counted from each segment's start.
    PartsArgs "segment_parts" [256 threads, 40 registers] { x: View, segs: View, parts: View, tile: i32 }
    /// The sum of a segment's parts.
    TotalArgs "segment_total" [256 threads, 40 registers] { parts: View, segs: View, y: View, tile: i32 }
}

/// Rows of a part.
const TILE: usize = 128;
/// Columns of a block.
const WIDTH: u32 = 32;

pub(crate) fn ids(io: &Io) -> Steps {
    let (segs, y) = (io.x[0].view(), io.y[0].view());
    Ok(launch_over(&IdsArgs { segs, y }, y.stored()))
}

pub(crate) fn positions(io: &Io) -> Steps {
    let (segs, y) = (io.x[0].view(), io.y[0].view());
    Ok(launch_over(&PositionsArgs { segs, y }, y.stored()))
}

pub(crate) fn broadcast(io: &Io) -> Steps {
    index::of_segments(io)
}

/// Room for the parts of all segments of a packing: part j of segment s lies in row `start(s) / TILE + s + j`, see the
/// kernel.
fn parts(x: TensorType, y: TensorType) -> TensorType {
    TensorType::f32(&[x.shape.rows() / TILE + y.shape.rows(), x.shape.cols()])
}

/// Returns the scratch bytes of a sum, for its operand and result.
pub(crate) fn workspace(x: TensorType, y: TensorType) -> u64 {
    parts(x, y).bytes()
}

pub(crate) fn sum(io: &Io) -> Steps {
    let (x, segs, y) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    let parts = View::new(io.workspace, parts(io.x[0].ty, io.y[0].ty));
    let tile = TILE as i32;
    if y.stored() == 0 {
        return Ok(Vec::new());
    }
    let across = |v: View| (v.pitch as u32).div_ceil(WIDTH);
    Ok(vec![
        launch(&PartsArgs { x, segs, parts, tile }, [across(parts) * parts.rows as u32, 1]),
        launch(&TotalArgs { parts, segs, y, tile }, [across(y) * y.rows as u32, 1]),
    ])
}
