//! The traits of a family: one value recognises and opens its folders, and one for each opened folder makes clips, batches and
//! samples for its model. A registry of them is handed down from the command line; nothing else names one.

use crate::clips::Clips;
use crate::error::RunError;
use crate::generate::Generator;
use crate::hugging_face::Frozen;
use crate::prepare::Preparer;
use crate::recorded::Spare;
use crate::sample::Sampler;
use crate::speech::Speaker;
use crate::tokens::{Reader, Reading};
use crate::weights::{Weights, architectures};
use ambitus_data::ClipIndex;
use ambitus_data::check::Advised;
use ambitus_ir::StateDecl;
use ambitus_models::Model;
use ambitus_recipe::import::Trainer;
use ambitus_recipe::recipe::{Average, Defaults, Own, Schedule, ScheduleKind, Section, read_own};
use ambitus_store::{DType, Item};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The families of a program.
pub type Families = &'static [&'static dyn Family];

/// A model family.
pub trait Family: Sync {
    /// Returns the name for people: `F5-TTS`.
    fn name(&self) -> &'static str;

    /// Returns the files of its folders, for people.
    fn files(&self) -> &'static str;

    /// Returns its section of recipes.
    fn section(&self) -> &'static Section;

    /// Returns the files of its original trainers, for `import`.
    fn trainers(&self) -> &'static [&'static Trainer] {
        &[]
    }

    /// Returns whether the folder is one of its own.
    fn recognises(&self, dir: &Path) -> bool;

    /// Opens a folder, checks its configuration, and indexes the weights.
    ///
    /// # Errors
    /// Names the file and key or tensor, and says what to do.
    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError>;

    /// Takes out of a recipe's sections what says which of the model's weights a run begins with: a later stage begins with all that
    /// the stage before it ends with.
    fn go_on(&self, own: &mut Own) {
        let _ = own;
    }

    /// Returns what it means by keys that a recipe leaves out: its original project's settings over [`of_model`].
    fn defaults(&self, model: &dyn Model) -> Defaults;

    /// Returns how much of one voice its project or its users advise, where anybody says so.
    fn advised(&self) -> Option<Advised> {
        None
    }

    /// Returns how its original project stores weights.
    fn export(&self) -> ExportForm;
}

/// How an original project stores weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportForm {
    /// What stands before the model's tensor names.
    pub prefix: &'static str,
    /// Scalars that its loader wants: a bool is true, a number 0.
    pub scalars: &'static [(&'static str, DType)],
    /// The file's metadata.
    pub metadata: &'static [(&'static str, &'static str)],
    /// Tensors that stay in fp32 whatever type the weights have: constants that rounding would spoil.
    pub exact: &'static [&'static str],
    /// Constants of the model that the project has no tensors of, which are left out.
    pub left_out: &'static [&'static str],
    /// How names of layers end whose weights lie `[In, Out]`, as GPT-2's do.
    pub by_columns: &'static [&'static str],
    /// The JSON file that names the weights' type as Hugging Face's do, `torch_dtype` or `dtype`.
    pub config: Option<&'static str>,
    /// PyTorch checkpoints in place of `model.safetensors`, of which an export chooses one; the first where none is asked for.
    pub layouts: &'static [TorchLayout],
    /// What is made of a model for other programs, which no training begins with.
    pub made: &'static [MadeLayout],
    /// The word for `model.safetensors` beside them, which it is then where none is asked for.
    pub plain: Option<&'static str>,
}

impl ExportForm {
    /// Returns whether a weight lies `[In, Out]`.
    pub fn is_by_columns(&self, weight: &str) -> bool {
        let layer = weight.strip_suffix(".weight");
        layer.is_some_and(|layer| self.by_columns.iter().any(|end| layer.ends_with(end)))
    }

    /// Returns what is made under this name, if that is no layout of weights.
    pub fn made(&self, name: Option<&str>) -> Option<&'static MadeLayout> {
        self.made.iter().find(|made| Some(made.name) == name)
    }

    /// Returns the layout of this name, or the default; `None` where weights are written as safetensors.
    ///
    /// # Errors
    /// A name that is none of them, with those that there are.
    pub fn layout(&self, name: Option<&str>) -> Result<Option<&'static TorchLayout>, RunError> {
        let Some(name) = name else { return Ok(self.layouts.first().filter(|_| self.plain.is_none())) };
        if self.plain == Some(name) {
            return Ok(None);
        }
        let found = self.layouts.iter().find(|layout| layout.name == name);
        found.map(Some).ok_or_else(|| {
            let names = self.plain.into_iter().chain(self.layouts.iter().map(|layout| layout.name));
            let names = names.chain(self.made.iter().map(|made| made.name));
            let names: Vec<&str> = names.collect();
            RunError::Usage(match &*names {
                [] => format!("--layout {name}: this model is exported in one layout: leave it out"),
                names => format!("--layout {name}: is none of {}", names.join(", ")),
            })
        })
    }
}

/// A PyTorch checkpoint as an original project writes it: a dictionary that holds the one of all tensors, and what stands beside it.
#[derive(Clone, Copy, Debug)]
pub struct TorchLayout {
    /// The word on the command line.
    pub name: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The key of the tensors.
    pub key: &'static str,
    /// What stands before every tensor's name, of frozen ones as well.
    pub prefix: &'static str,
    /// Returns where a tensor of the model is, of a project with names of its own. Frozen tensors and the model's other files are none of
    /// its checkpoint's.
    pub place: Option<fn(&str) -> Place>,
    /// Returns what stands beside the tensors.
    ///
    /// # Errors
    /// A model that the project does not have.
    pub beside: fn(&Progressed<'_>) -> Result<Beside, RunError>,
}

/// Files that are made of a model's weights.
#[derive(Clone, Copy, Debug)]
pub struct MadeLayout {
    /// The word on the command line.
    pub name: &'static str,
    /// Writes them to a folder that is there.
    ///
    /// # Errors
    /// A model of which they cannot be made; files that cannot be written.
    pub write: fn(&Progressed<'_>, &mut dyn Exported, &Path) -> Result<(), RunError>,
}

/// The weights of an export, by the model's names.
pub trait Exported {
    /// Returns a whole tensor.
    ///
    /// # Errors
    /// None of that name; files that cannot be read.
    fn read(&mut self, name: &str) -> Result<Vec<f32>, RunError>;
}

/// What stands beside the tensors of a checkpoint, by key.
pub type Beside = Vec<(String, Item)>;

/// Where a tensor is in a project's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name there.
    pub name: String,
    /// Which of how many parts of that tensor, of as many rows each, it is.
    pub part: (usize, usize),
}

/// What an export knows of its run.
#[derive(Clone, Copy, Debug)]
pub struct Progressed<'a> {
    /// The folder of the files that are copied next to the weights.
    pub dir: &'a Path,
    /// Updates done.
    pub updates: u64,
    /// Loss of the last validation, of the weights that are exported.
    pub loss: Option<f64>,
}

/// What a family does with a folder that is open.
pub trait Opened: Send + Sync {
    /// Compares the weights' index with the parameters that a session of the model declares.
    ///
    /// # Errors
    /// One message that names every missing, unexpected or misshapen tensor, and says what to do.
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError>;

    /// Returns warnings about the weights, for people; may read tensors piece by piece.
    ///
    /// # Errors
    /// Unreadable files.
    fn doubts(&self, weights: &Weights) -> Result<Vec<String>, RunError> {
        let _ = weights;
        Ok(Vec::new())
    }

    /// Returns the tensors of its files that stand beside the model and go along with every export.
    ///
    /// # Errors
    /// Unreadable files.
    fn frozen(&self) -> Result<Option<Frozen>, RunError> {
        Ok(None)
    }

    /// Returns the files that a run keeps for its exports besides [`ModelDir::kept`], by their names there: those of a folder that is not in
    /// the form of its exports.
    ///
    /// # Errors
    /// Unreadable files; what that form cannot say.
    fn kept(&self) -> Result<Vec<(String, KeptFile)>, RunError> {
        Ok(Vec::new())
    }

    /// Returns what makes clips of audio and text. Holds the tokenizer, so it is dropped before training.
    ///
    /// # Errors
    /// A vocabulary or tokenizer that cannot be used.
    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError>;

    /// Returns what reads texts as the model does (`ambitus tokens`).
    ///
    /// # Errors
    /// A vocabulary or tokenizer that cannot be used; a language or voice that the family does not have; a family without texts.
    fn reader(&self, reading: &Reading) -> Result<Reader<'_>, RunError> {
        let _ = reading;
        Err(RunError::Usage("this model reads no text".to_owned()))
    }

    /// Returns those clips of what was prepared, in this order; `seed` is that of their draws in training.
    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], seed: u64) -> Box<dyn Clips>;

    /// Returns how often a validation uses each clip, as [`Clips::rounds`].
    fn rounds(&self) -> u32 {
        1
    }

    /// Returns the clips of a batch file, with every draw given (`ambitus gradients`). Encoders that this takes run on the processor, within
    /// `spare`, and are gone afterwards.
    ///
    /// # Errors
    /// By file and tensor.
    fn recorded(&self, file: &Path, spare: Spare) -> Result<Box<dyn Clips>, RunError>;

    /// Returns the rows of a clip of `seconds`, with the text that so much speech has.
    fn rows_of(&self, seconds: f64) -> u32;

    /// Returns what [`rows_of`](Opened::rows_of) takes text for; `counted`: the clips are given in rows.
    fn text_assumed(&self, counted: bool) -> &'static str;

    /// Returns the most rows of a clip by its own keys; longer ones are left out.
    fn most_rows(&self) -> Option<u64> {
        None
    }

    /// Returns the seconds of the longest clip into which recordings are cut for it, where it has a limit of its own.
    fn longest_cut(&self) -> Option<f64> {
        None
    }

    /// Returns whether a plan without data may assume clips as long as the recipe allows.
    fn assumes_clips(&self) -> bool;

    /// Returns what generates from a batch file; `None` for families that do not.
    fn generator(&self) -> Option<&dyn Generator> {
        None
    }

    /// Returns what speaks; `None` for families that do not.
    fn speaker(&self) -> Option<&dyn Speaker> {
        None
    }

    /// Returns what samples a held-out clip; `None` for families that do not.
    fn sampler(&self) -> Option<&dyn Sampler> {
        None
    }
}

/// A file that a run keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum KeptFile {
    /// A copy of the one that lies here.
    At(PathBuf),
    /// This text.
    Text(String),
}

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
    /// Names of the folder's files that an export needs besides the weights.
    pub kept: Vec<String>,
    /// The weights; absent when training starts from random values.
    pub weights: Option<Weights>,
}

/// How to open a folder.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Do not look for weights.
    pub from_scratch: bool,
    /// Dropout instead of the configuration's; families without any refuse it.
    pub dropout: Option<f32>,
    /// Sections of a recipe, of which a family reads its own.
    pub own: Own,
}

impl OpenOptions {
    /// Returns the values of a family's section.
    ///
    /// # Errors
    /// [`RunError::Usage`] with section and key.
    pub fn own<T: DeserializeOwned>(&self, section: &Section) -> Result<T, RunError> {
        read_own(&self.own, section.name).map_err(RunError::Usage)
    }
}

impl ModelDir {
    /// Opens a folder of the family that recognises it, checks its configuration, and indexes the weights.
    ///
    /// # Errors
    /// A folder that no family knows; else names the file and key or tensor, and says what to do.
    pub fn open(families: Families, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        let family = of(families, dir)?;
        let other =
            families.iter().find(|f| f.name() != family.name() && options.own.contains_key(f.section().name));
        if let Some((other, keys)) = other.and_then(|f| Some((f, options.own.get(f.section().name)?))) {
            let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
            return Err(RunError::Usage(format!(
                "{}.{}: is for {}, and {} holds {}: leave it out",
                other.section().name,
                keys.join(", "),
                other.name(),
                dir.display(),
                family.name()
            )));
        }
        family.open(dir, options)
    }

    /// Returns a model without files: for plans.
    pub fn shaped(family: &'static dyn Family, model: Arc<dyn Model>, opened: Box<dyn Opened>) -> ModelDir {
        let (dir, kept) = (PathBuf::new(), Vec::new());
        ModelDir { dir, family, model, opened, wants_checkpointing: false, kept, weights: None }
    }

    /// Returns what keys mean that a recipe leaves out.
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

    /// Returns how this model is heard, for people: here, by a `path` that `ambitus say` takes, and in its project, by an `export`.
    pub fn how_to_listen(&self, path: &str, export: &str) -> Vec<String> {
        let here = self.opened.speaker().and_then(Speaker::example);
        let here = here.map(|example| format!("to hear it:\n  ambitus say {path} {example} -o hello.wav"));
        let there = self.model.listen(export);
        let there = there.map(|listen| format!("to hear it in {}:\n  {listen}", self.model.project()));
        here.into_iter().chain(there).collect()
    }

    /// Returns warnings about the weights, for people; may read tensors piece by piece.
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

/// Returns the sections that a recipe may have.
pub fn sections(families: Families) -> Vec<&'static Section> {
    families.iter().map(|f| f.section()).collect()
}

/// Returns the trainers whose files `import` knows.
pub fn trainers(families: Families) -> Vec<&'static Trainer> {
    families.iter().flat_map(|f| f.trainers()).copied().collect()
}

/// Returns the family of a folder.
///
/// # Errors
/// No folder, or one that no family recognises.
pub fn of(families: Families, dir: &Path) -> Result<&'static dyn Family, RunError> {
    let found = families.iter().find(|f| dir.is_dir() && f.recognises(dir));
    found.copied().ok_or_else(|| {
        let files: Vec<String> = families.iter().map(|f| format!("{} ({})", f.files(), f.name())).collect();
        let what = match &*architectures(dir) {
            _ if !dir.is_dir() => "is not a folder".to_owned(),
            [] => "holds no model that is known here".to_owned(),
            named => {
                format!("its config.json is of {}, which is no model that is known here", named.join(", "))
            }
        };
        RunError::Model(format!("{}: {what}; give a folder with {}", dir.display(), files.join(", or with ")))
    })
}

/// Returns what any model means by keys that a recipe leaves out, before its family says otherwise.
pub fn of_model(model: &dyn Model) -> Defaults {
    Defaults {
        learning_rate: 1e-5,
        weight_decay: 0.0,
        no_decay: Vec::new(),
        betas: [0.9, 0.999],
        eps: 1e-8,
        clip: 1.0,
        players: Vec::new(),
        ema: Average::Off,
        clips: 1,
        warmup: Some(0),
        schedule: Schedule::of(ScheduleKind::Linear),
        adapted: model.adapted().iter().map(|t| (*t).to_owned()).collect(),
        rows_per_second: model.rows().per_second,
        samples: false,
    }
}

#[cfg(test)]
mod tests {
    use crate::f5::F5;
    use crate::orpheus::Orpheus;
    use ambitus_models::{f5, orpheus};
    use ambitus_recipe::recipe::{Average, Batch, Recipe, Sample};

    #[test]
    fn absent_keys_mean_what_the_original_projects_do() {
        let f5 = F5::shaped(f5::config::Config::v1_base()).defaults();
        let llama = Orpheus::shaped(orpheus::config::Config::orpheus_3b()).defaults();
        let settled = |defaults| {
            let mut recipe = Recipe::new("model", "data");
            recipe.lora = Some(Default::default());
            recipe.settled(defaults).recipe().clone()
        };
        let r = settled(&f5);
        let of_run = (r.weight_decay, r.ema, r.warmup, r.batch);
        assert_eq!(of_run, (Some(0.01), Some(Average::Warming), None, Some(Batch::Clips(8))));
        assert_eq!((r.lora.unwrap().targets.unwrap().len(), r.sample), (6, Some(Sample::default())));
        let r = settled(&llama);
        let of_run = (r.weight_decay, r.ema, r.warmup, r.batch);
        assert_eq!(of_run, (Some(0.0), Some(Average::Off), Some(0), Some(Batch::Clips(1))));
        assert_eq!((f5.no_decay.len(), r.no_decay), (0, Some(vec!["*norm".to_owned()])));
        assert_eq!((r.lora.unwrap().targets.unwrap().len(), r.sample), (7, None));
        assert_eq!([f5.learning_rate, llama.learning_rate], [1e-5, 5e-5]);
        assert_eq!([f5.rows_per_second, llama.rows_per_second], [93.75, 82.03125]);
    }
}
