//! Attention of few query rows over many keys, as programs that decode have it.

use super::{View, kernels, launch};
use crate::bind::{Io, Steps};
use ambitus_ir::TensorType;
use ambitus_ir::ops::attention::Attention;

kernels! { "decoding";
    /// Sums of values, the largest score and the sum of exponentials of every split of a row's keys.
    RowsArgs "attention_rows" [256 threads, 128 registers] {
        q: View, k: View, v: View, q_segs: View, k_segs: View, parts: u64,
        kv_heads: i32, group: i32, head_dim: i32, causal: i32, team: i32, scale: f32,
    }
    /// o and lse of all splits.
    JoinArgs "attention_rows_join" [128 threads, 48 registers] {
        parts: u64, q_segs: View, k_segs: View, o: View, lse: View, head_dim: i32, causal: i32,
    }
}

/// Splits of a row's keys, at most, and query heads of a block: as in the kernels.
const SPLITS: u32 = 16;
const HEADS: u32 = 4;
/// The widest head: a warp has four channels a lane.
const WIDEST: usize = 128;
/// Blocks of a grid's second axis, at most.
const BLOCKS: u64 = 65_535;

/// Returns whether these kernels carry an attention out: where a segment has one query on average at most, and so few rows share
/// its keys that a tile of rows would be nearly empty.
pub(super) fn takes(op: &Attention, x: &[TensorType]) -> bool {
    let (rows, segments) = (x[0].shape.rows(), x[3].shape.elements().saturating_sub(1));
    let fours = op.head_dim.is_multiple_of(4) && op.head_dim <= WIDEST;
    rows > 0 && rows <= segments && fours && blocks(op, rows) <= BLOCKS
}

/// Blocks that share a split.
fn blocks(op: &Attention, rows: usize) -> u64 {
    (rows * op.kv_heads) as u64 * turns(op)
}

/// Times that a block would take to go through the query heads of a key head.
fn turns(op: &Attention) -> u64 {
    ((op.heads / op.kv_heads) as u64).div_ceil(u64::from(HEADS))
}

/// What splits leave for the second kernel.
fn parts(op: &Attention, rows: usize) -> TensorType {
    TensorType::f32(&[rows * op.heads * SPLITS as usize * (op.head_dim + 2)])
}

/// Returns the bytes of what splits leave.
pub(super) fn workspace(op: &Attention, x: &[TensorType]) -> u64 {
    parts(op, x[0].shape.rows()).bytes()
}

pub(super) fn forward(op: &Attention, io: &Io) -> Steps {
    let [q, k, v, q_segs, k_segs] = [0, 1, 2, 3, 4].map(|i| io.x[i].view());
    let (o, lse, parts) = (io.y[0].view(), io.y[1].view(), io.workspace);
    let (group, head_dim, causal) =
        ((op.heads / op.kv_heads) as i32, op.head_dim as i32, i32::from(op.causal));
    // Lanes of a key: a power of two, so that they meet by shuffles.
    let team = (op.head_dim / 4).next_power_of_two().max(8) as i32;
    let (kv_heads, scale, rows) = (op.kv_heads as i32, op.scale, q.rows as usize);
    let split = RowsArgs { q, k, v, q_segs, k_segs, parts, kv_heads, group, head_dim, causal, team, scale };
    let join = JoinArgs { parts, q_segs, k_segs, o, lse, head_dim, causal };
    let joined = (rows * op.heads) as u32;
    Ok(vec![launch(&split, [SPLITS, blocks(op, rows) as u32]), launch(&join, [joined, 1])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_ir::DType;

    fn types(op: &Attention, rows: usize, keys: usize, segments: usize) -> Vec<TensorType> {
        let of = |rows, heads| TensorType::new(DType::BF16, &[rows, heads * op.head_dim]);
        let (kv, table) = (of(keys, op.kv_heads), TensorType::i32(&[segments + 1]));
        vec![of(rows, op.heads), kv, kv, table, table]
    }

    #[test]
    fn programs_that_decode_have_these_kernels_and_those_that_read_have_not() {
        let op = Attention { heads: 24, kv_heads: 8, head_dim: 128, causal: false, scale: 0.1 };
        for sequences in [1, 8, 64] {
            assert!(takes(&op, &types(&op, sequences, 4096 * sequences, 2 * sequences)), "{sequences}");
        }
        // A second kind of keys, of one segment each.
        assert!(takes(&op, &types(&op, 4, 400, 4)));
        assert!(!takes(&op, &types(&op, 8192, 8192, 8)));
        assert!(!takes(&op, &types(&op, 8, 8, 1)));
        // Three heads of a key head are one turn, five are two.
        assert_eq!((blocks(&op, 8), turns(&Attention { heads: 40, ..op.clone() })), (64, 2));
        assert_eq!(workspace(&op, &types(&op, 8, 4096, 16)), 8 * 24 * 16 * 130 * 4);
        for (heads, head_dim) in [(24, 6), (24, 130), (1 << 20, 4)] {
            let op = Attention { heads, kv_heads: heads, head_dim, ..op };
            assert!(!takes(&op, &types(&op, 1, 40, 2)), "{heads} heads of {head_dim}");
        }
    }
}
