// Attention on tensor cores, forward and backward, of operands of 16 bits: FlashAttention-2 (Dao, arXiv 2307.08691). Products are of the
// operands' type with sums in fp32, all else is fp32.
//
// As in attention.cu, a block has a tile of rows (queries; keys for dk and dv) and walks over the range of the other side that they see,
// where rows of no segment never lie. A warp has 16 rows. Tiles of the other side are copied to shared memory one step ahead, in two
// stages. Nothing is added atomically, and orders of sums depend on segments only.

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800

enum { THREADS = 128 };

// Starts copying ROWS rows from `row` on, D channels; rows from `end` on and channels beyond the head's become zero.
template <int D, int ROWS>
__device__ inline void fetch(const Channels& h, int row, int end, u16* to) {
    const int chunk = threadIdx.x % 8 * 8, mine = threadIdx.x / 8, STEP = THREADS / 8;
    const u16* from = (const u16*)h.t.data + (i64)(row + mine) * h.t.pitch + h.column + chunk;
    to += mine * Shared<D>::PITCH + chunk;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP) {
#pragma unroll
        for (int c = 0; c < D; c += 64)
            if (c + chunk < D) copy16(to + r * Shared<D>::PITCH + c, from + c, row + mine + r < end && c + chunk < h.width);
        from += (i64)STEP * h.t.pitch;
    }
}

// The rows of two tensors that a step walks over.
template <int D, int ROWS>
__device__ inline void fetch_stage(const Channels& first, const Channels& second, int row, int end, u16* stage) {
    fetch<D, ROWS>(first, row, end, stage);
    fetch<D, ROWS>(second, row, end, stage + ROWS * Shared<D>::PITCH);
}

// s [16, 8 N] += a [16, 16] times 16 channels from `channel` on of the rows of a tile, transposed.
template <int D, bool HALF, int N>
__device__ inline void add_scores(const u32 (&a)[4], const u16* rows, int channel, float (&s)[N][4]) {
    const int lane = threadIdx.x % 32;
    const u16* mine = rows + (lane % 8 + lane / 16 * 8) * Shared<D>::PITCH + lane / 8 % 2 * 8 + channel;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 b[4];
        ldmatrix(b, mine + 8 * n * Shared<D>::PITCH);
        mma<HALF>(s[n], a, b[0], b[1]);
        mma<HALF>(s[n + 1], a, b[2], b[3]);
    }
}

// sums [16, D] += p [16, 8 N] times the rows of a tile.
template <int D, bool HALF, int N>
__device__ inline void add_rows(const float (&p)[N][4], const u16* rows, float (&sums)[D / 8][4]) {
    const int lane = threadIdx.x % 32;
    const u16* mine = rows + lane % 16 * Shared<D>::PITCH + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        const u32 a[4] = {pack<HALF>(p[k][0], p[k][1]), pack<HALF>(p[k][2], p[k][3]), pack<HALF>(p[k + 1][0], p[k + 1][1]),
                          pack<HALF>(p[k + 1][2], p[k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            u32 b[4];
            ldmatrix_transposed(b, mine + 8 * k * Shared<D>::PITCH + 8 * n);
            mma<HALF>(sums[n], a, b[0], b[1]);
            mma<HALF>(sums[n + 1], a, b[2], b[3]);
        }
    }
}

template <int D, int AT_ONCE, bool HALF, class A>
__device__ inline void forward(const A& a, u16* memory, Ranges& ranges) {
    const int N = AT_ONCE / 8, STAGE = 2 * AT_ONCE * Shared<D>::PITCH;
    const int first = first_row<TILE>(a.causal), head = blockIdx.y;
    find_ranges(a.q_segs, a.k_segs, a.q.rows, first, a.causal ? UP_TO : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[TILE - 1], column = head / a.group * a.head_dim;
    const Channels k = {a.k, column, a.head_dim}, v = {a.v, column, a.head_dim};
    if (lo < hi) fetch_stage<D, AT_ONCE>(k, v, lo, hi, memory);
    copies_commit();

    const int row = first + threadIdx.x / 32 * 16 + lane_row();
    u32 q[D / 16][4];
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row + i % 2 * 8, channel = 16 * c + i / 2 * 8;
            const u16* from = (const u16*)a.q.data + (i64)r * a.q.pitch + head * a.head_dim + channel + lane_column();
            q[c][i] = r < a.q.rows && channel < a.head_dim ? *(const u32*)from : 0;
        }
    float o[D / 8][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    clear_fragments(o);
    const float scale = a.scale * LOG2_E;
    int now = 0;
#pragma unroll 1
    for (int at = lo; at < hi; at += AT_ONCE, now ^= 1) {
        copies_wait(0);
        __syncthreads();
        if (at + AT_ONCE < hi) fetch_stage<D, AT_ONCE>(k, v, at + AT_ONCE, hi, memory + (now ^ 1) * STAGE);
        copies_commit();
        const u16* stage = memory + now * STAGE;
        float s[N][4];
        clear_fragments(s);
#pragma unroll
        for (int c = 0; c < D / 16; c++) add_scores<D, HALF>(q[c], stage, 16 * c, s);
        mask(ranges, 0, TILE - 1, at, -INFINITY, s);
        float keep[2];
        exponentials(scale, s, most, total, keep);
        scale_rows(keep, o);
        add_rows<D, HALF>(s, stage + STAGE / 2, o);
    }
    float by[2];
    end_softmax(a.lse, first, head, a.scale, most, total, by);
    store<D, HALF>({a.o, head * a.head_dim, a.head_dim}, first, o, by[0], by[1]);
    zero_pads_of_tile(a.o, first, TILE);
    zero_pads_of_tile(a.lse, first, TILE);
}

// s [16, 8 N] = this warp's rows of a tile times the rows of another, transposed.
template <int D, bool HALF, int N>
__device__ inline void scores(const u16* tile, const u16* rows, float (&s)[N][4]) {
    const int lane = threadIdx.x % 32;
    const u16* mine = tile + (threadIdx.x / 32 * 16 + lane % 16) * Shared<D>::PITCH + lane / 16 * 8;
    clear_fragments(s);
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        u32 left[4];
        ldmatrix(left, mine + c);
        add_scores<D, HALF>(left, rows, c, s);
    }
}

// dq: for every tile of keys ds = p * (do v^T - delta), dq += scale ds k.
template <int D, int AT_ONCE, bool HALF, class A>
__device__ inline void backward_queries(const A& a, u16* memory, Ranges& ranges) {
    const int N = AT_ONCE / 8, OWN = TILE * Shared<D>::PITCH, STAGE = 2 * AT_ONCE * Shared<D>::PITCH;
    u16 *own_q = memory, *own_do = memory + OWN, *stages = memory + 2 * OWN;
    const int first = first_row<TILE>(a.causal), head = blockIdx.y, column = head * a.head_dim;
    fetch<D, TILE>({a.q, column, a.head_dim}, first, (int)a.q.rows, own_q);
    fetch<D, TILE>({a.d_o, column, a.head_dim}, first, (int)a.q.rows, own_do);
    find_ranges(a.q_segs, a.k_segs, a.q.rows, first, a.causal ? UP_TO : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[TILE - 1], from = head / a.group * a.head_dim;
    const Channels k = {a.k, from, a.head_dim}, v = {a.v, from, a.head_dim};
    if (lo < hi) fetch_stage<D, AT_ONCE>(k, v, lo, hi, stages);
    copies_commit();

    float lse[2], delta[2], dq[D / 8][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 row = first + threadIdx.x / 32 * 16 + lane_row() + 8 * h;
        const bool there = row < a.q.rows;
        lse[h] = there ? get(a.lse, row * a.lse.pitch + head) * LOG2_E : 0.0f;
        delta[h] = there ? ((const float*)a.delta.data)[head * a.q.rows + row] : 0.0f;
    }
    clear_fragments(dq);
    const float scale = a.scale * LOG2_E;
    int now = 0;
#pragma unroll 1
    for (int at = lo; at < hi; at += AT_ONCE, now ^= 1) {
        copies_wait(0);
        __syncthreads();
        if (at + AT_ONCE < hi) fetch_stage<D, AT_ONCE>(k, v, at + AT_ONCE, hi, stages + (now ^ 1) * STAGE);
        copies_commit();
        const u16* stage = stages + now * STAGE;
        float p[N][4], g[N][4];
        scores<D, HALF>(own_q, stage, p);
        scores<D, HALF>(own_do, stage + STAGE / 2, g);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) p[n][e] = exp2_fast(p[n][e] * scale - lse[e / 2]) * (g[n][e] - delta[e / 2]);
        mask(ranges, 0, TILE - 1, at, 0.0f, p);
        add_rows<D, HALF>(p, stage, dq);
    }
    // Of rows that see nothing, too.
    copies_wait(0);
    store<D, HALF>({a.dq, column, a.head_dim}, first, dq, a.scale, a.scale);
    zero_pads_of_tile(a.dq, first, TILE);
}

// dk and dv of a tile of keys: over the query heads that share the key head, in order, and their tiles of queries, dv += p^T do,
// dk += scale ds^T q. Scores have a row for each key.
template <int D, int AT_ONCE, bool HALF, class A>
__device__ inline void backward_keys(const A& a, u16* memory, Ranges& ranges) {
    const int N = AT_ONCE / 8, OWN = TILE * Shared<D>::PITCH, STAGE = 2 * AT_ONCE * Shared<D>::PITCH;
    u16 *own_k = memory, *own_v = memory + OWN, *stages = memory + 2 * OWN;
    // Of each stage: the queries' lse, then their delta.
    float* rows = (float*)(stages + 2 * STAGE);
    const int first = first_row<TILE>(0), head = blockIdx.y, column = head * a.head_dim;
    fetch<D, TILE>({a.k, column, a.head_dim}, first, (int)a.k.rows, own_k);
    fetch<D, TILE>({a.v, column, a.head_dim}, first, (int)a.k.rows, own_v);
    find_ranges(a.k_segs, a.q_segs, a.k.rows, first, a.causal ? FROM : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[TILE - 1];
    auto bring = [&](int h, int at, int stage) {
        const int column = h * a.head_dim;
        fetch_stage<D, AT_ONCE>({a.q, column, a.head_dim}, {a.d_o, column, a.head_dim}, at, hi, stages + stage * STAGE);
        if (threadIdx.x < AT_ONCE) {
            const i64 row = at + threadIdx.x;
            const bool there = row < hi;
            float* to = rows + 2 * AT_ONCE * stage + threadIdx.x;
            to[0] = there ? get(a.lse, row * a.lse.pitch + h) * LOG2_E : 0.0f;
            to[AT_ONCE] = there ? ((const float*)a.delta.data)[h * a.q.rows + row] : 0.0f;
        }
    };
    // The head and the queries of this step and of the next.
    int h = head * a.group, at = lo, next_h = h, next = lo, now = 0;
    const int end = lo < hi ? h + a.group : h;
    if (h < end) bring(h, at, now);
    copies_commit();

    float dk[D / 8][4], dv[D / 8][4];
    clear_fragments(dk);
    clear_fragments(dv);
    const float scale = a.scale * LOG2_E;
#pragma unroll 1
    for (; h < end; h = next_h, at = next, now ^= 1) {
        next += AT_ONCE;
        if (next >= hi) {
            next = lo;
            next_h++;
        }
        copies_wait(0);
        __syncthreads();
        if (next_h < end) bring(next_h, next, now ^ 1);
        copies_commit();
        const u16* stage = stages + now * STAGE;
        const float* mine = rows + 2 * AT_ONCE * now + lane_column();
        float p[N][4], g[N][4];
        scores<D, HALF>(own_k, stage, p);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) p[n][e] = exp2_fast(p[n][e] * scale - mine[8 * n + e % 2]);
        mask(ranges, 0, TILE - 1, at, 0.0f, p);
        add_rows<D, HALF>(p, stage + STAGE / 2, dv);
        scores<D, HALF>(own_v, stage + STAGE / 2, g);
        // What a masked row or column holds may be NaN.
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[n][e] = p[n][e] == 0.0f ? 0.0f : p[n][e] * (g[n][e] - mine[AT_ONCE + 8 * n + e % 2]);
        add_rows<D, HALF>(p, stage, dk);
    }
    // Of rows that nothing sees, too.
    copies_wait(0);
    store<D, HALF>({a.dk, column, a.head_dim}, first, dk, a.scale, a.scale);
    store<D, HALF>({a.dv, column, a.head_dim}, first, dv, 1.0f, 1.0f);
    zero_pads_of_tile(a.dk, first, TILE);
    zero_pads_of_tile(a.dv, first, TILE);
}

#define BODY(function, width, at_once) OF_EITHER_TYPE(Ranges, function, width, at_once)
#else
// The fp32 kernels run here.
#define BODY(function, width, at_once) {}
#endif

#define WIDTH(width, queries, keys)                                                     \
    KERNEL(attention_mma_##width) BODY(forward, width, queries)                         \
    KERNEL(attention_mma_queries_grad_##width) BODY(backward_queries, width, queries)   \
    KERNEL(attention_mma_keys_grad_##width) BODY(backward_keys, width, keys)
WIDTH(64, 64, 32)
WIDTH(96, 32, 32)
WIDTH(128, 32, 32)
