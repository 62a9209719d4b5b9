//! A model that is to be used: of a model folder (an export is one), with or without an adapter, of a run, or of one of its
//! checkpoints.

use crate::export::merge::Adapter;
use crate::export::{Parameters, Source};
use crate::run::stages;
use crate::run_dir::RunDir;
use crate::tensor_ranges;
use crate::{saved, weights};
use ambitus_exec::executor::Executor;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{Families, ModelDir, OpenOptions};
use ambitus_families::weights::{MAX_CONFIG_BYTES, STAGING_BYTES, read_text};
use ambitus_ir::{StateDecl, StateKind};
use ambitus_recipe::recipe::Lora;
use ambitus_store::{Checkpoint, CheckpointDir, TensorFile};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A model with its weights, which are not read yet.
pub struct Trained {
    /// Its shape and family.
    pub model: ModelDir,
    /// Which weights, for people.
    pub said: String,
    weights: Weights,
}

enum Weights {
    /// Those of the folder.
    Folder,
    /// Those of a checkpoint, to which its adapters are added.
    Checkpoint(Box<Parameters>, Option<Lora>),
    /// Those of the folder, to which an adapter is added.
    Adapted(Box<AdapterFolder>),
}

impl Trained {
    /// Opens what a path names. `source`: which weights of a run; without, the better ones by its validations.
    ///
    /// # Errors
    /// What it is and lacks, by file.
    pub fn open(
        families: Families,
        path: &Path,
        (adapter, source): (Option<&Path>, Option<Source>),
        console: &mut dyn Console,
    ) -> Result<Trained, RunError> {
        let checkpoints = path.parent().filter(|p| p.ends_with("checkpoints"));
        let root = checkpoints.and_then(Path::parent).filter(|root| root.join("recipe.yaml").is_file());
        let is_run = path.join("recipe.yaml").is_file() && !path.join("config.yaml").is_file();
        let (Some(root), at) = (if is_run { Some(path) } else { root }, checkpoints) else {
            if source.is_some() {
                return Err(RunError::Usage(format!(
                    "--weights: {} is no run; leave it out",
                    path.display()
                )));
            }
            let model = ModelDir::open(families, path, OpenOptions::default())?;
            let (weights, said) = match adapter {
                None => (Weights::Folder, path.display().to_string()),
                Some(dir) => {
                    let said = format!("{} with the adapter {}", path.display(), dir.display());
                    (Weights::Adapted(Box::new(AdapterFolder::open(dir)?)), said)
                }
            };
            return Ok(Trained { model, said, weights });
        };
        if adapter.is_some() {
            return Err(RunError::Usage(format!(
                "--adapter: {} is a run, whose own adapters are used; leave it out, or give a model folder",
                path.display()
            )));
        }
        let (run, recipe) = RunDir::open(families, root)?;
        let (run, recipe) = if is_run { stages::latest(families, run, recipe)? } else { (run, recipe) };
        let checkpoint = match at.filter(|_| !is_run) {
            Some(dir) => named(&CheckpointDir::new(dir), path)?,
            None => saved::best(&run.checkpoints(), console)?.ok_or_else(|| {
                RunError::Usage(format!("{}: has no complete checkpoint yet", root.display()))
            })?,
        };
        let source =
            source.map_or_else(|| Ok(Source::better(&saved::progress(&checkpoint)?)), Ok::<_, RunError>)?;
        run.kept()?;
        let options = OpenOptions { from_scratch: true, own: recipe.own.clone(), ..OpenOptions::default() };
        let model = ModelDir::open(families, &run.model(), options)?;
        let said = format!("{} ({} weights)", checkpoint.path.display(), source.name());
        let parameters = Box::new(Parameters::open(&checkpoint, source)?);
        let weights = Weights::Checkpoint(parameters, recipe.lora.clone());
        Ok(Trained { model, said, weights })
    }

    /// Compares the weights' index with the parameters of a plan.
    ///
    /// # Errors
    /// Names what does not fit.
    pub fn check(&self, states: &[StateDecl]) -> Result<(), RunError> {
        match &self.weights {
            Weights::Folder => self.model.check(states),
            Weights::Adapted(adapter) => {
                self.model.check(states)?;
                adapter.check(states)
            }
            Weights::Checkpoint(parameters, _) => {
                for s in states {
                    let shape = parameters.shape(&s.name)?;
                    if *shape != s.ty.shape[..] {
                        return Err(RunError::Model(format!(
                            "{}: tensor {} is {shape:?}, the run's model says {:?}; put model/ and checkpoint of one run together",
                            self.said,
                            s.name,
                            &s.ty.shape[..]
                        )));
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the bytes of the host's memory that adding adapters takes.
    pub fn adding_bytes(&self) -> u64 {
        match &self.weights {
            Weights::Folder => 0,
            Weights::Checkpoint(parameters, _) => parameters.adapter_bytes(),
            Weights::Adapted(adapter) => adapter.most_bytes(),
        }
    }

    /// Writes every parameter.
    ///
    /// # Errors
    /// Unreadable files, adapters that do not fit.
    pub fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        if !matches!(self.weights, Weights::Checkpoint(..)) {
            weights::fill(exec, &self.model, 0, None)?;
        }
        let states = exec.planned().session.states.clone();
        let mut scratch = vec![0u8; STAGING_BYTES];
        for piece in tensor_ranges::of(&states, None) {
            if states[piece.state.index()].kind != StateKind::Parameter {
                continue;
            }
            match &self.weights {
                Weights::Folder => return Ok(()),
                Weights::Checkpoint(parameters, lora) => {
                    let mut adapter = Adapter::read(
                        parameters,
                        (&piece.name, self.model.family.export().is_by_columns(&piece.name)),
                        lora.as_ref(),
                        &mut scratch,
                    )?;
                    weights::read(exec, &piece, &parameters.path(), |take| {
                        let mut change = |first: usize, values: &mut [f32]| {
                            if let Some(adapter) = &mut adapter {
                                adapter.add(first, values);
                            }
                        };
                        parameters.stream(&piece.name, &mut scratch, &mut change, take)
                    })?;
                }
                Weights::Adapted(adapter) => {
                    let Some((file, tensor, mut added)) = adapter.of(&piece, &self.model, &mut scratch)?
                    else {
                        continue;
                    };
                    let elements = file.get(&tensor)?.elements();
                    let mut changed = Vec::new();
                    weights::read(exec, &piece, file.path(), |take| {
                        Ok(file.read_range(&tensor, 0..elements, &mut scratch, |first, values| {
                            changed.clear();
                            changed.extend_from_slice(values);
                            if let Some(added) = &mut added {
                                added.add(first, &mut changed);
                            }
                            take(first, &changed);
                        })?)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the checkpoint in a folder, every byte of it verified.
fn named(dir: &CheckpointDir, path: &Path) -> Result<Checkpoint, RunError> {
    let found = dir.list()?.into_iter().find(|c| c.path.file_name() == path.file_name());
    let found = found.ok_or_else(|| {
        RunError::Usage(format!("{}: is no complete checkpoint of its run", path.display()))
    })?;
    dir.verify(&found.path)?;
    Ok(found)
}

/// A folder of adapters in PEFT's form.
struct AdapterFolder {
    file: TensorFile,
    scale: f64,
}

/// What is read of `adapter_config.json`.
#[derive(Deserialize)]
struct AdapterConfig {
    r: u32,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
}

/// Where a parameter is read from once more, by the name there, and what is added to it.
type Again<'f> = (&'f TensorFile, String, Option<Adapter>);

/// Before the names of an adapter's tensors.
const PREFIX: &str = "base_model.model.";

impl AdapterFolder {
    fn open(dir: &Path) -> Result<AdapterFolder, RunError> {
        let path = dir.join("adapter_config.json");
        let text =
            read_text(&path, MAX_CONFIG_BYTES, "give the folder that `ambitus export --adapter` wrote")?;
        let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
        let config: AdapterConfig = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        if config.use_dora || config.r == 0 {
            return Err(bad("use_dora or r: only LoRA of a rank above 0 is read".to_owned()));
        }
        let r = f64::from(config.r);
        let scale = config.lora_alpha / if config.use_rslora { r.sqrt() } else { r };
        Ok(AdapterFolder { file: TensorFile::open(dir.join("adapter_model.safetensors"))?, scale })
    }

    fn names(weight: &str) -> Option<[String; 2]> {
        let module = weight.strip_suffix(".weight")?;
        Some(["A", "B"].map(|which| format!("{PREFIX}{module}.lora_{which}.weight")))
    }

    /// Refuses tensors that no parameter takes.
    fn check(&self, states: &[StateDecl]) -> Result<(), RunError> {
        let path: PathBuf = self.file.path().to_owned();
        let wanted = |tensor: &str| {
            states.iter().any(|s| {
                tensor.strip_prefix(PREFIX) == Some(s.name.as_str())
                    || Self::names(&s.name).is_some_and(|ab| ab.iter().any(|n| n == tensor))
            })
        };
        let others: Vec<&str> = self.file.tensors().iter().map(|t| t.name()).filter(|n| !wanted(n)).collect();
        match others.first() {
            // The head of a tied model is written once more.
            Some(first) if !others.iter().all(|n| n.ends_with("lm_head.weight")) => {
                Err(RunError::Model(format!(
                    "{}: {} tensors are of no layer of this model, as {first}; give the model that the adapter was trained on",
                    path.display(),
                    others.len()
                )))
            }
            _ => Ok(()),
        }
    }

    fn most_bytes(&self) -> u64 {
        let all = self.file.tensors().iter();
        let adapters = all.filter(|t| t.name().contains(".lora_"));
        2 * adapters.map(|t| 4 * t.elements() as u64).max().unwrap_or(0)
    }

    /// Returns the tensor that a parameter is read from again, and what is added to it; `None` where it stays.
    fn of<'f>(
        &'f self,
        piece: &tensor_ranges::Piece,
        model: &'f ModelDir,
        scratch: &mut [u8],
    ) -> Result<Option<Again<'f>>, RunError> {
        let whole = format!("{PREFIX}{}", piece.name);
        if self.file.contains(&whole) {
            return Ok(Some((&self.file, whole, None)));
        }
        let Some([a, b]) = Self::names(&piece.name).filter(|[a, _]| self.file.contains(a)) else {
            return Ok(None);
        };
        let Some((file, tensor)) = model.weights.as_ref().and_then(|w| w.find(&piece.name)) else {
            return Ok(None);
        };
        let shapes = [a.as_str(), &b].map(|name| self.file.get(name).map(|t| t.shape().to_vec()));
        let [a_shape, b_shape] = shapes;
        let shapes = (a_shape?, b_shape?, piece.ty.shape.to_vec());
        let mut read = |name: &str| -> Result<Vec<f32>, RunError> {
            let mut values = vec![0.0; self.file.get(name)?.elements()];
            self.file.read_into(name, &mut values, scratch)?;
            Ok(values)
        };
        let (a_values, b_values) = (read(&a)?, read(&b)?);
        let by_columns = model.family.export().is_by_columns(&piece.name);
        let adapter = Adapter::new((a_values, b_values), &shapes, self.scale, by_columns);
        let adapter = adapter.ok_or_else(|| {
            RunError::Model(format!(
                "{}: {a} {:?} and {b} {:?} do not fit {} {:?}; give the model that the adapter was trained on",
                self.file.path().display(),
                shapes.0,
                shapes.1,
                piece.name,
                shapes.2
            ))
        })?;
        Ok(Some((file, tensor, Some(adapter))))
    }
}
