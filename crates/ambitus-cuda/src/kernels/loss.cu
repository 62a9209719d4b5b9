// Losses.

// Rows of mask 0 are not read.
KERNEL(masked_mse_parts) {
    __shared__ float shared[32];
    i64 first = (i64)blockIdx.x * a.rows_each, left = a.pred.rows - first;
    int rows = left < a.rows_each ? (int)left : a.rows_each, cols = a.pred.cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < rows * cols; i += (int)blockDim.x) {
        i64 row = first + i / cols, at = row * a.pred.pitch + i % cols;
        float mask = get(a.mask, row);
        if (mask != 0.0f) {
            float d = get(a.pred, at) - get(a.target, at);
            sum += mask * d * d;
        }
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) ((float*)a.parts)[blockIdx.x] = sum;
}

// The result may lie on the prediction: a thread reads its element before it writes it.
KERNEL(masked_mse_grad) {
    float factor = 2.0f * get(a.norm, 0) * get(a.dloss, 0);
    each(a.y, [&](i64 i) {
        float mask = get(a.mask, i / a.y.pitch);
        put(a.y, i, mask == 0.0f ? 0.0f : factor * mask * (get(a.pred, i) - get(a.target, i)));
    });
}

KERNEL(loss_sum) {
    __shared__ double shared[loss_sum_block];
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) sum += (double)((const float*)a.parts)[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0) put(a.y, 0, (float)((double)get(a.norm, 0) * sum));
}

// Columns that a thread has at a time: loads of one step do not wait for each other.
enum { AT_ONCE = 4 };

// A row's largest logit and sum of exponentials in one pass (online softmax: Milakov & Gimelshein, arXiv
// 1805.02867), the same for the loss alone and with gradients. A row that is not scored counts 0, its
// gradient is 0 whatever its logits; one with a label that is no class gives NaN: no step is made with it.
//
// A gradient of 16 bits takes the first half of its row of logits: what a step writes lies before the columns
// that later steps read, and between a step's reads and its writes there is a barrier.
KERNEL(cross_entropy_rows) {
    __shared__ float shared[32];
    int block = (int)blockDim.x, step = block * AT_ONCE, me = (int)threadIdx.x;
    i64 row = a.first + blockIdx.x;
    float* logits = (float*)a.logits + (i64)blockIdx.x * a.pitch;
    float* loss = (float*)a.losses + row;
    View out = {logits, 1, a.classes, a.classes, a.grad, 0};
    int label = get_int(a.labels, row);
    if (label < 0) {
        if (me == 0) *loss = 0.0f;
        if (a.grad >= 0)
            for (int c = me; c < a.classes; c += block) zero(out, c);
        return;
    }

    // The least float, not -infinity: a difference of two infinities is NaN.
    float most = -3.402823466e38f, sum = 0.0f;
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
    float high = block_max(most, shared);
    float own = label < a.classes ? logits[label] : NAN;
    sum = block_sum(sum * expf(most - high), shared);
    if (me == 0) *loss = logf(sum) + (high - own);
    if (a.grad < 0) return;

    float factor = get(a.norm, 0) * get(a.dloss, 0);
    float scale = label < a.classes ? factor / sum : NAN;
    for (int start = 0; start < a.classes; start += step) {
        float g[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int c = start + k * block + me;
            g[k] = c < a.classes ? logits[c] : 0.0f;
        }
        if (a.grad != F32) __syncthreads();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int c = start + k * block + me;
            if (c < a.classes) put(out, c, expf(g[k] - high) * scale - (c == label ? factor : 0.0f));
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
