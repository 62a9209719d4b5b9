//! Attention of one query row, as a step of decoding has it: keys and values are read once, where they lie. Packing them costs more
//! than it saves when only one row meets them.

use crate::cpu::kernels::Mat;
use crate::cpu::kernels::simd::{At, Simd, each_vector};

/// Vectors of a result that are summed at once.
const AT_ONCE: usize = 4;

/// Some keys or values of a head: `d` columns from `c` of the rows from `r` on.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a> {
    pub of: Mat<'a>,
    pub r: usize,
    pub c: usize,
    pub d: usize,
}

impl<'a> HeadRows<'a> {
    #[inline(always)]
    fn row(&self, j: usize) -> &'a [f32] {
        &self.of.row(self.r + j)[self.c..][..self.d]
    }
}

/// `line[j] = scale * q · keys[j]`.
#[inline(always)]
pub(super) fn scores<S: Simd>(s: S, q: &[f32], keys: HeadRows, scale: f32, line: &mut [f32]) {
    let q = &q[..keys.d];
    for (j, x) in line.iter_mut().enumerate() {
        let (key, mut sum) = (keys.row(j), s.zero());
        each_vector!(S, keys.d, |at| {
            sum = s.fma(at.load(s, q), at.load(s, key), sum);
        });
        *x = scale * s.sum(sum);
    }
}

/// `out += sum over j of p[j] values[j]`; `set`: not added to anything.
#[inline(always)]
pub(super) fn weighted<S: Simd>(s: S, p: &[f32], values: HeadRows, set: bool, out: &mut [f32]) {
    if set {
        out.fill(0.0);
    }
    let step = AT_ONCE * S::LANES;
    let whole = values.d / step * step;
    for i in (0..whole).step_by(step) {
        let mut sums: [S::V; AT_ONCE] = std::array::from_fn(|v| s.load(&out[i + v * S::LANES..]));
        for (j, p) in p.iter().enumerate() {
            let (value, p) = (&values.row(j)[i..i + step], s.splat(*p));
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = s.fma(p, s.load(&value[v * S::LANES..]), *sum);
            }
        }
        for (v, sum) in sums.into_iter().enumerate() {
            s.store(&mut out[i + v * S::LANES..], sum);
        }
    }
    let out = &mut out[whole..values.d];
    each_vector!(S, out.len(), |at| {
        let mut sum = at.load(s, out);
        for (j, p) in p.iter().enumerate() {
            sum = s.fma(s.splat(*p), at.load(s, &values.row(j)[whole..]), sum);
        }
        at.store(s, out, sum);
    });
}
