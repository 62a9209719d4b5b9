//! Elementwise core ops.

use super::{View, kernels, launch_over};
use crate::bind::{Io, Steps};
use crate::step::Step;
use ambitus_ir::ops::elementwise::{Binary, Fill, Unary};

kernels! { "elementwise";
    /// y = f(x).
    UnaryArgs "unary" [256 threads, 40 registers] { x: View, y: View, kind: i32 }
    /// y = f(a, b), on floats or on integers.
    BinaryArgs "binary" [256 threads, 40 registers] { a: View, b: View, y: View, kind: i32 }
    /// y = a where c is not zero, else b; bits are moved, not computed with.
    SelectArgs "select" [256 threads, 40 registers] { c: View, a: View, b: View, y: View }
    /// y = x as another type.
    CastArgs "cast" [256 threads, 40 registers] { x: View, y: View }
    /// y = value.
    FillArgs "fill" [256 threads, 40 registers] { y: View, value: f32 }
    /// y = x * s.
    ScaleArgs "scale" [256 threads, 40 registers] { x: View, s: View, y: View }
    /// y = x * m, one factor per row.
    ScaleRowsArgs "scale_rows" [256 threads, 40 registers] { x: View, m: View, y: View }
}

pub(crate) fn unary(op: &Unary, io: &Io) -> Steps {
    let (x, y) = (io.x[0].view(), io.y[0].view());
    // `UnaryKind` numbered by its declaration, as in the kernel.
    Ok(launch_over(&UnaryArgs { x, y, kind: op.kind as i32 }, y.stored()))
}

pub(crate) fn binary(op: &Binary, io: &Io) -> Steps {
    let (a, b, y) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    Ok(launch_over(&BinaryArgs { a, b, y, kind: op.kind as i32 }, y.stored().div_ceil(4)))
}

pub(crate) fn select(io: &Io) -> Steps {
    let (c, a, b, y) = (io.x[0].view(), io.x[1].view(), io.x[2].view(), io.y[0].view());
    Ok(launch_over(&SelectArgs { c, a, b, y }, y.stored().div_ceil(4)))
}

pub(crate) fn cast(io: &Io) -> Steps {
    Ok(cast_to(io.x[0].view(), io.y[0].view()))
}

/// y = x, perhaps as another type.
pub(crate) fn cast_to(x: View, y: View) -> Vec<Step> {
    launch_over(&CastArgs { x, y }, y.stored().div_ceil(4))
}

pub(crate) fn fill(op: &Fill, io: &Io) -> Steps {
    let y = io.y[0].view();
    Ok(launch_over(&FillArgs { y, value: op.value }, y.stored()))
}

pub(crate) fn scale(io: &Io) -> Steps {
    let (x, s, y) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    Ok(launch_over(&ScaleArgs { x, s, y }, y.stored().div_ceil(4)))
}

pub(crate) fn scale_rows(io: &Io) -> Steps {
    let (x, m, y) = (io.x[0].view(), io.x[1].view(), io.y[0].view());
    Ok(launch_over(&ScaleRowsArgs { x, m, y }, y.stored().div_ceil(4)))
}
