//! The families that are tried, each with a small model of its own.

use ambitus_families::family::{KeptFile, ModelDir, OpenOptions, Progressed};
use ambitus_families::{ALL, Families};
use ambitus_ir::Session;
use ambitus_models::{Capacity, musicgen, parler};
use ambitus_store::{DType, Item, SafetensorsWriter, TensorFile, TensorInfo, TensorSpec, TensorWriter};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

static TOYS: Families = &[&crate::toy::family::Toy];

/// A family with a small model.
pub struct Case {
    /// In the table of docs/status.md.
    pub name: &'static str,
    /// Whose families are known.
    pub families: Families,
    /// Where its files are.
    pub dir: tempfile::TempDir,
    /// Its model's folder.
    pub model: PathBuf,
    /// A part of the model, by pattern.
    pub part: &'static str,
    /// Rows of a micro-batch of one clip or two.
    pub rows: u32,
    /// Of the recipe, besides what all have.
    pub lines: String,
    /// Techniques that it refuses, by how their names begin, and words of the refusal.
    pub refuses: &'static [(&'static str, &'static str)],
}

/// All of them.
pub fn all() -> [Case; 8] {
    [f5(), orpheus(), parler(), xtts(), musicgen(), piper(), toy(), game()]
}

/// Nine short tones of other lengths and pitches, with texts.
fn voice(dir: &Path) -> PathBuf {
    voice_of(dir, 8_000)
}

/// The same of so many samples and more.
fn voice_of(dir: &Path, least: usize) -> PathBuf {
    let data = dir.join("voice");
    std::fs::create_dir(&data).expect("a folder");
    for i in 0..9 {
        let n = least + 1_700 * (i % 4);
        let tone = |t: usize| (t as f32 * (0.02 + 0.004 * i as f32)).sin() * 0.4 * (t as f32 * 6e-4).sin();
        let samples: Vec<f32> = (0..n).map(tone).collect();
        ambitus_data::wav::write_wav(&data.join(format!("clip{i}.wav")), &samples, 24_000).expect("a file");
        std::fs::write(data.join(format!("clip{i}.txt")), ["abc 12", "bad 7", "leaf 45"][i % 3])
            .expect("a file");
    }
    data
}

/// An autoencoder of mel frames.
pub fn toy() -> Case {
    toy_of("{\"layers\": 3, \"width\": 24}")
}

/// What several players are refused, and with which words.
const OF_PLAYERS: [(&str, &str); 8] = [
    ("model parallel", RANKS),
    ("pipeline", RANKS),
    ("full", RANKS),
    ("gradient", RANKS),
    ("data parallel", RANKS),
    ("hybrid", RANKS),
    ("fp16", "no loss scale"),
    ("LoRA", "no adapters"),
];
const RANKS: &str = "several players is trained by one rank";

/// A toy of two players.
pub fn game() -> Case {
    let mut case = toy_of("{\"layers\": 3, \"width\": 24, \"critic\": true}");
    case.name = "two players (a toy)";
    case.lines += "\nplayers: {c: {learning_rate: 3e-4, schedule: constant, clip: 0.5}}";
    case.refuses = &OF_PLAYERS;
    case
}

fn toy_of(config: &str) -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    std::fs::write(model.join("toy.json"), config).expect("a file");
    Case {
        name: "a toy",
        families: TOYS,
        dir,
        model,
        part: "first",
        rows: 80,
        lines: "toy: {gain: 0.5}\nlearning_rate: 1e-3".to_owned(),
        refuses: &[],
    }
}

/// The model of the quickstart.
pub fn f5() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let (model, lines) = (root().join("recipes/quickstart/model"), "learning_rate: 1e-3".to_owned());
    Case { name: "F5-TTS", families: ALL, dir, model, part: "*.text_embed", rows: 80, lines, refuses: &[] }
}

/// A Llama of two layers with the ids of Orpheus, from random values.
pub fn orpheus() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 156_940, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
    });
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    std::fs::copy(root().join("parity/orpheus/fixtures/tokenizer.json"), model.join("tokenizer.json"))
        .expect("a file");
    let lines = format!("orpheus: {{codec: {}}}\nlearning_rate: 1e-2", snac(dir.path()).display());
    Case { name: "Orpheus", families: ALL, dir, model, part: "*.layers.0", rows: 160, lines, refuses: &[] }
}

/// The recorded codec of few channels, with codebooks of SNAC's size.
fn snac(dir: &Path) -> PathBuf {
    const ENTRIES: usize = 4096;
    let (from, folder) = (root().join("parity/snac/fixtures/strides"), dir.join("snac"));
    std::fs::create_dir(&folder).expect("a folder");
    let config = std::fs::read_to_string(from.join("config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["codebook_size"] = ENTRIES.into();
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let file = TensorFile::open(from.join("model.safetensors")).expect("a codec");
    let is_codebook = |name: &str| name.ends_with("codebook.weight");
    let shape = |t: &TensorInfo| match is_codebook(t.name()) {
        true => vec![ENTRIES, t.shape()[1]],
        false => t.shape().to_vec(),
    };
    let specs = file.tensors().iter().map(|t| TensorSpec::new(t.name(), DType::F32, &shape(t))).collect();
    let path = folder.join("model.safetensors");
    let mut writer = SafetensorsWriter::create(path, specs, &BTreeMap::new()).expect("a file");
    let order: Vec<(String, usize)> =
        writer.specs().iter().map(|s| (s.name.clone(), s.shape.iter().product())).collect();
    for (name, elements) in order {
        let mut values: Vec<f32> = (0..elements).map(|i| ((i * 7919 % 4093) as f32 / 2046.5) - 1.0).collect();
        if !is_codebook(&name) {
            file.read_into(&name, &mut values, &mut vec![0; 1 << 16]).expect("a tensor");
        }
        writer.write_f32(&name, &values).expect("a tensor");
    }
    writer.finish().expect("a file");
    folder
}

/// A decoder of three layers over the recorded codec, with the recorded text encoder and tokenizer, of random values.
pub fn parler() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    let parity = root().join("parity");
    let tokenizer = parity.join("t5/fixtures/tokenizer/tokenizer.json");
    std::fs::copy(tokenizer, model.join("tokenizer.json")).expect("a file");
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(parity.join(path)).expect("a file")).expect("JSON")
    };
    let (mut text, audio) =
        (json("t5/fixtures/gated/config.json"), json("dac/fixtures/even/parler-native/config.json"));
    text["vocab_size"] = IDS.into();
    let config = serde_json::json!({
        "architectures": ["ParlerTTSForConditionalGeneration"], "model_type": "parler_tts", "vocab_size": IDS,
        "transformers_version": "4.46.1", "text_encoder": text, "audio_encoder": audio["audio_encoder"],
        "decoder": {
            "vocab_size": 72, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 24,
            "num_codebooks": 9, "max_position_embeddings": 256, "dropout": 0.0, "pad_token_id": 64, "eos_token_id": 64,
            "bos_token_id": 65,
        },
    });
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    let frozen = [
        ("dac/fixtures/even/parler-native/model.safetensors", ""),
        ("t5/fixtures/gated/model.safetensors", "text_encoder."),
    ];
    let frozen = frozen.map(|(path, before)| (TensorFile::open(parity.join(path)).expect("weights"), before));
    let file: parler::config::File = serde_json::from_value(config).expect("its form");
    let mut session = Session::default();
    let cap = Capacity { rows: 1, clips: 1 };
    parler::model::loss(&mut session, &file.config().expect("a shape"), cap, "micro", true);
    write_model(&model, &session, &frozen);
    let description = "She speaks slowly, with very clear audio.";
    let lines = format!(
        "parler: {{description: \"{description}\"}}\nlearning_rate: 1e-2\nschedule: linear\nwarmup: 0"
    );
    Case { name: "Parler-TTS", families: ALL, dir, model, part: "*.layers.0", rows: 130, lines, refuses: &[] }
}

/// A decoder of three layers over the recorded DVAE, with the recorded vocabulary and vocoder, of random values.
pub fn xtts() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    // The project takes no clip of less than half a second.
    voice_of(dir.path(), 14_000);
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    let parity = root().join("parity");
    for file in
        ["dvae/fixtures/small/dvae.pth", "dvae/fixtures/small/mel_stats.pth", "xtts_text/fixtures/vocab.json"]
    {
        let from = parity.join(file);
        std::fs::copy(&from, model.join(from.file_name().expect("a name"))).expect("a file");
    }
    let args = serde_json::json!({
        "gpt_layers": 3, "gpt_n_model_channels": 12, "gpt_n_heads": 3, "gpt_num_audio_tokens": 66,
        "gpt_start_audio_token": 64, "gpt_stop_audio_token": 65,
    });
    let config = serde_json::json!({"model": "xtts", "model_args": args}).to_string();
    std::fs::write(model.join("config.json"), config).expect("a file");
    let scratch = OpenOptions { from_scratch: true, ..OpenOptions::default() };
    let opened = ModelDir::open(ALL, &model, scratch).expect("its own folder");
    let mut session = Session::default();
    opened.model.loss(&mut session, 0, Capacity { rows: 1, clips: 1 }, "micro", true);
    let decoder = TensorFile::open(parity.join("hifigan/fixtures/decoder.pth")).expect("a vocoder");
    write_checkpoint(&model.join("model.pth"), &session, &decoder);
    let lines = "xtts: {language: en}\nlearning_rate: 1e-2\nschedule: linear".to_owned();
    Case { name: "XTTS", families: ALL, dir, model, part: "*.h.0", rows: 140, lines, refuses: &[] }
}

/// A decoder of three layers over the recorded EnCodec, with the recorded text encoder and tokenizer, of random values.
pub fn musicgen() -> Case {
    musicgen_of(1)
}

/// The same of one channel or two.
pub fn musicgen_of(channels: usize) -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    voice(dir.path());
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    let parity = root().join("parity");
    let tokenizer = parity.join("t5/fixtures/tokenizer/tokenizer.json");
    std::fs::copy(tokenizer, model.join("tokenizer.json")).expect("a file");
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(parity.join(path)).expect("a file")).expect("JSON")
    };
    let (mut text, audio) =
        (json("t5/fixtures/gated/config.json"), json("encodec/fixtures/hop/musicgen-g-v/config.json"));
    text["vocab_size"] = IDS.into();
    let config = serde_json::json!({
        "architectures": ["MusicgenForConditionalGeneration"], "model_type": "musicgen",
        "transformers_version": "4.57.6", "text_encoder": text, "audio_encoder": audio["audio_encoder"],
        "decoder": {
            "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 24,
            "num_codebooks": 2 * channels, "audio_channels": channels, "dropout": 0.0, "pad_token_id": 128, "bos_token_id": 128,
        },
    });
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    let frozen = [
        ("encodec/fixtures/hop/musicgen-g-v/model.safetensors", ""),
        ("t5/fixtures/gated/model.safetensors", "text_encoder."),
    ];
    let frozen = frozen.map(|(path, before)| (TensorFile::open(parity.join(path)).expect("weights"), before));
    let file: musicgen::config::File = serde_json::from_value(config).expect("its form");
    let mut session = Session::default();
    let cap = Capacity { rows: 1, clips: 1 };
    musicgen::model::loss(&mut session, &file.config().expect("a shape"), cap, "micro", true);
    write_model(&model, &session, &frozen);
    let lines = "learning_rate: 1e-2\nschedule: linear\nwarmup: 0".to_owned();
    Case { name: "MusicGen", families: ALL, dir, model, part: "*.layers.0", rows: 60, lines, refuses: &[] }
}

/// The recorded voice of three speakers, with more symbols, whose texts are phonemes.
pub fn piper() -> Case {
    let dir = tempfile::tempdir().expect("a folder");
    let data = voice(dir.path());
    let text = |i: usize| ["abc bad", "bad", "cafe dab"][i % 3];
    let lines: String = (0..9).map(|i| format!("clip{i}.wav|speaker {}|{}\n", i % 3, text(i))).collect();
    std::fs::write(data.join("metadata.csv"), lines).expect("a file");
    let (from, model) = (root().join("parity/piper/fixtures/speakers"), dir.path().join("model"));
    std::fs::create_dir(&model).expect("a folder");
    let config = std::fs::read_to_string(from.join("config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["phoneme_type"] = "text".into();
    std::fs::write(model.join("config.json"), config.to_string()).expect("a file");
    write_voice(&ModelDir::open(ALL, &from, OpenOptions::default()).expect("a voice"), &model);
    let lines = "learning_rate: 1e-3".to_owned();
    Case {
        name: "Piper",
        families: ALL,
        dir,
        model,
        part: "*.enc_p",
        rows: 1200,
        lines,
        refuses: &OF_PLAYERS,
    }
}

/// Writes a voice's checkpoint with a table of symbols that is large enough for moments in 8 bits.
fn write_voice(voice: &ModelDir, model: &Path) {
    const SYMBOLS: usize = 700;
    for (name, file) in voice.opened.kept().expect("files") {
        let KeptFile::Text(text) = file else { panic!("{name} is no text") };
        std::fs::write(model.join(name), text).expect("a file");
    }
    let layout = voice.family.export().layout(None).expect("its own").expect("a checkpoint");
    let run = Progressed { dir: model, updates: 0, loss: None };
    let mut root = vec![(layout.key.to_owned(), Item::Tensors)];
    root.extend((layout.beside)(&run).expect("what stands beside the tensors"));
    let file = &voice.weights.as_ref().expect("weights").files[0];
    let prefix = format!("{}.", layout.key);
    let tensors = file.tensors().iter().filter_map(|t| Some((t.name().strip_prefix(&*prefix)?, t)));
    let shape = |name: &str, t: &TensorInfo| match name.ends_with("enc_p.emb.weight") {
        true => vec![SYMBOLS, t.shape()[1]],
        false => t.shape().to_vec(),
    };
    let specs = tensors.map(|(name, t)| TensorSpec::new(name, DType::F32, &shape(name, t))).collect();
    let mut writer = TensorWriter::create_torch(model.join(layout.file), specs, &root).expect("a file");
    for spec in writer.specs().to_vec() {
        let mut values: Vec<f32> =
            (0..spec.shape.iter().product()).map(|i: usize| (i * 7919 % 2003) as f32 * 1e-3 - 1.0).collect();
        let name = format!("{prefix}{}", spec.name);
        let there = file.get(&name).expect("a tensor").elements();
        file.read_into(&name, &mut values[..there], &mut vec![0; 1 << 16]).expect("a tensor");
        writer.write_f32(&spec.name, &values).expect("a tensor");
    }
    writer.finish().expect("a file");
}

/// Writes random parameters of a session, and a vocoder's tensors, as the project does.
fn write_checkpoint(path: &Path, session: &Session, vocoder: &TensorFile) {
    let own = session.states.iter().filter(|s| s.trainable);
    let mut specs: Vec<TensorSpec> = own.map(|s| TensorSpec::new(&s.name, DType::F32, &s.ty.shape)).collect();
    let frozen = vocoder.tensors().iter().filter_map(|t| Some((t.name().strip_prefix("model.")?, t)));
    let frozen: BTreeMap<&str, &TensorInfo> =
        frozen.filter(|(name, _)| name.starts_with("hifigan_decoder.")).collect();
    specs.extend(frozen.iter().map(|(name, t)| TensorSpec::new(*name, t.dtype(), t.shape())));
    let root = [("model".to_owned(), Item::Tensors)];
    let mut writer = TensorWriter::create_torch(path, specs, &root).expect("a file");
    for (k, spec) in writer.specs().to_vec().into_iter().enumerate() {
        if let Some(tensor) = frozen.get(&*spec.name) {
            let put = |bytes: &[u8]| writer.write(&spec.name, bytes).expect("written");
            vocoder.read_stored(tensor.name(), &mut [0; 1 << 12], put).expect("read");
            continue;
        }
        let norm = ["norm.weight", "gamma", "ln_1.weight", "ln_2.weight", "ln_f.weight"];
        let mean = if norm.iter().any(|end| spec.name.ends_with(end)) { 1.0 } else { 0.0 };
        let elements: usize = spec.shape.iter().product();
        let drawn = |i: usize| mean + 1e-4 * (((i + k) * 7919 % 2003) as f32 - 1001.0);
        writer.write_f32(&spec.name, &(0..elements).map(drawn).collect::<Vec<f32>>()).expect("a tensor");
    }
    writer.finish().expect("a file");
}

/// Ids of the recorded tokenizer, and those of T5 that it lacks.
const IDS: usize = 512;

/// Writes random parameters of a session, and frozen tensors with what stands before their names; embeddings of ids have [`IDS`] rows.
fn write_model(dir: &Path, session: &Session, frozen: &[(TensorFile, &str)]) {
    let own = session.states.iter().filter(|s| s.trainable);
    let mut specs: Vec<TensorSpec> = own.map(|s| TensorSpec::new(&s.name, DType::F32, &s.ty.shape)).collect();
    for (file, before) in frozen {
        specs.extend(file.tensors().iter().map(|t| {
            let rows =
                if t.name() == "shared.weight" { IDS } else { t.shape().first().copied().unwrap_or(1) };
            let shape: Vec<usize> =
                t.shape().iter().copied().enumerate().map(|(i, n)| if i == 0 { rows } else { n }).collect();
            TensorSpec::new(format!("{before}{}", t.name()), DType::F32, &shape)
        }));
    }
    let mut writer =
        SafetensorsWriter::create(dir.join("model.safetensors"), specs, &BTreeMap::new()).expect("a file");
    let order: Vec<(String, usize)> =
        writer.specs().iter().map(|s| (s.name.clone(), s.shape.iter().product())).collect();
    for (k, (name, elements)) in order.into_iter().enumerate() {
        let spread = if name.ends_with(".bias") { 0.0 } else { 1e-4 };
        let mean = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let drawn = |i: usize| mean + spread * (((i + k) * 7919 % 2003) as f32 - 1001.0);
        let mut values: Vec<f32> = (0..elements).map(drawn).collect();
        let from = frozen.iter().find_map(|(file, before)| {
            let name = name.strip_prefix(before).filter(|name| file.contains(name))?;
            Some((file, name.to_owned()))
        });
        if let Some((file, name)) = from {
            let there = file.get(&name).expect("a tensor").elements();
            file.read_into(&name, &mut values[..there], &mut vec![0; 1 << 16]).expect("a tensor");
        }
        writer.write_f32(&name, &values).expect("a tensor");
    }
    writer.finish().expect("a file");
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
