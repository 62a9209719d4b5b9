use super::*;
use crate::cpu::kernels::testing::{Rng, close, pools};
use crate::cpu::kernels::{Half, Mat, RowsMut};

/// fp32 sums of k products against f64: errors grow like eps * sqrt(k) here, far below this.
const TOL: f32 = 2e-5;

struct Case {
    m: usize,
    n: usize,
    k: usize,
    ta: bool,
    tb: bool,
    alpha: f32,
    beta: f32,
    bias: bool,
}

/// What is between rows is not a number: a product must not depend on it.
fn stored(rng: &mut Rng, rows: usize, cols: usize, t: bool, pitch_extra: usize) -> (Vec<f32>, usize) {
    let (r, c) = if t { (cols, rows) } else { (rows, cols) };
    let pitch = c + pitch_extra;
    let mut data = rng.vec(r * pitch);
    data.chunks_exact_mut(pitch).for_each(|row| row[c..].fill(f32::NAN));
    (data, pitch)
}

fn operand(data: &[f32], pitch: usize, rows: usize, cols: usize, t: bool) -> Operand<'_> {
    if t {
        Operand::new(Mat::new(data, cols, rows, pitch)).t()
    } else {
        Operand::new(Mat::new(data, rows, cols, pitch))
    }
}

fn check(rng: &mut Rng, case: &Case) {
    let &Case { m, n, k, ta, tb, alpha, beta, bias } = case;
    let (a, pa) = stored(rng, m, k, ta, 3);
    let (b, pb) = stored(rng, k, n, tb, 1);
    let pc = n + 2;
    let c0 = if beta == 0.0 { vec![f32::NAN; m * pc] } else { rng.vec(m * pc) };
    let bias = bias.then(|| rng.vec(n));
    let at = |i: usize, p: usize| if ta { a[p * pa + i] } else { a[i * pa + p] } as f64;
    let bt = |p: usize, j: usize| if tb { b[j * pb + p] } else { b[p * pb + j] } as f64;
    let mut want = vec![0.0; m * pc];
    for i in 0..m {
        for j in 0..n {
            let sum: f64 = (0..k).map(|p| at(i, p) * bt(p, j)).sum();
            let old = if beta == 0.0 { 0.0 } else { beta as f64 * c0[i * pc + j] as f64 };
            want[i * pc + j] = (alpha as f64 * sum + old + bias.as_ref().map_or(0.0, |b| b[j] as f64)) as f32;
        }
    }
    let mut seen: Vec<(Isa, Vec<f32>)> = Vec::new();
    for pool in pools() {
        let mut c = c0.clone();
        let mut ws = vec![f32::NAN; gemm_workspace(m, n, k, pool.threads())];
        gemm(
            &pool,
            alpha,
            operand(&a, pa, m, k, ta),
            operand(&b, pb, k, n, tb),
            beta,
            MatMut::new(&mut c, m, n, pc),
            bias.as_deref(),
            &mut ws,
        );
        close(&c, &want, TOL, &format!("{m}x{n}x{k} ta={ta} tb={tb} {}", pool.isa().name()));
        match seen.iter().find(|(isa, _)| *isa == pool.isa()) {
            Some((_, first)) => assert!(first == &c, "bits depend on the thread count: {m}x{n}x{k}"),
            None => seen.push((pool.isa(), c)),
        }
    }
}

#[test]
fn random_sizes_and_transposes() {
    let mut rng = Rng::new(1);
    for round in 0..60 {
        let case = Case {
            m: 1 + rng.below(if round % 3 == 0 { 8 } else { 150 }),
            n: 1 + rng.below(150),
            k: rng.below(if round % 5 == 0 { 1200 } else { 100 }),
            ta: rng.below(2) == 1,
            tb: rng.below(2) == 1,
            alpha: [1.0, 0.5][rng.below(2)],
            beta: [0.0, 1.0, -0.5][rng.below(3)],
            bias: rng.below(2) == 1,
        };
        check(&mut rng, &case);
    }
}

#[test]
fn several_blocks_and_none() {
    let mut rng = Rng::new(2);
    for (m, n, k) in [(2100, 40, 30), (20, 2070, 40), (13, 33, 1100), (20, 20, 0)] {
        for (ta, tb) in [(false, false), (true, true)] {
            check(&mut rng, &Case { m, n, k, ta, tb, alpha: 1.0, beta: 1.0, bias: true });
        }
    }
}

#[test]
fn overlapping_rows() {
    let mut rng = Rng::new(3);
    let (t, ch, width, n) = (40, 3, 5, 17);
    let x = rng.vec((t + width - 1) * ch);
    let w = rng.vec(width * ch * n);
    let mut want = vec![0.0; t * n];
    for i in 0..t {
        for j in 0..n {
            want[i * n + j] =
                (0..width * ch).map(|p| x[i * ch + p] as f64 * w[p * n + j] as f64).sum::<f64>() as f32;
        }
    }
    for pool in pools() {
        let mut y = vec![0.0; t * n];
        let mut ws = vec![0.0; gemm_workspace(t, n, width * ch, pool.threads())];
        gemm(
            &pool,
            1.0,
            Operand::strided(&x, t, width * ch, ch, 1),
            Operand::new(Mat::dense(&w, width * ch, n)),
            0.0,
            MatMut::dense(&mut y, t, n),
            None,
            &mut ws,
        );
        close(&y, &want, TOL, "windows");
    }
}

#[test]
fn tile_sizes_are_listed() {
    for &isa in Isa::available() {
        assert!(TILES.contains(&tile_size(isa)), "{}", isa.name());
    }
}

/// 16-bit operands of every layout, into f32 that is added to, and into 16-bit results in several bands: read in place or copied, of
/// depths that are whole pairs or not.
#[test]
fn sixteen_bit_operands_and_results() {
    for (size, extra) in [((530, 70, 600), 3), ((61, 70, 600), 2), ((61, 70, 601), 3), ((61, 33, 1), 1)] {
        sixteen_bits(size, extra);
    }
}

fn sixteen_bits((m, n, k): (usize, usize, usize), extra: usize) {
    let mut rng = Rng::new(9);
    let kinds = [Half::Bf16, Half::F16];
    for (half, (ta, tb)) in kinds.into_iter().flat_map(|h| [(false, true), (true, false)].map(|t| (h, t))) {
        let (a, pa) = stored(&mut rng, m, k, ta, extra);
        let (b, pb) = stored(&mut rng, k, n, tb, 1);
        let (bias, c0) = (rng.vec(n), rng.vec(m * n));
        let round = |x: &[f32]| {
            let (mut bits, mut back) = (vec![0; x.len()], vec![0.0; x.len()]);
            half.narrow(Isa::best(), x, &mut bits);
            half.widen(Isa::best(), &bits, &mut back);
            (bits, back)
        };
        let ((a16, a), (b16, b), (c16, c0)) = (round(&a), round(&b), round(&c0));
        let of = |data| {
            move |rows, cols, pitch, t: bool| {
                let (r, c) = if t { (cols, rows) } else { (rows, cols) };
                let x = Operand::new(Rows::Half(half, Mat::<u16>::new(data, r, c, pitch)));
                if t { x.t() } else { x }
            }
        };
        let (a16, b16) = (of(&a16[..])(m, k, pa, ta), of(&b16[..])(k, n, pb, tb));
        let mut seen: Vec<(Isa, Vec<f32>, Vec<u16>)> = Vec::new();
        for pool in pools() {
            let mut ws = vec![f32::NAN; gemm_narrow_workspace(m, n, k, pool.threads())];
            let (mut want, mut wide, mut small) = (c0.clone(), c0.clone(), c16.clone());
            let (fa, fb) = (operand(&a, pa, m, k, ta), operand(&b, pb, k, n, tb));
            gemm(&pool, 1.0, fa, fb, 0.5, MatMut::dense(&mut want, m, n), Some(&bias), &mut ws);
            let c = RowsMut::F32(MatMut::dense(&mut wide, m, n));
            gemm_narrow(&pool, a16, b16, 0.5, c, Some(&bias), &mut ws);
            let c = RowsMut::Half(half, MatMut::dense(&mut small, m, n));
            gemm_narrow(&pool, a16, b16, 0.5, c, Some(&bias), &mut ws);
            close(&wide, &want, TOL, "16-bit operands");
            let mut back = vec![0.0; small.len()];
            half.widen(pool.isa(), &small, &mut back);
            close(&back, &want, if half == Half::Bf16 { 8e-3 } else { 1e-3 }, "16-bit results");
            match seen.iter().find(|(isa, ..)| *isa == pool.isa()) {
                Some((_, w, s)) => {
                    assert!(*w == wide && *s == small, "other bits with {} threads", pool.threads())
                }
                None => seen.push((pool.isa(), wide, small)),
            }
        }
    }
}

/// Where rows share cache sets they are copied first, and the sums are the same.
#[test]
fn rows_that_share_cache_sets_have_the_same_bits() {
    let mut rng = Rng::new(11);
    let (m, n, k) = (45, 70, 1000);
    let (b, x) = (rng.vec(k * n), rng.vec(m * k));
    let bits = |x: &[f32]| {
        let mut to = vec![0; x.len()];
        Half::Bf16.narrow(Isa::best(), x, &mut to);
        to
    };
    let b16 = bits(&b);
    for pool in pools() {
        let product = |pitch: usize| {
            let mut a = vec![f32::NAN; m * pitch];
            a.chunks_exact_mut(pitch).zip(x.chunks_exact(k)).for_each(|(to, x)| to[..k].copy_from_slice(x));
            let (mut ws, mut c) = (vec![0.0; gemm_workspace(m, n, k, pool.threads())], vec![0.0; 2 * m * n]);
            let (wide, narrow) = c.split_at_mut(m * n);
            let operands = (Operand::new(Mat::new(&a, m, k, pitch)), Operand::new(Mat::dense(&b, k, n)));
            gemm(&pool, 1.0, operands.0, operands.1, 0.0, MatMut::dense(wide, m, n), None, &mut ws);
            let a16 = bits(&a);
            let half = |mat| Operand::new(Rows::Half(Half::Bf16, mat));
            let operands = (half(Mat::<u16>::new(&a16, m, k, pitch)), half(Mat::<u16>::dense(&b16, k, n)));
            gemm(&pool, 1.0, operands.0, operands.1, 0.0, MatMut::dense(narrow, m, n), None, &mut ws);
            c
        };
        // 1024 elements of 32 bits, of floats and of pairs, and neither.
        let plain = product(1008);
        assert!(product(1024) == plain && product(2048) == plain, "{}", pool.isa().name());
    }
}

/// Products with few rows: a row's bits depend neither on those beside it nor on which operands have 16 bits.
#[test]
fn few_rows_of_any_type() {
    let mut rng = Rng::new(10);
    for (n, k) in [(1, 5), (130, 40), (259, 1100)] {
        let narrow = |x: &[f32]| {
            let (mut bits, mut back) = (vec![0; x.len()], vec![0.0; x.len()]);
            Half::Bf16.narrow(Isa::best(), x, &mut bits);
            Half::Bf16.widen(Isa::best(), &bits, &mut back);
            (bits, back)
        };
        let ((a16, a), (b16, b)) = (narrow(&rng.vec(8 * k)), narrow(&rng.vec(n * k)));
        let (bias, c0) = (rng.vec(n), rng.vec(8 * n));
        let wide = |x, rows| Operand::new(Mat::dense(x, rows, k));
        let half = |x, rows| Operand::new(Rows::Half(Half::Bf16, Mat::<u16>::dense(x, rows, k)));
        let product = |pool: &Pool, first: usize, m: usize, (a_half, b_half): (bool, bool)| {
            let part = first * k..(first + m) * k;
            let a = if a_half { half(&a16[part], m) } else { wide(&a[part], m) };
            let b = if b_half { half(&b16, n) } else { wide(&b, n) };
            let mut c = c0[first * n..(first + m) * n].to_vec();
            let mut ws = vec![f32::NAN; gemm_workspace(m, n, k, 1).max(few_rows_workspace(m, k))];
            gemm(pool, 1.0, a, b.t(), 0.5, MatMut::dense(&mut c, m, n), Some(&bias), &mut ws);
            c
        };
        let want = |i: usize| {
            let (r, j) = (i / n, i % n);
            let sum: f64 = (0..k).map(|p| f64::from(a[r * k + p]) * f64::from(b[j * k + p])).sum();
            (sum + f64::from(bias[j]) + 0.5 * f64::from(c0[i])) as f32
        };
        let want: Vec<f32> = (0..8 * n).map(want).collect();
        for pool in pools() {
            let all = product(&pool, 0, 8, (false, false));
            close(&all, &want, TOL, "few rows");
            for ((first, m), half) in
                [((0, 1), (false, true)), ((7, 1), (true, false)), ((1, 3), (true, true))]
            {
                let some = product(&pool, first, m, half);
                assert!(some == all[first * n..(first + m) * n], "{m} rows of {n}x{k}, {half:?}");
            }
        }
    }
}
