// Monotonic rational-quadratic splines (Durkan et al., Neural Spline Flows, arXiv 1906.04032); the op's page has the formulas, by the
// names that are used here. A thread has a row and computes it in fp64, as the op says: rows are few. Where a multiprocessor has two
// units for fp64 (GeForce), a spline of 4,000 rows is some 2,000 of its instructions a row, tens of microseconds (an estimate).

// The least share of a bin, and the least slope at an inner knot.
#define LEAST 1e-3

// The knots of one axis.
struct Axis {
    // Unnormalised sizes of the bins.
    const float* sizes;
    int bins;
    double bound, most, sum;
    __device__ Axis(const float* sizes, int bins, double bound) : sizes(sizes), bins(bins), bound(bound) {
        float highest = -INFINITY;
        for (int i = 0; i < bins; i++) highest = fmaxf(highest, sizes[i]);
        most = highest;
        sum = 0.0;
        for (int i = 0; i < bins; i++) sum += exp(sizes[i] - most);
    }
    __device__ double softmax(int i) const { return exp(sizes[i] - most) / sum; }
    // How much a knot moves with the softmax of a bin before it.
    __device__ double rate() const { return 2.0 * bound * (1.0 - LEAST * bins); }
};

// A bin along one axis.
struct Side {
    int index;
    double start, size;
    // The softmax of all bins before, and of this one.
    double before, own;
};

// The first bin that is number `index` or ends above `x`, else the last.
__device__ inline Side find(const Axis& axis, int index, double x) {
    Side at = {0, -axis.bound, 0.0, 0.0, 0.0};
    const double least = 2.0 * axis.bound * LEAST, rate = axis.rate();
#pragma unroll 1
    for (;; at.index++) {
        at.own = axis.softmax(at.index);
        bool last = at.index + 1 == axis.bins;
        double end = last ? axis.bound : at.start + (least + rate * at.own);
        at.size = end - at.start;
        if (last || at.index == index || x < end) return at;
        at.start = end;
        at.before += at.own;
    }
}

// Writes the gradients of the sizes from those of the ends of a bin.
__device__ inline void sizes_grad(const Axis& axis, const Side& at, double start, double end, float* to) {
    // The last knot does not move, and the first has no bin before it.
    if (at.index + 1 == axis.bins) end = 0.0;
    double before = axis.rate() * (start + end), own = axis.rate() * end;
    double mean = before * at.before + own * at.own;
#pragma unroll 1
    for (int i = 0; i < axis.bins; i++) {
        double of = i < at.index ? before : i == at.index ? own : 0.0;
        to[i] = (float)(axis.softmax(i) * (of - mean));
    }
}

// The slope at a knot, 1 at the ends: m + ln(1 + e^s), which never overflows.
__device__ inline double slope_at(const float* slopes, int bins, int knot) {
    if (knot == 0 || knot == bins) return 1.0;
    double s = slopes[knot - 1];
    return LEAST + (fmax(s, 0.0) + log1p(exp(-fabs(s))));
}

__device__ inline double sigmoid(double x) {
    double e = exp(-fabs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

// What the curve is made of at a share t of a bin's width.
struct Place {
    double t, a, g, r, n, q, p;
    __device__ Place(double t, double w, double h, double d, double e) : t(t) {
        a = h / w;
        g = d + e - 2.0 * a;
        r = t * (1.0 - t);
        n = h * (a * t * t + d * r);
        q = a + g * r;
        p = e * t * t + 2.0 * a * r + d * (1.0 - t) * (1.0 - t);
    }
    __device__ double slope_log() const { return 2.0 * log(a) + log(p) - 2.0 * log(q); }
};

__device__ inline bool inside(float x, float bound) { return x >= -bound && x <= bound; }

// Where t is at the height z above the start of a bin.
__device__ inline double share_at(double z, double w, double h, double d, double e) {
    double a = h / w, g = d + e - 2.0 * a;
    double quadratic = z * g + h * (a - d), linear = h * d - z * g, constant = -a * z;
    // Not negative, but where rounding makes it so.
    double root = fmax(linear * linear - 4.0 * quadratic * constant, 0.0);
    return 2.0 * constant / (-linear - sqrt(root));
}

KERNEL(rational_spline) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x; row < a.params.rows; row += step) {
        const float* params = (const float*)a.params.data + row * a.params.pitch;
        float x = get(a.x, row);
        float y = x, logdet = 0.0f;
        if (inside(x, a.bound)) {
            // Along the axis that x lies on, and across it.
            Axis along(params + (a.inverse ? a.bins : 0), a.bins, a.bound);
            Axis across(params + (a.inverse ? 0 : a.bins), a.bins, a.bound);
            Side from = find(along, -1, x), to = find(across, from.index, INFINITY);
            double d = slope_at(params + 2 * a.bins, a.bins, from.index);
            double e = slope_at(params + 2 * a.bins, a.bins, from.index + 1);
            double w = a.inverse ? to.size : from.size, h = a.inverse ? from.size : to.size;
            double z = x - from.start;
            Place at(a.inverse ? share_at(z, w, h, d, e) : z / w, w, h, d, e);
            y = (float)(to.start + (a.inverse ? w * at.t : at.n / at.q));
            logdet = (float)(a.inverse ? -at.slope_log() : at.slope_log());
        }
        put(a.y, row, y);
        put(a.logdet, row, logdet);
    }
}

KERNEL(rational_spline_grad) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x; row < a.params.rows; row += step) {
        const float* params = (const float*)a.params.data + row * a.params.pitch;
        float* to = (float*)a.dparams.data + row * a.dparams.pitch;
        float place = get(a.x, row), grad = get(a.dy, row);
        if (!inside(place, a.bound)) {
            for (int c = 0; c < a.dparams.pitch; c++) to[c] = 0.0f;
            put(a.dx, row, grad);
            continue;
        }
        const float* slopes = params + 2 * a.bins;
        Axis xs(params, a.bins, a.bound), ys(params + a.bins, a.bins, a.bound);
        Side x = find(xs, -1, place), y = find(ys, x.index, INFINITY);
        const int k = x.index;
        const double d = slope_at(slopes, a.bins, k), e = slope_at(slopes, a.bins, k + 1);
        const double w = x.size, h = y.size, dy = grad, dlog = get(a.dlogdet, row);
        Place at((place - x.start) / w, w, h, d, e);
        const double t = at.t, r = at.r, back = 1.0 - t, turn = 1.0 - 2.0 * t;
        double dn = dy / at.q, dq = -(dy * at.n / at.q + 2.0 * dlog) / at.q, dp = dlog / at.p;
        double da = 2.0 * dlog / at.a + dn * h * t * t + dq * (1.0 - 2.0 * r) + 2.0 * dp * r;
        double dd = dn * h * r + dq * r + dp * back * back;
        double de = dq * r + dp * t * t;
        double dt = dn * h * (2.0 * at.a * t + d * turn) + dq * at.g * turn + 2.0 * dp * (e * t + at.a * turn - d * back);
        double dh = dn * at.n / h + da / w, dw = -(da * at.a + dt * t) / w, dx = dt / w;

        sizes_grad(xs, x, -dw - dx, dw, to);
        sizes_grad(ys, y, dy - dh, dh, to + a.bins);
        for (int c = 2 * a.bins; c < a.dparams.pitch; c++) to[c] = 0.0f;
        // Of the slopes at the ends of the bin, those at inner knots.
        if (k > 0) to[2 * a.bins + k - 1] = (float)(dd * sigmoid(slopes[k - 1]));
        if (k + 1 < a.bins) to[2 * a.bins + k] = (float)(de * sigmoid(slopes[k]));
        put(a.dx, row, (float)dx);
    }
}
