// Reductions, in fp32 and in an order that depends on shapes only. What is long is combined in parts first, then
// the parts by a second launch of the same kernel.

// In the order of ReduceKind: sum, max.
__device__ inline float nothing(int kind) { return kind == 0 ? 0.0f : -INFINITY; }
__device__ inline float combine(int kind, float p, float q) { return kind == 0 ? p + q : fmaxf(p, q); }

struct Row {
    int kind, step;
    i64 first, last;
    template <class Read> __device__ float operator()(Read read) const {
        return fold_steps(
            first, last, step, nothing(kind), [&](float p, float q) { return combine(kind, p, q); }, read);
    }
};

// A power of two of threads, up to a warp, or a whole block takes one part of a row.
KERNEL(reduce_rows) {
    __shared__ float warps[32];
    const i64 part = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / a.width;
    const int lane = threadIdx.x % a.width;
    const i64 row = part / a.parts;
    float all = nothing(a.kind);
    if (row < a.x.rows) {
        i64 first = part % a.parts * a.tile;
        i64 last = first + a.tile < a.x.cols ? first + a.tile : a.x.cols;
        i64 at = row * a.x.pitch;
        all = reading(a.x, Row{a.kind, a.width, at + first + lane, at + last});
    }
    if (a.width > 32) {
        all = a.kind == 0 ? block_sum(all, warps) : block_max(all, warps);
    } else {
        for (int step = a.width / 2; step > 0; step /= 2)
            all = combine(a.kind, all, __shfl_xor_sync(0xffffffffu, all, step));
    }
    if (row < a.x.rows && lane == 0) put(a.y, row * a.y.pitch + part % a.parts, all);
}

struct Column {
    int kind, width;
    i64 first, last, at, pitch;
    float* shared;
    template <class Read> __device__ float operator()(Read read) const {
        return fold_rows(
            first, last, width, nothing(kind), shared, [&](float p, float q) { return combine(kind, p, q); },
            [&](i64 k) { return read(at + k * pitch); });
    }
};

KERNEL(reduce_columns) {
    __shared__ float shared[reduce_columns_block];
    const int tiles = (a.y.pitch + a.width - 1) / a.width;
    const int c = blockIdx.x % tiles * a.width + threadIdx.x % a.width;
    // A part of a group: a row of the result.
    const i64 row = blockIdx.x / tiles;
    const i64 first = row % a.parts * a.tile;
    const i64 last = first + a.tile < a.len ? first + a.tile : a.len;
    const i64 at = row / a.parts * a.len * a.x.pitch + c;
    const bool inside = c < a.x.cols;
    float all = reading(a.x, Column{a.kind, a.width, first, inside ? last : first, at, a.x.pitch, shared});
    if ((int)threadIdx.x < a.width && c < a.y.pitch) put(a.y, row * a.y.pitch + c, inside ? all : 0.0f);
}
