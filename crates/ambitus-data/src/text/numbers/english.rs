//! English words of one number, as num2words 0.5.14 has them: "one thousand, two hundred and thirty-four".

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
/// Of 10^6 to 10^30, before "illion".
const LOW: [&str; 9] = ["m", "b", "tr", "quadr", "quint", "sext", "sept", "oct", "non"];
/// Of 10^33 on: one of the first before one of the second.
const UNITS: [&str; 10] = ["", "un", "duo", "tre", "quattuor", "quin", "sex", "sept", "octo", "novem"];
const DECADES: [&str; 9] = [
    "dec",
    "vigint",
    "trigint",
    "quadragint",
    "quinquagint",
    "sexagint",
    "septuagint",
    "octogint",
    "nonagint",
];
/// Digits of the largest number that has a name: 999 centillions and what follows.
const MAX_DIGITS: usize = 306;

/// Returns the name of 1000^k, k from 1 to 101.
fn scale(k: usize) -> String {
    match k {
        1 => "thousand".to_owned(),
        2..=10 => format!("{}illion", LOW[k - 2]),
        11..=100 => format!("{}{}illion", UNITS[(k - 11) % 10], DECADES[(k - 11) / 10]),
        _ => "centillion".to_owned(),
    }
}

/// Returns a number below 100.
fn below_hundred(n: usize) -> String {
    match (n / 10, n % 10) {
        (0 | 1, _) => ONES[n].to_owned(),
        (tens, 0) => TENS[tens].to_owned(),
        (tens, one) => format!("{}-{}", TENS[tens], ONES[one]),
    }
}

/// Returns a number below 1000.
fn below_thousand(n: usize) -> String {
    match (n / 100, n % 100) {
        (0, rest) => below_hundred(rest),
        (hundreds, 0) => format!("{} hundred", ONES[hundreds]),
        (hundreds, rest) => format!("{} hundred and {}", ONES[hundreds], below_hundred(rest)),
    }
}

/// Returns a whole number, given as its decimal digits.
///
/// # Errors
/// Numbers of 10^306 and more, which have no name.
pub(super) fn cardinal(digits: &str) -> Result<String, String> {
    let digits = digits.trim_start_matches('0');
    if digits.len() > MAX_DIGITS {
        return Err(format!("a number of {} digits has no words: write it differently", digits.len()));
    }
    if digits.is_empty() {
        return Ok(ONES[0].to_owned());
    }
    let mut out = String::new();
    let groups = digits.len().div_ceil(3);
    for k in (0..groups).rev() {
        let end = digits.len() - 3 * k;
        let group: usize = digits[end.saturating_sub(3)..end].parse().unwrap_or(0);
        if group == 0 {
            continue;
        }
        if !out.is_empty() {
            // What is left is below 100 only if this group is and is the last.
            out.push_str(if k == 0 && group < 100 { " and " } else { ", " });
        }
        out.push_str(&below_thousand(group));
        if k > 0 {
            out.push(' ');
            out.push_str(&scale(k));
        }
    }
    Ok(out)
}

/// Returns the place of a whole number: "twenty-first".
///
/// # Errors
/// As [`cardinal`].
pub(super) fn ordinal(digits: &str) -> Result<String, String> {
    let words = cardinal(digits)?;
    let at = words.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (before, last) = words.split_at(at);
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        _ => match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        },
    };
    Ok(format!("{before}{last}"))
}

/// Returns a number with a fraction, digit by digit after "point"; of the shortest digits that give the same 64-bit number, as there.
///
/// # Errors
/// Numbers too large, or with more digits after the point than such a number can have.
pub(super) fn decimal(value: f64) -> Result<String, String> {
    let too_large = || "a number with so many digits has no words: write it differently".to_owned();
    if !value.is_finite() {
        return Err(too_large());
    }
    let whole = value.trunc();
    let mut words = rounded(whole)?;
    if whole == value {
        return Ok(words);
    }
    let precision = format!("{value}").split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let power: f64 = format!("1e{precision}").parse().map_err(|_| too_large())?;
    if !power.is_finite() {
        return Err(too_large());
    }
    let shifted = (value - whole).abs() * power;
    let nearest = shifted.round_ties_even();
    // What a sum of binary fractions misses by little is meant, as in the package.
    let fraction = if (nearest - shifted).abs() < 0.01 { nearest } else { shifted.floor() };
    let fraction = format!("{fraction:0precision$.0}");
    words.push_str(" point");
    for digit in fraction.bytes().take(precision) {
        words.push(' ');
        words.push_str(ONES[usize::from(digit - b'0')]);
    }
    Ok(words)
}

/// Returns a whole number as the package takes it apart: by divisions of 64-bit numbers, which lose digits from 10^22 on.
fn rounded(mut value: f64) -> Result<String, String> {
    let (mut out, mut digits) = (String::new(), format!("{value:.0}"));
    if digits.len() > MAX_DIGITS {
        return cardinal(&digits);
    }
    while digits.len() > 22 {
        let k = (digits.len() - 1) / 3;
        let power: f64 = format!("1e{}", 3 * k).parse().unwrap_or(f64::INFINITY);
        let rest = value % power;
        let group = ((value - rest) / power).round();
        out.push_str(&format!("{} {}", cardinal(&format!("{group:.0}"))?, scale(k)));
        if rest == 0.0 {
            return Ok(out);
        }
        out.push_str(if rest < 100.0 { " and " } else { ", " });
        (value, digits) = (rest, format!("{rest:.0}"));
    }
    Ok(out + &cardinal(&digits)?)
}

/// A currency: its names of one and of several, and those of its hundredth.
pub(super) struct Currency {
    pub(super) whole: [&'static str; 2],
    pub(super) hundredth: [&'static str; 2],
}

/// Returns an amount of money; without the hundredths where it is whole. `None` for amounts that the package does not do.
pub(super) fn money(amount: f64, currency: &Currency) -> Option<String> {
    let hundredths = hundredths(amount)?;
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let form = |names: &[&'static str; 2], n: u128| names[usize::from(n != 1)];
    let mut words = format!("{} {}", cardinal(&whole.to_string()).ok()?, form(&currency.whole, whole));
    if amount.fract() != 0.0 {
        let rest_words = cardinal(&rest.to_string()).ok()?;
        words.push_str(&format!(", {rest_words} {}", form(&currency.hundredth, rest)));
    }
    Some(words)
}

/// Returns the exact value rounded to hundredths, halves up; `None` from 10^26 on, beyond Python's decimals of 28 digits.
fn hundredths(amount: f64) -> Option<u128> {
    if !(0.0..1e26).contains(&amount) {
        return None;
    }
    let bits = amount.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i32;
    let fraction = u128::from(bits & ((1 << 52) - 1));
    let mantissa = if exponent == 0 { fraction } else { fraction | 1 << 52 };
    // amount = mantissa * 2^shift
    let shift = exponent.max(1) - 1075;
    Some(match shift {
        0.. => (mantissa << shift) * 100,
        -64..0 => (mantissa * 200 + (1 << -shift)) >> (1 - shift),
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_and_places() {
        for (digits, words, place) in [
            ("0", "zero", "zeroth"),
            ("007", "seven", "seventh"),
            ("12", "twelve", "twelfth"),
            ("40", "forty", "fortieth"),
            ("101", "one hundred and one", "one hundred and first"),
            ("1100", "one thousand, one hundred", "one thousand, one hundredth"),
            ("1000001", "one million and one", "one million and first"),
            (
                "21345678",
                "twenty-one million, three hundred and forty-five thousand, six hundred and seventy-eight",
                "twenty-one million, three hundred and forty-five thousand, six hundred and seventy-eighth",
            ),
        ] {
            assert_eq!(cardinal(digits).as_deref(), Ok(words));
            assert_eq!(ordinal(digits).as_deref(), Ok(place));
        }
        assert_eq!(cardinal(&format!("1{}", "0".repeat(33))).as_deref(), Ok("one decillion"));
        assert_eq!(cardinal(&format!("1{}", "0".repeat(303))).as_deref(), Ok("one centillion"));
        assert!(cardinal(&"9".repeat(306)).is_ok() && cardinal(&"9".repeat(307)).is_err());
    }

    #[test]
    fn fractions_and_money() {
        assert_eq!(decimal(12.5).as_deref(), Ok("twelve point five"));
        assert_eq!(decimal(3.0).as_deref(), Ok("three"));
        assert_eq!(decimal(0.05).as_deref(), Ok("zero point zero five"));
        // Divisions that lose digits, as the package has them.
        let lost = "three hundred and fifty-six trillion, eight hundred and fifty-eight billion, six hundred and forty-two million, \
                    seven hundred and twenty-six thousand, nine hundred and twelve";
        assert!(decimal(89_603_445_301_607_362_517_297_520_760.925_269_3).unwrap().ends_with(lost));
        assert!(decimal(f64::INFINITY).is_err() && decimal(f64::MIN_POSITIVE / 2.0).is_err());
        let euro = Currency { whole: ["euro", "euro"], hundredth: ["cent", "cents"] };
        let said = |amount| money(amount, &euro).unwrap();
        assert_eq!(said(20.0), "twenty euro");
        assert_eq!(said(20.15), "twenty euro, fifteen cents");
        assert_eq!(said(1.01), "one euro, one cent");
        // 0.005 is a little above a half, 1.005 a little below.
        assert_eq!((hundredths(0.005), hundredths(1.005), hundredths(0.125)), (Some(1), Some(100), Some(13)));
        assert_eq!((hundredths(5e-324), hundredths(2f64.powi(80))), (Some(0), Some(100 << 80)));
        assert_eq!(money(1e26, &euro), None);
    }
}
