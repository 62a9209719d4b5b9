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

KERNEL(binary) {
    each(a.y, [&](i64 i) {
        if (a.y.dtype == I32) put_int(a.y, i, combine_int(a.kind, get_int(a.a, i), get_int(a.b, i)));
        else put(a.y, i, combine(a.kind, get(a.a, i), get(a.b, i)));
    });
}

// The condition may have another type, so another pitch.
__device__ inline i64 same_element(const View& y, i64 i, const View& x) {
    return x.pitch == y.pitch ? i : i / y.pitch * x.pitch + i % y.pitch;
}

KERNEL(select) {
    each(a.y, [&](i64 i) {
        i64 c = same_element(a.y, i, a.c);
        bool first = a.c.dtype == I32 ? get_int(a.c, c) != 0 : get(a.c, c) != 0.0f;
        if (first) move(a.a, i, a.y, i);
        else move(a.b, i, a.y, i);
    });
}

KERNEL(cast) {
    each(a.y, [&](i64 i) {
        i64 from = same_element(a.y, i, a.x);
        if (a.x.dtype == a.y.dtype) move(a.x, from, a.y, i);
        else put(a.y, i, get(a.x, from));
    });
}

KERNEL(fill) {
    each(a.y, [&](i64 i) { put(a.y, i, a.value); });
}

KERNEL(scale) {
    float s = get(a.s, 0);
    each(a.y, [&](i64 i) { put(a.y, i, get(a.x, i) * s); });
}

KERNEL(scale_rows) {
    each(a.y, [&](i64 i) { put(a.y, i, get(a.x, i) * get(a.m, i / a.y.pitch)); });
}
