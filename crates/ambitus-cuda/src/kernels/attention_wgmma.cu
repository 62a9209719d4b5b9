// Attention on Hopper's tensor cores, forward and backward, of operands of 16 bits and heads of 64 or 128 channels: as attention_mma.cu, by
// products that read shared memory by themselves and end later (FlashAttention-3, Shah et al., arXiv 2407.08608).
//
// A block is two groups of four warps, 64 rows each, which share the tiles of the other side that they walk over. While the rows' exponentials
// of a step are computed, products of the step before and of the other group go on. Tiles come one step ahead by asynchronous copies; their
// places go round, so that one barrier a step stands between a place's last product and its next copy.

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

enum { THREADS = 256, ROWS = 128, GROUP_ROWS = 64 };
typedef RangesOf<ROWS> RowRanges;

// Starts copying R rows of a head from `row` on; rows from `end` on become zero.
template <int D, int R>
__device__ inline void fetch(const View& t, int column, int row, int end, u16* to) {
    const int chunk = threadIdx.x % 8, mine = threadIdx.x / 8, STEP = THREADS / 8;
    const int pitch = anew(t.pitch);
    const u16* from = (const u16*)t.data + (i64)(row + mine) * pitch + column + 8 * chunk;
    to += mine * PANEL + 8 * (chunk ^ mine % 8);
#pragma unroll
    for (int r = 0; r < R; r += STEP) {
#pragma unroll
        for (int c = 0; c < D; c += PANEL) copy16(to + c * R + r * PANEL, from + c, row + mine + r < end);
        from += (i64)STEP * pitch;
    }
}

// What was fetched a step ago is there for the products of all threads, and all are done with what they waited for.
__device__ inline void ready() {
    copies_wait(0);
    fence_products();
    __syncthreads();
}

// Starts s [64, 8 N] = own rows of a tile of ROWS times the rows of another, transposed; with MORE added to what it holds.
template <int D, bool HALF, bool MORE, int N>
__device__ inline void start_scores(u64 own, u64 rows, float (&s)[N][4]) {
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        const int panel = c / PANEL, within = c % PANEL;
        wgmma_rows<HALF>(s, later(own, panel * ROWS * PANEL + within), later(rows, panel * 8 * N * PANEL + within), MORE || c > 0);
    }
}

// Starts sums [64, D] += p [64, 16 K] times the rows of a tile.
template <int D, bool HALF, int K>
__device__ inline void start_sums(const u32 (&p)[K][4], u64 rows, float (&sums)[D / 8][4]) {
#pragma unroll
    for (int k = 0; k < K; k++) wgmma_columns<HALF>(sums, p[k], later(rows, 16 * k * PANEL));
}

// Scores as left operands.
template <bool HALF, int N>
__device__ inline void pack_left(const float (&s)[N][4], u32 (&p)[N / 2][4]) {
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = pack<HALF>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

// The number of this thread's group, known to be one for all lanes.
__device__ inline int group_of_warps() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); }

// As `mask`, where a warp decides alone.
template <int N>
__device__ inline void mask_of_warp(const RowRanges& ranges, int at, float value, float (&s)[N][4]) {
    const int first = threadIdx.x / 32 * 16;
    mask(ranges, first, first + 15, at, value, s);
}

// Where panels begin, of this memory, which has 1024 bytes to spare.
__device__ inline u16* first_panel(u16* memory) { return memory + (1024 - in_shared(memory) % 1024) % 1024 / 2; }

// In shared memory: queries, two tiles of keys, two of values.
template <int D, int AT_ONCE, bool HALF, class A>
__device__ inline void forward(const A& a, u16* memory, RowRanges& ranges) {
    const int N = AT_ONCE / 8, TILE_SIZE = AT_ONCE * D;
    u16 *own = first_panel(memory), *keys = own + ROWS * D, *values = keys + 2 * TILE_SIZE;
    const int first = first_row<ROWS>(a.causal), head = blockIdx.y, column = head / a.group * D;
    fetch<D, ROWS>(a.q, head * D, first, (int)a.q.rows, own);
    find_ranges(a.q_segs, a.k_segs, a.q.rows, first, a.causal ? UP_TO : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[ROWS - 1];
    if (lo < hi) fetch<D, AT_ONCE>(a.k, column, lo, hi, keys);
    copies_commit();
    // The values of a step, and the keys of the next.
    auto bring = [&](int at, int now) {
        fetch<D, AT_ONCE>(a.v, column, at, hi, values + now * TILE_SIZE);
        if (at + AT_ONCE < hi) fetch<D, AT_ONCE>(a.k, column, at + AT_ONCE, hi, keys + (now ^ 1) * TILE_SIZE);
        copies_commit();
    };
    const u64 queries = along_rows(own + group_of_warps() * GROUP_ROWS * PANEL);
    float s[N][4], o[D / 8][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, keep[2];
    u32 p[N / 2][4];
    clear_fragments(o);
    const float scale = a.scale * LOG2_E;
    ready();
    if (lo < hi) {
        bring(lo, 0);
        wgmma_fence(s);
        start_scores<D, HALF, false>(queries, along_rows(keys), s);
        wgmma_commit();
        wgmma_wait(0, s);
        mask_of_warp(ranges, lo, -INFINITY, s);
        exponentials(scale, s, most, total, keep);
        pack_left<HALF>(s, p);
        int now = 1;
#pragma unroll 1
        for (int at = lo + AT_ONCE; at < hi; at += AT_ONCE, now ^= 1) {
            ready();
            bring(at, now);
            wgmma_fence(s, o, p);
            start_scores<D, HALF, false>(queries, along_rows(keys + now * TILE_SIZE), s);
            wgmma_commit();
            start_sums<D, HALF>(p, over_rows(values + (now ^ 1) * TILE_SIZE, AT_ONCE * PANEL), o);
            wgmma_commit();
            wgmma_wait(1, s);
            mask_of_warp(ranges, at, -INFINITY, s);
            exponentials(scale, s, most, total, keep);
            wgmma_wait(0, o, p);
            scale_rows(keep, o);
            pack_left<HALF>(s, p);
        }
        ready();
        wgmma_fence(o, p);
        start_sums<D, HALF>(p, over_rows(values + (now ^ 1) * TILE_SIZE, AT_ONCE * PANEL), o);
        wgmma_commit();
        wgmma_wait(0, o, p);
    }
    float by[2];
    end_softmax(a.lse, first, head, a.scale, most, total, by);
    store<D, HALF>({a.o, head * D, D}, first, o, by[0], by[1]);
    zero_pads_of_tile(a.o, first, ROWS);
    zero_pads_of_tile(a.lse, first, ROWS);
}

// dq: for every tile of keys ds = p * (do v^T - delta), dq += scale ds k. In shared memory: queries and their do, three tiles of keys, which
// two steps read, two of values.
template <int D, int AT_ONCE, bool HALF, class A>
__device__ inline void backward_queries(const A& a, u16* memory, RowRanges& ranges) {
    const int N = AT_ONCE / 8, TILE_SIZE = AT_ONCE * D;
    u16 *own_q = first_panel(memory), *own_do = own_q + ROWS * D, *keys = own_do + ROWS * D, *values = keys + 3 * TILE_SIZE;
    const int first = first_row<ROWS>(a.causal), head = blockIdx.y, column = head * D, from = head / a.group * D;
    fetch<D, ROWS>(a.q, column, first, (int)a.q.rows, own_q);
    fetch<D, ROWS>(a.d_o, column, first, (int)a.q.rows, own_do);
    find_ranges(a.q_segs, a.k_segs, a.q.rows, first, a.causal ? UP_TO : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[ROWS - 1];
    auto bring = [&](int at, int third, int now) {
        if (at < hi) {
            fetch<D, AT_ONCE>(a.k, from, at, hi, keys + third * TILE_SIZE);
            fetch<D, AT_ONCE>(a.v, from, at, hi, values + now * TILE_SIZE);
        }
        copies_commit();
    };
    bring(lo, 0, 0);
    float lse[2], delta[2], dq[D / 8][4], p[N][4], g[N][4];
    u32 ds[N / 2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 row = first + threadIdx.x / 32 * 16 + lane_row() + 8 * h;
        const bool there = row < a.q.rows;
        lse[h] = there ? get(a.lse, row * a.lse.pitch + head) * LOG2_E : 0.0f;
        delta[h] = there ? ((const float*)a.delta.data)[head * a.q.rows + row] : 0.0f;
    }
    clear_fragments(dq);
    const float scale = a.scale * LOG2_E;
    const int mine = group_of_warps() * GROUP_ROWS * PANEL;
    const u64 queries = along_rows(own_q + mine), gradients = along_rows(own_do + mine);
    auto less_delta = [&] {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) g[n][e] = -delta[e / 2];
    };
    auto start = [&](int third, int now) {
        start_scores<D, HALF, false>(queries, along_rows(keys + third * TILE_SIZE), p);
        wgmma_commit();
        start_scores<D, HALF, true>(gradients, along_rows(values + now * TILE_SIZE), g);
        wgmma_commit();
    };
    auto start_last = [&](int third) {
        start_sums<D, HALF>(ds, over_rows(keys + third * TILE_SIZE, AT_ONCE * PANEL), dq);
        wgmma_commit();
    };
    auto powers = [&] {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) p[n][e] = exp2_fast(p[n][e] * scale - lse[e / 2]);
    };
    auto gradients_of_scores = [&](int at) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) p[n][e] *= g[n][e];
        mask_of_warp(ranges, at, 0.0f, p);
    };
    ready();
    if (lo < hi) {
        bring(lo + AT_ONCE, 1, 1);
        less_delta();
        wgmma_fence(p, g);
        start(0, 0);
        wgmma_wait(1, p);
        powers();
        wgmma_wait(0, g);
        gradients_of_scores(lo);
        pack_left<HALF>(p, ds);
        int third = 1, before = 0, now = 1;
#pragma unroll 1
        for (int at = lo + AT_ONCE; at < hi; at += AT_ONCE, now ^= 1) {
            const int next = third == 2 ? 0 : third + 1;
            ready();
            bring(at + AT_ONCE, next, now ^ 1);
            less_delta();
            wgmma_fence(p, g, dq, ds);
            start(third, now);
            start_last(before);
            wgmma_wait(2, p);
            powers();
            wgmma_wait(1, g);
            gradients_of_scores(at);
            wgmma_wait(0, dq, ds);
            pack_left<HALF>(p, ds);
            before = third;
            third = next;
        }
        wgmma_fence(dq, ds);
        start_last(before);
        wgmma_wait(0, dq, ds);
    }
    store<D, HALF>({a.dq, column, D}, first, dq, a.scale, a.scale);
    zero_pads_of_tile(a.dq, first, ROWS);
}

// dk and dv of a tile of keys: over the query heads that share the key head, in order, and their tiles of queries, dv += p^T do,
// dk += scale ds^T q. Scores have a row for each key. In shared memory: keys and values, three stages of queries and their do, and of each
// stage the queries' lse and negative delta.
template <int D, int AT_ONCE, bool HALF, class A>
__device__ inline void backward_keys(const A& a, u16* memory, RowRanges& ranges) {
    const int N = AT_ONCE / 8, TILE_SIZE = AT_ONCE * D, ME = threadIdx.x;
    u16 *own_k = first_panel(memory), *own_v = own_k + ROWS * D, *stages = own_v + ROWS * D;
    float* numbers = (float*)(stages + 6 * TILE_SIZE);
    const int first = first_row<ROWS>(0), head = blockIdx.y, column = head * D;
    fetch<D, ROWS>(a.k, column, first, (int)a.k.rows, own_k);
    fetch<D, ROWS>(a.v, column, first, (int)a.k.rows, own_v);
    find_ranges(a.k_segs, a.q_segs, a.k.rows, first, a.causal ? FROM : ALL, ranges);
    const int lo = ranges.begin[0], hi = ranges.end[ROWS - 1];
    // The head and the queries of this step and of the next.
    int h = head * a.group, at = lo, next_h = h, next = lo, now = 0;
    const int end = lo < hi ? h + a.group : h;
    // One of the next step's numbers, on its way to shared memory.
    float number = 0.0f;
    auto bring = [&](int stage) {
        if (next_h < end) {
            fetch<D, AT_ONCE>(a.q, next_h * D, next, hi, stages + 2 * stage * TILE_SIZE);
            fetch<D, AT_ONCE>(a.d_o, next_h * D, next, hi, stages + (2 * stage + 1) * TILE_SIZE);
            const i64 row = next + ME % AT_ONCE;
            if (ME >= 2 * AT_ONCE || row >= hi) number = 0.0f;
            else if (ME < AT_ONCE) number = get(a.lse, row * anew(a.lse.pitch) + next_h) * LOG2_E;
            else number = -((const float*)a.delta.data)[next_h * (i64)anew((int)a.q.rows) + row];
        }
        copies_commit();
    };
    auto put_number = [&](int stage) {
        if (ME < 2 * AT_ONCE) numbers[2 * stage * AT_ONCE + ME] = number;
    };
    bring(0);
    put_number(0);

    float dk[D / 8][4], dv[D / 8][4], p[N][4], g[N][4];
    u32 left[N / 2][4], ds[N / 2][4];
    clear_fragments(dk);
    clear_fragments(dv);
    const float scale = a.scale * LOG2_E;
    const int mine = group_of_warps() * GROUP_ROWS * PANEL;
    const u64 keys = along_rows(own_k + mine), values = along_rows(own_v + mine);
    wgmma_fence(dk, dv);
#pragma unroll 1
    for (; h < end; h = next_h, at = next, now = now == 2 ? 0 : now + 1) {
        next += AT_ONCE;
        if (next >= hi) {
            next = lo;
            next_h++;
        }
        const int following = now == 2 ? 0 : now + 1;
        ready();
        bring(following);
        const u16 *queries = stages + 2 * now * TILE_SIZE, *gradients = queries + TILE_SIZE;
        const float* of_query = numbers + 2 * now * AT_ONCE + lane_column();
#pragma unroll
        for (int n = 0; n < N; n++) {
            const TwoWords less_delta = *(const TwoWords*)(of_query + AT_ONCE + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; e++) g[n][e] = float_of(less_delta.w[e % 2]);
        }
        wgmma_fence(p, g);
        start_scores<D, HALF, false>(keys, along_rows(queries), p);
        wgmma_commit();
        start_scores<D, HALF, true>(values, along_rows(gradients), g);
        wgmma_commit();
        // The one of the step before is done, too.
        wgmma_wait(1, p, ds);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const TwoWords lse = *(const TwoWords*)(of_query + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; e++) p[n][e] = exp2_fast(p[n][e] * scale - float_of(lse.w[e % 2]));
        }
        mask_of_warp(ranges, at, 0.0f, p);
        pack_left<HALF>(p, left);
        wgmma_fence(left);
        start_sums<D, HALF>(left, over_rows(gradients, AT_ONCE * PANEL), dv);
        wgmma_commit();
        wgmma_wait(1, g);
        // What a masked row or column holds may be NaN.
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) p[n][e] = p[n][e] == 0.0f ? 0.0f : p[n][e] * g[n][e];
        pack_left<HALF>(p, ds);
        wgmma_fence(ds);
        start_sums<D, HALF>(ds, over_rows(queries, AT_ONCE * PANEL), dk);
        wgmma_commit();
        put_number(following);
        wgmma_wait(1, left);
    }
    wgmma_wait(0, dk, dv, ds);
    // Of rows that nothing sees, too.
    copies_wait(0);
    store<D, HALF>({a.dk, column, D}, first, dk, a.scale, a.scale);
    store<D, HALF>({a.dv, column, D}, first, dv, 1.0f, 1.0f);
    zero_pads_of_tile(a.dk, first, ROWS);
    zero_pads_of_tile(a.dv, first, ROWS);
}

#define BODY(function, width, at_once) OF_EITHER_TYPE(RowRanges, function, width, at_once)
#else
// Other cards have other kernels.
#define BODY(function, width, at_once) {}
#endif

#define WIDTH(width, forward_keys, keys, queries)                                           \
    KERNEL(attention_wgmma_##width) BODY(forward, width, forward_keys)                      \
    KERNEL(attention_wgmma_queries_grad_##width) BODY(backward_queries, width, keys)        \
    KERNEL(attention_wgmma_keys_grad_##width) BODY(backward_keys, width, queries)
WIDTH(64, 64, 64, 64)
WIDTH(128, 128, 64, 64)
