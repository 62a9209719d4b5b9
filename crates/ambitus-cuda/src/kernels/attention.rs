//! Attention over segments, forward and backward.

use super::{View, attention_mma, attention_wgmma, decoding, kernels, launch, launch_over};
use crate::bind::{Io, Steps, Tensor};
use crate::step::Step;
use ambitus_ir::TensorType;
use ambitus_ir::ops::attention::{Attention, AttentionGrad};

/// Declares the kernels, three for each number of channels that a block sums, and functions that launch the
/// right ones. 128 registers: two blocks on a multiprocessor, which the kernels demand of the compiler.
macro_rules! widths {
    ($($width:literal:
        $forward:ident $forward_name:literal,
        $queries:ident $queries_name:literal,
        $keys:ident $keys_name:literal;
    )*) => {
        kernels! { "attention";
            /// delta = rowsum(do * o), `[heads, Tq]`.
            Delta "attention_delta" [256 threads, 64 registers] {
                o: View, d_o: View, delta: View, head_dim: i32,
            }
            $(
                /// o and lse of some channels of a head.
                $forward $forward_name [256 threads, 128 registers] {
                    q: View, k: View, v: View, q_segs: View, k_segs: View, o: View, lse: View,
                    heads: i32, group: i32, head_dim: i32, causal: i32, scale: f32,
                }
                /// dq of some channels of a head.
                $queries $queries_name [256 threads, 128 registers] {
                    q: View, k: View, v: View, lse: View, delta: View, d_o: View, q_segs: View, k_segs: View,
                    dq: View, heads: i32, group: i32, head_dim: i32, causal: i32, scale: f32,
                }
                /// dk and dv of some channels of a key head.
                $keys $keys_name [256 threads, 128 registers] {
                    q: View, k: View, v: View, lse: View, delta: View, d_o: View, q_segs: View, k_segs: View,
                    dk: View, dv: View, kv_heads: i32, group: i32, head_dim: i32, causal: i32, scale: f32,
                }
            )*
        }

        impl Shape {
            fn forward(&self, io: &Io) -> Option<Step> {
                let x = |i: usize| io.x[i].view();
                let (q, k, v, q_segs, k_segs) = (x(0), x(1), x(2), x(3), x(4));
                let (o, lse) = (io.y[0].view(), io.y[1].view());
                let Shape { heads, group, head_dim, causal, scale, .. } = *self;
                let grid = self.grid(q, heads)?;
                Some(match self.width() {
                    $($width => launch(
                        &$forward { q, k, v, q_segs, k_segs, o, lse, heads, group, head_dim, causal, scale },
                        grid,
                    ),)*
                    _ => unreachable!("widths are multiples of 32"),
                })
            }

            fn queries(&self, io: &Io, delta: View) -> Option<Step> {
                let x = |i: usize| io.x[i].view();
                let (q, k, v, lse, d_o, q_segs, k_segs) = (x(0), x(1), x(2), x(4), x(5), x(6), x(7));
                let dq = io.y[0].view();
                let Shape { heads, group, head_dim, causal, scale, .. } = *self;
                let grid = self.grid(q, heads)?;
                Some(match self.width() {
                    $($width => launch(
                        &$queries {
                            q, k, v, lse, delta, d_o, q_segs, k_segs, dq,
                            heads, group, head_dim, causal, scale,
                        },
                        grid,
                    ),)*
                    _ => unreachable!("widths are multiples of 32"),
                })
            }

            fn keys(&self, io: &Io, delta: View) -> Option<Step> {
                let x = |i: usize| io.x[i].view();
                let (q, k, v, lse, d_o, q_segs, k_segs) = (x(0), x(1), x(2), x(4), x(5), x(6), x(7));
                let (dk, dv) = (io.y[1].view(), io.y[2].view());
                let Shape { kv_heads, group, head_dim, causal, scale, .. } = *self;
                let grid = self.grid(k, kv_heads)?;
                Some(match self.width() {
                    $($width => launch(
                        &$keys {
                            q, k, v, lse, delta, d_o, q_segs, k_segs, dk, dv,
                            kv_heads, group, head_dim, causal, scale,
                        },
                        grid,
                    ),)*
                    _ => unreachable!("widths are multiples of 32"),
                })
            }
        }
    };
}

widths! {
    32: Forward32 "attention_32", Queries32 "attention_queries_grad_32", Keys32 "attention_keys_grad_32";
    64: Forward64 "attention_64", Queries64 "attention_queries_grad_64", Keys64 "attention_keys_grad_64";
    96: Forward96 "attention_96", Queries96 "attention_queries_grad_96", Keys96 "attention_keys_grad_96";
    128: Forward128 "attention_128", Queries128 "attention_queries_grad_128",
        Keys128 "attention_keys_grad_128";
}

/// Rows of a block: as `TILE` in the kernels.
const TILE: u32 = 64;
/// Channels of the widest kernel.
const WIDEST: i32 = 128;

/// What kernels know of an attention besides its tensors.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub heads: i32,
    pub kv_heads: i32,
    /// Query heads of a key head.
    pub group: i32,
    pub head_dim: i32,
    pub causal: i32,
    pub scale: f32,
}

impl Shape {
    fn new(op: &Attention) -> Shape {
        Shape {
            heads: op.heads as i32,
            kv_heads: op.kv_heads as i32,
            group: (op.heads / op.kv_heads) as i32,
            head_dim: op.head_dim as i32,
            causal: i32::from(op.causal),
            scale: op.scale,
        }
    }

    /// Channels that a block sums.
    fn width(&self) -> i32 {
        ((self.head_dim + 31) / 32 * 32).min(WIDEST)
    }

    /// Returns the tiles of rows, times heads and the parts of each head's channels; nothing without rows.
    fn grid(&self, rows: View, heads: i32) -> Option<[u32; 2]> {
        let parts = (self.head_dim as u32).div_ceil(self.width() as u32);
        Shape::tiles(rows, TILE, heads).map(|[tiles, heads]| [tiles, heads * parts])
    }

    /// Returns the tiles of `tile` rows, times heads; nothing without rows.
    pub(super) fn tiles(rows: View, tile: u32, heads: i32) -> Option<[u32; 2]> {
        let tiles = (rows.rows as u64).div_ceil(u64::from(tile)) as u32;
        (tiles > 0).then_some([tiles, heads as u32])
    }
}

/// Returns whether tensor cores compute an attention.
pub(crate) fn on_tensor_cores(
    op: &Attention,
    capability: (u32, u32),
    x: &[TensorType],
    y: &[TensorType],
) -> bool {
    !decoding::takes(op, x) && attention_mma::takes(op.head_dim, capability, &[x[0], x[1], x[2], y[0]])
}

/// Returns whether tensor cores compute an attention's gradients.
pub(crate) fn on_tensor_cores_backward(
    op: &AttentionGrad,
    capability: (u32, u32),
    x: &[TensorType],
    y: &[TensorType],
) -> bool {
    attention_mma::takes(op.head_dim, capability, &operands_of_gradient(x, y))
}

/// Returns what has to be of one type for tensor cores.
fn operands_of_gradient(x: &[TensorType], y: &[TensorType]) -> [TensorType; 7] {
    [x[0], x[1], x[2], x[5], y[0], y[1], y[2]]
}

/// Returns the scratch of the forward op.
pub(crate) fn forward_workspace(op: &Attention, x: &[TensorType]) -> u64 {
    if decoding::takes(op, x) { decoding::workspace(op, x) } else { 0 }
}

pub(crate) fn forward(op: &Attention, io: &Io) -> Steps {
    let types: Vec<TensorType> = io.x.iter().map(|t| t.ty).collect();
    if decoding::takes(op, &types) {
        return decoding::forward(op, io);
    }
    let shape = Shape::new(op);
    let y: Vec<TensorType> = io.y.iter().map(|t| t.ty).collect();
    let (capability, tensors) = (io.here.capability, [types[0], types[1], types[2], y[0]]);
    let step = if attention_wgmma::takes(op.head_dim, capability, &tensors) {
        attention_wgmma::forward(shape, io)
    } else if attention_mma::takes(op.head_dim, capability, &tensors) {
        attention_mma::forward(shape, io)
    } else {
        shape.forward(io)
    };
    Ok(Vec::from_iter(step))
}

/// Delta `[heads, Tq]`, without pads.
fn delta_type(op: &AttentionGrad, q: TensorType) -> TensorType {
    TensorType::f32(&[op.heads * q.shape.rows()])
}

/// Fills delta `[heads, Tq]`, without pads, with rowsum(do * o).
pub(super) fn delta_of(o: View, d_o: View, delta: View, head_dim: i32) -> Vec<Step> {
    launch_over(&Delta { o, d_o, delta, head_dim }, 32 * delta.stored())
}

pub(crate) fn backward(op: &AttentionGrad, io: &Io) -> Steps {
    let AttentionGrad { heads, kv_heads, head_dim, causal, scale } = *op;
    let shape = Shape::new(&Attention { heads, kv_heads, head_dim, causal, scale });
    let (o, d_o) = (io.x[3].view(), io.x[5].view());
    let delta = View::new(io.workspace, delta_type(op, io.x[0].ty));
    let mut steps = delta_of(o, d_o, delta, shape.head_dim);
    let types = |all: &[Tensor]| all.iter().map(|t| t.ty).collect::<Vec<TensorType>>();
    let (capability, tensors) = (io.here.capability, operands_of_gradient(&types(&io.x), &types(&io.y)));
    if attention_wgmma::takes(head_dim, capability, &tensors) {
        steps.extend(attention_wgmma::queries(shape, io, delta));
        steps.extend(attention_wgmma::keys(shape, io, delta));
    } else if attention_mma::takes(head_dim, capability, &tensors) {
        steps.extend(attention_mma::queries(shape, io, delta));
        steps.extend(attention_mma::keys(shape, io, delta));
    } else {
        steps.extend(shape.queries(io, delta));
        steps.extend(shape.keys(io, delta));
    }
    Ok(steps)
}

/// Returns the bytes of delta.
pub(crate) fn workspace(op: &AttentionGrad, x: &[TensorType]) -> u64 {
    delta_type(op, x[0]).bytes()
}
