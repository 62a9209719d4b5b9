//! `batch`: audio of one update.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Audio of one update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Batch {
    /// This many clips.
    Clips(u64),
    /// Clips until this many rows, as the model counts them: frames or tokens.
    #[serde(alias = "tokens")]
    Frames(u64),
    /// Clips until this many seconds.
    Seconds(f64),
}

impl FromStr for Batch {
    type Err = String;

    /// Parses a batch as after `--batch`: clips, seconds as `60s`, or frames or tokens as `3200f` or `3200t`.
    fn from_str(text: &str) -> Result<Batch, String> {
        let rows = |unit: char| text.strip_suffix(unit)?.parse().ok().map(Batch::Frames);
        let seconds = || text.strip_suffix('s')?.parse().ok().map(Batch::Seconds);
        let clips = || text.parse().ok().map(Batch::Clips);
        let read = clips().or_else(seconds).or_else(|| rows('f')).or_else(|| rows('t'));
        read.ok_or_else(|| {
            format!(
                "`{text}` is not a number of clips, seconds as 60s, or frames or tokens as 3200f or 3200t"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Batch;

    #[test]
    fn the_option_says_its_unit() {
        for (text, batch) in [
            ("8", Batch::Clips(8)),
            ("1.5s", Batch::Seconds(1.5)),
            ("3200f", Batch::Frames(3200)),
            ("9t", Batch::Frames(9)),
        ] {
            assert_eq!(text.parse(), Ok(batch), "{text}");
        }
        for bad in ["", "s", "-1", "8x", "1.5", "1.5f"] {
            assert!(bad.parse::<Batch>().is_err(), "{bad}");
        }
    }
}
