// Segment tables: ids, positions, sums by segment.

KERNEL(segment_ids) {
    each(a.y, [&](i64 i) { put_int(a.y, i, segment_of(a.segs, i)); });
}

KERNEL(segment_positions) {
    each(a.y, [&](i64 i) {
        int s = segment_of(a.segs, i);
        put(a.y, i, s < 0 ? 0.0f : (float)(i - get_int(a.segs, s)));
    });
}

// Where the parts of a segment that starts at a row begin. A segment of n rows has ceil(n / tile) parts, and
// floor(a / tile) + ceil(n / tile) <= floor((a + n) / tile) + 1: so no two segments meet, and those of S segments
// and T rows fit T / tile + S places.
__device__ inline int first_part(int start, int s, int tile) { return start / tile + s; }

// The sum of a column over rows first .. last - 1; that of thread t is column t.
struct Rows {
    i64 first, last, at, pitch;
    float* shared;
    template <class Read> __device__ float operator()(Read read) const {
        return fold_rows(
            first, last, 32, 0.0f, shared, [](float p, float q) { return p + q; },
            [&](i64 row) { return read(at + row * pitch); });
    }
};

__device__ inline float sum_rows(const View& x, i64 first, i64 last, int c, float* shared) {
    return reading(x, Rows{first, c < x.cols ? last : first, c, x.pitch, shared});
}

KERNEL(segment_parts) {
    __shared__ float shared[segment_parts_block];
    const int* starts = (const int*)a.segs.data;
    const int across = (a.parts.pitch + 31) / 32;
    const int part = blockIdx.x / across, c = blockIdx.x % across * 32 + threadIdx.x % 32;
    // The last segment whose parts begin at or before this place.
    int low = 0, high = a.segs.cols - 2;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (first_part(starts[mid], mid, a.tile) <= part) low = mid;
        else high = mid - 1;
    }
    const i64 first = starts[low] + (i64)(part - first_part(starts[low], low, a.tile)) * a.tile;
    const i64 end = starts[low + 1];
    if (first >= end) return;
    float sum = sum_rows(a.x, first, first + a.tile < end ? first + a.tile : end, c, shared);
    if (threadIdx.x < 32 && c < a.parts.cols) put(a.parts, (i64)part * a.parts.pitch + c, sum);
}

KERNEL(segment_total) {
    __shared__ float shared[segment_total_block];
    const int across = (a.y.pitch + 31) / 32;
    const int s = blockIdx.x / across, c = blockIdx.x % across * 32 + threadIdx.x % 32;
    const int start = get_int(a.segs, s), rows = get_int(a.segs, s + 1) - start;
    const int first = first_part(start, s, a.tile);
    float sum = sum_rows(a.parts, first, first + (rows + a.tile - 1) / a.tile, c, shared);
    if (threadIdx.x < 32 && c < a.y.pitch) put(a.y, (i64)s * a.y.pitch + c, c < a.y.cols ? sum : 0.0f);
}
