//! Elementwise core ops. An operand that is `None` is the result's own old content.

use super::{pieces, rows};
use crate::cpu::kernels::Pool;
use crate::cpu::operand::Element;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::{DType, TensorType};

/// out = g(x).
pub fn map(pool: &Pool, ty: TensorType, x: Option<&[f32]>, out: &mut [f32], g: impl Fn(f32) -> f32 + Sync) {
    pieces(pool, ty, out, |start, out| match x {
        Some(x) => out.iter_mut().zip(&x[start..]).for_each(|(o, &x)| *o = g(x)),
        None => out.iter_mut().for_each(|o| *o = g(*o)),
    });
}

/// out = g(a, b).
pub fn zip(
    pool: &Pool,
    ty: TensorType,
    a: Option<&[f32]>,
    b: Option<&[f32]>,
    out: &mut [f32],
    g: impl Fn(f32, f32) -> f32 + Sync,
) {
    pieces(pool, ty, out, |start, out| match (a, b) {
        (Some(a), Some(b)) => {
            let (a, b) = (&a[start..][..out.len()], &b[start..][..out.len()]);
            out.iter_mut().zip(a).zip(b).for_each(|((o, &a), &b)| *o = g(a, b));
        }
        (None, Some(b)) => out.iter_mut().zip(&b[start..]).for_each(|(o, &b)| *o = g(*o, b)),
        (Some(a), None) => out.iter_mut().zip(&a[start..]).for_each(|(o, &a)| *o = g(a, *o)),
        (None, None) => out.iter_mut().for_each(|o| *o = g(*o, *o)),
    });
}

/// Function of one number.
pub fn unary(pool: &Pool, kind: UnaryKind, ty: TensorType, x: Option<&[f32]>, out: &mut [f32]) {
    match kind {
        UnaryKind::Neg => map(pool, ty, x, out, |x| -x),
        UnaryKind::Exp => map(pool, ty, x, out, f32::exp),
        UnaryKind::Log => map(pool, ty, x, out, f32::ln),
        UnaryKind::Sqrt => map(pool, ty, x, out, f32::sqrt),
        UnaryKind::Rsqrt => map(pool, ty, x, out, |x| 1.0 / x.sqrt()),
        UnaryKind::Tanh => map(pool, ty, x, out, f32::tanh),
        UnaryKind::Sin => map(pool, ty, x, out, f32::sin),
        UnaryKind::Cos => map(pool, ty, x, out, f32::cos),
        UnaryKind::Erf => map(pool, ty, x, out, |x| libm::erf(f64::from(x)) as f32),
        UnaryKind::IsFinite => map(pool, ty, x, out, |x| truth(x.is_finite())),
    }
}

/// Function of two numbers.
pub fn binary(
    pool: &Pool,
    kind: BinaryKind,
    ty: TensorType,
    a: Option<&[f32]>,
    b: Option<&[f32]>,
    out: &mut [f32],
) {
    if ty.dtype == DType::I32 {
        return binary_i32(pool, kind, ty, a, b, out);
    }
    match kind {
        BinaryKind::Add => zip(pool, ty, a, b, out, |a, b| a + b),
        BinaryKind::Sub => zip(pool, ty, a, b, out, |a, b| a - b),
        BinaryKind::Mul => zip(pool, ty, a, b, out, |a, b| a * b),
        BinaryKind::Div => zip(pool, ty, a, b, out, |a, b| a / b),
        BinaryKind::Max => zip(pool, ty, a, b, out, |a, b| if a > b { a } else { b }),
        BinaryKind::Min => zip(pool, ty, a, b, out, |a, b| if a < b { a } else { b }),
        BinaryKind::Less => zip(pool, ty, a, b, out, |a, b| truth(a < b)),
        BinaryKind::Equal => zip(pool, ty, a, b, out, |a, b| truth(a == b)),
    }
}

/// Applies a function of two integers, which lie in the same words as floats; sums wrap, x / 0 is 0.
fn binary_i32(
    pool: &Pool,
    kind: BinaryKind,
    ty: TensorType,
    a: Option<&[f32]>,
    b: Option<&[f32]>,
    out: &mut [f32],
) {
    let g = |a: i32, b: i32| match kind {
        BinaryKind::Add => a.wrapping_add(b),
        BinaryKind::Sub => a.wrapping_sub(b),
        BinaryKind::Mul => a.wrapping_mul(b),
        BinaryKind::Div => a.checked_div(b).unwrap_or(0),
        BinaryKind::Max => a.max(b),
        BinaryKind::Min => a.min(b),
        BinaryKind::Less => i32::from(a < b),
        BinaryKind::Equal => i32::from(a == b),
    };
    zip(pool, ty, a, b, out, |a, b| word(g(int(a), int(b))));
}

/// out = a where c is not 0, else b; `cond` is the condition's type, `ty` the branches'.
pub fn select<C: Element, E: Element>(
    pool: &Pool,
    (cond, ty): (TensorType, TensorType),
    c: &[C],
    holds: impl Fn(C) -> bool + Sync,
    a: Option<&[E]>,
    b: Option<&[E]>,
    out: &mut [E],
) {
    // Types of other widths may have other pitches.
    let at = |i: usize| if cond.pitch == ty.pitch { i } else { i / ty.pitch * cond.pitch + i % ty.pitch };
    pieces(pool, ty, out, |start, out| {
        for (i, (o, &c)) in out.iter_mut().zip(&c[at(start)..]).enumerate() {
            let from = if holds(c) { a } else { b };
            if let Some(from) = from {
                *o = from[start + i];
            }
        }
    });
}

/// out = x as another 32-bit element type; `ty` is the result's.
pub fn cast(pool: &Pool, from: DType, ty: TensorType, x: &[f32], out: &mut [f32]) {
    match (from, ty.dtype) {
        (DType::F32, DType::I32) => map(pool, ty, Some(x), out, |x| word(x as i32)),
        (DType::I32, DType::F32) => map(pool, ty, Some(x), out, |x| int(x) as f32),
        _ => map(pool, ty, Some(x), out, |x| x),
    }
}

/// out = one number everywhere.
pub fn fill(pool: &Pool, ty: TensorType, value: f32, out: &mut [f32]) {
    let value = if ty.dtype == DType::I32 { word(value as i32) } else { value };
    pieces(pool, ty, out, |_, out| out.fill(value));
}

/// out[t, d] = x[t, d] * m[t].
pub fn scale_rows(pool: &Pool, ty: TensorType, x: Option<&[f32]>, m: &[f32], out: &mut [f32]) {
    rows(pool, ty, out, |r, out| match x {
        Some(x) => out.iter_mut().zip(&x[r * ty.pitch..]).for_each(|(o, &x)| *o = x * m[r]),
        None => out.iter_mut().for_each(|o| *o *= m[r]),
    });
}

fn truth(b: bool) -> f32 {
    f32::from(u8::from(b))
}

/// Returns the integer in a word.
pub fn int(word: f32) -> i32 {
    word.to_bits() as i32
}

/// Returns the word of an integer.
pub fn word(int: i32) -> f32 {
    f32::from_bits(int as u32)
}
