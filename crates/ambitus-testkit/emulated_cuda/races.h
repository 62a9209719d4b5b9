// Whether threads touch the same bytes without a barrier between them, one of them writing: in shared memory, and in the card's,
// where nothing stands between the blocks of one launch. The compiler says every load and store of the kernels (-fsanitize=thread
// without its library), so this holds for any order of threads.

#include "conflicts.h"
#include "lines.h"

#include <unordered_map>

namespace races {
enum { OTHER_THREADS = 1, OTHER_WARPS = 2, OTHER_BLOCKS = 4 };
// The last access to a byte, and who else had it in the same interval.
struct Access {
    uint32_t block;
    uint16_t interval, warp_interval, thread, others;
};
struct Byte {
    Access read, write;
};
const uintptr_t PAGE = 4096;
const size_t MOST_PAGES = 4096;  // 400 MB of what is kept of them
std::unordered_map<uintptr_t, std::vector<Byte>> pages;
std::vector<Byte> shared_bytes;
uint32_t block, first_block;
// How many barriers of the block, and of the warp, came before.
uint16_t interval, warp_intervals[MOST_THREADS];

// Where 16 bytes of shared memory are the destination of copies that nobody has waited for, and of how many.
std::unordered_map<uintptr_t, unsigned> on_the_way;
const uintptr_t LINE = 16;

size_t static_bytes() { return kernel->shared_end - kernel->shared; }
bool is_static(uintptr_t at) { return at - (uintptr_t)kernel->shared < static_bytes(); }
bool is_dynamic(uintptr_t at) { return at - (uintptr_t)dynamic < dynamic_bytes; }
bool is_shared(uintptr_t at) { return is_static(at) || is_dynamic(at); }

void begin_launch() {
    first_block = block + 1;
    if (pages.size() > MOST_PAGES) pages.clear();
}
void begin_block() {
    block++;
    interval = 0;
    memset(warp_intervals, 0, sizeof warp_intervals);
}

Access mine(uint16_t others) {
    return {block, interval, warp_intervals[current], (uint16_t)current, others};
}

// An access of another thread from which no barrier divides this one.
bool meets(const Access& a, bool shared) {
    if (a.block < first_block) return false;
    if (a.block != block || a.others & OTHER_BLOCKS) return !shared;
    if (a.interval != interval) return false;
    if (a.others & OTHER_WARPS || a.thread / WARP != current / WARP) return true;
    return a.warp_interval == warp_intervals[current] && (a.others & OTHER_THREADS || a.thread != current);
}

Access read_too(const Access& a, bool shared) {
    if (a.block < first_block || (shared && a.block != block)) return mine(0);
    if (a.block != block) return mine(OTHER_BLOCKS);
    if (a.interval != interval) return mine(a.others & OTHER_BLOCKS);
    if (a.thread / WARP != current / WARP) return mine(a.others | OTHER_WARPS);
    if (a.warp_interval != warp_intervals[current]) return mine(a.others & ~OTHER_THREADS);
    return mine(a.thread == current ? a.others : a.others | OTHER_THREADS);
}

void touch(const void* data, size_t size, bool writes, void* code) {
    uintptr_t at = (uintptr_t)data;
    if (at - (uintptr_t)stacks.data() < stacks.size()) return;
    if (at + size - 1 - (uintptr_t)dynamic_area < sizeof dynamic_area && !(is_dynamic(at) && is_dynamic(at + size - 1)))
        return fault("it loads or stores outside of its dynamic shared memory");
    bool shared = is_shared(at);
    if (shared && shared_bytes.size() < static_bytes() + dynamic_bytes) shared_bytes.resize(static_bytes() + dynamic_bytes);
    if (shared && size <= 16) conflicts::add((uintptr_t)code, data, size);
    if (writes && is_dynamic(at)) lines::write(at, size);
    for (uintptr_t line = at / LINE * LINE; !on_the_way.empty() && line < at + size; line += LINE)
        if (on_the_way.count(line)) fault("it touches what a copy writes that nobody has waited for");
    for (size_t i = 0; i < size; i++, at++) {
        static uintptr_t last_page = ~(uintptr_t)0;
        static Byte* last_bytes;
        if (!shared && (at / PAGE != last_page || pages.empty())) {
            auto& bytes = pages[at / PAGE];
            if (bytes.empty()) bytes.resize(PAGE);
            last_page = at / PAGE;
            last_bytes = bytes.data();
        }
        size_t in_shared = is_dynamic(at) ? static_bytes() + (at - (uintptr_t)dynamic) : at - (uintptr_t)kernel->shared;
        Byte& b = shared ? shared_bytes[in_shared] : last_bytes[at % PAGE];
        if (meets(b.write, shared) || (writes && meets(b.read, shared))) {
            const Access& other = meets(b.write, shared) ? b.write : b.read;
            bool outside = other.block != block || other.others & OTHER_BLOCKS;
            char text[160], who[40] = "another block";
            if (!outside) snprintf(who, sizeof who, other.thread == current ? "another thread" : "thread %u", other.thread);
            snprintf(text, sizeof text, "thread %u %s what %s %s, in %s memory, and no barrier divides them", current,
                     writes ? "writes" : "reads", who, &other == &b.write ? "writes" : "reads", shared ? "shared" : "the card's");
            fault(text);
        }
        if (writes) b.write = mine(0);
        else b.read = read_too(b.read, shared);
    }
}
}  // namespace races

// What the compiler calls at loads and stores.
#define TOUCH(size, writes) races::touch(at, size, writes, __builtin_return_address(0))
#define SEEN(size)                                                              \
    API void __tsan_read##size(void* at) { TOUCH(size, false); }                \
    API void __tsan_write##size(void* at) { TOUCH(size, true); }                \
    API void __tsan_unaligned_read##size(void* at) { TOUCH(size, false); }      \
    API void __tsan_unaligned_write##size(void* at) { TOUCH(size, true); }
SEEN(1)
SEEN(2)
SEEN(4)
SEEN(8)
SEEN(16)
API void __tsan_read_range(void* at, size_t size) { TOUCH(size, false); }
API void __tsan_write_range(void* at, size_t size) { TOUCH(size, true); }
API void __tsan_init() {}
API void __tsan_func_entry(void*) {}
API void __tsan_func_exit() {}
