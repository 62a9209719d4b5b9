//! A folder with a model: its configuration, a vocabulary or tokenizer, and files of weights. What is the same for all families is
//! here; which files there are and what they must hold, each family says.

use crate::error::RunError;
use crate::family::{Families, Family, Opened};
use ambitus_compile::passes::lora::adapted_module;
use ambitus_data::TokenizerKind;
use ambitus_ir::{StateDecl, StateKind};
use ambitus_models::Model;
use ambitus_models::f5::config::Variant;
use ambitus_recipe::recipe::Defaults;
use ambitus_store::{TensorFile, read_file};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes that a configuration may have.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Bytes through which tensors are read and converted.
pub const STAGING_BYTES: usize = 1 << 20;
/// Names listed in a message before "and n more".
pub(crate) const LISTED: usize = 32;

/// An opened model folder. Weights are indexed, not read.
pub struct ModelDir {
    /// The folder.
    pub dir: PathBuf,
    /// Whose it is.
    pub family: &'static dyn Family,
    /// The model's shape.
    pub model: Arc<dyn Model>,
    /// What its family does with it.
    pub opened: Box<dyn Opened>,
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
    pub files: Vec<TensorFile>,
    /// What stands before the model's tensor names there.
    pub prefix: String,
    /// What they are called in messages.
    pub path: PathBuf,
}

/// How to open a folder. What a family has no use for, it refuses.
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
    /// Opens a folder of the family that recognises it, checks its configuration, and indexes the weights.
    ///
    /// # Errors
    /// A folder that no family knows; else names the file and key or tensor, and says what to do.
    pub fn open(families: Families, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        crate::family::of(families, dir)?.open(dir, options)
    }

    /// A model without files: for plans.
    pub fn shaped(family: &'static dyn Family, model: Arc<dyn Model>, opened: Box<dyn Opened>) -> ModelDir {
        let (dir, kept) = (PathBuf::new(), Vec::new());
        ModelDir { dir, family, model, opened, wants_checkpointing: false, kept, weights: None }
    }

    /// What keys mean that a recipe leaves out.
    pub fn defaults(&self) -> Defaults {
        self.family.defaults(&*self.model)
    }

    /// Compares the weights' index, where there are weights, with the parameters that a session of the model declares.
    ///
    /// # Errors
    /// One message that names every missing, unexpected or misshapen tensor, and says what to do.
    pub fn check(&self, states: &[StateDecl]) -> Result<(), RunError> {
        match &self.weights {
            Some(weights) => self.opened.check(weights, states),
            None => Ok(()),
        }
    }

    /// Warnings about the weights, for people; may read tensors piece by piece.
    ///
    /// # Errors
    /// Unreadable files.
    pub fn doubts(&self) -> Result<Vec<String>, RunError> {
        match &self.weights {
            Some(weights) => self.opened.doubts(weights),
            None => Ok(Vec::new()),
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
    pub fn name_of(&self, state: &str) -> String {
        format!("{}{state}", self.prefix)
    }

    /// The shape in the files of a model tensor.
    pub fn shape_of(&self, state: &str) -> Option<Vec<usize>> {
        let (file, name) = self.find(state)?;
        file.get(&name).ok().map(|t| t.shape().to_vec())
    }

    /// All tensors under the prefix, without it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().flat_map(|f| f.tensors()).filter_map(|t| t.name().strip_prefix(&*self.prefix))
    }
}

/// How files differ from what a model declares; names are the model's.
#[derive(Default)]
pub struct Differences<'s> {
    /// In the model alone.
    pub missing: Vec<&'s str>,
    /// In the files alone.
    pub extra: Vec<String>,
    /// Name, shape in the file, shape of the model.
    pub misshapen: Vec<(&'s str, Vec<usize>, Vec<usize>)>,
}

impl<'s> Differences<'s> {
    /// `made`: what files need not hold; `ignored`: what they may hold beside.
    pub fn new(
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

/// Adds `3 tensors missing: a, b, c` to the problems, where there are any.
pub fn say(problems: &mut Vec<String>, what: &str, names: Vec<String>) {
    if !names.is_empty() {
        problems.push(format!("{} {what}: {}", names.len(), listed(&names)));
    }
}

/// The first names of a list, and how many more there are.
pub fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        n if n > LISTED => format!("{shown} and {} more", n - LISTED),
        _ => shown,
    }
}

/// Reads a text file of at most `most` bytes; `remedy` is for when it is missing.
pub fn read_text(path: &Path, most: u64, remedy: &str) -> Result<String, RunError> {
    let bytes = read_file(path, most).map_err(|e| match e.source.as_ref().map(std::io::Error::kind) {
        Some(std::io::ErrorKind::NotFound) => {
            RunError::Model(format!("{}: is missing; {remedy}", path.display()))
        }
        _ => e.into(),
    })?;
    String::from_utf8(bytes).map_err(|_| RunError::Model(format!("{}: is not UTF-8 text", path.display())))
}
