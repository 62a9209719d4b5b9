// cuBLASLt's calls that Ambitus makes, as plain loops with sums in fp32; operands are rounded to TF32 where that is asked for. For
// tests without a card.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vector>

#define API extern "C" __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };

API int emulated_enqueue(void* stream, void (*call)(void*), void* data);
API bool emulated_inside(uintptr_t at, size_t bytes);

struct Layout { int type; uint64_t rows, cols; int64_t ld; int batch; int64_t stride; };
struct Operation { int pointers_on_card, ta, tb, epilogue; uint64_t bias; int compute; };
// The most scratch, how parts of sums may be added, and what the addresses of A, B, C and D are multiples of.
struct Preference { uint64_t workspace; uint32_t reduction, alignment[4]; };
// What was chosen by a preference. It adds terms upwards or downwards; where one takes longer, it says so.
struct Algorithm { Preference p; uint64_t uses; uint32_t magic; uint16_t downwards, slow; };
const uint32_t MAGIC = 0x656d756c;
struct Heuristic { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

// One algorithm, or where EMULATED_CUBLASLT_FAST is `up` or `down` both, of which the other is slow.
static const char* fast() { return getenv("EMULATED_CUBLASLT_FAST"); }

// What is timed is not kept with what is not.
API size_t cublasLtGetVersion() { return fast() ? 120001 : 120000; }
API int cublasLtCreate(void** handle) { *handle = (void*)1; return SUCCESS; }
API int cublasLtDestroy(void*) { return SUCCESS; }
API int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (ld < (int64_t)rows) return INVALID_VALUE;
    *layout = new Layout{type, rows, cols, ld, 1, 0};
    return SUCCESS;
}
API int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t) {
    if (attribute == 5) memcpy(&((Layout*)layout)->batch, value, 4);
    else if (attribute == 6) memcpy(&((Layout*)layout)->stride, value, 8);
    else return INVALID_VALUE;
    return SUCCESS;
}
API int cublasLtMatrixLayoutDestroy(void* layout) { delete (Layout*)layout; return SUCCESS; }
API int cublasLtMatmulDescCreate(void** operation, int compute, int scale) {
    if ((compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32) || scale != R_32F) return NOT_SUPPORTED;
    *operation = new Operation{0, 0, 0, 1, 0, compute};
    return SUCCESS;
}
API int cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, size_t) {
    Operation* o = (Operation*)operation;
    switch (attribute) {
        case 2: memcpy(&o->pointers_on_card, value, 4); return SUCCESS;
        case 3: memcpy(&o->ta, value, 4); return SUCCESS;
        case 4: memcpy(&o->tb, value, 4); return SUCCESS;
        case 7: memcpy(&o->epilogue, value, 4); return SUCCESS;
        case 8: memcpy(&o->bias, value, 8); return SUCCESS;
        default: return INVALID_VALUE;
    }
}
API int cublasLtMatmulDescDestroy(void* operation) { delete (Operation*)operation; return SUCCESS; }
API int cublasLtMatmulPreferenceCreate(void** preference) { *preference = new Preference{0, ~0u, {256, 256, 256, 256}}; return SUCCESS; }
API int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
    Preference* p = (Preference*)preference;
    if (attribute == 1 && size == 8) memcpy(&p->workspace, value, 8);
    else if (attribute == 3 && size == 4) memcpy(&p->reduction, value, 4);
    else if (attribute >= 5 && attribute <= 8 && size == 4) memcpy(&p->alignment[attribute - 5], value, 4);
    else return INVALID_VALUE;
    return SUCCESS;
}
API int cublasLtMatmulPreferenceDestroy(void* preference) { delete (Preference*)preference; return SUCCESS; }

// What the real library refuses too: shapes that do not multiply, operands of two types.
static bool fits(const Operation& o, const Layout& a, const Layout& b, const Layout& d) {
    uint64_t m = o.ta ? a.cols : a.rows, k = o.ta ? a.rows : a.cols;
    uint64_t k2 = o.tb ? b.cols : b.rows, n = o.tb ? b.rows : b.cols;
    bool types = a.type == b.type && (d.type == a.type || d.type == R_32F);
    bool reads_tf32 = o.compute == COMPUTE_32F || a.type == R_32F;
    return m == d.rows && n == d.cols && k == k2 && types && reads_tf32 && a.batch == d.batch && b.batch == d.batch;
}
API int cublasLtMatmulAlgoGetHeuristic(void*, void* o, void* a, void* b, void* c, void* d, void* preference, int most, Heuristic* found, int* n) {
    *n = 0;
    if (c != d || !fits(*(Operation*)o, *(Layout*)a, *(Layout*)b, *(Layout*)d)) return NOT_SUPPORTED;
    static_assert(sizeof(Algorithm) <= sizeof found->algorithm, "cuBLASLt's algorithms are 64 bytes");
    // It uses scratch wherever it may have some; more would only be slower to overwrite.
    uint64_t may = ((Preference*)preference)->workspace, uses = may < 1 << 20 ? may : 1 << 20;
    for (uint16_t downwards = 0; downwards < (fast() ? 2 : 1) && *n < most; downwards++, ++*n) {
        bool slow = fast() && (strcmp(fast(), "down") == 0) != (downwards == 1);
        Algorithm chosen{*(Preference*)preference, uses, MAGIC, downwards, slow};
        memset(&found[*n], 0, sizeof *found);
        memcpy(found[*n].algorithm, &chosen, sizeof chosen);
        found[*n].workspace = uses;
    }
    return SUCCESS;
}
API int cublasLtMatmulAlgoCheck(void*, void* o, void* a, void* b, void* c, void* d, const void* algorithm, Heuristic* found) {
    Algorithm chosen;
    memcpy(&chosen, algorithm, sizeof chosen);
    if (chosen.magic != MAGIC) return INVALID_VALUE;
    if (c != d || !fits(*(Operation*)o, *(Layout*)a, *(Layout*)b, *(Layout*)d)) return NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    memcpy(found->algorithm, algorithm, sizeof found->algorithm);
    found->workspace = chosen.uses;
    return SUCCESS;
}

static float load(const void* at, int type, int64_t i) {
    if (type == R_32F) return ((const float*)at)[i];
    uint16_t bits = ((const uint16_t*)at)[i];
    if (type == R_16F) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}
// As TF32, if the product reads its operands so: 10 bits of fraction, rounded to nearest, halves away from zero (cvt.rna.tf32).
static float read(const Operation& o, const void* at, int type, int64_t i) {
    float x = load(at, type, i);
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (o.compute != COMPUTE_32F_FAST_TF32 || (bits & 0x7f800000) == 0x7f800000) return x;
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&x, &bits, 4);
    return x;
}
static void store(void* at, int type, int64_t i, float x) {
    if (type == R_32F) { ((float*)at)[i] = x; return; }
    uint16_t bits;
    if (type == R_16F) { _Float16 h = (_Float16)x; memcpy(&bits, &h, 2); }
    else {
        uint32_t wide;
        memcpy(&wide, &x, 4);
        bits = x != x ? 0x7fc0 : (uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
    }
    ((uint16_t*)at)[i] = bits;
}

// Returns whether the elements of every matrix of a batch lie in memory of the card or the host that was taken from the driver.
static bool lies(const Layout& l, uintptr_t at) {
    size_t size = l.type == R_32F ? 4 : 2, last = (l.batch - 1) * l.stride + (l.cols - 1) * l.ld + l.rows;
    return !l.rows || !l.cols || emulated_inside(at, last * size);
}

struct Product {
    void* scratch;
    size_t scratch_bytes;
    Operation o;
    Layout la, lb, ld;
    const void *a, *b;
    void* d;
    float alpha, beta;
    const float *alpha_at, *beta_at;
    bool downwards, slow;
};

static void multiply(void* data) {
    Product& p = *(Product*)data;
    if (p.slow) usleep(2000);
    // What else lies there is lost, as it may be on a card.
    memset(p.scratch, 0xff, p.scratch_bytes);
    float alpha = p.o.pointers_on_card ? *p.alpha_at : p.alpha, beta = p.o.pointers_on_card ? *p.beta_at : p.beta;
    int64_t m = p.ld.rows, n = p.ld.cols, k = p.o.ta ? p.la.rows : p.la.cols;
    std::vector<float> a(m * k), sums(m);
    for (int batch = 0; batch < p.la.batch; batch++) {
        // op(A) with its columns together.
        for (int64_t i = 0; i < k; i++)
            for (int64_t r = 0; r < m; r++)
                a[i * m + r] = read(p.o, p.a, p.la.type, batch * p.la.stride + (p.o.ta ? r * p.la.ld + i : i * p.la.ld + r));
        for (int64_t c = 0; c < n; c++) {
            for (float& s : sums) s = 0;
            for (int64_t term = 0; term < k; term++) {
                int64_t i = p.downwards ? k - 1 - term : term;
                float b = read(p.o, p.b, p.lb.type, batch * p.lb.stride + (p.o.tb ? i * p.lb.ld + c : c * p.lb.ld + i));
                const float* column = &a[i * m];
                for (int64_t r = 0; r < m; r++) sums[r] += column[r] * b;
            }
            for (int64_t r = 0; r < m; r++) {
                int64_t at = batch * p.ld.stride + c * p.ld.ld + r;
                float y = alpha * sums[r];
                if (beta != 0) y += beta * load(p.d, p.ld.type, at);
                if (p.o.epilogue == 4) y += load((const void*)p.o.bias, p.ld.type, r);
                store(p.d, p.ld.type, at, y);
            }
        }
    }
}

API int cublasLtMatmul(void*, void* o, const void* alpha, const void* a, void* la, const void* b, void* lb, const void* beta,
                       const void* c, void* lc, void* d, void* ld, const void* algorithm, void* scratch, size_t scratch_bytes, void* stream) {
    if (c != d || lc != ld || !algorithm) return INVALID_VALUE;
    Algorithm chosen;
    memcpy(&chosen, algorithm, sizeof chosen);
    // Scratch in the arena, as much as the algorithm was promised, and aligned; operands as aligned as was said.
    if (chosen.magic != MAGIC || scratch_bytes < chosen.uses) return INVALID_VALUE;
    if (scratch_bytes && ((uintptr_t)scratch % 256 || !emulated_inside((uintptr_t)scratch, scratch_bytes))) return INVALID_VALUE;
    const void* addresses[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) if ((uintptr_t)addresses[i] % chosen.p.alignment[i]) return INVALID_VALUE;
    // Parts of sums in fp32, in a fixed order: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE.
    if (chosen.p.reduction != 2) return INVALID_VALUE;
    if (!lies(*(Layout*)la, (uintptr_t)a) || !lies(*(Layout*)lb, (uintptr_t)b) || !lies(*(Layout*)ld, (uintptr_t)d)) return INVALID_VALUE;
    Product p{scratch, chosen.uses, *(Operation*)o, *(Layout*)la, *(Layout*)lb, *(Layout*)ld, a, b, d, 0, 0, nullptr, nullptr, chosen.downwards != 0, chosen.slow != 0};
    if (!fits(p.o, p.la, p.lb, p.ld)) return INVALID_VALUE;
    if (p.o.pointers_on_card) { p.alpha_at = (const float*)alpha; p.beta_at = (const float*)beta; }
    else { p.alpha = *(const float*)alpha; p.beta = *(const float*)beta; }
    return emulated_enqueue(stream, multiply, new Product(p));
}
