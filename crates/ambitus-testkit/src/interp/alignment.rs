//! Monotonic alignment search, as its page says, with the whole table of scores.

use super::core::Data;
use crate::tensor::Tensor;
use std::rc::Rc;

/// What stands for a path that there is not.
const NONE: f64 = -1e9;

/// Text rows of frames, of the op's operands.
pub(super) fn monotonic_path(x: &[Rc<Tensor>]) -> Data {
    let (frames, texts) = (&x[4].data, &x[5].data);
    let mut path = vec![-1.0; x[0].ty.shape[0]];
    for s in 0..frames.len() - 1 {
        let [(first, n), (row, m)] =
            [frames, texts].map(|t| (t[s] as usize, t[s + 1] as usize - t[s] as usize));
        if n == 0 || m == 0 {
            continue;
        }
        let scores: Vec<Data> =
            (0..n).map(|y| (0..m).map(|u| score(x, first + y, row + u)).collect()).collect();
        let value = if n < m { scores } else { values(scores, m) };
        let mut at = m - 1;
        for y in (0..n).rev() {
            path[first + y] = (row + at) as f64;
            if y > 0 && at > 0 && (at == y || value[y - 1][at] < value[y - 1][at - 1]) {
                at -= 1;
            }
        }
    }
    path
}

fn score(x: &[Rc<Tensor>], f: usize, u: usize) -> f64 {
    let cols = x[0].ty.shape[1];
    let term =
        |c: usize| ((x[0].data[f * cols + c] - x[1].data[u * cols + c]) * x[2].data[u * cols + c]).powi(2);
    x[3].data[u] - 0.5 * (0..cols).map(term).sum::<f64>()
}

/// The best sums of scores of paths that end in each place, where there is one and the last text row can still be reached.
fn values(mut value: Vec<Data>, m: usize) -> Vec<Data> {
    let n = value.len();
    for y in 0..n {
        for x in (m + y).saturating_sub(n)..m.min(y + 1) {
            let stays = if x == y { NONE } else { value[y - 1][x] };
            let comes = match (x, y) {
                (0, 0) => 0.0,
                (0, _) => NONE,
                _ => value[y - 1][x - 1],
            };
            value[y][x] += if stays < comes { comes } else { stays };
        }
    }
    value
}
