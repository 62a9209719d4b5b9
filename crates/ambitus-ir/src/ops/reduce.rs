//! Reductions.

use super::attr::words;
use super::{Grads, OpDef, Vjp, arity, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

words! {
    /// How elements are combined.
    ReduceKind {
        /// Sum, in fp32 over fixed tiles; the result is f32.
        Sum = "sum",
        /// Largest.
        Max = "max",
    }
}

op! {
    /// Combines the elements along one axis, which keeps length 1.
    Reduce = "reduce" {
        /// sum or max
        kind: ReduceKind,
        /// the axis that becomes 1
        axis: usize,
    }
}

impl OpDef for Reduce {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(self.axis < x[0].shape.len(), "no such axis")?;
        let mut dims = x[0].shape.to_vec();
        dims[self.axis] = 1;
        // Sums of integers are theirs.
        let sums = self.kind == ReduceKind::Sum && x[0].dtype.is_float();
        let dtype = if sums { DType::F32 } else { x[0].dtype };
        Ok(vec![TensorType::new(dtype, &dims)])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        want(self.kind == ReduceKind::Sum, "max has no gradient here")?;
        let shape = b.ty(v.x[0]).shape;
        Ok(vec![v.dy0().map(|dy| b.broadcast(dy, &shape))])
    }

    fn flops(&self, x: &[TensorType], _: &[TensorType]) -> f64 {
        x[0].shape.elements() as f64
    }
}

impl Builder<'_> {
    /// Combines along `axis`, which keeps length 1.
    pub fn reduce(&mut self, kind: ReduceKind, x: ValueId, axis: usize) -> ValueId {
        self.push1(Reduce { kind, axis }, &[x])
    }

    /// Returns the sum over rows: x `[T, D]` to f32 `[D]`.
    pub fn column_sum(&mut self, x: ValueId) -> ValueId {
        let cols = self.dim(x, 1);
        let sum = self.reduce(ReduceKind::Sum, x, 0);
        self.reshape(sum, &[cols])
    }
}
