//! The CPU executor's kernels: plain functions on views, with no knowledge of the IR, plans or models. They compute in `f32`.
//!
//! # Rules every kernel keeps
//!
//! - **No allocation.** Scratch is a `ws: &mut [f32]`; the `*_workspace` function next to a kernel gives its exact length in floats
//!   (a longer slice is accepted, contents are arbitrary before and after).
//! - **Same bits at any thread count.** Work is cut into tiles that depend on the shapes only; partial sums are added in tile order.
//!   Bits may differ between instruction sets ([`Isa`]).
//! - **Pads.** Matrices are row-major with a row pitch. Columns `cols..pitch` of an output made with [`MatMut::new`] are written as
//!   zero (not for [`MatMut::view`]s); pads of inputs are never read into a result.
//! - **Segments.** `seg: &[i32]` holds S + 1 ascending row offsets, `seg[0] = 0`. Rows from `seg[S]` on belong to no segment:
//!   segment kernels write zero there. Empty segments give exactly zero.
//! - **16 bits.** [`Rows`] and [`RowsMut`] are matrices of any float type: rows, or tiles while they are packed, are widened to
//!   `f32` and results rounded once, in bounded scratch. What is `f32` already is used in place, and [`Mat`]s become them.
//! - **Accumulation.** Parameter gradients take `acc`: `d = acc * d + sum`; `acc == 0` does not read `d`.
//!
//! Letters: T rows (packed tokens or frames), S segments, C or D channels, H heads, hd head width, V vocabulary.
//!
//! # Index
//!
//! ```text
//! Pool::new(threads) / Pool::with_isa(threads, Isa)   pool.threads()  pool.isa()  pool.run(tasks, |i| ..)  pool.enter(|| ..)
//! Mat::new(&`[f32]`, rows, cols, pitch)  Mat::dense(&`[f32]`, rows, cols)  .cols_range(a..b)
//! MatMut::new(&mut `[f32]`, rows, cols, pitch)  ::dense  ::view  .split_cols(at)  .reborrow()
//!
//! gemm         Operand::new(mat)  .t()  Operand::strided(data, rows, cols, rs, cs)
//!              gemm(pool, alpha, a, b, beta, c: MatMut, bias: Option<&`[f32]`>, ws)          gemm_workspace(m, n, k, threads)
//!              gemm_narrow(pool, a, b, beta, c: RowsMut, bias, ws): any float types              gemm_narrow_workspace(m, n, k, threads)
//! half         Half { Bf16, F16 }.widen(isa, &`[u16]`, &mut `[f32]`)  .narrow(isa, &`[f32]`, &mut `[u16]`)   Rows  RowsMut  Stage
//! activation   activation(pool, Act, x, out)   activation_grad(pool, Act, x, dy, dx)
//!              swiglu(pool, gate, up, out)     swiglu_grad(pool, gate, up, dy, dgate, dup)
//!              axpby(pool, a, x, b, y, out) = a x + b y    add_scaled(pool, a, x, out): out += a x    mul(pool, x, y, out)    scale(pool, a, x, out)
//! snake        snake(pool, x: Option<Mat> (None: in place), frequencies[C], out)
//! norm         layer_norm(pool, x, gamma?, beta?, eps, out)
//!              layer_norm_grad(pool, x, gamma?, eps, dy, dx, acc, dgamma?, dbeta?, ws)     layer_norm_grad_workspace(rows, cols)
//!              rms_norm(pool, x, gamma, eps, out)
//!              rms_norm_grad(pool, x, gamma, eps, dy, dx, acc, dgamma?, ws)                rms_norm_grad_workspace(rows, cols)
//!              ada_layer_norm(pool, x, seg, scale[S,D], shift[S,D], eps, out)
//!              ada_layer_norm_grad(pool, x, seg, scale, eps, dy, dx, dscale[S,D], dshift[S,D], ws)  .._workspace(rows, segments, cols)
//! modulate     gated_residual(pool, x, y, gate[S,D], seg, out)
//!              gated_residual_grad(pool, y, gate, seg, dout, dy, dgate[S,D], ws)           .._workspace(rows, segments, cols)
//! rotary       rotary(pool, x: Option<Mat> (None: in place), (seg, positions), Rotary { head_dim, rot_heads, pairing, inverse }, inv_freq, out)
//! attention    attention(pool, q, k, v, q_seg, k_seg, &Attention { heads, kv_heads, head_dim, causal, scale }, o, lse[T,H], ws)
//!              attention_workspace(&Attention, threads, narrow)
//!              attention_grad(pool, q, k, v, o, lse, d_o, q_seg, k_seg, &Attention, dq, dk, dv, ws)
//!              attention_grad_workspace(&Attention, q_rows, threads, narrow)
//!              windowed_attention(pool, [q, k, v], Window { keys, values }, seg, &Attention, (o, lse), ws)
//!              windowed_attention_grad(pool, [q, k, v], Window, (o, lse, d_o), seg, &Attention, [dq, dk, dv], [dkeys, dvalues], ws)
//!              windowed_attention_grad_workspace(&Attention, (rows, segments, near), threads, narrow)
//! alignment    monotonic_path(pool, z, &Densities { mean, scale, base }, frame_seg, text_seg, path[F], ws)   .._workspace(frames, rows)
//! conv         conv1d(pool, x, seg, w, bias?, &Conv1d { cin, cout, groups, kernel, pad_left }, out, ws)
//!              conv1d_grad_input(pool, dy, seg, w, &Conv1d, dx, ws)
//!              conv1d_grad_weight(pool, x, dy, seg, &Conv1d, acc, dw, ws)                  conv1d_workspace(&Conv1d, rows, segments, threads)
//! grn          grn(pool, x, seg, gamma, beta, out, ws)
//!              grn_grad(pool, x, seg, gamma, dy, dx, acc, dgamma, dbeta, ws)               grn_workspace(rows, segments, cols)
//! lstm         lstm(pool, x[T,4H], w[4H,H], [h, c] [S,H], seg, y, [h, c], ws)   lstm_workspace(hidden)
//! spline       rational_spline(pool, Spline { bins, bound }, inverse, x[T], params[T,3B-1], [y, logdet] [T])
//!              rational_spline_grad(pool, Spline, x, params, [dy, dlogdet] [T], dx[T], dparams)
//! rows         gather_rows(pool, table, idx, out)   scatter_add_rows(pool, (idx, first), dy, acc, dtable)
//!              column_sum(pool, x, acc, out, ws)    column_sum_workspace(rows, cols)
//!              scale_rows(pool, x, factors[T], out) concat_cols(pool, &`[Mat]`, out)   sinusoid(pool, positions, freqs, SinusoidOrder, out)
//! random       philox4x32_10(counter, key) -> [u32; 4]
//!              dropout(pool, x, seg, seeds: &[[u32; 2]] (per segment), op_id: u64, p, out)   (its gradient is itself on dy)
//! loss         ordered_sum(floats) -> f32 (compensated)
//!              masked_mse(pool, pred, target, mask: &`[f32]`, inv_norm, ws) -> f32             masked_mse_workspace(rows, cols)
//!              masked_mse_grad(pool, pred, target, mask, inv_norm, dpred)   (multiply inv_norm by the upstream gradient)
//! optimizer    adamw(pool, &AdamW { lr, beta1, beta2, eps, weight_decay, bias_correction1, bias_correction2, grad_scale, apply }, p, g, m, v)
//!              lion(pool, &Lion { lr, beta1, beta2, weight_decay, grad_scale, apply }, p, g, m)
//!              lerp(pool, weight, target, x)        sum_squares(pool, x, ws) -> f32         sum_squares_workspace(len)
//! narrow       adamw_narrow(pool, &AdamW, &Narrow { shape, w, m, v: Values }, g: Rows, Option<Random { key, id, first }>)
//!              lion_narrow(pool, &Lion, &Narrow, g: Rows, Option<Random>)
//!              lerp_bf16(pool, shape, weight, target: Rows, x: RowsMut)
//! linear_ce    linear_cross_entropy(pool, Head { x, w, labels, first, of, tile }, inv_norm, Option<CrossEntropyGrad { scale, dx, dw, acc }>, ws) -> f32
//!              head_sums(pool, Head, sums[T,3], ws)   head_loss(labels, sums, inv_norm) -> f32   head_grad(pool, Head, sums, inv_norm, CrossEntropyGrad, ws)
//!              linear_cross_entropy_workspace(rows, dim, classes, tile_rows, threads)
//! ```

pub mod activation;
pub mod alignment;
pub mod attention;
pub mod conv;
pub mod gemm;
pub mod grn;
pub mod half;
pub mod linear_ce;
pub mod loss;
pub mod lstm;
mod map;
mod math;
pub mod modulate;
pub mod narrow;
pub mod norm;
pub mod optimizer;
mod pool;
pub mod random;
pub mod rotary;
pub mod rows;
mod scratch;
mod simd;
pub mod snake;
pub mod spline;
#[cfg(test)]
mod testing;
mod tiles;
mod view;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activation::{Act, activation, activation_grad, add_scaled, axpby, mul, scale, swiglu, swiglu_grad};
pub use alignment::{Densities, monotonic_path, monotonic_path_workspace};
pub use attention::{
    Attention, Window, attention, attention_grad, attention_grad_workspace, attention_workspace,
    windowed_attention, windowed_attention_grad, windowed_attention_grad_workspace,
};
pub use conv::{Conv1d, conv1d, conv1d_grad_input, conv1d_grad_weight, conv1d_workspace};
pub use gemm::{Operand, few_rows_workspace, gemm, gemm_narrow, gemm_narrow_workspace, gemm_workspace};
pub use grn::{grn, grn_grad, grn_workspace};
pub use half::{Half, Rows, RowsMut, Stage};
pub use linear_ce::{
    CrossEntropyGrad, Head, IGNORE, head_grad, head_loss, head_sums, linear_cross_entropy,
    linear_cross_entropy_workspace,
};
pub use loss::{masked_mse, masked_mse_grad, masked_mse_workspace, ordered_sum};
pub use lstm::{lstm, lstm_workspace};
pub use modulate::{gated_residual, gated_residual_grad, gated_residual_grad_workspace};
pub use narrow::{
    Codebook, Narrow, Pitched, PitchedMut, Random, Values, adamw_narrow, lerp_bf16, lion_narrow,
};
pub use norm::{
    ada_layer_norm, ada_layer_norm_grad, ada_layer_norm_grad_workspace, layer_norm, layer_norm_grad,
    layer_norm_grad_workspace, rms_norm, rms_norm_grad, rms_norm_grad_workspace,
};
pub use optimizer::{AdamW, Lion, adamw, lerp, lion, sum_squares, sum_squares_workspace};
pub use pool::{DisjointMut, Pool};
pub use random::{dropout, philox4x32_10};
pub use rotary::{Pairing, Rotary, rotary};
pub use rows::{
    SinusoidOrder, column_sum, column_sum_workspace, concat_cols, gather_rows, scale_rows, scatter_add_rows,
    sinusoid,
};
pub use simd::Isa;
pub use snake::snake;
pub use spline::{Spline, rational_spline, rational_spline_grad};
pub use view::{Mat, MatMut, check_segments, segment, segment_of};
