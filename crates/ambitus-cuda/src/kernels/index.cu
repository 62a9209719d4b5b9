// Table look-ups and their gradient.

template <class N>
__device__ inline void gather_rows(const gather_args& a) {
    const N n = (N)a.y.rows * (N)a.stored;
    for (N i = (N)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        N row = i / (N)a.stored;
        int c = (int)(i - row * (N)a.stored);
        int id = (a.segmented ? segment_of(a.ids, row) : get_int(a.ids, row)) - a.first;
        if (id >= 0 && id < a.table.rows && c < a.data)
            move_unit(a.table.data, (i64)id * a.table_step + c, a.y.data, i, a.size);
        else if (!a.before.data)
            zero_unit(a.y.data, i, a.size);
        else if (a.before.data != a.y.data)
            move_unit(a.before.data, i, a.y.data, i, a.size);
    }
}

KERNEL(gather) {
    // Divisions of 32 bits are several times cheaper; the last step past the end must not wrap either.
    if (a.y.rows * a.stored <= 0x7fffffff) gather_rows<u32>(a);
    else gather_rows<u64>(a);
}

KERNEL(write_rows) {
    const i64 n = (i64)a.x.rows * a.data;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        i64 row = i / a.data;
        int c = (int)(i - row * a.data), to = get_int(a.at, row);
        if (to >= 0 && to < a.y.rows) move_unit(a.x.data, row * a.from + c, a.y.data, (i64)to * a.to + c, a.size);
    }
}

__device__ inline int known(int id, int rows) { return id >= 0 && id < rows ? id : rows; }

// An id's place in the sorted list is the number of ids before it: a warp counts them for four ids at once. All
// pairs are compared, which for the tokens of a step is less work than a sort of several kernels.
KERNEL(scatter_sort) {
    const int n = a.ids.cols;
    const int lane = threadIdx.x % 32;
    const int first = (int)((blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 4);
    int id[4], less[4], equal[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        id[k] = first + k < n ? known(get_int(a.ids, first + k) - a.first, a.rows) : a.rows;
        less[k] = equal[k] = 0;
    }
    for (int t = lane; t < n; t += 32) {
        int other = known(get_int(a.ids, t) - a.first, a.rows);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            less[k] += other < id[k];
            equal[k] += other == id[k] && t < first + k;
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        for (int step = 16; step > 0; step /= 2) {
            less[k] += __shfl_xor_sync(0xffffffffu, less[k], step);
            equal[k] += __shfl_xor_sync(0xffffffffu, equal[k], step);
        }
        if (lane == 0 && first + k < n) {
            const int at = less[k] + equal[k];
            ((int*)a.order)[at] = first + k;
            ((int*)a.sorted)[at] = id[k];
            ((int*)a.places)[at] = equal[k];
        }
    }
}

// How many of the sorted ids are less than `id`.
__device__ inline int ids_below(const int* sorted, int n, int id) {
    int low = 0, high = n;
    while (low < high) {
        int mid = (low + high) / 2;
        if (sorted[mid] < id) low = mid + 1;
        else high = mid;
    }
    return low;
}

__device__ inline float factor(const View& beta) { return beta.data ? get(beta, 0) : 0.0f; }

// A warp takes a row. With beta 1 nothing is left to do, with beta 0 y is not read.
KERNEL(scatter_rest) {
    const float beta = factor(a.beta);
    const int* sorted = (const int*)a.sorted;
    const int row = (int)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    if (beta == 1.0f || row >= a.y.rows) return;
    const int at = ids_below(sorted, a.ids, row);
    if (at < a.ids && sorted[at] == row) return;
    const int lane = threadIdx.x % 32;
    if (beta == 0.0f) {
        for (int c = lane; c < a.stored; c += 32) zero_unit(a.y.data, (i64)row * a.stored + c, a.size);
        return;
    }
    for (int c = lane; c < a.y.cols; c += 32) {
        i64 i = (i64)row * a.y.pitch + c;
        put(a.y, i, beta * get(a.y, i));
    }
}

// Rows that are loaded at a time.
enum { LOADED = 8 };

// Adds `n` rows of x, of which the i-th is row `row_of(i)`, in order: four columns from c on, of which `real` are no pads.
template <class RowOf>
__device__ inline void add_rows(Four& sum, const View& x, int n, int c, int real, RowOf row_of) {
    for (int begin = 0; begin < n; begin += LOADED) {
        Four read[LOADED];
#pragma unroll
        for (int k = 0; k < LOADED; k++)
            if (begin + k < n) read[k] = get4(x, (i64)row_of(begin + k) * x.pitch + c, real);
#pragma unroll
        for (int k = 0; k < LOADED; k++) {
            if (begin + k >= n) break;
#pragma unroll
            for (int e = 0; e < 4; e++) sum.v[e] += read[k].v[e];
        }
    }
}

__device__ inline void put_sum(const View& y, const View& beta, int row, int c, int real, Four& sum) {
    const float by = factor(beta);
    const i64 at = (i64)row * y.pitch + c;
    if (by != 0.0f) {
        Four old = get4(y, at, real);
#pragma unroll
        for (int e = 0; e < 4; e++) sum.v[e] += by * old.v[e];
    }
    put4(y, at, up_to_four(y.pitch - c), real, sum);
}

// A block takes the piece that begins at its place in the sorted list, if one does; a thread four columns of it. Of an id with more
// than one piece the first is left to `scatter_total`, which writes the row.
KERNEL(scatter_pieces) {
    const int* sorted = (const int*)a.sorted;
    const int* order = (const int*)a.order;
    const int first = (int)blockIdx.x, row = sorted[first], place = ((const int*)a.places)[first];
    const int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * 4;
    if (row >= a.y.rows || place % a.piece != 0 || c >= a.y.pitch) return;
    const bool more = first + a.piece < a.ids && sorted[first + a.piece] == row;
    if (place == 0 && more) return;
    const int left = a.ids - first;
    const int n = ids_below(sorted + first, left < a.piece ? left : a.piece, row + 1);
    const int real = up_to_four(a.y.cols - c);
    Four sum = {};
    add_rows(sum, a.x, n, c, real, [&](int k) { return order[first + k]; });
    if (place == 0) put_sum(a.y, a.beta, row, c, real, sum);
    else if (real > 0) put4(a.sums, (i64)(first / a.piece) * a.sums.pitch + c, real, real, sum);
}

// The block at an id's first place takes the id's row of y, if it has several pieces.
KERNEL(scatter_total) {
    const int* sorted = (const int*)a.sorted;
    const int* order = (const int*)a.order;
    const int first = (int)blockIdx.x, row = sorted[first];
    const int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * 4;
    if (row >= a.y.rows || ((const int*)a.places)[first] != 0 || c >= a.y.pitch) return;
    if (first + a.piece >= a.ids || sorted[first + a.piece] != row) return;
    const int n = ids_below(sorted + first, a.ids - first, row + 1);
    const int real = up_to_four(a.y.cols - c);
    Four sum = {};
    add_rows(sum, a.x, a.piece, c, real, [&](int k) { return order[first + k]; });
    add_rows(sum, a.sums, (n - 1) / a.piece, c, real, [&](int k) { return first / a.piece + 1 + k; });
    put_sum(a.y, a.beta, row, c, real, sum);
}

// The frequency is rounded to fp32 where the references round it.
__device__ inline float frequency(const sinusoid_args& a, int i) {
    if (a.cosines_first) return 1.0f / (float)pow(a.base, (double)((float)i / (float)a.half));
    return (float)exp((double)((float)i * a.step));
}

KERNEL(sinusoid) {
    each(a.y, [&](i64 at) {
        int column = (int)(at % a.y.pitch);
        bool second = column >= a.half;
        float angle = a.scale * get(a.x, at / a.y.pitch) * frequency(a, second ? column - a.half : column);
        put(a.y, at, second != (a.cosines_first != 0) ? cosf(angle) : sinf(angle));
    });
}
