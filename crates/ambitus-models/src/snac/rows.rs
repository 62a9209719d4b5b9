//! Which rows of a program hold audio, at every rate, and how far codes and samples reach.
//!
//! A program has room for a fixed number of samples, of which the first ones are audio. Past their end every convolution must
//! see zeros, at every rate, as it does past the end of a file: segment tables say where that is. A dilated convolution runs
//! on the d sequences of every d-th row, one after the other; each is a segment, and so is the rest of its room.

use super::config::{Config, DILATIONS, TAPS, stride_pad};
use ambitus_ir::{Program, TensorType};

/// Rows of a program are a multiple of this at every rate: the sequences of each dilation are equally long.
pub const PHASES: usize = DILATIONS[DILATIONS.len() - 1];

/// The segment table of the rows of one rate, in the order of one dilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Samples per row.
    pub stride: usize,
    /// Distance of neighbours.
    pub dilation: usize,
}

impl Table {
    /// Returns the program input.
    pub fn name(&self) -> String {
        format!("rows.{}.{}", self.stride, self.dilation)
    }

    /// Returns the input of that name.
    pub fn of(name: &str) -> Option<Table> {
        let (stride, dilation) = name.strip_prefix("rows.")?.split_once('.')?;
        Some(Table { stride: stride.parse().ok()?, dilation: dilation.parse().ok()? })
    }

    /// Returns i32 `[S+1]`: one segment, or two for each sequence.
    pub fn ty(&self) -> TensorType {
        TensorType::i32(&[if self.dilation == 1 { 2 } else { 2 * self.dilation + 1 }])
    }

    /// Returns the table of a program for `samples` samples when `valid` of them are audio (both in whole rows).
    pub fn fill(&self, samples: usize, valid: usize) -> Vec<i32> {
        let (rows, valid, d) = (samples / self.stride, valid / self.stride, self.dilation);
        if d == 1 {
            return vec![0, valid as i32];
        }
        let ends = |phase: usize| [phase * rows / d + (valid + d - 1 - phase) / d, (phase + 1) * rows / d];
        let ends = (0..d).flat_map(ends).map(|end| end as i32);
        std::iter::once(0).chain(ends).collect()
    }
}

/// Returns every table that a program takes.
pub fn tables(program: &Program) -> Vec<Table> {
    program.inputs.iter().filter_map(|i| Table::of(&i.name)).collect()
}

/// Returns the number of frames before or after a frame on which its codes depend: the larger of the two.
pub fn encoder_reach(cfg: &Config) -> usize {
    let side = (TAPS / 2) as i64;
    // First and last row that a frame's latent rows read, relative to the frame's first and to the next frame's first.
    let (mut low, mut high) = (-side, side - 1);
    for &rate in cfg.encoder_rates.iter().rev() {
        let (rate, pad) = (rate as i64, stride_pad(rate) as i64);
        low = low * rate - pad - units();
        high = high * rate - pad + 2 * rate - 1 + units();
    }
    in_frames(cfg, low - side, high + side)
}

/// Returns the number of frames before or after a frame on which its samples depend: the larger of the two.
pub fn decoder_reach(cfg: &Config) -> usize {
    let side = (TAPS / 2) as i64;
    let (mut low, mut high) = (-side, side - 1);
    for &rate in cfg.decoder_rates.iter().rev() {
        let rate = rate as i64;
        low = (low - units()).div_euclid(rate) - 1;
        high = (high + units()).div_euclid(rate) + 1;
    }
    let hop = cfg.hop() as i64;
    in_frames(cfg, (low - side) * hop, (high + side + 1) * hop - 1)
}

/// Returns the number of rows to either side that a block's residual units read.
fn units() -> i64 {
    (DILATIONS.iter().sum::<usize>() * (TAPS / 2)) as i64
}

/// Converts `low` samples from a frame's start and `high` from its end to whole frames.
fn in_frames(cfg: &Config, low: i64, high: i64) -> usize {
    let frame = cfg.frame() as i64;
    let before = (-low + frame - 1) / frame;
    let after = (high + frame) / frame;
    before.max(after) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_say_where_each_sequence_ends() {
        // Rows 0..7 of 18: every third is 0 3 6, 1 4, 2 5.
        let t = Table { stride: 2, dilation: 3 };
        assert_eq!(t.fill(36, 14), [0, 3, 6, 8, 12, 14, 18]);
        assert_eq!(t.ty().shape.elements(), 7);
        assert_eq!(Table::of(&t.name()), Some(t));
        assert_eq!(Table { stride: 2, dilation: 1 }.fill(36, 14), [0, 7]);
        assert_eq!(Table::of("audio"), None);
    }

    #[test]
    fn reach_of_the_published_codec() {
        // 3 + 39 * (1 + 2 + 8 + 64) + 3 * 512 + 1 + 4 + 32 + 256 = 4757 samples before, under three frames of 2048.
        assert_eq!(encoder_reach(&Config::snac_24khz()), 3);
        assert_eq!(decoder_reach(&Config::snac_24khz()), 3);
    }
}
