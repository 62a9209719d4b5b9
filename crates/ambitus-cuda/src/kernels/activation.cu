// Activations and their gradients. A thread reads its elements before it writes them, so results may lie on operands.
// No tail is a difference of near numbers: far out on either side results keep their digits.

// s = 1 / (1 + e^-x) and its slope s (1 - s).
struct Logistic {
    float s;
    float slope;
};

__device__ inline Logistic logistic(float x) {
    float e = expf(-fabsf(x));
    float q = reciprocal(1.0f + e);
    return {x >= 0.0f ? q : e * q, e * q * q};
}

// Phi(x), the normal distribution: erfc keeps the lower tail's digits.
__device__ inline float normal_cdf(float x) { return 0.5f * erfcf(x * -0.70710678f); }

// e^x with n = e (e + 2), as tanh(ln(1 + e^x)) = n / (n + 2). From x = 20 on that is 1 in fp32.
__device__ inline float mish_exp(float x) { return expf(fminf(x, 20.0f)); }

// 2 sqrt(2 / pi), and the factor of x^3 in the tanh form of GELU (arXiv 1606.08415): 0.5 (1 + tanh(u)) = s(2 u).
#define GELU_TWO_ROOT 1.5957691f
#define GELU_CUBIC 0.044715f

// f(x), kinds in the order of ActivationKind.
__device__ inline float activate(int kind, float x) {
    if (kind == 0) return x * normal_cdf(x);
    if (kind == 1) return x * logistic(GELU_TWO_ROOT * x * (1.0f + GELU_CUBIC * x * x)).s;
    if (kind == 2) return x * logistic(x).s;
    if (kind == 4) return x > 0.0f ? x : expm1f(x);
    float e = mish_exp(x);
    float n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

// f'(x).
__device__ inline float slope_of(int kind, float x) {
    // x phi(x), with 1 / sqrt(2 pi).
    if (kind == 0) return normal_cdf(x) + x * 0.39894228f * expf(-0.5f * x * x);
    if (kind == 1) {
        Logistic l = logistic(GELU_TWO_ROOT * x * (1.0f + GELU_CUBIC * x * x));
        return l.s + x * GELU_TWO_ROOT * (1.0f + 3.0f * GELU_CUBIC * x * x) * l.slope;
    }
    if (kind == 2) {
        Logistic l = logistic(x);
        return l.s + x * l.slope;
    }
    if (kind == 4) return expf(fminf(x, 0.0f));
    // d/dx n / (n + 2) = 4 e (e + 1) / (n + 2)^2.
    float e = mish_exp(x);
    float n = e * (e + 2.0f), m = n + 2.0f;
    return n / m + x * (4.0f * e * (e + 1.0f) / m / m);
}

KERNEL(activation) {
    each4(a.y, [&](i64 i, int n, int real) {
        Four x = get4(a.x, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = activate(a.kind, x.v[k]);
        put4(a.y, i, n, real, x);
    });
}

KERNEL(activation_grad) {
    each4(a.dx, [&](i64 i, int n, int real) {
        Four x = get4(a.x, i, real), dy = get4(a.dy, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) x.v[k] = dy.v[k] * slope_of(a.kind, x.v[k]);
        put4(a.dx, i, n, real, x);
    });
}

KERNEL(swiglu) {
    each4(a.y, [&](i64 i, int n, int real) {
        Four p = get4(a.a, i, real), q = get4(a.b, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) p.v[k] = p.v[k] * logistic(p.v[k]).s * q.v[k];
        put4(a.y, i, n, real, p);
    });
}

KERNEL(swiglu_grad) {
    each4(a.da, [&](i64 i, int n, int real) {
        Four p = get4(a.a, i, real), q = get4(a.b, i, real), dy = get4(a.dy, i, real);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            Logistic l = logistic(p.v[k]);
            float silu = p.v[k] * l.s;
            p.v[k] = dy.v[k] * q.v[k] * (l.s + p.v[k] * l.slope);
            q.v[k] = dy.v[k] * silu;
        }
        put4(a.da, i, n, real, p);
        put4(a.db, i, n, real, q);
    });
}
