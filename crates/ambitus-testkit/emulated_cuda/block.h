// A CUDA block on one processor core, for tests: every thread is a fiber, barriers and warp exchanges switch between
// them. Blocks run one after the other; within a block threads take turns upwards, downwards or in a shuffled order, and results must not differ:
// that shows missing barriers.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __shared__ static
#define __constant__ static

struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
#if defined(__x86_64__)
// Saves the callee's registers on this stack, goes on with another.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.hidden emulated_switch
.globl emulated_switch
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
struct Fiber {
    void* at;
    void start(char* stack, size_t size, void (*entry)()) {
        uintptr_t top = ((uintptr_t)stack + size) & ~(uintptr_t)15;
        void** p = (void**)top;
        *--p = nullptr;          // keeps the entry's stack aligned as after a call
        *--p = (void*)entry;     // returned to
        p -= 6;                  // registers
        at = p;
    }
    static void change(Fiber& from, Fiber& to) { emulated_switch(&from.at, to.at); }
};
#else
struct Fiber {
    ucontext_t at;
    void start(char* stack, size_t size, void (*entry)()) {
        getcontext(&at);
        at.uc_stack.ss_sp = stack;
        at.uc_stack.ss_size = size;
        at.uc_link = nullptr;
        makecontext(&at, entry, 0);
    }
    static void change(Fiber& from, Fiber& to) { swapcontext(&from.at, &to.at); }
};
#endif

enum Waiting { RUNS, AT_BLOCK, AT_WARP, ENDED };
const size_t STACK = 64 << 10;
static std::vector<char> stacks;
static std::vector<Fiber> fibers;
static std::vector<Waiting> waiting;
static std::vector<uint32_t> lanes;
static Fiber scheduler;
static unsigned current;
static void (*body)(const void*);
static const void* args;

static void stop(Waiting why) {
    waiting[current] = why;
    Fiber::change(fibers[current], scheduler);
}

static void entry() {
    body(args);
    stop(ENDED);
    abort();
}

// Lets threads first..last that wait at `what` go on when all that have not ended wait there.
static bool release(unsigned first, unsigned last, Waiting what) {
    bool some = false;
    for (unsigned t = first; t < last; t++) {
        if (waiting[t] == what) some = true;
        else if (waiting[t] != ENDED) return false;
    }
    if (some) for (unsigned t = first; t < last; t++) if (waiting[t] == what) waiting[t] = RUNS;
    return some;
}

// Order 0 is upwards, 1 downwards, others shuffle (another order at every turn).
static void arrange(std::vector<unsigned>& turns, unsigned threads, unsigned order) {
    static uint64_t random = 1;
    turns.resize(threads);
    for (unsigned k = 0; k < threads; k++) turns[k] = order == 1 ? threads - 1 - k : k;
    if (order < 2) return;
    for (unsigned k = threads; k > 1; k--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::swap(turns[k - 1], turns[(random >> 33) % k]);
    }
}

static void run_block(unsigned threads, unsigned order) {
    if (fibers.size() < threads) {
        stacks.resize(threads * STACK);
        fibers.resize(threads);
        waiting.resize(threads);
        lanes.resize(threads);
    }
    for (unsigned t = 0; t < threads; t++) {
        fibers[t].start(&stacks[t * STACK], STACK, entry);
        waiting[t] = RUNS;
    }
    for (;;) {
        static std::vector<unsigned> turns;
        arrange(turns, threads, order);
        bool moved = false, alive = false;
        for (unsigned k = 0; k < threads; k++) {
            unsigned t = turns[k];
            if (waiting[t] != RUNS) continue;
            moved = true;
            current = t;
            threadIdx.x = t;
            Fiber::change(scheduler, fibers[t]);
        }
        for (unsigned t = 0; t < threads; t++) alive |= waiting[t] != ENDED;
        if (!alive) return;
        for (unsigned w = 0; w < threads; w += 32) moved |= release(w, w + 32 < threads ? w + 32 : threads, AT_WARP);
        moved |= release(0, threads, AT_BLOCK);
        if (!moved) {
            fprintf(stderr, "threads of one block wait at different barriers\n");
            abort();
        }
    }
}

static void run(unsigned threads, unsigned gx, unsigned gy, unsigned order, void (*f)(const void*), const void* a) {
    body = f;
    args = a;
    blockDim = {threads, 1, 1};
    gridDim = {gx, gy, 1};
    threadIdx = {0, 0, 0};
    for (unsigned y = 0; y < gy; y++) {
        for (unsigned x = 0; x < gx; x++) {
            blockIdx = {x, y, 0};
            run_block(threads, order);
        }
    }
}

static uint32_t exchange(uint32_t bits, unsigned lane) {
    unsigned me = current;
    lanes[me] = bits;
    stop(AT_WARP);
    uint32_t got = lanes[me / 32 * 32 + lane % 32];
    stop(AT_WARP);
    return got;
}
template <class T> static T shuffle(T x, unsigned lane) {
    static_assert(sizeof(T) == 4, "32-bit values");
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = exchange(bits, lane);
    memcpy(&x, &bits, 4);
    return x;
}
}  // namespace emulated

#define KERNEL(name)                                                                                              \
    static void name##_body(const name##_args& a);                                                                \
    extern "C" const unsigned emulated_##name##_size = sizeof(name##_args);                                       \
    extern "C" void emulated_##name(const void* args, unsigned gx, unsigned gy, unsigned order) {                            \
        emulated::run(name##_block, gx, gy, order, [](const void* p) { name##_body(*(const name##_args*)p); }, \
                      args);                                                                                      \
    }                                                                                                             \
    static void name##_body(const name##_args& a)

static inline void __syncthreads() { emulated::stop(emulated::AT_BLOCK); }
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask) {
    return emulated::shuffle(x, (threadIdx.x % 32) ^ (unsigned)mask);
}
template <class T> static inline T __shfl_sync(unsigned, T x, int lane) { return emulated::shuffle(x, (unsigned)lane); }
template <class T> static inline T __shfl_down_sync(unsigned, T x, unsigned by) {
    unsigned lane = threadIdx.x % 32;
    return emulated::shuffle(x, lane + by < 32 ? lane + by : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned, T x, unsigned by) {
    unsigned lane = threadIdx.x % 32;
    return emulated::shuffle(x, lane >= by ? lane - by : lane);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
static inline float half_to_float(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
static inline uint16_t float_to_half(float x) { _Float16 h = (_Float16)x; uint16_t b; memcpy(&b, &h, 2); return b; }
