//! `plan --dump` and `--timings`: every program after every pass, and what each took.

use crate::common::{fixture, ok, said};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The passes of a program in order, each with its text, which reads back as a program that holds.
fn dumped(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|e| e.expect("a file").path()).collect();
    files.sort();
    let one = |(k, path): (usize, &std::path::PathBuf)| {
        let text = fs::read_to_string(path).expect("a text");
        let session = ambitus_ir::text::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let verified = ambitus_ir::verify::verify(&session, &session.programs[0]);
        verified.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.file_stem().and_then(|n| n.to_str()).expect("a name");
        let (number, pass) = name.split_once('-').expect("numbered");
        assert_eq!(number.parse(), Ok(k), "{}", path.display());
        (pass.to_owned(), text)
    };
    files.iter().enumerate().map(one).collect()
}

fn passes(folder: &Path) -> Vec<String> {
    dumped(folder).into_iter().map(|(pass, _)| pass).collect()
}

fn plan<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let plan = ["plan", "--model", model, "--assume", "6x1s", "--memory", "1GiB", "--batch", "2"];
    [&plan, more].concat()
}

#[test]
fn every_program_is_dumped_after_every_pass() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = fixture("v1").display().to_string();
    let options = ["--dump", "all", "--precision", "bf16-pure", "--offload", "optimizer", "--ema"];
    ok(dir, &plan(&model, &options));
    let micro = dumped(&dir.join("all/micro"));
    let names: Vec<&str> = micro.iter().map(|(pass, _)| pass.as_str()).collect();
    let want = "built precision simplify autodiff simplify lower accumulate fuse pure checkpoint dead schedule offload";
    assert_eq!(names, want.split(' ').collect::<Vec<_>>());
    let last = fs::read_to_string(dir.join("all/micro.txt")).expect("a program");
    assert_eq!(micro[micro.len() - 1].1, last, "what the last pass left is run");
    assert!(micro[0].1.contains("output loss") && !micro[0].1.contains("grad."), "what the model built");
    let update = "built pure simplify lower dead schedule offload";
    assert_eq!(passes(&dir.join("all/update")).join(" "), update);
    for program in ["ema", "evaluate", "sample"] {
        assert!(passes(&dir.join("all").join(program)).len() > 6, "{program}");
    }
    assert_eq!(passes(&dir.join("all/evaluate_ema")), ["averages", "offload"]);

    // Another plan's passes do not stay between this one's; other files do.
    fs::write(dir.join("all/micro/notes.txt"), "mine").expect("written");
    fs::write(dir.join("all/micro/99-mine.txt.txt"), "mine").expect("written");
    ok(dir, &plan(&model, &["--dump", "all"]));
    for name in ["notes.txt", "99-mine.txt.txt"] {
        fs::remove_file(dir.join("all/micro").join(name)).expect("it is there");
    }
    let fewer = "built simplify autodiff simplify lower accumulate fuse checkpoint dead schedule";
    assert_eq!(passes(&dir.join("all/micro")).join(" "), fewer);
}

#[test]
fn parts_go_on_from_the_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = fixture("v1").display().to_string();
    let ranks = ["--ranks", "2", "--placement", "pipeline", "--offload", "optimizer", "--batch", "4"];
    ok(dir, &plan(&model, &[&ranks[..], &["--micro-batch", "100", "--dump", "x"]].concat()));
    let whole = passes(&dir.join("x/micro")).len();
    for rank in ["rank-0", "rank-1"] {
        let mut names: Vec<String> = fs::read_dir(dir.join("x").join(rank).join("micro"))
            .expect("a folder")
            .map(|e| e.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        assert_eq!(names, [format!("{whole:02}-place.txt"), format!("{:02}-offload.txt", whole + 1)]);
    }
    assert_eq!(passes(&dir.join("x/pipeline")), ["unroll"]);
}

#[test]
fn what_passes_took_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = fixture("v1").display().to_string();
    let text = ok(dir, &plan(&model, &["--timings"]));
    assert!(text.contains("what passes took:") && text.contains("  autodiff "), "{text}");
    let plan_of = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&ok(dir, &plan(&model, &[&["--json"], more].concat()))).expect("JSON")
    };
    let timings = plan_of(&["--timings"])["timings"].clone();
    let timings = timings.as_array().expect("a list");
    let passes: BTreeSet<&str> = timings.iter().filter_map(|t| t["pass"].as_str()).collect();
    assert!(
        ["simplify", "autodiff", "checkpoint", "schedule"].iter().all(|p| passes.contains(p)),
        "{passes:?}"
    );
    for t in timings {
        let seconds = |name: &str| t[name].as_f64().expect("seconds");
        assert!(seconds("seconds") >= 0.0 && seconds("verify_seconds") > 0.0, "{t}");
        assert!(
            t["program"].is_string() && t["rank"].is_null() && t["instructions"].as_u64() > Some(0),
            "{t}"
        );
    }
    assert!(plan_of(&[]).get("timings").is_none());
    let cards = ["plan", "--model", &model, "--assume", "6x1s", "--cards", "--timings"];
    let (code, text) = said(dir, &cards);
    assert!(code == 2 && text.contains("--card NAME"), "{code}: {text}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = fixture("v1").display().to_string();
    fs::write(dir.join("file"), "a file").expect("written");
    fs::create_dir_all(dir.join("taken/micro/00-built.txt")).expect("made");
    for (folder, named) in
        [("file", "file: "), ("file/below", "file/below: "), ("taken", "taken/micro/00-built.txt: ")]
    {
        let (code, text) = said(dir, &plan(&model, &["--dump", folder]));
        assert!(code == 6 && text.contains(named), "{folder}: {code}: {text}");
    }
}
