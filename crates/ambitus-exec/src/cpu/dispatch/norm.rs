//! Activations and normalisations.

use super::{Resolved, kernel, segments, small, widened};
use crate::cpu::core_ops::in_place;
use crate::cpu::core_ops::narrow::{self, Operand};
use crate::cpu::kernels::{self as k, Mat, MatMut};
use crate::cpu::operand::{Io, Source, half};
use crate::cpu::types::Types;
use ambitus_ir::ops::activation::{Activation, ActivationGrad, ActivationKind};
use ambitus_ir::ops::norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};

fn act(kind: ActivationKind) -> k::Act {
    match kind {
        ActivationKind::GeluErf => k::Act::GeluErf,
        ActivationKind::GeluTanh => k::Act::GeluTanh,
        ActivationKind::Silu => k::Act::Silu,
        ActivationKind::Mish => k::Act::Mish,
        ActivationKind::Elu => k::Act::Elu,
    }
}

/// Returns a piece as a matrix of one row.
pub fn row(data: &[f32]) -> Mat<'_> {
    Mat::dense(data, 1, data.len())
}

fn row_mut(data: &mut [f32]) -> MatMut<'_> {
    let cols = data.len();
    MatMut::dense(data, 1, cols)
}

/// Returns the piece of an operand at `at`: its own, or the staged one where it is overwritten.
fn part<'a>(data: Option<&'a [f32]>, at: usize, staged: &'a [f32]) -> Mat<'a> {
    row(data.map_or(staged, |d| &d[at..][..staged.len()]))
}

pub fn activation(op: &Activation, mut io: Io) -> Resolved {
    let (act, x, mut y) = (act(op.kind), io.source(0, 0)?, io.y(0));
    if half(y.ty()).is_some() {
        return kernel(move |f| {
            narrow::staged(f.pool, [Operand::new(x.rows(f), 0)], [y.rows(f)], |_, [x], [y]| {
                k::activation(f.one, act, row(x), row_mut(y));
            });
        });
    }
    match x {
        Source::In(x) => kernel(move |f| k::activation(f.pool, act, x.mat(f), y.mat(f))),
        Source::Result => kernel(move |f| {
            in_place::staged(f.pool, y.ty(), y.data(f), |_, old, new| {
                k::activation(f.one, act, row(old), row_mut(new));
            });
        }),
    }
}

pub fn activation_grad(op: &ActivationGrad, mut io: Io) -> Resolved {
    let (act, x, dy) = (act(op.kind), io.source(0, 0)?, io.source(1, 0)?);
    let mut dx = io.y(0);
    if half(dx.ty()).is_some() {
        return kernel(move |f| {
            let x = [Operand::new(x.rows(f), 0), Operand::new(dy.rows(f), 0)];
            narrow::staged(f.pool, x, [dx.rows(f)], |_, [x, dy], [dx]| {
                k::activation_grad(f.one, act, row(x), row(dy), row_mut(dx));
            });
        });
    }
    match (x, dy) {
        (Source::In(x), Source::In(dy)) => {
            kernel(move |f| k::activation_grad(f.pool, act, x.mat(f), dy.mat(f), dx.mat(f)))
        }
        (x, dy) => kernel(move |f| {
            let (x, dy) = (x.data(f), dy.data(f));
            in_place::staged(f.pool, dx.ty(), dx.data(f), |at, old, new| {
                k::activation_grad(f.one, act, part(x, at, old), part(dy, at, old), row_mut(new));
            });
        }),
    }
}

pub fn swiglu(mut io: Io) -> Resolved {
    let (a, b, mut y) = (io.source(0, 0)?, io.source(1, 0)?, io.y(0));
    if half(y.ty()).is_some() {
        return kernel(move |f| {
            let x = [Operand::new(a.rows(f), 0), Operand::new(b.rows(f), 0)];
            narrow::staged(f.pool, x, [y.rows(f)], |_, [a, b], [y]| {
                k::swiglu(f.one, row(a), row(b), row_mut(y));
            });
        });
    }
    match (a, b) {
        (Source::In(a), Source::In(b)) => kernel(move |f| k::swiglu(f.pool, a.mat(f), b.mat(f), y.mat(f))),
        (a, b) => kernel(move |f| {
            let (a, b) = (a.data(f), b.data(f));
            in_place::staged(f.pool, y.ty(), y.data(f), |at, old, new| {
                k::swiglu(f.one, part(a, at, old), part(b, at, old), row_mut(new));
            });
        }),
    }
}

pub fn swiglu_grad(mut io: Io) -> Resolved {
    let (a, b, dy) = (io.source(0, 0)?, io.source(1, 1)?, io.x(2)?);
    let (mut da, mut db) = (io.y(0), io.y(1));
    if half(da.ty()).is_some() {
        return kernel(move |f| {
            let x = [Operand::new(a.rows(f), 0), Operand::new(b.rows(f), 1), Operand::Of(dy.rows(f))];
            narrow::staged(f.pool, x, [da.rows(f), db.rows(f)], |_, [a, b, dy], [da, db]| {
                k::swiglu_grad(f.one, row(a), row(b), row(dy), row_mut(da), row_mut(db));
            });
        });
    }
    match (a, b) {
        (Source::In(a), Source::In(b)) => kernel(move |f| {
            k::swiglu_grad(f.pool, a.mat(f), b.mat(f), dy.mat(f), da.mat(f), db.mat(f));
        }),
        (a, b) => kernel(move |f| {
            let (ty, a, b, dy) = (da.ty(), a.data(f), b.data(f), dy.data(f));
            in_place::staged_pair(f.pool, ty, da.data(f), db.data(f), |at, old, [da, db]| {
                let (a, b) = (part(a, at, old[0]), part(b, at, old[1]));
                let dy = row(&dy[at..][..da.len()]);
                k::swiglu_grad(f.one, a, b, dy, row_mut(da), row_mut(db));
            });
        }),
    }
}

pub fn snake(mut io: Io) -> Resolved {
    let (x, a, mut y) = (io.source(0, 0)?, io.x(1)?, io.y(0));
    match x {
        Source::In(x) => kernel(move |f| k::snake(f.pool, Some(x.mat(f)), a.vec(f), y.mat(f))),
        Source::Result => kernel(move |f| k::snake(f.pool, None, a.vec(f), y.mat(f))),
    }
}

pub fn layer_norm(op: &LayerNorm, mut io: Io) -> Resolved {
    let (eps, x, gamma, beta, mut y) = (op.eps, io.x(0)?, io.x(1)?, io.x(2)?, io.y(0));
    let mut ws = io.ws();
    kernel(move |f| {
        let (gamma, ws) = widened(f, &gamma, ws.data(f));
        let (beta, _) = widened(f, &beta, ws);
        k::layer_norm(f.pool, x.rows(f), Some(gamma.data), Some(beta.data), eps, y.rows(f));
    })
}

pub fn layer_norm_grad(op: &LayerNormGrad, mut io: Io) -> Resolved {
    let (eps, x, gamma, dy) = (op.eps, io.x(0)?, io.x(1)?, io.x(2)?);
    let (mut dx, mut dgamma, mut dbeta, mut ws) = (io.y(0), io.y(1), io.y(2), io.ws());
    kernel(move |f| {
        let (dgamma, dbeta) = (Some(dgamma.vec(f)), Some(dbeta.vec(f)));
        let (gamma, ws) = widened(f, &gamma, ws.data(f));
        let (x, gamma, dy) = (x.rows(f), Some(gamma.data), dy.rows(f));
        k::layer_norm_grad(f.pool, x, gamma, eps, dy, dx.rows(f), 0.0, dgamma, dbeta, ws);
    })
}

/// Returns the floats of scratch of [`layer_norm_grad`].
pub fn layer_norm_grad_workspace(t: Types<'_>) -> usize {
    small(t.x[1]) + k::layer_norm_grad_workspace(t.x[0].shape.rows(), t.x[0].shape.cols())
}

pub fn rms_norm(op: &RmsNorm, mut io: Io) -> Resolved {
    let (eps, x, gamma, mut y, mut ws) = (op.eps, io.x(0)?, io.x(1)?, io.y(0), io.ws());
    kernel(move |f| {
        let (gamma, _) = widened(f, &gamma, ws.data(f));
        k::rms_norm(f.pool, x.rows(f), gamma.data, eps, y.rows(f));
    })
}

pub fn rms_norm_grad(op: &RmsNormGrad, mut io: Io) -> Resolved {
    let (eps, x, gamma, dy) = (op.eps, io.x(0)?, io.x(1)?, io.x(2)?);
    let (mut dx, mut dgamma, mut ws) = (io.y(0), io.y(1), io.ws());
    kernel(move |f| {
        let (gamma, ws) = widened(f, &gamma, ws.data(f));
        let (x, gamma, dy, dgamma) = (x.rows(f), gamma.data, dy.rows(f), Some(dgamma.vec(f)));
        k::rms_norm_grad(f.pool, x, gamma, eps, dy, dx.rows(f), 0.0, dgamma, ws);
    })
}

/// Returns the floats of scratch of [`rms_norm_grad`].
pub fn rms_norm_grad_workspace(t: Types<'_>) -> usize {
    small(t.x[1]) + k::rms_norm_grad_workspace(t.x[0].shape.rows(), t.x[0].shape.cols())
}

/// The only eps that the kernels of GRN know.
pub const GRN_EPS: f32 = 1e-6;

pub fn grn(mut io: Io) -> Resolved {
    let (x, gamma, beta, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut y, mut ws) = (io.y(0), io.ws());
    kernel(move |f| {
        let (gamma, beta) = (gamma.vec(f), beta.vec(f));
        k::grn(f.pool, x.mat(f), seg.ints(f), gamma, beta, y.mat(f), ws.data(f));
    })
}

/// Returns the floats of scratch of [`grn`] and of its gradient.
pub fn grn_workspace(t: Types<'_>) -> usize {
    k::grn_workspace(t.x[0].shape.rows(), segments(t.x[3]), t.x[0].shape.cols())
}

pub fn grn_grad(mut io: Io) -> Resolved {
    let (x, gamma, dy, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (mut dx, mut dgamma, mut dbeta, mut ws) = (io.y(0), io.y(1), io.y(2), io.ws());
    kernel(move |f| {
        let (x, seg, gamma, dy) = (x.mat(f), seg.ints(f), gamma.vec(f), dy.mat(f));
        let (dx, dgamma, dbeta) = (dx.mat(f), dgamma.vec(f), dbeta.vec(f));
        k::grn_grad(f.pool, x, seg, gamma, dy, dx, 0.0, dgamma, dbeta, ws.data(f));
    })
}
