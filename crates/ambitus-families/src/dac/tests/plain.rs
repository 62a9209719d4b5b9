//! The codec's formulas, written out in f64 for a sound in one piece, in PyTorch's layout: channels of rows.

use super::made::folded;
use ambitus_models::dac::config::Config;
use ambitus_models::dac::weights::tensors;
use std::collections::BTreeMap;

/// `[C][T]`
type Rows = Vec<Vec<f64>>;

pub struct Codec {
    cfg: Config,
    /// Axes and values, by state.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Codec {
    pub fn new(cfg: &Config) -> Codec {
        let tensor = |t: &ambitus_models::common::codec::weights::Tensor| {
            (t.name.clone(), (t.dims.clone(), folded(t).into_iter().map(f64::from).collect()))
        };
        Codec { cfg: cfg.clone(), tensors: tensors(cfg).iter().map(tensor).collect() }
    }

    fn get(&self, name: &str) -> (&[usize], &[f64]) {
        let (dims, values) = &self.tensors[name];
        (dims, values)
    }

    /// `Conv1d`: `y[o][t]` = b + sum of `w[o][c][k]` `x[c][t stride - pad + k dilation]`.
    fn conv(&self, at: &str, x: &Rows, stride: usize, pad: usize, dilation: usize) -> Rows {
        let (dims, w) = self.get(&format!("{at}.weight"));
        let (_, bias) = self.get(&format!("{at}.bias"));
        let (outs, ins, taps) = (dims[0], dims[1], dims[2]);
        let len = x[0].len() + 2 * pad;
        let rows = (len - dilation * (taps - 1) - 1) / stride + 1;
        let at = |o: usize, t: usize| {
            let mut sum = bias[o];
            for (c, k) in (0..ins).flat_map(|c| (0..taps).map(move |k| (c, k))) {
                let from = (t * stride + k * dilation).checked_sub(pad);
                sum += w[(o * ins + c) * taps + k] * from.and_then(|i| x[c].get(i)).unwrap_or(&0.0);
            }
            sum
        };
        (0..outs).map(|o| (0..rows).map(|t| at(o, t)).collect()).collect()
    }

    /// `ConvTranspose1d`: `x[c][i]` `w[c][o][k]` goes to `y[o][i stride + k - pad]`.
    fn transposed(&self, at: &str, x: &Rows, stride: usize) -> Rows {
        let (dims, w) = self.get(&format!("{at}.weight"));
        let (_, bias) = self.get(&format!("{at}.bias"));
        let (ins, outs, taps, pad) = (dims[0], dims[1], dims[2], stride.div_ceil(2));
        let rows = (x[0].len() - 1) * stride + taps - 2 * pad;
        let mut y: Rows = bias.iter().map(|b| vec![*b; rows]).collect();
        for (c, row) in x.iter().enumerate().take(ins) {
            for (i, x) in row.iter().enumerate() {
                for (o, k) in (0..outs).flat_map(|o| (0..taps).map(move |k| (o, k))) {
                    let to = (i * stride + k).checked_sub(pad);
                    if let Some(y) = to.and_then(|t| y[o].get_mut(t)) {
                        *y += x * w[(c * outs + o) * taps + k];
                    }
                }
            }
        }
        y
    }

    fn snake(&self, at: &str, x: &Rows) -> Rows {
        let (_, alpha) = self.get(&format!("{at}.alpha"));
        let one = |x: f64, a: f64| x + (a * x).sin().powi(2) / (a + 1e-9);
        x.iter().zip(alpha).map(|(x, a)| x.iter().map(|x| one(*x, *a)).collect()).collect()
    }

    fn units(&self, at: &str, first: usize, mut x: Rows) -> Rows {
        for (i, d) in [1, 3, 9].into_iter().enumerate() {
            let at = format!("{at}.{}.block", first + i);
            let h = self.snake(&format!("{at}.0"), &x);
            let h = self.conv(&format!("{at}.1"), &h, 1, 3 * d, d);
            let h = self.snake(&format!("{at}.2"), &h);
            let h = self.conv(&format!("{at}.3"), &h, 1, 0, 1);
            for (x, h) in x.iter_mut().zip(&h) {
                x.iter_mut().zip(h).for_each(|(x, h)| *x += h);
            }
        }
        x
    }

    pub fn encode(&self, x: &[f32]) -> Vec<Vec<u32>> {
        let books = self.cfg.vq_strides.len();
        if x.len() < self.cfg.hop() - self.cfg.tail() {
            return vec![Vec::new(); books];
        }
        let x = vec![x.iter().map(|x| f64::from(*x)).collect()];
        let mut x = self.conv("encoder.block.0", &x, 1, 3, 1);
        let blocks = self.cfg.encoder_rates.len();
        for (i, s) in self.cfg.encoder_rates.iter().enumerate() {
            let at = format!("encoder.block.{}.block", i + 1);
            x = self.units(&at, 0, x);
            x = self.snake(&format!("{at}.3"), &x);
            x = self.conv(&format!("{at}.4"), &x, *s, s.div_ceil(2), 1);
        }
        x = self.snake(&format!("encoder.block.{}", blocks + 1), &x);
        let mut left = self.conv(&format!("encoder.block.{}", blocks + 2), &x, 1, 1, 1);
        let mut codes = Vec::new();
        for q in 0..books {
            let e = self.conv(&format!("quantizer.quantizers.{q}.in_proj"), &left, 1, 0, 1);
            let frame = |t: usize| self.nearest(q, &e.iter().map(|e| e[t]).collect::<Vec<_>>());
            let book: Vec<u32> = (0..e[0].len()).map(frame).collect();
            for (left, known) in left.iter_mut().zip(self.entries(q, &book)) {
                left.iter_mut().zip(known).for_each(|(left, known)| *left -= known);
            }
            codes.push(book);
        }
        codes
    }

    /// Returns the entry with the largest cosine, the first of several.
    fn nearest(&self, q: usize, e: &[f64]) -> u32 {
        let (dims, table) = self.get(&format!("quantizer.quantizers.{q}.codebook.weight"));
        let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let cosine = |entry: &[f64]| {
            entry.iter().zip(e).map(|(a, b)| a * b).sum::<f64>() / (length(entry) * length(e))
        };
        let mut best = (0, f64::NEG_INFINITY);
        for (i, entry) in table.chunks_exact(dims[1]).enumerate() {
            if cosine(entry) > best.1 {
                best = (i as u32, cosine(entry));
            }
        }
        best.0
    }

    /// Returns what codes of a codebook stand for.
    fn entries(&self, q: usize, codes: &[u32]) -> Rows {
        let (dims, table) = self.get(&format!("quantizer.quantizers.{q}.codebook.weight"));
        let channel = |c: usize| codes.iter().map(|code| table[*code as usize * dims[1] + c]).collect();
        let rows: Rows = (0..dims[1]).map(channel).collect();
        self.conv(&format!("quantizer.quantizers.{q}.out_proj"), &rows, 1, 0, 1)
    }

    pub fn decode(&self, codes: &[Vec<u32>]) -> Vec<f64> {
        if codes[0].is_empty() {
            return Vec::new();
        }
        let mut x = self.entries(0, &codes[0]);
        for (q, codes) in codes.iter().enumerate().skip(1) {
            for (x, known) in x.iter_mut().zip(self.entries(q, codes)) {
                x.iter_mut().zip(known).for_each(|(x, known)| *x += known);
            }
        }
        let mut x = self.conv("decoder.model.0", &x, 1, 3, 1);
        let blocks = self.cfg.decoder_rates.len();
        for (i, s) in self.cfg.decoder_rates.iter().enumerate() {
            let at = format!("decoder.model.{}.block", i + 1);
            x = self.snake(&format!("{at}.0"), &x);
            x = self.transposed(&format!("{at}.1"), &x, *s);
            x = self.units(&at, 2, x);
        }
        x = self.snake(&format!("decoder.model.{}", blocks + 1), &x);
        let y = self.conv(&format!("decoder.model.{}", blocks + 2), &x, 1, 3, 1);
        y[0].iter().map(|y| y.tanh()).collect()
    }
}
