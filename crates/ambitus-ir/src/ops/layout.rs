//! Core ops that move elements without arithmetic.

use super::reduce::ReduceKind;
use super::{Grads, OpDef, Vjp, arity, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, Shape, TensorType};

op! {
    /// The same elements in row-major order under other axes.
    Reshape = "reshape" {
        /// new axes
        shape: Shape,
    }
}

impl OpDef for Reshape {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(self.shape.elements() == x[0].shape.elements(), "element counts differ")?;
        Ok(vec![x[0].with_shape(&self.shape)])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let shape = b.ty(v.x[0]).shape;
        Ok(vec![v.dy0().map(|dy| b.reshape(dy, &shape))])
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// y's axis i is x's axis `axes[i]`.
    Permute = "permute" {
        /// source axis of each result axis
        axes: Shape,
    }
}

impl OpDef for Permute {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        let rank = x[0].shape.len();
        let mut seen = self.axes.to_vec();
        seen.sort_unstable();
        want(seen.iter().copied().eq(0..rank), "axes are not a permutation")?;
        let dims: Vec<usize> = self.axes.iter().map(|&a| x[0].shape[a]).collect();
        Ok(vec![x[0].with_shape(&dims)])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let mut back = vec![0; self.axes.len()];
        for (i, &a) in self.axes.iter().enumerate() {
            back[a] = i;
        }
        Ok(vec![v.dy0().map(|dy| b.permute(dy, &back))])
    }
}

op! {
    /// Repeats axes of length 1 to the given lengths.
    Broadcast = "broadcast" {
        /// result axes
        shape: Shape,
    }
}

impl OpDef for Broadcast {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        let same_rank = x[0].shape.len() == self.shape.len();
        let fits = x[0].shape.iter().zip(self.shape.iter()).all(|(a, b)| a == b || *a == 1);
        want(same_rank && fits, "only axes of length 1 are repeated")?;
        Ok(vec![x[0].with_shape(&self.shape)])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(mut dy) = v.dy0() else { return Ok(vec![None]) };
        let from = b.ty(v.x[0]).shape;
        for axis in 0..from.len() {
            if from[axis] != self.shape[axis] {
                dy = b.reduce(ReduceKind::Sum, dy, axis);
            }
        }
        Ok(vec![Some(dy)])
    }
}

op! {
    /// y = `x[.., start .. start+len, ..]` along one axis.
    Slice = "slice" {
        /// sliced axis
        axis: usize,
        /// first index
        start: usize,
        /// length
        len: usize,
    }
}

impl OpDef for Slice {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(self.axis < x[0].shape.len(), "no such axis")?;
        want(self.start + self.len <= x[0].shape[self.axis], "slice past the end")?;
        let mut dims = x[0].shape.to_vec();
        dims[self.axis] = self.len;
        Ok(vec![x[0].with_shape(&dims)])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None]) };
        let ty = TensorType { dtype: b.ty(dy).dtype, ..b.ty(v.x[0]) };
        let mut parts = Vec::new();
        let zeros = |b: &mut Builder<'_>, len: usize| {
            let mut dims = ty.shape.to_vec();
            dims[self.axis] = len;
            (len > 0).then(|| b.fill(ty.with_shape(&dims), 0.0))
        };
        parts.extend(zeros(b, self.start));
        parts.push(dy);
        parts.extend(zeros(b, ty.shape[self.axis] - self.start - self.len));
        Ok(vec![Some(b.concat(&parts, self.axis))])
    }
}

op! {
    /// Operands one after another along one axis.
    Concat = "concat" {
        /// joined axis
        axis: usize,
    }
}

impl OpDef for Concat {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        want(!x.is_empty(), "needs an operand")?;
        want(self.axis < x[0].shape.len(), "no such axis")?;
        let mut dims = x[0].shape.to_vec();
        dims[self.axis] = 0;
        for t in x {
            want(t.dtype == x[0].dtype && t.shape.len() == dims.len(), "operands differ in type")?;
            let others = (0..dims.len()).all(|a| a == self.axis || t.shape[a] == dims[a]);
            want(others, "operands differ in another axis")?;
            dims[self.axis] += t.shape[self.axis];
        }
        Ok(vec![x[0].with_shape(&dims)])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; v.x.len()]) };
        let mut start = 0;
        let mut grads = Vec::new();
        for (x, need) in v.x.iter().zip(v.need) {
            let len = b.dim(*x, self.axis);
            grads.push(need.then(|| b.slice(dy, self.axis, start, len)));
            start += len;
        }
        Ok(grads)
    }
}

op! {
    /// y = `x[.., n - 1 - i, ..]` at index i of one axis, n long: the elements of any type in reverse order.
    Reverse = "reverse" {
        /// reversed axis
        axis: usize,
    }
}

impl OpDef for Reverse {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(self.axis < x[0].shape.len(), "no such axis")?;
        Ok(vec![x[0]])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn conducts(&self) -> bool {
        true
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        Ok(vec![v.dy0().map(|dy| b.reverse(dy, self.axis))])
    }
}

op! {
    /// x, as a constant: no gradient flows on to it.
    Detach = "detach" {}
}

impl OpDef for Detach {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        Ok(vec![x[0]])
    }

    fn narrows(&self, _: usize) -> bool {
        true
    }

    fn detaches(&self) -> bool {
        true
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// 0, 1, 2, ... along one axis, repeated over the others.
    Iota = "iota" {
        /// counting axis
        axis: usize,
        /// element type
        dtype: DType,
        /// axes
        shape: Shape,
    }
}

impl OpDef for Iota {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 0)?;
        want(self.axis < self.shape.len(), "no such axis")?;
        Ok(vec![TensorType::new(self.dtype, &self.shape)])
    }
}

impl Builder<'_> {
    /// Returns the same elements under other axes.
    pub fn reshape(&mut self, x: ValueId, dims: &[usize]) -> ValueId {
        if *self.ty(x).shape == *dims {
            return x;
        }
        self.push1(Reshape { shape: Shape::new(dims) }, &[x])
    }
    /// Axes reordered.
    pub fn permute(&mut self, x: ValueId, axes: &[usize]) -> ValueId {
        self.push1(Permute { axes: Shape::new(axes) }, &[x])
    }
    /// Axes of length 1 repeated.
    pub fn broadcast(&mut self, x: ValueId, dims: &[usize]) -> ValueId {
        if *self.ty(x).shape == *dims {
            return x;
        }
        self.push1(Broadcast { shape: Shape::new(dims) }, &[x])
    }
    /// Returns a range along one axis.
    pub fn slice(&mut self, x: ValueId, axis: usize, start: usize, len: usize) -> ValueId {
        self.push1(Slice { axis, start, len }, &[x])
    }
    /// Returns the values joined along one axis.
    pub fn concat(&mut self, xs: &[ValueId], axis: usize) -> ValueId {
        if let [x] = xs {
            return *x;
        }
        self.push1(Concat { axis }, xs)
    }
    /// Returns the value as a constant, to which no gradient flows.
    pub fn detach(&mut self, x: ValueId) -> ValueId {
        self.push1(Detach {}, &[x])
    }
    /// Returns the elements in reverse order along one axis.
    pub fn reverse(&mut self, x: ValueId, axis: usize) -> ValueId {
        self.push1(Reverse { axis }, &[x])
    }
    /// 0, 1, 2, ... along `axis`.
    pub fn iota(&mut self, dtype: DType, dims: &[usize], axis: usize) -> ValueId {
        self.push1(Iota { axis, dtype, shape: Shape::new(dims) }, &[])
    }
}
