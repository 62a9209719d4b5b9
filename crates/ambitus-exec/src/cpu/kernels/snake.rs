//! The snake activation: x + sin²(a x) / (a + 1e-9), a per channel (Ziyin et al., arXiv 2006.08195).

use super::map::{Map, map_slices};
use super::math::sin_cos;
use super::simd::Simd;
use super::{Mat, MatMut, Pool};

/// Elements per task.
const CHUNK: usize = 16 * 1024;
/// Keeps a frequency of 0 finite, as the op says.
const EPS: f32 = 1e-9;

/// `out = snake(x)` with one frequency per column; without x, of out's old values. The same bits either way.
pub fn snake(pool: &Pool, x: Option<Mat>, frequencies: &[f32], out: MatMut) {
    let (rows, cols) = (out.rows, out.cols);
    assert!(x.is_none_or(|x| (x.rows, x.cols) == (rows, cols)), "operand and result differ in shape");
    let (isa, a) = (pool.isa(), &frequencies[..cols]);
    let per_task = (CHUNK / cols.max(1)).max(1);
    pool.run(rows.div_ceil(per_task), |i| {
        for r in i * per_task..rows.min((i + 1) * per_task) {
            // SAFETY: one task per row.
            let out = unsafe { out.row_shared(r) };
            match x {
                Some(x) => map_slices(isa, &Snake, [a, x.row(r)], [out]),
                None => map_slices(isa, &Snake, [a], [out]),
            }
        }
    });
}

struct Snake;

#[inline(always)]
fn snaked<S: Simd>(s: S, a: S::V, x: S::V) -> S::V {
    let sine = sin_cos(s, s.mul(a, x)).0;
    s.add(x, s.div(s.mul(sine, sine), s.add(a, s.splat(EPS))))
}

impl Map<2, 1> for Snake {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [a, x]: [S::V; 2], _: [S::V; 1]) -> [S::V; 1] {
        [snaked(s, a, x)]
    }
}

impl Map<1, 1> for Snake {
    const UPDATES: bool = true;
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, [a]: [S::V; 1], [x]: [S::V; 1]) -> [S::V; 1] {
        [snaked(s, a, x)]
    }
}
