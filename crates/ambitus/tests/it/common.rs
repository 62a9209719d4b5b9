//! Helpers of the end-to-end tests: the real binary on small inputs that are made here.

use ambitus_testkit::gradients::{self, Named};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A recorded model folder of `parity/f5/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    root().join("parity/f5/fixtures").join(name)
}

/// A recorded model folder of `parity/orpheus/fixtures`.
pub fn orpheus(name: &str) -> PathBuf {
    root().join("parity/orpheus/fixtures").join(name)
}

/// A recorded model folder of `parity/parler/fixtures`.
pub fn parler(name: &str) -> PathBuf {
    root().join("parity/parler/fixtures").join(name)
}

/// A folder of `parity/xtts/record.py`.
pub fn xtts(name: &str) -> PathBuf {
    root().join("parity/xtts/fixtures").join(name)
}

/// A folder of `parity/musicgen/record.py`.
pub fn musicgen(name: &str) -> PathBuf {
    root().join("parity/musicgen/fixtures").join(name)
}

/// The command line, run in `dir`.
pub fn ambitus(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ambitus"));
    command.current_dir(dir).args(args).output().expect("the binary runs")
}

/// Runs the binary and returns its exit code and what it said. See [`ambitus`].
pub fn said(dir: &Path, args: &[&str]) -> (i32, String) {
    let out = ambitus(dir, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(-1), text)
}

/// Must end well; stdout.
#[track_caller]
pub fn ok(dir: &Path, args: &[&str]) -> String {
    let out = ambitus(dir, args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Must end well with JSON on stdout.
#[track_caller]
pub fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    let text = ok(dir, args);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
}

/// A folder of `clips` short hums with transcripts: 24 kHz wav, lengths from half a second on.
pub fn voice(dir: &Path, clips: usize) -> PathBuf {
    let data = dir.join("voice");
    std::fs::create_dir_all(&data).expect("a folder");
    for i in 0..clips {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 24_000,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let path = data.join(format!("clip{i:02}.wav"));
        let mut wav = hound::WavWriter::create(path, spec).expect("a file");
        for t in 0..12_000 + 1500 * (i % 5) {
            let t = t as f32 / 24_000.0;
            let pitch = 110.0 + 15.0 * i as f32 + 20.0 * (3.0 * t).sin();
            let voice: f32 =
                (1..8).map(|k| (std::f32::consts::TAU * pitch * k as f32 * t).sin() / k as f32).sum();
            wav.write_sample((voice * (6.0 * t).sin().abs() * 6000.0) as i16).expect("a sample");
        }
        wav.finalize().expect("a file");
        let text = ["abc 12", "bad 7", "hide 3", "leaf 45"][i % 4];
        std::fs::write(data.join(format!("clip{i:02}.txt")), text).expect("a file");
    }
    data
}

/// Writes a recipe for the tiny `v1` fixture on [`voice`], with further lines, and returns its path. It takes letters as they are: the
/// dictionary that the fixture would cut them with takes longer to load than most of these runs.
pub fn recipe(dir: &Path, name: &str, lines: &str) -> PathBuf {
    let path = dir.join(format!("{name}.yaml"));
    let text = format!(
        "model: {{dir: {}}}\ndata: {{dir: {}, cache: {}, tokenizer: char}}\nrun_dir: {}\nlearning_rate: 1e-3\nsample: {{steps: 2}}\n{lines}\n",
        fixture("v1").display(),
        dir.join("voice").display(),
        dir.join("cache").display(),
        dir.join(name).display(),
    );
    std::fs::write(&path, text).expect("a file");
    path
}

/// The f32 tensors of a safetensors file, by name, sorted.
pub fn named(path: &Path) -> Named {
    gradients::read(&std::fs::read(path).expect("a file")).expect("safetensors")
}

/// Starts a run and kills it, later and later, so that it gets somewhere; it is resumed in between, and at last to its end.
/// Whatever moment a kill comes at, nothing may be lost.
pub fn kill_and_resume(dir: &Path, recipe: &Path, memory: &str, run: &Path) {
    let text = |path: &Path| path.display().to_string();
    let mut args = ["train", &text(recipe), "--memory", memory].map(str::to_owned).to_vec();
    for kill in 0..40 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ambitus"))
            .current_dir(dir)
            .args(&args)
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the binary runs");
        std::thread::sleep(std::time::Duration::from_millis(40 + 35 * kill));
        let done = child.try_wait().expect("a status").is_some_and(|s| s.success());
        let _ = child.kill();
        let _ = child.wait();
        if done {
            break;
        }
        if run.join("recipe.yaml").exists() {
            args = vec!["resume".to_owned(), text(run)];
        }
    }
    ok(dir, &["resume", &text(run)]);
}
