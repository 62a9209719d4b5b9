// Core ops that move elements, whatever their type.

// Divisions of 32 bits are several times cheaper than those of 64.
template <class N>
__device__ inline void walk(const strided_args& a, N n) {
    const N cols = (N)a.dims.d[3], rows = (N)a.dims.d[2], groups = (N)a.dims.d[1];
    const bool deep = a.dims.d[0] * a.dims.d[1] != 1;
    for (N i = (N)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        N c = i, r = 0;
        if (n != cols) {
            r = i / cols;
            c = i - r * cols;
        }
        i64 from = a.from_at + (i64)c * a.from.d[3];
        i64 to = a.to_at + (i64)c * a.to.d[3];
        if (deep) {
            N rest = r / rows;
            r -= rest * rows;
            N outer = rest / groups, group = rest - outer * groups;
            from += (i64)outer * a.from.d[0] + (i64)group * a.from.d[1];
            to += (i64)outer * a.to.d[0] + (i64)group * a.to.d[1];
        }
        from += (i64)r * a.from.d[2];
        to += (i64)r * a.to.d[2];
        if ((i64)c < a.cols) move_unit((const void*)a.x, from, (void*)a.y, to, a.size);
        else zero_unit((void*)a.y, to, a.size);
    }
}

KERNEL(strided) {
    i64 n = a.dims.d[0] * a.dims.d[1] * a.dims.d[2] * a.dims.d[3];
    // The walk's last step past n must not wrap either.
    if (n <= 0x7fffffff) walk<u32>(a, (u32)n);
    else walk<u64>(a, (u64)n);
}

__device__ inline u32 load_unit(u64 from, i64 i, int size) {
    if (size == 4) return ((const u32*)from)[i];
    if (size == 2) return ((const u16*)from)[i];
    return ((const u8*)from)[i];
}

__device__ inline void store_unit(u64 to, i64 i, int size, u32 x) {
    if (size == 4) ((u32*)to)[i] = x;
    else if (size == 2) ((u16*)to)[i] = (u16)x;
    else ((u8*)to)[i] = (u8)x;
}

// Through a tile, so that neighbouring threads read neighbours of x and write neighbours of y. A tile's row is 33
// long: its columns lie in 32 different banks.
KERNEL(transpose) {
    __shared__ u32 tile[32][33];
    u32 b = blockIdx.x;
    const u32 across = (u32)((a.pitch + 31) / 32), down = (u32)((a.q + 31) / 32), groups = (u32)a.outer.d[1];
    const i64 p0 = (i64)(b % across) * 32;
    b /= across;
    const i64 q0 = (i64)(b % down) * 32;
    b /= down;
    const i64 from = b / groups * a.from.d[0] + b % groups * a.from.d[1];
    const i64 to = b / groups * a.to.d[0] + b % groups * a.to.d[1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int j = warp; j < 32; j += 8) {
        i64 p = p0 + j, q = q0 + lane;
        if (p < a.p && q < a.q) tile[j][lane] = load_unit(a.x, from + p * a.from_p + q, a.size);
    }
    __syncthreads();
    for (int j = warp; j < 32; j += 8) {
        i64 q = q0 + j, p = p0 + lane;
        if (q < a.q && p < a.pitch) store_unit(a.y, to + q * a.to_q + p, a.size, p < a.p ? tile[lane][j] : 0);
    }
}

KERNEL(regroup) {
    each(a.y, [&](i64 i) {
        i64 element = i / a.y.pitch * a.y.cols + i % a.y.pitch;
        move(a.x, place(a.x, element), a.y, i);
    });
}

KERNEL(iota) {
    each(a.y, [&](i64 i) {
        i64 number = i / a.step % a.len;
        if (a.y.dtype == I32) put_int(a.y, i, (int)number);
        else put(a.y, i, (float)number);
    });
}
