//! A vocoder's folder: `config.yaml` and its weights, checked before a weight is read.

use crate::error::RunError;
use crate::weights::{
    Differences, MAX_CONFIG_BYTES, STAGING_BYTES, Weights, finite, frozen_file, load_frozen, read_text, say,
};
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::{Session, StateDecl, StateKind, TensorType};
use ambitus_models::vocos::config::{Classes, Config, File};
use ambitus_models::vocos::model::{self, WINDOW};
use ambitus_recipe::recipe::short;
use ambitus_store::TensorFile;
use std::path::Path;

/// The configuration's file.
const CONFIG: &str = "config.yaml";

/// An opened folder.
pub struct Folder {
    /// The vocoder's shape.
    pub config: Config,
    weights: Weights,
}

impl Folder {
    /// Reads the configuration and compares the index of the weights with it.
    ///
    /// # Errors
    /// Names the file and the key, or every missing, extra and misshapen tensor.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let config = read_config(dir)?;
        let path = frozen_file(dir, "put the vocoder's files there (charactr/vocos-mel-24khz)")?;
        let file = TensorFile::open(&path)?;
        let weights = Weights { files: vec![file], prefix: String::new(), path };
        check(&config, &weights)?;
        Ok(Folder { config, weights })
    }

    /// Writes every state of a session and returns the window of the inverse transform, `[n_fft]`.
    ///
    /// # Errors
    /// Unreadable files, values that are not finite, a window that leaves samples out.
    pub fn load(&self, exec: &mut dyn Executor) -> Result<Vec<f32>, RunError> {
        load_frozen(&self.weights, exec)?;
        let mut window = vec![0.0; self.config.n_fft];
        let file = &self.weights.files[0];
        file.read_into(WINDOW, &mut window, &mut vec![0; STAGING_BYTES])?;
        finite(file, WINDOW, &window)?;
        let squares =
            |offset: usize| window[offset..].iter().step_by(self.config.hop).map(|w| w * w).sum::<f32>();
        // As the package requires.
        if (0..self.config.hop).any(|offset| squares(offset) <= 1e-11) {
            let why = format!("{}: tensor {WINDOW} leaves samples out", self.weights.path.display());
            return Err(RunError::Model(format!("{why}; this checkpoint is broken, fetch it again")));
        }
        Ok(window)
    }
}

/// Returns whether the folder has a Vocos configuration, right or wrong.
pub fn is_vocos(dir: &Path) -> bool {
    let text = read_text(&dir.join(CONFIG), MAX_CONFIG_BYTES, "").ok();
    let classes = text.and_then(|text| serde_saphyr::from_str::<Classes>(&text).ok());
    classes.is_some_and(|classes| classes.are_the_packages())
}

fn read_config(dir: &Path) -> Result<Config, RunError> {
    let path = dir.join(CONFIG);
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let text =
        read_text(&path, MAX_CONFIG_BYTES, "give a folder with a Vocos vocoder's config.yaml and weights")?;
    let yaml = |e: serde_saphyr::Error| bad(short(&e.without_snippet().to_string()));
    let classes: Classes = serde_saphyr::from_str(&text).map_err(yaml)?;
    classes.check().map_err(|e| bad(e.to_string()))?;
    let file: File = serde_saphyr::from_str(&text).map_err(yaml)?;
    file.config().map_err(|e| bad(e.to_string()))
}

/// Compares the file's index with what the package's model holds: weights and buffers.
fn check(config: &Config, weights: &Weights) -> Result<(), RunError> {
    let mut session = Session::default();
    model::decode(&mut session, config, 1);
    let mut states = session.states;
    states.extend(model::buffers(config).map(|(name, dims)| StateDecl {
        name: name.to_owned(),
        ty: TensorType::f32(&dims),
        kind: StateKind::Parameter,
        trainable: false,
        home: Space::Device,
    }));
    let all = Differences::new(weights, &states, |_| false, |_| false);
    let misshapen = all.misshapen.into_iter();
    let misshapen =
        misshapen.map(|(name, have, want)| format!("{name} is {have:?}, the configuration says {want:?}"));
    let refused = weights.files[0].refused().iter().map(|(key, why)| format!("{key} ({why})"));
    let mut problems = Vec::new();
    say(&mut problems, "tensors missing", all.missing.into_iter().map(str::to_owned).collect());
    say(&mut problems, "tensors that the configuration does not have", all.extra);
    say(&mut problems, "tensors of another shape", misshapen.collect());
    say(&mut problems, "entries that were not read", refused.collect());
    if problems.is_empty() {
        return Ok(());
    }
    Err(RunError::Model(format!(
        "{}: does not fit {CONFIG}:\n  {}\ncheck that {CONFIG} belongs to these weights",
        weights.path.display(),
        problems.join("\n  ")
    )))
}
