// One-dimensional convolution along the rows of each segment. Tiles of rows never lie in two segments, so
// what lies beyond a segment's ends is zero for a whole tile, and taps need no test.

// Four floats that shared memory gives at once.
struct alignas(16) Quad {
    float v[4];
};

// Elements of a type that is known to the compiler: loads in a row are then in flight together. MIXED: of
// any.
enum { MIXED = -1 };

template <int T>
__device__ inline float load(const View& v, i64 i) {
    if (T == F32) return ((const float*)v.data)[i];
    if (T == BF16) return bf16_to_float(((const u16*)v.data)[i]);
    if (T == F16) return half_to_float(((const u16*)v.data)[i]);
    return get(v, i);
}

// Calls f<type of a tensor>(...).
#define WITH_TYPE(view, f, ...)                              \
    do {                                                     \
        if ((view).dtype == F32) f<F32>(__VA_ARGS__);        \
        else if ((view).dtype == BF16) f<BF16>(__VA_ARGS__); \
        else f<F16>(__VA_ARGS__);                            \
    } while (false)

// Rows row.. of the segment first..last; `none`: of no segment.
struct Tile {
    int row, first, last;
    bool none;
};

// Tile `number` when every segment, then the rows of none, is cut into tiles of `size` rows; false beyond the
// last.
__device__ inline bool find_tile(const View& segs, int rows, int number, int size, Tile& tile) {
    const int* offset = (const int*)segs.data;
    int count = segs.cols - 1;
    for (int s = 0; s <= count; s++) {
        int first = offset[s], last = s < count ? offset[s + 1] : rows;
        int tiles = (last - first + size - 1) / size;
        if (number < tiles) {
            tile = Tile{first + number * size, first, last, s == count};
            return true;
        }
        number -= tiles;
    }
    return false;
}

// Rows of a thread.
enum { DEPTH_ROWS = 16 };

// The thread has a channel; x holds what the current tap meets, and moves by a row from tap to tap.
template <int T>
__device__ inline void depthwise(const conv_depthwise_args& a, const Tile& tile, int c) {
    auto at = [&](int row) {
        return row >= tile.first && row < tile.last ? load<T>(a.x, (i64)row * a.x.pitch + c) : 0.0f;
    };
    float sum[DEPTH_ROWS], x[DEPTH_ROWS], bias = a.bias.data ? get(a.bias, c) : 0.0f;
    int row = tile.row - a.pad;
#pragma unroll
    for (int r = 0; r < DEPTH_ROWS; r++) sum[r] = bias;
#pragma unroll
    for (int r = 0; r + 1 < DEPTH_ROWS; r++) x[r + 1] = at(row + r);
#pragma unroll 4
    for (int k = 0; k < a.taps; k++) {
#pragma unroll
        for (int r = 0; r + 1 < DEPTH_ROWS; r++) x[r] = x[r + 1];
        x[DEPTH_ROWS - 1] = at(row + k + DEPTH_ROWS - 1);
        float w = get(a.w, (i64)c * a.taps + (a.flip ? a.taps - 1 - k : k));
#pragma unroll
        for (int r = 0; r < DEPTH_ROWS; r++) sum[r] += w * x[r];
    }
#pragma unroll
    for (int r = 0; r < DEPTH_ROWS; r++)
        if (tile.row + r < tile.last) put(a.y, (i64)(tile.row + r) * a.y.pitch + c, sum[r]);
}

KERNEL(conv_depthwise) {
    Tile tile;
    if (!find_tile(a.segs, (int)a.y.rows, blockIdx.x, DEPTH_ROWS, tile)) return;
    int c = blockIdx.y * conv_depthwise_block + threadIdx.x;
    if (c >= a.y.pitch) return;
    if (c >= a.y.cols || tile.none) {
        for (int row = tile.row; row < tile.last && row < tile.row + DEPTH_ROWS; row++)
            zero(a.y, (i64)row * a.y.pitch + c);
        return;
    }
    WITH_TYPE(a.x, depthwise, a, tile, c);
}

// Brings `count` rows from `row` on, 1 << column_bits columns each, into shared memory: zero for rows that
// are not in first..last and for columns from `columns` on. Places there are c * pitch_c + r * pitch_r. With
// a whole block.
template <int T>
__device__ inline void stage_rows(const View& v, i64 column, int columns, int column_bits, int row, int count,
                                  int first, int last, float* to, int pitch_c, int pitch_r) {
    int mask = (1 << column_bits) - 1;
#pragma unroll 2
    for (int i = threadIdx.x; i < count << column_bits; i += (int)blockDim.x) {
        int c = i & mask, r = i >> column_bits;
        bool there = c < columns && row + r >= first && row + r < last;
        to[c * pitch_c + r * pitch_r] = there ? load<T>(v, (i64)(row + r) * v.pitch + column + c) : 0.0f;
    }
}

// A block has ROWS rows of OUTS channels, a thread 8 x 4 of them. In shared memory: a few input channels of
// the rows that the taps meet, and the weights of these channels and up to TAPS taps, channel times taps at
// most PAIRS.
enum { ROWS = 128, OUTS = 64, PAIRS = 64, TAPS = 32, CHANNELS = 8 };
// Floats from channel to channel, from pair to pair: such that stores meet different banks.
enum { X_PITCH = ROWS + TAPS + 4, W_PITCH = OUTS + 4 };

// Weights of taps k0.. and inputs c0.. of outputs out0.. of a group that starts at `at`. A warp has 8
// neighbouring pairs of 4 outputs: whole sectors of memory, and 32 banks.
template <int T>
__device__ inline void stage_weights(const conv_grouped_args& a, i64 at, int out0, int c0, int k0,
                                     float* ws) {
    int pair_bits = a.tap_bits + a.in_bits, taps = a.taps - k0;
#pragma unroll 4
    for (int i = threadIdx.x; i < OUTS << pair_bits; i += conv_grouped_block) {
        int pair = (i & 7) | (i >> 5 & ((1 << (pair_bits - 3)) - 1)) << 3;
        int o = (i >> 3 & 3) | i >> (pair_bits + 2) << 2;
        int k = pair & ((1 << a.tap_bits) - 1), c = pair >> a.tap_bits;
        bool there = k < taps && c0 + c < a.ins && out0 + o < a.outs;
        int tap = a.flip ? taps - 1 - k : k0 + k;
        i64 place = at + (i64)(out0 + o) * a.stride_out + (i64)(c0 + c) * a.stride_in + tap;
        ws[pair * W_PITCH + o] = there ? load<T>(a.w, place) : 0.0f;
    }
}

__device__ inline void grouped(const conv_grouped_args& a, const Tile& tile, float* xs, float* ws) {
    int t = threadIdx.x, tx = t % 16, ty = t / 16;
    int out_tiles = (a.outs + OUTS - 1) / OUTS;
    int group = blockIdx.y / out_tiles, out0 = blockIdx.y % out_tiles * OUTS;
    int step_k = 1 << a.tap_bits, step_c = 1 << a.in_bits;
    i64 w0 = (i64)group * a.outs * a.ins * a.taps, x0 = (i64)group * a.ins;
    float sum[8][4];
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int o = 0; o < 4; o++) sum[r][o] = 0.0f;

    for (int k0 = 0; k0 < a.taps; k0 += step_k) {
        int taps = a.taps - k0 < step_k ? a.taps - k0 : step_k;
        for (int c0 = 0; c0 < a.ins; c0 += step_c) {
            __syncthreads();
            WITH_TYPE(a.x, stage_rows, a.x, x0 + c0, a.ins - c0, a.in_bits, tile.row + k0 - a.pad,
                      ROWS + step_k, tile.first, tile.last, xs, X_PITCH, 1);
            WITH_TYPE(a.w, stage_weights, a, w0, out0, c0, k0, ws);
            __syncthreads();
            int channels = a.ins - c0 < step_c ? a.ins - c0 : step_c;
#pragma unroll 1
            for (int c = 0; c < channels; c++) {
                // Rows 0..12 of those that taps k.. meet.
                const Quad* x = (const Quad*)(xs + c * X_PITCH + ty * 8);
                const Quad* w = (const Quad*)(ws + (c << a.tap_bits) * W_PITCH + tx * 4);
                Quad near[3] = {x[0], x[1]};
#pragma unroll 1
                for (int k = 0; k < taps; k += 4) {
                    near[2] = x[k / 4 + 2];
#pragma unroll
                    for (int u = 0; u < 4; u++) {
                        Quad weight = w[(k + u) * (W_PITCH / 4)];
#pragma unroll
                        for (int r = 0; r < 8; r++)
#pragma unroll
                            for (int o = 0; o < 4; o++)
                                sum[r][o] += near[(r + u) / 4].v[(r + u) % 4] * weight.v[o];
                    }
                    near[0] = near[1];
                    near[1] = near[2];
                }
            }
        }
    }
#pragma unroll
    for (int o = 0; o < 4; o++) {
        int out = out0 + tx * 4 + o;
        if (out >= a.outs) continue;
        int column = group * a.outs + out;
        float bias = a.bias.data ? get(a.bias, column) : 0.0f;
#pragma unroll
        for (int r = 0; r < 8; r++) {
            int row = tile.row + ty * 8 + r;
            if (row < tile.last) put(a.y, (i64)row * a.y.pitch + column, sum[r][o] + bias);
        }
    }
}

KERNEL(conv_grouped) {
    __shared__ Quad xs[CHANNELS * X_PITCH / 4];
    __shared__ Quad ws[PAIRS * W_PITCH / 4];
    Tile tile;
    if (!find_tile(a.segs, (int)a.y.rows, blockIdx.x, ROWS, tile)) return;
    int end = tile.row + ROWS < tile.last ? tile.row + ROWS : tile.last;
    if (blockIdx.y == 0)
        for (int row = tile.row; row < end; row++) zero_pads(a.y, row);
    if (tile.none) {
        int out_tiles = (a.outs + OUTS - 1) / OUTS;
        int group = blockIdx.y / out_tiles, out0 = blockIdx.y % out_tiles * OUTS;
        for (int i = threadIdx.x; i < (end - tile.row) * OUTS; i += conv_grouped_block) {
            int out = out0 + i % OUTS;
            if (out < a.outs) zero(a.y, (i64)(tile.row + i / OUTS) * a.y.pitch + group * a.outs + out);
        }
        return;
    }
    grouped(a, tile, (float*)xs, (float*)ws);
}

// Weight gradients: a block sums over every `splits`-th tile of rows, in order. One range writes the
// gradient, several write parts that `conv_weight_parts` sums in order.
enum { WEIGHT_ROWS = 64, WEIGHT_INS = 16, WEIGHT_TAPS = 8, WEIGHT_STEP = 4 };

__device__ inline void put_weight(const View& dw, const View& beta, u64 parts, i64 i, float x) {
    if (parts) {
        ((float*)parts)[(i64)blockIdx.y * dw.rows * dw.cols + i] = x;
        return;
    }
    float old = beta.data ? get(beta, 0) : 0.0f;
    put(dw, i, old == 0.0f ? x : old * get(dw, i) + x);
}

// Calls f(row, first, last) for every tile of this block: rows row..row + WEIGHT_ROWS of the segment
// first..last.
template <class F>
__device__ inline void each_weight_tile(const View& segs, int splits, F f) {
    const int* offset = (const int*)segs.data;
    int turn = blockIdx.y;
    for (int s = 0; s + 1 < segs.cols; s++) {
        int first = offset[s], last = offset[s + 1];
        for (int row = first; row < last; row += WEIGHT_ROWS) {
            if (turn == 0) f(row, first, last);
            turn = turn == 0 ? splits - 1 : turn - 1;
        }
    }
}

template <int T>
__device__ inline void depthwise_weight(const conv_depthwise_weight_args& a, int c, int k0) {
    float sum[WEIGHT_TAPS];
#pragma unroll
    for (int k = 0; k < WEIGHT_TAPS; k++) sum[k] = 0.0f;
    each_weight_tile(a.segs, a.splits, [&](int row, int first, int last) {
        auto at = [&](int r) { return r >= first && r < last ? load<T>(a.x, (i64)r * a.x.pitch + c) : 0.0f; };
        int from = row + k0 - a.pad, rows = last - row < WEIGHT_ROWS ? last - row : WEIGHT_ROWS;
        // What the rows of a step meet; it moves by a step.
        float x[WEIGHT_TAPS + WEIGHT_STEP];
#pragma unroll
        for (int k = 0; k < WEIGHT_TAPS; k++) x[WEIGHT_STEP + k] = at(from + k);
#pragma unroll 1
        for (int r0 = 0; r0 < rows; r0 += WEIGHT_STEP) {
            float dy[WEIGHT_STEP];
#pragma unroll
            for (int k = 0; k < WEIGHT_TAPS; k++) x[k] = x[WEIGHT_STEP + k];
#pragma unroll
            for (int r = 0; r < WEIGHT_STEP; r++) {
                x[WEIGHT_TAPS + r] = at(from + r0 + WEIGHT_TAPS + r);
                dy[r] = r0 + r < rows ? load<T>(a.dy, (i64)(row + r0 + r) * a.dy.pitch + c) : 0.0f;
            }
#pragma unroll
            for (int r = 0; r < WEIGHT_STEP; r++)
#pragma unroll
                for (int k = 0; k < WEIGHT_TAPS; k++) sum[k] += dy[r] * x[r + k];
        }
    });
#pragma unroll
    for (int k = 0; k < WEIGHT_TAPS; k++)
        if (k0 + k < a.taps) put_weight(a.dw, a.beta, a.parts, (i64)c * a.taps + k0 + k, sum[k]);
}

KERNEL(conv_depthwise_weight) {
    int tap_tiles = (a.taps + WEIGHT_TAPS - 1) / WEIGHT_TAPS;
    int k0 = blockIdx.x % tap_tiles * WEIGHT_TAPS;
    int c = blockIdx.x / tap_tiles * conv_depthwise_weight_block + threadIdx.x;
    if (c >= a.x.cols) return;
    if (a.x.dtype != a.dy.dtype) depthwise_weight<MIXED>(a, c, k0);
    else WITH_TYPE(a.x, depthwise_weight, a, c, k0);
}

enum { WEIGHT_X_PITCH = WEIGHT_ROWS + WEIGHT_TAPS + 4 };

// A thread has 4 outputs of one input channel at 8 taps.
__device__ inline void grouped_weight(const conv_grouped_weight_args& a, float* xs, float* ys) {
    int t = threadIdx.x, tx = t % 16, ty = t / 16, block = blockIdx.x;
    int tap_tiles = (a.taps + WEIGHT_TAPS - 1) / WEIGHT_TAPS;
    int in_tiles = (a.ins + WEIGHT_INS - 1) / WEIGHT_INS, out_tiles = (a.outs + OUTS - 1) / OUTS;
    // Blocks are numbered with the taps innermost, then inputs, outputs, groups.
    int k0 = block % tap_tiles * WEIGHT_TAPS;
    block /= tap_tiles;
    int in0 = block % in_tiles * WEIGHT_INS;
    block /= in_tiles;
    int out0 = block % out_tiles * OUTS, group = block / out_tiles;
    i64 x0 = (i64)group * a.ins + in0, y0 = (i64)group * a.outs + out0;
    float sum[WEIGHT_TAPS][4];
#pragma unroll
    for (int k = 0; k < WEIGHT_TAPS; k++)
#pragma unroll
        for (int o = 0; o < 4; o++) sum[k][o] = 0.0f;

    each_weight_tile(a.segs, a.splits, [&](int row0, int first, int last) {
        __syncthreads();
        WITH_TYPE(a.x, stage_rows, a.x, x0, a.ins - in0, 4, row0 + k0 - a.pad, WEIGHT_ROWS + WEIGHT_TAPS,
                  first, last, xs, WEIGHT_X_PITCH, 1);
        WITH_TYPE(a.dy, stage_rows, a.dy, y0, a.outs - out0, 6, row0, WEIGHT_ROWS, first, last, ys, 1, OUTS);
        __syncthreads();
        int rows = last - row0 < WEIGHT_ROWS ? last - row0 : WEIGHT_ROWS;
        const Quad* x = (const Quad*)(xs + ty * WEIGHT_X_PITCH);
        Quad near[3] = {x[0], x[1]};
#pragma unroll 1
        for (int r = 0; r < rows; r += 4) {
            near[2] = x[r / 4 + 2];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                Quad dy = ((const Quad*)ys)[(r + u) * (OUTS / 4) + tx];
#pragma unroll
                for (int k = 0; k < WEIGHT_TAPS; k++)
#pragma unroll
                    for (int o = 0; o < 4; o++) sum[k][o] += near[(k + u) / 4].v[(k + u) % 4] * dy.v[o];
            }
            near[0] = near[1];
            near[1] = near[2];
        }
    });
    if (in0 + ty >= a.ins) return;
#pragma unroll
    for (int o = 0; o < 4; o++) {
        int out = out0 + tx * 4 + o;
        if (out >= a.outs) continue;
        i64 at = (((i64)group * a.outs + out) * a.ins + in0 + ty) * a.taps + k0;
#pragma unroll
        for (int k = 0; k < WEIGHT_TAPS; k++)
            if (k0 + k < a.taps) put_weight(a.dw, a.beta, a.parts, at + k, sum[k][o]);
    }
}

KERNEL(conv_grouped_weight) {
    __shared__ Quad xs[WEIGHT_INS * WEIGHT_X_PITCH / 4];
    __shared__ Quad ys[WEIGHT_ROWS * OUTS / 4];
    grouped_weight(a, (float*)xs, (float*)ys);
}

KERNEL(conv_weight_parts) {
    i64 n = a.dw.rows * a.dw.cols;
    each(a.dw, [&](i64 i) {
        float sum = 0.0f;
        for (int s = 0; s < a.splits; s++) sum += ((const float*)a.parts)[s * n + i];
        put_weight(a.dw, a.beta, 0, i, sum);
    });
}

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800
// On tensor cores, of 16-bit operands: a product of what each tap meets with the tap's weights, [group, tap, out, in] for that.

KERNEL(conv_order_weights) {
    const i64 n = (i64)a.groups * a.outs * a.ins;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int in = (int)(i % a.ins), out = (int)(i / a.ins % a.outs);
        const i64 group = i / ((i64)a.ins * a.outs);
        const u16* from = (const u16*)a.w.data + group * a.outs * a.ins * a.taps + (i64)out * a.stride_out + (i64)in * a.stride_in;
        u16* to = (u16*)a.ordered + (group * a.taps * a.outs + out) * a.ins + in;
        for (int k = 0; k < a.taps; k++) to[(i64)k * a.outs * a.ins] = from[a.flip ? a.taps - 1 - k : k];
    }
}

// Channels of a step, rows and most taps of a block.
enum { MMA_CHANNELS = 64, MMA_ROWS = 128, MMA_TAPS = 33, MMA_PITCH = Shared<MMA_CHANNELS>::PITCH, MMA_THREADS = 128 };

// Starts copying 64 channels from `from` on of `rows` rows, `pitch` elements apart, those first..last of them; others, and channels from
// `channels` on, become zero.
__device__ inline void fetch_rows(const u16* from, i64 pitch, int rows, int first, int last, int channels, u16* to) {
    const int chunk = threadIdx.x % 8 * 8;
    for (int r = threadIdx.x / 8; r < rows; r += MMA_THREADS / 8)
        copy16(to + r * MMA_PITCH + chunk, from + r * pitch + chunk, r >= first && r < last && chunk < channels);
}

// A warp has 32 rows of 64 outputs.
template <bool HALF>
__device__ inline void grouped_mma(const conv_mma_args& a, const Tile& tile, int group, int out0, u16* xs, u16* ws) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 32, taps = a.taps;
    const int first = tile.first - (tile.row - a.pad), last = tile.last - (tile.row - a.pad);
    const u16* x = (const u16*)a.x.data + (i64)(tile.row - a.pad) * a.x.pitch + (i64)group * a.ins;
    float sum[2][MMA_CHANNELS / 8][4];
    clear_fragments(sum[0]);
    clear_fragments(sum[1]);
    for (int c0 = 0; c0 < a.ins; c0 += MMA_CHANNELS) {
        auto bring = [&](int tap, int stage) {
            const u16* w = (const u16*)a.ordered + (((i64)group * taps + tap) * a.outs + out0) * a.ins + c0;
            fetch_rows(w, a.ins, MMA_CHANNELS, 0, a.outs - out0, a.ins - c0, ws + stage * MMA_CHANNELS * MMA_PITCH);
        };
        __syncthreads();
        fetch_rows(x + c0, a.x.pitch, MMA_ROWS + taps - 1, first, last, a.ins - c0, xs);
        bring(0, 0);
        copies_commit();
#pragma unroll 1
        for (int tap = 0; tap < taps; tap++) {
            copies_wait(0);
            __syncthreads();
            if (tap + 1 < taps) bring(tap + 1, (tap + 1) % 2);
            copies_commit();
            const u16 *w = ws + tap % 2 * MMA_CHANNELS * MMA_PITCH, *mine = xs + (row + tap + lane % 16) * MMA_PITCH + lane / 16 * 8;
#pragma unroll
            for (int c = 0; c < MMA_CHANNELS; c += 16) {
                u32 left[2][4];
                ldmatrix(left[0], mine + c);
                ldmatrix(left[1], mine + 16 * MMA_PITCH + c);
#pragma unroll
                for (int n = 0; n < MMA_CHANNELS / 8; n += 2) {
                    u32 b[4];
                    ldmatrix(b, w + (8 * n + lane % 8 + lane / 16 * 8) * MMA_PITCH + lane / 8 % 2 * 8 + c);
#pragma unroll
                    for (int m = 0; m < 2; m++) {
                        mma<HALF>(sum[m][n], left[m], b[0], b[1]);
                        mma<HALF>(sum[m][n + 1], left[m], b[2], b[3]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 4; h++) {
        const int at = tile.row + row + lane_row() + 8 * h;
        if (at >= tile.last) continue;
#pragma unroll
        for (int n = 0; n < MMA_CHANNELS / 8; n++) {
            const int out = out0 + 8 * n + lane_column(), column = group * a.outs + out;
            if (out >= a.outs) continue;
            const float *s = &sum[h / 2][n][h % 2 * 2], left = a.bias.data ? get(a.bias, column) : 0.0f;
            const float right = a.bias.data ? get(a.bias, column + 1) : 0.0f;
            *(u32*)((u16*)a.y.data + (i64)at * a.y.pitch + column) = pack<HALF>(s[0] + left, s[1] + right);
        }
    }
}

KERNEL(conv_mma) {
    __shared__ Chunk xs[(MMA_ROWS + MMA_TAPS - 1) * MMA_PITCH / 8];
    __shared__ Chunk ws[2 * MMA_CHANNELS * MMA_PITCH / 8];
    Tile tile;
    if (!find_tile(a.segs, (int)a.y.rows, blockIdx.x, MMA_ROWS, tile)) return;
    const int out_tiles = (a.outs + MMA_CHANNELS - 1) / MMA_CHANNELS;
    const int group = blockIdx.y / out_tiles, out0 = blockIdx.y % out_tiles * MMA_CHANNELS;
    const int end = tile.row + MMA_ROWS < tile.last ? tile.row + MMA_ROWS : tile.last;
    if (blockIdx.y == 0)
        for (int row = tile.row; row < end; row++) zero_pads(a.y, row);
    if (tile.none) {
        for (int i = threadIdx.x; i < (end - tile.row) * MMA_CHANNELS; i += MMA_THREADS) {
            int out = out0 + i % MMA_CHANNELS;
            if (out < a.outs) zero(a.y, (i64)(tile.row + i / MMA_CHANNELS) * a.y.pitch + group * a.outs + out);
        }
    } else if (a.x.dtype == F16) {
        grouped_mma<true>(a, tile, group, out0, (u16*)xs, (u16*)ws);
    } else {
        grouped_mma<false>(a, tile, group, out0, (u16*)xs, (u16*)ws);
    }
}

// Weight gradients: taps of a block. A warp has 16 outputs, 64 inputs.
enum { MMA_WEIGHT_TAPS = 2 };

template <bool HALF>
__device__ inline void weight_mma(const conv_weight_mma_args& a, u16* xs, u16* ys) {
    const int lane = threadIdx.x % 32;
    int block = blockIdx.x;
    const int tap_tiles = (a.taps + MMA_WEIGHT_TAPS - 1) / MMA_WEIGHT_TAPS;
    const int in_tiles = (a.ins + MMA_CHANNELS - 1) / MMA_CHANNELS, out_tiles = (a.outs + MMA_CHANNELS - 1) / MMA_CHANNELS;
    // Blocks are numbered with the taps innermost, then inputs, outputs, groups.
    const int k0 = block % tap_tiles * MMA_WEIGHT_TAPS;
    block /= tap_tiles;
    const int in0 = block % in_tiles * MMA_CHANNELS;
    block /= in_tiles;
    const int out0 = block % out_tiles * MMA_CHANNELS, group = block / out_tiles;
    const u16 *x = (const u16*)a.x.data + (i64)group * a.ins + in0, *dy = (const u16*)a.dy.data + (i64)group * a.outs + out0;
    float sum[MMA_WEIGHT_TAPS][MMA_CHANNELS / 8][4];
#pragma unroll
    for (int k = 0; k < MMA_WEIGHT_TAPS; k++) clear_fragments(sum[k]);
    each_weight_tile(a.segs, a.splits, [&](int row, int first, int last) {
        const int from = row + k0 - a.pad;
        __syncthreads();
        fetch_rows(x + (i64)from * a.x.pitch, a.x.pitch, WEIGHT_ROWS + MMA_WEIGHT_TAPS - 1, first - from, last - from, a.ins - in0, xs);
        fetch_rows(dy + (i64)row * a.dy.pitch, a.dy.pitch, WEIGHT_ROWS, 0, last - row, a.outs - out0, ys);
        copies_commit();
        copies_wait(0);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < WEIGHT_ROWS; r += 16) {
            // Rows are what is summed over: dy is read transposed.
            u32 left[4];
            ldmatrix_transposed(left, ys + (r + lane / 16 * 8 + lane % 8) * MMA_PITCH + threadIdx.x / 32 * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int k = 0; k < MMA_WEIGHT_TAPS; k++)
#pragma unroll
                for (int n = 0; n < MMA_CHANNELS / 8; n += 2) {
                    u32 b[4];
                    ldmatrix_transposed(b, xs + (r + k + lane % 16) * MMA_PITCH + lane / 16 * 8 + 8 * n);
                    mma<HALF>(sum[k][n], left, b[0], b[1]);
                    mma<HALF>(sum[k][n + 1], left, b[2], b[3]);
                }
        }
    });
#pragma unroll
    for (int k = 0; k < MMA_WEIGHT_TAPS; k++)
#pragma unroll
        for (int n = 0; n < MMA_CHANNELS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int out = out0 + threadIdx.x / 32 * 16 + lane_row() + e / 2 * 8, in = in0 + 8 * n + lane_column() + e % 2;
                if (k0 + k >= a.taps || out >= a.outs || in >= a.ins) continue;
                put_weight(a.dw, a.beta, a.parts, (((i64)group * a.outs + out) * a.ins + in) * a.taps + k0 + k, sum[k][n][e]);
            }
}

KERNEL(conv_weight_mma) {
    __shared__ Chunk xs[(WEIGHT_ROWS + MMA_WEIGHT_TAPS - 1) * MMA_PITCH / 8];
    __shared__ Chunk ys[WEIGHT_ROWS * MMA_PITCH / 8];
    if (a.x.dtype == F16) weight_mma<true>(a, (u16*)xs, (u16*)ys);
    else weight_mma<false>(a, (u16*)xs, (u16*)ys);
}
#else
// The fp32 kernels run here.
KERNEL(conv_order_weights) {}
KERNEL(conv_mma) {}
KERNEL(conv_weight_mma) {}
#endif
