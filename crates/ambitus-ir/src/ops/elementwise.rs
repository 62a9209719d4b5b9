//! Elementwise core ops.

use super::attr::words;
use super::parts::Cut;
use super::{Grads, Op, OpDef, Vjp, arity, op, scalar, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

words! {
    /// Functions of one number.
    UnaryKind {
        /// -x
        Neg = "neg",
        /// e^x
        Exp = "exp",
        /// natural logarithm
        Log = "log",
        /// square root
        Sqrt = "sqrt",
        /// 1 / square root
        Rsqrt = "rsqrt",
        /// hyperbolic tangent
        Tanh = "tanh",
        /// sine
        Sin = "sin",
        /// cosine
        Cos = "cos",
        /// error function
        Erf = "erf",
        /// 1 where finite, else 0
        IsFinite = "is_finite",
    }
}

words! {
    /// Functions of two numbers. Comparisons give 1 or 0.
    BinaryKind {
        /// a + b
        Add = "add",
        /// a - b
        Sub = "sub",
        /// a * b
        Mul = "mul",
        /// a / b
        Div = "div",
        /// larger of the two
        Max = "max",
        /// smaller of the two
        Min = "min",
        /// a < b
        Less = "less",
        /// a == b
        Equal = "equal",
    }
}

op! {
    /// y = f(x), element by element. Float types only.
    Unary = "unary" {
        /// which function
        kind: UnaryKind,
    }
}

impl OpDef for Unary {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        want(x[0].dtype.is_float(), "takes a float")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None]) };
        let (x, y) = (v.x[0], v.y[0]);
        let dx = match self.kind {
            UnaryKind::Neg => b.unary(UnaryKind::Neg, dy),
            UnaryKind::Exp => b.mul(dy, y),
            UnaryKind::Log => b.div(dy, x),
            UnaryKind::Sqrt => {
                let half = b.fill_like(y, 0.5);
                let r = b.div(half, y);
                b.mul(dy, r)
            }
            UnaryKind::Rsqrt => {
                // f = x^-1/2, f' = -1/2 f^3
                let c = b.fill_like(y, -0.5);
                let y2 = b.mul(y, y);
                let y3 = b.mul(y2, y);
                let d = b.mul(c, y3);
                b.mul(dy, d)
            }
            UnaryKind::Tanh => {
                let one = b.fill_like(y, 1.0);
                let y2 = b.mul(y, y);
                let d = b.sub(one, y2);
                b.mul(dy, d)
            }
            UnaryKind::Sin => {
                let d = b.unary(UnaryKind::Cos, x);
                b.mul(dy, d)
            }
            UnaryKind::Cos => {
                let s = b.unary(UnaryKind::Sin, x);
                let d = b.unary(UnaryKind::Neg, s);
                b.mul(dy, d)
            }
            UnaryKind::Erf => {
                // f' = 2/sqrt(pi) e^(-x^2)
                let c = b.fill_like(x, std::f32::consts::FRAC_2_SQRT_PI);
                let x2 = b.mul(x, x);
                let n = b.unary(UnaryKind::Neg, x2);
                let e = b.unary(UnaryKind::Exp, n);
                let d = b.mul(c, e);
                b.mul(dy, d)
            }
            UnaryKind::IsFinite => return Ok(vec![None]),
        };
        Ok(vec![Some(dx)])
    }

    fn narrows(&self, _: usize) -> bool {
        self.kind == UnaryKind::Neg
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// y = f(a, b), element by element on equal types.
    Binary = "binary" {
        /// which function
        kind: BinaryKind,
    }
}

impl OpDef for Binary {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        want(x[0] == x[1], "operands differ in type or shape; broadcast explicitly")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None, None]) };
        let (p, q) = (v.x[0], v.x[1]);
        let mut grad = |k: usize| -> Option<ValueId> {
            if !v.need[k] {
                return None;
            }
            Some(match (self.kind, k) {
                (BinaryKind::Add, _) | (BinaryKind::Sub, 0) => dy,
                (BinaryKind::Sub, _) => b.unary(UnaryKind::Neg, dy),
                (BinaryKind::Mul, 0) => b.mul(dy, q),
                (BinaryKind::Mul, _) => b.mul(dy, p),
                (BinaryKind::Div, 0) => b.div(dy, q),
                (BinaryKind::Div, _) => {
                    // d(p/q)/dq = -y/q
                    let r = b.div(v.y[0], q);
                    let n = b.unary(UnaryKind::Neg, r);
                    b.mul(dy, n)
                }
                (BinaryKind::Max | BinaryKind::Min, _) => {
                    // All of it goes to the operand that won; ties to the second.
                    let less = b.binary(BinaryKind::Less, p, q);
                    let zero = b.fill_like(dy, 0.0);
                    let first_wins = (self.kind == BinaryKind::Min) == (k == 0);
                    if first_wins { b.select(less, dy, zero) } else { b.select(less, zero, dy) }
                }
                (BinaryKind::Less | BinaryKind::Equal, _) => return None,
            })
        };
        let da = grad(0);
        let db = grad(1);
        Ok(vec![da, db])
    }

    fn narrows(&self, _: usize) -> bool {
        !matches!(self.kind, BinaryKind::Div | BinaryKind::Less | BinaryKind::Equal)
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0), (1, 0)]
    }
}

op! {
    /// y = a where c != 0, else b. Never an arithmetic blend: 0 * NaN is NaN.
    Select = "select" {}
}

impl OpDef for Select {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        want(x[1] == x[2], "branches differ in type or shape")?;
        want(x[0].shape == x[1].shape, "condition and branches differ in shape")?;
        Ok(vec![x[1]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 3]) };
        let zero = b.fill_like(dy, 0.0);
        let da = b.select(v.x[0], dy, zero);
        let db = b.select(v.x[0], zero, dy);
        Ok(vec![None, Some(da), Some(db)])
    }

    fn narrows(&self, k: usize) -> bool {
        k > 0
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(1, 0), (2, 0)]
    }
}

op! {
    /// y = x as another element type; floats to i32 truncate.
    Cast = "cast" {
        /// result type
        to: DType,
    }
}

impl OpDef for Cast {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        Ok(vec![TensorType::new(self.to, &x[0].shape)])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let to = b.ty(v.x[0]).dtype;
        if !to.is_float() {
            return Ok(vec![None]);
        }
        Ok(vec![v.dy0().map(|dy| b.as_dtype(dy, to))])
    }

    fn conducts(&self) -> bool {
        true
    }

    fn cut(&self) -> Option<Cut> {
        Some(Cut { again: true, ..Cut::by_element(&[0], &[0]) })
    }
}

op! {
    /// A value filled with one number. For mathematics (zeros, halves), never for hyper-parameters: those are inputs.
    Fill = "fill" {
        /// the number
        value: f32,
        /// element type
        dtype: DType,
        /// axes
        shape: crate::tensor::Shape,
    }
}

impl OpDef for Fill {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 0)?;
        Ok(vec![TensorType::new(self.dtype, &self.shape)])
    }
}

op! {
    /// y = x * s with a scalar s `[1]`.
    Scale = "scale" {}
}

impl OpDef for Scale {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        scalar(x[1])?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 2]) };
        want(!v.need[1], "scale has no gradient for its scalar")?;
        Ok(vec![Some(b.scale(dy, v.x[1])), None])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let s = b.everywhere(x[1], a);
        let y = b.mul(a, s);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

op! {
    /// `y[t, d]` = `x[t, d]` * `m[t]`: x `[T, D]`, m f32 `[T]`.
    ScaleRows = "scale_rows" {}
}

impl OpDef for ScaleRows {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        let (rows, _) = super::matrix(x[0])?;
        want(*x[1].shape == [rows], "one factor per row is needed")?;
        Ok(vec![x[0]])
    }

    fn vjp(&self, b: &mut Builder<'_>, v: &Vjp<'_>) -> Result<Grads, String> {
        let Some(dy) = v.dy0() else { return Ok(vec![None; 2]) };
        let dx = v.need[0].then(|| b.scale_rows(dy, v.x[1]));
        let dm = v.need[1].then(|| {
            let (dy, x) = (b.as_f32(dy), b.as_f32(v.x[0]));
            let p = b.mul(dy, x);
            let rows = b.dim(p, 0);
            let s = b.reduce(super::reduce::ReduceKind::Sum, p, 1);
            b.reshape(s, &[rows])
        });
        Ok(vec![dx, dm])
    }

    fn decompose(&self, b: &mut Builder<'_>, x: &[ValueId]) -> Option<Vec<ValueId>> {
        let a = b.as_f32(x[0]);
        let m = b.each_column(x[1], a);
        let y = b.mul(a, m);
        Some(vec![b.as_like(y, x[0])])
    }

    fn narrows(&self, k: usize) -> bool {
        k == 0
    }

    fn may_share(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }
}

impl Builder<'_> {
    /// f(x).
    pub fn unary(&mut self, kind: UnaryKind, x: ValueId) -> ValueId {
        self.push1(Unary { kind }, &[x])
    }
    /// f(x, y).
    pub fn binary(&mut self, kind: BinaryKind, x: ValueId, y: ValueId) -> ValueId {
        self.push1(Binary { kind }, &[x, y])
    }
    /// x + y.
    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(BinaryKind::Add, x, y)
    }
    /// x - y.
    pub fn sub(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(BinaryKind::Sub, x, y)
    }
    /// x * y.
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(BinaryKind::Mul, x, y)
    }
    /// x / y.
    pub fn div(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(BinaryKind::Div, x, y)
    }
    /// `a` where `c` is not zero, else `b`.
    pub fn select(&mut self, c: ValueId, a: ValueId, b: ValueId) -> ValueId {
        self.push1(Select {}, &[c, a, b])
    }
    /// `x` as another element type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> ValueId {
        self.push1(Cast { to }, &[x])
    }
    /// Returns a value of `ty` filled with one number.
    pub fn fill(&mut self, ty: TensorType, value: f32) -> ValueId {
        self.push1(Fill { value, dtype: ty.dtype, shape: ty.shape }, &[])
    }
    /// Returns a value like `x` filled with one number.
    pub fn fill_like(&mut self, x: ValueId, value: f32) -> ValueId {
        let ty = self.ty(x);
        self.fill(ty, value)
    }
    /// x * s, s `[1]`.
    pub fn scale(&mut self, x: ValueId, s: ValueId) -> ValueId {
        self.push1(Op::from(Scale {}), &[x, s])
    }
    /// x `[T, D]` times m `[T]` per row.
    pub fn scale_rows(&mut self, x: ValueId, m: ValueId) -> ValueId {
        self.push1(ScaleRows {}, &[x, m])
    }
}
