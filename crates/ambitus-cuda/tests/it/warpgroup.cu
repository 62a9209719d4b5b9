// Tiny kernels for what warpgroup.h offers, right and wrong.

enum { RIGHT = 0, EARLY = 1, OVERWRITTEN = 2, UNSEEN = 3, APART = 4 };
enum { warpgroup_block = 128, warpgroup_registers = 255 };
struct warpgroup_args { const u16 *a, *b; float* c; int half, over_rows, wrong; };

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Rows of 64 elements, in panels of as many columns.
__device__ inline void put_panels(const u16* from, int rows, int columns, u16* to) {
    for (int i = threadIdx.x; i < rows * columns; i += 128) {
        const int row = i / columns, column = i % columns, chunk = column % PANEL / 8;
        to[column / PANEL * rows * PANEL + row * PANEL + 8 * (chunk ^ row % 8) + column % 8] = from[i];
    }
}

// c [64, 128] = a [64, 64] times b: [128, 64] along rows, [64, 128] over rows with `a` in registers.
template <bool HALF>
__device__ inline void multiply(const warpgroup_args& a, u16* memory) {
    u16 *left = memory + (1024 - in_shared(memory) % 1024) % 1024 / 2, *right = left + 64 * 64;
    put_panels(a.a, 64, 64, left);
    put_panels(a.b, a.over_rows ? 64 : 128, a.over_rows ? 128 : 64, right);
    if (a.wrong != UNSEEN) fence_products();
    __syncthreads();
    float c[16][4];
    u32 x[4][4];
    const int row = threadIdx.x / 32 * 16 + lane_row();
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) x[k][i] = *(const u32*)(a.a + (row + i % 2 * 8) * 64 + 16 * k + i / 2 * 8 + lane_column());
    clear_fragments(c);
    wgmma_fence(c, x);
    for (int k = 0; k < 4; k++) {
        if (a.over_rows) wgmma_columns<HALF>(c, x[k], over_rows(right + 16 * k * PANEL, 64 * PANEL));
        else wgmma_rows<HALF>(c, along_rows(left + 16 * k), along_rows(right + 16 * k + (a.wrong == APART ? threadIdx.x / 64 * 512 : 0)), k > 0);
    }
    wgmma_commit();
    if (a.wrong == OVERWRITTEN) copy16(right + 8 * threadIdx.x, a.b, true);
    if (a.wrong == EARLY) c[0][0] = 1.0f;
    wgmma_wait(0, c, x);
    copies_commit();
    copies_wait(0);
    for (int n = 0; n < 16; n++)
        for (int e = 0; e < 4; e++) a.c[(row + e / 2 * 8) * 128 + 8 * n + lane_column() + e % 2] = c[n][e];
}

KERNEL(warpgroup) {
    DYNAMIC_SHARED(u16, memory);
    if (a.half) multiply<true>(a, memory);
    else multiply<false>(a, memory);
}
#else
KERNEL(warpgroup) {}
#endif
