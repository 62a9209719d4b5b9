// How the emulated card runs a block, on one processor core: every thread is a fiber, barriers and warp exchanges switch between
// them. Blocks run one after the other. Results must not depend on the order in which threads take turns: that shows missing
// barriers, and so does the race check of races.h, in any order.
#include "block.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

Dim emulated_thread, emulated_block, emulated_block_size, emulated_grid;

namespace {
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
// What lanes of a warp meet for; the last two need all lanes.
enum Meeting { BARRIER, EXCHANGE, PRODUCT, FRAGMENTS };
const size_t STACK = 64 << 10;
const unsigned MOST_THREADS = 1024, WARP = 32;
std::vector<char> stacks(MOST_THREADS * STACK);
Fiber fibers[MOST_THREADS], scheduler;
Waiting waiting[MOST_THREADS];
Meeting meeting[MOST_THREADS];
uint32_t lanes[MOST_THREADS];
unsigned threads, current;
const EmulatedKernel* kernel;
const void* arguments;
// Shared memory whose size the launch says, with a margin on both sides. It begins at a multiple of 16 bytes, of no more.
const size_t MOST_DYNAMIC = 227 << 10, MARGIN = 64 << 10;
alignas(1024) char dynamic_area[MARGIN + MOST_DYNAMIC + MARGIN];
char* const dynamic = dynamic_area + MARGIN + 16;
size_t dynamic_bytes;
// The barrier, commit or wait that is not there, and those that threads came by.
std::string gone;
std::map<std::string, unsigned> came_by;
bool faulted;

// The first fault of a launch is said; the launch fails.
void fault(const char* what) {
    if (!faulted) fprintf(stderr, "emulated card: %s, block %u, %u: %s\n", kernel->name, emulated_block.x, emulated_block.y, what);
    faulted = true;
}
}  // namespace

namespace {
void stop(Waiting why) {
    waiting[current] = why;
    Fiber::change(fibers[current], scheduler);
}
void meet(Meeting what) {
    meeting[current] = what;
    stop(AT_WARP);
}
bool is_gone(const char* file, int line) {
    std::string place = std::string(file) + ":" + std::to_string(line);
    came_by[place]++;
    return place == gone;
}
}  // namespace

#include "races.h"
#include "warp.h"
#include "warpgroup.h"

namespace {
void entry() {
    kernel->body(arguments);
    warp::end_thread();
    warpgroup::end_thread();
    lanes[current] = 0xffffffff;  // what a thread that has ended would have said is nothing
    stop(ENDED);
    abort();
}

// Lets threads first..last that wait at `what` go on when all that have not ended wait there.
bool release(unsigned first, unsigned last, Waiting what) {
    bool some = false, all = last - first == WARP;
    unsigned one = first;
    for (unsigned t = first; t < last; t++) {
        if (waiting[t] == what) some = true, one = t;
        else if (waiting[t] != ENDED) return false;
        else all = false;
    }
    if (!some) return false;
    for (unsigned t = first; t < last; t++) {
        if (waiting[t] != what) continue;
        waiting[t] = RUNS;
        if (what == AT_WARP && meeting[t] != meeting[one]) fault("lanes of one warp meet for different things");
    }
    if (what == AT_WARP && !all && meeting[one] >= PRODUCT) fault("a warp without all its lanes multiplies matrices or loads fragments");
    return true;
}

unsigned end_of_warp(unsigned first) { return first + WARP < threads ? first + WARP : threads; }

bool go_on(unsigned t) {
    if (waiting[t] != RUNS) return false;
    current = t;
    emulated_thread.x = t;
    Fiber::change(scheduler, fibers[t]);
    return true;
}

// One turn of every thread: upwards, downwards, or shuffled, in another order at every turn.
bool turn(unsigned order) {
    static uint64_t random = 1;
    static unsigned turns[MOST_THREADS];
    for (unsigned k = 0; k < threads; k++) turns[k] = order == 1 ? threads - 1 - k : k;
    for (unsigned k = threads; order == 2 && k > 1; k--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::swap(turns[k - 1], turns[(random >> 33) % k]);
    }
    bool moved = false;
    for (unsigned k = 0; k < threads; k++) moved |= go_on(turns[k]);
    for (unsigned w = 0; w < threads; w += WARP) moved |= release(w, end_of_warp(w), AT_WARP);
    return moved;
}

// Every warp as far as it gets alone, upwards or downwards: warps run ahead of each other as far as barriers let them.
bool turn_of_warps(unsigned order) {
    bool moved = false;
    unsigned warps = (threads + WARP - 1) / WARP;
    for (unsigned k = 0; k < warps; k++) {
        unsigned first = (order == 3 ? k : warps - 1 - k) * WARP, last = end_of_warp(first);
        for (bool again = true; again; moved |= again) {
            again = false;
            for (unsigned t = first; t < last; t++) again |= go_on(t);
            again |= release(first, last, AT_WARP);
        }
    }
    return moved;
}

bool margins_are_left() {
    auto left = [](const char* first, const char* end) { return std::all_of(first, end, [](char c) { return c == (char)0xff; }); };
    return left(dynamic_area, dynamic) && left(dynamic + dynamic_bytes, dynamic_area + sizeof dynamic_area);
}

void run_block(unsigned order) {
    // What a block finds in its shared memory is not what the block before left: full of NaN.
    memset(kernel->shared, 0xff, kernel->shared_end - kernel->shared);
    if (dynamic_bytes) memset(dynamic_area, 0xff, sizeof dynamic_area);
    races::begin_block();
    lines::begin_block();
    warp::begin_block();
    warpgroup::begin_block();
    for (unsigned t = 0; t < threads; t++) {
        fibers[t].start(&stacks[t * STACK], STACK, entry);
        waiting[t] = RUNS;
    }
    for (;;) {
        bool moved = order < 3 ? turn(order) : turn_of_warps(order), alive = false;
        for (unsigned t = 0; t < threads; t++) alive |= waiting[t] != ENDED;
        if (!alive) {
            if (dynamic_bytes && !margins_are_left()) fault("it writes outside of its dynamic shared memory");
            warpgroup::end_block();
            return conflicts::end_interval();
        }
        if (release(0, threads, AT_BLOCK)) {
            races::interval++;
            conflicts::end_interval();
        } else if (!moved) return fault("its threads wait at different barriers");
    }
}
}  // namespace

API void emulated_run(const EmulatedKernel* k, const void* a, unsigned gx, unsigned gy, unsigned shared, unsigned order) {
    kernel = k;
    dynamic_bytes = shared;
    arguments = a;
    threads = k->block;
    emulated_block_size = {threads, 1, 1};
    emulated_grid = {gx, gy, 1};
    emulated_thread = {0, 0, 0};
    races::begin_launch();
    conflicts::accesses.clear();
    for (unsigned y = 0; y < gy && !faulted; y++) {
        for (unsigned x = 0; x < gx && !faulted; x++) {
            emulated_block = {x, y, 0};
            run_block(order);
        }
    }
}
API int emulated_take_fault() {
    bool was = faulted;
    faulted = false;
    return was;
}
// From now on the barrier, commit or wait of this place, as in `conv.cu:149`, is not there.
API void emulated_delete(const char* place) { gone = place; }
// Returns how often threads came by what stands at a place since this was asked.
API unsigned emulated_came_by(const char* place) { return std::exchange(came_by[place], 0); }
API char* emulated_dynamic_shared() { return dynamic; }
API void emulated_barrier(const char* file, int line) {
    if (!is_gone(file, line)) stop(AT_BLOCK);
}
API void emulated_warp_barrier(const char* file, int line) {
    if (is_gone(file, line)) return;
    meet(BARRIER);
    races::warp_intervals[current]++;
}
// Shuffles make lanes meet; what they wrote to memory is not promised to be seen.
API uint32_t emulated_exchange(uint32_t bits, unsigned lane) {
    unsigned me = current;
    lanes[me] = bits;
    meet(EXCHANGE);
    uint32_t got = lanes[me / WARP * WARP + lane % WARP];
    meet(EXCHANGE);
    return got;
}
