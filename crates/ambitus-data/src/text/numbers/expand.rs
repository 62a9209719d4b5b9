//! Numbers of an English text in words: amounts of money, decimals, places, whole numbers, in this order, by the rules of the cleaners
//! that speech models were trained with.

use super::english::{Currency, cardinal, decimal, money, ordinal};
use super::{expression, is_digit, is_word, substitute};
use regex::Regex;
use std::sync::LazyLock;

/// In the order in which they are looked for.
static MONEY: LazyLock<[(Regex, Currency); 3]> = LazyLock::new(|| {
    let of = |sign: &str| {
        let sign = regex::escape(sign);
        expression(&format!("{sign}[0-9.,]*[0-9]+|[0-9.,]*[0-9]+{sign}"))
    };
    let cents = ["cent", "cents"];
    [
        (of("£"), Currency { whole: ["pound sterling", "pounds sterling"], hundredth: ["penny", "pence"] }),
        (of("$"), Currency { whole: ["dollar", "dollars"], hundredth: cents }),
        (of("€"), Currency { whole: ["euro", "euro"], hundredth: cents }),
    ]
});
static DECIMAL: LazyLock<Regex> = LazyLock::new(|| expression("[0-9]+[.,][0-9]+"));
static ORDINAL: LazyLock<Regex> = LazyLock::new(|| expression("([0-9]+)(?:st|nd|rd|th)"));
static NUMBER: LazyLock<Regex> = LazyLock::new(|| expression("[0-9]+"));

/// Returns an English text in lower case with every number of ASCII digits in words. What follows a number is not looked at: "1950s"
/// is "one thousand, nine hundred and fiftys", as the models have it.
///
/// # Errors
/// Numbers that have no words (from 10^306 on), for people.
pub fn english_numbers(text: &str) -> Result<String, String> {
    let mut text = without_commas(text);
    for (pattern, currency) in &*MONEY {
        let said = substitute(pattern, &text, |found| {
            let amount: String = found[0]
                .chars()
                .filter(|c| matches!(c, '0'..='9' | '.' | ','))
                .map(|c| if c == ',' { '.' } else { c })
                .collect();
            // Two points are no number.
            let amount: f64 = amount.parse().map_err(|_| String::new())?;
            money(amount, currency).ok_or_else(String::new)
        });
        match said {
            Ok(said) => text = said,
            // There, one amount that cannot be read leaves those of this currency and of the next ones to the rules below.
            Err(_) => break,
        }
    }
    let text = substitute(&DECIMAL, &text, |found| {
        decimal(found[0].replace(',', ".").parse().unwrap_or(f64::INFINITY))
    })?;
    let text = substitute(&ORDINAL, &text, |found| ordinal(&found[1]))?;
    substitute(&NUMBER, &text, |found| cardinal(&found[0]))
}

/// Takes the commas out of numbers such as 1,234,567.8: up to three digits, groups of three after commas, perhaps digits after a point;
/// no letter or digit may touch the whole.
fn without_commas(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let digits = |from: usize| chars[from..].iter().take_while(|c| is_digit(**c)).count();
    let ends_at = |at: usize| !chars.get(at).is_some_and(|c| is_word(*c));
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < chars.len() {
        let run = digits(at);
        if run == 0 {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        let begins = at == 0 || !is_word(chars[at - 1]);
        let mut end = at + run;
        if begins && run <= 3 {
            let mut ends = vec![end];
            while chars.get(end) == Some(&',') && digits(end + 1) >= 3 {
                end += 4;
                ends.push(end);
            }
            let with_fraction = |end: usize| {
                let fraction = if chars.get(end) == Some(&'.') { digits(end + 1) } else { 0 };
                let after = end + 1 + fraction;
                if fraction > 0 && ends_at(after) { Some(after) } else { ends_at(end).then_some(end) }
            };
            end = ends.into_iter().rev().find_map(with_fraction).unwrap_or(at + run);
        }
        out.extend(chars[at..end].iter().filter(|c| **c != ','));
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_go_only_out_of_whole_numbers() {
        for (text, want) in [
            ("1,234,567.8.", "1234567.8."),
            ("1,234,5678", "1234,5678"),
            ("a1,234 12,34 1234,567", "a1,234 12,34 1234,567"),
            ("1,000² 1,000.5x", "1,000² 1000.5x"),
            ("1,2,3,400", "1,2,3400"),
        ] {
            assert_eq!(without_commas(text), want);
        }
    }

    #[test]
    fn numbers_of_a_sentence() {
        for (text, want) in [
            ("that will be $20 sir.", "that will be twenty dollars sir."),
            (
                "£1.01, 20.15€ and $1,000",
                "one pound sterling, one penny, twenty euro, fifteen cents and one thousand dollars",
            ),
            ("1st of 100,000.5", "first of one hundred thousand point five"),
            // An amount that is none leaves all currencies to the other rules.
            ("$1.2.3 €5", "$one point two.three €five"),
        ] {
            assert_eq!(english_numbers(text).as_deref(), Ok(want));
        }
        assert!(english_numbers(&"9".repeat(400)).is_err());
    }
}
