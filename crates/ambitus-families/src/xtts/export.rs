//! The two layouts of `model.pth`: as the model was released, and as AllTalk's "compact and move" leaves what its trainer wrote.

use crate::error::RunError;
use crate::family::{Progressed, TorchLayout};
use ambitus_store::Item;

/// The file of weights, in either.
pub(super) const MODEL_FILE: &str = "model.pth";

/// The layouts, the default first.
pub(super) static LAYOUTS: [TorchLayout; 2] = [
    TorchLayout {
        name: "clean",
        file: MODEL_FILE,
        key: "model",
        prefix: "",
        place: None,
        beside: |_| Ok(Vec::new()),
    },
    TorchLayout { name: "compact", file: MODEL_FILE, key: "model", prefix: "xtts.", place: None, beside },
];

/// Returns what the trainer saves beside the tensors, without its optimizer.
fn beside(run: &Progressed<'_>) -> Result<Vec<(String, Item)>, RunError> {
    let loss = run.loss.map_or(Item::None, Item::Float);
    let losses = [("train_loss", Item::None), ("eval_loss", loss)];
    let named = |(key, item): (&str, Item)| (key.to_owned(), item);
    let config = [("model", Item::Text("xtts".to_owned()))];
    let all = [
        // Loaders look whether it is there; what it says they read in config.json.
        ("config", Item::Dict(config.map(named).into())),
        ("scheduler", Item::None),
        ("scaler", Item::None),
        ("step", Item::Int(run.updates as i64)),
        ("epoch", Item::Int(0)),
        ("model_loss", Item::Dict(losses.map(named).into())),
    ]
    .map(named);
    Ok(all.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::ExportForm;
    use ambitus_store::{DType, TensorFile, TensorSpec, TensorWriter};
    use std::path::Path;

    #[test]
    fn both_layouts_hold_the_models_tensors() {
        let form = ExportForm { layouts: &LAYOUTS, ..ExportForm::default() };
        let dir = tempfile::tempdir().unwrap();
        for (name, sections) in [
            (None, vec!["model"]),
            (Some("compact"), vec!["config", "epoch", "model", "model_loss", "scaler", "scheduler", "step"]),
        ] {
            let layout = form.layout(name).unwrap().unwrap();
            let run = Progressed { dir: Path::new(""), updates: 7, loss: Some(2.5) };
            let mut root = vec![(layout.key.to_owned(), Item::Tensors)];
            root.extend((layout.beside)(&run).unwrap());
            assert!(root.iter().map(|(key, _)| &**key).all(|key| sections.contains(&key)));
            assert_eq!(root.len(), sections.len());
            let spec = TensorSpec::new(format!("{}mel_stats", layout.prefix), DType::F32, &[2]);
            let path = dir.path().join(layout.file);
            let mut file = TensorWriter::create_torch(&path, vec![spec.clone()], &root).unwrap();
            file.write_f32(&spec.name, &[1.0, 2.0]).unwrap();
            file.finish().unwrap();
            let file = TensorFile::open(&path).unwrap();
            assert_eq!(file.section("model").unwrap()[0].0, spec.name);
            assert_eq!(file.scalar("step").is_some(), name.is_some());
        }
        assert!(form.layout(Some("tidy")).unwrap_err().to_string().contains("clean, compact"));
    }
}
