//! Attention that knows small distances, forward and backward.

use super::attention::delta_of;
use super::{View, kernels, launch, launch_over};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;
use ambitus_ir::ops::windowed::{WindowedAttention, WindowedAttentionGrad, scale};

kernels! { "windowed";
    /// o and lse: a warp for each row of a head.
    ForwardArgs "windowed_attention" [256 threads, 64 registers] {
        q: View, k: View, v: View, rel_k: View, rel_v: View, segs: View, o: View, lse: View,
        heads: i32, head_dim: i32, scale: f32,
    }
    /// dq.
    QueriesArgs "windowed_queries_grad" [256 threads, 64 registers] {
        q: View, k: View, v: View, rel_k: View, rel_v: View, lse: View, delta: View, d_o: View, segs: View,
        dq: View, heads: i32, head_dim: i32, scale: f32,
    }
    /// dk and dv.
    KeysArgs "windowed_keys_grad" [256 threads, 64 registers] {
        q: View, k: View, v: View, rel_k: View, rel_v: View, lse: View, delta: View, d_o: View, segs: View,
        dk: View, dv: View, heads: i32, head_dim: i32, scale: f32,
    }
    /// Of every tile of rows and every row of the tables, the sums of both tables' gradients.
    PartsArgs "windowed_tables_parts" [256 threads, 64 registers] {
        q: View, k: View, v: View, rel_k: View, rel_v: View, lse: View, delta: View, d_o: View, segs: View,
        parts: u64, heads: i32, head_dim: i32, scale: f32,
    }
    /// The gradient of one table: `side` 0 of keys, 1 of values.
    TablesArgs "windowed_tables" [256 threads, 48 registers] { parts: u64, y: View, tiles: i32, side: i32 }
}

/// Warps of a block, channels of a warp and rows of a tile: as in the kernels.
const WARPS: u32 = 8;
const PART: u32 = 128;
const ROWS: usize = 64;

/// Returns the parts of a head's channels.
fn parts_of_head(head_dim: i32) -> u32 {
    (head_dim as u32).div_ceil(PART)
}

/// Returns a warp for each row, times heads and the parts of their channels.
fn grid(rows: View, heads: i32, head_dim: i32) -> [u32; 2] {
    [(rows.rows as u32).div_ceil(WARPS), heads as u32 * parts_of_head(head_dim)]
}

pub(crate) fn forward(op: &WindowedAttention, io: &Io) -> Steps {
    let [q, k, v, rel_k, rel_v, segs] = [0, 1, 2, 3, 4, 5].map(|i| io.x[i].view());
    let (o, lse, heads, head_dim) = (io.y[0].view(), io.y[1].view(), op.heads as i32, rel_k.cols);
    let scale = scale(op.heads, io.x[0].ty);
    let args = ForwardArgs { q, k, v, rel_k, rel_v, segs, o, lse, heads, head_dim, scale };
    Ok(if q.rows == 0 { Vec::new() } else { vec![launch(&args, grid(q, heads, head_dim))] })
}

/// Delta `[heads, T]`, without pads.
fn delta_type(heads: usize, q: TensorType) -> TensorType {
    TensorType::f32(&[heads * q.shape.rows()])
}

/// Returns the bytes of scratch: delta, and of every tile of rows the sums of both tables' gradients.
pub(crate) fn workspace(op: &WindowedAttentionGrad, x: &[TensorType]) -> u64 {
    let tiles = x[0].shape.rows().div_ceil(ROWS) as u64;
    let delta = delta_type(op.heads, x[0]).bytes().next_multiple_of(TensorType::ALIGN);
    delta + 4 * tiles * 2 * x[3].shape.elements() as u64
}

pub(crate) fn backward(op: &WindowedAttentionGrad, io: &Io) -> Steps {
    let [q, k, v, rel_k, rel_v, o, lse, d_o, segs] = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|i| io.x[i].view());
    let [dq, dk, dv, drel_k, drel_v] = [0, 1, 2, 3, 4].map(|i| io.y[i].view());
    let (heads, head_dim, scale) = (op.heads as i32, rel_k.cols, scale(op.heads, io.x[0].ty));
    let of_delta = delta_type(op.heads, io.x[0].ty);
    let delta = View::new(io.workspace, of_delta);
    let parts = io.workspace + of_delta.bytes().next_multiple_of(TensorType::ALIGN);
    let tiles = (q.rows as usize).div_ceil(ROWS) as u32;
    let mut steps = delta_of(o, d_o, delta, head_dim);
    if tiles > 0 {
        let rows = grid(q, heads, head_dim);
        steps.push(launch(
            &QueriesArgs { q, k, v, rel_k, rel_v, lse, delta, d_o, segs, dq, heads, head_dim, scale },
            rows,
        ));
        steps.push(launch(
            &KeysArgs { q, k, v, rel_k, rel_v, lse, delta, d_o, segs, dk, dv, heads, head_dim, scale },
            rows,
        ));
        steps.push(launch(
            &PartsArgs { q, k, v, rel_k, rel_v, lse, delta, d_o, segs, parts, heads, head_dim, scale },
            [tiles, rel_k.rows as u32 * parts_of_head(head_dim)],
        ));
    }
    for (side, y) in [(0, drel_k), (1, drel_v)] {
        let table = TablesArgs { parts, y, tiles: tiles as i32, side };
        steps.extend(launch_over(&table, y.stored()));
    }
    Ok(steps)
}
