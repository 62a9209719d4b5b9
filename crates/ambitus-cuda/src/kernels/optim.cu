// Accumulation, norms and updates. What is updated is overwritten in place: the thread that writes elements
// has read them.

KERNEL(accumulate) {
    float beta = get(a.beta, 0);
    each4(a.y, [&](i64 i, int n, int real) {
        Four x = get4(a.x, i, n);
        if (beta != 0.0f) {
            Four y = get4(a.y, i, n);
#pragma unroll
            for (int k = 0; k < 4; k++) x.v[k] += beta * y.v[k];
        }
        put4(a.y, i, n, real, x);
    });
}

// Which tensors of a table a block works on, and the blocks that do.
struct Share {
    int at;
    Blocks blocks;
};

template <class Table>
__device__ inline Share share_of(const Table& table) {
    int block = blockIdx.x, low = 0, high = table.n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (table.first[middle] <= block) low = middle;
        else high = middle - 1;
    }
    int end = low + 1 < table.n ? table.first[low + 1] : (int)gridDim.x;
    return {low, {block - table.first[low], end - table.first[low]}};
}

// Elements of one partial sum, as the op says.
enum { PARTIAL = 4096 };

// Runs are of elements without pads, so in a tensor with pads they start and end anywhere in a row.
KERNEL(sum_squares) {
    __shared__ float shared[32];
    Share share = share_of(a.each);
    const View &from = a.each.at[share.at][0], &to = a.each.at[share.at][1];
    i64 first = (i64)share.blocks.mine * PARTIAL, n = from.rows * from.cols;
    int count = n - first < PARTIAL ? (int)(n - first) : PARTIAL;
    float sum = 0.0f;
    if (from.pitch == from.cols) {
        for (int i = (int)threadIdx.x * 4; i < count; i += (int)blockDim.x * 4) {
            Four x = get4(from, first + i, up_to_four(count - i));
            sum += (x.v[0] * x.v[0] + x.v[1] * x.v[1]) + (x.v[2] * x.v[2] + x.v[3] * x.v[3]);
        }
    } else {
        for (int i = threadIdx.x; i < count; i += (int)blockDim.x) {
            float x = get(from, place(from, first + i));
            sum += x * x;
        }
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) put(to, share.blocks.mine, sum);
}

KERNEL(sum_each) {
    __shared__ double shared[sum_each_block];
    const View& x = a.x.at[blockIdx.x];
    i64 n = x.rows * x.cols;
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum += (double)get(x, place(x, i));
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) ((double*)a.sums)[blockIdx.x] = sum;
}

KERNEL(sum_all) {
    __shared__ double shared[sum_all_block];
    double sum = 0.0;
    for (int i = threadIdx.x; i < a.n; i += (int)blockDim.x) sum += ((const double*)a.sums)[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) put(a.y, 0, (float)sum);
}

// The place in `x` of what lies at place i of `y`: tensors of one shape and several types may have several
// pitches.
__device__ inline i64 same_place(const View& y, i64 i, const View& x) {
    return x.pitch == y.pitch ? i : i / y.pitch * x.pitch + i % y.pitch;
}

KERNEL(adamw) {
    if (get(a.apply, 0) == 0.0f) return;
    Update u = update_of(a);
    Share share = share_of(a.each);
    const View *all = a.each.at[share.at], &ws = all[0], &gs = all[1], &ms = all[2], &vs = all[3];
    each4(ws, [&](i64 i, int n, int real) {
        i64 at_m = same_place(ws, i, ms), at_v = same_place(ws, i, vs);
        // Moments of another pitch keep their pads, which are zero: they may have fewer.
        int n_m = ms.pitch == ws.pitch ? n : real, n_v = vs.pitch == ws.pitch ? n : real;
        Four w = get4(ws, i, n), g = get4(gs, same_place(ws, i, gs), real);
        Four m = get4(ms, at_m, n_m), v = get4(vs, at_v, n_v);
        step4(a.adam, u, g, w, m, v);
        put4(ws, i, n, real, w);
        put4(ms, at_m, n_m, real, m);
        put4(vs, at_v, n_v, real, v);
    }, share.blocks);
}

KERNEL(lion) {
    if (get(a.apply, 0) == 0.0f) return;
    LionUpdate u = lion_update_of(a);
    Share share = share_of(a.each);
    const View *all = a.each.at[share.at], &ws = all[0], &gs = all[1], &ms = all[2];
    each4(ws, [&](i64 i, int n, int real) {
        i64 at_m = same_place(ws, i, ms);
        int n_m = ms.pitch == ws.pitch ? n : real;
        Four w = get4(ws, i, n), g = get4(gs, same_place(ws, i, gs), real), m = get4(ms, at_m, n_m);
        lion4(a.lion, u, g, w, m);
        put4(ws, i, n, real, w);
        put4(ms, at_m, n_m, real, m);
    }, share.blocks);
}

KERNEL(lerp) {
    if (get(a.apply, 0) == 0.0f) return;
    float decay = get(a.decay, 0), weight = 1.0f - decay;
    Share share = share_of(a.each);
    const View &from = a.each.at[share.at][0], &to = a.each.at[share.at][1];
    each4(to, [&](i64 i, int n, int real) {
        // b may be of another type, and its pads others.
        Four b = get4(from, same_place(to, i, from), real);
        // a + (b - a) is b only up to rounding.
        if (decay != 0.0f) {
            Four y = get4(to, i, n);
#pragma unroll
            for (int k = 0; k < 4; k++) b.v[k] = y.v[k] + weight * (b.v[k] - y.v[k]);
        }
        put4(to, i, n, real, b);
    }, share.blocks);
}
