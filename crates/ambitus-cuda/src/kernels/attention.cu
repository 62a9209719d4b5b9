// Attention over segments, forward and backward, without an n x n matrix: tiles of scores live in registers
// and shared memory, as in FlashAttention-2 (Dao, arXiv 2307.08691). All arithmetic is fp32.
//
// A block has a tile of TILE rows (queries; keys for dk and dv) of the packed batch, which may cross clips.
// What row r of it sees is one range of the other side's rows, begin[r] .. end[r]; both ascend with r, so the
// block walks from begin[0] to end[TILE - 1], in tiles, and masks by range. Only rows of clips lie on that
// walk: what rows of no segment hold, perhaps NaN, is never multiplied.
//
// A kernel with WIDTH channels of accumulators serves every head of up to WIDTH channels; a wider head is cut
// into parts, each with blocks of its own (which compute the scores again).

enum { DEPTH = 32, THREADS = 256 };
// Floats from row to row in shared memory: multiples of 4 for loads of 16 bytes, such that eight neighbouring
// rows (or the two that a warp reads together) lie in different banks.
enum { STRIP = DEPTH + 4, SCORES = TILE + 4 };

struct alignas(16) Quad { float v[4]; };
struct alignas(8) Pair { float v[2]; };

// Thread (y, x) of 16 x 16 has rows 4y + i; of scores it has columns x + 16j, of results channels 32c + 2x + e.
__device__ inline int thread_x() { return threadIdx.x % 16; }
__device__ inline int thread_y() { return threadIdx.x / 16; }

// A head's rows before `end`; the rest reads as zero. (A reference to the kernel's argument costs no register.)
struct Head {
    const View& t;
    int column;  // where the head begins
    int width;   // its channels
    int end;
};

// Where a thread's i-th part of some rows of 32 CHUNKS channels lies: eight threads take 32 channels, four each.
template <int CHUNKS>
__device__ inline int part_row(int i) { return (threadIdx.x / 8 + THREADS / 8 * i) / CHUNKS; }
template <int CHUNKS>
__device__ inline int part_channel(int i) {
    return (threadIdx.x / 8 + THREADS / 8 * i) % CHUNKS * 32 + 4 * (threadIdx.x % 8);
}

struct alignas(16) Bits { u32 v[4]; };
struct alignas(8) HalfBits { u32 v[2]; };

// Asks for a thread's parts, of which 16-bit elements fill a half each. Heads are of a multiple of 4
// channels, so every part lies inside or outside and is aligned. Nothing here waits for what is loaded.
template <int CHUNKS, int N>
__device__ inline void ask(const Head& h, int row, int channel, Bits (&bits)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        int r = row + part_row<CHUNKS>(i), c = channel + part_channel<CHUNKS>(i);
        i64 at = (i64)r * h.t.pitch + h.column + c;
        bits[i] = Bits{{0, 0, 0, 0}};
        if (r >= h.end || c >= h.width) continue;
        if (h.t.dtype == F32) {
            bits[i] = *(const Bits*)((const u32*)h.t.data + at);
        } else {
            HalfBits half = *(const HalfBits*)((const u16*)h.t.data + at);
            bits[i].v[0] = half.v[0];
            bits[i].v[1] = half.v[1];
        }
    }
}

template <int CHUNKS, int PITCH, int N>
__device__ inline void keep(const Bits (&bits)[N], int dtype, float* to) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        Quad x;
#pragma unroll
        for (int e = 0; e < 4; e++)
            x.v[e] = widen(dtype == F32 ? bits[i].v[e] : bits[i].v[e / 2] >> 16 * (e % 2) & 0xffffu, dtype);
        *(Quad*)(to + part_row<CHUNKS>(i) * PITCH + part_channel<CHUNKS>(i)) = x;
    }
}

// ROWS rows from `row` on, 32 CHUNKS channels from `channel` on, to shared memory: for heads of any number of
// channels.
template <int ROWS, int CHUNKS, int PITCH>
__device__ inline void load_any(const Head& h, int row, int channel, float* to) {
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * CHUNKS * 32; i += THREADS) {
        int r = i / (CHUNKS * 32), c = i % (CHUNKS * 32);
        bool inside = row + r < h.end && channel + c < h.width;
        to[r * PITCH + c] = inside ? get(h.t, (i64)(row + r) * h.t.pitch + h.column + channel + c) : 0.0f;
    }
}

// s = rows from `a_row` on of a times rows from `b_row` on of b, transposed, over all channels. `strips`
// holds two strips; threads may still be reading what it held.
__device__ inline void multiply(const Head& a, int a_row, const Head& b, int b_row, float* strips,
                                float (&s)[4][4]) {
    const float *left = strips + 4 * thread_y() * STRIP, *right = strips + (TILE + thread_x()) * STRIP;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] = 0.0f;
#pragma unroll 1
    for (int c = 0; c < a.width; c += DEPTH) {
        __syncthreads();
        if (a.width % 4 == 0) {
            Bits p[TILE * 8 / THREADS], q[TILE * 8 / THREADS];
            ask<1>(a, a_row, c, p);
            ask<1>(b, b_row, c, q);
            keep<1, STRIP>(p, a.t.dtype, strips);
            keep<1, STRIP>(q, b.t.dtype, strips + TILE * STRIP);
        } else {
            load_any<TILE, 1, STRIP>(a, a_row, c, strips);
            load_any<TILE, 1, STRIP>(b, b_row, c, strips + TILE * STRIP);
        }
        __syncthreads();
#pragma unroll 1
        for (int d = 0; d < DEPTH; d += 4) {
            Quad p[4];
#pragma unroll
            for (int i = 0; i < 4; i++) p[i] = *(const Quad*)(left + i * STRIP + d);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                Quad q = *(const Quad*)(right + 16 * j * STRIP + d);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[i][j] += p[i].v[e] * q.v[e];
            }
        }
    }
}

// Rows of the right side of `accumulate` in shared memory at once: two or three parts for every thread.
template <int CHUNKS> struct Slab {
    enum { ROWS = CHUNKS == 1 ? 64 : CHUNKS == 4 ? 16 : 32, WIDTH = 32 * CHUNKS, FLOATS = ROWS * WIDTH };
};

__device__ inline float* my_scores(float* scores, int i, int j) {
    return scores + (4 * thread_y() + i) * SCORES + thread_x() + 16 * j;
}

// sums += s times TILE rows from `row` on of b, 32 CHUNKS channels from `channel` on. s is brought to
// `scores`, which may be the memory of the strips of `multiply`.
template <int CHUNKS>
__device__ inline void accumulate(const float (&s)[4][4], float* scores, const Head& b, int row, int channel,
                                  float* slab, float (&sums)[4][2 * CHUNKS]) {
    const int ROWS = Slab<CHUNKS>::ROWS, WIDTH = Slab<CHUNKS>::WIDTH;
    const float* rows = scores + 4 * thread_y() * SCORES;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) *my_scores(scores, i, j) = s[i][j];
#pragma unroll 1
    for (int k = 0; k < TILE && row + k < b.end; k += ROWS) {
        if (k > 0) __syncthreads();
        if (b.width % 4 == 0) {
            Bits q[ROWS * CHUNKS * 8 / THREADS];
            ask<CHUNKS>(b, row + k, channel, q);
            keep<CHUNKS, WIDTH>(q, b.t.dtype, slab);
        } else {
            load_any<ROWS, CHUNKS, WIDTH>(b, row + k, channel, slab);
        }
        __syncthreads();
#pragma unroll 1
        for (int d = 0; d < ROWS; d += 4) {
            Quad p[4];
#pragma unroll
            for (int i = 0; i < 4; i++) p[i] = *(const Quad*)(rows + i * SCORES + k + d);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    Pair q = *(const Pair*)(slab + (d + e) * WIDTH + 32 * c + 2 * thread_x());
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        sums[i][2 * c] += p[i].v[e] * q.v[0];
                        sums[i][2 * c + 1] += p[i].v[e] * q.v[1];
                    }
                }
        }
    }
}

__device__ inline bool sees(const Ranges& ranges, int i, int j, int other) {
    int row = 4 * thread_y() + i, at = other + thread_x() + 16 * j;
    return at >= ranges.begin[row] && at < ranges.end[row];
}

template <int N>
__device__ inline void clear(float (&sums)[4][N]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < N; c++) sums[i][c] = 0.0f;
}

// Writes rows times factors to a head's channels from `channel` on.
template <int N>
__device__ inline void store(const View& y, int first, int column, int width, int channel,
                             const float (&sums)[4][N], const float (&by)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 row = first + 4 * thread_y() + i;
        if (row >= y.rows) continue;
#pragma unroll
        for (int c = 0; c < N; c++) {
            int at = channel + c / 2 * 32 + 2 * thread_x() + c % 2;
            if (at < width) put(y, row * y.pitch + column + at, sums[i][c] * by[i]);
        }
    }
}

// Over the 16 threads that have a row.
__device__ inline float row_max(float x) {
    for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ inline float row_sum(float x) {
    for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// A block's head and its part of the head's channels.
#define PART(heads)                                                              \
    const int first = blockIdx.x * TILE, head = blockIdx.y % (heads);            \
    const int part = blockIdx.y / (heads) * 32 * CHUNKS

// Its shared memory.
#define MEMORY                                       \
    __shared__ Quad strips_[2 * TILE * STRIP / 4];   \
    __shared__ Quad slab_[Slab<CHUNKS>::FLOATS / 4]; \
    __shared__ Ranges ranges;                        \
    float *strips = (float*)strips_, *slab = (float*)slab_

template <int CHUNKS, class A>
__device__ inline void forward(const A& a) {
    MEMORY;
    PART(a.heads);
    find_ranges(a.q_segs, a.k_segs, a.q.rows, first, a.causal ? UP_TO : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[TILE - 1], column = head / a.group * a.head_dim;
    Head q = {a.q, head * a.head_dim, a.head_dim, (int)a.q.rows};
    Head k = {a.k, column, a.head_dim, hi}, v = {a.v, column, a.head_dim, hi};

    // `total` has this thread's columns only, until the end.
    float sums[4][2 * CHUNKS], most[4], total[4];
    clear(sums);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        most[i] = -INFINITY;
        total[i] = 0.0f;
    }
#pragma unroll 1
    for (int at = lo; at < hi; at += TILE) {
        float s[4][4];
        multiply(q, first, k, at, strips, s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float top = most[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = sees(ranges, i, j, at) ? s[i][j] * a.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = row_max(top);
            // A row that has seen no key yet has no finite maximum to take off.
            float off = top == -INFINITY ? 0.0f : top, keep = expf(most[i] - off);
            most[i] = top;
            total[i] *= keep;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = expf(s[i][j] - off);
                total[i] += s[i][j];
            }
#pragma unroll
            for (int c = 0; c < 2 * CHUNKS; c++) sums[i][c] *= keep;
        }
        accumulate<CHUNKS>(s, strips, v, at, part, slab, sums);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i64 row = first + 4 * thread_y() + i;
        float sum = row_sum(total[i]), lse = sum == 0.0f ? 0.0f : most[i] + logf(sum);
        total[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (part == 0 && thread_x() == 0 && row < a.lse.rows) put(a.lse, row * a.lse.pitch + head, lse);
    }
    store(a.o, first, head * a.head_dim, a.head_dim, part, sums, total);
    zero_pads_of_tile(a.o, first, TILE);
    zero_pads_of_tile(a.lse, first, TILE);
}

// delta [heads, Tq] = rowsum(do * o): a warp for each row of a head.
KERNEL(attention_delta) {
    const int lane = threadIdx.x % 32, heads = a.o.cols / a.head_dim, warps = THREADS / 32;
    const i64 start = (i64)blockIdx.x * warps + threadIdx.x / 32;
    for (i64 at = start; at < a.o.rows * heads; at += (i64)gridDim.x * warps) {
        i64 row = at / heads, head = at % heads;
        float sum = 0.0f;
        i64 o = row * a.o.pitch + head * a.head_dim, d_o = row * a.d_o.pitch + head * a.head_dim;
        for (int c = lane; c < a.head_dim; c += 32) sum += get(a.o, o + c) * get(a.d_o, d_o + c);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) ((float*)a.delta.data)[head * a.o.rows + row] = sum;
    }
}

// dq: for every tile of keys ds = p * (do v^T - delta), dq += scale ds k.
template <int CHUNKS, class A>
__device__ inline void backward_queries(const A& a) {
    MEMORY;
    __shared__ float lse[TILE], delta[TILE];
    PART(a.heads);
    find_ranges(a.q_segs, a.k_segs, a.q.rows, first, a.causal ? UP_TO : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[TILE - 1], column = head / a.group * a.head_dim;
    Head q = {a.q, head * a.head_dim, a.head_dim, (int)a.q.rows};
    Head d_o = {a.d_o, head * a.head_dim, a.head_dim, (int)a.q.rows};
    Head k = {a.k, column, a.head_dim, hi}, v = {a.v, column, a.head_dim, hi};
    if (threadIdx.x < TILE && first + threadIdx.x < a.q.rows) {
        i64 row = first + threadIdx.x;
        lse[threadIdx.x] = get(a.lse, row * a.lse.pitch + head);
        delta[threadIdx.x] = ((const float*)a.delta.data)[head * a.q.rows + row];
    }

    float sums[4][2 * CHUNKS];
    clear(sums);
#pragma unroll 1
    for (int at = lo; at < hi; at += TILE) {
        float s[4][4], g[4][4];
        multiply(q, first, k, at, strips, s);
        multiply(d_o, first, v, at, strips, g);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float l = lse[4 * thread_y() + i], d = delta[4 * thread_y() + i];
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] = sees(ranges, i, j, at) ? expf(s[i][j] * a.scale - l) * (g[i][j] - d) : 0.0f;
        }
        accumulate<CHUNKS>(s, strips, k, at, part, slab, sums);
    }
    const float by[4] = {a.scale, a.scale, a.scale, a.scale};
    store(a.dq, first, head * a.head_dim, a.head_dim, part, sums, by);
    zero_pads_of_tile(a.dq, first, TILE);
}

// dk and dv of a tile of keys: over the query heads that share the key head, in order, and their tiles of
// queries, dv += p^T do, dk += scale ds^T q. Scores have a row for each key.
template <int CHUNKS, class A>
__device__ inline void backward_keys(const A& a) {
    MEMORY;
    // Wide kernels have no registers to keep p in while they compute ds: there p stays in shared memory.
    const bool APART = CHUNKS > 2;
    __shared__ Quad apart[APART ? TILE * SCORES / 4 : 1];
    float* scores = APART ? (float*)apart : strips;
    PART(a.kv_heads);
    find_ranges(a.k_segs, a.q_segs, a.k.rows, first, a.causal ? FROM : ALL, ranges);
    const int hi = ranges.end[TILE - 1];
    Head k = {a.k, head * a.head_dim, a.head_dim, (int)a.k.rows};
    Head v = {a.v, head * a.head_dim, a.head_dim, (int)a.k.rows};

    float dk[4][2 * CHUNKS], dv[4][2 * CHUNKS];
    clear(dk);
    clear(dv);
#pragma unroll 1
    for (int h = head * a.group; h < (head + 1) * a.group; h++) {
        Head q = {a.q, h * a.head_dim, a.head_dim, hi}, d_o = {a.d_o, h * a.head_dim, a.head_dim, hi};
#pragma unroll 1
        for (int at = ranges.begin[0]; at < hi; at += TILE) {
            float s[4][4], g[4][4];
            multiply(k, first, q, at, strips, s);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                i64 row = at + thread_x() + 16 * j;
                float l = row < hi ? get(a.lse, row * a.lse.pitch + h) : 0.0f;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[i][j] = sees(ranges, i, j, at) ? expf(s[i][j] * a.scale - l) : 0.0f;
            }
            accumulate<CHUNKS>(s, scores, d_o, at, part, slab, dv);
            multiply(v, first, d_o, at, strips, g);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                i64 row = at + thread_x() + 16 * j;
                float d = row < hi ? ((const float*)a.delta.data)[h * a.q.rows + row] : 0.0f;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float p = APART ? *my_scores(scores, i, j) : s[i][j];
                    s[i][j] = sees(ranges, i, j, at) ? p * (g[i][j] - d) : 0.0f;
                }
            }
            accumulate<CHUNKS>(s, scores, q, at, part, slab, dk);
        }
    }
    const float by[4] = {a.scale, a.scale, a.scale, a.scale}, once[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    store(a.dk, first, head * a.head_dim, a.head_dim, part, dk, by);
    store(a.dv, first, head * a.head_dim, a.head_dim, part, dv, once);
    zero_pads_of_tile(a.dk, first, TILE);
    zero_pads_of_tile(a.dv, first, TILE);
}

#define WIDTH(width)                                                                   \
    KERNEL(attention_##width) { forward<width / 32>(a); }                    \
    KERNEL(attention_queries_grad_##width) { backward_queries<width / 32>(a); } \
    KERNEL(attention_keys_grad_##width) { backward_keys<width / 32>(a); }
WIDTH(32)
WIDTH(64)
WIDTH(96)
WIDTH(128)
