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
    int id[4], before[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        id[k] = first + k < n ? known(get_int(a.ids, first + k) - a.first, a.rows) : a.rows;
        before[k] = 0;
    }
    for (int t = lane; t < n; t += 32) {
        int other = known(get_int(a.ids, t) - a.first, a.rows);
#pragma unroll
        for (int k = 0; k < 4; k++) before[k] += other < id[k] || (other == id[k] && t < first + k);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        for (int step = 16; step > 0; step /= 2) before[k] += __shfl_xor_sync(0xffffffffu, before[k], step);
        if (lane == 0 && first + k < n) {
            ((int*)a.order)[before[k]] = first + k;
            ((int*)a.sorted)[before[k]] = id[k];
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

// The sum of a column over rows order[first] .. order[last - 1].
struct Listed {
    const int* order;
    int first, last, c;
    i64 pitch;
    template <class Read> __device__ float operator()(Read read) const {
        float sum = 0.0f;
#pragma unroll 8
        for (int k = first; k < last; k++) sum += read(order[k] * pitch + c);
        return sum;
    }
};

// Of more rows with one id than this a warp sums every eighth; their sums are added in order.
enum { MANY = 32, WARPS = scatter_sum_block / 32 };

// The sums of columns c, c + 32, .. over rows order[first], order[first + 8], .. to parts[0], parts[32], ..
struct EighthOf {
    const int* order;
    int first, last, c, cols;
    i64 pitch;
    float* parts;
    template <class Read> __device__ float operator()(Read read) const {
        float sum[WARPS] = {};
#pragma unroll 2
        for (int k = first; k < last; k += WARPS) {
            const i64 at = order[k] * pitch + c;
#pragma unroll
            for (int j = 0; j < WARPS; j++)
                if (c + 32 * j < cols) sum[j] += read(at + 32 * j);
        }
#pragma unroll
        for (int j = 0; j < WARPS; j++) parts[32 * j] = sum[j];
        return 0.0f;
    }
};

// The block of an id's first place in the sorted list takes the id's row of y, a thread one column; the others
// have nothing to do.
KERNEL(scatter_sum) {
    const int* sorted = (const int*)a.sorted;
    const int* order = (const int*)a.order;
    const int first = (int)blockIdx.x;
    const int row = sorted[first];
    if (row >= a.y.rows || (first > 0 && sorted[first - 1] == row)) return;
    const int last = first + ids_below(sorted + first, a.ids - first, row + 1);
    const int begin = (int)(blockIdx.y * blockDim.x), c = begin + (int)threadIdx.x;
    const bool many = last - first > MANY;
    __shared__ float parts[WARPS][scatter_sum_block];
    if (many) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        reading(a.x, EighthOf{order, first + warp, last, begin + lane, a.x.cols, a.x.pitch, &parts[warp][lane]});
        __syncthreads();
    }
    if (c >= a.y.pitch) return;
    const i64 at = (i64)row * a.y.pitch + c;
    if (c >= a.y.cols) {
        zero(a.y, at);
        return;
    }
    float sum = 0.0f;
    if (many) {
        for (int w = 0; w < WARPS; w++) sum += parts[w][threadIdx.x];
    } else {
        sum = reading(a.x, Listed{order, first, last, c, a.x.pitch});
    }
    const float beta = factor(a.beta);
    put(a.y, at, beta == 0.0f ? sum : beta * get(a.y, at) + sum);
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
