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
