// Tiny kernels, one for each thing that warp.h and the launch of a kernel offer.

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800
#define AMPERE
#endif

enum { products_block = 32, products_registers = 64 };
// kind 0: bfloat16, 1: half, 2: half with k = 8.
struct products_args { const u16 *a, *b; float* c; int kind; };

// c [16, 8] += a [16, k] b [k, 8].
KERNEL(products) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, k = a.kind == 2 ? 8 : 16;
    u32 x[4], y[2];
    for (int i = 0; i < k / 4; i++) x[i] = *(const u32*)(a.a + (g + 8 * (i % 2)) * k + 2 * t + 8 * (i / 2));
    for (int i = 0; i < k / 8; i++) {
        const u16* from = a.b + (2 * t + 8 * i) * 8 + g;
        y[i] = from[0] | (u32)from[8] << 16;
    }
    float c[4];
    for (int e = 0; e < 4; e++) c[e] = a.c[(g + 8 * (e / 2)) * 8 + 2 * t + e % 2];
    if (a.kind == 2) mma_f16_k8(c, {x[0], x[1]}, y[0]);
#ifdef AMPERE
    else if (a.kind == 1) mma_f16(c, x, y);
    else mma_bf16(c, x, y);
#endif
    for (int e = 0; e < 4; e++) a.c[(g + 8 * (e / 2)) * 8 + 2 * t + e % 2] = c[e];
}

enum { fragments_block = 32, fragments_registers = 64 };
struct fragments_args { const u16* from; u32* to; int pitch, off, transposed; };

// A matrix of 16 x 16, as four of 8 x 8, by rows of `pitch` elements; off: elements by which rows are not where they should be.
KERNEL(fragments) {
    __shared__ Chunk chunks[16 * 64 / 8];
    u16* tile = (u16*)chunks;
    for (int i = threadIdx.x; i < 256; i += 32) tile[i / 16 * a.pitch + i % 16] = a.from[i];
    __syncthreads();
    const int lane = threadIdx.x;
    const u16* row = tile + lane % 16 * a.pitch + lane / 16 * 8 + a.off;
    u32 r[4];
    if (a.transposed) ldmatrix_transposed(r, row);
    else ldmatrix(r, row);
    for (int m = 0; m < 4; m++) a.to[lane * 4 + m] = r[m];
}

#ifdef AMPERE
enum { copies_block = 64, copies_registers = 64, COPIED = 64 };
struct copies_args { const Chunk* from; u32* to; int tiles, n; };

// Tiles of a chunk a thread, two in shared memory at a time, of which the last chunks are not there: each thread adds up what
// another thread has fetched.
KERNEL(copies) {
    __shared__ Chunk stages[2][COPIED];
    const int me = threadIdx.x;
    auto fetch = [&](int tile) {
        int at = tile * COPIED + me;
        if (tile < a.tiles) copy16(&stages[tile % 2][me], a.from + (at < a.n ? at : 0), at < a.n);
        copies_commit();
    };
    fetch(0);
    u32 sum = 0;
    for (int tile = 0; tile < a.tiles; tile++) {
        fetch(tile + 1);
        copies_wait(1);
        __syncthreads();
        const Chunk& x = stages[tile % 2][(me + 17) % COPIED];
        for (int w = 0; w < 4; w++) sum = 31 * sum + x.words[w];
        __syncthreads();
    }
    a.to[me] = sum;
}

enum { unawaited_block = 32, unawaited_registers = 32 };
struct unawaited_args { const Chunk* from; };
KERNEL(unawaited) {
    __shared__ Chunk to[32];
    copy16(&to[threadIdx.x], a.from, true);
    copies_commit();
}
#endif

enum { dynamic_block = 32, dynamic_registers = 32 };
struct dynamic_args { u32* to; int n, beyond, filled; };

// Turns n words around in dynamic shared memory, which is filled or found as it is, and writes one word beyond its end.
KERNEL(dynamic) {
    DYNAMIC_SHARED(u32, words);
    if (a.filled)
        for (int i = threadIdx.x; i < a.n; i += 32) words[i] = i;
    if (a.beyond && threadIdx.x == 0) words[a.n] = 7;
    __syncthreads();
    for (int i = threadIdx.x; i < a.n; i += 32) a.to[i] = words[a.n - 1 - i];
}

enum { apart_block = 32, apart_registers = 32 };
struct apart_args { float* to; int missing; };

// Lanes that do not do the same: half of them are gone, or elsewhere.
KERNEL(apart) {
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (threadIdx.x >= 16) {
        if (a.missing) return;
        c[0] = __shfl_xor_sync(0xffff0000u, c[0], 1);
    } else {
        mma_f16_k8(c, {1, 2}, 3);
    }
    a.to[threadIdx.x] = c[0];
}
