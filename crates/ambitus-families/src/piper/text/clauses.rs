//! Where espeak-ng ends the clauses of a text, and with which mark: its program prints their phonemes, a line each, without the marks.
//!
//! The rules and the properties of characters are those of espeak-ng 1.52 without SSML and without phonemes between brackets; 1.51 has the
//! same clauses. `parity/piper/texts.py` compares them with the package's on texts at random.

/// A part of a text that espeak-ng reads as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clause<'a> {
    /// With its mark and the spaces after it.
    pub text: &'a str,
    pub end: End,
}

impl<'a> Clause<'a> {
    /// Returns the clause without its mark and the spaces around that.
    pub fn words(&self) -> &'a str {
        self.text.trim_end_matches(|c| is_space(c) || kind(c).is_some())
    }
}

/// How a clause ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The mark after its phonemes, one of `.?!,:;`. None where the package writes none: at an ellipsis, a mark of Chinese and others that need
    /// no space, the end of a paragraph and that of the text.
    pub mark: Option<char>,
    /// The sentence ends as well.
    pub sentence: bool,
}

/// The end of a text or a paragraph.
const WHOLE: End = End { mark: None, sentence: true };
/// Within a sentence.
const PART: End = End { mark: None, sentence: false };

/// Bytes from which a clause ends at whatever is neither letter nor digit, and those at which it ends anywhere.
const LONG: usize = 725;
const LONGEST: usize = 796;

/// What a character may be at the end of a clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One of `.?!,:;`, or what another script has for it.
    Mark(char),
    Ellipsis,
    Paragraph,
    /// Armenian, on a vowel: the word goes on.
    InWord,
}

/// The characters of each kind, but for rows of numbers with a full stop or a comma.
const KINDS: [(Kind, &str); 9] = [
    (
        Kind::Mark('.'),
        ".\u{589}\u{6d4}\u{701}\u{704}\u{964}\u{df4}\u{f0d}\u{1362}\u{166e}\u{1803}\u{1809}\u{2cf9}\u{2cfe}\u{2e33}\u{2e3c}\u{3002}\
         \u{a4ff}\u{a60e}\u{a6f3}\u{fe12}\u{fe52}\u{ff0e}\u{ff61}\u{16af5}\u{1bc9f}\u{1da88}\u{1f100}\u{e002e}",
    ),
    (
        Kind::Mark('?'),
        "?\u{37e}\u{61f}\u{709}\u{1367}\u{1945}\u{2047}\u{2753}\u{2754}\u{2cfa}\u{2cfb}\u{a60f}\u{a6f7}\u{fe16}\u{fe56}\u{ff1f}\
         \u{11143}\u{1e95f}\u{e003f}",
    ),
    (
        Kind::Mark('!'),
        "!\u{703}\u{7f9}\u{1944}\u{203c}\u{2755}\u{2757}\u{2762}\u{2763}\u{fe15}\u{fe57}\u{ff01}\u{1e95e}\u{e0021}",
    ),
    (
        Kind::Mark(','),
        ",\u{55d}\u{60c}\u{702}\u{7f8}\u{f14}\u{1363}\u{1802}\u{1808}\u{2e32}\u{2e34}\u{2e41}\u{3001}\u{a4fe}\u{a60d}\u{a6f5}\u{fe10}\
         \u{fe11}\u{fe50}\u{fe51}\u{ff0c}\u{ff64}\u{1144d}\u{1da87}\u{e002c}",
    ),
    (
        Kind::Mark(':'),
        ":\u{706}\u{707}\u{1365}\u{1366}\u{1804}\u{2982}\u{a6f4}\u{fe13}\u{fe55}\u{ff1a}\u{12471}\u{12472}\u{1da8a}\u{e003a}",
    ),
    // Dashes and what opens a question in Spanish among them.
    (
        Kind::Mark(';'),
        ";\u{a1}\u{bf}\u{387}\u{61b}\u{708}\u{1364}\u{2013}\u{2014}\u{204f}\u{2e35}\u{2e3a}\u{2e3b}\u{a6f6}\u{fe14}\u{fe31}\u{fe32}\
         \u{fe54}\u{ff1b}\u{1da89}\u{e003b}",
    ),
    (Kind::Ellipsis, "\u{eaf}\u{1801}\u{2026}\u{22ee}\u{22ef}\u{22f0}\u{22f1}\u{fe19}"),
    (Kind::Paragraph, "\u{700}\u{965}\u{f0e}\u{10fb}\u{1368}\u{2029}"),
    (Kind::InWord, "\u{55b}\u{55c}\u{55e}"),
];

/// Marks that need neither space nor bracket after them; every ellipsis is one as well.
const CLOSED: &str = "\u{a1}\u{bf}\u{589}\u{964}\u{df4}\u{f0d}\u{3001}\u{3002}\u{ff01}\u{ff0c}\u{ff0e}\u{ff1a}\u{ff1b}\u{ff1f}";

/// Brackets and quotes, but for those of general punctuation.
const BRACKETS: &str = "()[]{}<>\"'`\u{ab}\u{bb}\u{300a}\u{300b}";

/// Languages in which a full stop after a number may say "the third".
const ORDINALS: [&str; 13] = ["da", "de", "et", "fi", "hu", "kl", "lt", "ltg", "lv", "nb", "nl", "sl", "smj"];

/// Languages whose sentences may begin with a small letter.
const SMALL: [&str; 1] = ["ka"];

fn kind(c: char) -> Option<Kind> {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | ' ' => None,
        '\u{2488}'..='\u{249b}' => Some(Kind::Mark('.')),
        '\u{1f101}'..='\u{1f10a}' => Some(Kind::Mark(',')),
        c => KINDS.iter().find(|(_, of)| of.contains(c)).map(|(kind, _)| *kind),
    }
}

fn is_bracket(c: char) -> bool {
    ('\u{2014}'..='\u{201f}').contains(&c) || BRACKETS.contains(c)
}

fn is_space(c: char) -> bool {
    c.is_whitespace() && !matches!(c, '\u{a0}' | '\u{2007}' | '\u{202f}')
}

/// Title case counts as small: it is neither case alone.
fn is_small(c: char) -> bool {
    c.is_lowercase() || (c.to_uppercase().ne([c]) && c.to_lowercase().ne([c]))
}

fn is_roman(c: char) -> bool {
    matches!(c, 'I' | 'V' | 'X' | 'L')
}

/// Returns the clauses of a text in the language of a voice: at least one, which are the text together.
pub(super) fn clauses<'a>(text: &'a str, voice: &str) -> Vec<Clause<'a>> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let language = voice.split(['-', '+', '_']).next().unwrap_or(voice).to_ascii_lowercase();
    let reader = Reader {
        chars: &chars,
        ordinals: ORDINALS.contains(&&*language),
        small: SMALL.contains(&&*language),
    };
    let (mut out, mut from) = (Vec::new(), 0);
    let byte = |at: usize| chars.get(at).map_or(text.len(), |(byte, _)| *byte);
    loop {
        let (end, next) = reader.clause(from);
        out.push(Clause { text: &text[byte(from)..byte(next)], end });
        from = next;
        if from >= chars.len() {
            return out;
        }
    }
}

struct Reader<'a> {
    /// With where each begins.
    chars: &'a [(usize, char)],
    /// Of [`ORDINALS`].
    ordinals: bool,
    /// Of [`SMALL`].
    small: bool,
}

/// What was read of a clause.
#[derive(Debug)]
struct Read {
    /// The two characters before.
    before: [char; 2],
    /// There was a letter or a digit.
    word: bool,
    bytes: usize,
    /// Within a word with an Armenian mark: what ends it is no mark.
    marked: bool,
}

/// What a character does to its clause.
enum Step {
    /// The clause ends, and the next one begins here.
    End(End, usize),
    /// The character here is next, and the one at `next` follows it.
    On { at: usize, next: usize },
}

impl Read {
    /// Takes a character in, which may make the clause too long.
    fn take(&mut self, c: char, at: usize, next: usize) -> Step {
        self.before = [self.before[1], c];
        self.bytes += c.len_utf8();
        let breaks = self.bytes > LONG && !c.is_alphabetic() && !c.is_ascii_digit();
        if breaks || self.bytes >= LONGEST { Step::End(PART, at) } else { Step::On { at, next } }
    }
}

impl Reader<'_> {
    fn get(&self, at: usize) -> Option<char> {
        self.chars.get(at).map(|(_, c)| *c)
    }

    /// Returns the first place from here on where a character is no such one.
    fn past(&self, at: usize, is: impl Fn(char) -> bool) -> usize {
        at + self.chars.iter().skip(at).take_while(|(_, c)| is(*c)).count()
    }

    /// Returns the number of line breaks between two places.
    fn lines(&self, from: usize, to: usize) -> usize {
        let between = self.chars.get(from..to).unwrap_or_default();
        between.iter().filter(|(_, c)| *c == '\n').count()
    }

    /// Returns how the clause that begins here ends, and where the next one begins.
    fn clause(&self, from: usize) -> (End, usize) {
        let mut read = Read { before: [' '; 2], word: false, bytes: 0, marked: false };
        let (mut at, mut next) = (from, from + 1);
        while let Some(c) = self.get(at) {
            match self.step(c, next, &mut read) {
                Step::End(end, next) => return (end, next),
                Step::On { at: this, next: following } => (at, next) = (this, following),
            }
        }
        (WHOLE, self.chars.len())
    }

    /// Reads one character; `next` is where the one after it is.
    fn step(&self, c: char, mut next: usize, read: &mut Read) -> Step {
        if matches!(c, '\u{ad}' | '\u{200c}') {
            read.before = [read.before[1], c];
            return Step::On { at: next, next: next + 1 };
        }
        let in_word = c.is_alphanumeric();
        read.word |= in_word;
        if !in_word && std::mem::take(&mut read.marked) {
            return read.take(c, next, next + 1);
        }
        let mut c = c;
        if c == '\n' {
            let after = self.past(next, is_space);
            if self.lines(next, after) > 0 {
                return Step::End(WHOLE, after);
            }
            next = after;
        } else if c == '.' {
            let after = self.past(next, |c| c == '.');
            if after >= next + 2 {
                (c, next) = ('\u{2026}', after);
            }
        }
        let Some(what) = kind(c) else { return read.take(c, next, next + 1) };
        // Of several marks the first counts.
        next = self.past(next, |c| kind(c).is_some());
        if what == Kind::InWord {
            read.marked = true;
            read.before = [read.before[1], c];
            return Step::On { at: next, next: next + 1 };
        }
        let closed = what == Kind::Ellipsis || CLOSED.contains(c);
        let after = self.past(next, is_space);
        if closed || after > next || self.get(next).is_none_or(is_bracket) {
            let end = match what {
                Kind::Mark(mark) => End { mark: (!closed).then_some(mark), sentence: ".?!".contains(mark) },
                Kind::Ellipsis | Kind::InWord => PART,
                Kind::Paragraph => WHOLE,
            };
            match self.lines(next, after) {
                0 if self.goes_on(c, read, after) => {}
                0 | 1 => return Step::End(end, after),
                _ => return Step::End(WHOLE, after),
            }
        }
        // Spaces after a mark that ends nothing are one.
        read.take(c, next, after.max(next + 1))
    }

    /// Returns whether a clause goes on after a mark with something on its line after it, at `after`: it has no word so far, or the mark is the
    /// full stop of an abbreviation or of a number.
    fn goes_on(&self, c: char, read: &Read, after: usize) -> bool {
        if c != '.' {
            return !read.word;
        }
        let follows = self.get(after);
        let small = follows.is_some_and(is_small);
        let [earlier, before] = read.before;
        let ordinal = match before.is_ascii_digit() {
            true => small || follows == Some('-'),
            false => is_roman(before) && (is_roman(earlier) || is_space(earlier)),
        };
        !read.word
            || (self.ordinals && ordinal)
            || (small && !self.small)
            || (follows == Some('\'') && self.get(after + 1) == Some('s'))
    }
}
