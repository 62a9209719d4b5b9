//! Voices that begin with parts of a checkpoint, and voices of several speakers that begin with one of a single one.

use super::cases::{self, Case};
use super::{Shared, goes_on, log};
use ambitus_families::ALL;
use ambitus_families::console::Silent;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_ir::Session;
use ambitus_models::Capacity;
use ambitus_store::TensorFile;
use ambitus_train::export::Form;
use ambitus_train::run;
use ambitus_train::trained::Trained;
use std::path::Path;

/// The recorded voice of one speaker, with names of three, beside clips of three.
fn one_speaker() -> Case {
    let case = cases::piper();
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures/base");
    std::fs::copy(base.join("model.ckpt"), case.model.join("model.ckpt")).expect("a copy");
    for name in ["options.json", "manifest.json"] {
        let _ = std::fs::remove_file(case.model.join(name));
    }
    let text = std::fs::read_to_string(base.join("config.json")).expect("a file");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    config["phoneme_type"] = "text".into();
    config["speaker_id_map"] =
        (0..3).map(|i| (format!("speaker {i}"), i.into())).collect::<serde_json::Map<_, _>>().into();
    std::fs::write(case.model.join("config.json"), config.to_string()).expect("a file");
    case
}

fn checkpoint(dir: &Path) -> TensorFile {
    TensorFile::open(dir.join("model.ckpt")).expect("a checkpoint")
}

/// Returns the bytes of a tensor.
fn stored(file: &TensorFile, name: &str) -> Vec<u8> {
    let mut all = Vec::new();
    let put = |bytes: &[u8]| all.extend_from_slice(bytes);
    file.read_stored(&format!("state_dict.{name}"), &mut [0; 1 << 12], put).expect("a tensor");
    all
}

/// Refuses a folder that lacks a tensor of its voice, or has one too many.
fn is_whole(dir: &Path) -> ModelDir {
    let model = ModelDir::open(ALL, dir, OpenOptions::default()).expect("an export");
    let mut session = Session::default();
    for player in 0..2 {
        model.model.loss(&mut session, player, Capacity { rows: 64, clips: 2 }, "micro", true);
    }
    model.check(&session.states).expect("all tensors are there");
    assert!(model.doubts().expect("readable").is_empty());
    model
}

/// What stays frozen is the checkpoint's, bit for bit, and what it lacks is drawn by the seed. The run is cut and goes on with its own weights,
/// is heard, and its exports are of three speakers.
#[test]
fn a_voice_of_one_speaker_begins_one_of_three() {
    let case = one_speaker();
    // Prepared clips of a voice that asks nobody who speaks lie in the same folder.
    case.trained("one", "updates: 1");
    let frozen = "piper: {speakers: 3}\nfreeze: ['model_g.dec', 'model_g.emb_g']";
    let run = case.trained("three", frozen);
    let other = case.trained("seed", &format!("{frozen}\nseed: 7\nupdates: 1"));
    let [base, three, seed] =
        [&case.model, &run.join("export"), &other.join("export")].map(|dir| checkpoint(dir));
    let dec = base.tensors().iter().filter_map(|t| t.name().strip_prefix("state_dict.model_g.dec."));
    let dec: Vec<String> = dec.map(|name| format!("model_g.dec.{name}")).collect();
    assert!(dec.len() > 10 && dec.iter().all(|name| stored(&base, name) == stored(&three, name)));
    for name in ["model_g.emb_g.weight", "model_g.dec.cond.weight"] {
        assert!(
            !base.contains(&format!("state_dict.{name}")) && stored(&three, name) != stored(&seed, name),
            "{name}"
        );
    }
    assert!(stored(&base, "model_g.enc_p.emb.weight") != stored(&three, "model_g.enc_p.emb.weight"));
    assert_eq!(three.get("state_dict.model_g.emb_g.weight").expect("a table").shape(), [3, 512]);
    let settings = three.settings().expect("hyper_parameters");
    assert_eq!((&settings["num_speakers"], &settings["gin_channels"]), (&3.into(), &512.into()));
    is_whole(&run.join("export"));
    let text = std::fs::read_to_string(run.join("export/config.json")).expect("a file");
    let config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&config["num_speakers"], &config["speaker_id_map"]["speaker 2"]), (&3.into(), &2.into()));

    let whole = std::fs::read(run.join("export/model.ckpt")).expect("an export");
    goes_on(&case, &run, Shared::default());
    assert!(
        std::fs::read(run.join("export/model.ckpt")).expect("an export") == whole,
        "the resumed run differs"
    );
    let heard = Trained::open(ALL, &run, (None, None), &mut Silent).expect("a run");
    assert!(heard.model.opened.speaker().is_some());
    let mut session = Session::default();
    heard.model.model.loss(&mut session, 0, Capacity { rows: 64, clips: 2 }, "micro", true);
    heard.check(&session.states).expect("the run's own weights");
    let out = case.dir.path().join("voice");
    let wanted = run::Wanted { source: None, form: Form::Model, layout: Some("onnx"), dtype: None };
    run::export_run(ALL, &run, wanted, &out, &mut Silent).expect("an export");
    let text = std::fs::read_to_string(out.join("voice.onnx.json")).expect("a file");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["num_speakers"], 3);
}

/// Of stages the first begins with parts of the checkpoint, the second with all of what the first made.
#[test]
fn a_later_stage_begins_with_all_that_the_first_made() {
    let case = one_speaker();
    let lines = "piper: {warm_start: vocoder, speakers: 3}\nstages: [{updates: 1}, {freeze: ['model_g.enc_p', 'model_g.dec'], updates: 1}]";
    let run = case.trained("run", lines);
    let [base, first, last] = [case.model.clone(), run.join("stages/1-stage-1/export"), run.join("export")]
        .map(|dir| checkpoint(&dir));
    for name in ["model_g.enc_p.emb.weight", "model_g.dec.conv_pre.bias"] {
        assert!(
            stored(&first, name) != stored(&base, name) && stored(&first, name) == stored(&last, name),
            "{name}"
        );
    }
    is_whole(&run.join("export"));
    assert!(!log(&run.join("stages/2-stage-2")).is_empty());
}

/// Lines that say who speaks mean other clips to a voice of several speakers than to one of a single speaker, in the same cache.
#[test]
fn clips_of_one_speaker_are_not_those_of_several() {
    let case = one_speaker();
    let data = case.dir.path().join("voice");
    std::fs::remove_file(data.join("metadata.csv")).expect("a file");
    let line = |i: u32| {
        format!("{{\"audio\": \"clip{i}.wav\", \"text\": \"bad cafe\", \"speaker_id\": \"{}\"}}\n", i % 3)
    };
    std::fs::write(data.join("metadata.jsonl"), (0..9).map(line).collect::<String>()).expect("a file");
    let three = |name: &str, model: &Path, lines: &str| {
        let run =
            case.run(name, model, &format!("{lines}\nupdates: 1")).unwrap_or_else(|e| panic!("{name}: {e}"));
        std::fs::read(run.join("export/model.ckpt")).expect("an export")
    };
    let export = case.dir.path().join("beside/export");
    let cached = |names: [&str; 2]| {
        [three(names[0], &case.model, "piper: {speakers: 3}"), three(names[1], &export, "")]
    };
    case.trained("one", "updates: 1");
    let beside = cached(["beside", "again beside"]);
    std::fs::remove_dir_all(case.dir.path().join("cache")).expect("a cache");
    assert!(cached(["alone", "again alone"]) == beside, "clips without those who speak were taken");
}
