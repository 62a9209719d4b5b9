// What lanes of a warp do together on tensor cores, and copies to shared memory that land later: one instruction each. For the
// processor they are in ambitus-testkit/emulated_cuda/warp.h. Fragments lie as the PTX manual says: of a, 16 x k, lane l has rows
// l / 4 and l / 4 + 8, of b, k x 8, and c, 16 x 8, column l / 4 and columns 2 (l % 4) + {0, 1}.

#ifdef __CUDACC__
// c += a b. From compute capability 8.0 on, but for halves with k = 8, from 7.5.
__device__ inline void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_f16_k8(float (&c)[4], const u32 (&a)[2], u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Where shared memory's own instructions find a place of it.
__device__ inline u32 in_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Four matrices of 8 x 8 elements of 16 bits from shared memory: lane 8 m + i says where row i of matrix m begins, and gets of each
// matrix the elements that it has of c; of its transpose, with the second.
__device__ inline void ldmatrix(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(in_shared(row)) : "memory");
}
__device__ inline void ldmatrix_transposed(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(in_shared(row)) : "memory");
}

// Two floats as two elements of 16 bits, and 2^x: approximate, 2 ulp. From 8.0 on.
__device__ inline u32 pack_bf16(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ inline u32 pack_f16(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Starts a copy of 16 bytes to shared memory, or of zeros. What was started since the last commit is a group; a wait lets at most some of
// the thread's groups go on, and others see what has landed after a barrier. From 8.0 on.
__device__ inline void copy16(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ inline void copies_wait_for() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
#define copies_wait(left) copies_wait_for<left>()

// Shared memory of the size that the launch says. One such name in a kernel.
#define DYNAMIC_SHARED(type, name)          \
    extern __shared__ Chunk name##_chunks[]; \
    type* name = (type*)name##_chunks
#endif

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800
// Elements from row to row in shared memory: an odd number of 16 bytes, so that eight rows lie in different banks.
template <int D> struct Shared { enum { PITCH = D + 8 }; };

// c += a b, of halves or of bfloat16.
template <bool HALF>
__device__ inline void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 b[2] = {b0, b1};
    if (HALF) mma_f16(c, a, b);
    else mma_bf16(c, a, b);
}

template <bool HALF>
__device__ inline u32 pack(float low, float high) {
    return HALF ? pack_f16(low, high) : pack_bf16(low, high);
}

// Where a lane's elements of c are: two neighbours in this row, two in the eighth below.
__device__ inline int lane_row() { return threadIdx.x % 32 / 4; }
__device__ inline int lane_column() { return threadIdx.x % 4 * 2; }

template <int N>
__device__ inline void clear_fragments(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n][e] = 0.0f;
}
#endif
