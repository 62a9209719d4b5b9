//! An F5-TTS folder: `config.yaml`, `vocab.txt` and a file of weights.

use super::keys::{Keys, SECTION};
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::weights::{Differences, MAX_CONFIG_BYTES, Weights, read_text, say};
use ambitus_data::{DataError, Tokenizer, TokenizerKind, Vocab};
use ambitus_ir::StateDecl;
use ambitus_models::f5::config::{Config, File};
use ambitus_models::f5::weights;
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration's file.
pub(super) const CONFIG: &str = "config.yaml";
const VOCAB: &str = "vocab.txt";
/// What to do without a usable one.
const NO_VOCAB: &str = "copy the vocab.txt that the checkpoint was trained with";
/// The most bytes that a vocabulary may have.
const MAX_VOCAB_BYTES: u64 = 16 << 20;
/// The most lines. A table of them takes a hundred times the bytes of a short line.
const MAX_VOCAB_LINES: usize = 1 << 17;

/// Opens a folder.
pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys: Keys = options.own(&SECTION)?;
    let weights = if options.from_scratch { None } else { Some(find_weights(dir)?) };
    let path = dir.join(CONFIG);
    let remedy = "put the model's YAML there (in F5-TTS: src/f5_tts/configs/F5TTS_v1_Base.yaml)";
    let text = read_text(&path, MAX_CONFIG_BYTES, remedy)?;
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let file = parse_config(&text).map_err(bad)?;
    let kind = tokenizer_kind(&file, keys.tokenizer);
    // Of the vocabulary only the number of distinct lines matters, which is how the reference package sizes the embedding.
    let (vocabulary, has_vocab) = match kind {
        Ok(TokenizerKind::Byte) => (256, false),
        _ => (distinct_lines(&dir.join(VOCAB))?, true),
    };
    let mut config = file.config(vocabulary, keys.variant).map_err(|why| bad(why.to_string()))?;
    if let Some(p) = options.dropout {
        config.dropout = p;
    }
    let opened = Folder {
        dir: dir.to_owned(),
        config: config.clone(),
        kind: kind.map_err(|why| format!("{}: {why}", path.display())),
        extend_vocab: keys.extend_vocab,
        vocoder: keys.vocoder,
    };
    let kept = [Some(CONFIG), has_vocab.then_some(VOCAB)].into_iter().flatten();
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::F5,
        model: Arc::new(config),
        opened: Box::new(opened),
        wants_checkpointing: file.model.arch.checkpoint_activations,
        kept: kept.map(str::to_owned).collect(),
        weights: weights.map(|path| open_weights(&path)).transpose()?,
    })
}

/// Returns a folder of this shape without files, as if its text were bytes.
pub(super) fn shaped(config: Config) -> ModelDir {
    let opened = Folder {
        dir: PathBuf::new(),
        config: config.clone(),
        kind: Ok(TokenizerKind::Byte),
        extend_vocab: false,
        vocoder: None,
    };
    ModelDir::shaped(&super::F5, Arc::new(config), Box::new(opened))
}

/// An opened folder.
pub(super) struct Folder {
    dir: PathBuf,
    pub config: Config,
    /// The tokenizer, or why there is none.
    kind: Result<TokenizerKind, String>,
    pub extend_vocab: bool,
    /// Folder of the vocoder that the recipe names.
    pub vocoder: Option<PathBuf>,
}

impl Folder {
    /// Returns the tokenizer with its vocabulary.
    pub fn tokenizer(&self) -> Result<Tokenizer, RunError> {
        let kind = self.kind.clone().map_err(RunError::Model)?;
        if kind == TokenizerKind::Byte {
            return Ok(Tokenizer::new(kind, None)?);
        }
        let unusable = |e| match e {
            e @ DataError::Io { .. } => RunError::Data(e),
            e => RunError::Model(format!("{e}; {}", NO_VOCAB)),
        };
        let vocab = Vocab::read(&self.dir.join(VOCAB)).map_err(unusable)?;
        Tokenizer::new(kind, Some(vocab)).map_err(unusable)
    }
}

/// Returns what is chosen, else what the configuration says.
fn tokenizer_kind(file: &File, chosen: Option<TokenizerKind>) -> Result<TokenizerKind, String> {
    match (chosen, file.model.tokenizer.as_deref()) {
        (Some(kind), _) => Ok(kind),
        (None, None | Some("pinyin")) => Ok(TokenizerKind::Pinyin),
        (None, Some("char")) => Ok(TokenizerKind::Char),
        (None, Some("byte")) => Ok(TokenizerKind::Byte),
        (None, Some("custom")) => Ok(TokenizerKind::Custom),
        (None, Some(other)) => {
            Err(format!("model.tokenizer: `{}` is unknown; one of pinyin, char, byte, custom", short(other)))
        }
    }
}

/// Counts the distinct lines of a vocabulary, if a table of that size can be made.
fn distinct_lines(path: &Path) -> Result<usize, RunError> {
    let text = read_text(path, MAX_VOCAB_BYTES, NO_VOCAB)?;
    match text.bytes().filter(|b| *b == b'\n').count() {
        n if n > MAX_VOCAB_LINES => Err(RunError::Model(format!(
            "{}: has {n} lines, more than the {MAX_VOCAB_LINES} that are read; {NO_VOCAB}",
            path.display()
        ))),
        _ => Ok(text.lines().collect::<HashSet<_>>().len()),
    }
}

/// Parses F5's YAML within a budget: aliases, depth and size are bounded.
fn parse_config(text: &str) -> Result<File, String> {
    serde_saphyr::from_str(text).map_err(|e| short(&e.without_snippet().to_string()))
}

/// Returns the one file of weights in a folder: `model.safetensors`, else the only `.safetensors`, else the only `.pt`.
fn find_weights(dir: &Path) -> Result<PathBuf, RunError> {
    let usual = dir.join("model.safetensors");
    if usual.is_file() {
        return Ok(usual);
    }
    let entries = std::fs::read_dir(dir).map_err(|e| RunError::io(dir, "cannot list", e))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    files.sort();
    for extension in ["safetensors", "pt", "pth"] {
        let found: Vec<_> = files.iter().filter(|f| f.extension().is_some_and(|e| e == extension)).collect();
        match found.as_slice() {
            [] => {}
            [one] => return Ok((*one).clone()),
            many => {
                let names: Vec<String> = many.iter().map(|p| p.display().to_string()).collect();
                return Err(RunError::Model(format!(
                    "{}: several files of weights ({}); rename the one to use to model.{extension} in a folder of its own",
                    dir.display(),
                    names.join(", ")
                )));
            }
        }
    }
    Err(RunError::Model(format!(
        "{}: no model.safetensors (or .pt) in this folder; put the checkpoint there, or set `from_scratch: true`",
        dir.display()
    )))
}

fn open_weights(path: &Path) -> Result<Weights, RunError> {
    let file = TensorFile::open(path)?;
    const SECTIONS: [&str; 4] = ["", "ema_model_state_dict.", "model_state_dict.", "state_dict."];
    let prefixes = SECTIONS.iter().flat_map(|s| weights::PREFIXES.iter().map(move |p| format!("{s}{p}")));
    for prefix in prefixes {
        if file.contains(&format!("{prefix}transformer.proj_out.weight")) {
            return Ok(Weights { files: vec![file], prefix, path: path.to_owned() });
        }
    }
    let e2 = file.tensors().iter().any(|t| t.name().contains("transformer.layers.0."));
    let why = if e2 {
        "holds E2-TTS (UNetT), which is not supported; use an F5-TTS checkpoint"
    } else {
        "holds no F5-TTS transformer (no tensor `transformer.proj_out.weight`, with or without `ema_model.`)"
    };
    let refused = file
        .refused()
        .first()
        .map_or(String::new(), |(key, reason)| format!("; `{key}` was not read: {reason}"));
    Err(RunError::Model(format!("{}: {why}{refused}", path.display())))
}

/// Compares the file's index with the parameters that the model declares.
pub(super) fn check(weights: &Weights, states: &[StateDecl], extend_vocab: bool) -> Result<(), RunError> {
    let made = |name: &str| name == weights::INV_FREQ;
    let mut all = Differences::new(weights, states, made, weights::ignored);
    if weights.prefix.is_empty() {
        all.extra.retain(|n| n.starts_with("transformer."));
    }
    let vocabulary = all.misshapen.iter().position(|(name, have, want)| {
        weights::is_text_embedding(name) && have.len() == 2 && want.len() == 2 && have[1] == want[1]
    });
    let vocabulary = vocabulary.map(|i| all.misshapen.remove(i)).map(|(_, have, want)| (have[0], want[0]));
    let names = |all: Vec<String>| all.into_iter().map(|n| weights.name_of(&n)).collect::<Vec<_>>();
    let misshapen = all.misshapen.into_iter().map(|(name, have, want)| {
        format!("{} is {have:?}, the configuration says {want:?}", weights.name_of(name))
    });
    let mut problems = Vec::new();
    let missing = all.missing.into_iter().map(str::to_owned).collect();
    say(&mut problems, "tensors missing", names(missing));
    say(&mut problems, "tensors that the configuration does not have", names(all.extra));
    say(&mut problems, "tensors of another shape", misshapen.collect());
    match vocabulary {
        Some((have, want)) if have < want && extend_vocab => {}
        Some((have, want)) => {
            let remedy = if have < want {
                "use the vocab.txt that the checkpoint was trained with, or --extend-vocab to add rows (keep the old lines first)"
            } else {
                "use the vocab.txt that the checkpoint was trained with"
            };
            problems.push(format!(
                "the vocabulary does not fit: vocab.txt gives {want} embedding rows (its lines + 1), the checkpoint has {have}; {remedy}"
            ));
        }
        None => {}
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(RunError::Model(format!(
        "{}: does not fit config.yaml:\n  {}\ncheck that config.yaml and vocab.txt belong to this checkpoint",
        weights.path.display(),
        problems.join("\n  ")
    )))
}
