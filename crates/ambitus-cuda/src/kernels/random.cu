// Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

struct Words {
    u32 w[4];
};

__device__ inline Words philox4x32_10(Words c, u32 key0, u32 key1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xd2511f53u, c.w[0]), low0 = 0xd2511f53u * c.w[0];
        u32 high1 = __umulhi(0xcd9e8d57u, c.w[2]), low1 = 0xcd9e8d57u * c.w[2];
        c = Words{{high1 ^ c.w[1] ^ key0, low1, high0 ^ c.w[3] ^ key1, low0}};
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return c;
}

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
