// AdamW and Lion on weights and moments of fewer than four bytes: the numbers are updated in fp32 and rounded as the ops say.
// Elements are counted row-major without pads; pads are zero and stay so.

// `count` elements from element n on.
__device__ inline Four load_elements(const View& v, i64 n, int count) {
    if (v.pitch == v.cols) return get4(v, n, count);
    Four x = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < count) x.v[k] = get(v, place(v, n + k));
    return x;
}

__device__ inline void store_elements(const View& v, i64 n, int count, const Four& x) {
    if (v.pitch == v.cols) {
        put4(v, n, count, count, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < count) put(v, place(v, n + k), x.v[k]);
}

// A neighbour of x in bf16: the upper one in magnitude where the 16 bits that are lost and `random` carry.
__device__ inline float stochastic(float x, u32 random) {
    return x == x ? float_of((bits_of(x) + random) & 0xffff0000u) : x;
}

// The random words of elements n to n + 3 of a part of a weight; n is a multiple of four. A third word of the seed says which
// shard of `of` elements the weight is.
template <class Args>
__device__ inline Words words_of(const Args& a, i64 n) {
    const View& seed = a.seed;
    u64 id = a.id, counter = (u64)n + a.first;
    if (seed.cols > 2) counter += (u64)get_int(seed, 2) * a.of;
    counter /= 4;
    Words c = {{(u32)counter, (u32)(counter >> 32), (u32)id, (u32)(id >> 32)}};
    return philox4x32_10(c, (u32)get_int(seed, 0), (u32)get_int(seed, 1));
}

KERNEL(adamw_bf16) {
    if (get(a.apply, 0) == 0.0f) return;
    Update u = update_of(a);
    i64 n = a.w.rows * a.w.cols, stride = (i64)gridDim.x * blockDim.x * 4;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += stride) {
        int count = up_to_four(n - i);
        Four g = load_elements(a.g, i, count), w = load_elements(a.w, i, count);
        Four m = load_elements(a.m, i, count), v = load_elements(a.v, i, count);
        step4(a.adam, u, g, w, m, v);
        Words random = words_of(a, i);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (a.w.dtype == BF16) w.v[k] = stochastic(w.v[k], random.w[k] >> 16);
            if (a.v.dtype == BF16) v.v[k] = stochastic(v.v[k], random.w[k] & 0xffffu);
        }
        store_elements(a.w, i, count, w);
        store_elements(a.m, i, count, m);
        store_elements(a.v, i, count, v);
    }
}

KERNEL(lion_bf16) {
    if (get(a.apply, 0) == 0.0f) return;
    LionUpdate u = lion_update_of(a);
    i64 n = a.w.rows * a.w.cols, stride = (i64)gridDim.x * blockDim.x * 4;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += stride) {
        int count = up_to_four(n - i);
        Four g = load_elements(a.g, i, count), w = load_elements(a.w, i, count), m = load_elements(a.m, i, count);
        lion4(a.lion, u, g, w, m);
        Words random = words_of(a, i);
#pragma unroll
        for (int k = 0; k < 4; k++) w.v[k] = stochastic(w.v[k], random.w[k] >> 16);
        store_elements(a.w, i, count, w);
        store_elements(a.m, i, count, m);
    }
}

enum { BLOCK = 256 };

// Codes of four elements as one word, the first in its low byte; those beyond `count` are 0.
__device__ inline u32 load_codes(const View& codes, i64 n, int count) {
    const u8* from = (const u8*)codes.data + n;
    if (count == 4) return *(const u32*)from;
    u32 four = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < count) four |= (u32)from[k] << (8 * k);
    return four;
}

__device__ inline void store_codes(const View& codes, i64 n, int count, u32 four) {
    u8* to = (u8*)codes.data + n;
    if (count == 4) {
        *(u32*)to = four;
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < count) to[k] = (u8)(four >> (8 * k));
}

// How many of the 255 limits are at most x: the code of the nearest number, ties upwards.
__device__ inline u32 code_of(const float* limits, float x) {
    int code = 0;
#pragma unroll
    for (int step = 128; step > 0; step /= 2)
        if (x >= limits[code + step - 1]) code += step;
    return (u32)code;
}

__device__ inline float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

__device__ inline float most4(const Four& x) {
    return fmaxf(fmaxf(fabsf(x.v[0]), fabsf(x.v[1])), fmaxf(fabsf(x.v[2]), fabsf(x.v[3])));
}

__device__ inline Four decoded(const float* map, u32 codes, float scale) {
    Four x;
#pragma unroll
    for (int k = 0; k < 4; k++) x.v[k] = map[codes >> (8 * k) & 255u] * scale;
    return x;
}

// `least`: the least code of what is not zero.
__device__ inline u32 encoded(const float* limits, const Four& x, float scale, u32 least) {
    float divisor = scale == 0.0f ? 1.0f : scale;
    u32 four = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 code = code_of(limits, x.v[k] / divisor);
        if (x.v[k] != 0.0f && code < least) code = least;
        four |= code << (8 * k);
    }
    return four;
}

// A warp takes a block of 256 elements, a lane of it four in each half.
KERNEL(adamw_8bit) {
    __shared__ float maps[2][256], limits[2][256];
    int thread = threadIdx.x, next = thread < 255 ? thread + 1 : 255;
    maps[0][thread] = a.map_m.x[thread];
    maps[1][thread] = a.map_v.x[thread];
    limits[0][thread] = 0.5f * (a.map_m.x[thread] + a.map_m.x[next]);
    limits[1][thread] = 0.5f * (a.map_v.x[thread] + a.map_v.x[next]);
    __syncthreads();
    if (get(a.apply, 0) == 0.0f) return;
    Update u = update_of(a);
    i64 n = a.w.rows * a.w.cols, blocks = (n + BLOCK - 1) / BLOCK;
    int warps = blockDim.x / 32, lane = thread % 32;
    for (i64 block = (i64)blockIdx.x * warps + thread / 32; block < blocks; block += (i64)gridDim.x * warps) {
        float scale_m = get(a.scales_m, block), scale_v = get(a.scales_v, block);
        Four m[2], v[2];
        float most_m = 0.0f, most_v = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 i = block * BLOCK + half * 128 + lane * 4;
            int count = up_to_four(n - i);
            Four g = load_elements(a.g, i, count), w = load_elements(a.w, i, count);
            m[half] = decoded(maps[0], load_codes(a.codes_m, i, count), scale_m);
            v[half] = decoded(maps[1], load_codes(a.codes_v, i, count), scale_v);
            step4(a.adam, u, g, w, m[half], v[half]);
            if (a.w.dtype == BF16 && count > 0) {
                Words random = words_of(a, i);
#pragma unroll
                for (int k = 0; k < 4; k++) w.v[k] = stochastic(w.v[k], random.w[k] >> 16);
            }
            store_elements(a.w, i, count, w);
            // What lies beyond the tensor has no part in its scale.
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (k >= count) m[half].v[k] = v[half].v[k] = 0.0f;
            most_m = fmaxf(most_m, most4(m[half]));
            most_v = fmaxf(most_v, most4(v[half]));
        }
        most_m = warp_max(most_m);
        most_v = warp_max(most_v);
        __syncwarp();  // every lane has read the scales: the maxima's exchange does not say so
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 i = block * BLOCK + half * 128 + lane * 4;
            int count = up_to_four(n - i);
            store_codes(a.codes_m, i, count, encoded(limits[0], m[half], most_m, 0));
            store_codes(a.codes_v, i, count, encoded(limits[1], v[half], most_v, 1));
        }
        if (lane == 0) {
            put(a.scales_m, block, most_m);
            put(a.scales_v, block, most_v);
        }
    }
}

// A warp takes a block of 256 elements, a lane of it four in each half.
KERNEL(lion_8bit) {
    __shared__ float map[256], limits[256];
    int thread = threadIdx.x, next = thread < 255 ? thread + 1 : 255;
    map[thread] = a.map.x[thread];
    limits[thread] = 0.5f * (a.map.x[thread] + a.map.x[next]);
    __syncthreads();
    if (get(a.apply, 0) == 0.0f) return;
    LionUpdate u = lion_update_of(a);
    i64 n = a.w.rows * a.w.cols, blocks = (n + BLOCK - 1) / BLOCK;
    int warps = blockDim.x / 32, lane = thread % 32;
    for (i64 block = (i64)blockIdx.x * warps + thread / 32; block < blocks; block += (i64)gridDim.x * warps) {
        float scale = get(a.scales, block), most = 0.0f;
        Four m[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 i = block * BLOCK + half * 128 + lane * 4;
            int count = up_to_four(n - i);
            Four g = load_elements(a.g, i, count), w = load_elements(a.w, i, count);
            m[half] = decoded(map, load_codes(a.codes, i, count), scale);
            lion4(a.lion, u, g, w, m[half]);
            if (a.w.dtype == BF16 && count > 0) {
                Words random = words_of(a, i);
#pragma unroll
                for (int k = 0; k < 4; k++) w.v[k] = stochastic(w.v[k], random.w[k] >> 16);
            }
            store_elements(a.w, i, count, w);
            // What lies beyond the tensor has no part in its scale.
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (k >= count) m[half].v[k] = 0.0f;
            most = fmaxf(most, most4(m[half]));
        }
        most = warp_max(most);
        __syncwarp();  // every lane has read the scale: the maximum's exchange does not say so
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 i = block * BLOCK + half * 128 + lane * 4;
            int count = up_to_four(n - i);
            store_codes(a.codes, i, count, encoded(limits, m[half], most, 0));
        }
        if (lane == 0) put(a.scales, block, most);
    }
}
