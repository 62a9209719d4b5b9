use super::*;
use crate::cpu::kernels::segment;
use crate::cpu::kernels::testing::{Rng, check};

/// Sums of up to a few thousand fp32 products of order 1.
const TOL: f32 = 5e-5;

fn verify(rng: &mut Rng, spec: Conv1d, rows: usize, seg: &[i32]) {
    let (ci, co) = spec.per_group();
    let k = spec.kernel;
    let (x, dy) = (rng.vec(rows * spec.cin), rng.vec(rows * spec.cout));
    let (w, bias, dw0) = (rng.vec(spec.weights()), rng.vec(spec.cout), rng.vec(spec.weights()));
    let mut y = vec![0f64; rows * spec.cout];
    let mut dx = vec![0f64; rows * spec.cin];
    let mut dw: Vec<f64> = dw0.iter().map(|&v| 0.5 * v as f64).collect();
    for s in 0..seg.len() - 1 {
        let inside = segment(seg, s);
        for t in inside.clone() {
            for (o, &b) in bias.iter().enumerate() {
                let yo = t * spec.cout + o;
                y[yo] += b as f64;
                for c in 0..ci {
                    for j in 0..k {
                        let from = t as isize + j as isize - spec.pad_left as isize;
                        if from < inside.start as isize || from >= inside.end as isize {
                            continue;
                        }
                        let xi = from as usize * spec.cin + o / co * ci + c;
                        let wi = (o * ci + c) * k + j;
                        y[yo] += x[xi] as f64 * w[wi] as f64;
                        dx[xi] += dy[yo] as f64 * w[wi] as f64;
                        dw[wi] += dy[yo] as f64 * x[xi] as f64;
                    }
                }
            }
        }
    }
    let want: Vec<f32> = [y, dx, dw].concat().iter().map(|&v| v as f32).collect();
    check(&want, TOL, &format!("{spec:?} {seg:?}"), |pool| {
        let mut y = vec![f32::NAN; rows * spec.cout];
        let (mut dx, mut dw) = (vec![f32::NAN; rows * spec.cin], dw0.clone());
        let mut ws = vec![f32::NAN; conv1d_workspace(&spec, rows, seg.len() - 1, pool.threads())];
        let (xm, dym) = (Mat::dense(&x, rows, spec.cin), Mat::dense(&dy, rows, spec.cout));
        let ym = MatMut::dense(&mut y, rows, spec.cout);
        conv1d(pool, xm, seg, &w, Some(&bias), &spec, ym, &mut ws);
        let dxm = MatMut::dense(&mut dx, rows, spec.cin);
        conv1d_grad_input(pool, dym, seg, &w, &spec, dxm, &mut ws);
        conv1d_grad_weight(pool, xm, dym, seg, &spec, 0.5, &mut dw, &mut ws);
        [y, dx, dw].concat()
    });
}

#[test]
fn grouped_and_dense() {
    let mut rng = Rng::new(61);
    for (cin, cout, groups, kernel, pad_left) in
        [(64, 64, 2, 31, 15), (6, 9, 3, 4, 0), (5, 3, 1, 3, 2), (40, 80, 1, 9, 4), (12, 12, 6, 1, 0)]
    {
        let spec = Conv1d { cin, cout, groups, kernel, pad_left };
        verify(&mut rng, spec, 60, &[0, 0, 2, 41, 41, 55]);
    }
    let spec = Conv1d { cin: 4, cout: 70, groups: 1, kernel: 5, pad_left: 2 };
    verify(&mut rng, spec, 620, &[0, 600, 610]);
}

#[test]
fn short_segments_go_together() {
    let mut rng = Rng::new(64);
    // Of 7, 0, 7, 0, ... rows.
    let seg: Vec<i32> = (0..=80).map(|s| (s + 1) / 2 * 7).collect();
    for (cin, cout, groups, kernel, pad_left) in [(6, 40, 2, 5, 2), (120, 70, 1, 5, 2), (12, 8, 4, 11, 9)] {
        verify(&mut rng, Conv1d { cin, cout, groups, kernel, pad_left }, 290, &seg);
    }
}

#[test]
fn depthwise() {
    let mut rng = Rng::new(62);
    for (c, kernel, pad_left) in [(37, 7, 3), (16, 3, 2), (3, 4, 0)] {
        let spec = Conv1d { cin: c, cout: c, groups: c, kernel, pad_left };
        verify(&mut rng, spec, 200, &[0, 0, 2, 141, 141, 190]);
    }
}

#[test]
fn no_segments() {
    let spec = Conv1d { cin: 4, cout: 4, groups: 2, kernel: 3, pad_left: 1 };
    verify(&mut Rng::new(63), spec, 5, &[0]);
}
