//! Exports in layouts of a project's own.

use super::cases::{self, toy};
use super::{Shared, export, goes_on, summary, weights};
use ambitus_families::console::Silent;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_families::{ALL, Families};
use ambitus_ir::Session;
use ambitus_models::Capacity;
use ambitus_store::{SafetensorsWriter, Scalar, TensorFile, TensorSpec};
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

/// What is made of a model for other programs is an export by name: a voice as ONNX, with its JSON, the same each time.
#[test]
fn a_voice_is_exported_for_other_programs() {
    let case = cases::piper();
    let run = case.trained("run", "updates: 1");
    let made = |name: &str| {
        let out = case.dir.path().join(name);
        let wanted = run::Wanted { source: None, form: Form::Model, layout: Some("onnx"), dtype: None };
        run::export_run(ALL, &run, wanted, &out, &mut Silent).expect("an export");
        assert_eq!(std::fs::read_dir(&out).expect("a folder").count(), 2);
        let json = std::fs::read_to_string(out.join("voice.onnx.json")).expect("a file");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["num_speakers"], &json["hop_length"]), (&3.into(), &16.into()));
        std::fs::read(out.join("voice.onnx")).expect("a file")
    };
    let voice = made("one");
    assert!(voice.windows(5).any(|w| w == b"emb_g") && voice == made("two"));
}

/// Writes a part of a model's folder as a folder of its own.
fn part(model: &Path, of: &str, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    let text = std::fs::read_to_string(model.join("config.json")).expect("a file");
    let config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    std::fs::write(to.join("config.json"), config[of].to_string()).expect("a file");
    let (file, prefix) =
        (TensorFile::open(model.join("model.safetensors")).expect("weights"), format!("{of}."));
    let own = |name: &str| name.strip_prefix(&*prefix).map(str::to_owned);
    let specs = file.tensors().iter();
    let specs = specs.filter_map(|t| Some(TensorSpec::new(own(t.name())?, t.dtype(), t.shape()))).collect();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let path = to.join("model.safetensors");
    let mut writer = SafetensorsWriter::create(path, specs, &metadata).expect("a file");
    for name in writer.specs().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>() {
        let put = |bytes: &[u8]| writer.write(&name, bytes).expect("written");
        file.read_stored(&format!("{prefix}{name}"), &mut [0; 1 << 12], put).expect("read");
    }
    writer.finish().expect("a file");
}

/// A run that begins with audiocraft's checkpoint, beside text encoder and codec, has the bits of one that begins with the same model in
/// transformers' folder, goes on with them, and is exported whole in both layouts.
#[test]
fn a_run_begins_with_audiocrafts_folder() {
    let mut case = cases::musicgen();
    let first = case.trained("first", "updates: 1");
    let (plain, packed) = (first.join("export"), case.dir.path().join("packed"));
    let audiocraft = |of| run::Wanted { source: None, form: Form::Model, layout: of, dtype: None };
    let packs = |run: &Path, out: &Path| {
        run::export_run(ALL, run, audiocraft(Some("audiocraft")), out, &mut Silent).expect("an export");
        std::fs::read(out.join("state_dict.bin")).expect("a checkpoint")
    };
    packs(&first, &packed);
    case.model.clone_from(&packed);
    let why = case.run("bare", &packed, "").expect_err("it has no text encoder");
    assert!(why.exit_code() == 4 && why.to_string().contains("t5: is missing"), "{why}");
    part(&plain, "text_encoder", &packed.join("t5"));
    std::fs::copy(plain.join("tokenizer.json"), packed.join("t5/tokenizer.json")).expect("a file");
    let why = case.run("deaf", &packed, "").expect_err("it has no codec");
    assert!(why.exit_code() == 4, "{why}");
    part(&plain, "audio_encoder", &packed.join("encodec"));

    let theirs = case.trained("theirs", "save_every: 2");
    case.model.clone_from(&plain);
    let own = case.trained("own", "save_every: 2");
    let tensors = |run: &Path| {
        let file = TensorFile::open(run.join("export/model.safetensors")).expect("an export");
        let read = |name: &str| {
            let mut all = Vec::new();
            let put = |bytes: &[u8]| all.extend_from_slice(bytes);
            file.read_stored(name, &mut [0; 1 << 12], put).expect("read");
            all
        };
        file.tensors().iter().map(|t| (t.name().to_owned(), read(t.name()))).collect::<Vec<_>>()
    };
    assert!(tensors(&theirs) == tensors(&own));
    let out = |name: &str| case.dir.path().join(name);
    assert!(packs(&theirs, &out("theirs-packed")) == packs(&own, &out("own-packed")));
    // Its export is a model of transformers to begin with.
    case.model = theirs.join("export");
    case.trained("on", "updates: 1");
    let whole = export(&theirs);
    goes_on(&case, &theirs, Shared::default());
    assert!(export(&theirs) == whole, "the resumed run differs");
}
