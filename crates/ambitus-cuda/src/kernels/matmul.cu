// What is left to do after a product by cuBLASLt.

KERNEL(add_bias) {
    each(a.y, [&](i64 i) { put(a.y, i, get(a.y, i) + get(a.bias, i % a.y.pitch)); });
}

KERNEL(clear_pads) {
    int pads = a.y.pitch - a.y.cols;
    i64 n = a.y.rows * pads;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
        zero(a.y, i / pads * a.y.pitch + a.y.cols + i % pads);
}
