//! What a voice is exported as: `model.ckpt`, which its trainer's warm start and exporter load, and `voice.onnx` with `voice.onnx.json`, which
//! Piper's programs speak with.

use super::folder::MODEL_FILE;
use super::hyper::{self, OPTIONS_FILE};
use super::onnx;
use crate::error::RunError;
use crate::family::{Beside, Exported, MadeLayout, Progressed, TorchLayout};
use crate::hugging_face::CONFIG;
use ambitus_store::{Item, write_atomic, write_atomic_with};
use serde_json::Value;
use std::path::Path;

/// The layout.
pub(super) static LAYOUTS: [TorchLayout; 1] =
    [TorchLayout { name: "lightning", file: MODEL_FILE, key: "state_dict", prefix: "", place: None, beside }];

/// The voice.
pub(super) static MADE: [MadeLayout; 1] = [MadeLayout { name: "onnx", write: voice }];

/// The files of a voice.
const VOICE: &str = "voice.onnx";
const VOICE_JSON: &str = "voice.onnx.json";

/// Writes the voice and its JSON.
fn voice(run: &Progressed<'_>, weights: &mut dyn Exported, out: &Path) -> Result<(), RunError> {
    let config = hyper::kept(run.dir, None)?;
    let lost = || RunError::Model(format!("{}: says no shape", run.dir.join(OPTIONS_FILE).display()));
    let config = config.ok_or_else(lost)?;
    let json = onnx::voice_json(&hyper::read_json(&run.dir.join(CONFIG))?, &config);
    write_atomic_with(out.join(VOICE), |file| {
        onnx::write(&config, &mut |name| weights.read(name), &[], file)
    })?;
    Ok(write_atomic(out.join(VOICE_JSON), format!("{json:#}\n").as_bytes())?)
}

/// The version of Lightning whose form it is: loaders ask for one.
const VERSION: &str = "2.5.0";
/// Optimizers of the project, each of whose steps Lightning counts.
const OPTIMIZERS: i64 = 2;

/// Returns what Lightning saves beside the tensors, without optimizers: the run may go on from it as a warm start.
fn beside(run: &Progressed<'_>) -> Result<Beside, RunError> {
    let mut options = hyper::read_json(&run.dir.join(OPTIONS_FILE))?;
    if let Some(all) = options.as_object_mut() {
        all.remove(hyper::SHAPE);
    }
    let none = || Item::Dict(Vec::new());
    let all = [
        ("epoch", Item::Int(0)),
        ("global_step", Item::Int(OPTIMIZERS * run.updates as i64)),
        ("pytorch-lightning_version", Item::Text(VERSION.to_owned())),
        ("loops", none()),
        ("callbacks", none()),
        ("optimizer_states", Item::List(Vec::new())),
        ("lr_schedulers", Item::List(Vec::new())),
        ("hparams_name", Item::Text("kwargs".to_owned())),
        ("hyper_parameters", item(&options)),
    ];
    Ok(all.map(|(key, item)| (key.to_owned(), item)).into())
}

/// Returns a value as Python has it.
fn item(value: &Value) -> Item {
    match value {
        Value::Null => Item::None,
        Value::Bool(b) => Item::Bool(*b),
        Value::String(text) => Item::Text(text.clone()),
        Value::Number(n) => n.as_i64().map_or_else(|| Item::Float(n.as_f64().unwrap_or(f64::NAN)), Item::Int),
        Value::Array(all) => Item::List(all.iter().map(item).collect()),
        Value::Object(all) => Item::Dict(all.iter().map(|(key, value)| (key.clone(), item(value))).collect()),
    }
}
