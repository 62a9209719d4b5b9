//! The offset-assignment problem: which bytes of one arena each buffer gets.
//!
//! It stands alone, so that a plan can be dumped as text, replayed and verified without a program.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A byte range that is needed over an inclusive range of instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// First instant at which the bytes are needed.
    pub first: u32,
    /// Last instant at which the bytes are needed; at least `first`.
    pub last: u32,
    /// Bytes asked for. Zero is allowed: such a buffer conflicts with nothing.
    pub size: u64,
    /// Alignment of the offset in bytes, a power of two.
    pub align: u64,
}

impl Buffer {
    /// Returns the bytes the buffer owns: its size rounded up to its alignment.
    ///
    /// The tail belongs to the buffer too, so a kernel may read and write whole aligned vectors, and
    /// the sum of these over the live buffers is a true lower bound for any mix of alignments.
    pub fn footprint(&self) -> u64 {
        self.size.next_multiple_of(self.align)
    }
}

/// Why a set of buffers is not a problem that can be solved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProblemError {
    /// A lifetime ends before it starts.
    #[error("buffer {buffer}: last instant {last} is before first instant {first}")]
    Lifetime {
        /// Index of the buffer.
        buffer: usize,
        /// Its first instant.
        first: u32,
        /// Its last instant.
        last: u32,
    },
    /// An alignment that is not a power of two.
    #[error("buffer {buffer}: alignment {align} is not a power of two")]
    Alignment {
        /// Index of the buffer.
        buffer: usize,
        /// The alignment given.
        align: u64,
    },
    /// Addresses that may not fit in 64 bits.
    #[error("buffer {buffer}: the buffers up to this one add up to more than 2^63 bytes")]
    TooLarge {
        /// Index of the buffer at which the sum passes the limit.
        buffer: usize,
    },
    /// More buffers than the solver's 32-bit indices can name.
    #[error("{count} buffers; the most is {}", u32::MAX)]
    TooMany {
        /// Number of buffers given.
        count: usize,
    },
    /// Text that is not the CSV form.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// What is wrong and what was expected.
        what: String,
    },
}

/// A validated set of buffers: lifetimes are ordered, alignments are powers of two and all sums of
/// footprints and alignments fit in 63 bits, so offset arithmetic over it cannot overflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    buffers: Vec<Buffer>,
}

/// First line of the CSV form.
const HEADER: &str = "id,first,last,size,align";

impl Problem {
    /// Validates the buffers; their indices are their identities from here on.
    pub fn new(buffers: Vec<Buffer>) -> Result<Self, ProblemError> {
        if u32::try_from(buffers.len()).is_err() {
            return Err(ProblemError::TooMany { count: buffers.len() });
        }
        let mut total = 0u64;
        for (buffer, b) in buffers.iter().enumerate() {
            let Buffer { first, last, size, align } = *b;
            if last < first {
                return Err(ProblemError::Lifetime { buffer, first, last });
            }
            if !align.is_power_of_two() {
                return Err(ProblemError::Alignment { buffer, align });
            }
            // One alignment of slack per buffer bounds every aligned offset a solver can form.
            total = size
                .checked_next_multiple_of(align)
                .and_then(|own| own.checked_add(align))
                .and_then(|own| own.checked_add(total))
                .filter(|&sum| sum <= 1 << 63)
                .ok_or(ProblemError::TooLarge { buffer })?;
        }
        Ok(Self { buffers })
    }

    /// Returns the buffers, in the order they were given.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }
}

/// Byte offsets of a problem's buffers in an arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// Offset of each buffer in bytes, by buffer index.
    pub offsets: Vec<u64>,
    /// Bytes of the arena: no buffer ends beyond it.
    pub height: u64,
}

/// Returns the most bytes live at one instant, and the first instant at which they are.
///
/// No solution is lower: footprints of live buffers are disjoint. `(0, 0)` for an empty problem.
pub fn live_bound(problem: &Problem) -> (u64, u32) {
    most_live(&problem.buffers, [0, u32::MAX])
}

/// Returns [`live_bound`] of some buffers over some instants, the two given among them.
pub fn most_live(buffers: &[Buffer], [from, to]: [u32; 2]) -> (u64, u32) {
    // At equal instants releases go first: a buffer released at `t` was last live at `t - 1`.
    let mut events: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * buffers.len());
    for b in buffers.iter().filter(|b| b.first <= to && b.last >= from) {
        events.push((u64::from(b.first.max(from)), true, b.footprint()));
        events.push((u64::from(b.last) + 1, false, b.footprint()));
    }
    events.sort_unstable();
    let (mut live, mut bound, mut instant) = (0u64, 0u64, 0u64);
    for (at, starts, bytes) in events {
        if !starts {
            live -= bytes;
        } else {
            live += bytes;
            if live > bound {
                (bound, instant) = (live, at);
            }
        }
    }
    (bound, u32::try_from(instant).expect("a start instant is a u32"))
}

/// Prints the CSV form: a header line, then one line per buffer.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for (id, Buffer { first, last, size, align }) in self.buffers.iter().enumerate() {
            writeln!(f, "{id},{first},{last},{size},{align}")?;
        }
        Ok(())
    }
}

/// Parses the CSV form. Ids must count up from 0, so that a replay solves the same problem in the
/// same order; blank lines are skipped.
impl FromStr for Problem {
    type Err = ProblemError;

    fn from_str(text: &str) -> Result<Self, ProblemError> {
        let syntax = |line: usize, what: String| ProblemError::Syntax { line, what };
        let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, l)| !l.is_empty());
        match lines.next() {
            Some((_, HEADER)) => {}
            Some((line, other)) => {
                return Err(syntax(line, format!("expected the header `{HEADER}`, found `{other}`")));
            }
            None => {
                return Err(syntax(1, format!("expected the header `{HEADER}`, found nothing")));
            }
        }
        let mut buffers = Vec::new();
        for (line, row) in lines {
            let mut fields = row.split(',').map(str::trim);
            let mut number = |name: &str| {
                let field =
                    fields.next().ok_or_else(|| syntax(line, format!("no `{name}`: a row is `{HEADER}`")))?;
                field.parse::<u64>().map_err(|_| {
                    syntax(line, format!("`{name}` is `{field}`, expected a whole number below 2^64"))
                })
            };
            let id = number("id")?;
            let first = number("first")?;
            let last = number("last")?;
            let size = number("size")?;
            let align = number("align")?;
            if let Some(extra) = fields.next() {
                return Err(syntax(line, format!("extra field `{extra}`: a row is `{HEADER}`")));
            }
            if id != buffers.len() as u64 {
                return Err(syntax(line, format!("id {id}, expected {}", buffers.len())));
            }
            let instant = |name: &str, at: u64| {
                u32::try_from(at)
                    .map_err(|_| syntax(line, format!("`{name}` is {at}, the most is {}", u32::MAX)))
            };
            buffers.push(Buffer {
                first: instant("first", first)?,
                last: instant("last", last)?,
                size,
                align,
            });
        }
        Self::new(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(first: u32, last: u32, size: u64, align: u64) -> Buffer {
        Buffer { first, last, size, align }
    }

    #[test]
    fn bound_rounds_sizes_and_finds_the_first_peak() {
        let p = Problem::new(vec![
            buffer(0, 3, 100, 256),
            buffer(2, 2, 1, 16),
            buffer(3, 9, 256, 256),
            buffer(4, 5, 256, 1),
        ]);
        // t=2: 256 + 16; t=3: 512; t=4: 512 again.
        assert_eq!(live_bound(&p.unwrap()), (512, 3));
        assert_eq!(live_bound(&Problem::default()), (0, 0));
        let to_the_end = Problem::new(vec![buffer(0, u32::MAX, 8, 8), buffer(u32::MAX, u32::MAX, 8, 8)]);
        assert_eq!(live_bound(&to_the_end.unwrap()), (16, u32::MAX));
    }

    #[test]
    fn text_round_trips() {
        let p = Problem::new(vec![buffer(0, 3, 100, 256), buffer(2, 7, 0, 1)]).unwrap();
        assert_eq!(p.to_string(), "id,first,last,size,align\n0,0,3,100,256\n1,2,7,0,1\n");
        assert_eq!(p.to_string().parse(), Ok(p));
    }

    #[test]
    fn bad_text_and_bad_buffers_are_named() {
        let error = |rows: &str| format!("{HEADER}\n{rows}").parse::<Problem>().unwrap_err().to_string();
        assert_eq!(error("0,0,1"), "line 2: no `size`: a row is `id,first,last,size,align`");
        assert_eq!(error("0,0,1,x,1"), "line 2: `size` is `x`, expected a whole number below 2^64");
        assert_eq!(error("\n1,0,1,1,1"), "line 3: id 1, expected 0");
        assert_eq!(error("0,0,1,1,1,1"), "line 2: extra field `1`: a row is `id,first,last,size,align`");
        assert_eq!(error("0,0,4294967296,1,1"), "line 2: `last` is 4294967296, the most is 4294967295");
        assert_eq!(error("0,2,1,1,1"), "buffer 0: last instant 1 is before first instant 2");
        assert_eq!(error("0,1,1,1,3"), "buffer 0: alignment 3 is not a power of two");
        assert_eq!(error("0,1,1,1,0"), "buffer 0: alignment 0 is not a power of two");
        let too_large = "buffer 1: the buffers up to this one add up to more than 2^63 bytes";
        assert_eq!(error("0,1,1,1,1\n1,3,3,18446744073709551615,2"), too_large);
        assert_eq!(error("0,1,1,1,1\n1,3,3,9223372036854775807,1"), too_large);
        assert!("".parse::<Problem>().is_err());
        assert!("id,lower,upper,size".parse::<Problem>().is_err());
    }
}
