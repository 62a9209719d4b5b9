// What attention's kernels share: what rows see, and tiles in the registers of warps of 16 rows.

// What a row at place i of its clip sees of the clip's rows on the other side of an attention: all of them, those up to i, or
// those from i on. Rows of no segment see none, where the other side's last clip ends.
enum { ALL = 0, UP_TO = 1, FROM = 2 };
struct Seen { int begin, end; };

__device__ inline Seen seen_by(const View& segs, const View& others, i64 rows, int row, int which) {
    int segment = row < rows ? segment_of(segs, row) : -1;
    int begin = get_int(others, segment < 0 ? others.cols - 1 : segment), end = begin;
    if (segment < 0) return {begin, end};
    int place = row - get_int(segs, segment);
    end = get_int(others, segment + 1);
    if (which == UP_TO && end - begin > place + 1) end = begin + place + 1;
    if (which == FROM) begin = end - begin > place ? begin + place : end;
    return {begin, end};
}

// What the rows of a tile see of the other side.
template <int ROWS>
struct RangesOf { int begin[ROWS], end[ROWS]; };
enum { TILE = 64 };
typedef RangesOf<TILE> Ranges;

// Rows first .. first + ROWS of the side with `segs`.
template <int ROWS>
__device__ inline void find_ranges(const View& segs, const View& others, i64 rows, int first, int which,
                                   RangesOf<ROWS>& ranges) {
    if (threadIdx.x < ROWS) {
        Seen seen = seen_by(segs, others, rows, first + threadIdx.x, which);
        ranges.begin[threadIdx.x] = seen.begin;
        ranges.end[threadIdx.x] = seen.end;
    }
    __syncthreads();
}

#define LOG2_E 1.44269504f

// A head's channels of a tensor, a multiple of 8.
struct Channels {
    const View& t;
    int column;
    int width;
};

// The tiles that see most come first: they are last where rows see what is before them.
template <int ROWS>
__device__ inline int first_row(int backwards) {
    return (backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS;
}

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800
// Gives scores that rows do not see another value, where others begin at `at`; not where all rows from `first` to `last`, among which are
// the warp's, see all.
template <int ROWS, int N>
__device__ inline void mask(const RangesOf<ROWS>& ranges, int first, int last, int at, float value, float (&s)[N][4]) {
    if (at >= ranges.begin[last] && at + 8 * N <= ranges.end[first]) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = threadIdx.x / 32 * 16 + lane_row() + 8 * half, begin = ranges.begin[row], end = ranges.end[row];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int other = at + 8 * n + lane_column() + e;
                if (other < begin || other >= end) s[n][2 * half + e] = value;
            }
    }
}

// Writes this warp's rows of a tile that begins at `first`, times factors of this thread's two rows.
template <int D, bool HALF>
__device__ inline void store(const Channels& h, int first, const float (&x)[D / 8][4], float by0, float by1) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + threadIdx.x / 32 * 16 + lane_row() + 8 * half;
        if (row >= h.t.rows) continue;
        const float by = half == 0 ? by0 : by1;
        u16* to = (u16*)h.t.data + (i64)row * h.t.pitch + h.column + lane_column();
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (8 * n < h.width) *(u32*)(to + 8 * n) = pack<HALF>(x[n][2 * half] * by, x[n][2 * half + 1] * by);
    }
}

// One step of softmax over rows: scores become exponentials, `keep` is what sums so far are multiplied by. `total` has this thread's columns
// only.
template <int N>
__device__ inline void exponentials(float scale, float (&s)[N][4], float (&most)[2], float (&total)[2], float (&keep)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = most[h];
#pragma unroll
        for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        // A row that has seen no key yet has no finite maximum to take off.
        const float off = top == -INFINITY ? 0.0f : top * scale;
        keep[h] = exp2_fast(most[h] * scale - off);
        most[h] = top;
        total[h] *= keep[h];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                s[n][e] = exp2_fast(s[n][e] * scale - off);
                total[h] += s[n][e];
            }
    }
}

// Multiplies rows, two of each thread.
template <int N>
__device__ inline void scale_rows(const float (&by)[2], float (&x)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) x[n][e] *= by[e / 2];
}

// Ends softmax of a tile that begins at row `first`: writes lse, and gives what the sums are multiplied by.
__device__ inline void end_softmax(const View& lse, int first, int head, float scale, const float (&most)[2], const float (&total)[2],
                                   float (&by)[2]) {
    const int row = first + threadIdx.x / 32 * 16 + lane_row();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = total[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        by[h] = sum == 0.0f ? 0.0f : 1.0f / sum;
        const float of_row = sum == 0.0f ? 0.0f : most[h] * scale + logf(sum);
        if (lane_column() == 0 && row + 8 * h < lse.rows) put(lse, (i64)(row + 8 * h) * lse.pitch + head, of_row);
    }
}

// What a kernel does in the operands' type.
#define OF_EITHER_TYPE(ranges_of_rows, function, width, at_once)                    \
    {                                                                               \
        __shared__ ranges_of_rows ranges;                                           \
        DYNAMIC_SHARED(u16, memory);                                                \
        if (a.q.dtype == F16) function<width, at_once, true>(a, memory, ranges);    \
        else function<width, at_once, false>(a, memory, ranges);                    \
    }
#endif
