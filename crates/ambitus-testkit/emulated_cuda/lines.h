// Shared memory by lines of 16 bytes, where products of four warps read it by themselves (warpgroup.h): what they read must not be written
// meanwhile, and what threads wrote they see after the thread's fence and a barrier.

namespace lines {
const uintptr_t SIZE = 16;
const size_t COUNT = sizeof dynamic_area / SIZE;
// How many products under way read a line.
uint16_t readers[COUNT];
// Who wrote it last, having passed so many fences; the number of barriers of the block before each fence.
struct Writer {
    uint16_t thread, fences;
    bool any;
} writers[COUNT];
std::vector<uint16_t> fences[MOST_THREADS];

size_t of(uintptr_t at) { return (at - (uintptr_t)dynamic_area) / SIZE; }

void begin_block() {
    memset(readers, 0, sizeof readers);
    memset(writers, 0, sizeof writers);
    for (unsigned t = 0; t < threads; t++) fences[t].clear();
}

void write(uintptr_t at, size_t size) {
    for (size_t line = of(at); line <= of(at + size - 1); line++) {
        if (readers[line]) fault("it writes what a product under way reads");
        writers[line] = {(uint16_t)current, (uint16_t)fences[current].size(), true};
    }
}

// Whether products see what was written, after so many barriers.
bool seen(size_t line, uint16_t barriers) {
    const Writer& w = writers[line];
    return !w.any || (fences[w.thread].size() > w.fences && fences[w.thread][w.fences] < barriers);
}
}  // namespace lines
