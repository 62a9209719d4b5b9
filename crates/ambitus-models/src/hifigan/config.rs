//! A generator's shape.

use crate::error::{ConfigError, err, sensible};
use serde::{Deserialize, Serialize};

/// Taps of the first and the last convolution.
pub const TAPS: usize = 7;

/// A step to more rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Up {
    /// Rows for one.
    pub rate: usize,
    /// Taps of the transposed convolution: at least the rate, and by an even number more.
    pub taps: usize,
}

impl Up {
    /// Returns the rows that are left out at either end: what makes it `rate` rows for one.
    pub fn pad(&self) -> usize {
        (self.taps - self.rate) / 2
    }
}

/// A residual block, of which each step has one at every kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Taps of its convolutions, odd.
    pub taps: usize,
    /// Dilations of its units, one after the other.
    pub dilations: Vec<usize>,
}

/// What a unit of a residual block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// A dilated convolution and another one (`ResBlock1`).
    Double,
    /// A dilated convolution (`ResBlock2`).
    Single,
}

/// The shape of a generator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of a frame.
    pub input: usize,
    /// Channels behind the first convolution; each step halves them.
    pub width: usize,
    /// The steps.
    pub ups: Vec<Up>,
    /// The residual blocks of each step, whose mean it takes.
    pub blocks: Vec<Block>,
    /// What they are made of.
    pub unit: Unit,
    /// Numbers of the vector that is added behind the first convolution, if there is one.
    pub voice: Option<usize>,
    /// It is added behind each step as well.
    pub voice_each: bool,
    /// Slope of the last rectifier; that of the others is 0.1.
    pub last_slope: f32,
    /// The last convolution has a bias.
    pub last_bias: bool,
}

impl Config {
    /// Checks that sizes go together.
    ///
    /// # Errors
    /// Names the one that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let size = |key, n: usize, most: usize| match (1..=most).contains(&n) {
            true => Ok(()),
            false => err(key, format!("{n} is not in 1..={most}")),
        };
        size("input", self.input, 1 << 16)?;
        size("width", self.width, 1 << 16)?;
        size("voice", self.voice.unwrap_or(1), 1 << 16)?;
        size("ups", self.ups.len(), 16)?;
        size("blocks", self.blocks.len(), 16)?;
        if self.width >> self.ups.len() == 0 {
            return err(
                "width",
                format!("{} channels cannot be halved {} times", self.width, self.ups.len()),
            );
        }
        for up in &self.ups {
            size("ups", up.rate, 1 << 10)?;
            if up.taps < up.rate || !(up.taps - up.rate).is_multiple_of(2) || up.taps > 1 << 12 {
                let why = format!("{} taps do not make {} rows of one", up.taps, up.rate);
                return err("ups", why);
            }
        }
        for block in &self.blocks {
            size("blocks", block.dilations.len(), 16)?;
            if block.taps.is_multiple_of(2) || block.taps > 1 << 10 {
                return err("blocks", format!("{} taps are no odd number", block.taps));
            }
            block.dilations.iter().try_for_each(|d| size("blocks", *d, 1 << 8))?;
        }
        size("ups", self.ups.iter().fold(1, |hop: usize, up| hop.saturating_mul(up.rate)), 1 << 16)?;
        size("blocks", self.phases(), 1 << 12)?;
        let last = self.blocks.iter().map(|k| k.taps * k.dilations.len() * 2).sum::<usize>();
        sensible("width", (self.width * (self.input * TAPS + self.width * last * self.ups.len())) as u64)
    }

    /// Returns the channels behind `steps` steps.
    pub fn width_of(&self, steps: usize) -> usize {
        self.width >> steps
    }

    /// Returns the samples of a frame.
    pub fn hop(&self) -> usize {
        self.ups.iter().map(|up| up.rate).product()
    }

    /// Returns what the frames of a program are a multiple of: the sequences of each dilation are equally long.
    pub fn phases(&self) -> usize {
        let all = self.blocks.iter().flat_map(|block| &block.dilations);
        all.fold(1, |n: usize, d| (n / gcd(n, *d)).saturating_mul(*d))
    }

    /// Returns the frames on either side on which a frame's samples depend.
    pub fn reach(&self) -> usize {
        let more = |block: &Block| {
            let each = |d: &usize| block.taps / 2 * (d + usize::from(self.unit == Unit::Double));
            block.dilations.iter().map(each).sum::<usize>() as i64
        };
        let blocks = self.blocks.iter().map(more).max().unwrap_or(0);
        let side = (TAPS / 2) as i64;
        let (mut low, mut high) = (-side, self.hop() as i64 - 1 + side);
        for up in self.ups.iter().rev() {
            let (rate, taps, pad) = (up.rate as i64, up.taps as i64, up.pad() as i64);
            (low, high) = (low - blocks + pad, high + blocks + pad);
            // Row i gives rows i * rate + k - pad: the first that reaches, and the last.
            (low, high) = ((low - taps + rate).div_euclid(rate), high.div_euclid(rate));
        }
        (side - low).max(high + side) as usize
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
