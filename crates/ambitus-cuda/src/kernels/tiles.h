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
#endif
