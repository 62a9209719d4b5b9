// Attention that knows small distances, forward and backward, for texts: short enough that a warp takes a row of a head and goes
// through all rows of its clip. All arithmetic is fp32. A warp has PART channels of results; a wider head is cut into parts, each with
// warps of its own (which compute the scores again).

enum { THREADS = 256, WARPS = THREADS / 32, EACH = 4, PART = 32 * EACH };
// Rows whose part in the gradients of the tables a block sums.
enum { ROWS = 64 };

// A channel of row u of keys or values, with what is added at its distance from row t: row r of the table.
__device__ inline float with_table(const View& x, i64 at, const View& table, int r, int c) {
    float y = get(x, at + c);
    return r >= 0 && r < table.rows ? y + ((const float*)table.data)[(i64)r * table.pitch + c] : y;
}

__device__ inline float sum_of_lanes(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Where a row's head begins.
template <class A>
__device__ inline i64 place_of(const A& a, int row, int head) { return (i64)row * a.q.pitch + head * a.head_dim; }

// The row of the tables for query t and key u.
template <class A>
__device__ inline int distance(const A& a, int t, int u) { return u - t + (int)a.rel_k.rows / 2; }

// Writes a warp's part of a row's head, times a factor, and the row's pads once.
template <class A>
__device__ inline void write(const A& a, const View& y, int row, int head, int part, const float (&sums)[EACH], float by) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = part + 32 * i + lane;
        if (c < a.head_dim) put(y, place_of(a, row, head) + c, sums[i] * by);
    }
    if (blockIdx.y == 0)
        for (int c = y.cols + lane; c < y.pitch; c += 32) zero(y, (i64)row * y.pitch + c);
}

// A warp's row, head and part; warps past the last row have nothing to do.
#define WARPS_ROW                                                                  \
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32; \
    const int head = blockIdx.y % a.heads, part = blockIdx.y / a.heads * PART;      \
    if (row >= a.q.rows) return;                                                    \
    const Seen seen = seen_by(a.segs, a.segs, a.q.rows, row, ALL)

KERNEL(windowed_attention) {
    WARPS_ROW;
    const i64 query = place_of(a, row, head);
    float sums[EACH] = {}, most = -INFINITY, total = 0.0f;
    for (int u = seen.begin; u < seen.end; u++) {
        const i64 at = place_of(a, u, head);
        const int r = distance(a, row, u);
        float s = 0.0f;
        for (int c = lane; c < a.head_dim; c += 32) s += get(a.q, query + c) * with_table(a.k, at, a.rel_k, r, c);
        s = sum_of_lanes(s) * a.scale;
        const float top = fmaxf(most, s), keep = expf(most - top), p = expf(s - top);
        most = top;
        total = total * keep + p;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = part + 32 * i + lane;
            if (c < a.head_dim) sums[i] = sums[i] * keep + p * with_table(a.v, at, a.rel_v, r, c);
        }
    }
    const bool any = seen.begin < seen.end;
    write(a, a.o, row, head, part, sums, any ? 1.0f / total : 0.0f);
    if (part == 0 && lane == 0) put(a.lse, (i64)row * a.lse.pitch + head, any ? most + logf(total) : 0.0f);
    if (blockIdx.y == 0)
        for (int c = a.lse.cols + lane; c < a.lse.pitch; c += 32) zero(a.lse, (i64)row * a.lse.pitch + c);
}

// The probability of query t and key u, and the gradient of their product. All lanes of a warp.
struct Grad { float p, ds; };
template <class A>
__device__ inline Grad grad_of(const A& a, int head, int t, int u) {
    const i64 query = place_of(a, t, head), key = place_of(a, u, head);
    const int r = distance(a, t, u);
    float s = 0.0f, dp = 0.0f;
    for (int c = threadIdx.x % 32; c < a.head_dim; c += 32) {
        s += get(a.q, query + c) * with_table(a.k, key, a.rel_k, r, c);
        dp += get(a.d_o, query + c) * with_table(a.v, key, a.rel_v, r, c);
    }
    const float lse = get(a.lse, (i64)t * a.lse.pitch + head), delta = ((const float*)a.delta.data)[head * a.q.rows + t];
    const float p = expf(sum_of_lanes(s) * a.scale - lse);
    return {p, p * (sum_of_lanes(dp) - delta) * a.scale};
}

KERNEL(windowed_queries_grad) {
    WARPS_ROW;
    float sums[EACH] = {};
    for (int u = seen.begin; u < seen.end; u++) {
        const float ds = grad_of(a, head, row, u).ds;
        const int r = distance(a, row, u);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = part + 32 * i + lane;
            if (c < a.head_dim) sums[i] += ds * with_table(a.k, place_of(a, u, head), a.rel_k, r, c);
        }
    }
    write(a, a.dq, row, head, part, sums, 1.0f);
}

KERNEL(windowed_keys_grad) {
    WARPS_ROW;
    float dk[EACH] = {}, dv[EACH] = {};
    for (int t = seen.begin; t < seen.end; t++) {
        const Grad grad = grad_of(a, head, t, row);
        const i64 query = place_of(a, t, head);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = part + 32 * i + lane;
            if (c >= a.head_dim) continue;
            dk[i] += grad.ds * get(a.q, query + c);
            dv[i] += grad.p * get(a.d_o, query + c);
        }
    }
    write(a, a.dk, row, head, part, dk, 1.0f);
    write(a, a.dv, row, head, part, dv, 1.0f);
}

// A block's sums for one row of both tables: `part` channels of ROWS rows of queries, over all heads.
__device__ inline float* part_of(u64 parts, int tile, int near, int r, int side, int head_dim) {
    return (float*)parts + (((i64)tile * near + r) * 2 + side) * head_dim;
}

KERNEL(windowed_tables_parts) {
    __shared__ float shared[WARPS][2][PART];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, near = (int)a.rel_k.rows;
    const int r = blockIdx.y % near, part = blockIdx.y / near * PART;
    float dk[EACH] = {}, dv[EACH] = {};
    for (int i = warp; i < ROWS * a.heads; i += WARPS) {
        const int t = blockIdx.x * ROWS + i / a.heads, head = i % a.heads, u = t + r - near / 2;
        const Seen seen = seen_by(a.segs, a.segs, a.q.rows, t, ALL);
        if (u < seen.begin || u >= seen.end) continue;
        const Grad grad = grad_of(a, head, t, u);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int c = part + 32 * e + lane;
            if (c >= a.head_dim) continue;
            dk[e] += grad.ds * get(a.q, place_of(a, t, head) + c);
            dv[e] += grad.p * get(a.d_o, place_of(a, t, head) + c);
        }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        shared[warp][0][32 * e + lane] = dk[e];
        shared[warp][1][32 * e + lane] = dv[e];
    }
    __syncthreads();
    const int side = threadIdx.x / PART, c = threadIdx.x % PART;
    if (part + c >= a.head_dim) return;
    float sum = 0.0f;
    for (int w = 0; w < WARPS; w++) sum += shared[w][side][c];
    part_of(a.parts, blockIdx.x, near, r, side, a.head_dim)[part + c] = sum;
}

// Adds up what blocks have of a table, in order.
KERNEL(windowed_tables) {
    each(a.y, [&](i64 i) {
        const int r = (int)(i / a.y.pitch), c = (int)(i % a.y.pitch), near = (int)a.y.rows;
        const float* of = part_of(a.parts, 0, near, r, a.side, a.y.cols) + c;
        const i64 next = (i64)2 * near * a.y.cols;
        float sum = 0.0f;
#pragma unroll 4
        for (int tile = 0; tile < a.tiles; tile++) sum += of[tile * next];
        put(a.y, i, sum);
    });
}
