//! A DVAE's shape, which only its tensors say.

use super::weights::{codebook, down, projection, residual};

/// Taps of the convolutions that keep the rows.
pub const TAPS: usize = 3;
/// Rows of one level that are one of the next.
pub const STRIDE: usize = 2;
/// Levels, at most; also residual blocks.
const MOST: usize = 64;
/// The longest axis of a tensor.
const LONGEST: usize = 1 << 16;

/// A checked shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// M: bands of a mel frame.
    pub mels: usize,
    /// Channels of each level, from the frames on; each has half of the rows of the one before.
    pub widths: Vec<usize>,
    /// Taps of the convolutions between levels, odd.
    pub taps: usize,
    /// Residual blocks of the last level.
    pub blocks: usize,
    /// D: channels of an entry.
    pub dim: usize,
    /// V: entries of the codebook.
    pub entries: usize,
}

impl Config {
    /// Reads the shape off the tensors: `axes` gives those of a state.
    ///
    /// # Errors
    /// Says which tensor is missing or of no shape that is known here.
    pub fn of_tensors(axes: impl Fn(&str) -> Option<Vec<usize>>) -> Result<Config, String> {
        let three = |name: &str| match axes(name).as_deref() {
            Some(&[a, b, c]) if [a, b, c].iter().all(|n| (1..=LONGEST).contains(n)) => Ok([a, b, c]),
            Some(other) => Err(format!("tensor {name} is {other:?}, no convolution along time")),
            None => Err(format!("tensor {name} is missing")),
        };
        let [_, mels, taps] = three(&down(0))?;
        if taps.is_multiple_of(2) {
            return Err(format!("tensor {}: {taps} taps, an odd number is supported", down(0)));
        }
        let mut widths = Vec::new();
        while widths.len() < MOST && axes(&down(widths.len())).is_some() {
            widths.push(three(&down(widths.len()))?[0]);
        }
        let levels = widths.len();
        let blocks = (0..MOST).take_while(|i| axes(&residual(levels + i, 0)).is_some()).count();
        if blocks == 0 {
            return Err(format!("tensor {} is missing: there must be residual blocks", residual(levels, 0)));
        }
        let [dim, _, _] = three(&projection(levels + blocks))?;
        let entries = match axes(codebook()).as_deref() {
            Some(&[have, entries]) if have == dim && (1..=LONGEST).contains(&entries) => entries,
            Some(other) => return Err(format!("tensor {} is {other:?}, must be [{dim}, codes]", codebook())),
            None => return Err(format!("tensor {} is missing", codebook())),
        };
        Ok(Config { mels, widths, taps, blocks, dim, entries })
    }

    /// Returns the channels of the last level.
    pub fn inner(&self) -> usize {
        self.widths[self.widths.len() - 1]
    }

    /// Returns the number of frames of a code.
    pub fn rate(&self) -> usize {
        STRIDE.pow(self.widths.len() as u32)
    }

    /// Returns the number of codes of `frames` frames: ⌈⌈M / 2⌉ / 2⌉ with two levels.
    pub fn codes(&self, frames: usize) -> usize {
        frames.div_ceil(self.rate())
    }

    /// Returns the number of codes on either side whose frames a code depends on.
    pub fn encoder_reach(&self) -> usize {
        let rows = self.widths.iter().fold(2 * self.blocks, |rows, _| rows * STRIDE + self.taps / 2);
        rows.div_ceil(self.rate())
    }

    /// Returns the number of codes on either side on which a code's frames depend.
    pub fn decoder_reach(&self) -> usize {
        let (mut low, mut high) = (0, self.rate() as i64 - 1);
        for _ in &self.widths {
            low = (low - self.taps as i64 / 2).div_euclid(STRIDE as i64);
            high = (high + self.taps as i64 / 2).div_euclid(STRIDE as i64);
        }
        2 * self.blocks + high.max(-low) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::weights::published;
    use super::*;

    #[test]
    fn codes_and_reach_of_the_published_shape() {
        let cfg = published();
        assert_eq!((cfg.rate(), cfg.encoder_reach()), (4, 7));
        assert_eq!([1, 4, 5, 1001].map(|frames| cfg.codes(frames)), [1, 1, 2, 251]);
        // Rows of a quarter: two of every block, and one through the two upper levels.
        assert_eq!(cfg.decoder_reach(), 7);
    }

    #[test]
    fn other_tensors_are_named() {
        let said = |with: &dyn Fn(&str) -> Option<Vec<usize>>| Config::of_tensors(with).unwrap_err();
        assert!(said(&|_| None).contains("encoder.0.0.weight is missing"));
        assert!(said(&|_| Some(vec![4, 80, 4])).contains("4 taps"));
        assert!(said(&|_| Some(vec![4, 80])).contains("no convolution"));
        assert!(said(&|_| Some(vec![4, usize::MAX, 3])).contains("no convolution"));
        let unlimited = said(&|_| Some(vec![4, 80, 3]));
        assert!(unlimited.contains("codebook.embed"), "{unlimited}");
    }
}
