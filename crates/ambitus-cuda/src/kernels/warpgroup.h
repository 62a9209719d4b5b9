// What four warps do together on Hopper's tensor cores (wgmma, "sm_90a"): products that read shared memory by themselves and end later. For
// the processor they are in ambitus-testkit/emulated_cuda/warpgroup.h. Sums lie in registers as those of warp.h: of 64 rows a warp has 16.
//
// Rows of 64 elements of 16 bits, 128 bytes, make a panel, which begins at a multiple of 1024 bytes. Sixteen bytes that belong at place p
// of row r are at place p ^ r % 8: what is read together, of eight rows, lies in different banks ("128-byte swizzle").

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
enum { PANEL = 64 };

// Matrices in shared memory, as products find them: whose sums go along rows, and whose sums go over rows, where `panel` elements further on
// the next 64 columns begin.
__device__ inline u64 along_rows(const u16* at) {
    return (u64)((in_shared(at) & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
__device__ inline u64 over_rows(const u16* at, int panel) {
    return (u64)((in_shared(at) & 0x3ffff) >> 4) | (u64)(2 * panel >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
// A matrix that begins some elements later.
__device__ inline u64 later(u64 matrix, int elements) { return matrix + (2 * elements >> 4); }
#endif

#if defined(__CUDACC__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A number that the compiler takes for another each time: what follows from it is computed anew, where registers are dear.
__device__ inline int anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Keeps what is done to registers on its side of this place.
template <int N>
__device__ inline void hold(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
template <int N>
__device__ inline void hold(u32 (&a)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
}

// Registers (sums, and left operands) that products from here on have; what products so far are a group; a wait lets at most some groups go
// on, and gives registers back.
template <class... R>
__device__ inline void wgmma_fence(R&... registers) {
    (hold(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT, class... R>
__device__ inline void wgmma_wait_for(R&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    (hold(registers), ...);
}
#define wgmma_wait(left, ...) wgmma_wait_for<left>(__VA_ARGS__)

// What this thread has written to shared memory, products see after the next barrier.
__device__ inline void fence_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SUMS32 SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
#define SUMS64 SUMS32, SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15)
#define NAMES32                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES64                                                                                             \
    NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
            "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OF_SHARED(type, n, names, sums, a, b, adds)                                                                          \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" adds ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
                 " {" names "}, %" a ", %" b ", p, 1, 1, 0, 0;}" : sums : "l"(left), "l"(right), "r"((int)more))
#define OF_REGISTERS(type, n, names, sums, a, b, adds)                                                                       \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" adds ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
                 " {" names "}, {" a "}, %" b ", p, 1, 1, 1;}"                                                              \
                 : sums : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(1))

// c [64, 8 N] = left [64, 16] right [8 N, 16]^T, both in shared memory along rows, or adds it where there is `more` already.
template <bool HALF, int N>
__device__ inline void wgmma_rows(float (&c)[N][4], u64 left, u64 right, bool more) {
    static_assert(N == 8 || N == 16, "64 or 128 columns");
    if constexpr (N == 8) {
        if (HALF) OF_SHARED("f16", "64", NAMES32, SUMS32, "32", "33", "34");
        else OF_SHARED("bf16", "64", NAMES32, SUMS32, "32", "33", "34");
    } else {
        if (HALF) OF_SHARED("f16", "128", NAMES64, SUMS64, "64", "65", "66");
        else OF_SHARED("bf16", "128", NAMES64, SUMS64, "64", "65", "66");
    }
}

// c [64, 8 N] += left [64, 16] right [16, 8 N], over rows of shared memory.
template <bool HALF, int N>
__device__ inline void wgmma_columns(float (&c)[N][4], const u32 (&left)[4], u64 right) {
    static_assert(N == 8 || N == 16, "64 or 128 columns");
    if constexpr (N == 8) {
        if (HALF) OF_REGISTERS("f16", "64", NAMES32, SUMS32, "%32, %33, %34, %35", "36", "37");
        else OF_REGISTERS("bf16", "64", NAMES32, SUMS32, "%32, %33, %34, %35", "36", "37");
    } else {
        if (HALF) OF_REGISTERS("f16", "128", NAMES64, SUMS64, "%64, %65, %66, %67", "68", "69");
        else OF_REGISTERS("bf16", "128", NAMES64, SUMS64, "%64, %65, %66, %67", "68", "69");
    }
}
#endif
