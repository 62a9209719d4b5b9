//! Random numbers: functions of (seed, epoch, sample, op), never of pack position, rank or plan.

use super::{Grads, OpDef, Vjp, arity, matrix, op, segments, want};
use crate::builder::Builder;
use crate::program::{Origin, Phase, ValueId};
use crate::tensor::{DType, TensorType};

op! {
    /// y = x * keep / (1 - p), keep drawn per element with probability 1 - p. Operands (x `[T, D]`, keys i32 `[S, 2]`,
    /// segments). Bits of element n = position * D + channel of a clip: word n mod 4 of Philox4x32-10 (Salmon et al.,
    /// SC 2011) with key words keys[segment] and counter words (n / 4 low, n / 4 high, op id low, op id high); keep where
    /// bits >= floor(p * 2^32). Rows of no segment are zero.
    Dropout = "dropout" {
        /// probability of dropping
        p: f32,
        /// stable op id
        id: u64,
    }
}

impl OpDef for Dropout {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        matrix(x[0])?;
        let segs = segments(x[2])?;
        want(x[1].dtype == DType::I32 && *x[1].shape == [segs, 2], "keys are not i32[S, 2]")?;
        want((0.0..1.0).contains(&self.p), "p is not in 0..1")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        // Linear in x, and its own adjoint: the mask is drawn again, not kept.
        Ok(vec![v.dy0().map(|dy| b.push1(self.clone(), &[dy, v.x[1], v.x[2]])), None, None])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        12.0 * x[0].shape.elements() as f64
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

impl Builder<'_> {
    /// Dropout; the op id comes from the provenance path.
    pub fn dropout(&mut self, x: ValueId, p: f32, keys: ValueId, segs: ValueId) -> ValueId {
        let id = Origin { path: self.path(Dropout::NAME), phase: Phase::Forward }.op_id();
        self.push1(Dropout { p, id }, &[x, keys, segs])
    }
}
