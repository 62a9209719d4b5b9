// Flats of several tensors between ranks. A stretch of every equal part of a flat is staged: place i holds the flat's element
// (i / n) * stride + first + i % n, parts of `stride` elements, of each n from `first` on.

// The element of the tensor at `at` of the flat that is staged at place i.
__device__ inline i64 staged_element(i64 i, const Stretch& s, i64 at) {
    i64 part = i / s.n;
    return part * s.stride + s.first + (i - part * s.n) - at;
}

// From `count` staged places on to the tensor.
KERNEL(unpack) {
    View staged = a.y;
    staged.data = (void*)a.staged;
    for (i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x; k < a.count; k += (i64)gridDim.x * blockDim.x) {
        i64 i = a.begin + k;
        move(staged, i, a.y, place(a.y, staged_element(i, a.stretch, a.at)));
    }
}

// From the tensor to `count` staged places on.
KERNEL(pack) {
    View staged = a.x;
    staged.data = (void*)a.staged;
    for (i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x; k < a.count; k += (i64)gridDim.x * blockDim.x) {
        i64 i = a.begin + k;
        move(a.x, place(a.x, staged_element(i, a.stretch, a.at)), staged, i);
    }
}

// In the order of ranks: the bits do not depend on how the pieces travelled.
KERNEL(ordered_sum) {
    const float* got = (const float*)a.got;
    float* y = (float*)a.y;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) {
        const float* x = got + i;
        float sum = *x;
        // Threads hide the loads, not unrolling: that would take registers from them.
#pragma unroll 1
        for (int rank = 1; rank < a.ranks; rank++) sum += *(x += a.n);
        y[i] = sum;
    }
}
