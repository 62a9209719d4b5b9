// Attention of few query rows over many keys: what decoding does. All arithmetic is fp32.
//
// A row's keys are cut into splits of equal length, at most SPLITS, each with blocks of its own, and a second kernel adds them
// up in order (Flash-Decoding: Dao, Haziza, Massa and Sizov, 2023). In a block a team of lanes takes a key, four channels
// each, for up to HEADS query heads that share the key head, and the teams are added up in order. Splits and teams depend on
// how many keys a row sees and on the head's channels alone.

enum { SPLITS = 16, LEAST = 64, HEADS = 4, AT_ONCE = 4, THREADS = 256, MOST_TEAMS = 32, SUMS = THREADS * 4 * HEADS };

struct alignas(16) Quad { float v[4]; };

// Four channels as they lie in memory. Nothing waits for them before they are widened.
template <bool WIDE>
struct Raw {
    FourWords words;
    __device__ void read(const View& v, i64 at) { words = *(const FourWords*)((const float*)v.data + at); }
    __device__ float get(int c, int) const { return float_of(words.w[c]); }
};
template <>
struct Raw<false> {
    TwoWords words;
    __device__ void read(const View& v, i64 at) { words = *(const TwoWords*)((const u16*)v.data + at); }
    __device__ float get(int c, int dtype) const { return widen(words.w[c / 2] >> 16 * (c % 2) & 0xffffu, dtype); }
};

// Keys of a split, and how many splits have some.
__device__ inline int split_length(const Seen& seen) {
    int each = (seen.end - seen.begin + SPLITS - 1) / SPLITS;
    return each < LEAST ? LEAST : each;
}
__device__ inline int splits_of(const Seen& seen) {
    int length = split_length(seen);
    return (seen.end - seen.begin + length - 1) / length;
}

// A team's keys among first..end, for heads of which q has this lane's channels.
template <bool WIDE, class A>
__device__ inline void over_keys(const A& a, int first, int end, int column, const float (&q)[HEADS][4],
                                 Quad (&sums)[HEADS], float (&high)[HEADS], float (&total)[HEADS]) {
    const int lane = threadIdx.x % a.team, mine = threadIdx.x / a.team, teams = THREADS / a.team;
    const bool inside = 4 * lane < a.head_dim;
    // As often for every team: lanes of a warp meet in the shuffles.
#pragma unroll 1
    for (int at = first; at < end; at += teams * AT_ONCE) {
        Raw<WIDE> k[AT_ONCE] = {}, v[AT_ONCE] = {};
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            i64 key = at + mine + j * teams;
            if (!inside || key >= end) continue;
            k[j].read(a.k, key * a.k.pitch + column + 4 * lane);
            v[j].read(a.v, key * a.v.pitch + column + 4 * lane);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float s[AT_ONCE], top = high[h];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                s[j] = 0.0f;
#pragma unroll
                for (int c = 0; c < 4; c++) s[j] += q[h][c] * k[j].get(c, a.k.dtype);
                for (int step = a.team / 2; step > 0; step /= 2) s[j] += __shfl_xor_sync(0xffffffffu, s[j], step);
                s[j] = at + mine + j * teams < end ? s[j] * a.scale : -INFINITY;
                top = fmaxf(top, s[j]);
            }
            // A team that has had no key yet has no finite maximum to take off.
            float off = top == -INFINITY ? 0.0f : top, keep = expf(high[h] - off);
            high[h] = top;
            total[h] *= keep;
#pragma unroll
            for (int c = 0; c < 4; c++) sums[h].v[c] *= keep;
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                float p = expf(s[j] - off);
                total[h] += p;
#pragma unroll
                for (int c = 0; c < 4; c++) sums[h].v[c] += p * v[j].get(c, a.v.dtype);
            }
        }
    }
}

// Of a row's head and split: sums of values by channel, the largest score, the sum of exponentials.
__device__ inline float* part_of(u64 parts, i64 row_head, int split, int head_dim) {
    return (float*)parts + (row_head * SPLITS + split) * (head_dim + 2);
}

KERNEL(attention_rows) {
    __shared__ Quad shared[SUMS / 4];
    __shared__ float highs[MOST_TEAMS][HEADS], totals[MOST_TEAMS][HEADS];
    const int heads = a.group * a.kv_heads, turns = (a.group + HEADS - 1) / HEADS;
    const int turn = blockIdx.y % turns, kv_head = blockIdx.y / turns % a.kv_heads;
    const int row = blockIdx.y / (turns * a.kv_heads), head = kv_head * a.group + turn * HEADS;
    const Seen seen = seen_by(a.q_segs, a.k_segs, a.q.rows, row, a.causal ? UP_TO : ALL);
    const int length = split_length(seen), first = seen.begin + (int)blockIdx.x * length;
    if (first >= seen.end) return;
    const int end = seen.end - first < length ? seen.end : first + length;
    const int lane = threadIdx.x % a.team, mine = threadIdx.x / a.team, teams = THREADS / a.team;
    // The last turn may have fewer heads: it has the last one for those that there are not.
    const int here = a.group - turn * HEADS < HEADS ? a.group - turn * HEADS : HEADS;

    Quad sums[HEADS];
    float q[HEADS][4], high[HEADS], total[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        i64 at = row * (i64)a.q.pitch + (head + (h < here ? h : here - 1)) * a.head_dim + 4 * lane;
        Four x = get4(a.q, at, 4 * lane < a.head_dim ? 4 : 0);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            q[h][c] = x.v[c];
            sums[h].v[c] = 0.0f;
        }
        high[h] = -INFINITY;
        total[h] = 0.0f;
    }
    const int column = kv_head * a.head_dim;
    if (a.k.dtype == F32) over_keys<true>(a, first, end, column, q, sums, high, total);
    else over_keys<false>(a, first, end, column, q, sums, high, total);

#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        shared[(mine * HEADS + h) * a.team + lane] = sums[h];
        if (lane == 0) {
            highs[mine][h] = high[h];
            totals[mine][h] = total[h];
        }
    }
    __syncthreads();
    const int wide = 4 * a.team;
    for (int i = threadIdx.x; i < here * wide; i += THREADS) {
        int h = i / wide, c = i % wide;
        if (c >= a.head_dim) continue;
        float most = highs[0][h], sum = 0.0f, all = 0.0f;
        for (int t = 1; t < teams; t++) most = fmaxf(most, highs[t][h]);
        for (int t = 0; t < teams; t++) {
            float by = expf(highs[t][h] - most);
            sum += by * ((const float*)shared)[(t * HEADS + h) * wide + c];
            all += by * totals[t][h];
        }
        float* part = part_of(a.parts, (i64)row * heads + head + h, blockIdx.x, a.head_dim);
        part[c] = sum;
        if (c == 0) {
            part[a.head_dim] = most;
            part[a.head_dim + 1] = all;
        }
    }
}

// Adds up a row's splits, head by head.
KERNEL(attention_rows_join) {
    const int heads = a.o.cols / a.head_dim, row = blockIdx.x / heads, head = blockIdx.x % heads;
    const Seen seen = seen_by(a.q_segs, a.k_segs, a.o.rows, row, a.causal ? UP_TO : ALL);
    const int splits = splits_of(seen);
    const float* parts = part_of(a.parts, blockIdx.x, 0, a.head_dim);
    const int next = a.head_dim + 2;
    float most = -INFINITY, all = 0.0f;
    for (int s = 0; s < splits; s++) most = fmaxf(most, parts[s * next + a.head_dim]);
    for (int s = 0; s < splits; s++)
        all += expf(parts[s * next + a.head_dim] - most) * parts[s * next + a.head_dim + 1];
    for (int c = threadIdx.x; c < a.head_dim; c += (int)blockDim.x) {
        float sum = 0.0f;
        for (int s = 0; s < splits; s++) sum += expf(parts[s * next + a.head_dim] - most) * parts[s * next + c];
        put(a.o, row * (i64)a.o.pitch + head * a.head_dim + c, splits ? sum / all : 0.0f);
    }
    if (threadIdx.x == 0) put(a.lse, row * (i64)a.lse.pitch + head, splits ? most + logf(all) : 0.0f);
    if (head == 0) {
        zero_pads(a.o, row);
        zero_pads(a.lse, row);
    }
}
