//! A folder with a model: `config.yaml`, `vocab.txt` and a file of weights. The family is recognised from the files.

use crate::error::RunError;
use ambitus_compile::passes::lora::adapted_module;
use ambitus_data::{Tokenizer, TokenizerKind, Vocab};
use ambitus_ir::{StateDecl, StateKind};
use ambitus_models::f5::config::{Config, File, Variant};
use ambitus_models::f5::weights;
use ambitus_store::TensorFile;
use std::path::{Path, PathBuf};

/// The most bytes that a configuration may have.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The most bytes that a vocabulary may have.
const MAX_VOCAB_BYTES: u64 = 64 << 20;
/// Names listed in a message before "and n more".
const LISTED: usize = 8;

/// An opened F5-TTS model folder. Weights are indexed, not read.
pub struct ModelDir {
    /// The folder.
    pub dir: PathBuf,
    /// The configuration file, as it was read.
    pub config_text: String,
    /// The model's shape.
    pub config: Config,
    /// The YAML asked for activation checkpointing (`checkpoint_activations`).
    pub wants_checkpointing: bool,
    /// The vocabulary file, if the tokenizer has one.
    pub vocab_path: Option<PathBuf>,
    /// The weights; absent when training starts from random values.
    pub weights: Option<Weights>,
}

/// A file of weights and where the model's tensors are in it.
pub struct Weights {
    /// The indexed file.
    pub file: TensorFile,
    /// What stands before the model's tensor names there.
    pub prefix: String,
}

/// How to open a folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// v0 or v1, where the configuration does not say.
    pub variant: Option<Variant>,
    /// Do not look for weights.
    pub from_scratch: bool,
    /// Accept a vocabulary longer than the checkpoint's: its new rows are drawn, old ids keep theirs.
    pub extend_vocab: bool,
    /// Dropout instead of the configuration's.
    pub dropout: Option<f32>,
    /// Tokenizer instead of the configuration's.
    pub tokenizer: Option<TokenizerKind>,
}

impl ModelDir {
    /// Opens a folder, checks its configuration against its vocabulary, and indexes the weights. The tokenizer is handed
    /// out beside it: it may hold a large dictionary.
    ///
    /// # Errors
    /// Names the file and key or tensor, and says what to do.
    pub fn open(dir: &Path, options: OpenOptions) -> Result<(ModelDir, Tokenizer), RunError> {
        let files = Files::read(dir, options)?;
        let (tokenizer, vocab_path) =
            open_tokenizer(dir, &files.file, &files.config_path, options.tokenizer)?;
        let model = files.model(dir, options, tokenizer.size(), vocab_path)?;
        Ok((model, tokenizer))
    }

    /// As [`ModelDir::open`] for text that comes as ids: of the vocabulary only the number of distinct lines matters, which
    /// is how the reference package sizes the embedding.
    ///
    /// # Errors
    /// As [`ModelDir::open`].
    pub fn open_for_ids(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        let files = Files::read(dir, options)?;
        if files.file.model.tokenizer.as_deref() == Some("byte") {
            return files.model(dir, options, 256, None);
        }
        let path = dir.join("vocab.txt");
        let text =
            read_text(&path, MAX_VOCAB_BYTES, "copy the vocab.txt that the checkpoint was trained with")?;
        let distinct: std::collections::HashSet<&str> = text.lines().collect();
        files.model(dir, options, distinct.len(), Some(path))
    }
}

/// The files of a folder before the vocabulary's size is known.
struct Files {
    file: File,
    config_path: PathBuf,
    config_text: String,
    weights_path: Option<PathBuf>,
}

impl Files {
    fn read(dir: &Path, options: OpenOptions) -> Result<Files, RunError> {
        if !dir.is_dir() {
            return Err(RunError::Model(format!(
                "{}: is not a folder; give a folder with config.yaml, vocab.txt and model.safetensors",
                dir.display()
            )));
        }
        let weights_path = if options.from_scratch { None } else { Some(find_weights(dir)?) };
        let config_path = dir.join("config.yaml");
        let remedy = "put the model's YAML there (in F5-TTS: src/f5_tts/configs/F5TTS_v1_Base.yaml)";
        let config_text = read_text(&config_path, MAX_CONFIG_BYTES, remedy)?;
        let file = parse_config(&config_text)
            .map_err(|why| RunError::Model(format!("{}: {why}", config_path.display())))?;
        Ok(Files { file, config_path, config_text, weights_path })
    }

    fn model(
        self,
        dir: &Path,
        options: OpenOptions,
        vocabulary: usize,
        vocab_path: Option<PathBuf>,
    ) -> Result<ModelDir, RunError> {
        let mut config = self
            .file
            .config(vocabulary, options.variant)
            .map_err(|why| RunError::Model(format!("{}: {why}", self.config_path.display())))?;
        if let Some(p) = options.dropout {
            config.dropout = p;
        }
        Ok(ModelDir {
            dir: dir.to_owned(),
            wants_checkpointing: self.file.model.arch.checkpoint_activations,
            config_text: self.config_text,
            config,
            vocab_path,
            weights: self.weights_path.map(|path| Weights::open(&path)).transpose()?,
        })
    }
}

/// Parses F5's YAML within a budget: aliases, depth and size are bounded.
fn parse_config(text: &str) -> Result<File, String> {
    serde_saphyr::from_str(text).map_err(|e| e.to_string())
}

/// Reads a text file of at most `most` bytes; `remedy` is for when it is missing.
fn read_text(path: &Path, most: u64, remedy: &str) -> Result<String, RunError> {
    let bytes = match std::fs::metadata(path) {
        Ok(m) if m.len() > most => {
            return Err(RunError::Model(format!(
                "{}: is {} bytes, more than the {most} that are read",
                path.display(),
                m.len()
            )));
        }
        Ok(_) => std::fs::read(path).map_err(|e| RunError::io(path, "cannot read", e))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(RunError::Model(format!("{}: is missing; {remedy}", path.display())));
        }
        Err(e) => return Err(RunError::io(path, "cannot read", e)),
    };
    String::from_utf8(bytes).map_err(|_| RunError::Model(format!("{}: is not UTF-8 text", path.display())))
}

fn open_tokenizer(
    dir: &Path,
    file: &File,
    config_path: &Path,
    chosen: Option<TokenizerKind>,
) -> Result<(Tokenizer, Option<PathBuf>), RunError> {
    let kind = match (chosen, file.model.tokenizer.as_deref()) {
        (Some(kind), _) => kind,
        (None, None | Some("pinyin")) => TokenizerKind::Pinyin,
        (None, Some("char")) => TokenizerKind::Char,
        (None, Some("byte")) => TokenizerKind::Byte,
        (None, Some("custom")) => TokenizerKind::Custom,
        (None, Some(other)) => {
            return Err(RunError::Model(format!(
                "{}: model.tokenizer: `{other}` is unknown; one of pinyin, char, byte, custom",
                config_path.display()
            )));
        }
    };
    if kind == TokenizerKind::Byte {
        return Ok((Tokenizer::new(kind, None)?, None));
    }
    let path = dir.join("vocab.txt");
    if !path.is_file() {
        return Err(RunError::Model(format!(
            "{}: is missing; copy the vocab.txt that the checkpoint was trained with",
            path.display()
        )));
    }
    let vocab = Vocab::read(&path)?;
    Ok((Tokenizer::new(kind, Some(vocab))?, Some(path)))
}

/// The one file of weights in a folder: `model.safetensors`, else the only `.safetensors`, else the only `.pt`.
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

impl Weights {
    fn open(path: &Path) -> Result<Weights, RunError> {
        let file = TensorFile::open(path)?;
        const SECTIONS: [&str; 4] = ["", "ema_model_state_dict.", "model_state_dict.", "state_dict."];
        let prefixes = SECTIONS.iter().flat_map(|s| weights::PREFIXES.iter().map(move |p| format!("{s}{p}")));
        for prefix in prefixes {
            if file.contains(&format!("{prefix}transformer.proj_out.weight")) {
                return Ok(Weights { file, prefix });
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

    /// The name in the file of a model tensor.
    pub fn name_of(&self, state: &str) -> String {
        format!("{}{state}", self.prefix)
    }

    /// Compares the file's index with the parameters that the model declares.
    ///
    /// # Errors
    /// One message that names every missing, extra and misshapen tensor, and says what to do.
    pub fn check(&self, states: &[StateDecl], extend_vocab: bool) -> Result<(), RunError> {
        let path = self.file.path().display();
        // Adapters are made, not read.
        let of_file = |s: &&StateDecl| s.kind == StateKind::Parameter && adapted_module(&s.name).is_none();
        let parameters = || states.iter().filter(of_file);
        let (mut missing, mut misshapen, mut vocabulary) = (Vec::new(), Vec::new(), None);
        for s in parameters() {
            let name = self.name_of(&s.name);
            if !self.file.contains(&name) {
                if s.name != weights::INV_FREQ {
                    missing.push(name);
                }
                continue;
            }
            let have = self.file.get(&name)?.shape().to_vec();
            let want = &*s.ty.shape;
            if have == want {
                continue;
            }
            let rows_differ = have.len() == 2 && want.len() == 2 && have[1] == want[1];
            if weights::is_text_embedding(&s.name) && rows_differ {
                vocabulary = Some((have[0], want[0]));
            } else {
                misshapen.push(format!("{name} is {have:?}, the configuration says {want:?}"));
            }
        }
        let known: std::collections::HashSet<&str> = parameters().map(|s| s.name.as_str()).collect();
        let extra: Vec<String> = self
            .file
            .tensors()
            .iter()
            .filter_map(|t| t.name().strip_prefix(&self.prefix))
            .filter(|n| !known.contains(n) && !weights::ignored(n))
            .map(|n| self.name_of(n))
            .collect();
        let extra = if self.prefix.is_empty() {
            extra.into_iter().filter(|n| n.starts_with("transformer.")).collect()
        } else {
            extra
        };
        let mut problems = Vec::new();
        let mut say = |what: &str, names: Vec<String>| {
            if !names.is_empty() {
                problems.push(format!("{} {what}: {}", names.len(), listed(&names)));
            }
        };
        say("tensors missing", missing);
        say("tensors that the configuration does not have", extra);
        say("tensors of another shape", misshapen);
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
            "{path}: does not fit config.yaml:\n  {}\ncheck that config.yaml and vocab.txt belong to this checkpoint",
            problems.join("\n  ")
        )))
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        n if n > LISTED => format!("{shown} and {} more", n - LISTED),
        _ => shown,
    }
}
