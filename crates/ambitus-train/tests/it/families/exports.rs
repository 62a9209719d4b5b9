//! Exports in layouts of a project's own.

use super::cases::{self, toy};
use super::{summary, weights};
use ambitus_families::console::Silent;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_families::{ALL, Families};
use ambitus_ir::Session;
use ambitus_models::Capacity;
use ambitus_store::{Scalar, TensorFile};
use ambitus_train::export::Form;
use ambitus_train::run;
use std::path::Path;

/// A project's own layouts of a PyTorch checkpoint have the values of the export that a run ends with.
#[test]
fn an_export_has_the_layout_that_is_asked_for() {
    let case = toy();
    let run = case.trained("run", "updates: 2");
    let pickled: Families = &[&crate::toy::family::Pickled];
    let out = case.dir.path().join("pickled");
    let export = |layout| {
        let wanted = run::Wanted { source: None, form: Form::Model, layout, dtype: None };
        run::export_run(pickled, &run, wanted, &out, &mut Silent)?;
        assert!(out.join("toy.json").is_file() && !out.join("model.safetensors").exists());
        Ok(TensorFile::open(out.join("toy.pth")).expect("a checkpoint"))
    };
    let plain = TensorFile::open(weights(&run.join("export")).expect("an export")).expect("safetensors");
    for (layout, prefix) in [(None, "model."), (Some("wrapped"), "weights.outer.")] {
        let file = export(layout).unwrap_or_else(|e: RunError| panic!("{e}"));
        assert_eq!(file.tensors().len(), plain.tensors().len());
        for tensor in plain.tensors() {
            let stored = |file: &TensorFile, name: &str| {
                let mut all = Vec::new();
                file.read_stored(name, &mut [0; 1 << 12], |bytes| all.extend_from_slice(bytes))
                    .expect("read");
                all
            };
            let name = format!("{prefix}{}", tensor.name());
            assert_eq!(file.get(&name).expect("there").shape(), tensor.shape());
            assert!(stored(&file, &name) == stored(&plain, tensor.name()), "{name}");
        }
        let said = summary(&run)["validation_last"].as_f64();
        let beside = layout.map(|_| Scalar::Int(2));
        assert_eq!(
            (file.scalar("step"), file.scalar("config")),
            (beside, beside.map(|_| Scalar::Bool(true)))
        );
        assert_eq!(file.scalar("loss"), layout.and(said).map(Scalar::Float));
    }
    let why = export(Some("strange")).err().expect("no such layout");
    assert!(why.exit_code() == 2 && why.to_string().contains("none of plain, wrapped"), "{why}");
    let wanted = run::Wanted { source: None, form: Form::Model, layout: Some("plain"), dtype: None };
    let why = run::export_run(case.families, &run, wanted, &out, &mut Silent).expect_err("it has none");
    assert!(why.exit_code() == 2 && why.to_string().contains("leave it out"), "{why}");
}

/// A checkpoint in a project's own names, some of whose tensors are several of the model's, is read under the model's names again, with the
/// values of the export that a run ends with.
#[test]
fn an_export_in_names_of_its_own_is_read_again() {
    let case = cases::musicgen();
    let run = case.trained("run", "updates: 2");
    let out = case.dir.path().join("packed");
    let wanted = run::Wanted { source: None, form: Form::Model, layout: Some("audiocraft"), dtype: None };
    run::export_run(case.families, &run, wanted, &out, &mut Silent).expect("an export");
    assert_eq!(std::fs::read_dir(&out).expect("a folder").count(), 1);
    let open = |dir: &Path| ModelDir::open(ALL, dir, OpenOptions::default()).expect("a model");
    let (plain, packed) = (open(&run.join("export")), open(&out));
    let mut session = Session::default();
    plain.model.loss(&mut session, 0, Capacity { rows: 4, clips: 1 }, "micro", true);
    for model in [&plain, &packed] {
        model.check(&session.states).expect("all tensors are there");
    }
    for state in &session.states {
        let stored = |model: &ModelDir| {
            let (mut all, weights) = (Vec::new(), model.weights.as_ref().expect("weights"));
            let (file, name) = weights.find(&state.name).expect("a tensor");
            file.read_stored(&name, &mut [0; 1 << 12], |bytes| all.extend_from_slice(bytes)).expect("read");
            all
        };
        assert!(stored(&plain) == stored(&packed), "{}", state.name);
    }
}
