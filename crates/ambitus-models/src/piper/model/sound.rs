//! Slices of latents to samples, and what the discriminators and the mel loss make of samples.

use super::layers::{Runs, dilated, normed, normed_flat, strided, times, transposed};
use crate::common::codec::layers::leaky;
use crate::common::pointwise;
use crate::hifigan::config::Unit;
use crate::piper::config::{Config, LAST_SLOPE, PERIODS, SLOPE, TAPS};
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::{Builder, TensorType, ValueId};

/// Returns the samples `[R, 1]` of latents `[F, inter]` (HiFi-GAN, arXiv 2010.05646): of slices of S clips, or of a window; of a voice
/// `[S, V]`.
pub fn generate(
    b: &mut Builder<'_>,
    cfg: &Config,
    mut runs: Runs,
    x: ValueId,
    voice: Option<ValueId>,
) -> ValueId {
    b.scope("dec", |b| {
        let segs = runs.table(b);
        let mut x = super::layers::conv(b, "conv_pre", x, [cfg.width, TAPS], TAPS / 2, segs);
        if let Some(voice) = voice {
            let by = pointwise(b, "cond", voice, cfg.width);
            let by = b.segment_broadcast(by, segs, runs.rows());
            x = b.add(x, by);
        }
        for (i, up) in cfg.ups.iter().enumerate() {
            x = leaky(b, x, SLOPE);
            let shape = [cfg.width_of(i + 1), up.taps];
            (runs, x) = transposed(b, &format!("ups.{i}"), x, shape, up.rate, runs);
            x = blocks(b, cfg, i, x, runs);
        }
        let x = leaky(b, x, LAST_SLOPE);
        let w = b.scope("conv_post", |b| b.parameter("weight", &[1, cfg.width_of(cfg.ups.len()), TAPS]));
        let none = b.fill(TensorType::f32(&[1]), 0.0);
        let segs = runs.table(b);
        let y = b.conv1d(x, w, none, segs, 1, TAPS / 2);
        b.unary(UnaryKind::Tanh, y)
    })
}

/// Returns the mean of a step's residual blocks of x.
fn blocks(b: &mut Builder<'_>, cfg: &Config, step: usize, x: ValueId, runs: Runs) -> ValueId {
    let (count, mut sum) = (cfg.blocks.len(), None);
    for (j, block) in cfg.blocks.iter().enumerate() {
        let y = b.block("resblocks", step * count + j, |b| {
            let mut x = x;
            for (k, &dilation) in block.dilations.iter().enumerate() {
                let (first, second) = match cfg.unit {
                    Unit::Double => (format!("convs1.{k}"), Some(format!("convs2.{k}"))),
                    Unit::Single => (format!("convs.{k}"), None),
                };
                let h = leaky(b, x, SLOPE);
                let mut h = dilated(b, &first, h, block.taps, dilation, runs);
                if let Some(second) = second {
                    h = leaky(b, h, SLOPE);
                    h = dilated(b, &second, h, block.taps, 1, runs);
                }
                x = b.add(h, x);
            }
            x
        });
        sum = Some(sum.map_or(y, |sum| b.add(sum, y)));
    }
    times(b, sum.unwrap_or(x), 1.0 / count as f32)
}

/// Returns what discriminator i makes of slices of samples `[R, 1]`: layer by layer, the last its verdict, each `[R', C]`. Rows of one slice are
/// neighbours.
pub fn judge(b: &mut Builder<'_>, cfg: &Config, i: usize, runs: Runs, x: ValueId) -> Vec<ValueId> {
    b.block("discriminators", i, |b| {
        let (mut runs, mut x) = match i.checked_sub(1) {
            None => (runs, x),
            Some(k) => folded(b, PERIODS[k], runs, x),
        };
        let (mut maps, last) = (Vec::new(), cfg.judges[i].len() - 1);
        for (k, layer) in cfg.judges[i].iter().enumerate() {
            let scope = if k == last { "conv_post".to_owned() } else { format!("convs.{k}") };
            let inner = b.dim(x, 1) / layer.groups;
            let params = b.scope(&scope, |b| {
                let dims = [layer.out, inner, layer.taps];
                let w = if i == 0 { normed(b, dims) } else { normed_flat(b, dims) };
                [w, b.parameter("bias", &[layer.out])]
            });
            (runs, x) = strided(b, x, params, layer.groups, layer.stride, runs);
            if k < last {
                x = leaky(b, x, SLOPE);
            }
            maps.push(x);
        }
        maps
    })
}

/// Returns the sequences of every p-th sample of each slice. What is missing to a multiple of p is the slice's end turned around.
fn folded(b: &mut Builder<'_>, p: usize, runs: Runs, x: ValueId) -> (Runs, ValueId) {
    let more = runs.len.next_multiple_of(p) - runs.len;
    let mut x = b.reshape(x, &[runs.count, runs.len, 1]);
    if more > 0 {
        let end = b.slice(x, 1, runs.len - 1 - more, more);
        let end = b.reverse(end, 1);
        x = b.concat(&[x, end], 1);
    }
    let each = (runs.len + more) / p;
    let x = b.reshape(x, &[runs.count, each, p]);
    let x = b.permute(x, &[0, 2, 1]);
    let folded = Runs::of(runs.count * p, each);
    (folded, b.reshape(x, &[folded.rows(), 1]))
}

/// The tables of spectrograms and mels: [`crate::piper::weights::made`] has their values. Their products stay f32 in every precision, as in the
/// project: quiet bands beside loud ones would be noise in 16 bits.
pub struct Tables {
    /// `[2 bins, n_fft]`: cosines and sines under the window.
    pub waves: ValueId,
    /// `[bands, bins]`.
    pub bands: ValueId,
}

impl Tables {
    /// Returns them, as parameters that follow from the configuration.
    pub fn of(b: &mut Builder<'_>, cfg: &Config) -> Tables {
        let (bins, s) = (cfg.spectra.bins(), cfg.spectra);
        let waves = b.frozen_parameter(crate::piper::weights::WAVES, &[2 * bins, s.n_fft]);
        let bands = b.frozen_parameter(crate::piper::weights::BANDS, &[s.bands, bins]);
        Tables { waves, bands }
    }

    /// Returns the logarithmic mel of spectrogram frames `[R, bins]`, `[R, bands]`.
    pub fn mel(&self, b: &mut Builder<'_>, spec: ValueId) -> ValueId {
        let x = b.exact_product(spec, self.bands, false, true);
        let least = b.fill_like(x, 1e-5);
        let x = b.binary(BinaryKind::Max, x, least);
        b.unary(UnaryKind::Log, x)
    }

    /// Returns the spectrogram frames of slices of samples `[R, 1]`, `[S * segment, bins]`: the slices' ends turned around beyond them.
    pub fn spectrogram(&self, b: &mut Builder<'_>, cfg: &Config, runs: Runs, x: ValueId) -> ValueId {
        let (s, bins) = (cfg.spectra, cfg.spectra.bins());
        let side = (s.n_fft - s.hop) / 2;
        let x = b.reshape(x, &[runs.count, runs.len]);
        let mut parts = vec![x];
        if side > 0 {
            let ends = [1, runs.len - 1 - side].map(|at| {
                let end = b.slice(x, 1, at, side);
                b.reverse(end, 1)
            });
            parts = vec![ends[0], x, ends[1]];
        }
        // Rows of a hop each, as many of them as a window covers.
        let covered = s.n_fft.div_ceil(s.hop);
        let rows = cfg.segment + covered - 1;
        let missing = rows * s.hop - (runs.len + 2 * side);
        if missing > 0 {
            parts.push(b.fill(TensorType::f32(&[runs.count, missing]), 0.0));
        }
        let x = b.concat(&parts, 1);
        let x = b.reshape(x, &[runs.count, rows, s.hop]);
        let shifted: Vec<ValueId> = (0..covered).map(|i| b.slice(x, 1, i, cfg.segment)).collect();
        let x = b.concat(&shifted, 2);
        let x = b.slice(x, 2, 0, s.n_fft);
        let x = b.reshape(x, &[runs.count * cfg.segment, s.n_fft]);
        let waves = b.exact_product(x, self.waves, false, true);
        let squares = b.mul(waves, waves);
        let [re, im] = [0, 1].map(|i| b.slice(squares, 1, i * bins, bins));
        let power = b.add(re, im);
        let least = b.fill_like(power, 1e-6);
        let power = b.add(power, least);
        b.unary(UnaryKind::Sqrt, power)
    }
}
