//! Numbers of a Chinese text in characters: dates, money, telephone numbers, fractions, percentages, counts, in this order; by the rules
//! of chn_text_norm, which the cleaners of speech models use. Each rule finds all of its numbers and then replaces, one after the other,
//! the first place where the same digits stand, wherever that is.

use super::{expression, is_digit};
use regex::Regex;
use std::sync::LazyLock;

const DIGITS: [char; 10] = ['零', '一', '二', '三', '四', '五', '六', '七', '八', '九'];
/// Names of powers of ten, the largest first.
const UNITS: [(usize, char); 14] = [
    (44, '载'),
    (40, '正'),
    (36, '涧'),
    (32, '沟'),
    (28, '穰'),
    (24, '秭'),
    (20, '垓'),
    (16, '京'),
    (12, '兆'),
    (8, '亿'),
    (4, '万'),
    (3, '千'),
    (2, '百'),
    (1, '十'),
];
/// Most digits of one number: 10^48 is the largest with a name, and nobody says longer ones.
const MAX_DIGITS: usize = 1000;
/// Measure words of one character, or their first ones.
const MEASURES: &str = "丈世丘丝两个丸代令件伏位冬出刀分刻勺匹升单卮厘双叠口只合名周啖回场块坡堂堆墙壳壶夏夜天头季客家寸对寻尺尾层山岁岭\
    常幢年座张忽户手扎打担挑捆撮支斗斛斤日旬时春曲更月本条杯板枝根桶棵毫江泡溪炮煲片瓶盆盏盒盘石砣碗碟秋秒程窠笼管箩箱篮簋粒纪线罐网\
    罗群脚腔袋袭课贯贴跳身辆辈道里针钟钧钱钵铢铺锅锱阙队阵面页顶颗首";
const MAGNITUDES: &str = "亿|千万|百万|万|千|百|元|块|角|毛|分";

enum Symbol {
    Digit(usize),
    /// A power of ten.
    Unit(usize),
    Point,
}

struct Rules {
    date: Regex,
    money: Regex,
    mobile: Regex,
    landline: Regex,
    fraction: Regex,
    percentage: Regex,
    count: Regex,
    code: Regex,
    number: Regex,
    between_letters: Regex,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let unit = MAGNITUDES;
    Rules {
        date: expression(r"\D+((?:(?:[089]\d|(?:19|20)\d{2})年)?(?:\d{1,2}月(?:\d{1,2}[日号])?)?)"),
        money: expression(&format!(r"\D+(\d+(?:\.\d+)?[多余几]?(?:{unit})(?:\d(?:{unit})?)?)")),
        mobile: expression(r"\D((?:\+?86 ?)?1(?:[38]\d|5[0-35-9]|7[678]|9[89])\d{8})\D"),
        landline: expression(r"\D((?:0(?:10|2[1-3]|[3-9]\d{2})-?)?[1-9]\d{6,7})\D"),
        fraction: expression(r"(\d+/\d+)"),
        percentage: expression(r"(\d+(?:\.\d+)?%)"),
        count: expression(&format!(r"(\d+(?:\.\d+)?)[多余几]?(?:[{MEASURES}]|[千微][克米])")),
        code: expression(r"(\d{4,32})"),
        number: expression(r"(\d+(?:\.\d+)?)"),
        between_letters: expression("(([a-zA-Z]+)二([a-zA-Z]+))"),
    }
});

/// Returns a Chinese text with its numbers in characters and every mark of punctuation, whatever it is, as a comma.
///
/// # Errors
/// Numbers of over a thousand digits, for people.
pub fn chinese_numbers(text: &str) -> Result<String, String> {
    let rules = &*RULES;
    let mut text = format!("^{text}$");
    each(&rules.date, &mut text, date)?;
    each(&rules.money, &mut text, |amount| {
        // There, every place in the amount where the digits stand is replaced, for each number of it.
        let mut said = amount.to_owned();
        for number in rules.number.find_iter(amount) {
            said = said.replace(number.as_str(), &cardinal(number.as_str())?);
        }
        Ok(said)
    })?;
    each(&rules.mobile, &mut text, |number| Ok(one_by_one(&number.replace([' ', '+'], ""))))?;
    each(&rules.landline, &mut text, |number| Ok(one_by_one(&number.replace('-', ""))))?;
    each(&rules.fraction, &mut text, |fraction| {
        let (above, below) = fraction.split_once('/').unwrap_or((fraction, ""));
        Ok(format!("{}分之{}", cardinal(below)?, cardinal(above)?))
    })?;
    text = text.replace('％', "%");
    each(&rules.percentage, &mut text, |share| Ok(format!("百分之{}", cardinal(share.trim_matches('%'))?)))?;
    each(&rules.count, &mut text, cardinal)?;
    each(&rules.code, &mut text, |digits| Ok(one_by_one(digits)))?;
    each(&rules.number, &mut text, cardinal)?;
    // P2P, B2B and the like.
    each(&rules.between_letters, &mut text, |name| {
        let parts = rules.between_letters.captures(name);
        Ok(parts.map_or_else(|| name.to_owned(), |p| format!("{}2{}", &p[2], &p[3])))
    })?;
    let text = text.trim_start_matches('^').trim_end_matches('$');
    Ok(text.chars().map(|c| if is_punctuation(c) { ',' } else { c }).collect())
}

/// Finds what a rule is about, in its first group, and then says each in the first place where it stands.
fn each(rule: &Regex, text: &mut String, say: impl Fn(&str) -> Result<String, String>) -> Result<(), String> {
    let found: Vec<String> = rule.captures_iter(text).map(|found| found[1].to_owned()).collect();
    for number in found.iter().filter(|number| !number.is_empty()) {
        *text = text.replacen(number.as_str(), &say(number)?, 1);
    }
    Ok(())
}

/// Says a date: the digits of the year one by one, month and day as numbers.
fn date(date: &str) -> Result<String, String> {
    let (mut said, rest) = match date.split_once('年') {
        Some((year, rest)) => (format!("{}年", one_by_one(year)), rest),
        None => (String::new(), date),
    };
    if let Some((month, day)) = rest.split_once('月') {
        said.push_str(&format!("{}月", cardinal(month)?));
        let mut day = day.to_owned();
        if let Some(word) = day.pop() {
            said.push_str(&cardinal(&day)?);
            said.push(word);
        }
    }
    Ok(said)
}

/// Returns the value of a decimal digit of any script: ten lie together, and nothing but other tens before them.
fn digit(c: char) -> Option<usize> {
    if c.is_ascii() || !is_digit(c) {
        return c.to_digit(10).map(|digit| digit as usize);
    }
    let before = (0..u32::from(c)).rev().map_while(char::from_u32).take_while(|c| is_digit(*c));
    Some(before.count() % 10)
}

fn one_by_one(digits: &str) -> String {
    digits.chars().filter_map(digit).map(|digit| DIGITS[digit]).collect()
}

/// Says a number of digits with at most one point.
fn cardinal(number: &str) -> Result<String, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: Vec<char> = whole.chars().collect();
    if whole.len() > MAX_DIGITS {
        return Err(format!("a number of {} digits has no words: write it differently", whole.len()));
    }
    let mut symbols = Vec::new();
    match &*whole {
        [one] => symbols.extend(digit(*one).map(Symbol::Digit)),
        many => powers(many, &mut symbols),
    }
    if !fraction.is_empty() {
        symbols.push(Symbol::Point);
        symbols.extend(fraction.chars().filter_map(digit).map(Symbol::Digit));
    }
    let larger_than_ten = |unit: Option<&Symbol>| matches!(unit, Some(Symbol::Unit(power)) if *power != 1);
    let mut said = String::new();
    for (i, symbol) in symbols.iter().enumerate() {
        let begins = i == 0 || larger_than_ten(symbols.get(i - 1));
        said.push(match symbol {
            Symbol::Digit(2) if begins && larger_than_ten(symbols.get(i + 1)) => '两',
            Symbol::Digit(digit) => DIGITS[*digit],
            Symbol::Unit(power) => UNITS.iter().find(|(p, _)| p == power).map_or('十', |(_, name)| *name),
            Symbol::Point => '点',
        });
    }
    if said.starts_with('点') {
        said.insert(0, '零');
    }
    match said.strip_prefix('一') {
        Some(teen) if teen.starts_with('十') => Ok(teen.to_owned()),
        _ => Ok(said),
    }
}

/// Writes digits with the names of their powers. Zeros before others are said once; full-width zeros are no zeros here, as there.
fn powers(digits: &[char], out: &mut Vec<Symbol>) {
    let zeros = digits.iter().take_while(|c| **c == '0').count();
    let rest = &digits[zeros..];
    if rest.len() > 1 {
        let power = UNITS.iter().map(|(power, _)| *power).find(|power| *power < rest.len()).unwrap_or(1);
        powers(&digits[..digits.len() - power], out);
        out.push(Symbol::Unit(power));
        powers(&rest[rest.len() - power..], out);
    } else if let [last] = rest {
        if zeros > 0 {
            out.push(Symbol::Digit(0));
        }
        out.extend(digit(*last).map(Symbol::Digit));
    }
}

/// Chinese marks and those of ASCII.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
        || matches!(c, '\u{b7}' | '\u{2013}'..='\u{2014}' | '\u{2018}'..='\u{2019}' | '\u{201b}'..='\u{201f}'
            | '\u{2026}'..='\u{2027}' | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301f}'
            | '\u{3030}' | '\u{303e}'..='\u{303f}' | '\u{fe4f}' | '\u{ff01}'..='\u{ff0d}' | '\u{ff0f}'
            | '\u{ff1a}'..='\u{ff20}' | '\u{ff3b}'..='\u{ff40}' | '\u{ff5b}'..='\u{ff64}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_powers() {
        for (number, said) in [
            ("0", "零"),
            ("10", "十"),
            ("2", "二"),
            ("12", "十二"),
            ("20", "二十"),
            ("22", "二十二"),
            ("200", "两百"),
            ("2222", "两千两百二十二"),
            ("1002", "一千零二"),
            ("20000", "两万"),
            ("00", ""),
            ("007", "零七"),
            ("0.50", "零点五零"),
            ("00.5", "零点五"),
            ("100000000", "一亿"),
        ] {
            assert_eq!(cardinal(number).as_deref(), Ok(said), "{number}");
        }
        assert!(cardinal(&"1".repeat(1001)).is_err());
    }

    #[test]
    fn rules_follow_each_other() {
        for (text, said) in [
            ("在12.5秒内，有50名士兵", "在十二点五秒内,有五十名士兵"),
            ("2024年2月10日", "二零二四年二月十日"),
            ("花了3.5元5角，占６％！", "花了三点五元五角,占百分之六,"),
            ("电话13812345678。", "电话一三八一二三四五六七八,"),
            ("1/2的b2b是2000", "二分之一的b2b是二零零零"),
        ] {
            assert_eq!(chinese_numbers(text).as_deref(), Ok(said));
        }
        assert_eq!(["٣", "７", "9"].map(|c| c.chars().next().and_then(digit)), [Some(3), Some(7), Some(9)]);
    }
}
