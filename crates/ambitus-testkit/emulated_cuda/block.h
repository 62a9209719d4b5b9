// CUDA's words for a host C++ compiler: what a file of kernels is compiled after, and the emulated driver, whose block.cc runs
// them. Kernels' loads and stores are seen there too where the compiler is told to say them: races.h.
#include <cmath>
#include <cstdint>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __shared__ static
#define __constant__ static

struct Dim { unsigned x, y, z; };
API Dim emulated_thread, emulated_block, emulated_block_size, emulated_grid;
#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_block_size
#define gridDim emulated_grid

struct EmulatedKernel {
    const char* name;
    void (*body)(const void*);
    unsigned arguments, block;
    // Shared memory of all kernels of the file.
    char *shared, *shared_end;
};
API void emulated_run(const EmulatedKernel*, const void* arguments, unsigned gx, unsigned gy, unsigned shared, unsigned order);
API int emulated_copies_late();
API void emulated_barrier(const char* file, int line);
API void emulated_warp_barrier(const char* file, int line);
API uint32_t emulated_exchange(uint32_t bits, unsigned lane);
// Of warp.h.
API void emulated_mma(float* c, const uint32_t* a, const uint32_t* b, unsigned k, int half);
API void emulated_ldmatrix(uint32_t* r, const void* row, int transposed);
API void emulated_copy(void* to, const void* from, int there);
API void emulated_commit(const char* file, int line);
API void emulated_wait(unsigned left, const char* file, int line);
API char* emulated_dynamic_shared();
// Of warpgroup.h.
API uint32_t emulated_in_shared(const void* p);
API void emulated_wgmma(float* c, unsigned n, const uint32_t* a, uint64_t left, uint64_t right, int over_rows, int half, int adds);
API int emulated_wgmma_may_fence(const char* file, int line);
API void emulated_wgmma_fence(const void* registers, size_t size);
API void emulated_wgmma_commit(const char* file, int line);
API int emulated_wgmma_wait(unsigned left, const char* file, int line);
API void emulated_wgmma_give_back(void* registers, size_t size);
API void emulated_fence_products(const char* file, int line);

// Variables without a value lie between these two, and a file of kernels has no others than shared memory.
extern "C" __attribute__((visibility("hidden"))) char __bss_start, _end;

#define KERNEL(name)                                                                                            \
    static void name##_body(const name##_args& a);                                                              \
    API const EmulatedKernel emulated_##name;                                                                   \
    const EmulatedKernel emulated_##name = {#name, [](const void* p) { name##_body(*(const name##_args*)p); }, \
                                            sizeof(name##_args), name##_block, &__bss_start, &_end};            \
    static void name##_body(const name##_args& a)

#define __syncthreads() emulated_barrier(__FILE__, __LINE__)
#define __syncwarp() emulated_warp_barrier(__FILE__, __LINE__)
template <class T> static inline T shuffle(T x, unsigned lane) {
    static_assert(sizeof(T) == 4, "32-bit values");
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = emulated_exchange(bits, lane);
    memcpy(&x, &bits, 4);
    return x;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask) {
    return shuffle(x, (threadIdx.x % 32) ^ (unsigned)mask);
}
template <class T> static inline T __shfl_sync(unsigned, T x, int lane) { return shuffle(x, (unsigned)lane); }
template <class T> static inline T __shfl_down_sync(unsigned, T x, unsigned by) {
    unsigned lane = threadIdx.x % 32;
    return shuffle(x, lane + by < 32 ? lane + by : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned, T x, unsigned by) {
    unsigned lane = threadIdx.x % 32;
    return shuffle(x, lane >= by ? lane - by : lane);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
static inline float half_to_float(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
static inline float reciprocal(float x) { return 1.0f / x; }
static inline float exp2_fast(float x) { return exp2f(x); }
static inline uint16_t float_to_half(float x) { _Float16 h = (_Float16)x; uint16_t b; memcpy(&b, &h, 2); return b; }

// What kernels/warp.h has for a card.
static inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { emulated_mma(c, a, b, 16, 0); }
static inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { emulated_mma(c, a, b, 16, 1); }
static inline void mma_f16_k8(float (&c)[4], const uint32_t (&a)[2], uint32_t b) { emulated_mma(c, a, &b, 8, 1); }
__attribute__((always_inline)) static inline void ldmatrix(uint32_t (&r)[4], const void* row) { emulated_ldmatrix(r, row, 0); }
__attribute__((always_inline)) static inline void ldmatrix_transposed(uint32_t (&r)[4], const void* row) { emulated_ldmatrix(r, row, 1); }
__attribute__((always_inline)) static inline void copy16(void* to, const void* from, bool there) { emulated_copy(to, from, there); }
#define pack_bf16(low, high) (float_to_bf16(low) | (uint32_t)float_to_bf16(high) << 16)
#define pack_f16(low, high) (float_to_half(low) | (uint32_t)float_to_half(high) << 16)
#define copies_commit() emulated_commit(__FILE__, __LINE__)
#define copies_wait(left) emulated_wait(left, __FILE__, __LINE__)
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated_dynamic_shared()

// And kernels/warpgroup.h.
static inline uint32_t in_shared(const void* p) { return emulated_in_shared(p); }
static inline int anew(int x) { return x; }
template <bool HALF, int N> static inline void wgmma_rows(float (&c)[N][4], uint64_t left, uint64_t right, bool more) {
    emulated_wgmma(&c[0][0], 8 * N, nullptr, left, right, 0, HALF, more);
}
template <bool HALF, int N> static inline void wgmma_columns(float (&c)[N][4], const uint32_t (&left)[4], uint64_t right) {
    emulated_wgmma(&c[0][0], 8 * N, left, 0, right, 1, HALF, 1);
}
template <class... R> static inline void emulated_fence_of(const char* file, int line, R&... registers) {
    if (emulated_wgmma_may_fence(file, line)) (emulated_wgmma_fence(&registers, sizeof registers), ...);
}
template <class... R> static inline void emulated_wait_for(unsigned left, const char* file, int line, R&... registers) {
    if (emulated_wgmma_wait(left, file, line)) (emulated_wgmma_give_back(&registers, sizeof registers), ...);
}
#define wgmma_fence(...) emulated_fence_of(__FILE__, __LINE__, __VA_ARGS__)
#define wgmma_commit() emulated_wgmma_commit(__FILE__, __LINE__)
#define wgmma_wait(left, ...) emulated_wait_for(left, __FILE__, __LINE__, __VA_ARGS__)
#define fence_products() emulated_fence_products(__FILE__, __LINE__)
