//! The codec's formulas, written out in f64 for a sound in one piece, in PyTorch's layout: channels of rows.

use super::made::folded;
use ambitus_models::encodec::config::{Config, Padding};
use ambitus_models::encodec::weights::{codebook, tensors};
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

    /// Puts rows at the ends, as `_pad1d` of transformers.
    fn padded(&self, x: &[f64], left: usize, right: usize) -> Vec<f64> {
        let mut x = x.to_vec();
        let beyond = match self.cfg.padding {
            Padding::Zeros => None,
            Padding::Reflect => Some((left.max(right) + 1).saturating_sub(x.len())),
        };
        let Some(short) = beyond else {
            return [vec![0.0; left], x, vec![0.0; right]].concat();
        };
        x.resize(x.len() + short, 0.0);
        let last = x.len() - 1;
        let start = (1..=left).rev().map(|i| x[i]);
        let end = (1..=right).map(|i| x[last - i]);
        let mut all: Vec<f64> = start.chain(x.iter().copied()).chain(end).collect();
        all.truncate(all.len() - short);
        all
    }

    /// `EncodecConv1d`.
    fn conv(&self, at: &str, x: &Rows, stride: usize, dilation: usize) -> Rows {
        let (dims, w) = self.get(&format!("{at}.conv.weight"));
        let (_, bias) = self.get(&format!("{at}.conv.bias"));
        let (outs, ins, taps) = (dims[0], dims[1], dims[2]);
        let total = (taps - 1) * dilation + 1 - stride;
        let extra = (stride - x[0].len() % stride) % stride;
        let right = if self.cfg.causal { 0 } else { total / 2 };
        let x: Rows = x.iter().map(|x| self.padded(x, total - right, right + extra)).collect();
        let rows = (x[0].len() - (taps - 1) * dilation - 1) / stride + 1;
        let one = |o: usize, t: usize| {
            let all = (0..ins).flat_map(|c| (0..taps).map(move |k| (c, k)));
            bias[o]
                + all.map(|(c, k)| w[(o * ins + c) * taps + k] * x[c][t * stride + k * dilation]).sum::<f64>()
        };
        (0..outs).map(|o| (0..rows).map(|t| one(o, t)).collect()).collect()
    }

    /// `EncodecConvTranspose1d`: `x[c][i]` `w[c][o][k]` goes to `y[o][i stride + k]`, of which both ends are cut.
    fn transposed(&self, at: &str, x: &Rows, stride: usize) -> Rows {
        let (dims, w) = self.get(&format!("{at}.conv.weight"));
        let (_, bias) = self.get(&format!("{at}.conv.bias"));
        let (outs, taps) = (dims[1], dims[2]);
        let mut y: Rows = bias.iter().map(|b| vec![*b; (x[0].len() - 1) * stride + taps]).collect();
        for (c, row) in x.iter().enumerate() {
            for (i, x) in row.iter().enumerate() {
                for (o, k) in (0..outs).flat_map(|o| (0..taps).map(move |k| (o, k))) {
                    y[o][i * stride + k] += x * w[(c * outs + o) * taps + k];
                }
            }
        }
        let total = (taps - stride) as f64;
        let right =
            if self.cfg.causal { (total * self.cfg.trim_right).ceil() } else { (total / 2.0).floor() };
        let (left, right) = (total as usize - right as usize, right as usize);
        y.into_iter().map(|y| y[left..y.len() - right].to_vec()).collect()
    }

    fn units(&self, side: &str, at: &mut usize, mut x: Rows) -> Rows {
        for i in 0..self.cfg.residual_layers {
            let unit = format!("{side}.layers.{at}");
            let h =
                self.conv(&format!("{unit}.block.1"), &elu(&x), 1, self.cfg.dilation_growth.pow(i as u32));
            let h = self.conv(&format!("{unit}.block.3"), &elu(&h), 1, 1);
            if self.cfg.shortcut {
                x = self.conv(&format!("{unit}.shortcut"), &x, 1, 1);
            }
            x = sum(x, &h);
            *at += 1;
        }
        x
    }

    fn lstm(&self, side: &str, at: &mut usize, x: Rows) -> Rows {
        let (n, mut y) = (x.len(), x.clone());
        for layer in 0..self.cfg.lstm_layers {
            let get = |leaf: &str| self.get(&format!("{side}.layers.{at}.lstm.{leaf}_l{layer}")).1;
            let (w_x, w_h, b_x, b_h) = (get("weight_ih"), get("weight_hh"), get("bias_ih"), get("bias_hh"));
            let (mut h, mut c) = (vec![0.0; n], vec![0.0; n]);
            let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
            for t in 0..y[0].len() {
                let gate = |row: usize| -> f64 {
                    let dot = |k: usize| w_x[row * n + k] * y[k][t] + w_h[row * n + k] * h[k];
                    b_x[row] + b_h[row] + (0..n).map(dot).sum::<f64>()
                };
                let z: Vec<f64> = (0..4 * n).map(gate).collect();
                for k in 0..n {
                    c[k] = logistic(z[n + k]) * c[k] + logistic(z[k]) * z[2 * n + k].tanh();
                    h[k] = logistic(z[3 * n + k]) * c[k].tanh();
                }
                y.iter_mut().zip(&h).for_each(|(y, h)| y[t] = *h);
            }
        }
        if self.cfg.lstm_layers == 0 {
            return x;
        }
        *at += 1;
        sum(y, &x)
    }

    pub fn encode(&self, x: &[f32]) -> Vec<Vec<u32>> {
        let x = vec![x.iter().map(|x| f64::from(*x)).collect()];
        let mut x = self.conv("encoder.layers.0", &x, 1, 1);
        let mut at = 1;
        for s in self.cfg.ratios.iter().rev() {
            x = self.units("encoder", &mut at, x);
            x = self.conv(&format!("encoder.layers.{}", at + 1), &elu(&x), *s, 1);
            at += 2;
        }
        x = self.lstm("encoder", &mut at, x);
        let mut left = self.conv(&format!("encoder.layers.{}", at + 1), &elu(&x), 1, 1);
        let mut codes = Vec::new();
        for q in 0..self.cfg.codebooks {
            let frame = |t: usize| self.nearest(q, &left.iter().map(|x| x[t]).collect::<Vec<_>>());
            let book: Vec<u32> = (0..left[0].len()).map(frame).collect();
            let known = self.entries(q, &book);
            for (left, known) in left.iter_mut().zip(known) {
                left.iter_mut().zip(known).for_each(|(left, known)| *left -= known);
            }
            codes.push(book);
        }
        codes
    }

    /// Returns the entry with the least squared distance, the first of several.
    fn nearest(&self, q: usize, x: &[f64]) -> u32 {
        let (dims, table) = self.get(&codebook(q));
        let far = |entry: &[f64]| entry.iter().zip(x).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        let mut best = (0, f64::INFINITY);
        for (i, entry) in table.chunks_exact(dims[1]).enumerate() {
            if far(entry) < best.1 {
                best = (i as u32, far(entry));
            }
        }
        best.0
    }

    fn entries(&self, q: usize, codes: &[u32]) -> Rows {
        let (dims, table) = self.get(&codebook(q));
        let channel = |c: usize| codes.iter().map(|code| table[*code as usize * dims[1] + c]).collect();
        (0..dims[1]).map(channel).collect()
    }

    pub fn decode(&self, codes: &[Vec<u32>]) -> Vec<f64> {
        let parts = codes.iter().enumerate().map(|(q, codes)| self.entries(q, codes));
        let x = parts.reduce(|a, b| sum(a, &b)).unwrap();
        let mut x = self.conv("decoder.layers.0", &x, 1, 1);
        let mut at = 1;
        x = self.lstm("decoder", &mut at, x);
        for s in &self.cfg.ratios {
            x = self.transposed(&format!("decoder.layers.{}", at + 1), &elu(&x), *s);
            at += 2;
            x = self.units("decoder", &mut at, x);
        }
        self.conv(&format!("decoder.layers.{}", at + 1), &elu(&x), 1, 1).swap_remove(0)
    }
}

fn sum(mut x: Rows, y: &Rows) -> Rows {
    for (x, y) in x.iter_mut().zip(y) {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }
    x
}

fn elu(x: &Rows) -> Rows {
    x.iter().map(|x| x.iter().map(|x| if *x > 0.0 { *x } else { x.exp_m1() }).collect()).collect()
}
