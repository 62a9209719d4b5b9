//! The vector operations kernels are written with, once, for every instruction set.
//!
//! A kernel body is an `#[inline(always)]` function generic over [`Simd`]; `dispatch!` makes the plain function that picks the
//! instruction set and compiles the body under the matching target features.

/// One instruction set's `f32` vectors. A value of the type is the proof that the processor has it.
///
/// Comparisons and `max`/`min` follow the x86 rule for NaN (the second operand wins).
pub trait Simd: Copy + Send + Sync + 'static {
    /// A vector of `LANES` floats.
    type V: Copy;
    /// Floats per vector.
    const LANES: usize;
    /// Rows of the GEMM microtile.
    const MR: usize;

    /// This instruction set.
    fn isa(self) -> Isa;
    /// Returns all lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Loads `LANES` floats.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` floats.
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    /// Stores `LANES` floats.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` floats.
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V);
    /// Loads `n < LANES` floats, the other lanes 0.
    ///
    /// # Safety
    /// `p` must be readable for `n` floats.
    unsafe fn load_part_ptr(self, p: *const f32, n: usize) -> Self::V;
    /// Stores the first `n < LANES` lanes.
    ///
    /// # Safety
    /// `p` must be writable for `n` floats.
    unsafe fn store_part_ptr(self, p: *mut f32, v: Self::V, n: usize);
    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c (fused where the processor can)
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// c - a * b (fused where the processor can)
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// larger of the two
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// smaller of the two
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// square root
    fn sqrt(self, a: Self::V) -> Self::V;
    /// |a|
    fn abs(self, a: Self::V) -> Self::V;
    /// magnitude of `a` with the sign of `s`
    fn copysign(self, a: Self::V, s: Self::V) -> Self::V;
    /// nearest integer, ties to even
    fn round(self, a: Self::V) -> Self::V;
    /// 2^a for an integral a in -126..=127
    fn pow2(self, a: Self::V) -> Self::V;
    /// x where a < b, else y
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Returns the first `n` lanes, the others 0.
    fn keep(self, a: Self::V, n: usize) -> Self::V;
    /// Returns the sum of the lanes, in a fixed order.
    fn sum(self, a: Self::V) -> f32;
    /// Returns the largest lane.
    fn max_lane(self, a: Self::V) -> f32;

    /// Loads `LANES` bf16, by their bits.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` of them.
    unsafe fn load_bf16_ptr(self, p: *const u16) -> Self::V;

    /// Adds to each lane of c the two products of a pair of bf16 in the same lanes of a and b: in fp32, with numbers below the normal
    /// ones taken as 0. Only where [`Isa::multiplies_bf16`].
    #[inline(always)]
    fn add_pairs(self, _a: Self::V, _b: Self::V, _c: Self::V) -> Self::V {
        unreachable!("no instruction multiplies bf16")
    }

    /// Asks for the cache line of `p`, which may be any address.
    #[inline(always)]
    fn prefetch(self, _p: *const f32) {}
    /// Writes the transpose of an 8 x 8 block.
    ///
    /// # Safety
    /// `from[i * ld_from + j]` must be readable and `to[j * ld_to + i]` writable for i, j < 8.
    unsafe fn transpose8(self, from: *const f32, ld_from: usize, to: *mut f32, ld_to: usize);

    /// Loads the first `LANES` floats of a slice.
    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::V {
        assert!(x.len() >= Self::LANES);
        // SAFETY: the slice is long enough.
        unsafe { self.load_ptr(x.as_ptr()) }
    }
    /// Stores to the first `LANES` floats of a slice.
    #[inline(always)]
    fn store(self, x: &mut [f32], v: Self::V) {
        assert!(x.len() >= Self::LANES);
        // SAFETY: the slice is long enough.
        unsafe { self.store_ptr(x.as_mut_ptr(), v) }
    }
    /// Loads a slice shorter than `LANES`, the other lanes 0.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::V {
        assert!(x.len() < Self::LANES);
        // SAFETY: exactly the slice is read.
        unsafe { self.load_part_ptr(x.as_ptr(), x.len()) }
    }
    /// Stores to a slice shorter than `LANES`.
    #[inline(always)]
    fn store_part(self, x: &mut [f32], v: Self::V) {
        assert!(x.len() < Self::LANES);
        // SAFETY: exactly the slice is written.
        unsafe { self.store_part_ptr(x.as_mut_ptr(), v, x.len()) }
    }
    /// Returns all lanes 0.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
}

/// An element of memory that is widened as it is loaded: `f32`, or the bits of a bf16.
pub trait Stored: Copy + Send + Sync {
    /// Loads `S::LANES` elements.
    ///
    /// # Safety
    /// `p` must be readable for them.
    unsafe fn load_ptr<S: Simd>(s: S, p: *const Self) -> S::V;
    /// Loads a slice shorter than `S::LANES`, the other lanes 0.
    fn load_part<S: Simd>(s: S, x: &[Self]) -> S::V;
    /// Loads the first `S::LANES` elements of a slice.
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self]) -> S::V {
        assert!(x.len() >= S::LANES);
        // SAFETY: the slice is long enough.
        unsafe { Self::load_ptr(s, x.as_ptr()) }
    }
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load_ptr<S: Simd>(s: S, p: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_ptr(p) }
    }
    #[inline(always)]
    fn load_part<S: Simd>(s: S, x: &[f32]) -> S::V {
        s.load_part(x)
    }
}

impl Stored for u16 {
    #[inline(always)]
    unsafe fn load_ptr<S: Simd>(s: S, p: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16_ptr(p) }
    }
    #[inline(always)]
    fn load_part<S: Simd>(s: S, x: &[u16]) -> S::V {
        // Of the widest vector.
        let mut wide = [0.0; 16];
        wide.iter_mut().zip(x).for_each(|(to, x)| *to = f32::from_bits(u32::from(*x) << 16));
        s.load_part(&wide[..x.len()])
    }
}

/// Where a vector lies in a slice: `LANES` floats from `start`, or the last few.
pub trait At<S: Simd>: Copy {
    /// Loads; lanes beyond the end are 0.
    fn load(self, s: S, x: &[f32]) -> S::V;
    /// Stores.
    fn store(self, s: S, x: &mut [f32], v: S::V);
    /// Zeroes the lanes beyond the end.
    fn keep(self, s: S, v: S::V) -> S::V;
}

/// A whole vector.
#[derive(Clone, Copy)]
pub struct Whole(pub usize);
/// The last `1..LANES` floats: start and number.
#[derive(Clone, Copy)]
pub struct Tail(pub usize, pub usize);

impl<S: Simd> At<S> for Whole {
    #[inline(always)]
    fn load(self, s: S, x: &[f32]) -> S::V {
        s.load(&x[self.0..])
    }
    #[inline(always)]
    fn store(self, s: S, x: &mut [f32], v: S::V) {
        s.store(&mut x[self.0..], v)
    }
    #[inline(always)]
    fn keep(self, _: S, v: S::V) -> S::V {
        v
    }
}

impl<S: Simd> At<S> for Tail {
    #[inline(always)]
    fn load(self, s: S, x: &[f32]) -> S::V {
        s.load_part(&x[self.0..self.0 + self.1])
    }
    #[inline(always)]
    fn store(self, s: S, x: &mut [f32], v: S::V) {
        s.store_part(&mut x[self.0..self.0 + self.1], v)
    }
    #[inline(always)]
    fn keep(self, s: S, v: S::V) -> S::V {
        s.keep(v, self.1)
    }
}

/// Runs a block for every vector of `0..n`: `each_vector!(S, n, |at| { .. at.load(s, x) .. })`. The block is compiled twice, for
/// whole vectors and for the tail.
macro_rules! each_vector {
    ($simd:ident, $n:expr, |$at:ident| $body:block) => {{
        let (n, lanes) = ($n, <$simd as $crate::cpu::kernels::simd::Simd>::LANES);
        let mut i = 0;
        while i + lanes <= n {
            let $at = $crate::cpu::kernels::simd::Whole(i);
            $body
            i += lanes;
        }
        if i < n {
            let $at = $crate::cpu::kernels::simd::Tail(i, n - i);
            $body
        }
    }};
}
pub(super) use each_vector;

/// Which instruction set kernels use; chosen once, when the [`super::Pool`] is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(super) IsaKind);

/// The known instruction sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IsaKind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The code every processor runs.
    pub const PORTABLE: Isa = Isa(IsaKind::Portable);

    /// Returns the best of this processor.
    pub fn best() -> Isa {
        *Isa::available().last().unwrap_or(&Isa::PORTABLE)
    }

    /// Returns all that this processor runs, best last.
    pub fn available() -> &'static [Isa] {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            const ALL: [Isa; 3] = [Isa::PORTABLE, Isa(IsaKind::Avx2), Isa(IsaKind::Avx512)];
            match (avx2, avx512) {
                (true, true) => &ALL,
                (true, false) => &ALL[..2],
                (false, _) => &ALL[..1],
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            &[Isa::PORTABLE]
        }
    }

    /// Returns whether the processor multiplies bf16 without widening them.
    pub fn multiplies_bf16(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => is_x86_feature_detected!("avx512bf16"),
            _ => false,
        }
    }

    /// Returns a short name for plans and reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            IsaKind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => "avx512",
        }
    }
}

/// Makes a function that runs a generic body under the instruction set `isa`.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:expr) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::cpu::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            use $crate::cpu::kernels::simd::IsaKind;
            match isa.0 {
                IsaKind::Portable => ($body)($crate::cpu::kernels::simd::Portable, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx2 => {
                    #[target_feature(enable = "avx2,fma")]
                    #[allow(clippy::too_many_arguments)]
                    fn inner($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: these are the features the token stands for.
                        let s = unsafe { $crate::cpu::kernels::x86::Avx2::new() };
                        ($body)(s, $($arg),*)
                    }
                    // SAFETY: this Isa value exists only where the features were detected.
                    unsafe { inner($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx512 => {
                    #[target_feature(enable = "avx2,fma,avx512f,avx512dq,avx512vl")]
                    #[allow(clippy::too_many_arguments)]
                    fn inner($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: these are the features the token stands for.
                        let s = unsafe { $crate::cpu::kernels::x86::Avx512::new() };
                        ($body)(s, $($arg),*)
                    }
                    // SAFETY: this Isa value exists only where the features were detected.
                    unsafe { inner($($arg),*) }
                }
            }
        }
    };
}
pub(super) use dispatch;

/// Plain Rust on eight floats; the compiler vectorises it for the target's baseline.
#[derive(Clone, Copy)]
pub struct Portable;

const N: usize = 8;

#[inline(always)]
fn map2(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = [f32; N];
    const LANES: usize = N;
    const MR: usize = 4;

    #[inline(always)]
    fn isa(self) -> Isa {
        Isa::PORTABLE
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's promise; arrays of f32 need f32's alignment only.
        unsafe { p.cast::<Self::V>().read() }
    }
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const u16) -> Self::V {
        // SAFETY: the caller's promise.
        std::array::from_fn(|i| f32::from_bits(u32::from(unsafe { *p.add(i) }) << 16))
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::V>().write(v) }
    }
    #[inline(always)]
    unsafe fn load_part_ptr(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: only lanes below n are read, which the caller promises.
        std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_part_ptr(self, p: *mut f32, v: Self::V, n: usize) {
        for (i, x) in v.into_iter().enumerate().take(n) {
            // SAFETY: i < n, which the caller promises.
            unsafe { *p.add(i) = x }
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        map2(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, s: Self::V) -> Self::V {
        map2(a, s, f32::copysign)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding and taking away 1.5 * 2^23 rounds to nearest even for |x| < 2^22; larger values are left alone.
        const BIG: f32 = 12_582_912.0;
        a.map(|x| if x.abs() < 4_194_304.0 { (x + BIG) - BIG } else { x.round_ties_even() })
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        a.map(|x| f32::from_bits((((x as i32) + 127) as u32) << 23))
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn keep(self, a: Self::V, n: usize) -> Self::V {
        std::array::from_fn(|i| if i < n { a[i] } else { 0.0 })
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    unsafe fn transpose8(self, from: *const f32, ld_from: usize, to: *mut f32, ld_to: usize) {
        for i in 0..8 {
            for j in 0..8 {
                // SAFETY: the caller's promise.
                unsafe { *to.add(j * ld_to + i) = *from.add(i * ld_from + j) }
            }
        }
    }
    #[inline(always)]
    fn max_lane(self, a: Self::V) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
