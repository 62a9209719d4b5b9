//! Tensors of convolutional codecs in checkpoints, and how they become the states of the programs.
//!
//! States carry the checkpoint's module names (`encoder.block.1.block.4.weight`). Convolutions there may be weight-normalised,
//! w = g v / |v| with the norm over all axes but the first (Salimans & Kingma, arXiv 1602.07868); states hold w. Those of
//! strided and transposed convolutions are laid out as taps over blocks of rows (see [`Layout`]).

use super::{DILATIONS, TAPS, stride_pad};

/// How the elements of a checkpoint's convolution lie in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As they are.
    Same,
    /// `[O, C, 1]` as the matrix `[O, C]`.
    Matrix,
    /// A convolution of rows d apart, `[O, C, K]`, as one of neighbours, `[O, C, (K - 1) d + 1]`, with zeros between its taps.
    Dilated {
        /// d
        by: usize,
    },
    /// A convolution with a stride s, `[O, C, K]`, as one over blocks of s rows: `[O, s * C, H]`, see [`Blocks::strided`]. Tap h meets
    /// block t + h - before, channel j * C + c is row j of the block; taps that meet no weight are zero.
    Strided {
        /// s
        stride: usize,
        /// zeros before the first row
        pad: usize,
    },
    /// A transposed convolution with a stride s, `[C, O, K]`, as one that makes blocks of s rows: `[s * O, C, H]`, see
    /// [`Blocks::transposed`]. Channel r * O + o is row r of the block.
    Transposed {
        /// s
        stride: usize,
        /// rows that are left out of the result at either end
        pad: usize,
    },
}

/// A convolution over blocks of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// H: taps, each of a block.
    pub taps: usize,
    /// Blocks before its own that it reads.
    pub before: usize,
}

impl Blocks {
    /// Returns what a convolution of `taps` taps becomes.
    pub fn strided(taps: usize, stride: usize, pad: usize) -> Blocks {
        let before = pad.div_ceil(stride);
        Blocks { taps: before + (taps - 1 - pad) / stride + 1, before }
    }

    /// Returns what a transposed convolution of `taps` taps becomes.
    pub fn transposed(taps: usize, stride: usize, pad: usize) -> Blocks {
        let before = (taps - 1 - pad) / stride;
        Blocks { taps: before + pad.div_ceil(stride) + 1, before }
    }
}

/// Returns what a checkpoint may hold of a weight of that name: itself, or (g, v) as PyTorch has called them since 2.1, and before.
pub fn spellings(name: &str) -> [Vec<String>; 3] {
    let module = name.strip_suffix("weight").unwrap_or(name);
    let pair = |g, v| vec![format!("{module}{g}"), format!("{module}{v}")];
    [
        vec![name.to_owned()],
        pair("parametrizations.weight.original0", "parametrizations.weight.original1"),
        pair("weight_g", "weight_v"),
    ]
}

/// A tensor of a codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The state.
    pub name: String,
    /// Axes in the checkpoint: of v, where weight-normalised.
    pub dims: Vec<usize>,
    /// A convolution's weight, which checkpoints may hold as (g, v), see [`Tensor::spellings`].
    pub normed: bool,
    /// How it lies in the state.
    pub layout: Layout,
}

impl Tensor {
    /// Returns what a checkpoint that calls the tensor `name` may hold of it, with the axes: the tensor or, of a convolution's weight,
    /// (g, v) in either spelling.
    pub fn spellings(&self, name: &str) -> Vec<Vec<(String, Vec<usize>)>> {
        // g is one number of each row along the first axis.
        let mut norm = vec![1; self.dims.len()];
        norm[0] = self.dims[0];
        let with_axes = |names: Vec<String>| {
            let v = names.len() - 1;
            let axes = |i| if i == v { self.dims.clone() } else { norm.clone() };
            names.into_iter().enumerate().map(|(i, name)| (name, axes(i))).collect()
        };
        let spelled = spellings(name).map(with_axes);
        spelled.into_iter().take(if self.normed { 3 } else { 1 }).collect()
    }

    /// Returns the axes of the state.
    pub fn state_dims(&self) -> Vec<usize> {
        let d = &self.dims;
        match self.layout {
            // A snake's frequencies, `[1, C, 1]`.
            Layout::Same if !self.normed && d.len() == 3 => vec![d[1]],
            Layout::Same => d.clone(),
            Layout::Matrix => vec![d[0], d[1]],
            Layout::Dilated { by } => vec![d[0], d[1], (d[2] - 1) * by + 1],
            Layout::Strided { stride: s, pad } => vec![d[0], s * d[1], Blocks::strided(d[2], s, pad).taps],
            Layout::Transposed { stride: s, pad } => {
                vec![s * d[1], d[0], Blocks::transposed(d[2], s, pad).taps]
            }
        }
    }

    /// Returns the number of rows along the first axis that are folded at once: about a million values.
    pub fn rows_at_once(&self) -> usize {
        ((1 << 20) / self.row().max(1)).max(1)
    }

    /// Returns the elements of a row along the first axis.
    pub fn row(&self) -> usize {
        self.dims[1..].iter().product()
    }

    /// Makes the state's values of the checkpoint's rows along the first axis from `first` on, v (or the tensor itself) and, where
    /// weight-normalised, g; gives them in pieces: place in the state, values.
    ///
    /// # Panics
    /// When v is not whole rows, or g not one number of each.
    pub fn fold_rows(
        &self,
        first: usize,
        g: Option<&[f32]>,
        v: &mut [f32],
        mut put: impl FnMut(usize, &[f32]),
    ) {
        let row = self.row();
        let rows = v.len() / row;
        assert_eq!(v.len(), rows * row, "{}", self.name);
        if let Some(g) = g {
            assert_eq!(g.len(), rows, "{}", self.name);
            for (v, g) in v.chunks_exact_mut(row).zip(g) {
                let norm = v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
                let factor = (f64::from(*g) / norm) as f32;
                v.iter_mut().for_each(|x| *x *= factor);
            }
        }
        match self.layout {
            Layout::Same | Layout::Matrix | Layout::Dilated { by: 1 } => put(first * row, v),
            Layout::Dilated { by } => {
                let (ins, taps) = (self.dims[1], self.dims[2]);
                let wide = (taps - 1) * by + 1;
                let mut w = vec![0.0; ins * wide];
                for (o, v) in (first..).zip(v.chunks_exact(row)) {
                    for (w, v) in w.chunks_exact_mut(wide).zip(v.chunks_exact(taps)) {
                        w.iter_mut().step_by(by).zip(v).for_each(|(w, v)| *w = *v);
                    }
                    put(o * w.len(), &w);
                }
            }
            Layout::Strided { stride: s, pad } => {
                let (ins, taps) = (self.dims[1], self.dims[2]);
                let Blocks { taps: blocks, before } = Blocks::strided(taps, s, pad);
                // Row t * s - pad + k is row j of block t + h - before.
                let tap =
                    |h: usize, j: usize| (h * s + j + pad).checked_sub(before * s).filter(|k| *k < taps);
                let wide = s * ins * blocks;
                let mut w = Vec::with_capacity(wide);
                for (o, v) in (first..).zip(v.chunks_exact(row)) {
                    w.clear();
                    for (j, c) in (0..s).flat_map(|j| (0..ins).map(move |c| (j, c))) {
                        w.extend((0..blocks).map(|h| tap(h, j).map_or(0.0, |k| v[c * taps + k])));
                    }
                    put(o * wide, &w);
                }
            }
            Layout::Transposed { stride: s, pad } => {
                let (ins, outs, taps) = (self.dims[0], self.dims[1], self.dims[2]);
                let Blocks { taps: blocks, before } = Blocks::transposed(taps, s, pad);
                // Row i * s + k - pad, of input row i = t + h - before, is row r of block t.
                let tap =
                    |h: usize, r: usize| (r + pad + before * s).checked_sub(h * s).filter(|k| *k < taps);
                let mut w = Vec::with_capacity(rows * blocks);
                for (r, o) in (0..s).flat_map(|r| (0..outs).map(move |o| (r, o))) {
                    w.clear();
                    for v in v.chunks_exact(row) {
                        w.extend((0..blocks).map(|h| tap(h, r).map_or(0.0, |k| v[o * taps + k])));
                    }
                    put(((r * outs + o) * ins + first) * blocks, &w);
                }
            }
        }
    }
}

/// A list of tensors being declared.
#[derive(Debug, Default)]
pub struct Tensors(Vec<Tensor>);

impl Tensors {
    /// Returns the tensors, in the order of their declaration.
    pub fn all(self) -> Vec<Tensor> {
        self.0
    }

    /// Declares a tensor that is never weight-normalised.
    pub fn plain(&mut self, name: String, dims: Vec<usize>) {
        self.0.push(Tensor { name, dims, normed: false, layout: Layout::Same });
    }

    /// Declares a convolution's weight alone.
    pub fn weight(&mut self, module: &str, dims: [usize; 3], layout: Layout) {
        let name = format!("{module}.weight");
        self.0.push(Tensor { name, dims: dims.to_vec(), normed: true, layout });
    }

    /// Declares a weight and a bias as long as the first axis.
    pub fn conv(&mut self, module: &str, dims: [usize; 3], layout: Layout) {
        self.weight(module, dims, layout);
        self.plain(format!("{module}.bias"), vec![dims[0]]);
    }

    /// Declares a strided convolution of `[out, in]`.
    pub fn strided(&mut self, module: &str, [to, from]: [usize; 2], rate: usize) {
        let layout = Layout::Strided { stride: rate, pad: stride_pad(rate) };
        self.conv(module, [to, from, 2 * rate], layout);
    }

    /// Declares a transposed convolution of `[in, out]`, whose bias is as long as the second axis.
    pub fn transposed(&mut self, module: &str, [from, to]: [usize; 2], rate: usize) {
        self.transposed_of(module, [from, to, 2 * rate], rate, stride_pad(rate));
    }

    /// Declares a transposed convolution of `[in, out, taps]` that leaves `pad` rows out at either end.
    pub fn transposed_of(&mut self, module: &str, dims: [usize; 3], stride: usize, pad: usize) {
        self.weight(module, dims, Layout::Transposed { stride, pad });
        self.plain(format!("{module}.bias"), vec![dims[1]]);
    }

    /// Declares the frequencies of a snake.
    pub fn snake(&mut self, module: &str, width: usize) {
        self.plain(format!("{module}.alpha"), vec![1, width, 1]);
    }

    /// Declares a block's residual units, named from `first` on in the module.
    pub fn residual_units(&mut self, module: &str, first: usize, width: usize, groups: usize) {
        for i in 0..DILATIONS.len() {
            let at = format!("{module}.{}.block", first + i);
            self.snake(&format!("{at}.0"), width);
            self.conv(&format!("{at}.1"), [width, width / groups, TAPS], Layout::Same);
            self.snake(&format!("{at}.2"), width);
            self.conv(&format!("{at}.3"), [width, width, 1], Layout::Same);
        }
    }

    /// Declares codebook `i` of `[entries, dim]` with its projections from and to `latent` channels.
    pub fn codebook(&mut self, i: usize, latent: usize, [entries, dim]: [usize; 2]) {
        let at = format!("quantizer.quantizers.{i}");
        self.conv(&format!("{at}.in_proj"), [dim, latent, 1], Layout::Matrix);
        self.conv(&format!("{at}.out_proj"), [latent, dim, 1], Layout::Matrix);
        self.plain(format!("{at}.codebook.weight"), vec![entries, dim]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folds a tensor, of which `at_once` rows at a time.
    fn fold(t: &Tensor, g: Option<&[f32]>, mut v: Vec<f32>, at_once: usize) -> Vec<f32> {
        let mut state = vec![f32::NAN; t.state_dims().iter().product()];
        for (i, v) in v.chunks_mut(at_once * t.row()).enumerate() {
            let (first, rows) = (i * at_once, v.len() / t.row());
            let g = g.map(|g| &g[first..first + rows]);
            t.fold_rows(first, g, v, |at, values| state[at..at + values.len()].copy_from_slice(values));
        }
        state
    }

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0).collect()
    }

    /// sum over c, h of `w[o, c, h]` `x[t + h - before, c]`
    fn taps(w: &[f32], x: &[f32], cin: usize, blocks: Blocks) -> Vec<f32> {
        let (rows, mut y) = (x.len() / cin, Vec::new());
        for t in 0..rows {
            for w in w.chunks_exact(blocks.taps * cin) {
                let term = |c: usize, h: usize| match (t + h).checked_sub(blocks.before) {
                    Some(r) if r < rows => w[blocks.taps * c + h] * x[r * cin + c],
                    _ => 0.0,
                };
                let all = (0..cin).flat_map(|c| (0..blocks.taps).map(move |h| (c, h)));
                y.push(all.map(|(c, h)| term(c, h)).sum());
            }
        }
        y
    }

    fn assert_near(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4), "{a:?} {b:?}");
    }

    /// Taps over blocks against the formulas of PyTorch's `Conv1d` and `ConvTranspose1d`: (stride, taps, pad).
    #[test]
    fn strided_and_transposed_convolutions_are_taps_over_blocks() {
        let codecs = (2..=5).map(|s| (s, 2 * s, stride_pad(s)));
        for (s, k, pad) in codecs.chain([(2, 3, 1), (2, 5, 2), (8, 16, 4), (3, 11, 4), (4, 4, 0), (1, 3, 1)])
        {
            let (cin, cout, blocks) = (3, 2, 4);
            let v = numbers(cout * cin * k);
            let x = numbers(blocks * s * cin);
            let t = Tensor {
                name: String::new(),
                dims: vec![cout, cin, k],
                normed: false,
                layout: Layout::Strided { stride: s, pad },
            };
            let mut y = vec![0.0; blocks * cout];
            for (t, o, c, j) in all(blocks, cout, cin, k) {
                if let Some(r) = (t * s + j).checked_sub(pad).filter(|r| *r < blocks * s) {
                    y[t * cout + o] += v[(o * cin + c) * k + j] * x[r * cin + c];
                }
            }
            assert_near(&taps(&fold(&t, None, v, 1), &x, s * cin, Blocks::strided(k, s, pad)), &y);

            let v = numbers(cin * cout * k);
            let x = numbers(blocks * cin);
            let t = Tensor { dims: vec![cin, cout, k], layout: Layout::Transposed { stride: s, pad }, ..t };
            let mut y = vec![0.0; blocks * s * cout];
            for (i, o, c, j) in all(blocks, cout, cin, k) {
                if let Some(r) = (i * s + j).checked_sub(pad).filter(|r| *r < blocks * s) {
                    y[r * cout + o] += v[(c * cout + o) * k + j] * x[i * cin + c];
                }
            }
            assert_near(&taps(&fold(&t, None, v, 2), &x, cin, Blocks::transposed(k, s, pad)), &y);
        }
    }

    fn all(a: usize, b: usize, c: usize, d: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        (0..a * b * c * d).map(move |i| (i / (b * c * d), i / (c * d) % b, i / d % c, i % d))
    }

    #[test]
    fn weight_norm_is_folded() {
        let t = Tensor { name: "a.weight".into(), dims: vec![2, 1, 2], normed: true, layout: Layout::Same };
        assert_eq!(fold(&t, Some(&[5.0, 0.0]), vec![3.0, 4.0, 1.0, 1.0], 2), [3.0, 4.0, 0.0, 0.0]);
        let (same, norm) = (vec![2, 1, 2], vec![2, 1, 1]);
        let spelled = |g: &str, v: &str| vec![(g.to_owned(), norm.clone()), (v.to_owned(), same.clone())];
        let want = [
            vec![("b.weight".to_owned(), same.clone())],
            spelled("b.parametrizations.weight.original0", "b.parametrizations.weight.original1"),
            spelled("b.weight_g", "b.weight_v"),
        ];
        assert_eq!(t.spellings("b.weight"), want);
    }
}
