//! Core ops on dense values, one element after another.

use super::{alignment, collective, narrow, spline};
use crate::tensor::Tensor;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::index::{Gather, ScatterAdd, Sinusoid, SinusoidKind};
use ambitus_ir::ops::matmul::MatMul;
use ambitus_ir::ops::parts::Span;
use ambitus_ir::ops::random::{Dropout, philox4x32_10};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::ops::transfer::End;
use ambitus_ir::{DType, Op, Shape, TensorType};
use std::rc::Rc;

pub(super) type Data = Vec<f64>;

/// Returns the results of a core op whose operands passed its shape rule, `None` for fused ops. The list of ops is written out:
/// a new op has to be put on one side.
pub(super) fn run(op: &Op, x: &[Rc<Tensor>], y: &[TensorType]) -> Option<Vec<Data>> {
    let one = |data: Data| Some(vec![data]);
    match op {
        Op::Unary(op) => one(x[0].data.iter().map(|v| unary(op.kind, *v)).collect()),
        Op::Binary(op) => {
            let int = !x[0].ty.dtype.is_float();
            let f = |(a, b): (&f64, &f64)| {
                let v = binary(op.kind, *a, *b);
                if int { v.trunc() } else { v }
            };
            one(x[0].data.iter().zip(&x[1].data).map(f).collect())
        }
        Op::Select(_) => {
            let pairs = x[1].data.iter().zip(&x[2].data);
            let pick = |(c, (a, b)): (&f64, (&f64, &f64))| if *c != 0.0 { *a } else { *b };
            one(x[0].data.iter().zip(pairs).map(pick).collect())
        }
        Op::Cast(_) => one(x[0].data.iter().map(|v| cast(*v, y[0].dtype)).collect()),
        Op::Fill(op) => one(vec![cast(f64::from(op.value), op.dtype); y[0].shape.elements()]),
        Op::Reduce(op) => one(reduce(op.kind, &x[0], op.axis)),
        Op::Reshape(_) | Op::Detach(_) => one(x[0].data.clone()),
        Op::Permute(op) => one(pull(&y[0], &x[0], |at, from| {
            for (i, a) in op.axes.iter().enumerate() {
                from[*a] = at[i];
            }
        })),
        Op::Broadcast(_) => one(pull(&y[0], &x[0], |at, from| {
            for (i, n) in x[0].ty.shape.iter().enumerate() {
                from[i] = if *n == 1 { 0 } else { at[i] };
            }
        })),
        Op::Slice(op) => one(pull(&y[0], &x[0], |at, from| {
            from.copy_from_slice(at);
            from[op.axis] += op.start;
        })),
        Op::Concat(op) => one(concat(x, op.axis)),
        Op::Reverse(op) => one(pull(&y[0], &x[0], |at, from| {
            from.copy_from_slice(at);
            from[op.axis] = y[0].shape[op.axis] - 1 - at[op.axis];
        })),
        Op::Iota(op) => {
            let mut data = Vec::with_capacity(y[0].shape.elements());
            each_index(&y[0].shape, |at| data.push(at[op.axis] as f64));
            one(data)
        }
        Op::Gather(op) => one(gather(op, &x[0], &x[1], x.get(2).map(|t| &**t))),
        Op::ScatterAdd(op) if !op.acc => one(scatter_add(op, &x[0], &x[1])),
        Op::MatMul(op) if !op.acc => one(matmul(op, &x[0], &x[1])),
        Op::SegmentIds(op) => {
            let of = |t| segment_of(&x[0], t).map_or(-1.0, |(s, _)| s as f64);
            one((0..op.rows).map(of).collect())
        }
        Op::SegmentPositions(op) => {
            let of = |t| segment_of(&x[0], t).map_or(0.0, |(_, at)| at as f64);
            one((0..op.rows).map(of).collect())
        }
        Op::RotaryFrequencies(op) => {
            let of = |i: usize| op.base.powf(-2.0 * i as f64 / op.dim as f64);
            one((0..op.dim / 2).map(of).collect())
        }
        Op::MonotonicPath(_) => one(alignment::monotonic_path(x)),
        Op::Dropout(op) => one(dropout(op, &x[0], &x[1], &x[2])),
        Op::Sinusoid(op) => one(sinusoid(op, &x[0])),
        Op::RationalSpline(op) => Some(spline::forward(op, x)),
        Op::RationalSplineGrad(op) => Some(spline::grad(op, x)),
        Op::AdamWBf16(op) => Some(narrow::bf16(op, x)),
        Op::AdamW8bit(op) => Some(narrow::eight_bit(op, x)),
        Op::LionBf16(op) => Some(narrow::lion_bf16(op, x)),
        Op::Lion8bit(op) => Some(narrow::lion_8bit(op, x)),
        Op::SumPartials(_) => one(vec![x.iter().flat_map(|t| &t.data).sum()]),
        // Of several ranks, none has what another sends.
        Op::TransferStart(op) if op.end != End::Both => None,
        Op::CopyStart(_) | Op::StoreStart(_) | Op::TransferStart(_) => {
            Some(vec![x[0].data.clone(), vec![0.0]])
        }
        Op::CopyDone(_) => one(x[1].data.clone()),
        Op::AllGatherStart(op) => collective::gather(op, x, y),
        Op::ReduceScatterStart(op) => collective::reduce(op, x, y),
        Op::CollectiveDone(op) => Some(x[op.sources..x.len() - 1].iter().map(|t| t.data.clone()).collect()),

        Op::ScatterAdd(_)
        | Op::WriteRows(_)
        | Op::MatMul(_)
        | Op::Scale(_)
        | Op::ScaleRows(_)
        | Op::Linear(_)
        | Op::LinearIn(_)
        | Op::Activation(_)
        | Op::ActivationGrad(_)
        | Op::SwiGlu(_)
        | Op::SwiGluGrad(_)
        | Op::Snake(_)
        | Op::LayerNorm(_)
        | Op::LayerNormGrad(_)
        | Op::RmsNorm(_)
        | Op::RmsNormGrad(_)
        | Op::Grn(_)
        | Op::GrnGrad(_)
        | Op::AdaLayerNorm(_)
        | Op::AdaLayerNormGrad(_)
        | Op::GatedResidual(_)
        | Op::GatedResidualGrad(_)
        | Op::SegmentBroadcast(_)
        | Op::SegmentSum(_)
        | Op::Rotary(_)
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::WindowedAttention(_)
        | Op::WindowedAttentionGrad(_)
        | Op::Conv1d(_)
        | Op::Conv1dInputGrad(_)
        | Op::Conv1dWeightGrad(_)
        | Op::Lstm(_)
        | Op::MaskedMse(_)
        | Op::MaskedMseGrad(_)
        | Op::LinearCrossEntropy(_)
        | Op::LinearCrossEntropyGrad(_)
        | Op::HeadSums(_)
        | Op::HeadLoss(_)
        | Op::HeadGrad(_)
        | Op::Accumulate(_)
        | Op::SumSquares(_)
        | Op::AdamW(_)
        | Op::Lion(_)
        | Op::Lerp(_) => None,
    }
}

fn unary(kind: UnaryKind, x: f64) -> f64 {
    match kind {
        UnaryKind::Neg => -x,
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => x.ln(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Tanh => x.tanh(),
        UnaryKind::Sin => x.sin(),
        UnaryKind::Cos => x.cos(),
        UnaryKind::Erf => libm::erf(x),
        UnaryKind::IsFinite => f64::from(u8::from(x.is_finite())),
    }
}

fn binary(kind: BinaryKind, a: f64, b: f64) -> f64 {
    match kind {
        BinaryKind::Add => a + b,
        BinaryKind::Sub => a - b,
        BinaryKind::Mul => a * b,
        BinaryKind::Div => a / b,
        BinaryKind::Max => a.max(b),
        BinaryKind::Min => a.min(b),
        BinaryKind::Less => f64::from(u8::from(a < b)),
        BinaryKind::Equal => f64::from(u8::from(a == b)),
    }
}

/// Integers saturate; floats keep their digits ([`super::Rounding`] decides).
fn cast(x: f64, to: DType) -> f64 {
    match to {
        DType::F32 | DType::BF16 | DType::F16 => x,
        DType::I32 => f64::from(x as i32),
        DType::U8 => f64::from(x as u8),
    }
}

/// Calls `f` with every index of a shape, in row-major order.
fn each_index(shape: &Shape, mut f: impl FnMut(&[usize])) {
    let mut at = vec![0; shape.len()];
    for _ in 0..shape.elements() {
        f(&at);
        for axis in (0..at.len()).rev() {
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

/// Returns a result whose element `at` is the operand's element that `find(at, from)` writes into `from`.
fn pull(y: &TensorType, x: &Tensor, find: impl Fn(&[usize], &mut [usize])) -> Data {
    let shape = x.ty.shape;
    let mut from = vec![0; shape.len()];
    let mut data = Vec::with_capacity(y.shape.elements());
    each_index(&y.shape, |at| {
        find(at, &mut from);
        let flat = from.iter().zip(shape.iter()).fold(0, |flat, (i, n)| flat * n + i);
        data.push(x.data[flat]);
    });
    data
}

/// (product of the axes before, length, product of the axes after).
fn around(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

fn reduce(kind: ReduceKind, x: &Tensor, axis: usize) -> Data {
    let (outer, n, inner) = around(&x.ty.shape, axis);
    let (start, f): (f64, fn(f64, f64) -> f64) = match kind {
        ReduceKind::Sum => (0.0, |a, b| a + b),
        ReduceKind::Max => (f64::NEG_INFINITY, f64::max),
    };
    let mut data = vec![start; outer * inner];
    for o in 0..outer {
        for i in 0..n {
            for k in 0..inner {
                let y = &mut data[o * inner + k];
                *y = f(*y, x.data[(o * n + i) * inner + k]);
            }
        }
    }
    data
}

fn concat(x: &[Rc<Tensor>], axis: usize) -> Data {
    let (outer, _, _) = around(&x[0].ty.shape, axis);
    let mut data = Vec::new();
    for o in 0..outer {
        for t in x {
            let run = t.data.len() / outer;
            data.extend(&t.data[o * run..(o + 1) * run]);
        }
    }
    data
}

/// Returns an id as a row of a table of `rows` rows, or of the part that they are of one.
fn row(id: f64, rows: usize, part: Option<Span>) -> Option<usize> {
    let id = id - part.map_or(0.0, |p| p.first as f64);
    (id >= 0.0 && id < rows as f64).then_some(id as usize)
}

fn gather(op: &Gather, table: &Tensor, ids: &Tensor, before: Option<&Tensor>) -> Data {
    let (rows, cols) = (table.ty.shape[0], table.ty.shape[1]);
    let mut data = Vec::with_capacity(ids.data.len() * cols);
    for (t, id) in ids.data.iter().enumerate() {
        match (row(*id, rows, op.part), before) {
            (Some(r), _) => data.extend(&table.data[r * cols..(r + 1) * cols]),
            (None, Some(before)) => data.extend(&before.data[t * cols..(t + 1) * cols]),
            (None, None) => data.extend(std::iter::repeat_n(0.0, cols)),
        }
    }
    data
}

fn scatter_add(op: &ScatterAdd, x: &Tensor, ids: &Tensor) -> Data {
    let cols = x.ty.shape[1];
    let mut data = vec![0.0; op.rows * cols];
    for (t, id) in ids.data.iter().enumerate() {
        let Some(r) = row(*id, op.rows, op.part) else { continue };
        for c in 0..cols {
            data[r * cols + c] += x.data[t * cols + c];
        }
    }
    data
}

fn matmul(op: &MatMul, a: &Tensor, b: &Tensor) -> Data {
    let (batch, m, n, k) = op.dims(&[a.ty, b.ty]).expect("the shape rule was checked");
    let mut data = vec![0.0; batch * m * n];
    for g in 0..batch {
        let (a, b) = (&a.data[g * m * k..(g + 1) * m * k], &b.data[g * k * n..(g + 1) * k * n]);
        let y = &mut data[g * m * n..(g + 1) * m * n];
        for i in 0..m {
            for p in 0..k {
                let left = if op.ta { a[p * m + i] } else { a[i * k + p] };
                for j in 0..n {
                    let right = if op.tb { b[j * k + p] } else { b[p * n + j] };
                    y[i * n + j] += left * right;
                }
            }
        }
    }
    data
}

/// (segment, index within it) of a row.
fn segment_of(table: &Tensor, t: usize) -> Option<(usize, usize)> {
    let t = t as f64;
    let s = table.data.windows(2).position(|w| w[0] <= t && t < w[1])?;
    Some((s, (t - table.data[s]) as usize))
}

/// The op's definition is in fp32 up to the angle, so the roundings are part of it.
fn sinusoid(op: &Sinusoid, positions: &Tensor) -> Data {
    let exact = |x: f32| f64::from(x);
    let frequency = |i: usize| match op.kind {
        SinusoidKind::SinCos => {
            let step = (-exact(op.base).ln() / (op.half as f64 - 1.0)) as f32;
            exact(i as f32 * step).exp() as f32
        }
        SinusoidKind::CosSin => {
            let power = exact(op.base).powf(exact(i as f32 / op.half as f32)) as f32;
            1.0 / power
        }
    };
    let mut data = Vec::with_capacity(positions.data.len() * 2 * op.half);
    for p in &positions.data {
        let angle = |i: usize| exact(op.scale * (*p as f32) * frequency(i));
        let sines = (0..op.half).map(|i| angle(i).sin());
        let cosines = (0..op.half).map(|i| angle(i).cos());
        match op.kind {
            SinusoidKind::SinCos => data.extend(sines.chain(cosines)),
            SinusoidKind::CosSin => data.extend(cosines.chain(sines)),
        }
    }
    data
}

fn dropout(op: &Dropout, x: &Tensor, keys: &Tensor, segments: &Tensor) -> Data {
    let cols = x.ty.shape[1];
    let p = f64::from(op.p);
    let least = (p * 4_294_967_296.0) as u32;
    let mut data = x.data.clone();
    for (i, v) in data.iter_mut().enumerate() {
        let Some((s, at)) = segment_of(segments, i / cols) else {
            *v = 0.0;
            continue;
        };
        let n = (at * cols + i % cols) as u64;
        let key = [keys.data[2 * s] as i32 as u32, keys.data[2 * s + 1] as i32 as u32];
        let block = n / 4;
        let counter = [block as u32, (block >> 32) as u32, op.id as u32, (op.id >> 32) as u32];
        let keep = philox4x32_10(counter, key)[(n % 4) as usize] >= least;
        *v = if keep { *v / (1.0 - p) } else { 0.0 };
    }
    data
}
