//! Byte sizes as people write them: `20GiB`, `512MiB`, `1.5GB`. A number without a unit is an error, never a guess.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// A number of bytes. Read from text with a unit; printed in MiB or GiB with three digits or so; serialised exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Text that is not a size, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// No number at the start.
    #[error("`{0}` is not a size: write a number and a unit, as in 20GiB, 512MiB or 1.5GB")]
    NotANumber(String),
    /// A bare number.
    #[error("`{0}` has no unit: write {0}GiB or {0}MiB (1024-based), or {0}GB or {0}MB (1000-based)")]
    NoUnit(String),
    /// A unit that is not in the list.
    #[error("unknown unit `{unit}` in `{text}`: write GiB or MiB (1024-based), GB or MB (1000-based)")]
    Unit {
        /// The whole text.
        text: String,
        /// Its unit.
        unit: String,
    },
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is more bytes than any machine has")]
    TooLarge(String),
}

/// Units, largest first; exact printing takes the first that divides.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];
/// Digits after the point that are read; more could not change the byte count.
const MAX_FRACTION: usize = 15;
/// How much of a wrong text an error repeats.
const SHOWN: usize = 40;

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        let text = text.trim();
        let shown = || text.chars().take(SHOWN).collect::<String>();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..split], text[split..].trim_start());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let bad_fraction = number.contains('.') && (fraction.is_empty() || fraction.contains('.'));
        if whole.is_empty() || bad_fraction {
            return Err(SizeError::NotANumber(shown()));
        }
        if unit.is_empty() {
            return Err(SizeError::NoUnit(shown()));
        }
        let Some(&(_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let unit = unit.chars().take(SHOWN).collect();
            return Err(SizeError::Unit { text: shown(), unit });
        };
        let too_large = || SizeError::TooLarge(shown());
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let fraction = &fraction[..fraction.len().min(MAX_FRACTION)];
        let tail = match fraction {
            "" => 0,
            digits => digits.parse::<u64>().map_err(|_| too_large())?,
        };
        let part = u128::from(tail) * u128::from(scale) / 10u128.pow(fraction.len() as u32);
        let bytes = u128::from(whole) * u128::from(scale) + part;
        u64::try_from(bytes).map(ByteSize).map_err(|_| too_large())
    }
}

impl fmt::Display for ByteSize {
    /// Writes `1.83 GiB`, `338 MiB`, `1.5 MiB`, `12 KiB`, `96 B`. Rounded; [`ByteSize::exact`] is not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0 as f64;
        let (kib, mib, gib) = (b / 1024.0, b / f64::from(1 << 20), b / f64::from(1 << 30));
        // The bounds are where the smaller unit would round up to 1024.
        let text = if mib >= 1023.5 {
            match gib {
                g if g < 99.995 => format!("{g:.2} GiB"),
                g => format!("{g:.0} GiB"),
            }
        } else if kib >= 1023.5 {
            match mib {
                m if m < 9.95 => format!("{m:.1} MiB"),
                m => format!("{m:.0} MiB"),
            }
        } else if self.0 >= 1024 {
            format!("{kib:.0} KiB")
        } else {
            format!("{} B", self.0)
        };
        f.pad(&text)
    }
}

impl ByteSize {
    /// Returns both as they are printed, with as many digits as it takes to tell them apart.
    pub fn apart(self, other: ByteSize) -> [String; 2] {
        let sizes = [self, other];
        let rounded = sizes.map(|size| size.to_string());
        if rounded[0] != rounded[1] || self == other {
            return rounded;
        }
        // In the unit in which they are alike.
        let unit = rounded[0].rsplit(' ').next().unwrap_or("B");
        let scale = UNITS.iter().find(|(name, _)| *name == unit).map_or(1, |(_, scale)| *scale);
        let with =
            |digits: usize| sizes.map(|size| format!("{:.digits$} {unit}", size.0 as f64 / scale as f64));
        let differ = |[a, b]: &[String; 2]| a != b;
        (1..12).map(with).find(differ).unwrap_or_else(|| sizes.map(|size| format!("{} B", size.0)))
    }

    /// Returns the size without rounding, in the largest unit that divides it: what a recipe stores.
    pub fn exact(self) -> String {
        let whole = |&&(_, scale): &&(&str, u64)| self.0 >= scale && self.0.is_multiple_of(scale);
        match UNITS.iter().find(whole) {
            Some((unit, scale)) => format!("{}{unit}", self.0 / scale),
            None => "0B".to_owned(),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.exact())
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size with a unit, as in 20GiB or 512MB")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<ByteSize, E> {
                self.visit_str(&n.to_string())
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<ByteSize, E> {
                self.visit_str(&n.to_string())
            }
            fn visit_f64<E: de::Error>(self, n: f64) -> Result<ByteSize, E> {
                self.visit_str(&n.to_string())
            }
        }
        d.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units() {
        for (text, bytes) in [
            ("20GiB", 20 << 30),
            ("512 MiB", 512 << 20),
            ("20GB", 20_000_000_000),
            ("512MB", 512_000_000),
            ("1.5GiB", 3 << 29),
            ("0.1GB", 100_000_000),
            (" 7B ", 7),
            ("16777215.5TiB", (16_777_215 << 40) + (1 << 39)),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn says_what_to_write() {
        let why = |t: &str| t.parse::<ByteSize>().unwrap_err().to_string();
        assert!(why("20").contains("write 20GiB"), "{}", why("20"));
        assert!(why("1.5").contains("1.5MB"));
        assert!(why("20Gb").contains("unknown unit `Gb`"));
        for bad in ["", "GiB", "-1GiB", ".5GiB", "1.GiB", "1.2.3GiB", "NaN", "inf", "1e3MiB", "ä"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        assert!(why("99999999999999999999GiB").contains("more bytes"));
        assert!(why("16777216TiB").contains("more bytes"));
        assert!(serde_json::from_str::<ByteSize>("20").unwrap_err().to_string().contains("no unit"));
    }

    #[test]
    fn prints_three_digits() {
        for (bytes, text) in [
            (1_964_947_865, "1.83 GiB"),
            (354_418_688, "338 MiB"),
            (96 << 20, "96 MiB"),
            (3 << 19, "1.5 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (12_345, "12 KiB"),
            (96, "96 B"),
            (20 << 40, "20480 GiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("[{:>9}]", ByteSize(96)), "[     96 B]");
    }

    #[test]
    fn sizes_that_are_compared_differ_in_print() {
        for (a, b, [first, second]) in [
            (48 << 20, (48 << 20) + (1 << 17), ["48.0 MiB", "48.1 MiB"]),
            (5 << 30, (5 << 30) + 1024, ["5.000000 GiB", "5.000001 GiB"]),
            (5 << 20, 6 << 20, ["5.0 MiB", "6.0 MiB"]),
            (7, 7, ["7 B", "7 B"]),
        ] {
            assert_eq!(ByteSize(a).apart(ByteSize(b)), [first, second]);
        }
        arbtest::arbtest(|u| {
            let (a, b) = (u.arbitrary::<u64>()?, u.int_in_range(0..=1 << 20)?);
            let [a_text, b_text] = ByteSize(a >> 8).apart(ByteSize((a >> 8) + b));
            assert_eq!(a_text == b_text, b == 0);
            Ok(())
        });
    }

    #[test]
    fn serialises_exactly() {
        arbtest::arbtest(|u| {
            let size = ByteSize(u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?);
            let text = serde_json::to_string(&size).unwrap();
            assert_eq!(serde_json::from_str::<ByteSize>(&text).unwrap(), size);
            Ok(())
        });
        assert_eq!(ByteSize(3 << 30).exact(), "3GiB");
        assert_eq!(ByteSize(20_000_000_000).exact(), "20GB");
    }

    #[test]
    fn any_text_is_read_or_refused() {
        arbtest::arbtest(|u| {
            let _ = u.arbitrary::<String>()?.parse::<ByteSize>();
            Ok(())
        });
    }
}
