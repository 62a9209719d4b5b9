// What lanes of a warp do together (tensor cores' products, loads of fragments), copies that land later, and shared memory whose size
// a launch says. Layouts of fragments are those of the PTX manual: "Matrix fragments for mma", "ldmatrix", "cp.async".

namespace warp {
unsigned first_lane() { return current / WARP * WARP; }

struct Fragments {
    uint32_t a[4], b[2];
} fragments[MOST_THREADS];
const char* rows[MOST_THREADS];

float number(uint32_t word, unsigned at, bool half) {
    uint16_t bits = (uint16_t)(word >> 16 * at);
    return half ? half_to_float(bits) : float_of((uint32_t)bits << 16);
}

// A copy of 16 bytes that was asked for, of which `n` exist and the rest is zero.
struct Copy {
    char* to;
    const char* from;
    unsigned n, group;
};
std::vector<Copy> under_way[MOST_THREADS];
unsigned groups[MOST_THREADS];
const unsigned WIDTH = 16;

void land(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.n);
    memset(copy.to + copy.n, 0, WIDTH - copy.n);
}

void begin_block() {
    for (unsigned t = 0; t < threads; t++) {
        under_way[t].clear();
        groups[t] = 0;
    }
    races::on_the_way.clear();
}

// Of the thread that runs.
void end_thread() {
    if (!under_way[current].empty()) fault("a thread ends with copies under way");
}
}  // namespace warp

// c += a b for a 16 x k, b k x 8, c 16 x 8 in the registers of a warp; k is 16 or 8, elements bfloat16 or half.
API void emulated_mma(float* c, const uint32_t* a, const uint32_t* b, unsigned k, int half) {
    using namespace warp;
    unsigned lane = current % WARP, base = first_lane();
    memcpy(fragments[current].a, a, k / 4 * sizeof *a);
    memcpy(fragments[current].b, b, k / 8 * sizeof *b);
    meet(PRODUCT);
    float sums[4];
    for (unsigned e = 0; e < 4; e++) {
        unsigned row = lane / 4 + 8 * (e / 2), column = 2 * (lane % 4) + e % 2;
        sums[e] = c[e];
        for (unsigned i = 0; i < k; i++) {
            const Fragments &left = fragments[base + row % 8 * 4 + i % 8 / 2], &right = fragments[base + column * 4 + i % 8 / 2];
            sums[e] += number(left.a[row / 8 + 2 * (i / 8)], i % 2, half) * number(right.b[i / 8], i % 2, half);
        }
    }
    memcpy(c, sums, sizeof sums);
    meet(PRODUCT);
}

// Four matrices of 8 x 8 elements of 16 bits, of which lane 8 m + i says where row i of matrix m lies.
API void emulated_ldmatrix(uint32_t* r, const void* row, int transposed) {
    using namespace warp;
    unsigned lane = current % WARP, base = first_lane();
    if ((uintptr_t)row % WIDTH) return fault("ldmatrix: a row is not aligned to 16 bytes");
    if (!races::is_shared((uintptr_t)row)) return fault("ldmatrix: a row lies outside of shared memory");
    races::touch(row, WIDTH, false, __builtin_return_address(0));
    rows[current] = (const char*)row;
    meet(FRAGMENTS);
    for (unsigned m = 0; m < 4; m++) {
        uint16_t two[2];
        for (unsigned e = 0; e < 2; e++) {
            unsigned i = lane / 4, j = 2 * (lane % 4) + e;
            if (transposed) std::swap(i, j);
            memcpy(&two[e], rows[base + 8 * m + i] + 2 * j, 2);
        }
        r[m] = two[0] | (uint32_t)two[1] << 16;
    }
    meet(FRAGMENTS);
}

// Starts a copy of 16 bytes to shared memory, or of zeros. It lands at once, or as late as the thread's waits allow.
API void emulated_copy(void* to, const void* from, int there) {
    using namespace warp;
    if ((uintptr_t)to % WIDTH || (there && (uintptr_t)from % WIDTH)) return fault("cp.async: an address is not aligned to 16 bytes");
    if (!races::is_shared((uintptr_t)to)) return fault("cp.async: the destination lies outside of shared memory");
    void* code = __builtin_return_address(0);
    if (there) races::touch(from, WIDTH, false, code);
    races::touch(to, WIDTH, true, code);
    races::on_the_way[(uintptr_t)to]++;
    Copy copy = {(char*)to, (const char*)from, there ? WIDTH : 0, groups[current]};
    if (!emulated_copies_late()) land(copy);
    under_way[current].push_back(copy);
}
API void emulated_commit(const char* file, int line) {
    if (!is_gone(file, line)) warp::groups[current]++;
}
// Waits until at most `left` groups of this thread are under way.
API void emulated_wait(unsigned left, const char* file, int line) {
    using namespace warp;
    if (is_gone(file, line)) return;
    std::vector<Copy> kept;
    for (const Copy& copy : under_way[current]) {
        if (copy.group + left >= groups[current]) {
            kept.push_back(copy);
            continue;
        }
        if (emulated_copies_late()) land(copy);
        auto found = races::on_the_way.find((uintptr_t)copy.to);
        if (--found->second == 0) races::on_the_way.erase(found);
        // Others see it after a barrier from here on.
        races::touch(copy.to, WIDTH, true, __builtin_return_address(0));
    }
    under_way[current] = kept;
}
