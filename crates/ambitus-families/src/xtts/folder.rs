//! A folder of XTTS v2: `config.json`, `vocab.json` and `model.pth`, which also holds the vocoder.

use super::conditioning;
use super::export::MODEL_FILE;
use super::keys::{Keys, SECTION};
use super::text::{Texts, VOCAB_FILE};
use super::vocoder::Rates;
use crate::dvae;
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::hugging_face::{self, CONFIG};
use crate::speaker;
use crate::speech::no_room;
use crate::weights::{
    MAX_CONFIG_BYTES, SINGLE, STAGING_BYTES, Weights, architectures, plain_json, read_text,
};
use ambitus_ir::StateDecl;
use ambitus_models::xtts::config::{Args, BANDS, Config, MOST_IDS, Sizes, Vocabulary};
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Its `model`.
const MODEL: &str = "xtts";
/// The most bytes that `vocab.json` may have.
const MAX_VOCAB_BYTES: u64 = 32 << 20;
/// The folder's files that an export has besides the weights, as the project's tools want them.
const KEPT: [&str; 4] = [VOCAB_FILE, STATISTICS, dvae::WEIGHTS, "speakers_xtts.pth"];
const STATISTICS: &str = dvae::STATISTICS;
/// Seconds of references that are used at most.
const MOST_REFERENCE: u32 = speaker::MOST_SECONDS as u32;
/// What stands before the model's names in a checkpoint: in the released one, in a trainer's, and in those written by hand.
const PREFIXES: [&str; 4] = ["model.", "model.xtts.", "", "xtts."];
/// A tensor that every checkpoint has.
const ANY: &str = "gpt.text_embedding.weight";
/// Leftovers of older code under what is trained: masks, and copies of embeddings.
const STALE: [&str; 4] = [".attn.bias", ".attn.masked_bias", "gpt.gpt.wte.weight", "gpt.gpt.wpe.weight"];
const STALE_PART: &str = "gpt.gpt_inference.";
/// What a trainer's checkpoint has besides, which the project's loader drops.
const BESIDE: [&str; 4] =
    ["dvae.", "torch_mel_spectrogram_style_encoder.", "torch_mel_spectrogram_dvae.", "optimizer."];
/// What training alone reads.
const TEXT_HEAD: &str = "gpt.text_head.";

/// `config.json`: what matters of it.
#[derive(Deserialize)]
#[serde(default)]
struct File {
    model_args: Args,
    audio: Audio,
    gpt_cond_len: u32,
    gpt_cond_chunk_len: u32,
    max_ref_len: u32,
    sound_norm_refs: bool,
}

#[derive(Deserialize)]
#[serde(default)]
struct Audio {
    output_sample_rate: u32,
}

impl Default for Audio {
    fn default() -> Audio {
        Audio { output_sample_rate: Rates::PUBLISHED.output }
    }
}

impl Default for File {
    fn default() -> File {
        let conditioning::Settings { file, all, chunk, loud } = conditioning::Settings::PUBLISHED;
        File {
            model_args: Args::default(),
            audio: Audio::default(),
            gpt_cond_len: all,
            gpt_cond_chunk_len: chunk,
            max_ref_len: file,
            sound_norm_refs: loud,
        }
    }
}

impl File {
    /// Returns how references are used; within minutes, whatever the file says.
    fn conditioning(&self) -> conditioning::Settings {
        conditioning::Settings {
            file: self.max_ref_len.clamp(1, MOST_REFERENCE),
            all: self.gpt_cond_len.min(MOST_REFERENCE),
            chunk: self.gpt_cond_chunk_len.clamp(1, MOST_REFERENCE),
            loud: self.sound_norm_refs,
        }
    }
}

/// Returns whether the folder's `config.json` names the model.
pub(super) fn recognises(dir: &Path) -> bool {
    architectures(dir).iter().any(|name| name == MODEL)
}

/// Reads `config.json`. The project writes numbers that JSON does not have.
fn read_config(dir: &Path) -> Result<File, RunError> {
    let path = dir.join(CONFIG);
    let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
    serde_json::from_str(&plain_json(&text))
        .map_err(|e| RunError::Model(format!("{}: {}", path.display(), short(&e.to_string()))))
}

/// Returns what `vocab.json` says of its ids; nothing where it is not there.
fn vocabulary(dir: &Path) -> Result<Vocabulary, RunError> {
    #[derive(Deserialize)]
    struct Added {
        id: u32,
        content: String,
    }
    #[derive(Deserialize)]
    struct Model {
        vocab: HashMap<String, u32>,
    }
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<Added>,
        model: Model,
    }
    let path = dir.join(VOCAB_FILE);
    if !path.is_file() {
        return Ok(Vocabulary::default());
    }
    let text = read_text(&path, MAX_VOCAB_BYTES, "copy it from the checkpoint's own folder")?;
    let file: File = serde_json::from_str(&text)
        .map_err(|e| RunError::Model(format!("{}: {}", path.display(), short(&e.to_string()))))?;
    let added = file.added_tokens.iter().map(|token| (&*token.content, token.id));
    let all: HashMap<&str, u32> =
        file.model.vocab.iter().map(|(piece, id)| (&**piece, *id)).chain(added).collect();
    let size = all.values().max().map(|id| *id as usize + 1);
    if let Some(ids) = size.filter(|ids| *ids > MOST_IDS) {
        let why = format!("has the id {}; the most are {MOST_IDS} ids", ids - 1);
        return Err(RunError::Model(format!("{}: {why}", path.display())));
    }
    Ok(Vocabulary { size, start: all.get("[START]").copied(), stop: all.get("[STOP]").copied() })
}

/// Returns what the tensors' shapes say of the model's.
fn sizes(weights: &Weights) -> Sizes {
    let rows = |name: &str| weights.shape_of(name).and_then(|shape| shape.first().copied());
    let layer = |name: &str| name.strip_prefix("gpt.gpt.h.")?.split('.').next()?.parse::<usize>().ok();
    Sizes {
        layers: weights.names().filter_map(layer).max().map(|last| last.saturating_add(1)),
        dim: weights.shape_of(ANY).and_then(|shape| shape.get(1).copied()),
        text_vocab: rows(ANY),
        codes: rows("gpt.mel_embedding.weight"),
        text_positions: rows("gpt.text_pos_embedding.emb.weight"),
        code_positions: rows("gpt.mel_pos_embedding.emb.weight"),
    }
}

/// An opened folder.
pub(super) struct Folder {
    pub dir: PathBuf,
    pub config: Config,
    pub keys: Keys,
    /// How references are used.
    pub conditioning: conditioning::Settings,
    /// Of its sound.
    pub rates: Rates,
}

impl Folder {
    /// Returns a folder of this shape without files.
    pub fn shaped(config: Config) -> Folder {
        let (keys, conditioning) = (Keys::default(), conditioning::Settings::PUBLISHED);
        Folder { dir: PathBuf::new(), config, keys, conditioning, rates: Rates::PUBLISHED }
    }

    /// Returns what the bands of a mel are divided by: of `mel_stats.pth`, else of the checkpoint.
    ///
    /// # Errors
    /// Neither is there; numbers that cannot be divided by.
    pub fn statistics(&self) -> Result<Vec<f32>, RunError> {
        let path = self.dir.join(STATISTICS);
        if path.is_file() {
            return dvae::statistics(&path, BANDS);
        }
        let (path, prefix) = frozen_file(&self.dir)?;
        let file = TensorFile::open(&path)?;
        let name = format!("{prefix}mel_stats");
        let bad = |why: &str| RunError::Model(format!("{}: {name}: {why}", path.display()));
        match file.get(&name).map(|t| t.shape().to_vec()) {
            Ok(shape) if shape == [BANDS] => {}
            _ => return Err(bad("is missing, or not 80 numbers; put mel_stats.pth into the model's folder")),
        }
        let mut scale = vec![0.0; BANDS];
        file.read_into(&name, &mut scale, &mut vec![0; STAGING_BYTES])?;
        match scale.iter().all(|x| x.is_finite() && *x != 0.0) {
            true => Ok(scale),
            false => Err(bad("holds numbers that cannot be divided by")),
        }
    }

    /// Opens the tokenizer in at most `room` bytes. `cleaned`: texts were cleaned, or the recipe says so.
    ///
    /// # Errors
    /// A vocabulary that cannot be used, or has no room.
    pub fn texts(&self, room: u64, cleaned: bool) -> Result<Texts, RunError> {
        Texts::read(&self.dir, room, cleaned || self.keys.cleaned).map_err(no_room)
    }

    /// Returns the language of texts.
    ///
    /// # Errors
    /// Nobody says which.
    pub fn language<'l>(&'l self, asked: Option<&'l str>) -> Result<&'l str, RunError> {
        asked.or(self.keys.language.as_deref()).ok_or_else(|| {
            RunError::Usage("in which language is the text? give --language en, zh-cn, …".to_owned())
        })
    }

    /// Returns whether there is a vocoder.
    pub fn has_vocoder(&self) -> bool {
        frozen_file(&self.dir).is_ok_and(|(path, prefix)| {
            let name = format!("{prefix}hifigan_decoder.waveform_decoder.conv_pre.weight");
            TensorFile::open(&path).is_ok_and(|file| file.contains(&name))
        })
    }
}

/// Returns the file with what stands beside the model, and what stands before its names: the checkpoint, or what a run keeps of it.
///
/// # Errors
/// There is none.
pub(super) fn frozen_file(dir: &Path) -> Result<(PathBuf, String), RunError> {
    let kept = dir.join(SINGLE);
    if !dir.join(MODEL_FILE).is_file() && kept.is_file() {
        return Ok((kept, String::new()));
    }
    let weights = weights(dir)?;
    Ok((weights.path, weights.prefix))
}

pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys: Keys = options.own(&SECTION)?;
    let file = read_config(dir)?;
    let weights = if options.from_scratch { None } else { Some(weights(dir)?) };
    let sizes = weights.as_ref().map(sizes).unwrap_or_default();
    let fail = |why: String| RunError::Model(format!("{}: {why}", dir.join(CONFIG).display()));
    let config = file.model_args.config(vocabulary(dir)?, sizes).map_err(|why| fail(why.to_string()))?;
    let conditioning = file.conditioning();
    let rates = Rates { output: file.audio.output_sample_rate, ..Rates::PUBLISHED };
    let config = Config { dropout: options.dropout.unwrap_or(config.dropout), ..config };
    let kept = KEPT.iter().filter(|name| dir.join(name).is_file());
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::Xtts,
        opened: Box::new(Folder { dir: dir.to_owned(), config: config.clone(), keys, conditioning, rates }),
        model: Arc::new(config),
        wants_checkpointing: false,
        kept: [CONFIG].iter().chain(kept).map(|name| (*name).to_owned()).collect(),
        weights,
    })
}

/// Returns a warning where `config.json` says other sizes than the tensors: a run keeps the configuration, and its checkpoints no such
/// file of tensors.
pub(super) fn doubts(dir: &Path, config: &Config) -> Result<Vec<String>, RunError> {
    let args = read_config(dir)?.model_args;
    let base = Config::v2();
    let of = |said: Option<usize>, otherwise: usize, is: usize, key: &str| {
        (said.unwrap_or(otherwise) != is).then(|| format!("{key}: {is}"))
    };
    let (text, codes) = (config.most_text(), config.code_positions.saturating_sub(3));
    let others: Vec<String> = [
        of(args.gpt_layers, base.layers, config.layers, "gpt_layers"),
        of(args.gpt_n_model_channels, base.dim, config.dim, "gpt_n_model_channels"),
        of(args.gpt_num_audio_tokens, base.codes, config.codes, "gpt_num_audio_tokens"),
        of(args.gpt_max_text_tokens, base.most_text(), text, "gpt_max_text_tokens"),
        of(args.gpt_max_audio_tokens, base.code_positions - 3, codes, "gpt_max_audio_tokens"),
    ]
    .into_iter()
    .flatten()
    .collect();
    Ok(match others.is_empty() {
        true => Vec::new(),
        false => vec![format!(
            "{}: says other sizes than {MODEL_FILE}, which are taken; write {} into its model_args, or a run of this model \
             cannot be heard by its own folder, only by its export",
            dir.join(CONFIG).display(),
            others.join(", ")
        )],
    })
}

/// Opens `model.pth`.
///
/// # Errors
/// No such file, and one without the model's tensors.
pub(super) fn weights(dir: &Path) -> Result<Weights, RunError> {
    let path = dir.join(MODEL_FILE);
    if !path.is_file() {
        return Err(RunError::Model(format!(
            "{}: no {MODEL_FILE} in this folder; put the checkpoint there, or set `from_scratch: true`",
            dir.display()
        )));
    }
    let file = TensorFile::open(&path)?;
    let prefix = PREFIXES.iter().find(|prefix| file.contains(&format!("{prefix}{ANY}")));
    match prefix {
        Some(prefix) => Ok(Weights { prefix: (*prefix).to_owned(), files: vec![file], path }),
        None => {
            let why =
                "holds no XTTS v2 model (no tensor `gpt.text_embedding.weight`, with or without `xtts.`)";
            let refused = file.refused().first();
            let refused =
                refused.map_or(String::new(), |(key, reason)| format!("; `{key}` was not read: {reason}"));
            Err(RunError::Model(format!("{}: {why}{refused}", path.display())))
        }
    }
}

/// Returns whether a tensor of the file may be none of a session's: vocoder, codec, filters, leftovers, and what generation does not use.
fn beside(name: &str) -> bool {
    frozen(name)
        || BESIDE.iter().any(|beside| name.starts_with(beside))
        || name.starts_with(TEXT_HEAD)
        || name.starts_with(STALE_PART)
        || STALE.iter().any(|stale| name == *stale || name.ends_with(stale))
}

/// Returns whether a tensor of the file stands beside the model and goes along with it.
pub(super) fn frozen(name: &str) -> bool {
    name.starts_with("hifigan_decoder.") || name == "mel_stats"
}

/// Compares the file's index with the parameters that the decoder declares.
pub(super) fn check(weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
    hugging_face::check(weights, states, |_| false, beside, |_| Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_a_run_would_not_know_are_doubted() {
        let dir = tempfile::tempdir().unwrap();
        let doubts = |args: &str, config: &Config| {
            let text = format!("{{\"model\": \"xtts\", \"model_args\": {{{args}}}}}");
            std::fs::write(dir.path().join(CONFIG), text).unwrap();
            doubts(dir.path(), config).unwrap()
        };
        let small = Config { layers: 2, text_positions: 52, ..Config::v2() };
        assert!(doubts("", &Config::v2()).is_empty());
        assert!(doubts("\"gpt_layers\": 2, \"gpt_max_text_tokens\": 50", &small).is_empty());
        let said = doubts("\"gpt_layers\": 2", &small);
        assert!(said[0].contains("write gpt_max_text_tokens: 50 into"), "{said:?}");
    }

    #[test]
    fn what_is_not_trained_stands_beside() {
        let names = [
            "hifigan_decoder.waveform_decoder.conv_pre.weight",
            "mel_stats",
            "dvae.codebook.embed",
            "gpt.gpt.h.0.attn.bias",
            "gpt.gpt.wte.weight",
            "gpt.gpt_inference.lm_head.1.weight",
        ];
        assert!(names.iter().all(|name| beside(name)));
        assert!(!beside("gpt.gpt.h.0.attn.c_attn.bias") && !beside("gpt.mel_head.bias"));
        assert_eq!(names.map(frozen), [true, true, false, false, false, false]);
    }
}
