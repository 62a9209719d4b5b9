//! Texts as XTTS reads them: cleaned by rules of their language, then `[language]` before them, `[SPACE]` for every space, and the
//! subwords of `vocab.json` (the package's `VoiceBpeTokenizer`).
//!
//! English and Chinese are cleaned whole. Of most other languages everything is but numbers, whose words are not known here; of Korean and
//! Japanese nothing is, for they are written in Latin letters first. What cannot be done is refused, never read as something else:
//! texts that the package cleaned are taken as they are where the recipe says so.

use crate::error::RunError;
use crate::tokens::{Reader, Tokens};
use crate::weights::read_text;
use ambitus_data::DataError;
use ambitus_data::text::{
    Bpe, READINGS_BYTES, READINGS_PAGES, Syllables, chinese_numbers, english_numbers, is_digit, is_word,
    strip,
};
use std::path::Path;

/// Name of the tokenizer's file.
pub(super) const VOCAB_FILE: &str = "vocab.json";
/// The file in which a data set names its language, and the most that it may hold.
const LANGUAGE_FILE: &str = "lang.txt";
const MAX_LANGUAGE_BYTES: u64 = 1 << 10;
/// What the file calls the ends of a text.
const START: &str = "[START]";
const STOP: &str = "[STOP]";
const UNKNOWN: &str = "[UNK]";
const SPACE: &str = "[SPACE]";

/// How the numbers of a language are cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    English,
    /// And then its characters as syllables.
    Chinese,
    /// Not known here.
    None,
    /// Nor is the rest: the text is first written in Latin letters.
    Romanised,
}

/// A language of the model.
struct Language {
    /// Before a `-` and a region.
    code: &'static str,
    name: &'static str,
    numbers: Numbers,
    /// What stands before a point that ends the abbreviation, and its word. In Russian no point is asked for.
    abbreviations: &'static [(&'static str, &'static str)],
    /// Words of `&@%#$£°`.
    symbols: [&'static str; 7],
}

const SYMBOLS: [&str; 7] = ["&", "@", "%", "#", "$", "£", "°"];

const LANGUAGES: &[Language] = &[
    Language {
        code: "en",
        name: "English",
        numbers: Numbers::English,
        abbreviations: &[
            ("mrs", "misess"),
            ("mr", "mister"),
            ("dr", "doctor"),
            ("st", "saint"),
            ("co", "company"),
            ("jr", "junior"),
            ("maj", "major"),
            ("gen", "general"),
            ("drs", "doctors"),
            ("rev", "reverend"),
            ("lt", "lieutenant"),
            ("hon", "honorable"),
            ("sgt", "sergeant"),
            ("capt", "captain"),
            ("esq", "esquire"),
            ("ltd", "limited"),
            ("col", "colonel"),
            ("ft", "fort"),
        ],
        symbols: ["and", "at", "percent", "hash", "dollar", "pound", "degree"],
    },
    Language {
        code: "zh",
        name: "Chinese",
        numbers: Numbers::Chinese,
        abbreviations: &[],
        symbols: ["和", "在", "百分之", "号", "美元", "英镑", "度"],
    },
    Language {
        code: "es",
        name: "Spanish",
        numbers: Numbers::None,
        abbreviations: &[
            ("sra", "señora"),
            ("sr", "señor"),
            ("dr", "doctor"),
            ("dra", "doctora"),
            ("st", "santo"),
            ("co", "compañía"),
            ("jr", "junior"),
            ("ltd", "limitada"),
        ],
        symbols: ["y", "arroba", "por ciento", "numeral", "dolar", "libra", "grados"],
    },
    Language {
        code: "fr",
        name: "French",
        numbers: Numbers::None,
        abbreviations: &[
            ("mme", "madame"),
            ("mr", "monsieur"),
            ("dr", "docteur"),
            ("st", "saint"),
            ("co", "compagnie"),
            ("jr", "junior"),
            ("ltd", "limitée"),
        ],
        symbols: ["et", "arobase", "pour cent", "dièse", "dollar", "livre", "degrés"],
    },
    Language {
        code: "de",
        name: "German",
        numbers: Numbers::None,
        abbreviations: &[
            ("fr", "frau"),
            ("dr", "doktor"),
            ("st", "sankt"),
            ("co", "firma"),
            ("jr", "junior"),
        ],
        symbols: ["und", "at", "prozent", "raute", "dollar", "pfund", "grad"],
    },
    Language {
        code: "pt",
        name: "Portuguese",
        numbers: Numbers::None,
        abbreviations: &[
            ("sra", "senhora"),
            ("sr", "senhor"),
            ("dr", "doutor"),
            ("dra", "doutora"),
            ("st", "santo"),
            ("co", "companhia"),
            ("jr", "júnior"),
            ("ltd", "limitada"),
        ],
        symbols: ["e", "arroba", "por cento", "cardinal", "dólar", "libra", "graus"],
    },
    Language {
        code: "it",
        name: "Italian",
        numbers: Numbers::None,
        abbreviations: &[
            ("sig", "signore"),
            ("dr", "dottore"),
            ("st", "santo"),
            ("co", "compagnia"),
            ("jr", "junior"),
            ("ltd", "limitata"),
        ],
        symbols: ["e", "chiocciola", "per cento", "cancelletto", "dollaro", "sterlina", "gradi"],
    },
    Language {
        code: "pl",
        name: "Polish",
        numbers: Numbers::None,
        abbreviations: &[("p", "pani"), ("m", "pan"), ("dr", "doktor"), ("sw", "święty"), ("jr", "junior")],
        symbols: ["i", "małpa", "procent", "krzyżyk", "dolar", "funt", "stopnie"],
    },
    Language {
        code: "ar",
        name: "Arabic",
        numbers: Numbers::None,
        abbreviations: &[],
        symbols: ["و", "على", "في المئة", "رقم", "دولار", "جنيه", "درجة"],
    },
    Language {
        code: "cs",
        name: "Czech",
        numbers: Numbers::None,
        abbreviations: &[("dr", "doktor"), ("ing", "inženýr"), ("p", "pan")],
        symbols: ["a", "na", "procento", "křížek", "dolar", "libra", "stupně"],
    },
    Language {
        code: "ru",
        name: "Russian",
        numbers: Numbers::None,
        abbreviations: &[("г-жа", "госпожа"), ("г-н", "господин"), ("д-р", "доктор")],
        symbols: ["и", "собака", "процентов", "номер", "доллар", "фунт", "градус"],
    },
    Language {
        code: "nl",
        name: "Dutch",
        numbers: Numbers::None,
        abbreviations: &[("dhr", "de heer"), ("mevr", "mevrouw"), ("dr", "dokter"), ("jhr", "jonkheer")],
        symbols: ["en", "bij", "procent", "hekje", "dollar", "pond", "graden"],
    },
    Language {
        code: "tr",
        name: "Turkish",
        numbers: Numbers::None,
        abbreviations: &[("b", "bay"), ("byk", "büyük"), ("dr", "doktor")],
        symbols: ["ve", "at", "yüzde", "diyez", "dolar", "sterlin", "derece"],
    },
    Language {
        code: "hu",
        name: "Hungarian",
        numbers: Numbers::None,
        abbreviations: &[("dr", "doktor"), ("b", "bácsi"), ("nőv", "nővér")],
        symbols: ["és", "kukac", "százalék", "kettőskereszt", "dollár", "font", "fok"],
    },
    Language {
        code: "hi",
        name: "Hindi",
        numbers: Numbers::None,
        abbreviations: &[],
        symbols: ["और", "ऐट दी रेट", "प्रतिशत", "हैश", "डॉलर", "पाउंड", "डिग्री"],
    },
    Language {
        code: "ko",
        name: "Korean",
        numbers: Numbers::Romanised,
        abbreviations: &[],
        symbols: SYMBOLS,
    },
    Language {
        code: "ja",
        name: "Japanese",
        numbers: Numbers::Romanised,
        abbreviations: &[],
        symbols: SYMBOLS,
    },
];

/// What to do about a text that is not cleaned here.
const REMEDY: &str = "write it in words, or give what the package's cleaner (`preprocess_text`) makes of it, with --cleaned (`xtts: {cleaned: true}`)";

/// Returns the language that a data set names in `lang.txt`, beside its metadata; `None` where there is no such file.
///
/// # Errors
/// A file that cannot be read, or names none of the model's languages: it is part of the data.
pub(super) fn language_of(data: &Path) -> Result<Option<String>, RunError> {
    let folder = if data.is_dir() { Some(data) } else { data.parent() };
    let path = folder.unwrap_or(data).join(LANGUAGE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = read_text(&path, MAX_LANGUAGE_BYTES, "write the language of the clips into it");
    let text = text.map_err(|e| match e {
        RunError::Model(why) => DataError::Invalid(why).into(),
        e => e,
    })?;
    let code = text.trim();
    language(code).map_err(|e| DataError::File { path, reason: e.to_string() })?;
    Ok(Some(code.to_owned()))
}

/// Returns the language of a code, with or without a region.
fn language(code: &str) -> Result<&'static Language, DataError> {
    let bare = code.split('-').next().unwrap_or(code);
    LANGUAGES.iter().find(|l| l.code == bare).ok_or_else(|| {
        let known: Vec<&str> = LANGUAGES.iter().map(|l| l.code).collect();
        let code = code.chars().take(20).collect::<String>();
        DataError::Invalid(format!("language `{code}` is none of the model's: {}", known.join(", ")))
    })
}

/// Returns a text in a language, cleaned as the package does it before it spells it.
///
/// # Errors
/// A language without rules here, and what of a text has no words, each by name and with what to do.
pub(super) fn cleaned(text: &str, language: &str, syllables: &Syllables) -> Result<String, DataError> {
    let of = self::language(language)?;
    let refused = |what: String| Err(DataError::Invalid(format!("{what}: {REMEDY}")));
    let mut text = text.replace('"', "");
    if of.code == "tr" {
        text = text.replace('İ', "i").replace('Ö', "ö").replace('Ü', "ü");
    }
    text = text.to_lowercase();
    let numbers = match of.numbers {
        Numbers::English => english_numbers(&text),
        Numbers::Chinese => chinese_numbers(&text),
        Numbers::Romanised => {
            return refused(format!(
                "{} is written in Latin letters before it is read, by rules that are not here",
                of.name
            ));
        }
        Numbers::None => match text.chars().find(|c| is_digit(*c)) {
            Some(digit) => Err(format!("the words of numbers ({digit}) in {} are not known here", of.name)),
            None => Ok(text),
        },
    };
    let mut text = match numbers {
        Ok(text) => text,
        Err(what) => return refused(what),
    };
    for (short, word) in of.abbreviations {
        text = expanded(&text, short, word, of.code == "ru");
    }
    for (symbol, word) in SYMBOLS.iter().zip(of.symbols) {
        text = text.replace(symbol, &format!(" {word} ")).replace("  ", " ");
    }
    let text = collapsed(&text);
    Ok(if of.numbers == Numbers::Chinese { syllables.read(&text) } else { text })
}

/// Puts a word in place of an abbreviation that begins a word and ends in a point or, if `whole`, with the word.
fn expanded(text: &str, short: &str, word: &str, whole: bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let short: Vec<char> = short.chars().collect();
    // Python's expressions without regard to case also take these for each other.
    let same = |a: char, b: char| a == b || matches!((a, b), ('ſ', 's') | ('ı', 'i'));
    let ends = |at: usize| match whole {
        true => !chars.get(at).is_some_and(|c| is_word(*c)),
        false => chars.get(at) == Some(&'.'),
    };
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < chars.len() {
        let end = at + short.len();
        let found = chars.get(at..end).is_some_and(|part| part.iter().zip(&short).all(|(a, b)| same(*a, *b)));
        if found && ends(end) && !(at > 0 && is_word(chars[at - 1])) {
            out.push_str(word);
            at = end + usize::from(!whole);
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Returns a text with one space for every row of them, and none at its ends.
fn collapsed(text: &str) -> String {
    let spaces = |c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}');
    let mut out = String::with_capacity(text.len());
    for c in strip(text).chars() {
        match spaces(c) {
            true if out.ends_with(' ') => {}
            true => out.push(' '),
            false => out.push(c),
        }
    }
    out
}

/// Returns the bytes of the dictionary of Chinese readings, and what stays of them, unless texts are `cleaned` or in another language.
pub(super) fn readings(cleaned: bool, language: Option<&str>) -> (u64, u64) {
    let reads = !cleaned && language.is_none_or(|language| language.starts_with("zh"));
    if reads { (READINGS_BYTES, READINGS_PAGES) } else { (0, 0) }
}

/// The tokenizer of a model folder, with the cleaners before it.
pub(super) struct Texts {
    bpe: Bpe,
    syllables: Syllables,
    /// Texts are taken as they are.
    cleaned: bool,
    stop: u32,
    unknown: Option<u32>,
}

impl Texts {
    /// Reads `vocab.json` of a model folder in at most `room` bytes of memory. `cleaned`: texts were cleaned by the package.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer of this model, or takes more memory.
    pub(super) fn read(dir: &Path, room: u64, cleaned: bool) -> Result<Texts, DataError> {
        let bpe = Bpe::read_file(&dir.join(VOCAB_FILE), room)?;
        let of = |token: &str| {
            bpe.id(token).ok_or_else(|| {
                let path = bpe.path().to_owned();
                DataError::File {
                    path,
                    reason: format!("has no {token}: copy that of the model that you fine-tune"),
                }
            })
        };
        let (_, stop, _) = (of(START)?, of(STOP)?, of(SPACE)?);
        let unknown = bpe.id(UNKNOWN);
        Ok(Texts { bpe, syllables: Syllables::default(), cleaned, stop, unknown })
    }

    /// Returns the ids of a text, as the package's `encode` gives them: without the tokens at its ends.
    ///
    /// # Errors
    /// As [`cleaned`]; a language that the file has no token for.
    pub(super) fn encode(&self, text: &str, language: &str) -> Result<Vec<u32>, DataError> {
        let text = match self.cleaned {
            true => text.to_owned(),
            false => cleaned(text, language, &self.syllables)?,
        };
        let code = language.split('-').next().unwrap_or(language);
        let before = format!("[{}]", if code == "zh" { "zh-cn" } else { code });
        if self.bpe.id(&before).is_none() {
            let path = self.bpe.path().to_owned();
            return Err(DataError::File {
                path,
                reason: format!("has no {before}: the model does not speak it"),
            });
        }
        self.bpe.encode(&format!("{before}{text}").replace(' ', SPACE))
    }

    /// Returns what reads texts in a language, with `[START]` and `[STOP]` left out, as the package's `encode`.
    ///
    /// # Errors
    /// A language that is none of the model's; then of each text as [`encode`](Self::encode).
    pub(super) fn reader<'a>(self, language: &str) -> Result<Reader<'a>, RunError> {
        if !self.cleaned {
            self::language(language).map_err(|e| RunError::Usage(format!("--language: {e}")))?;
        }
        let language = language.to_owned();
        Ok(Box::new(move |text| {
            let ids = self.encode(text, &language)?;
            let pieces = ids.iter().map(|id| self.bpe.piece(*id).unwrap_or_default()).collect();
            Ok(Tokens { ids, pieces })
        }))
    }

    /// Returns the first token of these ids that no text of training may have, for people: a part of the text that the vocabulary lacks,
    /// or the end.
    pub(super) fn refused(&self, ids: &[u32]) -> Option<&'static str> {
        ids.iter().find_map(|id| match *id {
            id if Some(id) == self.unknown => Some("has characters that vocab.json does not have"),
            id if id == self.stop => Some("has [STOP], which ends a text"),
            _ => None,
        })
    }

    /// Returns the tokenizer.
    pub(super) fn bpe(&self) -> &Bpe {
        &self.bpe
    }
}

#[cfg(test)]
mod tests;
