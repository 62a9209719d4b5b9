//! Attention of one query row, as a step of decoding has it: keys and values are read once, where they lie. Packing them costs more
//! than it saves when only one row meets them.

use crate::cpu::kernels::Mat;
use crate::cpu::kernels::simd::{Simd, Stored};

/// Vectors of a result that are summed at once.
const AT_ONCE: usize = 4;

/// Some keys or values of a head: `d` columns from `c` of the rows from `r` on.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a, E> {
    pub of: Mat<'a, E>,
    pub r: usize,
    pub c: usize,
    pub d: usize,
}

impl<'a, E: Copy> HeadRows<'a, E> {
    #[inline(always)]
    fn row(&self, j: usize) -> &'a [E] {
        &self.of.row(self.r + j)[self.c..][..self.d]
    }
}

/// `line[j] = scale * q · keys[j]`.
#[inline(always)]
pub(super) fn scores<S: Simd, E: Stored>(s: S, q: &[f32], keys: HeadRows<E>, scale: f32, line: &mut [f32]) {
    let (q, whole) = (&q[..keys.d], keys.d / S::LANES * S::LANES);
    for (j, x) in line.iter_mut().enumerate() {
        let (key, mut sum) = (keys.row(j), s.zero());
        for i in (0..whole).step_by(S::LANES) {
            sum = s.fma(s.load(&q[i..]), E::load(s, &key[i..]), sum);
        }
        if whole < keys.d {
            sum = s.fma(s.load_part(&q[whole..]), E::load_part(s, &key[whole..]), sum);
        }
        *x = scale * s.sum(sum);
    }
}

/// `out += sum over j of p[j] values[j]`; `set`: not added to anything.
#[inline(always)]
pub(super) fn weighted<S: Simd, E: Stored>(s: S, p: &[f32], values: HeadRows<E>, set: bool, out: &mut [f32]) {
    if set {
        out.fill(0.0);
    }
    let mut i = 0;
    while i + AT_ONCE * S::LANES <= values.d {
        columns::<S, E, AT_ONCE>(s, p, values, i, out);
        i += AT_ONCE * S::LANES;
    }
    while i + S::LANES <= values.d {
        columns::<S, E, 1>(s, p, values, i, out);
        i += S::LANES;
    }
    if i < values.d {
        let mut sum = s.load_part(&out[i..values.d]);
        for (j, p) in p.iter().enumerate() {
            sum = s.fma(s.splat(*p), E::load_part(s, &values.row(j)[i..]), sum);
        }
        s.store_part(&mut out[i..values.d], sum);
    }
}

/// N vectors of [`weighted`], from column `i` on.
#[inline(always)]
fn columns<S: Simd, E: Stored, const N: usize>(
    s: S,
    p: &[f32],
    values: HeadRows<E>,
    i: usize,
    out: &mut [f32],
) {
    let mut sums: [S::V; N] = std::array::from_fn(|v| s.load(&out[i + v * S::LANES..]));
    for (j, p) in p.iter().enumerate() {
        let (value, p) = (&values.row(j)[i..], s.splat(*p));
        for (v, sum) in sums.iter_mut().enumerate() {
            *sum = s.fma(p, E::load(s, &value[v * S::LANES..]), *sum);
        }
    }
    for (v, sum) in sums.into_iter().enumerate() {
        s.store(&mut out[i + v * S::LANES..], sum);
    }
}
