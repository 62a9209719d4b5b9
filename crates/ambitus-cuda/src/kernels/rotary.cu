// Rotary position embedding (Su et al., arXiv 2104.09864).

KERNEL(rotary_frequencies) {
    each(a.y, [&](i64 i) { put(a.y, i, (float)pow(a.base, -2.0 * (double)i / a.dim)); });
}

// Heads that a thread turns by one angle. All their elements are read before the first is written, and no
// other thread touches them: y may be x.
enum { HEADS = 4 };

// Channel pair (p, q) of heads first.. of the row that starts at `start`. T is as wide as an element.
template <class T>
__device__ inline void turn(const rotary_args& a, i64 start, int first, int p, int q, float cos, float sin) {
    const T* x = (const T*)a.x.data + start;
    T* y = (T*)a.y.data + start;
    T u[HEADS], v[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int at = (first + h) * a.head_dim;
        if (at < a.y.cols) {
            u[h] = x[at + p];
            v[h] = x[at + q];
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int at = (first + h) * a.head_dim;
        if (first + h < a.rotated) {
            float left = widen(u[h], a.x.dtype), right = widen(v[h], a.x.dtype);
            put(a.y, start + at + p, left * cos - right * sin);
            put(a.y, start + at + q, right * cos + left * sin);
        } else if (at < a.y.cols) {
            y[at + p] = u[h];
            y[at + q] = v[h];
        }
    }
}

// A thread per row, group of heads and pair; neighbours have neighbouring pairs.
KERNEL(rotary) {
    u32 half = a.head_dim / 2, groups = (a.y.cols / a.head_dim + HEADS - 1) / HEADS;
    u32 n = (u32)a.y.rows * groups * half;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int pair = i % half, first = i / half % groups * HEADS;
        i64 row = i / half / groups, start = row * a.y.pitch;
        int p = a.interleaved ? 2 * pair : pair, q = a.interleaved ? p + 1 : p + (int)half;
        if (first == 0)
            for (int c = a.y.cols + pair; c < a.y.pitch; c += half) zero(a.y, start + c);
        int segment = segment_of(a.segs, row);
        if (segment < 0) {
            int end = (first + HEADS) * a.head_dim;
            if (end > a.y.cols) end = a.y.cols;
            for (int at = first * a.head_dim; at < end; at += a.head_dim) {
                zero(a.y, start + at + p);
                zero(a.y, start + at + q);
            }
            continue;
        }
        i64 position = a.at.data ? get_int(a.at, row) : row - get_int(a.segs, segment);
        float angle = (float)position * get(a.freqs, pair);
        float sin = sinf(angle), cos = cosf(angle);
        if (a.inverse) sin = -sin;
        if (a.y.dtype == F32) turn<u32>(a, start, first, p, q, cos, sin);
        else turn<u16>(a, start, first, p, q, cos, sin);
    }
}
