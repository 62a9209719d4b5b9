// What every kernel file may use. Written for NVRTC without any header, and for a host C++ compiler: tests run every
// kernel on the processor (ambitus-testkit/emulated_cuda/block.h).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef __CUDACC__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
// Threads that a multiprocessor holds.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
#define RESIDENT 2048
#elif __CUDA_ARCH__ == 750
#define RESIDENT 1024
#else
#define RESIDENT 1536
#endif
// How many blocks of a kernel shall fit a multiprocessor: that bounds its registers. Left alone, ptxas may spill to fit
// more of them (sm_90a).
__device__ constexpr int resident_blocks(int threads, int registers) {
    int by_registers = 65536 / (threads * registers), by_threads = RESIDENT / threads;
    int blocks = by_registers < by_threads ? by_registers : by_threads;
    return blocks > 0 ? blocks : 1;
}
// A kernel takes one struct, `<name>_args`; its threads per block are `<name>_block`, its registers
// `<name>_registers`. All are declared from Rust.
#define KERNEL(name)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(name##_block, resident_blocks(name##_block, name##_registers)) name( \
        const name##_args a)
__device__ inline u32 bits_of(float x) { return __float_as_uint(x); }
__device__ inline float float_of(u32 x) { return __uint_as_float(x); }
__device__ inline float half_to_float(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
// 1 / x to 1 ulp, of an x that is neither tiny nor huge.
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline u16 float_to_half(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#endif

// Element types, as Rust numbers them.
enum { F32 = 0, BF16 = 1, F16 = 2, I32 = 3, U8 = 4 };

// A tensor in memory: rows (all axes but the last) of `cols` elements, `pitch` elements apart.
struct View {
    void* data;
    i64 rows;
    int cols;
    int pitch;
    int dtype;
    int reserved;
};

// Up to four axis lengths or strides.
struct Axes {
    i64 d[4];
};

// Several tensors: operands of an op that takes any number of them.
struct Views {
    View at[48];
};

// What several instructions of one launch work on, WIDTH tensors each.
template <int WIDTH, int MOST>
struct Table {
    View at[MOST][WIDTH];
    // The number of the first block that works on each.
    int first[MOST];
    int n;
};

// A stretch of every equal part of a flat, as kernels/collective.rs says.
struct Stretch {
    i64 parts, stride, first, n;
};

// What codes of 8 bits mean.
struct Map {
    float x[256];
};

__device__ inline float bf16_to_float(u16 h) { return float_of((u32)h << 16); }

// Round to nearest, ties to even; NaN stays NaN.
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
__device__ inline u16 float_to_bf16(float x) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#else
__device__ inline u16 float_to_bf16(float x) {
    u32 b = bits_of(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return (u16)((b >> 16) | 0x40u);
    return (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
#endif

// The element at place `i` (row * pitch + column) as a float. i32 is converted.
__device__ inline float get(const View& v, i64 i) {
    if (v.dtype == F32) return ((const float*)v.data)[i];
    if (v.dtype == BF16) return bf16_to_float(((const u16*)v.data)[i]);
    if (v.dtype == F16) return half_to_float(((const u16*)v.data)[i]);
    if (v.dtype == I32) return (float)((const int*)v.data)[i];
    return (float)((const u8*)v.data)[i];
}

// Rounds to the tensor's type; floats to integers truncate.
__device__ inline void put(const View& v, i64 i, float x) {
    if (v.dtype == F32) ((float*)v.data)[i] = x;
    else if (v.dtype == BF16) ((u16*)v.data)[i] = float_to_bf16(x);
    else if (v.dtype == F16) ((u16*)v.data)[i] = float_to_half(x);
    else if (v.dtype == I32) ((int*)v.data)[i] = (int)x;
    else ((u8*)v.data)[i] = (u8)x;
}

// `get` for one element type, known when the code is compiled: see `reading`.
struct ReadF32 {
    const float* data;
    __device__ float operator()(i64 i) const { return data[i]; }
};
struct ReadBf16 {
    const u16* data;
    __device__ float operator()(i64 i) const { return bf16_to_float(data[i]); }
};
struct ReadF16 {
    const u16* data;
    __device__ float operator()(i64 i) const { return half_to_float(data[i]); }
};
struct ReadAny {
    const View& view;
    __device__ float operator()(i64 i) const { return get(view, i); }
};

// f(read) with read(i) = get(v, i): loops inside f do not ask for the element type, so that their loads can be under
// way together. f is a struct with a template operator() (NVRTC takes no generic lambdas), compiled once per type: for
// the loop that takes the time only.
template <class F>
__device__ inline float reading(const View& v, F f) {
    if (v.dtype == F32) return f(ReadF32{(const float*)v.data});
    if (v.dtype == BF16) return f(ReadBf16{(const u16*)v.data});
    if (v.dtype == F16) return f(ReadF16{(const u16*)v.data});
    return f(ReadAny{v});
}

// An element's bits as a float: for loads that are made in a row, before any of them is needed. `dtype` is a float type.
__device__ inline float widen(u32 bits, int dtype) {
    return dtype == F32 ? float_of(bits) : dtype == BF16 ? bf16_to_float((u16)bits) : half_to_float((u16)bits);
}

__device__ inline int get_int(const View& v, i64 i) { return ((const int*)v.data)[i]; }
__device__ inline void put_int(const View& v, i64 i, int x) { ((int*)v.data)[i] = x; }

// Copies one element between tensors of one type, bit by bit.
__device__ inline void move(const View& from, i64 i, const View& to, i64 j) {
    if (to.dtype == F32 || to.dtype == I32) ((u32*)to.data)[j] = ((const u32*)from.data)[i];
    else if (to.dtype == U8) ((u8*)to.data)[j] = ((const u8*)from.data)[i];
    else ((u16*)to.data)[j] = ((const u16*)from.data)[i];
}

__device__ inline void zero(const View& v, i64 i) {
    if (v.dtype == F32 || v.dtype == I32) ((u32*)v.data)[i] = 0;
    else if (v.dtype == U8) ((u8*)v.data)[i] = 0;
    else ((u16*)v.data)[i] = 0;
}

// Sixteen bytes that move as one.
struct alignas(16) Chunk {
    u32 words[4];
};

// Copies unit i of `from` to unit j of `to`, units of 1, 2, 4, 8 or 16 bytes: rows whose lengths allow it are moved in
// units wider than their elements.
__device__ inline void move_unit(const void* from, i64 i, void* to, i64 j, int size) {
    if (size == 16) ((Chunk*)to)[j] = ((const Chunk*)from)[i];
    else if (size == 8) ((u64*)to)[j] = ((const u64*)from)[i];
    else if (size == 4) ((u32*)to)[j] = ((const u32*)from)[i];
    else if (size == 2) ((u16*)to)[j] = ((const u16*)from)[i];
    else ((u8*)to)[j] = ((const u8*)from)[i];
}

__device__ inline void zero_unit(void* to, i64 j, int size) {
    if (size == 16) ((Chunk*)to)[j] = Chunk{{0, 0, 0, 0}};
    else if (size == 8) ((u64*)to)[j] = 0;
    else if (size == 4) ((u32*)to)[j] = 0;
    else if (size == 2) ((u16*)to)[j] = 0;
    else ((u8*)to)[j] = 0;
}

// The place of the element with this row-major number.
__device__ inline i64 place(const View& v, i64 element) {
    return v.pitch == v.cols ? element : element / v.cols * v.pitch + element % v.cols;
}

// Zeroes the pads of a row: with the threads of a block.
__device__ inline void zero_pads(const View& v, i64 row) {
    for (int c = v.cols + threadIdx.x; c < v.pitch; c += blockDim.x) zero(v, row * v.pitch + c);
}

// Of `rows` rows from `first` on: once, by the blocks of the grid's first axis.
__device__ inline void zero_pads_of_tile(const View& v, int first, int rows) {
    if (v.pitch == v.cols || blockIdx.y > 0) return;
    for (int i = 0; i < rows && first + i < v.rows; i++) zero_pads(v, first + i);
}

// Calls f(place) for every element, with all threads of a one-dimensional grid; pads become zero.
template <class F>
__device__ inline void each(const View& y, F f) {
    i64 n = y.rows * y.pitch;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        if (y.pitch != y.cols && i % y.pitch >= y.cols) zero(y, i);
        else f(i);
    }
}

// The segment that a row belongs to, or -1. A table holds ascending row offsets, the first 0; segments may be empty.
__device__ inline int segment_of(const View& table, i64 row) {
    const int* offset = (const int*)table.data;
    int low = 0, high = table.cols;
    while (low < high) {
        int middle = (low + high) / 2;
        if (offset[middle] > row) high = middle;
        else low = middle + 1;
    }
    return low == table.cols ? -1 : low - 1;
}

// Sums over a block, in an order that depends on the block's size only; every thread gets the sum. Blocks are whole
// warps. `shared` is a static array of 32 floats, free for another use after the next barrier.
__device__ inline float block_sum(float x, float* shared) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < (int)blockDim.x / 32; w++) sum += shared[w];
    return sum;
}

// As block_sum, but `shared` is free for another use when the function returns.
__device__ inline float block_max(float x, float* shared) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float most = shared[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) most = fmaxf(most, shared[w]);
    __syncthreads();
    return most;
}

// Folds f(k) for k = first, first + step, .. below `last` into `all`, in order. Four are under way at a time: the
// compiler does not see that a step of unknown length allows it.
template <class Fold, class F>
__device__ inline float fold_steps(i64 first, i64 last, int step, float all, Fold fold, F f) {
    const i64 by = step;
    i64 k = first;
    for (; k + 3 * by < last; k += 4 * by) {
        float p = f(k), q = f(k + by), r = f(k + 2 * by), s = f(k + 3 * by);
        all = fold(fold(fold(fold(all, p), q), r), s);
    }
    for (; k < last; k += by) all = fold(all, f(k));
    return all;
}

// Folds f(first), f(first + 1), .. f(last - 1) for each of `width` columns, the block seen as rows of `width` threads:
// each row of threads takes every `lanes`-th number, then the rows are folded as a tree. The result is that of the
// threads below `width`. `shared` is a static array of the block's size. For a whole block.
template <class Fold, class F>
__device__ inline float fold_rows(i64 first, i64 last, int width, float start, float* shared, Fold fold, F f) {
    int lane = threadIdx.x / width, lanes = blockDim.x / width;
    shared[threadIdx.x] = fold_steps(first + lane, last, lanes, start, fold, f);
    __syncthreads();
    for (int half = lanes / 2; half > 0; half /= 2) {
        if (lane < half) shared[threadIdx.x] = fold(shared[threadIdx.x], shared[threadIdx.x + half * width]);
        __syncthreads();
    }
    return shared[threadIdx.x];
}

// Four neighbouring elements: what a thread of a memory-bound kernel moves at a time.
struct Four {
    float v[4];
};
struct alignas(16) FourWords {
    u32 w[4];
};
struct alignas(8) TwoWords {
    u32 w[2];
};

// Bits of four neighbouring elements, narrow ones each in the low half of a word.
struct Bits4 {
    u32 v[4];
};

// The `n` elements from place `i` on, of any type but u8; beyond them 0. One access where the place is a multiple of four: tensors
// start at multiples of 256 bytes. WHOLE: all are, and there are four.
template <bool WHOLE = false>
__device__ inline Bits4 get_bits4(const View& v, i64 i, int n) {
    Bits4 x = {{0, 0, 0, 0}};
    bool wide = v.dtype == F32 || v.dtype == I32;
    if (!WHOLE && (n < 4 || i % 4 != 0)) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < n) x.v[k] = wide ? ((const u32*)v.data)[i + k] : ((const u16*)v.data)[i + k];
    } else if (wide) {
        FourWords b = *(const FourWords*)((const u32*)v.data + i);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = b.w[k];
    } else {
        TwoWords b = *(const TwoWords*)((const u16*)v.data + i);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = b.w[k / 2] >> (k % 2 * 16) & 0xffffu;
    }
    return x;
}

// Writes `n` elements from place `i` on.
template <bool WHOLE = false>
__device__ inline void put_bits4(const View& v, i64 i, int n, const Bits4& x) {
    bool wide = v.dtype == F32 || v.dtype == I32;
    if (!WHOLE && (n < 4 || i % 4 != 0)) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < n) {
                if (wide) ((u32*)v.data)[i + k] = x.v[k];
                else ((u16*)v.data)[i + k] = (u16)x.v[k];
            }
    } else if (wide) {
        *(FourWords*)((u32*)v.data + i) = {{x.v[0], x.v[1], x.v[2], x.v[3]}};
    } else {
        *(TwoWords*)((u16*)v.data + i) = {{x.v[0] | x.v[1] << 16, x.v[2] | x.v[3] << 16}};
    }
}

// Of floats, the `n` elements from place `i` on; beyond them 0.
template <bool WHOLE = false>
__device__ inline Four get4(const View& v, i64 i, int n) {
    Bits4 b = get_bits4<WHOLE>(v, i, n);
    Four x;
    // The type is asked for once.
    if (v.dtype == F16) {
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = half_to_float((u16)b.v[k]);
        return x;
    }
    const int shift = v.dtype == F32 ? 0 : 16;
#pragma unroll
    for (int k = 0; k < 4; k++) x.v[k] = float_of(b.v[k] << shift);
    return x;
}

// Writes `n` elements from place `i` on, those beyond the first `real` as 0: pads.
template <bool WHOLE = false>
__device__ inline void put4(const View& v, i64 i, int n, int real, const Four& x) {
    Bits4 b;
#pragma unroll
    for (int k = 0; k < 4; k++) b.v[k] = bits_of(WHOLE || k < real ? x.v[k] : 0.0f);
    if (v.dtype == BF16) {
#pragma unroll
        for (int k = 0; k < 4; k++) b.v[k] = float_to_bf16(float_of(b.v[k]));
    } else if (v.dtype == F16) {
#pragma unroll
        for (int k = 0; k < 4; k++) b.v[k] = float_to_half(float_of(b.v[k]));
    }
    put_bits4<WHOLE>(v, i, n, b);
}

__device__ inline float sum4(const Four& x) { return (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]); }

// At most four of what is left, none when nothing is.
__device__ inline int up_to_four(i64 left) { return left >= 4 ? 4 : left > 0 ? (int)left : 0; }

// Blocks that work on one thing: this one's number among them, and how many there are.
struct Blocks {
    int mine, all;
};

// Calls f(place, n, real) for every four elements, with all threads of some blocks: n places, pads included, of which the
// first `real` are not pads. Rows with pads are multiples of 16 bytes: no four lie in two rows.
template <class F>
__device__ inline void each4(const View& y, F f, Blocks blocks) {
    i64 n = y.rows * y.pitch;
    i64 step = (i64)blocks.all * blockDim.x * 4;
    for (i64 i = ((i64)blocks.mine * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
        int here = up_to_four(n - i);
        f(i, here, y.pitch == y.cols ? here : up_to_four(y.cols - i % y.pitch));
    }
}

// Of a one-dimensional grid.
template <class F>
__device__ inline void each4(const View& y, F f) {
    each4(y, f, {(int)blockIdx.x, (int)gridDim.x});
}

// Who works on a row: a warp where rows are narrow, else a block. A thread has the columns first..first + 4 and those
// every `step` further on, in all passes over the row.
struct Team {
    i64 row;
    int first;
    int step;
    bool warp;
};

__device__ inline Team row_team(int narrow) {
    if (narrow) {
        int warps = blockDim.x / 32;
        return {(i64)blockIdx.x * warps + threadIdx.x / 32, (int)(threadIdx.x % 32) * 4, 128, true};
    }
    return {(i64)blockIdx.x, (int)threadIdx.x * 4, (int)blockDim.x * 4, false};
}

// Sums over a row's threads, in an order that depends on the team's size only; every thread gets the sums.
template <int N>
__device__ inline void team_sum(const Team& team, float (&x)[N]) {
    __shared__ float parts[N][32];
#pragma unroll
    for (int k = 0; k < N; k++)
        for (int step = 16; step > 0; step /= 2) x[k] += __shfl_xor_sync(0xffffffffu, x[k], step);
    if (team.warp) return;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (threadIdx.x % 32 == 0) parts[k][threadIdx.x / 32] = x[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        x[k] = 0.0f;
        for (int w = 0; w < (int)blockDim.x / 32; w++) x[k] += parts[k][w];
    }
    __syncthreads();
}

// As block_sum, in double precision: blocks are a power of two, `shared` has an element per thread.
__device__ inline double block_sum_double(double x, double* shared) {
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

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

// AdamW, as its op says. Its constants; new1 is 1 - beta1.
struct Adam {
    float beta1, beta2, new1, new2, ln_beta1, ln_beta2, eps, weight_decay;
};

// The numbers of an update that are the same for all elements.
struct Update {
    float coef, keep, rate, scale;
};

template <class Args>
__device__ inline Update update_of(const Args& a) {
    float lr = get(a.lr, 0), t = get(a.t, 0);
    // 1 - beta^t without cancellation where beta^t is near 1.
    float correction1 = -expm1f(t * a.adam.ln_beta1), correction2 = -expm1f(t * a.adam.ln_beta2);
    return {get(a.coef, 0), 1.0f - lr * a.adam.weight_decay, lr / correction1, 1.0f / sqrtf(correction2)};
}

__device__ inline void step4(const Adam& a, const Update& u, const Four& g, Four& w, Four& m, Four& v) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float grad = u.coef * g.v[k];
        m.v[k] = a.beta1 * m.v[k] + a.new1 * grad;
        v.v[k] = a.beta2 * v.v[k] + a.new2 * (grad * grad);
        w.v[k] = w.v[k] * u.keep - u.rate * (m.v[k] / (sqrtf(v.v[k]) * u.scale + a.eps));
    }
}

// Lion, as its op says. Its constants; new1 is 1 - beta1.
struct Lion {
    float beta1, beta2, new1, new2, weight_decay;
};

// The numbers of an update that are the same for all elements.
struct LionUpdate {
    float coef, keep, rate;
};

template <class Args>
__device__ inline LionUpdate lion_update_of(const Args& a) {
    float lr = get(a.lr, 0);
    return {get(a.coef, 0), 1.0f - lr * a.lion.weight_decay, lr};
}

__device__ inline void lion4(const Lion& a, const LionUpdate& u, const Four& g, Four& w, Four& m) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float grad = u.coef * g.v[k];
        float mixed = a.beta1 * m.v[k] + a.new1 * grad;
        float step = mixed > 0.0f ? u.rate : mixed < 0.0f ? -u.rate : 0.0f;
        w.v[k] = w.v[k] * u.keep - step;
        m.v[k] = a.beta2 * m.v[k] + a.new2 * grad;
    }
}
