// How often lanes of a warp that load or store shared memory together want different words of one bank, and so wait for each other.
// What lanes do together is what they do at one place of the code for the same time since the last barrier.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

namespace conflicts {
const unsigned BANKS = 32, WORD = 4;
struct Access {
    uintptr_t code;
    unsigned times, thread;
    uintptr_t at;
    size_t size;
};
// Of a kernel: what the memory serves at once, and what it has to serve again.
struct Count {
    uint64_t served, again;
};
std::vector<Access> accesses;
std::unordered_map<uintptr_t, unsigned> times[MOST_THREADS];
std::map<std::string, Count> counts;

void add(uintptr_t code, const void* data, size_t size) {
    accesses.push_back({code, times[current][code]++, current, (uintptr_t)data, size});
}

// Accesses of one instruction of one warp: 32 words at once, so 32, 16 or 8 lanes.
void count(const Access* first, const Access* last, Count& of) {
    unsigned lanes = first->size <= WORD ? 32 : first->size == 8 ? 16 : 8;
    for (unsigned lane = 0; lane < WARP; lane += lanes) {
        std::set<uintptr_t> words[BANKS];
        size_t most = 0;
        for (const Access* a = first; a < last; a++) {
            if (a->thread % WARP / lanes != lane / lanes) continue;
            for (uintptr_t word = a->at / WORD; word <= (a->at + a->size - 1) / WORD; word++) {
                words[word % BANKS].insert(word);
                most = std::max(most, words[word % BANKS].size());
            }
        }
        if (!most) continue;
        of.served++;
        of.again += most - 1;
    }
}

void end_interval() {
    auto key = [](const Access& a) { return std::make_tuple(a.thread / WARP, a.code, a.times); };
    std::stable_sort(accesses.begin(), accesses.end(), [&](const Access& a, const Access& b) { return key(a) < key(b); });
    const Access* end = accesses.data() + accesses.size();
    for (const Access* first = accesses.data(); first < end;) {
        const Access* last = first;
        while (last < end && key(*last) == key(*first)) last++;
        count(first, last, counts[kernel->name]);
        first = last;
    }
    accesses.clear();
    for (unsigned t = 0; t < threads; t++) times[t].clear();
}
}  // namespace conflicts

// Returns how often shared memory served a kernel since this was asked, and again for want of banks.
API void emulated_conflicts(const char* name, uint64_t* served, uint64_t* again) {
    conflicts::Count& count = conflicts::counts[name];
    *served = count.served;
    *again = count.again;
    count = {0, 0};
}
