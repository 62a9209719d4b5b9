// What is left to do after a product by cuBLASLt.

// The factor of products whose other factor lies on the card.
extern "C" __device__ const float one = 1.0f;

KERNEL(clear_pads) {
    int pads = a.y.pitch - a.y.cols;
    i64 n = a.y.rows * pads;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
        zero(a.y, i / pads * a.y.pitch + a.y.cols + i % pads);
}
