//! AdamW whose weights and moments take fewer than four bytes an element.
//!
//! All arithmetic is fp32, as in [`AdamW`](super::optim::AdamW); only what is stored is narrow.
//!
//! **bf16, stochastically.** A bf16 has 8 significant bits: neighbours are 2^-8 to 2^-7 of the number apart, and to nearest
//! every change of less than half of that is lost. A weight changes by about lr (1e-5 of it), and the second moment by at most
//! (1 - beta2) v = v / 1000 when it falls: to nearest, the first would hardly move and the second never fall. So these two are
//! rounded up or down at random, with the probabilities that make the expected value the exact one. The first moment moves by
//! a tenth of its distance from the gradient and is rounded to nearest.
//!
//! Random bits of element n (row-major, without pads): word n mod 4 of Philox4x32-10 with key words `seed` (the run's seed,
//! the update's number) and counter words (n / 4 low, n / 4 high, id low, id high). The weight takes its upper half, the
//! second moment its lower half. An fp32's low 16 bits are what is lost; the magnitude is rounded up where they and the
//! random half carry. Elements of a part are numbered as in the whole; so are those of a shard, for which the key has a third
//! word: which shard it is, of those of as many elements as the whole of its parts.
//!
//! **8-bit, block-wise** (Dettmers et al., arXiv 2110.02861). Runs of [`BLOCK`] elements share a scale, the largest magnitude
//! in them; elements over scale become the nearest of 256 numbers, [`dynamic_map`], ties upwards. One thing differs from the
//! paper: a second moment that is not zero never becomes the code of zero, but at least the next. Otherwise an element whose
//! gradient is exactly zero in the next update (a token that does not occur) would be divided by eps.

use super::parts::{Cut, Span, Unit};
use super::{Op, OpDef, arity, op, scalar, want};
use crate::tensor::{DType, TensorType};

/// Elements that share a scale.
pub const BLOCK: usize = 256;

op! {
    /// AdamW on weights and moments of f32 or bf16, each bf16 rounded as said above; the formula, and where `apply` is 0 the
    /// old bytes, are those of `adamw`.
    ///
    /// Operands (w, g, m, v, lr `[1]`, coef `[1]`, t `[1]`, apply `[1]`, seed i32 `[2]`, of a shard `[3]`); results (w, m, v), overwritten.
    AdamWBf16 = "adamw_bf16" {
        /// decay of the first moment
        beta1: f64,
        /// decay of the second moment
        beta2: f64,
        /// added to the denominator
        eps: f64,
        /// decoupled weight decay
        weight_decay: f64,
        /// stable op id
        id: u64,
        /// which elements the operands hold
        part: Option<Span>,
    }
}

impl OpDef for AdamWBf16 {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 9)?;
        is_part_of(self.part, x[0])?;
        want(x[1..4].iter().all(|t| t.shape == x[0].shape), "w, g, m and v differ in shape")?;
        is_weight(x[0])?;
        want(x[1].dtype.is_float(), "g is not a float")?;
        want(x[2..4].iter().all(|t| is_f32_or_bf16(*t)), "m and v are not f32 or bf16")?;
        x[4..8].iter().try_for_each(|t| scalar(*t))?;
        is_key(x[8])?;
        Ok(vec![x[0], x[2], x[3]])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        30.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 1), (3, 2)]
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_element(&[0, 1, 2, 3], &[0, 1, 2]))
    }

    fn of_part(&self, part: Span) -> Option<Op> {
        Some(AdamWBf16 { part: Some(part), ..self.clone() }.into())
    }
}

op! {
    /// AdamW with 8-bit block-wise moments. The weight moves by the new moments as computed, before they are rounded; the
    /// formula, and where `apply` is 0 the old bytes, are those of `adamw`. Block i holds the elements 256 i to 256 i + 255 of
    /// the weight, row-major, without pads; N elements in all.
    ///
    /// Operands (w, g, codes of m u8 `[N]`, scales of m f32 `[ceil(N / 256)]`, codes of v, scales of v, lr `[1]`, coef `[1]`,
    /// t `[1]`, apply `[1]`, and for a bf16 weight seed i32 `[2]` or `[3]`); results (w, and the four of the moments), overwritten.
    AdamW8bit = "adamw_8bit" {
        /// decay of the first moment
        beta1: f64,
        /// decay of the second moment
        beta2: f64,
        /// added to the denominator
        eps: f64,
        /// decoupled weight decay
        weight_decay: f64,
        /// stable op id
        id: u64,
        /// which elements the operands hold
        part: Option<Span>,
    }
}

impl OpDef for AdamW8bit {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(!x.is_empty(), "needs operands")?;
        is_weight(x[0])?;
        let rounds = x[0].dtype != DType::F32;
        arity(x, if rounds { 11 } else { 10 })?;
        is_part_of(self.part, x[0])?;
        want(
            x[1].shape == x[0].shape && x[1].dtype.is_float(),
            "w and g differ in shape, or g is not a float",
        )?;
        let (codes, scales) = eight_bit(x[0]);
        for (c, s) in [(x[2], x[3]), (x[4], x[5])] {
            want(c == codes, format_args!("codes are {c}, not {codes}"))?;
            want(s == scales, format_args!("scales are {s}, not {scales}"))?;
        }
        x[6..10].iter().try_for_each(|t| scalar(*t))?;
        x[10..].iter().try_for_each(|t| is_key(*t))?;
        Ok(vec![x[0], x[2], x[3], x[4], x[5]])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        50.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    }

    fn cut(&self) -> Option<Cut> {
        let operands = vec![(0, 1), (1, 1), (2, 1), (3, BLOCK), (4, 1), (5, BLOCK)];
        let results = vec![(0, 1), (1, 1), (2, BLOCK), (3, 1), (4, BLOCK)];
        Some(Cut { unit: Unit::Element, operands, results, again: false })
    }

    fn of_part(&self, part: Span) -> Option<Op> {
        Some(AdamW8bit { part: Some(part), ..self.clone() }.into())
    }
}

/// Returns the types of an 8-bit moment of a weight: codes and scales.
pub fn eight_bit(w: TensorType) -> (TensorType, TensorType) {
    let n = w.shape.elements();
    (TensorType::new(DType::U8, &[n]), TensorType::f32(&[n.div_ceil(BLOCK)]))
}

/// Returns the 256 numbers of 8-bit moments, ascending: 0, 1, and in every decade from 1e-6 to 1 the middles of equal parts of
/// [0.1, 1] times the decade; 1, 2, .. 64 parts with both signs (`signed`, for first moments), else 2, 4, .. 128.
pub fn dynamic_map(signed: bool) -> [f32; 256] {
    let mut numbers = vec![0.0, 1.0];
    for decade in 0..7 {
        let parts = 1 << (decade + i32::from(!signed));
        for k in 0..parts {
            let middle = 0.1 + 0.9 * (f64::from(k) + 0.5) / f64::from(parts);
            let x = 10f64.powi(decade - 6) * middle;
            numbers.push(x);
            if signed {
                numbers.push(-x);
            }
        }
    }
    numbers.sort_by(f64::total_cmp);
    std::array::from_fn(|i| numbers[i] as f32)
}

/// Returns what [`dynamic_map`]'s codes are chosen by: a number at or above element i and below element i + 1 has code i + 1. The
/// last is NaN, which nothing reaches.
pub fn code_limits(map: &[f32; 256]) -> [f32; 256] {
    std::array::from_fn(|i| map.get(i + 1).map_or(f32::NAN, |next| 0.5 * (map[i] + next)))
}

/// A part has the weight's elements, and begins a block.
pub(super) fn is_part_of(part: Option<Span>, w: TensorType) -> Result<(), String> {
    let fits = |p: Span| p.count == w.shape.elements() && p.first.is_multiple_of(BLOCK);
    want(part.is_none_or(fits), format_args!("{w} is not the part"))
}

fn is_f32_or_bf16(t: TensorType) -> bool {
    matches!(t.dtype, DType::F32 | DType::BF16)
}

pub(super) fn is_weight(w: TensorType) -> Result<(), String> {
    want(is_f32_or_bf16(w), "w is not f32 or bf16")
}

pub(super) fn is_key(t: TensorType) -> Result<(), String> {
    let words = *t.shape == [2] || *t.shape == [3];
    want(t.dtype == DType::I32 && words, format_args!("{t} is not the key i32[2], or i32[3] of a shard"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ascend_and_hold_zero_and_one() {
        for signed in [false, true] {
            let map = dynamic_map(signed);
            assert!(map.windows(2).all(|w| w[0] < w[1]));
            assert_eq!((map[255], map[if signed { 127 } else { 0 }]), (1.0, 0.0));
            let limits = code_limits(&map);
            assert!(limits[..255].windows(2).all(|w| w[0] < w[1]) && limits[255].is_nan());
        }
        let map = dynamic_map(true);
        assert!((0..127).all(|i| map[i] == -map[254 - i]), "both signs");
    }
}
