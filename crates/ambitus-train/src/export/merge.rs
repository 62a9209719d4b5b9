//! W + s B A: an adapter added to the weight it adapts, row by row.

use super::Parameters;
use ambitus_compile::passes::lora::{A, B};
use ambitus_families::error::RunError;
use ambitus_recipe::recipe::Lora;

/// The adapter of one weight `[Out, In]`.
pub(crate) struct Adapter {
    /// `[r, In]`
    a: Vec<f32>,
    /// `[Out, r]`
    b: Vec<f32>,
    inner: usize,
    rank: usize,
    scale: f64,
    /// A row's sums.
    sums: Vec<f64>,
}

impl Adapter {
    /// Returns the adapter of a parameter, `[In, Out]` where it is stored by columns; `None` for those that have none.
    pub fn read(
        parameters: &Parameters,
        (weight, by_columns): (&str, bool),
        lora: Option<&Lora>,
        scratch: &mut [u8],
    ) -> Result<Option<Adapter>, RunError> {
        let Some(module) = weight.strip_suffix(".weight") else { return Ok(None) };
        let (a, b) = (format!("{module}{A}"), format!("{module}{B}"));
        if parameters.model.find(&a).is_none() {
            return Ok(None);
        }
        let path = parameters.model.path().display();
        let lora = lora.ok_or_else(|| {
            RunError::Model(format!(
                "{path}: holds {a}, but the run's recipe.yaml has no `lora`; put it back"
            ))
        })?;
        let shape = |name: &str| parameters.model.get(name).map(|t| t.shape().to_vec());
        let (a_shape, b_shape, w_shape) = (shape(&a)?, shape(&b)?, shape(weight)?);
        let values = (parameters.read(&a, scratch)?, parameters.read(&b, scratch)?);
        let shapes = (a_shape, b_shape, w_shape);
        let adapter = Adapter::new(values, &shapes, lora.adapters().scale(), by_columns).ok_or_else(|| {
            let (a_shape, b_shape, w_shape) = &shapes;
            RunError::Model(format!(
                "{path}: {a} {a_shape:?} and {b} {b_shape:?} do not fit {weight} {w_shape:?}"
            ))
        });
        adapter.map(Some)
    }

    /// Returns an adapter A `[r, In]`, B `[Out, r]` of a weight `[Out, In]`, or `[In, Out]` where it is stored by columns, by the three
    /// shapes; `None` where they do not fit.
    pub fn new(
        (a, b): (Vec<f32>, Vec<f32>),
        (a_shape, b_shape, w_shape): &(Vec<usize>, Vec<usize>, Vec<usize>),
        scale: f64,
        by_columns: bool,
    ) -> Option<Adapter> {
        let ([rank, inner], [out, also_rank], [rows, cols]) = (&**a_shape, &**b_shape, &**w_shape) else {
            return None;
        };
        let [want_rows, want_cols] = if by_columns { [inner, out] } else { [out, inner] };
        if (want_rows, want_cols, rank) != (rows, cols, also_rank) {
            return None;
        }
        // W^T + s (B A)^T is W^T + s A^T B^T.
        let (a, b) = match by_columns {
            true => (transposed(&b, *rank), transposed(&a, *inner)),
            false => (a, b),
        };
        Some(Adapter { a, b, inner: *cols, rank: *rank, scale, sums: Vec::new() })
    }

    /// Adds s B A to the elements of W from `first` on, in double precision.
    pub fn add(&mut self, first: usize, piece: &mut [f32]) {
        let mut at = 0;
        while at < piece.len() {
            let (row, col) = ((first + at) / self.inner, (first + at) % self.inner);
            let n = (self.inner - col).min(piece.len() - at);
            self.sums.clear();
            self.sums.resize(n, 0.0);
            for k in 0..self.rank {
                let b = f64::from(self.b[row * self.rank + k]);
                let a = &self.a[k * self.inner + col..][..n];
                self.sums.iter_mut().zip(a).for_each(|(s, a)| *s += b * f64::from(*a));
            }
            for (w, s) in piece[at..at + n].iter_mut().zip(&self.sums) {
                *w = (f64::from(*w) + self.scale * s) as f32;
            }
            at += n;
        }
    }
}

/// Returns a matrix of so many columns, transposed.
fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| x.iter().skip(c).step_by(cols).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces that end in the middle of rows give what the formula gives.
    #[test]
    fn a_piece_may_begin_and_end_anywhere() {
        let (out, inner, rank, scale) = (5, 7, 2, 0.5);
        let value = |i: usize| ((i * 37 % 19) as f32 - 9.0) / 8.0;
        let a: Vec<f32> = (0..rank * inner).map(value).collect();
        let b: Vec<f32> = (0..out * rank).map(|i| value(i + 3)).collect();
        let w: Vec<f32> = (0..out * inner).map(|i| value(i + 11)).collect();
        let want: Vec<f32> = (0..out * inner)
            .map(|i| {
                let product: f32 =
                    (0..rank).map(|k| b[i / inner * rank + k] * a[k * inner + i % inner]).sum();
                w[i] + 0.5 * product
            })
            .collect();
        let mut adapter = Adapter { a, b, inner, rank, scale, sums: Vec::new() };
        for step in [1, 3, 7, 10, 35] {
            let mut got = w.clone();
            got.chunks_mut(step).enumerate().for_each(|(i, piece)| adapter.add(i * step, piece));
            // Eighths and their products are exact in either precision.
            assert_eq!(got, want, "{step}");
        }
    }

    /// What is added to a weight `[In, Out]` is what is added to `[Out, In]`, transposed.
    #[test]
    fn a_weight_may_lie_by_columns() {
        let (out, inner, rank) = (3, 5, 2);
        let values = |n: usize| (0..n).map(|i| (i * 37 % 19) as f32 - 9.0).collect::<Vec<f32>>();
        let added = |w: [usize; 2], by_columns| {
            let shapes = (vec![rank, inner], vec![out, rank], w.to_vec());
            let mut adapter =
                Adapter::new((values(rank * inner), values(out * rank)), &shapes, 0.5, by_columns).unwrap();
            let mut sum = vec![0.0; out * inner];
            adapter.add(0, &mut sum);
            sum
        };
        let want = transposed(&added([out, inner], false), inner);
        assert_eq!(added([inner, out], true), want);
    }
}
