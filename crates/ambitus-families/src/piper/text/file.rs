//! What `config.json` says of texts.

use super::{END, PAD, START, Source, Texts, symbols_of};
use crate::error::RunError;
use crate::hugging_face::CONFIG;
use crate::weights::{MAX_CONFIG_BYTES, read_text};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What `num_symbols` is where the file does not say it.
const SYMBOLS: usize = 256;

/// The package's own map: the phonemes of the ids from 0 on. Those of two letters have the last five.
const DEFAULT: &str = "_^$ !'(),-.:;?abcdefhijklmnopqrstuvwxyzæçðøħŋœǀǁǂǃɐɑɒɓɔɕɖɗɘəɚɛɜɞɟɠɡɢɣɤɥɦɧɨɪɫɬɭɮɯɰɱɲɳɴɵɶɸɹɺɻɽɾʀʁʂʃʄʈʉʊʋʌʍʎʏʐʑʒʔʕʘʙʛʜʝʟʡʢʲˈˌːˑ˞βθχᵻⱱ\
    0123456789\u{327}\u{303}\u{32a}\u{32f}\u{329}ʰˤε↓#\"↑\u{33a}\u{33b}gʦX\u{31d}\u{30a}ɝʷ";
const DEFAULT_PAIRS: [&str; 5] = ["aɪ", "aʊ", "ɔɪ", "eɪ", "oʊ"];

/// `config.json`: what matters of it here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    phoneme_type: Option<String>,
    espeak: Option<Espeak>,
    phoneme_id_map: Option<BTreeMap<String, Ids>>,
    num_symbols: Option<usize>,
    vowel_clusters: Option<Vec<Cluster>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Espeak {
    voice: Option<String>,
}

/// One id, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

/// Vowels that are one phoneme: a list of them, or the letters of a word.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Cluster {
    Word(String),
    List(Vec<String>),
}

impl Texts {
    /// Reads `config.json` of a voice's folder. No program is started.
    ///
    /// # Errors
    /// The file cannot be read; it has phonemes of another source, no voice or one of no such name, a map without the ids around phonemes, or
    /// an id that the model has no symbol for.
    pub fn read(dir: &Path) -> Result<Texts, RunError> {
        let path = dir.join(CONFIG);
        let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the voice's own folder: NAME.onnx.json")?;
        let file: Result<File, String> = serde_json::from_str(&text).map_err(|e| e.to_string());
        let fail = |why: String| RunError::Model(format!("{}: {}", path.display(), short(&why)));
        file.and_then(Texts::new).map_err(fail)
    }

    fn new(file: File) -> Result<Texts, String> {
        let source = match file.phoneme_type.as_deref() {
            None | Some("espeak") => Source::Espeak(voice(file.espeak.unwrap_or_default().voice)?),
            Some("text") => Source::Text,
            Some(other) => {
                let why = "is not made here: `espeak` and `text` are. Give phoneme ids instead of texts";
                return Err(format!("phoneme_type: `{other}` {why}"));
            }
        };
        let map = file.phoneme_id_map.unwrap_or_default();
        let map = match map.is_empty() {
            true => default_map(),
            false => map.into_iter().map(|(phoneme, ids)| (phoneme, ids.list())).collect(),
        };
        let symbols = file.num_symbols.unwrap_or(SYMBOLS);
        for (phoneme, ids) in &map {
            if let Some(id) = ids.iter().find(|id| **id as usize >= symbols) {
                return Err(format!(
                    "phoneme_id_map: `{phoneme}` has the id {id}, but num_symbols is {symbols}: copy the file that belongs to the checkpoint"
                ));
            }
        }
        if let Some(mark) = [START, PAD, END].into_iter().find(|mark| !map.contains_key(*mark)) {
            return Err(format!("phoneme_id_map: has no `{mark}`, which every sentence needs"));
        }
        let clusters = file.vowel_clusters.unwrap_or_default().into_iter().map(|cluster| match cluster {
            Cluster::Word(word) => symbols_of(&word).collect(),
            Cluster::List(list) => list,
        });
        Ok(Texts { source, map, clusters: clusters.collect() })
    }
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Several(ids) => ids,
        }
    }
}

/// Checks the name of a voice, which becomes an argument of a program.
fn voice(name: Option<String>) -> Result<String, String> {
    let name = name.ok_or("espeak.voice: is missing; it is a language of espeak-ng, such as en-us")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "+_-".contains(c);
    match (1..=64).contains(&name.len()) && name.chars().all(fits) {
        true => Ok(name),
        false => {
            Err(format!("espeak.voice: `{name}` is no voice of espeak-ng; `espeak-ng --voices` lists them"))
        }
    }
}

fn default_map() -> BTreeMap<String, Vec<u32>> {
    let all = DEFAULT.chars().map(String::from).chain(DEFAULT_PAIRS.map(str::to_owned));
    all.zip(0..).map(|(phoneme, id)| (phoneme, vec![id])).collect()
}
