// Elementwise core ops. A thread reads its elements before it writes them, so results may lie on operands of their type.

__device__ inline float truth(bool x) { return x ? 1.0f : 0.0f; }

// In the order of UnaryKind.
__device__ inline float apply(int kind, float x) {
    switch (kind) {
        case 0: return -x;
        case 1: return expf(x);
        case 2: return logf(x);
        case 3: return sqrtf(x);
        case 4: return 1.0f / sqrtf(x);
        case 5: return tanhf(x);
        case 6: return sinf(x);
        case 7: return cosf(x);
        case 8: return erff(x);
        default: return truth((bits_of(x) & 0x7f800000u) != 0x7f800000u);
    }
}

KERNEL(unary) {
    each(a.y, [&](i64 i) { put(a.y, i, apply(a.kind, get(a.x, i))); });
}

// In the order of BinaryKind.
__device__ inline float combine(int kind, float p, float q) {
    switch (kind) {
        case 0: return p + q;
        case 1: return p - q;
        case 2: return p * q;
        case 3: return p / q;
        case 4: return p > q ? p : q;
        case 5: return p < q ? p : q;
        case 6: return truth(p < q);
        default: return truth(p == q);
    }
}

// Sums wrap, x / 0 is 0, as is the one quotient that overflows.
__device__ inline int combine_int(int kind, int p, int q) {
    switch (kind) {
        case 0: return (int)((u32)p + (u32)q);
        case 1: return (int)((u32)p - (u32)q);
        case 2: return (int)((u32)p * (u32)q);
        case 3: return q == 0 || (q == -1 && p == (int)0x80000000u) ? 0 : p / q;
        case 4: return p > q ? p : q;
        case 5: return p < q ? p : q;
        case 6: return p < q;
        default: return p == q;
    }
}

__device__ inline bool is_float(const View& v) { return v.dtype == F32 || v.dtype == BF16 || v.dtype == F16; }

// Four elements at a time of y, of the same elements of x: which may have another type, so another pitch.
__device__ inline i64 same_element(const View& y, i64 i, const View& x) {
    return x.pitch == y.pitch ? i : i / y.pitch * x.pitch + i % y.pitch;
}

KERNEL(binary) {
    if (a.y.dtype == I32) {
        each(a.y, [&](i64 i) { put_int(a.y, i, combine_int(a.kind, get_int(a.a, i), get_int(a.b, i))); });
        return;
    }
    each4(a.y, [&](i64 i, int n, int real) {
        Four p = get4(a.a, i, real), q = get4(a.b, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) p.v[k] = combine(a.kind, p.v[k], q.v[k]);
        put4(a.y, i, n, real, p);
    });
}

KERNEL(select) {
    each4(a.y, [&](i64 i, int n, int real) {
        Bits4 c = get_bits4(a.c, same_element(a.y, i, a.c), real);
        Bits4 p = get_bits4(a.a, i, real), q = get_bits4(a.b, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            bool first = a.c.dtype == I32 ? c.v[k] != 0 : widen(c.v[k], a.c.dtype) != 0.0f;
            if (!first) p.v[k] = q.v[k];
        }
        put_bits4(a.y, i, n, p);
    });
}

KERNEL(cast) {
    if (a.x.dtype == a.y.dtype && a.y.dtype != U8) {
        each4(a.y, [&](i64 i, int n, int real) {
            put_bits4(a.y, i, n, get_bits4(a.x, same_element(a.y, i, a.x), real));
        });
    } else if (is_float(a.x) && is_float(a.y)) {
        each4(a.y, [&](i64 i, int n, int real) {
            put4(a.y, i, n, real, get4(a.x, same_element(a.y, i, a.x), real));
        });
    } else {
        each(a.y, [&](i64 i) { put(a.y, i, get(a.x, same_element(a.y, i, a.x))); });
    }
}

KERNEL(fill) {
    each(a.y, [&](i64 i) { put(a.y, i, a.value); });
}

KERNEL(scale) {
    float s = get(a.s, 0);
    each4(a.y, [&](i64 i, int n, int real) {
        Four x = get4(a.x, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] *= s;
        put4(a.y, i, n, real, x);
    });
}

KERNEL(scale_rows) {
    bool whole = a.y.pitch % 4 == 0;
    each4(a.y, [&](i64 i, int n, int real) {
        Four x = get4(a.x, i, real);
        i64 row = i / a.y.pitch;
        float m = real > 0 ? get(a.m, row) : 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++)
            // Rows of other lengths follow each other without pads: four may lie in several.
            if (k < real) x.v[k] *= whole ? m : get(a.m, (i + k) / a.y.pitch);
        put4(a.y, i, n, real, x);
    });
}
