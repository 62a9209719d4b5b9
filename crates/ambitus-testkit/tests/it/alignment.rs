//! Paths of the alignment search against all that there are.

use ambitus_testkit::{Interp, Rounding, Tensor, cases};

/// More paths than this of a clip are not gone through.
const MOST: f64 = 3e5;

/// The logarithm of a normal density, up to what `base` holds.
fn score(x: &[Tensor], f: usize, u: usize) -> f64 {
    let cols = x[0].ty.shape.cols();
    let part = |t: &Tensor, row: usize| t.data[row * cols..][..cols].to_vec();
    let (z, mean, scale) = (part(&x[0], f), part(&x[1], u), part(&x[2], u));
    let square: f64 = (0..cols).map(|c| ((z[c] - mean[c]) * scale[c]).powi(2)).sum();
    x[3].data[u] - square / 2.0
}

/// Ways to go from the first of `m` rows to the last in `n` frames.
fn paths(n: usize, m: usize) -> f64 {
    (1..m).map(|k| (n - k) as f64 / k as f64).product()
}

/// Returns the best sum of scores of the frames up to y that end in row x, and its rows from frame y back; of equal sums that which
/// stays longest in later rows.
fn best(score: &dyn Fn(usize, usize) -> f64, y: usize, x: usize) -> Option<(f64, Vec<usize>)> {
    if x > y || (y == 0 && x > 0) {
        return None;
    }
    if y == 0 {
        return Some((score(0, 0), vec![0]));
    }
    let stays = best(score, y - 1, x);
    let comes = if x > 0 { best(score, y - 1, x - 1) } else { None };
    let before = match (stays, comes) {
        (Some(stays), Some(comes)) => Some(if stays.0 < comes.0 { comes } else { stays }),
        (stays, comes) => stays.or(comes),
    };
    before.map(|(sum, mut rows)| {
        rows.insert(0, x);
        (sum + score(y, x), rows)
    })
}

#[test]
fn paths_are_the_best_of_all() {
    let mut interp = Interp::new(Rounding::Exact);
    let (mut clips, mut short) = (0, 0);
    for case in cases().iter().filter(|c| c.op.name() == "monotonic_path") {
        // There it is not the best: a score is worse than what stands for no path, or is no number.
        if case.name.contains("below") || case.name.contains("not numbers") {
            continue;
        }
        let x = case.values();
        let path = case.expected(&mut interp).unwrap_or_else(|e| panic!("{}: {e}", case.name)).remove(0).data;
        let ends = |t: &Tensor, s: usize| (t.data[s] as usize, t.data[s + 1] as usize);
        for s in 0..x[4].data.len() - 1 {
            let ((first, end), (row, last)) = (ends(&x[4], s), ends(&x[5], s));
            let (n, m, path) = (end - first, last - row, &path[first..end]);
            let what = format!("{}, clip {s}", case.name);
            if m == 0 {
                assert!(path.iter().all(|u| *u == -1.0), "{what}");
                continue;
            }
            let score = |y: usize, u: usize| score(&x, first + y, row + u);
            let rows: Vec<usize> = path.iter().map(|u| *u as usize - row).collect();
            if n < m {
                // From the last row back, to the row before where that suits the frame before better.
                let mut at = m - 1;
                for y in (0..n).rev() {
                    assert_eq!(rows[y], at, "{what}");
                    at -= usize::from(y > 0 && score(y - 1, at) < score(y - 1, at - 1));
                }
                short += usize::from(n > 0);
                continue;
            }
            assert!(n == 0 || rows[0] == 0 && rows[n - 1] == m - 1, "{what}: {rows:?}");
            assert!(rows.windows(2).all(|w| w[1] == w[0] || w[1] == w[0] + 1), "{what}: {rows:?}");
            if n > 0 && paths(n, m) <= MOST {
                let (_, mut all) = best(&score, n - 1, m - 1).expect("there is a path");
                all.reverse();
                assert_eq!(rows, all, "{what}");
                clips += 1;
            }
        }
        let end = *x[4].data.last().expect("a table has offsets") as usize;
        assert!(path[end..].iter().all(|u| *u == -1.0), "{}", case.name);
    }
    assert!(clips > 6 && short > 2, "{clips} clips, {short} short ones");
}
