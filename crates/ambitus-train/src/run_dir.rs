//! The layout of the run folder.
//!
//! ```text
//! recipe.yaml      the run, complete; `ambitus resume` starts from it
//! plan.json        what was planned, and where each choice came from
//! metrics.jsonl    a line per update
//! notes.jsonl      validations, slow steps, who else used the machine, seconds that were lost
//! summary.json     the result
//! report.html      all of it on a page
//! checkpoints/     step-N/, the newest few and the best
//! export/          what the original project loads
//! pictures/  audio/
//! samples/         UPDATE/, what was spoken after it
//! tensorboard/     an event file with all of the above that TensorBoard shows
//! model/           configuration and vocabulary of the model that was trained, with their hashes
//! products.txt     on GPUs: the algorithm of each matrix product, which a resumed run takes too
//! .lock            held by the process that runs here, and its name
//! ```
//!
//! A tuning has `tune.json` (its recipe, its trials, and what they say), `plan.json`, `tuned.yaml` and `model/`.
//! A run in stages has `recipe.yaml`, `plan.json`, `summary.json`, `export/`, and `stages/1-NAME/`, ..., each as above.

pub mod frozen;
mod kept;
mod lock;

use ambitus_families::error::RunError;
use ambitus_families::family::{Families, sections};
use ambitus_recipe::recipe::Recipe;
use ambitus_store::{CheckpointDir, write_atomic};
pub use kept::Kept;
use lock::LOCK_FILE;
pub use lock::{Holder, Lock};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a tuning knows.
pub const TUNE_FILE: &str = "tune.json";
/// The file of an executor's choices.
const CHOICES: &str = "products.txt";
/// The folder of a run's stages.
const STAGES: &str = "stages";

/// Paths of one run.
#[derive(Clone, Debug)]
pub struct RunDir {
    /// The folder.
    pub root: PathBuf,
    /// While it is this process's alone.
    lock: Option<Arc<Lock>>,
}

impl RunDir {
    /// Returns the paths of a folder, whatever is in it.
    pub fn at(root: PathBuf) -> RunDir {
        RunDir { root, lock: None }
    }

    /// Makes the folder of a new run, locks it and writes its recipe.
    ///
    /// # Errors
    /// A folder that already holds a run, in which another process runs, or that cannot be written.
    pub fn create(recipe: &Recipe, root: PathBuf) -> Result<RunDir, RunError> {
        let run = RunDir { lock: Some(Arc::new(Lock::take(&root)?)), root };
        if run.is_used() || run.root.join(TUNE_FILE).exists() {
            return Err(RunError::Usage(format!(
                "{0}: holds a run already; continue it with `ambitus resume {0}`, or set another run_dir",
                run.root.display()
            )));
        }
        run.write_recipe(recipe)?;
        Ok(run)
    }

    /// Returns whether a run has begun in the folder.
    pub fn is_used(&self) -> bool {
        [self.metrics(), self.checkpoints_dir(), self.stages()].iter().any(|p| p.exists())
    }

    /// Locks the folder of an existing run.
    ///
    /// # Errors
    /// Another process runs there; a folder that cannot be written.
    pub fn lock(&mut self) -> Result<(), RunError> {
        self.lock = Some(Arc::new(Lock::take(&self.root)?));
        Ok(())
    }

    /// Returns an existing run and its recipe, to be read.
    ///
    /// # Errors
    /// No recipe there, or one that does not read.
    pub fn open(families: Families, root: &Path) -> Result<(RunDir, Recipe), RunError> {
        let run = RunDir::at(root.to_owned());
        let path = run.root.join("recipe.yaml");
        if !path.is_file() {
            return Err(RunError::Usage(format!(
                "{}: is not a run folder (no recipe.yaml); give the folder that `ambitus train` named",
                root.display()
            )));
        }
        let (recipe, _) =
            Recipe::read(&path, &sections(families)).map_err(|e| RunError::Usage(e.to_string()))?;
        Ok((run, recipe))
    }

    /// Removes a folder in which only the recipe, or what a tuning knows, was written: nothing was trained.
    pub fn discard(&self) {
        let entries = std::fs::read_dir(&self.root).map_or(usize::MAX, Iterator::count);
        if entries <= 2 {
            // Leaving an empty folder behind is no harm.
            for file in ["recipe.yaml", TUNE_FILE, LOCK_FILE] {
                let _ = std::fs::remove_file(self.root.join(file));
            }
            let _ = std::fs::remove_dir(&self.root);
        }
    }

    /// Writes the run's recipe.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_recipe(&self, recipe: &Recipe) -> Result<(), RunError> {
        let text = recipe.to_yaml().map_err(RunError::Usage)?;
        Ok(write_atomic(self.root.join("recipe.yaml"), text.as_bytes())?)
    }

    /// Writes a JSON file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_json(&self, name: &str, value: &serde_json::Value) -> Result<(), RunError> {
        Ok(write_atomic(self.root.join(name), format!("{value:#}\n").as_bytes())?)
    }

    /// Returns what [`RunDir::keep_choices`] wrote, or nothing.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn choices(&self) -> Result<Vec<u8>, RunError> {
        /// Bytes of some thousand products.
        const MOST: u64 = 4 << 20;
        let path = self.root.join(CHOICES);
        let failed = |e| RunError::io(&path, "cannot read", e);
        let mut text = Vec::new();
        match File::open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
            Ok(file) => _ = file.take(MOST).read_to_end(&mut text).map_err(failed)?,
        }
        Ok(text)
    }

    /// Keeps an executor's choices (see [`Executor::choices`](ambitus_exec::executor::Executor::choices)), if there are any.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_choices(&self, chosen: &str) -> Result<(), RunError> {
        if chosen.is_empty() {
            return Ok(());
        }
        Ok(write_atomic(self.root.join(CHOICES), chosen.as_bytes())?)
    }

    /// Returns a folder of the run, made when missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> Result<PathBuf, RunError> {
        let path = self.root.join(name);
        std::fs::create_dir_all(&path).map_err(|e| RunError::io(&path, "cannot create", e))?;
        Ok(path)
    }

    /// Returns the log.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Returns the folders of a run's stages.
    pub fn stages(&self) -> PathBuf {
        self.root.join(STAGES)
    }

    /// Returns whether this is a stage of a run in stages, whose export the next stage begins with.
    pub fn is_stage(&self) -> bool {
        let root = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        let stages = root.parent().filter(|folder| folder.ends_with(STAGES));
        stages.and_then(Path::parent).is_some_and(|run| run.join("recipe.yaml").is_file())
    }

    /// Returns the model's configuration and vocabulary or tokenizer.
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }

    fn checkpoints_dir(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Returns the checkpoints.
    pub fn checkpoints(&self) -> CheckpointDir {
        CheckpointDir::new(self.checkpoints_dir())
    }
}
