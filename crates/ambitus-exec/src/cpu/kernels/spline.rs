//! Monotonic rational-quadratic splines (Durkan et al., Neural Spline Flows, arXiv 1906.04032); the op's page has the formulas, by
//! the names that are used here. A row is computed in f64, as the op says. Its bins are walked over twice, which needs no
//! scratch: once for the sum of the softmax, once up to the bin.

use super::{DisjointMut, Mat, MatMut, Pool};

/// Rows of one task: some tens of exponentials each.
const ROWS: usize = 64;
/// The least share of a bin, and the least slope at an inner knot.
const LEAST: f64 = 1e-3;

/// A spline's attributes.
#[derive(Clone, Copy, Debug)]
pub struct Spline {
    /// B.
    pub bins: usize,
    /// The curve is from -bound to bound.
    pub bound: f32,
}

/// (y, log |dy/dx|) of x `[T]` and params `[T, 3B - 1]`, or of the inverse.
pub fn rational_spline(
    pool: &Pool,
    spline: Spline,
    inverse: bool,
    x: &[f32],
    params: Mat,
    [y, logdet]: [&mut [f32]; 2],
) {
    let rows = spline.check(x, &params);
    assert!(y.len() == rows && logdet.len() == rows, "rational_spline: results");
    let (y, logdet) = (DisjointMut::new(y), DisjointMut::new(logdet));
    pool.run(rows.div_ceil(ROWS), |i| {
        let (start, len) = (i * ROWS, ROWS.min(rows - i * ROWS));
        // SAFETY: one piece per task.
        let (y, logdet) = unsafe { (y.slice(start, len), logdet.slice(start, len)) };
        for (k, (y, logdet)) in y.iter_mut().zip(logdet).enumerate() {
            let t = start + k;
            let (at, log) = match Bin::of(spline, inverse, x[t], params.row(t)) {
                Some(bin) if inverse => bin.inverse(x[t].into()),
                Some(bin) => bin.forward(x[t].into()),
                None => (x[t].into(), 0.0),
            };
            (*y, *logdet) = (at as f32, log as f32);
        }
    });
}

/// (dx `[T]`, dparams `[T, 3B - 1]`) of x `[T]` and params `[T, 3B - 1]` from dy and dlogdet `[T]`.
pub fn rational_spline_grad(
    pool: &Pool,
    spline: Spline,
    x: &[f32],
    params: Mat,
    [dy, dlogdet]: [&[f32]; 2],
    dx: &mut [f32],
    dparams: MatMut,
) {
    let rows = spline.check(x, &params);
    assert!([dy.len(), dlogdet.len(), dx.len()] == [rows; 3], "rational_spline_grad: gradients");
    assert!((dparams.rows, dparams.cols) == (rows, params.cols), "rational_spline_grad: results");
    let dx = DisjointMut::new(dx);
    pool.run(rows.div_ceil(ROWS), |i| {
        for t in i * ROWS..rows.min((i + 1) * ROWS) {
            // SAFETY: one task per row.
            let (dx, to) = unsafe { (&mut dx.slice(t, 1)[0], dparams.row_shared(t)) };
            to.fill(0.0);
            *dx = match Bin::of(spline, false, x[t], params.row(t)) {
                Some(bin) => bin.grad(x[t].into(), dy[t].into(), dlogdet[t].into(), to) as f32,
                None => dy[t],
            };
        }
    });
}

impl Spline {
    /// Returns T.
    fn check(&self, x: &[f32], params: &Mat) -> usize {
        let fits = (params.rows, params.cols) == (x.len(), 3 * self.bins - 1);
        assert!(fits, "rational_spline: parameters");
        x.len()
    }
}

/// The knots of one axis.
struct Axis<'a> {
    /// Unnormalised sizes of the bins.
    free: &'a [f32],
    bound: f64,
    most: f64,
    sum: f64,
}

/// A bin along one axis.
struct Side {
    index: usize,
    start: f64,
    size: f64,
    /// The softmax of all bins before.
    before: f64,
    /// The softmax of this one.
    own: f64,
}

impl<'a> Axis<'a> {
    fn new(free: &'a [f32], bound: f32) -> Axis<'a> {
        let most = free.iter().copied().fold(f32::NEG_INFINITY, f32::max).into();
        let sum = free.iter().map(|u| f64::exp(f64::from(*u) - most)).sum();
        Axis { free, bound: bound.into(), most, sum }
    }

    fn softmax(&self, i: usize) -> f64 {
        (f64::from(self.free[i]) - self.most).exp() / self.sum
    }

    /// How much a knot moves with the softmax of a bin before it.
    fn rate(&self) -> f64 {
        2.0 * self.bound * (1.0 - LEAST * self.free.len() as f64)
    }

    /// Returns the first bin of which `found(index, end)` is true, else the last.
    fn find(&self, found: impl Fn(usize, f64) -> bool) -> Side {
        let (mut start, mut before, last) = (-self.bound, 0.0, self.free.len() - 1);
        for index in 0..last {
            let own = self.softmax(index);
            let end = start + (2.0 * self.bound * LEAST + self.rate() * own);
            if found(index, end) {
                return Side { index, start, size: end - start, before, own };
            }
            (start, before) = (end, before + own);
        }
        Side { index: last, start, size: self.bound - start, before, own: self.softmax(last) }
    }

    /// Writes the gradients of the sizes from those of the ends of a bin.
    fn grad(&self, at: &Side, [start, end]: [f64; 2], to: &mut [f32]) {
        // The last knot does not move, and the first has no bin before it.
        let end = if at.index + 1 == self.free.len() { 0.0 } else { end };
        let (before, own) = (self.rate() * (start + end), self.rate() * end);
        let mean = before * at.before + own * at.own;
        for (i, to) in to.iter_mut().enumerate() {
            let of = match i.cmp(&at.index) {
                std::cmp::Ordering::Less => before,
                std::cmp::Ordering::Equal => own,
                std::cmp::Ordering::Greater => 0.0,
            };
            *to = (self.softmax(i) * (of - mean)) as f32;
        }
    }
}

/// The bin that a row's number lies in.
struct Bin<'a> {
    xs: Axis<'a>,
    ys: Axis<'a>,
    x: Side,
    y: Side,
    slopes: &'a [f32],
    /// Slopes at its ends.
    d: f64,
    e: f64,
}

/// ln(1 + e^x), which never overflows.
fn softplus(x: f32) -> f64 {
    let x = f64::from(x);
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// 1 / (1 + e^-x), which never overflows.
fn sigmoid(x: f32) -> f64 {
    let x = f64::from(x);
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// What the curve is made of at one place.
struct Place {
    t: f64,
    a: f64,
    g: f64,
    r: f64,
    n: f64,
    q: f64,
    p: f64,
}

impl Place {
    /// log(dy/dx).
    fn log(&self) -> f64 {
        2.0 * self.a.ln() + self.p.ln() - 2.0 * self.q.ln()
    }
}

impl<'a> Bin<'a> {
    /// Returns the bin of x, or of the ordinate x; `None` outside the bounds.
    fn of(spline: Spline, inverse: bool, x: f32, params: &'a [f32]) -> Option<Bin<'a>> {
        let Spline { bins, bound } = spline;
        if !(-bound..=bound).contains(&x) {
            return None;
        }
        let (widths, rest) = params.split_at(bins);
        let (heights, slopes) = rest.split_at(bins);
        let (xs, ys) = (Axis::new(widths, bound), Axis::new(heights, bound));
        let holds = |_: usize, end: f64| f64::from(x) < end;
        let (x, y) = if inverse {
            let y = ys.find(holds);
            (xs.find(|i, _| i == y.index), y)
        } else {
            let x = xs.find(holds);
            let y = ys.find(|i, _| i == x.index);
            (x, y)
        };
        let slope = |knot: usize| {
            if knot == 0 || knot == bins { 1.0 } else { LEAST + softplus(slopes[knot - 1]) }
        };
        let (d, e) = (slope(x.index), slope(x.index + 1));
        Some(Bin { xs, ys, x, y, slopes, d, e })
    }

    /// At a share t of the bin's width.
    fn at(&self, t: f64) -> Place {
        let (d, e, h, a) = (self.d, self.e, self.y.size, self.y.size / self.x.size);
        let (g, r) = (d + e - 2.0 * a, t * (1.0 - t));
        let n = h * (a * t * t + d * r);
        let p = e * t * t + 2.0 * a * r + d * (1.0 - t) * (1.0 - t);
        Place { t, a, g, r, n, q: a + g * r, p }
    }

    fn forward(&self, x: f64) -> (f64, f64) {
        let place = self.at((x - self.x.start) / self.x.size);
        (self.y.start + place.n / place.q, place.log())
    }

    fn inverse(&self, y: f64) -> (f64, f64) {
        let (h, d) = (self.y.size, self.d);
        let (z, a) = (y - self.y.start, h / self.x.size);
        let g = d + self.e - 2.0 * a;
        let (quadratic, linear, constant) = (z * g + h * (a - d), h * d - z * g, -a * z);
        // Not negative, but where rounding makes it so.
        let root = (linear * linear - 4.0 * quadratic * constant).max(0.0).sqrt();
        let place = self.at(2.0 * constant / (-linear - root));
        (self.x.start + self.x.size * place.t, -place.log())
    }

    /// Returns the gradient of x and writes those of the parameters, `to`, which are zero so far.
    fn grad(&self, x: f64, dy: f64, dlog: f64, to: &mut [f32]) -> f64 {
        let (d, e, w, h) = (self.d, self.e, self.x.size, self.y.size);
        let Place { t, a, g, r, n, q, p } = self.at((x - self.x.start) / w);
        let (back, turn) = (1.0 - t, 1.0 - 2.0 * t);
        let (dn, dq, dp) = (dy / q, -(dy * n / q + 2.0 * dlog) / q, dlog / p);
        let da = 2.0 * dlog / a + dn * h * t * t + dq * (1.0 - 2.0 * r) + 2.0 * dp * r;
        let dd = dn * h * r + dq * r + dp * back * back;
        let de = dq * r + dp * t * t;
        let dt = dn * h * (2.0 * a * t + d * turn) + dq * g * turn + 2.0 * dp * (e * t + a * turn - d * back);
        let (dh, dw, dx) = (dn * n / h + da / w, -(da * a + dt * t) / w, dt / w);

        let bins = self.xs.free.len();
        let (widths, rest) = to.split_at_mut(bins);
        let (heights, slopes) = rest.split_at_mut(bins);
        self.xs.grad(&self.x, [-dw - dx, dw], widths);
        self.ys.grad(&self.y, [dy - dh, dh], heights);
        // Of the slopes at the ends of the bin, those at inner knots.
        let k = self.x.index;
        if k > 0 {
            slopes[k - 1] = (dd * sigmoid(self.slopes[k - 1])) as f32;
        }
        if k + 1 < bins {
            slopes[k] = (de * sigmoid(self.slopes[k])) as f32;
        }
        dx
    }
}
