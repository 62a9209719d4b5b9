//! Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, as its authors' PyTorch file computes it):
//! one moment, and steps of one size, whose signs it gives. Half of AdamW's states.
//!
//! w *= 1 - lr wd; w -= lr sign(b1 m + (1-b1) g'); m = b2 m + (1-b2) g', with g' = coef * g and sign(0) = 0, where `apply` is
//! not 0; where it is, the old bytes stay.
//!
//! Arithmetic is fp32. bf16 weights are rounded stochastically and 8-bit moments are kept block by block, both as
//! [`narrow`](super::narrow) says; the moment has the codes of AdamW's first one.

use super::elementwise::BinaryKind;
use super::narrow::{BLOCK, eight_bit, is_key, is_part_of, is_weight};
use super::optim::moment;
use super::parts::{Cut, Span, Unit};
use super::{Op, OpDef, arity, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

op! {
    /// One step of Lion. Operands (w, g, m, lr `[1]`, coef `[1]`, apply `[1]`); results (w, m), overwritten.
    Lion = "lion" {
        /// share of the old moment in the step's sign
        beta1: f64,
        /// decay of the moment
        beta2: f64,
        /// decoupled weight decay
        weight_decay: f64,
    }
}

impl OpDef for Lion {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 6)?;
        want(x[1..3].iter().all(|t| t.shape == x[0].shape), "w, g and m differ in shape")?;
        x[3..].iter().try_for_each(|t| scalar(*t))?;
        Ok(vec![x[0], x[2]])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let (w, g, m) = (b.as_f32(x[0]), b.as_f32(x[1]), b.as_f32(x[2]));
        let lr = x[3];
        let coef = b.everywhere(x[4], g);
        let g = b.mul(coef, g);

        let decay = b.times(lr, -self.weight_decay as f32);
        let decay = b.plus(decay, 1.0);
        let decay = b.everywhere(decay, w);
        let decayed = b.mul(w, decay);
        let mixed = moment(b, m, g, self.beta1);
        let zero = b.fill_like(mixed, 0.0);
        let above = b.binary(BinaryKind::Less, zero, mixed);
        let below = b.binary(BinaryKind::Less, mixed, zero);
        let sign = b.sub(above, below);
        let rate = b.everywhere(lr, sign);
        let step = b.mul(rate, sign);
        let w1 = b.sub(decayed, step);
        let m1 = moment(b, m, g, self.beta2);

        let apply = b.everywhere(x[5], w);
        let mut chosen = |new: ValueId, old: ValueId| {
            let new = b.as_like(new, old);
            b.select(apply, new, old)
        };
        Some(vec![chosen(w1, x[0]), chosen(m1, x[2])])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        10.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 1)]
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_element(&[0, 1, 2], &[0, 1]))
    }
}

op! {
    /// One step of Lion on a bf16 weight, with its moment in f32.
    ///
    /// Operands (w, g, m, lr `[1]`, coef `[1]`, apply `[1]`, seed i32 `[2]`, of a shard `[3]`); results (w, m), overwritten.
    LionBf16 = "lion_bf16" {
        /// share of the old moment in the step's sign
        beta1: f64,
        /// decay of the moment
        beta2: f64,
        /// decoupled weight decay
        weight_decay: f64,
        /// stable op id
        id: u64,
        /// which elements the operands hold
        part: Option<Span>,
    }
}

impl OpDef for LionBf16 {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 7)?;
        is_part_of(self.part, x[0])?;
        want(x[1..3].iter().all(|t| t.shape == x[0].shape), "w, g and m differ in shape")?;
        want(x[0].dtype == DType::BF16 && x[2].dtype == DType::F32, "w is not bf16, or m not f32")?;
        want(x[1].dtype.is_float(), "g is not a float")?;
        x[3..6].iter().try_for_each(|t| scalar(*t))?;
        is_key(x[6])?;
        Ok(vec![x[0], x[2]])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        20.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 1)]
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut::by_element(&[0, 1, 2], &[0, 1]))
    }

    fn of_part(&self, part: Span) -> Option<Op> {
        Some(LionBf16 { part: Some(part), ..self.clone() }.into())
    }
}

op! {
    /// One step of Lion with an 8-bit block-wise moment, on a weight of f32 or bf16 with N elements. The step's sign is of the
    /// old moment as its codes say.
    ///
    /// Operands (w, g, codes u8 `[N]`, scales f32 `[ceil(N / 256)]`, lr `[1]`, coef `[1]`, apply `[1]`, and for a bf16 weight
    /// seed i32 `[2]` or `[3]`); results (w, codes, scales), overwritten.
    Lion8bit = "lion_8bit" {
        /// share of the old moment in the step's sign
        beta1: f64,
        /// decay of the moment
        beta2: f64,
        /// decoupled weight decay
        weight_decay: f64,
        /// stable op id
        id: u64,
        /// which elements the operands hold
        part: Option<Span>,
    }
}

impl OpDef for Lion8bit {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(!x.is_empty(), "needs operands")?;
        is_weight(x[0])?;
        arity(x, if x[0].dtype == DType::F32 { 7 } else { 8 })?;
        is_part_of(self.part, x[0])?;
        let alike = x[1].shape == x[0].shape && x[1].dtype.is_float();
        want(alike, "w and g differ in shape, or g is not a float")?;
        let (codes, scales) = eight_bit(x[0]);
        want(x[2] == codes, format_args!("codes are {}, not {codes}", x[2]))?;
        want(x[3] == scales, format_args!("scales are {}, not {scales}", x[3]))?;
        x[4..7].iter().try_for_each(|t| scalar(*t))?;
        x[7..].iter().try_for_each(|t| is_key(*t))?;
        Ok(vec![x[0], x[2], x[3]])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        30.0 * x[0].shape.elements() as f64
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (2, 1), (3, 2)]
    }

    fn cut(&self) -> Option<Cut> {
        let (operands, results) =
            (vec![(0, 1), (1, 1), (2, 1), (3, BLOCK)], vec![(0, 1), (1, 1), (2, BLOCK)]);
        Some(Cut { unit: Unit::Element, operands, results, again: false })
    }

    fn of_part(&self, part: Span) -> Option<Op> {
        Some(Lion8bit { part: Some(part), ..self.clone() }.into())
    }
}
