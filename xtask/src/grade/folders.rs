//! Models and data of cases, made once each: shapes with random weights, hums with transcripts, and what is odd about some.

use super::cases::{Data, Family, Shape};
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Samples of a second.
const RATE: u32 = 24_000;
/// Entries of a codebook that Orpheus's tokens count.
const CODEBOOK: usize = 4096;
/// Tokens of an Orpheus checkpoint.
const VOCABULARY: usize = 156_940;
/// Ids of the recorded tokenizer, and those of T5 that it lacks.
const IDS: usize = 512;
/// Tenths of a second of the shortest clips: XTTS takes none below half a second.
const SHORTEST: usize = 6;
/// Characters of the vocabulary of F5 cases, and of all transcripts.
const LETTERS: &str = " abcdefghijklmnopqrstuvwxyz";

/// Small numbers that are the same everywhere (SplitMix64; Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number from `low` to `high`, inclusive.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// Draws one of these.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() - 1)].clone()
    }

    /// Returns true once in `times` calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.within(1, times) == 1
    }
}

/// Folders that cases share.
pub struct Folders {
    root: PathBuf,
    made: RefCell<HashMap<String, PathBuf>>,
}

impl Folders {
    /// Below this folder.
    pub fn new(root: &Path) -> Folders {
        Folders { root: root.to_owned(), made: RefCell::default() }
    }

    fn once(&self, name: String, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
        if let Some(path) = self.made.borrow().get(&name) {
            return Ok(path.clone());
        }
        let path = self.root.join(&name);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        make(&path)?;
        self.made.borrow_mut().insert(name, path.clone());
        Ok(path)
    }

    /// Returns the model folder of a shape; it has no weights, runs begin from scratch.
    ///
    /// # Errors
    /// From the disk.
    pub fn model(&self, shape: &Shape) -> Result<PathBuf, String> {
        self.once(shape.name(), |dir| match shape.family {
            Family::F5 => {
                let vocabulary: String = LETTERS.chars().map(|c| format!("{c}\n")).collect();
                write(&dir.join("vocab.txt"), vocabulary.as_bytes())?;
                write(&dir.join("config.yaml"), shape.f5_yaml().as_bytes())
            }
            Family::Orpheus => {
                let tokenizer = repository().join("parity/orpheus/fixtures/tokenizer.json");
                copy(&tokenizer, &dir.join("tokenizer.json"))?;
                write(&dir.join("config.json"), shape.llama_json(VOCABULARY).as_bytes())
            }
            Family::Parler => {
                let [text, audio] = encoders(dir, "dac/fixtures/even/parler-native")?;
                write(&dir.join("config.json"), shape.parler_json(&text, &audio, IDS).as_bytes())
            }
            Family::MusicGen => {
                let [text, audio] = encoders(dir, "encodec/fixtures/hop/musicgen-g-v")?;
                write(&dir.join("config.json"), shape.musicgen_json(&text, &audio).as_bytes())
            }
            Family::Piper => {
                let symbols: Vec<String> = format!("_^${LETTERS}").chars().map(String::from).collect();
                let map: BTreeMap<&str, [usize; 1]> =
                    symbols.iter().zip(0..).map(|(s, i)| (&**s, [i])).collect();
                let config = serde_json::json!({
                    "audio": {"sample_rate": 22_050}, "phoneme_type": "text", "phoneme_id_map": map,
                    "num_symbols": symbols.len(), "num_speakers": 1,
                });
                write(&dir.join("config.json"), config.to_string().as_bytes())?;
                let options = serde_json::json!({"shape": shape.piper(symbols.len())});
                write(&dir.join("options.json"), options.to_string().as_bytes())
            }
            Family::Xtts => {
                let parity = repository().join("parity");
                for file in [
                    "dvae/fixtures/small/dvae.pth",
                    "dvae/fixtures/small/mel_stats.pth",
                    "xtts_text/fixtures/vocab.json",
                ] {
                    let from = parity.join(file);
                    copy(&from, &dir.join(from.file_name().unwrap_or_default()))?;
                }
                write(&dir.join("config.json"), shape.xtts_json().as_bytes())
            }
        })
    }

    /// Returns a small codec of the shape that Orpheus speaks: that of `parity/snac` with codebooks of its size.
    ///
    /// # Errors
    /// From the disk.
    pub fn codec(&self) -> Result<PathBuf, String> {
        self.once("snac".to_owned(), |dir| {
            let from = repository().join("parity/snac/fixtures/strides");
            let mut config = json(&from.join("config.json"))?;
            config["codebook_size"] = CODEBOOK.into();
            write(&dir.join("config.json"), config.to_string().as_bytes())?;
            let rows = |name: &str| name.ends_with("codebook.weight").then_some(CODEBOOK);
            widened(&[(from, "")], dir, rows).map_err(|e| e.to_string())
        })
    }

    /// Returns a data folder.
    ///
    /// # Errors
    /// From the disk.
    pub fn data(&self, data: &Data) -> Result<PathBuf, String> {
        self.once(format!("data-{data}"), |dir| {
            let mut random = Random(data.seed());
            let clip = |name: &str, seconds: f64, text: &str| {
                hum(&dir.join(format!("{name}.wav")), (seconds * f64::from(RATE)) as u32)?;
                write(&dir.join(format!("{name}.txt")), text.as_bytes())
            };
            let usual = |random: &mut Random, clips: usize, tenths: (usize, usize)| {
                for i in 0..clips {
                    let seconds = random.within(tenths.0, tenths.1) as f64 / 10.0;
                    clip(&format!("c{i:05}"), seconds, &sentence(random, seconds))?;
                }
                Ok::<_, String>(())
            };
            match *data {
                Data::Usual { clips, .. } => usual(&mut random, clips, (SHORTEST, 30)),
                Data::OneLong { seconds } => {
                    usual(&mut random, 9, (SHORTEST, 20))?;
                    clip("long", seconds as f64, &sentence(&mut random, seconds as f64))
                }
                Data::Many { clips } => usual(&mut random, clips, (SHORTEST, SHORTEST)),
                Data::LongTexts { texts } => {
                    usual(&mut random, 12, (SHORTEST, 20))?;
                    (0..texts).try_for_each(|i| {
                        clip(&format!("t{i:03}"), 1.0, &LETTERS.trim().repeat((1 << 20) / LETTERS.len()))
                    })
                }
                Data::Metadata { lines } => {
                    let file = dir.join("metadata.csv");
                    let failed = |e: std::io::Error| format!("{}: {e}", file.display());
                    let mut csv = std::io::BufWriter::new(std::fs::File::create(&file).map_err(failed)?);
                    for i in 0..12 {
                        hum(&dir.join(format!("c{i:05}.wav")), random.within(15_000, 48_000) as u32)?;
                        writeln!(csv, "c{i:05}|{}", sentence(&mut random, 1.0)).map_err(failed)?;
                    }
                    for i in 0..lines {
                        writeln!(csv, "gone{i:06}|some words without sound to go with them")
                            .map_err(failed)?;
                    }
                    csv.flush().map_err(failed)
                }
                Data::Hours { hours } => {
                    usual(&mut random, 12, (SHORTEST, 20))?;
                    clip("hours", 3600.0 * hours as f64, "far too long")
                }
            }
        })
    }
}

/// Returns where the fixtures are.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes the recorded tokenizer, a text encoder for its ids and a recorded codec into a model's folder; their configurations. The
/// decoder beside them begins from random values.
fn encoders(dir: &Path, codec: &str) -> Result<[serde_json::Value; 2], String> {
    let parity = repository().join("parity");
    copy(&parity.join("t5/fixtures/tokenizer/tokenizer.json"), &dir.join("tokenizer.json"))?;
    let (text, audio) = (parity.join("t5/fixtures/gated"), parity.join(codec));
    let mut of_text = json(&text.join("config.json"))?;
    of_text["vocab_size"] = IDS.into();
    let of_audio = json(&audio.join("config.json"))?["audio_encoder"].take();
    let rows = |name: &str| (name == "shared.weight").then_some(IDS);
    widened(&[(audio, ""), (text, "text_encoder.")], dir, rows).map_err(|e| e.to_string())?;
    Ok([of_text, of_audio])
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

fn json(path: &Path) -> Result<serde_json::Value, String> {
    let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
}

/// Returns words for `seconds` of speech.
fn sentence(random: &mut Random, seconds: f64) -> String {
    let letters: Vec<char> = LETTERS.trim().chars().collect();
    let word =
        |random: &mut Random| -> String { (0..random.within(2, 6)).map(|_| random.pick(&letters)).collect() };
    let words = (2.0 * seconds).ceil() as usize;
    (0..words).map(|_| word(random)).collect::<Vec<_>>().join(" ")
}

/// Writes a tone as 16-bit PCM. Beyond a minute it is silence, of which the file system keeps nothing.
fn hum(path: &Path, samples: u32) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = std::fs::File::create(path).map_err(failed)?;
    let bytes = 2 * samples;
    let mut head = Vec::with_capacity(44);
    head.extend_from_slice(b"RIFF");
    head.extend_from_slice(&(36 + bytes).to_le_bytes());
    head.extend_from_slice(b"WAVEfmt ");
    head.extend_from_slice(&16u32.to_le_bytes());
    // PCM, one channel, rate, bytes a second, bytes a frame, bits a sample.
    [1u16, 1].iter().for_each(|x| head.extend_from_slice(&x.to_le_bytes()));
    [RATE, 2 * RATE].iter().for_each(|x| head.extend_from_slice(&x.to_le_bytes()));
    [2u16, 16].iter().for_each(|x| head.extend_from_slice(&x.to_le_bytes()));
    head.extend_from_slice(b"data");
    head.extend_from_slice(&bytes.to_le_bytes());
    let sounding = samples.min(70 * RATE);
    head.extend((0..sounding).flat_map(|t| {
        let t = t as f32 / RATE as f32;
        let x = (880.0 * t).sin() * (1.0 + (19.0 * t).sin()) * 4000.0;
        (x as i16).to_le_bytes()
    }));
    file.write_all(&head).map_err(failed)?;
    file.set_len(44 + u64::from(bytes)).map_err(failed)
}

/// Writes weights of folders into one, each behind what stands before its names. Tensors for which `rows` says how many rows they have
/// are drawn.
fn widened(
    from: &[(PathBuf, &str)],
    to: &Path,
    rows: impl Fn(&str) -> Option<usize>,
) -> ambitus_store::Result<()> {
    let mut all = BTreeMap::new();
    for (folder, before) in from {
        let file = Rc::new(TensorFile::open(folder.join("model.safetensors"))?);
        for t in file.tensors() {
            all.insert(format!("{before}{}", t.name()), (file.clone(), t.name().to_owned()));
        }
    }
    let spec = |(name, (file, of)): (&String, &(Rc<TensorFile>, String))| {
        let mut shape = file.get(of)?.shape().to_vec();
        if let (Some(first), Some(n)) = (shape.first_mut(), rows(of)) {
            *first = n;
        }
        Ok(TensorSpec::new(name, DType::F32, &shape))
    };
    let specs = all.iter().map(spec).collect::<ambitus_store::Result<Vec<_>>>()?;
    let mut writer = SafetensorsWriter::create(to.join("model.safetensors"), specs, &BTreeMap::new())?;
    let (mut random, mut scratch) = (Random(7), vec![0u8; 1 << 16]);
    let order: Vec<TensorSpec> = writer.specs().to_vec();
    for spec in order {
        let mut values = vec![0.0; spec.shape.iter().product()];
        let (file, of) = &all[&spec.name];
        match rows(of) {
            Some(_) => values.iter_mut().for_each(|x| *x = random.within(0, 2000) as f32 / 1000.0 - 1.0),
            None => file.read_into(of, &mut values, &mut scratch)?,
        }
        writer.write_f32(&spec.name, &values)?;
    }
    writer.finish().map(drop)
}
