// Monotonic alignment search, without a table of scores: a block takes a clip. Those of a few frames are made at a time, a warp for
// each text row; then, frame by frame, a thread for each text row makes its value of those of the frame before. Of all frames stay
// the bits that say where the way back leaves its row, and one thread goes it.

enum { FRAMES = 8, THREADS = 256, WARPS = THREADS / 32 };

// What stands for a path that there is not.
#define NO_PATH -1e9f

// A clip of n frames and m text rows, which begin at `first` and at `row`.
struct Clip { int first, n, row, m; };

// The text rows of frame y that paths come by. With fewer frames than rows: those that the way back comes by.
struct Band { int begin, end; };
__device__ inline Band band(const Clip& clip, int y) {
    int begin = clip.m + y - clip.n, end = clip.n < clip.m || y + 1 > clip.m ? clip.m : y + 1;
    return {begin > 0 ? begin : 0, end};
}

// The scores of `here` frames from `y` on with text row x. All lanes of a warp.
template <class A>
__device__ inline void score(const A& a, const Clip& clip, int y, int here, int x, float* scores) {
    const int lane = threadIdx.x % 32;
    const i64 text = (i64)(clip.row + x) * a.mean.pitch;
    float sums[FRAMES] = {};
#pragma unroll 1
    for (int c = lane; c < a.z.cols; c += 32) {
        const float mean = ((const float*)a.mean.data)[text + c], scale = ((const float*)a.scale.data)[text + c];
#pragma unroll
        for (int k = 0; k < FRAMES; k++) {
            // Where there are fewer frames the last one stands for the others.
            const i64 frame = clip.first + y + (k < here ? k : here - 1);
            const float off = (((const float*)a.z.data)[frame * a.z.pitch + c] - mean) * scale;
            sums[k] += off * off;
        }
    }
#pragma unroll
    for (int k = 0; k < FRAMES; k++) {
        for (int step = 16; step > 0; step /= 2) sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], step);
        if (lane == 0 && k < here)
            scores[(i64)k * clip.m + x] = ((const float*)a.base.data)[clip.row + x] - 0.5f * sums[k];
    }
}

// Frame y: values of those of the frame before, and a word of bits for every 32 text rows.
__device__ inline void step(const Clip& clip, int y, const float* scores, const float* before, float* now, u32* bits) {
    const Band rows = band(clip, y);
    const int lane = threadIdx.x % 32;
    for (int x0 = rows.begin / 32 * 32 + threadIdx.x / 32 * 32; x0 < rows.end; x0 += THREADS) {
        const int x = x0 + lane;
        u32 leaves = 0;
        if (x >= rows.begin && x < rows.end) {
            const float stays = x == y || y == 0 ? NO_PATH : before[x];
            const float comes = y == 0 ? 0.0f : x == 0 ? NO_PATH : before[x - 1];
            const bool better = stays < comes;
            leaves = (u32)(x > 0 && y > 0 && (x == y || better)) << lane;
            // Without a path the scores are all that the way back goes by.
            now[x] = clip.n < clip.m ? scores[x] : scores[x] + (better ? comes : stays);
        }
        for (int step = 16; step > 0; step /= 2) leaves |= __shfl_xor_sync(0xffffffffu, leaves, step);
        if (lane == 0) bits[x0 / 32] = leaves;
    }
}

// The last block has the frames of no clip.
KERNEL(monotonic_path) {
    const int clips = a.frames.cols - 1, s = blockIdx.x;
    Clip clip = {get_int(a.frames, s), 0, 0, 0};
    clip.n = (s < clips ? get_int(a.frames, s + 1) : a.path.cols) - clip.first;
    if (s < clips) {
        clip.row = get_int(a.texts, s);
        clip.m = get_int(a.texts, s + 1) - clip.row;
    }
    if (clip.m == 0) {
        for (int y = threadIdx.x; y < clip.n; y += THREADS) put_int(a.path, clip.first + y, -1);
        return;
    }
    // No two clips have a frame or a text row in common.
    float* scores = (float*)a.scores + (i64)FRAMES * clip.row;
    float* values = (float*)a.values + clip.row;
    u32* bits = (u32*)a.bits + (i64)clip.first * a.words;
    for (int at = 0; at < clip.n; at += FRAMES) {
        const int here = clip.n - at < FRAMES ? clip.n - at : FRAMES;
        const int begin = band(clip, at).begin, end = band(clip, at + here - 1).end;
        for (int x = begin + threadIdx.x / 32; x < end; x += WARPS) score(a, clip, at, here, x, scores);
        __syncthreads();
        for (int y = at; y < at + here; y++) {
            float *before = values + (y + 1) % 2 * a.mean.rows, *now = values + y % 2 * a.mean.rows;
            step(clip, y, scores + (i64)(y - at) * clip.m, before, now, bits + (i64)y * a.words);
            __syncthreads();
        }
    }
    if (threadIdx.x > 0) return;
    int x = clip.m - 1;
    for (int y = clip.n - 1; y >= 0; y--) {
        put_int(a.path, clip.first + y, clip.row + x);
        x -= (int)(bits[(i64)y * a.words + x / 32] >> x % 32 & 1);
    }
}
