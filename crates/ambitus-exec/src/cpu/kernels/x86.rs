//! AVX2 + FMA and AVX-512 vectors.
//!
//! Every method's SAFETY reason is the same: the token exists only where the processor has the features (its constructor's
//! contract), and pointer methods pass the caller's promise on.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::simd::{Isa, IsaKind, Simd};
use std::arch::x86_64::*;

/// 8 floats, 16 registers.
#[derive(Clone, Copy)]
pub struct Avx2(());
/// 16 floats, 32 registers, masks.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx2 {
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }
}
impl Avx512 {
    /// # Safety
    /// The processor must have AVX-512 F, DQ and VL, AVX2 and FMA.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Lane masks for the first n lanes: loads from `MASK[8 - n..]`.
static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn mask8(n: usize) -> __m256i {
    assert!(n <= 8);
    unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast()) }
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const MR: usize = 6;

    #[inline(always)]
    fn isa(self) -> Isa {
        Isa(IsaKind::Avx2)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const u16) -> Self::V {
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part_ptr(self, p: *const f32, n: usize) -> Self::V {
        unsafe { _mm256_maskload_ps(p, mask8(n)) }
    }
    #[inline(always)]
    unsafe fn store_part_ptr(self, p: *mut f32, v: Self::V, n: usize) {
        unsafe { _mm256_maskstore_ps(p, mask8(n), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, s: Self::V) -> Self::V {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, s))
        }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        unsafe {
            let e = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn keep(self, a: Self::V, n: usize) -> Self::V {
        unsafe { _mm256_and_ps(a, _mm256_castsi256_ps(mask8(n))) }
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        unsafe { sum4(_mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a))) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose8(self, from: *const f32, ld_from: usize, to: *mut f32, ld_to: usize) {
        unsafe { transpose8(from, ld_from, to, ld_to) }
    }
    #[inline(always)]
    fn max_lane(self, a: Self::V) -> f32 {
        unsafe { max4(_mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a))) }
    }
}

/// # Safety
/// Needs SSE, part of x86-64.
#[inline(always)]
unsafe fn sum4(v: __m128) -> f32 {
    unsafe {
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// # Safety
/// Needs SSE, part of x86-64.
#[inline(always)]
unsafe fn max4(v: __m128) -> f32 {
    unsafe {
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// # Safety
/// Needs AVX; `from[i * ld_from + j]` readable and `to[j * ld_to + i]` writable for i, j < 8.
#[inline(always)]
unsafe fn transpose8(from: *const f32, ld_from: usize, to: *mut f32, ld_to: usize) {
    unsafe {
        // Not closures: those would not inherit the target features.
        macro_rules! r {
            ($i:literal) => {
                _mm256_loadu_ps(from.add($i * ld_from))
            };
        }
        macro_rules! w {
            ($j:literal, $v:expr) => {
                _mm256_storeu_ps(to.add($j * ld_to), $v)
            };
        }
        let (r0, r1, r2, r3) = (r!(0), r!(1), r!(2), r!(3));
        let (r4, r5, r6, r7) = (r!(4), r!(5), r!(6), r!(7));
        let (a0, a1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (a2, a3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        let (a4, a5) = (_mm256_unpacklo_ps(r4, r5), _mm256_unpackhi_ps(r4, r5));
        let (a6, a7) = (_mm256_unpacklo_ps(r6, r7), _mm256_unpackhi_ps(r6, r7));
        let (b0, b1) = (_mm256_shuffle_ps::<0x44>(a0, a2), _mm256_shuffle_ps::<0xee>(a0, a2));
        let (b2, b3) = (_mm256_shuffle_ps::<0x44>(a1, a3), _mm256_shuffle_ps::<0xee>(a1, a3));
        let (b4, b5) = (_mm256_shuffle_ps::<0x44>(a4, a6), _mm256_shuffle_ps::<0xee>(a4, a6));
        let (b6, b7) = (_mm256_shuffle_ps::<0x44>(a5, a7), _mm256_shuffle_ps::<0xee>(a5, a7));
        w!(0, _mm256_permute2f128_ps::<0x20>(b0, b4));
        w!(1, _mm256_permute2f128_ps::<0x20>(b1, b5));
        w!(2, _mm256_permute2f128_ps::<0x20>(b2, b6));
        w!(3, _mm256_permute2f128_ps::<0x20>(b3, b7));
        w!(4, _mm256_permute2f128_ps::<0x31>(b0, b4));
        w!(5, _mm256_permute2f128_ps::<0x31>(b1, b5));
        w!(6, _mm256_permute2f128_ps::<0x31>(b2, b6));
        w!(7, _mm256_permute2f128_ps::<0x31>(b3, b7));
    }
}

#[inline(always)]
fn mask16(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const MR: usize = 14;

    #[inline(always)]
    fn isa(self) -> Isa {
        Isa(IsaKind::Avx512)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const u16) -> Self::V {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_part_ptr(self, p: *const f32, n: usize) -> Self::V {
        unsafe { _mm512_maskz_loadu_ps(mask16(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part_ptr(self, p: *mut f32, v: Self::V, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask16(n), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add_pairs(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // The same bits as pairs.
        unsafe {
            use std::mem::transmute;
            _mm512_dpbf16_ps(c, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b))
        }
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, s: Self::V) -> Self::V {
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s))
        }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        unsafe {
            let e = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(e))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn keep(self, a: Self::V, n: usize) -> Self::V {
        unsafe { _mm512_maskz_mov_ps(mask16(n), a) }
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        unsafe {
            let h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            sum4(_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps::<1>(h)))
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn transpose8(self, from: *const f32, ld_from: usize, to: *mut f32, ld_to: usize) {
        unsafe { transpose8(from, ld_from, to, ld_to) }
    }
    #[inline(always)]
    fn max_lane(self, a: Self::V) -> f32 {
        unsafe {
            let h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            max4(_mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps::<1>(h)))
        }
    }
}
