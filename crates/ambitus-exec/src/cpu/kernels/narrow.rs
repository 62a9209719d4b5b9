//! AdamW and Lion on weights and moments of fewer than four bytes: widened to fp32 block by block, updated by the formula that
//! they have in fp32, and rounded as `ambitus_ir::ops::narrow` says.
//!
//! Elements are counted row-major without pads. A task takes a tile of them, whose blocks of 256 share a scale and start at
//! a multiple of four, so at a whole random counter: bits depend on neither threads nor pitches. Pads are left alone.

use super::Pool;
use super::map;
use super::optimizer::{AdamW, Factors, Lion, LionFactors};
use super::pool::DisjointMut;
use super::random::block_words;
use super::simd::{Simd, dispatch};
use ambitus_ir::ops::narrow::{BLOCK, code_limits, dynamic_map};
use std::sync::OnceLock;

/// Elements of a task.
const TILE: usize = 16 * BLOCK;

/// A matrix to read: elements, and how far apart rows are.
#[derive(Clone, Copy)]
pub struct Pitched<'a, T> {
    /// Pitched with their pads.
    pub data: &'a [T],
    /// Elements from row to row.
    pub pitch: usize,
}

/// A matrix to overwrite.
#[derive(Clone, Copy)]
pub struct PitchedMut<'a, T> {
    /// Pitched with their pads.
    pub data: DisjointMut<'a, T>,
    /// Elements from row to row.
    pub pitch: usize,
}

/// A weight or a moment.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// As it is computed.
    F32(PitchedMut<'a, f32>),
    /// bfloat16.
    Bf16(PitchedMut<'a, u16>),
    /// 8-bit codes and a scale for each block.
    Codes {
        /// a number's code
        codes: DisjointMut<'a, u8>,
        /// largest magnitude of a block
        scales: DisjointMut<'a, f32>,
        /// what the codes mean
        book: &'static Codebook,
    },
}

/// What bf16 values are rounded by.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// The run's seed and the update's number.
    pub key: [u32; 2],
    /// Stable op id.
    pub id: u64,
    /// Number of the first element: a multiple of four.
    pub first: u64,
}

/// What an update overwrites.
#[derive(Clone, Copy)]
pub struct Narrow<'a> {
    /// Pitched and columns.
    pub shape: (usize, usize),
    /// The weight: fp32, or stochastically rounded bf16.
    pub w: Values<'a>,
    /// The first moment; bf16 is rounded to nearest.
    pub m: Values<'a>,
    /// The second moment, where there is one; bf16 is stochastically rounded.
    pub v: Option<Values<'a>>,
}

/// How elements are updated.
enum Rule {
    AdamW(Factors),
    Lion(LionFactors),
}

/// One update of all elements. `random` is needed where the weight or the second moment is bf16.
pub fn adamw_narrow(pool: &Pool, step: &AdamW, x: &Narrow<'_>, g: Pitched<'_, f32>, random: Option<Random>) {
    if step.apply {
        update(pool, &Rule::AdamW(Factors::new(step)), x, g, random);
    }
}

/// One update of all elements, which have no second moment. `random` is needed where the weight is bf16.
pub fn lion_narrow(pool: &Pool, step: &Lion, x: &Narrow<'_>, g: Pitched<'_, f32>, random: Option<Random>) {
    if step.apply {
        update(pool, &Rule::Lion(LionFactors::new(step)), x, g, random);
    }
}

fn update(pool: &Pool, rule: &Rule, x: &Narrow<'_>, g: Pitched<'_, f32>, random: Option<Random>) {
    let (isa, n) = (pool.isa(), x.shape.0 * x.shape.1);
    pool.run(n.div_ceil(TILE), |i| {
        for start in (i * TILE..n.min((i + 1) * TILE)).step_by(BLOCK) {
            update_block(isa, rule, x, g, random, (start, BLOCK.min(n - start)));
        }
    });
}

dispatch! {
    fn update_block(
        rule: &Rule, x: &Narrow<'_>, g: Pitched<'_, f32>, random: Option<Random>, at: (usize, usize),
    ) = update_block_body
}

#[inline(always)]
fn update_block_body<S: Simd>(
    s: S,
    rule: &Rule,
    x: &Narrow<'_>,
    g: Pitched<'_, f32>,
    random: Option<Random>,
    (start, n): (usize, usize),
) {
    let cols = x.shape.1;
    let mut old = [[0.0; BLOCK]; 4];
    let [gs, w, m, v] = &mut old;
    let (gs, w, m, v) = (&mut gs[..n], &mut w[..n], &mut m[..n], &mut v[..n]);
    runs(cols, g.pitch, start, n, |at, to, n| gs[to..to + n].copy_from_slice(&g.data[at..at + n]));
    x.w.load(cols, start, w);
    x.m.load(cols, start, m);
    if let Some(x) = &x.v {
        x.load(cols, start, v);
    }
    match rule {
        Rule::AdamW(factors) => map::body(s, factors, [gs], [&mut *w, &mut *m, &mut *v]),
        Rule::Lion(factors) => map::body(s, factors, [gs], [&mut *w, &mut *m]),
    }
    let words = random.map_or([0; BLOCK], |r| block_words((r.first + start as u64) / 4, r.id, r.key));
    x.w.store(cols, start, w, |i| words[i] >> 16);
    x.m.store(cols, start, m, |_| NEAREST);
    if let Some(x) = &x.v {
        x.store(cols, start, v, |i| words[i] & 0xffff);
    }
}

/// In place of 16 random bits: round to nearest.
const NEAREST: u32 = u32::MAX;

impl Values<'_> {
    #[inline(always)]
    fn load(&self, cols: usize, start: usize, out: &mut [f32]) {
        match self {
            // SAFETY: a task has its own elements, and is done with earlier pieces of them.
            Values::F32(x) => runs(cols, x.pitch, start, out.len(), |at, to, n| unsafe {
                out[to..to + n].copy_from_slice(x.data.slice(at, n));
            }),
            // SAFETY: as above.
            Values::Bf16(x) => runs(cols, x.pitch, start, out.len(), |at, to, n| unsafe {
                out[to..to + n].iter_mut().zip(&*x.data.slice(at, n)).for_each(|(o, h)| *o = wide(*h));
            }),
            Values::Codes { codes, scales, book } => {
                // SAFETY: as above; a block is one task's, and so is its scale.
                let (codes, scale) =
                    unsafe { (codes.slice(start, out.len()), scales.slice(start / BLOCK, 1)[0]) };
                out.iter_mut().zip(&*codes).for_each(|(o, c)| *o = book.map[*c as usize] * scale);
            }
        }
    }

    #[inline(always)]
    fn store(&self, cols: usize, start: usize, x: &[f32], random: impl Fn(usize) -> u32) {
        match self {
            // SAFETY: as in `load`.
            Values::F32(y) => runs(cols, y.pitch, start, x.len(), |at, from, n| unsafe {
                y.data.slice(at, n).copy_from_slice(&x[from..from + n]);
            }),
            // SAFETY: as in `load`.
            Values::Bf16(y) => runs(cols, y.pitch, start, x.len(), |at, from, n| unsafe {
                let out = y.data.slice(at, n);
                out.iter_mut().enumerate().for_each(|(i, o)| *o = narrow(x[from + i], random(from + i)));
            }),
            Values::Codes { codes, scales, book } => {
                // SAFETY: as in `load`.
                let (codes, to) =
                    unsafe { (codes.slice(start, x.len()), &mut scales.slice(start / BLOCK, 1)[0]) };
                let scale = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                *to = scale;
                // Nothing but zeros: any divisor leaves them.
                let divisor = if scale == 0.0 { 1.0 } else { scale };
                for (c, x) in codes.iter_mut().zip(x) {
                    let least = if *x == 0.0 { 0 } else { book.least };
                    *c = book.code(x / divisor).max(least);
                }
            }
        }
    }
}

/// Calls `body(place, offset, length)` for the stretches of the elements `start..start + len` that lie together.
#[inline(always)]
fn runs(cols: usize, pitch: usize, start: usize, len: usize, mut body: impl FnMut(usize, usize, usize)) {
    if cols == pitch {
        return body(start, 0, len);
    }
    let mut done = 0;
    while done < len {
        let (row, col) = ((start + done) / cols, (start + done) % cols);
        let n = (cols - col).min(len - done);
        body(row * pitch + col, done, n);
        done += n;
    }
}

/// Returns the number that a bf16 is.
#[inline(always)]
fn wide(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// bf16 of a number, its magnitude rounded up where the bits that are lost and 16 random ones carry; with [`NEAREST`] to
/// nearest, ties to even. NaN stays NaN.
#[inline(always)]
fn narrow(x: f32, random: u32) -> u16 {
    let bits = x.to_bits();
    let random = if random == NEAREST { 0x7fff + ((bits >> 16) & 1) } else { random };
    let rounded = (bits.wrapping_add(random) >> 16) as u16;
    if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded }
}

/// What codes of 8 bits mean, and how they are found.
pub struct Codebook {
    map: [f32; 256],
    /// A number at or above element i has a code above i; the last is NaN.
    limits: [f32; 256],
    /// For the upper 16 bits of a number: the code of the least number that has them.
    first: Box<[u8]>,
    /// Least code of what is not zero.
    least: u8,
}

impl Codebook {
    /// For first moments (`signed`) or second ones.
    pub fn of(signed: bool) -> &'static Codebook {
        static BOTH: OnceLock<[Codebook; 2]> = OnceLock::new();
        &BOTH.get_or_init(|| [Codebook::new(false), Codebook::new(true)])[usize::from(signed)]
    }

    fn new(signed: bool) -> Codebook {
        let map = dynamic_map(signed);
        let limits = code_limits(&map);
        let first = |upper: u32| {
            let least = f32::from_bits(upper << 16 | if upper >> 15 == 1 { 0xffff } else { 0 });
            limits[..255].partition_point(|limit| *limit <= least) as u8
        };
        Codebook { map, limits, first: (0..1 << 16).map(first).collect(), least: u8::from(!signed) }
    }

    /// Returns the code of the nearest number, ties upwards; some code for NaN.
    #[inline(always)]
    fn code(&self, x: f32) -> u8 {
        let mut code = self.first[(x.to_bits() >> 16) as usize];
        while x >= self.limits[code as usize] {
            code += 1;
        }
        code
    }
}

/// x += weight (target - x) for bf16 targets; with weight 1 the target itself. (EMA of bf16 weights.)
pub fn lerp_bf16(
    pool: &Pool,
    shape: (usize, usize),
    weight: f32,
    target: Pitched<'_, u16>,
    x: PitchedMut<'_, f32>,
) {
    let (n, cols) = (shape.0 * shape.1, shape.1);
    let values = Values::F32(x);
    pool.run(n.div_ceil(TILE), |i| {
        for start in (i * TILE..n.min((i + 1) * TILE)).step_by(BLOCK) {
            let len = BLOCK.min(n - start);
            let mut y = [0.0; BLOCK];
            let y = &mut y[..len];
            values.load(cols, start, y);
            runs(cols, target.pitch, start, len, |at, to, n| {
                for (y, b) in y[to..to + n].iter_mut().zip(&target.data[at..at + n]) {
                    let b = wide(*b);
                    *y = if weight == 1.0 { b } else { *y + weight * (b - *y) };
                }
            });
            values.store(cols, start, y, |_| 0);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::testing::{Rng, pools};

    #[test]
    fn codes_are_of_the_nearest_number() {
        let mut rng = Rng::new(5);
        for signed in [false, true] {
            let book = Codebook::of(signed);
            let away = |x: f32, code: usize| (f64::from(x) - f64::from(book.map[code])).abs();
            let random = (0..20_000).map(|i| rng.unit() * 10f32.powi(-(i % 9)));
            for x in random.chain(book.map).chain(book.limits[..255].to_vec()).filter(|x| signed || *x >= 0.0)
            {
                let code = book.code(x) as usize;
                let near = away(x, code);
                let rounding = 3e-7 * f64::from(x.abs());
                assert!((0..256).all(|k| near <= away(x, k) + rounding), "{x}: {code}");
            }
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
                book.code(x);
            }
            assert!((0..256).all(|c| book.code(book.map[c]) == c as u8));
        }
    }

    #[test]
    fn bf16_is_rounded_to_a_neighbour_with_its_probability() {
        assert_eq!(nearest_bf16(1.0), 0x3f80);
        assert_eq!((nearest_bf16(1.003_906_3), nearest_bf16(1.011_718_8)), (0x3f80, 0x3f82), "ties to even");
        for x in [1.001f32, -3.1, 1e-30, 6.0e37, 0.0, -0.0] {
            let below = (x.to_bits() >> 16) as u16;
            let up = (0..1 << 16).filter(|r| narrow(x, *r) != below).count() as u32;
            assert_eq!(up, x.to_bits() & 0xffff, "{x}");
            assert!((0..1 << 16).all(|r| narrow(x, r).wrapping_sub(below) <= 1));
        }
        assert!(wide(narrow(f32::from_bits(0x7f80_0001), 0xffff)).is_nan());
        assert_eq!(wide(narrow(f32::NEG_INFINITY, 0xffff)), f32::NEG_INFINITY);
    }

    fn nearest_bf16(x: f32) -> u16 {
        narrow(x, NEAREST)
    }

    /// A second moment falls by a thousandth an update, which to nearest a bf16 never does.
    #[test]
    fn a_bf16_second_moment_decays() {
        let (n, updates) = (4096, 700);
        for pool in pools() {
            let (mut w, mut m) = (vec![0.0f32; n], vec![0.0f32; n]);
            let mut v = vec![nearest_bf16(1.0); n];
            let g = vec![0.0; n];
            for update in 0..updates {
                let step = AdamW {
                    lr: 0.0,
                    beta1: 0.9,
                    beta2: 0.999,
                    eps: 1e-8,
                    weight_decay: 0.0,
                    bias_correction1: 1.0,
                    bias_correction2: 1.0,
                    grad_scale: 1.0,
                    apply: true,
                };
                let flat = |x| Values::F32(PitchedMut { data: DisjointMut::new(x), pitch: n });
                let v = Values::Bf16(PitchedMut { data: DisjointMut::new(&mut v), pitch: n });
                let x = Narrow { shape: (1, n), w: flat(&mut w), m: flat(&mut m), v: Some(v) };
                let random = Random { key: [3, update], id: 9, first: 0 };
                adamw_narrow(&pool, &step, &x, Pitched { data: &g, pitch: n }, Some(random));
            }
            let mean = v.iter().map(|h| f64::from(wide(*h))).sum::<f64>() / n as f64;
            let exact = 0.999f64.powi(updates as i32);
            assert!((mean / exact - 1.0).abs() < 3e-3, "{mean} instead of {exact}");
        }
    }
}
