// What four warps do together: products that read shared memory by themselves and end later. Layouts are those of the PTX manual:
// "Asynchronous warpgroup level matrix multiply-accumulate instructions". A warp has 16 of the 64 rows, so warps do their parts alone.
//
// From its first product to the wait that names them sums are NaN in their registers; products end when they begin, or as late as the waits
// allow.

namespace warpgroup {
const unsigned GROUP = 4 * WARP, DEPTH = 16, MOST_COLUMNS = 256;
struct Product {
    float* c;
    unsigned n, group;
    bool over_rows, half, adds;
    // Of registers, where they are, else of shared memory.
    const uint32_t* from;
    uint32_t a[4];
    uint64_t left, right;
};
std::vector<Product> under_way[MOST_THREADS];
unsigned groups[MOST_THREADS];
// What is in registers that products add to.
std::map<float*, std::vector<float>> sums[MOST_THREADS];
// Registers that products may have from a fence on, and left operands that no wait has given back.
struct Registers {
    const char* at;
    size_t size;
    bool has(const void* p) const { return (const char*)p >= at && (const char*)p < at + size; }
};
std::vector<Registers> fenced[MOST_THREADS];
std::vector<const void*> lent[MOST_THREADS];
// What a warp's products were, in order.
uint64_t said[MOST_THREADS / WARP];
float lefts[MOST_THREADS / WARP][16][DEPTH], rights[MOST_THREADS / WARP][DEPTH][MOST_COLUMNS];

// Shared memory's own addresses, of which descriptors have 18 bits: dynamic memory does not begin at a multiple of 1024.
const char* const START = dynamic_area + MARGIN - 1024;

void begin_block() {
    for (unsigned t = 0; t < threads; t++) {
        under_way[t].clear();
        sums[t].clear();
        fenced[t].clear();
        lent[t].clear();
        groups[t] = 0;
    }
    memset(said, 0, sizeof said);
}
void end_thread() {
    if (!under_way[current].empty() || !sums[current].empty()) fault("a thread ends with products under way");
}
void end_block() {
    for (unsigned w = 0; w < threads / WARP; w++)
        if (said[w] != said[w / 4 * 4]) fault("four warps do not multiply the same matrices");
}

// Where an element is, by the matrix' descriptor, `across` from sum to sum and `along` each sum: 128-byte swizzle, the only one here.
const char* place(uint64_t matrix, bool over_rows, unsigned across, unsigned along) {
    uint64_t start = (matrix & 0x3fff) << 4, leading = (matrix >> 16 & 0x3fff) << 4, stride = (matrix >> 32 & 0x3fff) << 4;
    uint64_t at = start;
    if (over_rows) at += across / 64 * leading + across % 64 * 2 + along / 8 * stride + along % 8 * 128;
    else at += across / 8 * stride + across % 8 * 128 + along * 2;
    return START + (at ^ (at >> 3 & 0x70));
}

bool is_matrix(uint64_t matrix) {
    const uint64_t unused = 0xc000ull | 0xc000ull << 16 | 0x3fffc000ull << 32;
    return matrix >> 62 == 1 && !(matrix & unused) && !(matrix >> 3 & 7);
}

// Calls f with this lane's share of the lines that a product reads: of eight lines that belong together lanes have one each.
template <class F>
void each_line(const Product& p, F f) {
    const unsigned lane = current % WARP, row = lane % 8, warp_row = current / WARP % 4 * 16;
    for (unsigned m = lane / 8; m < p.n / 4; m += 4)
        f(p.over_rows ? place(p.right, true, m / 2 * 8, m % 2 * 8 + row) : place(p.right, false, m / 2 * 8 + row, m % 2 * 8));
    if (!p.from) f(place(p.left, false, warp_row + lane / 8 / 2 * 8 + row, lane / 8 % 2 * 8));
}

float value(const char* at, bool half) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return warp::number(bits, 0, half);
}

void compute(const Product& p) {
    const unsigned lane = current % WARP, warp = current / WARP;
    meet(PRODUCT);
    for (unsigned i = 0; p.from && i < 8; i++)
        lefts[warp][lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = warp::number(p.a[i / 2], i % 2, p.half);
    for (unsigned k = 0; k < DEPTH; k++) {
        if (!p.from && lane < 16) lefts[warp][lane][k] = value(place(p.left, false, warp % 4 * 16 + lane, k), p.half);
        for (unsigned j = lane; j < p.n; j += WARP) rights[warp][k][j] = value(place(p.right, p.over_rows, j, k), p.half);
    }
    meet(PRODUCT);
    std::vector<float>& c = sums[current][p.c];
    for (unsigned i = 0; i < p.n / 2; i++) {
        const unsigned row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = p.adds ? c[i] : 0.0f;
        for (unsigned k = 0; k < DEPTH; k++) sum += lefts[warp][row][k] * rights[warp][k][column];
        c[i] = sum;
    }
}

bool is_fenced(const void* registers) {
    const auto& all = fenced[current];
    return std::any_of(all.begin(), all.end(), [&](const Registers& r) { return r.has(registers); });
}
bool is_untouched(const float* c, size_t n) {
    return std::all_of((const uint32_t*)c, (const uint32_t*)c + n, [](uint32_t bits) { return bits == 0xffffffff; });
}
}  // namespace warpgroup

API uint32_t emulated_in_shared(const void* p) { return (uint32_t)((const char*)p - warpgroup::START); }

// c [64, n] = or += left [64, 16] times right, of 16 x n elements along rows or over rows.
API void emulated_wgmma(float* c, unsigned n, const uint32_t* a, uint64_t left, uint64_t right, int over_rows, int half, int adds) {
    using namespace warpgroup;
    void* code = __builtin_return_address(0);
    if (current / GROUP * GROUP + GROUP > threads) return fault("wgmma: fewer than four warps");
    if (!is_matrix(right) || (!a && !is_matrix(left))) return fault("wgmma: no descriptor of a swizzled matrix that begins at 1024 bytes");
    Product p = {c, n, groups[current], (bool)over_rows, (bool)half, (bool)adds, a, {0, 0, 0, 0}, left, right};
    if (a) memcpy(p.a, a, sizeof p.a), lent[current].push_back(a);
    auto found = sums[current].find(c);
    if ((a && !is_fenced(a)) || (found == sums[current].end() && !is_fenced(c))) return fault("wgmma: registers without a fence");
    if (found == sums[current].end()) sums[current][c].assign(c, c + n / 2);
    else if (found->second.size() != n / 2 || !is_untouched(c, n / 2)) return fault("wgmma: sums under way are touched");
    memset((void*)c, 0xff, n / 2 * sizeof *c);
    meet(PRODUCT);
    uint64_t& mine = said[current / WARP];
    if (current % WARP == 0) mine = (mine ^ right ^ (uint64_t)n << 16 ^ (uint64_t)(over_rows << 2 | half << 1 | adds) << 30) * 0x100000001b3;
    bool inside = true;
    each_line(p, [&](const char* at) { inside &= races::is_dynamic((uintptr_t)at); });
    if (!inside) return fault("wgmma: a matrix lies outside of dynamic shared memory");
    each_line(p, [&](const char* at) {
        races::touch(at, lines::SIZE, false, code);
        size_t line = lines::of((uintptr_t)at);
        if (!lines::seen(line, races::interval)) fault("wgmma: what threads wrote has no fence before the barrier");
        lines::readers[line]++;
    });
    if (!emulated_copies_late()) compute(p);
    under_way[current].push_back(p);
}
API int emulated_wgmma_may_fence(const char* file, int line) { return !is_gone(file, line); }
API void emulated_wgmma_fence(const void* registers, size_t size) {
    using namespace warpgroup;
    Registers r = {(const char*)registers, size};
    const auto& given = lent[current];
    bool on_loan = std::any_of(given.begin(), given.end(), [&](const void* a) { return r.has(a); });
    if (on_loan || sums[current].count((float*)registers)) fault("wgmma: a fence of registers that no wait gave back");
    fenced[current].push_back(r);
}
API void emulated_wgmma_commit(const char* file, int line) {
    if (!is_gone(file, line)) warpgroup::groups[current]++;
}
// Waits until at most `left` groups of products are under way; returns whether it did.
API int emulated_wgmma_wait(unsigned left, const char* file, int line) {
    using namespace warpgroup;
    if (is_gone(file, line)) return 0;
    meet(PRODUCT);
    size_t done = 0;
    for (; done < under_way[current].size() && under_way[current][done].group + left < groups[current]; done++) {
        const Product p = under_way[current][done];
        if (emulated_copies_late()) compute(p);
        if (p.from && memcmp(p.from, p.a, sizeof p.a)) fault("wgmma: a left operand is touched before the wait");
        each_line(p, [](const char* at) { lines::readers[lines::of((uintptr_t)at)]--; });
    }
    under_way[current].erase(under_way[current].begin(), under_way[current].begin() + done);
    return 1;
}
// After such a wait: the thread has these registers again.
API void emulated_wgmma_give_back(void* registers, size_t size) {
    using namespace warpgroup;
    Registers r = {(const char*)registers, size};
    for (const Product& p : under_way[current])
        if (r.has(p.c) || r.has(p.from)) return fault("wgmma: a wait gives back registers of products that go on");
    auto& all = fenced[current];
    all.erase(std::remove_if(all.begin(), all.end(), [&](const Registers& f) { return f.at == r.at; }), all.end());
    auto& given = lent[current];
    given.erase(std::remove_if(given.begin(), given.end(), [&](const void* a) { return r.has(a); }), given.end());
    auto found = sums[current].find((float*)registers);
    if (found == sums[current].end()) return;
    if (!is_untouched(found->first, found->second.size())) fault("wgmma: sums under way are touched");
    memcpy((void*)found->first, found->second.data(), found->second.size() * sizeof(float));
    sums[current].erase(found);
}
API void emulated_fence_products(const char* file, int line) {
    if (!is_gone(file, line)) lines::fences[current].push_back(races::interval);
}
