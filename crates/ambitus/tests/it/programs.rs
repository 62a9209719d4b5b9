//! What every option makes of the programs, for both families and two targets: the hash of each program's text as it is run, and
//! what its plan takes. A change of the compiler that should change no program leaves `programs.tsv` as it is; one that should
//! changes it in the same commit: `UPDATE_PROGRAMS=1 cargo test -p ambitus --test it programs`.

use crate::common::{self, ambitus, fixture, orpheus};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Options of both families.
const OPTIONS: &[&str] = &[
    "",
    "--ema",
    "--no-ema",
    "--precision bf16-mixed",
    "--precision fp16-mixed",
    "--precision bf16-pure",
    "--precision bf16-pure --ema",
    "--optimizer adamw-bf16",
    "--optimizer adamw-8bit",
    "--optimizer adamw-8bit --precision bf16-pure",
    "--clip-per-tensor",
    "--clip-per-tensor --update-in-backward --batch 1",
    "--clip-per-tensor --update-in-backward --batch 1 --precision bf16-pure --optimizer adamw-8bit",
    "--checkpoint all",
    "--checkpoint 1",
    "--checkpoint values:2",
    "--checkpoint values:99",
    "--checkpoint all --precision bf16-mixed",
    "--micro-batch 700",
    "--lora 4",
    "--lora 4 --precision bf16-mixed --optimizer adamw-8bit",
    "--lora 4 --checkpoint all --precision bf16-pure",
    "--freeze *.0.*",
    "--freeze *norm* --checkpoint values:3",
    "--offload parameters",
    "--offload gradients",
    "--offload optimizer",
    "--offload optimizer=0.5",
    "--offload activations",
    "--offload activations=blocks --checkpoint all",
    "--offload ema --ema",
    "--low-vram",
    "--low-vram --precision bf16-mixed --optimizer adamw-8bit --checkpoint all",
    "--low-vram --clip-per-tensor --update-in-backward --batch 1 --lora 4",
    "--ranks 2",
    "--ranks 2 --sharding grad_op --precision bf16-mixed",
    "--ranks 3 --sharding none",
    "--ranks 4 --sharding hybrid:2 --ema",
    "--ranks 2 --offload optimizer,gradients",
    "--ranks 2 --lora 4 --checkpoint all",
    "--ranks 2 --placement model",
    "--ranks 2 --placement pipeline --checkpoint 1",
    "--ranks 2 --placement pipeline --precision bf16-mixed --offload optimizer",
];
/// What is planned for: this machine's processor, and a card of the table.
const TARGETS: &[&str] = &["cpu", "rtx4070"];

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Text files at or below a folder, sorted.
fn texts(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { out.extend(texts(&path)) } else { out.push(path) }
    }
    out.sort();
    out
}

/// Programs as they are run; what passes left is numbered.
fn programs(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let numbered =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.as_encoded_bytes()[0].is_ascii_digit());
    texts(folder).into_iter().filter(move |path| !numbered(path))
}

/// A line of the table: what is planned, the bytes of its arena, and each program's hash.
fn line(dir: &Path, family: &str, target: &str, options: &str) -> String {
    let model = if family == "f5" { fixture("v1") } else { orpheus("tied") };
    let (model, dumped) = (model.display().to_string(), dir.join("programs"));
    let dump = dumped.display().to_string();
    let mut args = vec!["plan", "--model", &model, "--assume", "6x1s,2x3s", "--batch", "4", "--threads", "2"];
    args.extend(["--host-memory", "1GiB", "--json", "--dump", &dump]);
    args.extend(if target == "cpu" { ["--memory", "1GiB"] } else { ["--card", target] });
    args.extend(options.split_whitespace());
    // What is left open would follow predicted seconds.
    if !options.contains("--checkpoint") {
        args.extend(["--checkpoint", "none"]);
    }
    if !options.contains("--micro-batch") {
        args.extend(["--micro-batch", "400"]);
    }
    // It would follow the card.
    if !options.contains("--precision") {
        args.extend(["--precision", "fp32"]);
    }
    let out = ambitus(dir, &args);
    let told = String::from_utf8_lossy(&out.stderr);
    if out.status.code() == Some(2) {
        return format!("{family}\t{target}\t{options}\trefused");
    }
    assert!(out.status.success(), "{args:?}: {told}");
    let plan: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let mut line = format!("{family}\t{target}\t{options}\t{}", plan["arena_bytes"]);
    for path in programs(&dumped) {
        let name = path.strip_prefix(&dumped).expect("below it").with_extension("");
        let text = std::fs::read(&path).expect("a file");
        let _ = write!(line, "\t{}={:016x}", name.display(), hash(&text));
    }
    std::fs::remove_dir_all(&dumped).expect("it is there");
    line
}

#[test]
fn programs_are_as_they_were() {
    let mut lines = Vec::new();
    for family in ["f5", "orpheus"] {
        for target in TARGETS {
            lines.extend(OPTIONS.iter().map(|options| (family, *target, *options)));
        }
    }
    let made = |(family, target, options): &(&str, &str, &str)| {
        let dir = tempfile::tempdir().expect("a folder");
        line(dir.path(), family, target, options)
    };
    let half = lines.len() / 2;
    let made: Vec<String> = std::thread::scope(|scope| {
        let other = scope.spawn(|| lines[half..].iter().map(made).collect::<Vec<_>>());
        let first: Vec<String> = lines[..half].iter().map(made).collect();
        first.into_iter().chain(other.join().expect("no panic")).collect()
    });
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs.tsv");
    if std::env::var_os("UPDATE_PROGRAMS").is_some() {
        std::fs::write(&table, made.join("\n") + "\n").expect("written");
    }
    let known = std::fs::read_to_string(&table).expect("programs.tsv");
    let mut changed = String::new();
    for (made, known) in made.iter().zip(known.lines()) {
        let parts = |line: &str| line.splitn(5, '\t').map(str::to_owned).collect::<Vec<_>>();
        let (made, known) = (parts(made), parts(known));
        let bytes = |parts: &[String]| parts.get(3).and_then(|b| b.parse::<u64>().ok());
        // An arena may get smaller.
        if made[..3] != known[..3] || made.get(4) != known.get(4) || bytes(&made) > bytes(&known) {
            let _ = writeln!(changed, "now   {}\nknown {}", made.join("\t"), known.join("\t"));
        }
    }
    assert!(changed.is_empty(), "programs changed:\n{changed}");
    assert_eq!(made.len(), known.lines().count(), "UPDATE_PROGRAMS=1 writes the table anew");
}

#[test]
fn what_is_dumped_is_read_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let model = fixture("v1").display().to_string();
    let plan = ["plan", "--model", &model, "--assume", "6x1s", "--memory", "1GiB", "--dump", "programs"];
    for (more, folders) in [
        (&[][..], &["programs"][..]),
        (&["--ranks", "2", "--placement", "model"], &["programs/rank-0", "programs/rank-1"]),
    ] {
        common::ok(dir, &[&plan[..], more].concat());
        for folder in folders {
            let text = std::fs::read_to_string(dir.join(folder).join("micro.txt")).expect("a program");
            let session = ambitus_ir::text::parse(&text).expect("the text form");
            assert_eq!(session.programs[0].name, "micro");
            assert_eq!(
                ambitus_ir::verify::verify(&session, &session.programs[0]).map_err(|e| e.to_string()),
                Ok(())
            );
        }
    }
    let (code, text) =
        common::said(dir, &["plan", "--model", &model, "--assume", "6x1s", "--cards", "--dump", "x"]);
    assert!(code == 2 && text.contains("--card NAME"), "{code}: {text}");
}
