//! Names of SNAC's tensors in checkpoints, and how they become the states of the programs.
//!
//! States carry the checkpoint's module names (`encoder.block.1.block.4.weight`). Convolutions there are weight-normalised,
//! w = g v / |v| with the norm over all axes but the first (Salimans & Kingma, arXiv 1602.07868); states hold w. Those of
//! strided and transposed convolutions are laid out as taps over blocks of rows (see [`Layout`]).

use super::config::{Config, DILATIONS, TAPS, stride_pad};

/// How the elements of a checkpoint's convolution lie in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As they are.
    Same,
    /// `[O, C, 1]` as the matrix `[O, C]`.
    Matrix,
    /// A convolution of 2s taps and stride s, `[O, C, 2s]`, as one of three taps over blocks of s rows: `[O, s * C, 3]`.
    /// Tap h meets block t + h - 1, channel j * C + c is row j of the block; a third of the taps are zero.
    Strided(usize),
    /// A transposed convolution of 2s taps and stride s, `[C, O, 2s]`, as one of three taps that makes blocks of s rows:
    /// `[s * O, C, 3]`. Channel r * O + o is row r of the block.
    Transposed(usize),
}

/// A tensor of the codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The state.
    pub name: String,
    /// Axes in the checkpoint: of v, where weight-normalised.
    pub dims: Vec<usize>,
    /// The checkpoint holds it as (g, v), under one of [`Tensor::NORMED`].
    pub normed: bool,
    /// How it lies in the state.
    pub layout: Layout,
}

impl Tensor {
    /// What stands in place of `weight` for (g, v): what PyTorch writes since 2.1, and before.
    pub const NORMED: [(&'static str, &'static str); 2] = [
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
        ("weight_g", "weight_v"),
    ];

    /// Returns the names of (g, v) in one of the two spellings.
    pub fn normed_names(&self, (g, v): (&str, &str)) -> [String; 2] {
        let module = self.name.strip_suffix("weight").unwrap_or(&self.name);
        [format!("{module}{g}"), format!("{module}{v}")]
    }

    /// Returns the axes of g: one number per element of the first axis.
    pub fn norm_dims(&self) -> Vec<usize> {
        let mut dims = vec![1; self.dims.len()];
        dims[0] = self.dims[0];
        dims
    }

    /// Returns the axes of the state.
    pub fn state_dims(&self) -> Vec<usize> {
        let d = &self.dims;
        match self.layout {
            // A snake's frequencies, `[1, C, 1]`.
            Layout::Same if !self.normed && d.len() == 3 => vec![d[1]],
            Layout::Same => d.clone(),
            Layout::Matrix => vec![d[0], d[1]],
            Layout::Strided(s) => vec![d[0], s * d[1], 3],
            Layout::Transposed(s) => vec![s * d[1], d[0], 3],
        }
    }

    /// Returns the state's values from the checkpoint's: v (or the tensor itself) and, where weight-normalised, g.
    ///
    /// # Panics
    /// When lengths are not those of [`Tensor::dims`] and [`Tensor::norm_dims`].
    pub fn fold(&self, g: Option<&[f32]>, mut v: Vec<f32>) -> Vec<f32> {
        assert_eq!(v.len(), self.dims.iter().product::<usize>(), "{}", self.name);
        if let Some(g) = g {
            assert_eq!(g.len(), self.dims[0], "{}", self.name);
            for (v, g) in v.chunks_exact_mut(self.dims[1..].iter().product()).zip(g) {
                let norm = v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
                let factor = (f64::from(*g) / norm) as f32;
                v.iter_mut().for_each(|x| *x *= factor);
            }
        }
        match self.layout {
            Layout::Same | Layout::Matrix => v,
            Layout::Strided(s) => {
                let (outs, ins) = (self.dims[0], self.dims[1]);
                // Row t * s - pad + k is row j of block t + h - 1.
                let pad = stride_pad(s);
                let tap = |h: usize, j: usize| (h * s + j + pad).checked_sub(s).filter(|k| *k < 2 * s);
                let mut w = Vec::with_capacity(outs * s * ins * 3);
                for v in v.chunks_exact(ins * 2 * s) {
                    for (j, c) in (0..s).flat_map(|j| (0..ins).map(move |c| (j, c))) {
                        w.extend((0..3).map(|h| tap(h, j).map_or(0.0, |k| v[c * 2 * s + k])));
                    }
                }
                w
            }
            Layout::Transposed(s) => {
                let (ins, outs) = (self.dims[0], self.dims[1]);
                // Row i * s + k - pad, of input row i = t + h - 1, is row r of block t.
                let pad = stride_pad(s);
                let tap = |h: usize, r: usize| (r + pad + s).checked_sub(h * s).filter(|k| *k < 2 * s);
                let mut w = Vec::with_capacity(s * outs * ins * 3);
                for (r, o) in (0..s).flat_map(|r| (0..outs).map(move |o| (r, o))) {
                    for v in v.chunks_exact(outs * 2 * s) {
                        w.extend((0..3).map(|h| tap(h, r).map_or(0.0, |k| v[o * 2 * s + k])));
                    }
                }
                w
            }
        }
    }
}

/// Returns every tensor of a codec, in the package's order of modules.
pub fn tensors(cfg: &Config) -> Vec<Tensor> {
    let mut all = List(Vec::new());
    all.conv("encoder.block.0", [cfg.encoder_dim, 1, TAPS], Layout::Same);
    let blocks = cfg.encoder_rates.len();
    for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
        let (at, width) = (format!("encoder.block.{}.block", i + 1), cfg.encoder_width(i));
        (0..DILATIONS.len()).for_each(|j| all.residual_unit(&format!("{at}.{j}"), width, cfg.groups(width)));
        all.snake(&format!("{at}.3"), width);
        all.conv(&format!("{at}.4"), [cfg.encoder_width(i + 1), width, 2 * rate], Layout::Strided(rate));
    }
    let latent = cfg.latent_dim;
    let groups = cfg.groups(latent);
    all.conv(&format!("encoder.block.{}", blocks + 1), [latent, latent / groups, TAPS], Layout::Same);
    for i in 0..cfg.vq_strides.len() {
        let at = format!("quantizer.quantizers.{i}");
        all.conv(&format!("{at}.in_proj"), [cfg.codebook_dim, latent, 1], Layout::Matrix);
        all.conv(&format!("{at}.out_proj"), [latent, cfg.codebook_dim, 1], Layout::Matrix);
        all.plain(format!("{at}.codebook.weight"), vec![cfg.codebook_size, cfg.codebook_dim]);
    }
    let first = first_block(cfg);
    if cfg.depthwise {
        all.conv("decoder.model.0", [latent, 1, TAPS], Layout::Same);
        all.conv("decoder.model.1", [cfg.decoder_dim, latent, 1], Layout::Same);
    } else {
        all.conv("decoder.model.0", [cfg.decoder_dim, latent, TAPS], Layout::Same);
    }
    for (i, &rate) in cfg.decoder_rates.iter().enumerate() {
        let (at, width) = (format!("decoder.model.{}.block", first + i), cfg.decoder_width(i + 1));
        all.snake(&format!("{at}.0"), cfg.decoder_width(i));
        all.conv(&format!("{at}.1"), [cfg.decoder_width(i), width, 2 * rate], Layout::Transposed(rate));
        // The bias of a transposed convolution is as long as its second axis.
        if let Some(bias) = all.0.last_mut() {
            bias.dims = vec![width];
        }
        if cfg.noise {
            all.weight(&format!("{at}.2.linear"), [width, width, 1], Layout::Matrix);
        }
        for j in 0..DILATIONS.len() {
            let at = format!("{at}.{}", first_unit(cfg) + j);
            all.residual_unit(&at, width, cfg.groups(width));
        }
    }
    let (last, width) = (first + cfg.decoder_rates.len(), cfg.decoder_width(cfg.decoder_rates.len()));
    all.snake(&format!("decoder.model.{last}"), width);
    all.conv(&format!("decoder.model.{}", last + 1), [1, width, TAPS], Layout::Same);
    all.0
}

/// Returns the number of the decoder's first block among its modules.
pub fn first_block(cfg: &Config) -> usize {
    if cfg.depthwise { 2 } else { 1 }
}

/// Returns the number of the first residual unit among a decoder block's modules.
pub fn first_unit(cfg: &Config) -> usize {
    if cfg.noise { 3 } else { 2 }
}

struct List(Vec<Tensor>);

impl List {
    fn plain(&mut self, name: String, dims: Vec<usize>) {
        self.0.push(Tensor { name, dims, normed: false, layout: Layout::Same });
    }

    fn weight(&mut self, module: &str, dims: [usize; 3], layout: Layout) {
        let name = format!("{module}.weight");
        self.0.push(Tensor { name, dims: dims.to_vec(), normed: true, layout });
    }

    /// Declares a weight and, last, a bias as long as the first axis.
    fn conv(&mut self, module: &str, dims: [usize; 3], layout: Layout) {
        self.weight(module, dims, layout);
        self.plain(format!("{module}.bias"), vec![dims[0]]);
    }

    fn snake(&mut self, module: &str, width: usize) {
        self.plain(format!("{module}.alpha"), vec![1, width, 1]);
    }

    fn residual_unit(&mut self, at: &str, width: usize, groups: usize) {
        self.snake(&format!("{at}.block.0"), width);
        self.conv(&format!("{at}.block.1"), [width, width / groups, TAPS], Layout::Same);
        self.snake(&format!("{at}.block.2"), width);
        self.conv(&format!("{at}.block.3"), [width, width, 1], Layout::Same);
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{File, SAMPLE_RATE};
    use super::super::{model, rows};
    use super::*;
    use ambitus_ir::{Session, StateDecl};
    use std::collections::BTreeSet;

    fn config(depthwise: bool, noise: bool) -> Config {
        let file = File {
            sampling_rate: SAMPLE_RATE,
            encoder_dim: 3,
            encoder_rates: vec![2, 3],
            decoder_dim: 13,
            decoder_rates: vec![3, 2],
            attn_window_size: None,
            codebook_size: 11,
            codebook_dim: 4,
            vq_strides: vec![4, 2, 1],
            noise,
            depthwise,
            ..File::default()
        };
        file.config().unwrap()
    }

    /// Every state of the programs is a tensor of the list with the shape that it is laid out in, and every tensor is used.
    #[test]
    fn states_are_the_tensors() {
        for (depthwise, noise) in [(true, true), (true, false), (false, true), (false, false)] {
            let cfg = config(depthwise, noise);
            let samples = rows::PHASES * cfg.frame();
            let mut s = Session::default();
            for p in [model::encode(&mut s, &cfg, samples), model::decode(&mut s, &cfg, samples, true)] {
                ambitus_ir::verify::verify(&s, &p).unwrap();
                let tables = rows::tables(&p);
                assert!(tables.iter().all(|t| samples.is_multiple_of(t.stride * t.dilation)), "{tables:?}");
            }
            let state = |s: &StateDecl| (s.name.clone(), s.ty.shape.to_vec());
            let have: BTreeSet<_> = s.states.iter().map(state).collect();
            let want: BTreeSet<_> = tensors(&cfg).iter().map(|t| (t.name.clone(), t.state_dims())).collect();
            assert_eq!(have, want);
        }
    }

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0).collect()
    }

    /// sum over c, h of `w[o, c, h]` `x[t + h - 1, c]`
    fn three_taps(w: &[f32], x: &[f32], cin: usize) -> Vec<f32> {
        let (rows, mut y) = (x.len() / cin, Vec::new());
        for t in 0..rows {
            for w in w.chunks_exact(3 * cin) {
                let term = |c: usize, h: usize| match (t + h).checked_sub(1) {
                    Some(r) if r < rows => w[3 * c + h] * x[r * cin + c],
                    _ => 0.0,
                };
                y.push((0..cin).flat_map(|c| (0..3).map(move |h| (c, h))).map(|(c, h)| term(c, h)).sum());
            }
        }
        y
    }

    fn assert_near(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4), "{a:?} {b:?}");
    }

    /// The three taps over blocks against the formulas of PyTorch's `Conv1d` and `ConvTranspose1d`.
    #[test]
    fn strided_and_transposed_convolutions_are_three_taps_over_blocks() {
        for s in 2..=5 {
            let (cin, cout, blocks) = (3, 2, 4);
            let pad = stride_pad(s);
            let v = numbers(cout * cin * 2 * s);
            let x = numbers(blocks * s * cin);
            let t = Tensor {
                name: String::new(),
                dims: vec![cout, cin, 2 * s],
                normed: false,
                layout: Layout::Strided(s),
            };
            let mut y = vec![0.0; blocks * cout];
            for (t, o, c, k) in all(blocks, cout, cin, 2 * s) {
                if let Some(r) = (t * s + k).checked_sub(pad).filter(|r| *r < blocks * s) {
                    y[t * cout + o] += v[(o * cin + c) * 2 * s + k] * x[r * cin + c];
                }
            }
            assert_near(&three_taps(&t.fold(None, v), &x, s * cin), &y);

            let v = numbers(cin * cout * 2 * s);
            let x = numbers(blocks * cin);
            let t = Tensor { dims: vec![cin, cout, 2 * s], layout: Layout::Transposed(s), ..t };
            let mut y = vec![0.0; blocks * s * cout];
            for (i, o, c, k) in all(blocks, cout, cin, 2 * s) {
                if let Some(r) = (i * s + k).checked_sub(pad).filter(|r| *r < blocks * s) {
                    y[r * cout + o] += v[(c * cout + o) * 2 * s + k] * x[i * cin + c];
                }
            }
            assert_near(&three_taps(&t.fold(None, v), &x, cin), &y);
        }
    }

    fn all(a: usize, b: usize, c: usize, d: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        (0..a * b * c * d).map(move |i| (i / (b * c * d), i / (c * d) % b, i / d % c, i % d))
    }

    #[test]
    fn weight_norm_is_folded() {
        let t = Tensor { name: "a.weight".into(), dims: vec![2, 1, 2], normed: true, layout: Layout::Matrix };
        assert_eq!(t.fold(Some(&[5.0, 0.0]), vec![3.0, 4.0, 1.0, 1.0]), [3.0, 4.0, 0.0, 0.0]);
        let old = t.normed_names(Tensor::NORMED[1]);
        assert_eq!((old, t.norm_dims()), (["a.weight_g".to_owned(), "a.weight_v".to_owned()], vec![2, 1, 1]));
    }
}
