//! Cases of splines.

use super::{Operand, Table, constant, numbers};
use ambitus_ir::ops::spline::{RationalSpline, RationalSplineGrad};

/// Operands (x `[T]`, params `[T, 3B - 1]`): x reaches beyond the bounds, and its first rows are in the first bin, in the last one and outside
/// on either side.
fn operands(t: &mut Table, rows: usize, bins: usize, bound: f64, free: f64) -> Vec<Operand> {
    let mut x = t.within(&[rows], -1.2 * bound, 1.2 * bound);
    let ends = [-0.9995, 0.9995, -1.125, 1.375].map(|share| f64::from((share * bound) as f32));
    x.tensor.data.iter_mut().zip(ends).for_each(|(x, end)| *x = end);
    vec![x, t.within(&[rows, 3 * bins - 1], -free, free)]
}

/// Adds cases of the curve, of its inverse and of its gradient. Only where parameters are small are bins so wide that differences tell a
/// gradient.
fn all(t: &mut Table, what: &str, (rows, bins, bound): (usize, usize, f32), free: f64) {
    let mut x = operands(t, rows, bins, bound.into(), free);
    if free > 1.0 {
        x.iter_mut().for_each(|x| x.differentiable = false);
    }
    t.add(what, RationalSpline { bins, bound, inverse: false }, x);
    let still = |x: Vec<Operand>| x.into_iter().map(|x| constant(x.tensor)).collect::<Vec<_>>();
    let x = still(operands(t, rows, bins, bound.into(), free));
    t.add(&format!("{what}, inverse"), RationalSpline { bins, bound, inverse: true }, x.clone());
    let (dy, dlogdet) = (t.fixed(&[rows]), t.fixed(&[rows]));
    t.add(what, RationalSplineGrad { bins, bound }, [x, vec![dy, dlogdet]].concat());
}

pub(super) fn splines(t: &mut Table) {
    all(t, "of ten bins", (37, 10, 5.0), 1.0);
    all(t, "of padded rows", (9, 12, 1.0), 1.0);
    all(t, "of two bins", (7, 2, 3.0), 1.0);
    all(t, "of one bin", (5, 1, 2.0), 1.0);
    all(t, "of steep and narrow bins", (61, 10, 5.0), 40.0);
    all(t, "of many rows", (301, 10, 5.0), 3.0);

    // Bins of one width: on each knot, where neighbours agree in all but the slope of the logarithm.
    let at: Vec<f32> = (-6..=6).map(|x| x as f32).collect();
    let flat = |rows: usize| numbers(&[rows, 29], &vec![0.0; 29 * rows]);
    for (what, inverse) in [("on knots", false), ("on knots, inverse", true)] {
        let op = RationalSpline { bins: 10, bound: 5.0, inverse };
        t.add(what, op, vec![numbers(&[13], &at), flat(13)]);
    }
    // Around the bounds, by one place of the fraction.
    let at =
        [-5.0f32, -5.0f32.next_up(), -5.0f32.next_down(), 5.0, 5.0f32.next_up(), 5.0f32.next_down(), 1e30];
    let op = RationalSpline { bins: 10, bound: 5.0, inverse: false };
    t.add("at the bounds", op, vec![numbers(&[7], &at), flat(7)]);
    let x = vec![
        numbers(&[7], &at),
        constant(t.within(&[7, 29], -1.0, 1.0).tensor),
        t.fixed(&[7]),
        t.fixed(&[7]),
    ];
    t.add("at the bounds", RationalSplineGrad { bins: 10, bound: 5.0 }, x);
}
