// Linear heads with cross-entropy.

// Columns that a thread has at a time: loads of one step do not wait for each other.
enum { AT_ONCE = 4 };

// The least float, not -infinity: a difference of two infinities is NaN.
#define LEAST -3.402823466e38f

// Of a row, over all blocks of classes in order: its largest logit, the sum of e^(logit - largest), its label's logit. Of a
// block in one pass (online softmax: Milakov & Gimelshein, arXiv 1805.02867). A row that is not scored has zeros; one with a
// label that is no class gives NaN: no step is made with it.
KERNEL(head_sums) {
    __shared__ float shared[32];
    int block = (int)blockDim.x, step = block * AT_ONCE, me = (int)threadIdx.x;
    i64 row = a.first + blockIdx.x;
    const float* logits = (const float*)a.logits + (i64)blockIdx.x * a.pitch;
    float* sums = (float*)a.sums + 3 * row;
    int label = get_int(a.labels, row);
    bool fresh = a.before == 0;
    if (label < 0) {
        if (fresh && me < 3) sums[me] = 0.0f;
        return;
    }
    float old_high = fresh ? LEAST : sums[0], old_sum = fresh ? 0.0f : sums[1];

    float most = LEAST, sum = 0.0f;
    for (int start = me; start < a.classes; start += step) {
        float x[AT_ONCE], high = most;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int c = start + k * block;
            x[k] = c < a.classes ? logits[c] : -INFINITY;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) high = fmaxf(high, x[k]);
        sum *= expf(most - high);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) sum += expf(x[k] - high);
        most = high;
    }
    float high = fmaxf(block_max(most, shared), old_high);
    sum = block_sum(sum * expf(most - high), shared);
    if (me != 0) return;
    sums[0] = high;
    sums[1] = old_sum * expf(old_high - high) + sum;
    int own = label - a.before;
    if (own >= 0 && own < a.classes) sums[2] = logits[own];
    else if (fresh) sums[2] = label < a.of ? 0.0f : NAN;
}

KERNEL(head_loss) {
    __shared__ double shared[head_loss_block];
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) {
        const float* row = (const float*)a.sums + 3 * i;
        if (get_int(a.labels, i) >= 0) sum += (double)(logf(row[1]) + (row[0] - row[2]));
    }
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) put(a.y, 0, (float)((double)get(a.norm, 0) * sum));
}

// The gradient of a row that is not scored is 0 whatever its logits. One of 16 bits takes the first half of its row of logits:
// what a step writes lies before the columns that later steps read, and between a step's reads and its writes there is a
// barrier.
KERNEL(head_grad) {
    int block = (int)blockDim.x, step = block * AT_ONCE, me = (int)threadIdx.x;
    i64 row = a.first + blockIdx.x;
    float* logits = (float*)a.logits + (i64)blockIdx.x * a.pitch;
    const float* sums = (const float*)a.sums + 3 * row;
    View out = {logits, 1, a.classes, a.classes, a.dtype, 0};
    int label = get_int(a.labels, row);
    if (label < 0) {
        for (int c = me; c < a.classes; c += block) zero(out, c);
        return;
    }
    float high = sums[0], factor = get(a.norm, 0) * get(a.dloss, 0);
    // NaN where the label is no class.
    float scale = sums[2] == sums[2] ? factor / sums[1] : NAN;
    int own = label - a.before;
    for (int start = 0; start < a.classes; start += step) {
        float g[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int c = start + k * block + me;
            g[k] = c < a.classes ? logits[c] : 0.0f;
        }
        if (a.dtype != F32) __syncthreads();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int c = start + k * block + me;
            if (c < a.classes) put(out, c, expf(g[k] - high) * scale - (c == own ? factor : 0.0f));
        }
    }
}

KERNEL(one) {
    if (threadIdx.x == 0) *(float*)a.y = 1.0f;
}

KERNEL(no_rows) {
    float beta = a.beta.data ? get(a.beta, 0) : 0.0f;
    each(a.y, [&](i64 i) { put(a.y, i, beta == 0.0f ? 0.0f : beta * get(a.y, i)); });
}
