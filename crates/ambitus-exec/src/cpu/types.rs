//! Which kernels take and give values of which element types, in one place: the target promises it to compilation, the
//! executor checks it at open.

use super::kernels::half::WIDEST;
use super::operand::half;
use ambitus_ir::ops::Op;
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{DType, TensorType};

/// True when an op's kernel takes operands and gives results of these types.
pub(super) fn computes(op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
    if op.def().queue().is_some() {
        // Copies move bytes of any type, and have the queue's tokens.
        return true;
    }
    let all = || x.iter().chain(y);
    let words = all().all(|t| match t.dtype {
        // Tables, ids and labels; these ops would read their words as floats.
        DType::I32 => !matches!(
            op,
            Op::Reduce(_)
                | Op::Scale(_)
                | Op::Accumulate(_)
                | Op::SumSquares(_)
                | Op::SumPartials(_)
                | Op::Lerp(_)
        ),
        // Codes of moments.
        DType::U8 => matches!(op, Op::AdamW8bit(_)),
        DType::F32 | DType::F16 | DType::BF16 => true,
    });
    words && (all().all(|t| half(*t).is_none()) || narrow(op, x, y))
}

/// True when a stage holds a row.
fn staged(t: TensorType) -> bool {
    t.shape.cols() <= WIDEST
}

fn bfloat(types: &[TensorType]) -> bool {
    types.iter().all(|t| t.dtype != DType::F16)
}

/// As [`computes`], where at least one type has 16 bits.
fn narrow(op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
    let f32_at = |i: usize| x[i].dtype == DType::F32;
    match op {
        // What moves elements, whatever they mean.
        Op::Cast(_) | Op::Fill(_) | Op::Select(_) | Op::Gather(_) | Op::SegmentBroadcast(_) => true,
        Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Concat(_) => true,
        // By element, in pieces: factors are read as they are.
        Op::Unary(_) | Op::Binary(_) => half(y[0]).is_some(),
        Op::Scale(_) | Op::ScaleRows(_) => half(y[0]).is_some() && f32_at(1),
        // Packed as f32; the old result is read only in the result's own type.
        Op::MatMul(_) => {
            x.get(2).is_none_or(|acc| acc.dtype == y[0].dtype) && x.get(3).is_none_or(|_| f32_at(3))
        }
        Op::Linear(_) => true,
        // Weights and moments in bfloat16; gradients, scales and averages in f32.
        Op::AdamWBf16(_) => f32_at(1) && bfloat(y),
        Op::AdamW8bit(_) => [1, 3, 5].into_iter().all(f32_at) && bfloat(y),
        Op::Lerp(_) => f32_at(0) && bfloat(x),
        Op::Activation(_) | Op::ActivationGrad(_) | Op::SwiGlu(_) | Op::SwiGluGrad(_) => half(y[0]).is_some(),
        // By row, on a stage; small tables are copied to the scratch.
        Op::LayerNorm(_) | Op::RmsNorm(_) | Op::AdaLayerNorm(_) | Op::AdaLayerNormGrad(_) => staged(x[0]),
        Op::GatedResidual(_) => half(y[0]).is_some(),
        Op::GatedResidualGrad(_) => staged(x[1]),
        Op::Dropout(_) => staged(x[0]),
        Op::Rotary(_) => staged(x[0]) && f32_at(1),
        // Sums over rows are left in f32.
        Op::LayerNormGrad(_) | Op::RmsNormGrad(_) => {
            staged(x[0]) && y[1..].iter().all(|t| t.dtype == DType::F32)
        }
        Op::Reduce(op) => {
            let columns = op.kind == ReduceKind::Sum && op.axis == 0 && x[0].shape.len() == 2;
            columns && staged(x[0]) && y[0].dtype == DType::F32
        }
        Op::ScatterAdd(_) => staged(x[0]) && y[0].dtype == DType::F32,
        Op::SegmentSum(_) => y[0].dtype == DType::F32,
        // Widened while tiles are packed, summed in f32.
        Op::Attention(_) => staged(x[0]) && y[1].dtype == DType::F32,
        Op::AttentionGrad(_) => staged(x[0]) && staged(x[1]) && f32_at(4),
        _ => false,
    }
}
