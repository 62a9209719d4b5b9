//! `cargo xtask gpu`, the first half hour with a card, on the emulated card: the real program, at tiny shapes.
//!
//! The stage `fast`; all of them with `AMBITUS_LONG=1`.

use ambitus_testkit::emulated_cuda;
use serde_json::Value;
use std::process::Command;

#[test]
fn the_first_half_hour_finds_no_fault() {
    let Ok(folder) = emulated_cuda::libraries().inspect_err(|why| println!("SKIPPED: {why}")) else { return };
    let out = tempfile::tempdir().expect("a folder");
    let long = ambitus_testkit::is_long();
    let stages: &[&str] = if long { &["right", "fast", "why"] } else { &["fast"] };
    let said = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("gpu")
        .args(stages)
        .args(["--small", "--minutes", "30", "--python", "no-python-here", "--out"])
        .arg(out.path())
        .envs([("LD_LIBRARY_PATH", &folder), ("AMBITUS_CUDA_LIBS", &folder), ("XDG_CACHE_HOME", &folder)])
        .output()
        .expect("the program runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let pages = String::from_utf8(said.stdout).expect("text");
    assert_eq!(pages.lines().count(), stages.len(), "{pages}");
    for (stage, page) in stages.iter().zip(pages.lines()) {
        let text = std::fs::read_to_string(page).expect("a page");
        let parts: &[&str] = match *stage {
            "right" => &[
                "| bf16 | ",
                "| true |",
                "fixtures/v1, fp32, all kept |",
                "fixtures/untied, bf16-mixed |",
                "norm of the gradients",
                "arena",
                "same bits",
                "as plain",
            ],
            "fast" => &[
                "bf16 product",
                "| backward |",
                "planner's model",
                "F5 Base",
                "% of roofline",
                "PyTorch was not run",
                "first choices",
            ],
            _ => &["ncu"],
        };
        for part in [&["**Emulated**", "Everything held."], parts].concat() {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let facts = std::fs::read_to_string(page.replace(".md", ".json")).expect("its facts");
        let facts: Value = serde_json::from_str(&facts).expect("JSON");
        if *stage == "fast" {
            assert!(facts["facts"]["rates"]["half_tflops"].as_f64() > Some(0.0), "{facts}");
            let instructions = facts["facts"]["F5 Base, bf16-mixed"].as_array().map_or(0, Vec::len);
            assert!(instructions > 50, "{instructions} distinct instructions");
        }
    }
}
