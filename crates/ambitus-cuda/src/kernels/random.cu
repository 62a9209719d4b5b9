// Dropout.

// Elements are numbered within their clip, and four numbers share a counter: a thread has the counters'
// elements in its row. Where rows are multiples of four, that is four neighbours. x and y may be one tensor.
KERNEL(dropout) {
    i64 row = blockIdx.x;
    int s = segment_of(a.segs, row), cols = a.y.cols;
    zero_pads(a.y, row);
    if (s < 0) {
        for (int c = threadIdx.x; c < cols; c += (int)blockDim.x) zero(a.y, row * a.y.pitch + c);
        return;
    }
    u32 key0 = (u32)get_int(a.keys, 2 * s), key1 = (u32)get_int(a.keys, 2 * s + 1);
    u64 first = (u64)(row - get_int(a.segs, s)) * (u64)cols, last = first + (u64)cols;
    for (u64 counter = first / 4 + threadIdx.x; counter * 4 < last; counter += blockDim.x) {
        Words c = {{(u32)counter, (u32)(counter >> 32), (u32)a.id, (u32)(a.id >> 32)}};
        Words bits = philox4x32_10(c, key0, key1);
        i64 column = (i64)(counter * 4 - first), at = row * a.y.pitch + column;
        if (column >= 0 && column + 4 <= cols) {
            Four x = get4(a.x, at, 4);
#pragma unroll
            for (int k = 0; k < 4; k++) x.v[k] = bits.w[k] >= a.threshold ? x.v[k] * a.scale : 0.0f;
            put4(a.y, at, 4, 4, x);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (column + k >= 0 && column + k < cols)
                    put(a.y, at + k, bits.w[k] >= a.threshold ? get(a.x, at + k) * a.scale : 0.0f);
        }
    }
}
