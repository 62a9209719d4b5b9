//! Which rows of a program hold sound, at every rate, and how far codes and samples reach.
//!
//! A program has room for a fixed number of samples, of which the first ones are sound. Past their end every convolution must
//! see zeros, at every rate, as it does past the end of a file: segment tables say where that is. A dilated convolution runs
//! on the d sequences of every d-th row, one after the other; each is a segment, and so is the rest of its room.

use super::{DILATIONS, TAPS, stride_pad};
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
    /// Counts a row that has begun, as what the convolution to these rows reads; else those that the convolution gives.
    pub begun: bool,
}

impl Table {
    /// Returns the table of all rows of one rate.
    pub fn rows(stride: usize) -> Table {
        Table { stride, dilation: 1, begun: false }
    }

    /// Returns the program input.
    pub fn name(&self) -> String {
        if self.begun {
            return format!("begun.{}", self.stride);
        }
        format!("rows.{}.{}", self.stride, self.dilation)
    }

    /// Returns the table of an input's name, if it is one.
    pub fn of(name: &str) -> Option<Table> {
        if let Some(stride) = name.strip_prefix("begun.") {
            return Some(Table { begun: true, ..Table::rows(stride.parse().ok()?) });
        }
        let (stride, dilation) = name.strip_prefix("rows.")?.split_once('.')?;
        Some(Table { dilation: dilation.parse().ok()?, ..Table::rows(stride.parse().ok()?) })
    }

    /// Returns i32 `[S+1]`: one segment, or two for each sequence.
    pub fn ty(&self) -> TensorType {
        TensorType::i32(&[if self.dilation == 1 { 2 } else { 2 * self.dilation + 1 }])
    }

    /// Returns the table of a program with room for `rows` rows when `valid` of them are sound.
    pub fn fill(&self, rows: usize, valid: usize) -> Vec<i32> {
        let d = self.dilation;
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

/// Returns the number of frames of `frame` samples before or after a frame on which its codes depend: the larger of the two.
/// `rates`: strides of the blocks; `last`: taps of the last convolution.
pub fn encoder_reach(rates: &[usize], last: usize, frame: usize) -> usize {
    let (first, last) = ((TAPS / 2) as i64, (last / 2) as i64);
    // First and last row that a frame's latent rows read, relative to the frame's first and to the next frame's first.
    let (mut low, mut high) = (-last, last - 1);
    for &rate in rates.iter().rev() {
        let (rate, pad) = (rate as i64, stride_pad(rate) as i64);
        low = low * rate - pad - units();
        high = high * rate - pad + 2 * rate - 1 + units();
    }
    in_frames(frame, low - first, high + first)
}

/// Returns the number of frames of `frame` samples before or after a frame on which its samples depend: the larger of the two.
pub fn decoder_reach(rates: &[usize], frame: usize) -> usize {
    let side = (TAPS / 2) as i64;
    let (mut low, mut high) = (-side, side - 1);
    for &rate in rates.iter().rev() {
        let rate = rate as i64;
        low = (low - units()).div_euclid(rate) - 1;
        high = (high + units()).div_euclid(rate) + 1;
    }
    let hop: i64 = rates.iter().map(|rate| *rate as i64).product();
    in_frames(frame, (low - side) * hop, (high + side + 1) * hop - 1)
}

/// Returns the number of rows to either side that a block's residual units read.
fn units() -> i64 {
    (DILATIONS.iter().sum::<usize>() * (TAPS / 2)) as i64
}

/// Converts `low` samples from a frame's start and `high` from its end to whole frames.
fn in_frames(frame: usize, low: i64, high: i64) -> usize {
    let frame = frame as i64;
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
        let t = Table { dilation: 3, ..Table::rows(2) };
        assert_eq!(t.fill(18, 7), [0, 3, 6, 8, 12, 14, 18]);
        assert_eq!(t.ty().shape.elements(), 7);
        let begun = Table { begun: true, ..Table::rows(2) };
        assert_eq!([t, begun].map(|t| Table::of(&t.name())), [Some(t), Some(begun)]);
        assert_eq!(Table::rows(2).fill(18, 7), [0, 7]);
        assert_eq!(Table::of("audio"), None);
    }
}
