//! Attention on tensor cores: of 16-bit operands, from compute capability 8.0 on.

use super::attention::Shape;
use super::{CHUNK, View, WARP_OPERATIONS, kernels, launch};
use crate::bind::Io;
use crate::step::Step;
use ambitus_ir::{DType, TensorType};

/// Declares the kernels, three for each number of channels, of blocks of so many threads and rows, and functions that launch the right ones.
macro_rules! widths {
    ($family:literal [$threads:literal threads, $rows:literal rows]; $($width:literal:
        $forward:ident $forward_name:literal [$forward_registers:literal, $forward_shared:literal],
        $queries:ident $queries_name:literal [$queries_registers:literal, $queries_shared:literal],
        $keys:ident $keys_name:literal [$keys_registers:literal, $keys_shared:literal];
    )*) => {
        kernels! { $family; $(
            /// o and lse of a head.
            $forward $forward_name [$threads threads, $forward_registers registers, $forward_shared shared] {
                q: View, k: View, v: View, q_segs: View, k_segs: View, o: View, lse: View,
                group: i32, head_dim: i32, causal: i32, scale: f32,
            }
            /// dq of a head.
            $queries $queries_name [$threads threads, $queries_registers registers, $queries_shared shared] {
                q: View, k: View, v: View, lse: View, delta: View, d_o: View, q_segs: View, k_segs: View,
                dq: View, group: i32, head_dim: i32, causal: i32, scale: f32,
            }
            /// dk and dv of a key head.
            $keys $keys_name [$threads threads, $keys_registers registers, $keys_shared shared] {
                q: View, k: View, v: View, lse: View, delta: View, d_o: View, q_segs: View, k_segs: View,
                dk: View, dv: View, group: i32, head_dim: i32, causal: i32, scale: f32,
            }
        )* }

        /// o and lse; nothing without rows.
        pub(super) fn forward(shape: Shape, io: &Io) -> Option<Step> {
            let [q, k, v, q_segs, k_segs] = [0, 1, 2, 3, 4].map(|i| io.x[i].view());
            let (o, lse) = (io.y[0].view(), io.y[1].view());
            let Shape { heads, group, head_dim, causal, scale, .. } = shape;
            let grid = Shape::tiles(q, $rows, heads)?;
            Some(match width(head_dim) {
                $($width => launch(
                    &$forward { q, k, v, q_segs, k_segs, o, lse, group, head_dim, causal, scale },
                    grid,
                ),)*
                _ => unreachable!("the widths are these"),
            })
        }

        /// dq.
        pub(super) fn queries(shape: Shape, io: &Io, delta: View) -> Option<Step> {
            let [q, k, v, _, lse, d_o, q_segs, k_segs] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| io.x[i].view());
            let dq = io.y[0].view();
            let Shape { heads, group, head_dim, causal, scale, .. } = shape;
            let grid = Shape::tiles(q, $rows, heads)?;
            Some(match width(head_dim) {
                $($width => launch(
                    &$queries { q, k, v, lse, delta, d_o, q_segs, k_segs, dq, group, head_dim, causal, scale },
                    grid,
                ),)*
                _ => unreachable!("the widths are these"),
            })
        }

        /// dk and dv.
        pub(super) fn keys(shape: Shape, io: &Io, delta: View) -> Option<Step> {
            let [q, k, v, _, lse, d_o, q_segs, k_segs] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| io.x[i].view());
            let (dk, dv) = (io.y[1].view(), io.y[2].view());
            let Shape { kv_heads, group, head_dim, causal, scale, .. } = shape;
            let grid = Shape::tiles(k, $rows, kv_heads)?;
            Some(match width(head_dim) {
                $($width => launch(
                    &$keys { q, k, v, lse, delta, d_o, q_segs, k_segs, dk, dv, group, head_dim, causal, scale },
                    grid,
                ),)*
                _ => unreachable!("the widths are these"),
            })
        }
    };
}

pub(super) use widths;

// Shared memory holds a tile of own rows (backward: of two tensors) and two stages of two tensors' rows, D + 8 elements each; in backward of
// keys also two numbers of each row of a stage.
widths! { "attention_mma" [128 threads, 64 rows];
    64: Forward64 "attention_mma_64" [168, 36864],
        Queries64 "attention_mma_queries_grad_64" [168, 55296],
        Keys64 "attention_mma_keys_grad_64" [168, 37376];
    96: Forward96 "attention_mma_96" [168, 26624],
        Queries96 "attention_mma_queries_grad_96" [168, 53248],
        Keys96 "attention_mma_keys_grad_96" [255, 53760];
    128: Forward128 "attention_mma_128" [168, 34816],
        Queries128 "attention_mma_queries_grad_128" [168, 69632],
        Keys128 "attention_mma_keys_grad_128" [255, 70144];
}

/// Channels of the widest kernel.
const WIDEST: usize = 128;

/// Channels of the kernel that serves a head.
fn width(head_dim: i32) -> i32 {
    match head_dim {
        ..=64 => 64,
        65..=96 => 96,
        _ => 128,
    }
}

/// Returns whether these kernels carry an attention with these operands and results out: of one type of 16 bits, rows and heads at
/// multiples of 16 bytes.
pub(super) fn takes(head_dim: usize, capability: (u32, u32), tensors: &[TensorType]) -> bool {
    let dtype = tensors[0].dtype;
    let whole = |t: &TensorType| t.dtype == dtype && t.pitch.is_multiple_of(CHUNK);
    capability >= WARP_OPERATIONS
        && matches!(dtype, DType::BF16 | DType::F16)
        && head_dim.is_multiple_of(CHUNK)
        && head_dim <= WIDEST
        && tensors.iter().all(whole)
}
