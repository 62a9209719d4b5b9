//! What users and machines do to a run: two processes at once, damaged and replaced files, signals, limits, full outputs. Every
//! case ends by itself with a documented exit code, and nothing that was good is lost.
#![cfg(target_os = "linux")]

use crate::common;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SHORT: &str = "updates: 6\nbatch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nvalidate_every: 3\nthreads: 2\nmemory: 1GiB";
const LONG: &str = "updates: 100000\nbatch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nvalidate_every: 0\nthreads: 2\nmemory: 1GiB";

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The command line by a shell that does something before. Signals are as in a terminal: those that were ignored when the tests
/// began, as of a background job, would stay so.
fn shell(dir: &Path, before: &str, args: &[&str]) -> Child {
    let words: Vec<&str> = [&[env!("CARGO_BIN_EXE_ambitus")], args].concat();
    Command::new("env")
        .current_dir(dir)
        .args(["--default-signal=INT,HUP,TERM", "sh", "-c", &format!("{before} exec \"$@\""), "sh"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell")
}

/// How it ends: its exit code, or minus the signal, and what it said. One that does not end is killed, and its code is that.
fn end(mut child: Child) -> (i32, String) {
    let began = Instant::now();
    let mut readers = Vec::new();
    if let Some(out) = child.stdout.take() {
        readers.push(std::thread::spawn(move || std::io::read_to_string(out).unwrap_or_default()));
    }
    if let Some(err) = child.stderr.take() {
        readers.push(std::thread::spawn(move || std::io::read_to_string(err).unwrap_or_default()));
    }
    let status = loop {
        if let Some(status) = child.try_wait().expect("a status") {
            break status;
        }
        if began.elapsed() > Duration::from_secs(300) {
            child.kill().expect("it is there");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said = readers.into_iter().map(|r| r.join().expect("text")).collect();
    (status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)), said)
}

fn run(dir: &Path, args: &[&str]) -> (i32, String) {
    end(shell(dir, "", args))
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// It has handlers for SIGHUP, SIGINT and SIGTERM. SIGINT alone may be the shell's before `exec`.
fn listens(child: &Child) -> bool {
    const ALL: u64 = 1 | 1 << 1 | 1 << 14;
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    assert!(!status.contains("State:\tZ"), "it ended by itself");
    let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).expect("a mask").trim();
    u64::from_str_radix(mask, 16).expect("a mask") & ALL == ALL
}

/// Waits until a run has done some updates.
fn under_way(child: &mut Child, run: &Path, updates: usize) {
    let lines = || fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |t| t.lines().count());
    while lines() < updates {
        assert!(child.try_wait().expect("a status").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

fn copy(from: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file");
    }
    to.to_owned()
}

#[test]
fn one_process_at_a_time_runs_in_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = text(&common::recipe(dir, "run", LONG));
    let at = dir.join("run");
    // Both begin in the same moment, or one a little later: one wins.
    for late in [0, 3, 20, 50] {
        let _ = fs::remove_dir_all(&at);
        let mut both: Vec<Child> = (0..2)
            .map(|k| {
                std::thread::sleep(Duration::from_millis(k * late));
                shell(dir, "", &["train", &recipe])
            })
            .collect();
        let refused = loop {
            if let Some(i) = both.iter_mut().position(|c| c.try_wait().expect("a status").is_some()) {
                break i;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (code, said) = end(both.remove(refused));
        assert!(
            code == 2 && (said.contains("runs here") || said.contains("holds a run already")),
            "{code}: {said}"
        );
        let mut winner = both.remove(0);
        under_way(&mut winner, &at, 3);
        // All that would write is refused by the winner's number, whatever it would do; what reads is not.
        let who = format!("process {} on ", winner.id());
        for args in [&["resume", "run"][..], &["train", &recipe]] {
            let (code, said) = run(dir, args);
            assert!(code == 2 && said.contains(&who), "{args:?}: {code}: {said}");
        }
        for _ in 0..3 {
            let (code, said) = run(dir, &["export", "run", "--out", "out"]);
            assert!(code == 0, "{code}: {said}");
        }
        assert!(common::ok(dir, &["runs", "."]).contains("not ended"));
        send("-TERM", &winner);
        let (code, said) = end(winner);
        assert_eq!(code, 10, "{said}");
    }
    let lines = || fs::read_to_string(at.join("metrics.jsonl")).expect("a log").lines().count();
    // A killed process holds nothing.
    for (signal, code) in [("-KILL", -9), ("-TERM", 10)] {
        let before = lines();
        let mut again = shell(dir, "", &["resume", "run"]);
        under_way(&mut again, &at, before + 3);
        send(signal, &again);
        assert_eq!(end(again).0, code);
    }
}

#[test]
fn a_run_goes_on_without_its_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = text(&common::recipe(dir, "run", SHORT));
    common::ok(dir, &["train", &recipe]);
    let at = dir.join("run");
    let weights = fs::read(at.join("export/model.safetensors")).expect("an export");
    let log = at.join("metrics.jsonl");
    let good = fs::read_to_string(&log).expect("a log");
    let (bad, lost) =
        (good.replacen("\"loss\"", "\"lose\"", 1), log.with_file_name("metrics.jsonl.damaged-1"));
    let damages: [(&str, &dyn Fn()); 4] = [
        ("is missing; the run continues without the lines of updates 1 to 4", &|| {
            fs::remove_file(&log).expect("a log")
        }),
        ("1: missing field `loss`", &|| fs::write(&log, &bad).expect("a log")),
        ("is not a file", &|| {
            fs::remove_file(&log).expect("a log");
            pipe(&log);
        }),
        ("is not a file", &|| {
            fs::remove_file(&log).expect("a log");
            symlink("/dev/zero", &log).expect("a link");
        }),
    ];
    for (words, damage) in damages {
        // As if killed before the last checkpoint.
        let _ = fs::remove_file(at.join("summary.json"));
        fs::remove_dir_all(at.join("checkpoints/step-6")).expect("a checkpoint");
        fs::remove_file(&log).expect("a log");
        fs::write(&log, &good).expect("a log");
        damage();
        let (code, said) = run(dir, &["resume", "run", "--json"]);
        assert!(
            code == 0 && said.contains(words) && said.contains("\"updates\": 6"),
            "{words}: {code}: {said}"
        );
        assert!(fs::read(at.join("export/model.safetensors")).expect("an export") == weights, "{words}");
        let (code, said) = run(dir, &["resume", "run"]);
        assert!(code == 0 && !said.contains(words) || words == "is not a file", "{words}: {code}: {said}");
        let _ = fs::remove_file(&lost);
    }
}

#[test]
fn pipes_and_devices_in_place_of_files_are_refused_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 4);
    let snac = common::root().join("parity/snac/fixtures/dense");
    let (f5, llama) = (common::fixture("v1"), common::orpheus("tied"));
    let voice = text(&dir.join("voice"));
    let train = |model: &str| {
        ["train", "--model", model, "--data", &voice, "--memory", "1GiB"].map(str::to_owned).to_vec()
    };
    let gradients = |model: &str, batch: &str| {
        ["gradients", "--model", model, "--batch", batch, "--out", "g", "--memory", "1GiB"]
            .map(str::to_owned)
            .to_vec()
    };
    let decode = |codes: &str| {
        ["codec", "decode", "--codec", "m", "--codes", codes, "--out", "a.wav"].map(str::to_owned).to_vec()
    };
    fs::write(dir.join("c.json"), r#"{"sample_rate":24000,"layers":[[0],[0,0]]}"#).expect("a file");
    let cases = [
        (&f5, "config.yaml", train("m"), &[2, 4][..]),
        (&f5, "vocab.txt", train("m"), &[4]),
        (&f5, "model.safetensors", train("m"), &[4]),
        (&f5, "batch.safetensors", gradients("m", "m/batch.safetensors"), &[4]),
        (&llama, "config.json", gradients("m", "m/batch.safetensors"), &[4]),
        (&llama, "model.safetensors", gradients("m", "m/batch.safetensors"), &[4]),
        (&snac, "config.json", decode("c.json"), &[4]),
        (&snac, "pytorch_model.bin", decode("c.json"), &[4]),
        (&snac, "config.json", decode("m/config.json"), &[4]),
    ];
    for (from, name, args, codes) in cases {
        for kind in ["pipe", "/dev/zero", "a pipe behind a link"] {
            let _ = fs::remove_dir_all(dir.join("m"));
            let path = copy(from, &dir.join("m")).join(name);
            let _ = fs::remove_file(&path);
            match kind {
                "pipe" => pipe(&path),
                "/dev/zero" => symlink(kind, &path).expect("a link"),
                _ => {
                    let other = dir.join("m/other");
                    pipe(&other);
                    symlink(other, &path).expect("a link");
                }
            }
            // A megabyte is enough to say no.
            let (code, said) =
                end(shell(dir, "ulimit -v 400000;", &args.iter().map(String::as_str).collect::<Vec<_>>()));
            assert!(codes.contains(&code), "{name}, {kind}: {code}: {said}");
        }
    }
    // Codes, and what a run's folder holds.
    pipe(&dir.join("codes"));
    let (code, said) =
        run(dir, &["codec", "decode", "--codec", &text(&snac), "--codes", "codes", "--out", "a.wav"]);
    assert!(code == 5 && said.contains("codes: is not a file"), "{code}: {said}");
    let recipe = text(&common::recipe(dir, "run", SHORT));
    common::ok(dir, &["train", &recipe]);
    for name in ["summary.json", "plan.json", "recipe.yaml"] {
        fs::remove_file(dir.join("run").join(name)).expect("a file");
        pipe(&dir.join("run").join(name));
    }
    let table = common::ok(dir, &["runs", "."]);
    for words in
        ["damaged", "summary.json: is not a file", "plan.json: is not a file", "recipe.yaml: is not a file"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    assert_eq!(run(dir, &["export", "run"]).0, 2);
}

#[test]
fn signals_that_were_ignored_stay_so_and_a_second_request_ends_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = text(&common::recipe(dir, "run", LONG));
    // As nohup begins it, and as a shell begins a background job.
    let mut child = shell(dir, "trap '' HUP INT;", &["train", &recipe]);
    let at = dir.join("run");
    under_way(&mut child, &at, 2);
    send("-HUP", &child);
    send("-INT", &child);
    let now = fs::read_to_string(at.join("metrics.jsonl")).expect("a log").lines().count();
    under_way(&mut child, &at, now + 10);
    send("-TERM", &child);
    assert_eq!(end(child).0, 10);

    // A model whose plan takes long: nothing hears the first request, and the second ends it.
    let deep = copy(&common::fixture("v1"), &dir.join("deep"));
    let config = fs::read_to_string(deep.join("config.yaml")).expect("a file");
    let depth = config.lines().find(|l| l.trim_start().starts_with("depth:")).expect("a depth");
    let deeper = format!("{} 300", depth.split(':').next().unwrap_or("").to_owned() + ":");
    fs::write(deep.join("config.yaml"), config.replace(depth, &deeper)).expect("a file");
    let lines = format!("{LONG}\nmodel: {{dir: {}, from_scratch: true}}", deep.display());
    let path = common::recipe(dir, "deep-run", "");
    let from = fs::read_to_string(&path).expect("a recipe");
    let rest = from.lines().filter(|l| !l.starts_with("model:")).collect::<Vec<_>>().join("\n");
    fs::write(&path, format!("{rest}\n{lines}\n")).expect("a recipe");
    let child = shell(dir, "", &["train", &text(&path)]);
    while !dir.join("deep-run/recipe.yaml").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    send("-TERM", &child);
    // From two sides at the same time it is one request.
    send("-INT", &child);
    std::thread::sleep(Duration::from_millis(1300));
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).stderr(Stdio::null()).status();
    let (code, said) = end(child);
    assert!(code == 10 && said.contains("stopped"), "{code}: {said}");

    // What has nothing to save ends at the first.
    let child = shell(dir, "", &["plan", &text(&path)]);
    while !listens(&child) {
        std::thread::sleep(Duration::from_millis(5));
    }
    send("-INT", &child);
    let (code, said) = end(child);
    assert!(code == 10 && said.contains("stopped at once on request"), "{code}: {said}");
}

#[test]
fn results_that_cannot_be_written_are_failures_and_readers_that_leave_are_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 4);
    let recipe = text(&common::recipe(dir, "run", SHORT));
    for args in [
        &["plan", &recipe][..],
        &["plan", &recipe, "--json"],
        &["import", "--", "--bf16"],
        &["prepare", &recipe, "--json"],
        &["runs", "."],
        &["doctor", "--json"],
        &["--help"],
        &["train", &recipe, "--json"],
    ] {
        let (code, said) = end(shell(dir, "exec >/dev/full;", args));
        assert!(code == 6 && said.contains("standard output"), "{args:?}: {code}: {said}");
        let (code, said) = end(shell(dir, "exec 3>&1; exec >/dev/full;", &["plan", "none.yaml"]));
        assert!(code == 2, "the first error counts: {code}: {said}");
    }
    let mut child = shell(dir, "sleep 0.2;", &["plan", &recipe]);
    drop(child.stdout.take());
    let (code, said) = end(child);
    assert!(code == 0 && !said.contains("error"), "{code}: {said}");
}

#[test]
fn limits_of_the_shell_are_named_and_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = common::recipe(dir, "run", &SHORT.replace("memory: 1GiB", ""));
    // With a dictionary to load.
    let whole = fs::read_to_string(&recipe).expect("text").replace(", tokenizer: char", "");
    fs::write(&recipe, whole).expect("a file");
    let (recipe, at) = (text(&recipe), dir.join("run"));
    let limited = |limit: &str, more: &[&str]| {
        let _ = fs::remove_dir_all(&at);
        end(shell(dir, &format!("ulimit {limit};"), &[&["train", &recipe], more].concat()))
    };
    for (limit, name) in [("-v 70000", "ulimit -v"), ("-d 20000", "ulimit -d"), ("-d 40000", "ulimit -d")] {
        let (code, said) = limited(limit, &[]);
        assert!(code == 3 && said.contains(name), "{limit}: {code}: {said}");
    }
    // The budget that is not given is what the limit leaves; one that is given is held against it.
    let (code, said) = limited("-v 87040", &[]);
    assert!(code == 3 && said.contains("does not fit: needs"), "{code}: {said}");
    let (code, said) = limited("-v 87040", &["--memory", "1GiB"]);
    assert!(code == 3 && said.contains("the limit of 85 MiB on address space (ulimit -v)"), "{code}: {said}");
    assert!(!at.exists(), "something is left of a run that never began");
    for limit in ["-v 400000", "-d 300000"] {
        let (code, said) = limited(limit, &[]);
        assert!(code == 0, "{limit}: {code}: {said}");
    }
    for stack in ["-s 64", "-s 128"] {
        let (code, said) = limited(stack, &["--memory", "1GiB"]);
        assert!(code == 0, "{stack}: {code}: {said}");
    }
    // A file that outgrows the limit leaves nothing behind, and with a higher limit the run resumes.
    let (code, said) = limited("-f 128", &["--memory", "1GiB"]);
    assert!(code == 6 && said.contains("ulimit -f"), "{code}: {said}");
    let left: Vec<_> =
        fs::read_dir(at.join("checkpoints")).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    common::ok(dir, &["resume", "run"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 4);
    let recipe = text(&common::recipe(dir, "run", SHORT));
    // File systems in which nobody makes folders.
    for folder in ["/sys/ambitus-run", "/proc/ambitus-run"] {
        let (code, said) = run(dir, &["train", &recipe, "--run-dir", folder]);
        assert!(code == 6 && said.contains(folder), "{code}: {said}");
    }
}

#[test]
fn damaged_models_and_caches_have_their_codes() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 4);
    let model = copy(&common::fixture("v1"), &dir.join("m"));
    let train = ["train", "--model", "m", "--data", "voice", "--memory", "1GiB"];
    let vocab = fs::read(model.join("vocab.txt")).expect("a file");
    let twice = [&vocab[..], b"k\n"].concat();
    let lines = b" \n"
        .iter()
        .copied()
        .chain((0..300_000).flat_map(|i| format!("{i}\n").into_bytes()))
        .collect::<Vec<u8>>();
    for (bytes, words) in [
        (&b"\xff\xfe\0"[..], "UTF-8"),
        (b"", "empty"),
        (&vocab[1..], "line 1"),
        (&twice, "already on line"),
        (&lines, "300001 lines"),
    ] {
        fs::write(model.join("vocab.txt"), bytes).expect("a file");
        let (code, said) = run(dir, &train);
        assert!(code == 4 && said.contains("vocab.txt"), "{words}: {code}: {said}");
    }
    fs::write(model.join("vocab.txt"), vocab).expect("a file");
    fs::write(
        dir.join("r.yaml"),
        format!(
            "model: {{dir: {}}}\ndata: {{dir: {}, cache: /sys/none}}\nmemory: 1GiB\n",
            model.display(),
            dir.join("voice").display()
        ),
    )
    .expect("a file");
    let (code, said) = run(dir, &["prepare", "r.yaml"]);
    assert!(code == 6 && said.contains("/sys/none"), "{code}: {said}");
}

#[test]
fn what_killed_processes_and_others_leave_behind_does_no_harm() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let recipe = text(&common::recipe(dir, "run", &format!("{SHORT}\nkeep: 2")));
    common::ok(dir, &["train", &recipe]);
    let at = dir.join("run");
    let steps = || {
        let names = fs::read_dir(at.join("checkpoints")).expect("a folder").flatten();
        let mut names: Vec<String> = names.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(steps(), ["step-4", "step-6"]);
    // Killed after a save and before it was pruned, and in the middle of another.
    copy(&at.join("checkpoints/step-4"), &dir.join("other"));
    let other = dir.join("other/manifest.json");
    for step in [1, 2] {
        let to = copy(&at.join("checkpoints/step-4"), &at.join(format!("checkpoints/step-{step}")));
        fs::write(to.join("manifest.json"), fs::read(&other).expect("a file")).expect("a file");
    }
    fs::create_dir(at.join("checkpoints/step-8.tmp")).expect("a folder");
    fs::write(at.join("checkpoints/step-8.tmp/model.safetensors"), "half").expect("a file");
    // Links where files are written, to what is nobody's business here.
    let victim = dir.join("victim");
    fs::write(&victim, "mine").expect("a file");
    for name in [
        "pictures/loss.png.tmp",
        "pictures/.loss.png.tmp",
        "pictures/loss.png",
        "audio/true.wav",
        "summary.json.tmp",
        ".summary.json.tmp",
        "model/.manifest.json.tmp",
        "model/.vocab.txt.tmp",
        "export/.model.safetensors.tmp",
        "export/vocab.txt",
        "metrics.jsonl",
        "notes.jsonl",
        "report.html",
    ] {
        let path = at.join(name);
        let _ = fs::remove_file(&path);
        symlink(&victim, path).expect("a link");
    }
    fs::write(at.join("audio/base_sample.safetensors"), "damaged").expect("a file");
    fs::remove_file(at.join("summary.json")).expect("a summary");
    let (code, said) = run(dir, &["resume", "run"]);
    assert!(
        code == 0 && said.contains("base_sample.safetensors: ") && said.contains("is left out"),
        "{code}: {said}"
    );
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "mine");
    assert_eq!(steps(), ["step-4", "step-6"], "{said}");
    assert!(at.join("summary.json").is_file() && at.join("pictures/mel.png").is_file());
    assert!(fs::symlink_metadata(at.join("report.html")).expect("a page").is_file());
    assert!(fs::symlink_metadata(at.join("pictures/loss.png")).expect("a picture").is_file());
}

#[test]
fn a_damaged_vocabulary_is_not_exported() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 4);
    let recipe = text(&common::recipe(dir, "run", SHORT));
    common::ok(dir, &["train", &recipe]);
    let at = dir.join("run");
    for name in ["vocab.txt", "config.yaml"] {
        let path = at.join("model").join(name);
        let good = fs::read_to_string(&path).expect("a file");
        fs::write(&path, good.replacen('h', "j", 1)).expect("a file");
        let (code, said) = run(dir, &["export", "run", "--out", "out"]);
        assert!(code == 4 && said.contains(&format!("model/{name}: is damaged")), "{code}: {said}");
        assert!(!dir.join("out/model.safetensors").exists());
        // Going on mends it.
        common::ok(dir, &["resume", "run"]);
        assert_eq!(fs::read_to_string(&path).expect("a file"), good);
    }
    // A run of before hashes were kept.
    fs::remove_file(at.join("model/manifest.json")).expect("a list");
    let (code, said) = run(dir, &["export", "run", "--out", "out"]);
    assert!(code == 0 && said.contains("exported unchecked"), "{code}: {said}");
    assert!(dir.join("out/vocab.txt").is_file());
}

#[test]
fn floods_are_refused_by_their_number() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let stages: String = (0..5000).map(|i| format!("  - {{name: s{i}, updates: 1}}\n")).collect();
    fs::write(dir.join("r.yaml"), format!("model: {{dir: m}}\ndata: {{dir: d}}\nstages:\n{stages}"))
        .expect("a file");
    let (code, said) = run(dir, &["plan", "r.yaml"]);
    assert!(code == 2 && said.contains("stages: 5000 are more than the 64 of a run"), "{code}: {said}");
    let names = format!("--scaling={}", vec!["a800"; 3000].join(","));
    let recipe = text(&common::root().join("recipes/orpheus-full.yaml"));
    let (code, said) = run(dir, &["plan", &recipe, "--card", "a800", &names]);
    assert!(code == 2 && said.contains("--scaling"), "{code}: {said}");
    let patterns = vec!["'*.to_q'"; 50_000].join(",");
    for lines in [format!("freeze: [{patterns}]"), format!("lora: {{targets: [{patterns}]}}")] {
        fs::write(dir.join("r.yaml"), format!("model: {{dir: m}}\ndata: {{dir: d}}\n{lines}\n"))
            .expect("a file");
        let (code, said) = run(dir, &["plan", "r.yaml"]);
        assert!(code == 2 && said.contains("holds 50000 patterns"), "{code}: {said}");
    }
    File::create(dir.join("r.yaml")).expect("a file").set_len(1 << 40).expect("a hole");
    let (code, said) = run(dir, &["plan", "r.yaml"]);
    assert!(code == 2 && said.contains("larger than 1 MiB"), "{code}: {said}");
}
