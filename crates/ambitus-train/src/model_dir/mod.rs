//! A folder with a model: its configuration, a vocabulary or tokenizer, and files of weights. The family is recognised from
//! the files; what is the same for all families is here.

mod f5;
mod orpheus;

use crate::error::RunError;
use ambitus_compile::passes::lora::adapted_module;
use ambitus_data::{Tokenizer, TokenizerKind};
use ambitus_ir::{StateDecl, StateKind};
use ambitus_models::Model;
use ambitus_models::f5::config::Variant;
use ambitus_store::{TensorFile, read_file};
use std::path::{Path, PathBuf};

/// The most bytes that a configuration may have.
pub(crate) const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Names listed in a message before "and n more".
const LISTED: usize = 32;

/// An opened model folder. Weights are indexed, not read.
pub struct ModelDir {
    /// The folder.
    pub dir: PathBuf,
    /// The model's shape.
    pub model: Model,
    /// The configuration asked for activation checkpointing.
    pub wants_checkpointing: bool,
    /// Names of the folder's files that an export needs beside the weights.
    pub kept: Vec<String>,
    /// The weights; absent when training starts from random values.
    pub weights: Option<Weights>,
}

/// Files of weights and where the model's tensors are in them.
pub struct Weights {
    /// The indexed files: one, or the shards of one checkpoint, in which no tensor is twice.
    files: Vec<TensorFile>,
    /// What stands before the model's tensor names there.
    prefix: String,
    /// What they are called in messages.
    path: PathBuf,
}

/// How to open a folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// v0 or v1, where an F5-TTS configuration does not say.
    pub variant: Option<Variant>,
    /// Do not look for weights.
    pub from_scratch: bool,
    /// Accept a vocabulary longer than the checkpoint's: its new rows are drawn, old ids keep theirs. F5-TTS only.
    pub extend_vocab: bool,
    /// Dropout instead of the configuration's. F5-TTS only.
    pub dropout: Option<f32>,
    /// Tokenizer instead of the configuration's. F5-TTS only.
    pub tokenizer: Option<TokenizerKind>,
}

/// The families by the file that tells them.
pub(crate) enum Family {
    /// F5-TTS.
    F5,
    /// A `LlamaForCausalLM`.
    Orpheus,
}

impl Family {
    pub(crate) fn of(dir: &Path) -> Result<Family, RunError> {
        if !dir.is_dir() {
            return Err(RunError::Model(format!(
                "{}: is not a folder; give a folder with config.yaml, vocab.txt and model.safetensors (F5-TTS), or with \
                 config.json and model.safetensors (Orpheus)",
                dir.display()
            )));
        }
        // A folder without either is taken for F5's, whose message says what is missing.
        let orpheus = dir.join(orpheus::CONFIG).is_file() && !dir.join(f5::CONFIG).is_file();
        Ok(if orpheus { Family::Orpheus } else { Family::F5 })
    }
}

impl ModelDir {
    /// Opens a folder, checks its configuration, and indexes the weights. F5-TTS's tokenizer, with which its shape is
    /// checked, is handed out beside it: it may hold a large dictionary.
    ///
    /// # Errors
    /// Names the file and key or tensor, and says what to do.
    pub fn open(dir: &Path, options: OpenOptions) -> Result<(ModelDir, Option<Tokenizer>), RunError> {
        match Family::of(dir)? {
            Family::F5 => f5::open(dir, options).map(|(model, tokenizer)| (model, Some(tokenizer))),
            Family::Orpheus => Ok((orpheus::open(dir, options)?, None)),
        }
    }

    /// As [`ModelDir::open`] for text that comes as ids: no tokenizer is made.
    ///
    /// # Errors
    /// As [`ModelDir::open`].
    pub fn open_for_ids(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        match Family::of(dir)? {
            Family::F5 => f5::open_for_ids(dir, options),
            Family::Orpheus => orpheus::open(dir, options),
        }
    }

    /// Compares the weights' index, where there are weights, with the parameters that a session of the model declares.
    ///
    /// # Errors
    /// One message that names every tensor that is missing, too much or of another shape, and says what to do.
    pub fn check(&self, states: &[StateDecl], extend_vocab: bool) -> Result<(), RunError> {
        match (&self.weights, &self.model) {
            (None, _) => Ok(()),
            (Some(weights), Model::F5(_)) => f5::check(weights, states, extend_vocab),
            (Some(weights), Model::Orpheus(cfg)) => orpheus::check(weights, cfg, states),
        }
    }

    /// What is odd about the weights and does no harm, for people; may read tensors piece by piece.
    ///
    /// # Errors
    /// Unreadable files.
    pub fn doubts(&self) -> Result<Vec<String>, RunError> {
        match (&self.weights, &self.model) {
            (Some(weights), Model::Orpheus(cfg)) => orpheus::doubts(weights, cfg),
            _ => Ok(Vec::new()),
        }
    }
}

impl Weights {
    /// The file with a model tensor and its name there.
    pub fn find(&self, state: &str) -> Option<(&TensorFile, String)> {
        let name = self.name_of(state);
        let file = self.files.iter().find(|f| f.contains(&name))?;
        Some((file, name))
    }

    /// The name in the files of a model tensor.
    fn name_of(&self, state: &str) -> String {
        format!("{}{state}", self.prefix)
    }

    fn shape_of(&self, state: &str) -> Option<Vec<usize>> {
        let (file, name) = self.find(state)?;
        file.get(&name).ok().map(|t| t.shape().to_vec())
    }

    /// All tensors under the prefix, without it.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().flat_map(|f| f.tensors()).filter_map(|t| t.name().strip_prefix(&*self.prefix))
    }
}

/// How files differ from what a model declares; names are the model's.
#[derive(Default)]
struct Differences<'s> {
    missing: Vec<&'s str>,
    extra: Vec<String>,
    /// Name, shape in the file, shape of the model.
    misshapen: Vec<(&'s str, Vec<usize>, Vec<usize>)>,
}

impl<'s> Differences<'s> {
    /// `made`: what files need not hold; `ignored`: what they may hold beside.
    fn new(
        weights: &Weights,
        states: &'s [StateDecl],
        made: impl Fn(&str) -> bool,
        ignored: impl Fn(&str) -> bool,
    ) -> Differences<'s> {
        let mut out = Differences::default();
        // Adapters are made, not read.
        let of_file = |s: &&StateDecl| s.kind == StateKind::Parameter && adapted_module(&s.name).is_none();
        let mut known = std::collections::HashSet::new();
        for s in states.iter().filter(of_file) {
            known.insert(s.name.as_str());
            match weights.shape_of(&s.name) {
                None if made(&s.name) => {}
                None => out.missing.push(&s.name),
                Some(have) if have == *s.ty.shape => {}
                Some(have) => out.misshapen.push((&s.name, have, s.ty.shape.to_vec())),
            }
        }
        let extra = weights.names().filter(|n| !known.contains(n) && !ignored(n));
        out.extra = extra.map(str::to_owned).collect();
        out
    }
}

/// `3 tensors missing: a, b, c`, where there are any.
fn say(problems: &mut Vec<String>, what: &str, names: Vec<String>) {
    if !names.is_empty() {
        problems.push(format!("{} {what}: {}", names.len(), listed(&names)));
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        n if n > LISTED => format!("{shown} and {} more", n - LISTED),
        _ => shown,
    }
}

/// Reads a text file of at most `most` bytes; `remedy` is for when it is missing.
pub(crate) fn read_text(path: &Path, most: u64, remedy: &str) -> Result<String, RunError> {
    let bytes = read_file(path, most).map_err(|e| match e.source.as_ref().map(std::io::Error::kind) {
        Some(std::io::ErrorKind::NotFound) => {
            RunError::Model(format!("{}: is missing; {remedy}", path.display()))
        }
        _ => e.into(),
    })?;
    String::from_utf8(bytes).map_err(|_| RunError::Model(format!("{}: is not UTF-8 text", path.display())))
}
