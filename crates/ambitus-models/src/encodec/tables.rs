//! Which rows of a window are sound, and what convolutions read beyond the sound's ends: data, not shapes.
//!
//! A window holds a piece of the sound, whose first row and end within it are [`Place`]s. Convolutions read rows that a table names
//! ([`Table::Pad`]): their own, those that a reflection puts beyond an end, or none, which is zero. Where the window is cut, what is beyond
//! is none too, and what comes of it is not used.

use super::config::{Config, Padding};
use ambitus_ir::{Input, Program, TensorType};

/// Frames that the memory reads in this run, i32 `[2]`: 0 and how many.
pub const FRAMES: &str = "frames";

/// A table that a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The rows of `stride` samples that a convolution of `reach` rows, with a stride of `step` of them, reads one after another:
    /// i32 `[rows + more]`, -1 where there is none.
    Pad {
        /// Samples per row.
        stride: usize,
        /// Rows from the first that an element reads to the last.
        reach: usize,
        /// Rows from an element to the next.
        step: usize,
    },
    /// Segments of the rows of `stride` samples, i32 `[3]`: those before the sound, and the sound.
    Sound {
        /// Samples per row.
        stride: usize,
    },
}

/// Where the sound lies in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Frames of the window before the sound's first.
    pub before: usize,
    /// Samples of the sound in the window.
    pub samples: usize,
    /// The first of them is the sound's first.
    pub begins: bool,
    /// The last of them is the sound's last.
    pub ends: bool,
}

impl Table {
    /// Returns the program input.
    pub fn name(&self) -> String {
        match self {
            Table::Pad { stride, reach, step } => format!("pad.{stride}.{reach}.{step}"),
            Table::Sound { stride } => format!("sound.{stride}"),
        }
    }

    /// Returns the table of an input's name, if it is one.
    pub fn of(name: &str) -> Option<Table> {
        let (kind, rest) = name.split_once('.')?;
        let numbers: Vec<usize> = rest.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
        match (kind, &numbers[..]) {
            ("pad", &[stride, reach, step]) => Some(Table::Pad { stride, reach, step }),
            ("sound", &[stride]) => Some(Table::Sound { stride }),
            _ => None,
        }
    }

    /// Returns the type of the table in a window of `rows` rows, whole steps.
    pub fn ty(&self, rows: usize) -> TensorType {
        match self {
            Table::Pad { reach, step, .. } => TensorType::i32(&[rows + (reach - 1) / step * step]),
            Table::Sound { .. } => TensorType::i32(&[3]),
        }
    }

    /// Returns the samples of a row.
    pub fn stride(&self) -> usize {
        match self {
            Table::Pad { stride, .. } | Table::Sound { stride } => *stride,
        }
    }

    /// Returns the table of `len` numbers for a piece of sound that lies so.
    pub fn fill(&self, cfg: &Config, place: Place, len: usize) -> Vec<i32> {
        let first = place.before * cfg.hop() / self.stride();
        let end = first + place.samples.div_ceil(self.stride());
        match *self {
            Table::Sound { .. } => vec![0, first as i32, end as i32],
            Table::Pad { reach, step, .. } => {
                let [left, _] = cfg.pads(reach, step);
                let sound =
                    Sound { first: first as i64, end: end as i64, begins: place.begins, ends: place.ends };
                let at = |i: usize| sound.read(cfg, [reach, step], i as i64 - left as i64);
                (0..len).map(|i| at(i).map_or(-1, |row| row as i32)).collect()
            }
        }
    }
}

/// Rows of a sound, and which of its ends they reach.
struct Sound {
    first: i64,
    end: i64,
    begins: bool,
    ends: bool,
}

impl Sound {
    /// Returns the row that a convolution reads in the place of `row`.
    fn read(&self, cfg: &Config, [reach, step]: [usize; 2], row: i64) -> Option<i64> {
        let mut row = row;
        if cfg.padding == Padding::Reflect {
            let [left, right] = cfg.pads(reach, step);
            let rows = (self.end - self.first) as usize;
            // Where a sound has too few rows to reflect, torch reflects at zeros that are put behind it.
            let most = left.max(right + rows.next_multiple_of(step) - rows);
            let zeros = if self.begins && self.ends { (most + 1).saturating_sub(rows) } else { 0 };
            let last = self.end + zeros as i64 - 1;
            if self.begins && row < self.first {
                row = 2 * self.first - row;
            } else if self.ends && row > last {
                row = 2 * last - row;
            }
        }
        (self.first..self.end).contains(&row).then_some(row)
    }
}

/// Returns every table that a program takes, with its numbers.
pub fn tables(program: &Program) -> Vec<(Table, usize)> {
    let of = |i: &Input| Some((Table::of(&i.name)?, program.ty(i.value).shape.elements()));
    program.inputs.iter().filter_map(of).collect()
}

/// Returns the frames that the decoder's first convolution reads for `count` frames from `first` on, of `total` frames; `None`
/// where that is none.
pub fn frames_read(cfg: &Config, first: usize, count: usize, total: usize) -> Vec<Option<usize>> {
    let [left, _] = cfg.pads(cfg.kernel, 1);
    let sound = Sound { first: 0, end: total as i64, begins: true, ends: true };
    let at = |i: usize| sound.read(cfg, [cfg.kernel, 1], (first + i) as i64 - left as i64);
    (0..count + cfg.kernel - 1).map(|i| at(i).map(|frame| frame as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(padding: Padding) -> Config {
        Config { padding, ..Config::encodec_32khz() }
    }

    fn read(cfg: &Config, [reach, step]: [usize; 2], rows: usize) -> Vec<i32> {
        let table = Table::Pad { stride: 1, reach, step };
        let room = rows.next_multiple_of(step);
        let place = Place { before: 0, samples: rows, begins: true, ends: true };
        let len = table.ty(room).shape.elements();
        table.fill(cfg, place, len)
    }

    /// What `_pad1d` of transformers 4.57 puts at the ends, of 0, 1, 2, ...; -1 for its zeros.
    #[test]
    fn ends_are_reflected_as_torch_does() {
        let cfg = config(Padding::Reflect);
        assert_eq!(read(&cfg, [7, 1], 5), [3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1]);
        // Three rows are too few for a reflection of three: a zero is put behind them.
        assert_eq!(read(&cfg, [7, 1], 3), [-1, 2, 1, 0, 1, 2, -1, 2, 1]);
        assert_eq!(read(&cfg, [7, 1], 1), [-1, -1, -1, 0, -1, -1, -1]);
        // An odd stride: one more at the start, and what is missing from whole steps at the end.
        assert_eq!(read(&cfg, [10, 5], 12), [3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 10, 9, 8, 7, 6]);
        let causal = Config { causal: true, ..cfg };
        assert_eq!(read(&causal, [3, 1], 4), [2, 1, 0, 1, 2, 3]);
        let zeros = config(Padding::Zeros);
        assert_eq!(read(&zeros, [7, 1], 3), [-1, -1, -1, 0, 1, 2, -1, -1, -1]);
    }

    /// In a window the rows are the window's, and where it is cut there is nothing to reflect.
    #[test]
    fn cuts_are_no_ends() {
        let cfg = config(Padding::Reflect);
        let table = Table::Pad { stride: 320, reach: 3, step: 1 };
        let fill =
            |before, samples, begins, ends| table.fill(&cfg, Place { before, samples, begins, ends }, 10);
        assert_eq!(fill(1, 1920, true, false), [5, 4, 3, 2, 3, 4, 5, 6, 7, -1]);
        assert_eq!(fill(0, 2560, false, false), [-1, 0, 1, 2, 3, 4, 5, 6, 7, -1]);
        assert_eq!(fill(0, 1500, false, true), [-1, 0, 1, 2, 3, 4, 3, 2, 1, 0]);
        let sound = Table::Sound { stride: 320 };
        let place = Place { before: 2, samples: 1500, begins: true, ends: true };
        assert_eq!(sound.fill(&cfg, place, 3), [0, 4, 9]);
        assert_eq!([table, sound].map(|t| Table::of(&t.name())), [Some(table), Some(sound)]);
        assert_eq!(Table::of("audio"), None);
    }

    #[test]
    fn frames_behind_the_codebooks_are_reflected_too() {
        let cfg = config(Padding::Reflect);
        let whole = frames_read(&cfg, 0, 9, 9);
        assert_eq!(whole[..4], [Some(3), Some(2), Some(1), Some(0)]);
        assert_eq!(whole[11..], [Some(8), Some(7), Some(6), Some(5)]);
        assert_eq!(frames_read(&cfg, 2, 3, 9), whole[2..11]);
        assert_eq!(frames_read(&config(Padding::Zeros), 8, 1, 9)[4..], [None; 3]);
    }
}
