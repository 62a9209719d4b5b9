//! The page of a run and of a folder of runs, as the real binary writes them.

use crate::common;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const LINES: &str = "batch: {clips: 3}\nmicro_batch: 200\nvalidate_every: 2\nthreads: 2";

/// A page that is there to its end.
#[track_caller]
fn whole(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(
        text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"),
        "{}",
        path.display()
    );
    text
}

fn figures(text: &str) -> Vec<&str> {
    let values = text.split("<dd class=\"value\">").skip(1);
    values.map(|rest| rest.split('<').next().unwrap_or_default()).collect()
}

#[test]
fn a_run_has_a_page_whenever_it_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    std::fs::create_dir(dir.join("runs")).expect("a folder");
    let lines = format!(
        "{LINES}\nsave_every: 2\nsamples: {{texts: [bad hide leaf], clip_text: bad 7, clip: clip01}}"
    );
    let recipe = common::recipe(dir, "runs/done", &format!("{lines}\nupdates: 4"));
    common::ok(dir, &["train", &recipe.display().to_string(), "--memory", "1GiB", "--seed", "3"]);
    let page = whole(&dir.join("runs/done/report.html"));
    assert!(page.contains(">complete<") && page.contains("Update 4 of 4"));
    // The held-out clip thrice; the sentence before the first update and with both validations.
    assert_eq!(page.matches("src=\"data:audio/wav;base64,UklGR").count(), 6);
    let summary = std::fs::read_to_string(dir.join("runs/done/summary.json")).expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    let best = format!("{:.4}", summary["validation_best"].as_f64().expect("a loss"));
    assert_eq!(figures(&page)[0], best);
    assert!(page.contains("<h3>bad hide leaf</h3>"));
    // Where values came from.
    for row in [
        "seed</td><td class=\"long\">3</td><td class=\"soft long\">command line<",
        "data.outside</td><td class=\"long\">skip</td><td class=\"soft long\">default<",
        "keep</td><td class=\"long\">2</td><td class=\"soft long\">default<",
    ] {
        assert!(page.contains(row), "{row}");
    }
    assert!(page.contains("done.yaml:") && page.contains("id=\"data\""));

    // Killed at any moment, it has what the last validation left, and all of its log when somebody asks.
    let recipe = common::recipe(
        dir,
        "runs/killed",
        &format!("{LINES}\nsave_every: 0\nsamples: false\nupdates: 100000"),
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_ambitus"))
        .current_dir(dir)
        .args(["train", &recipe.display().to_string(), "--memory", "1GiB"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let log = dir.join("runs/killed/metrics.jsonl");
    while std::fs::read_to_string(&log).map_or(0, |t| t.lines().count()) < 7 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(child.try_wait().expect("a status").is_none(), "the run ended by itself");
    }
    child.kill().expect("a process");
    child.wait().expect("a status");
    let page = dir.join("runs/killed/report.html");
    assert!(whole(&page).contains(">not ended<"));
    std::fs::remove_file(&page).expect("a page");
    let said = common::ok(dir, &["runs", "runs", "--page"]);
    assert_eq!(said.trim(), "runs/runs.html");
    let lines = std::fs::read_to_string(&log).expect("a log").lines().count();
    let page = whole(&page);
    assert!(page.contains(&format!("Update {lines} of 100000")), "{lines}");
    // Beside the other run, from which it differs in what was asked for.
    assert!(
        page.contains("../done/report.html")
            && page.contains("<span class=\"mono\">updates</span> 100000 → 4")
    );
    let runs = whole(&dir.join("runs/runs.html"));
    for link in ["href=\"./done/report.html\"", "href=\"./killed/report.html\"", &best] {
        assert!(runs.contains(link), "{link}");
    }
}
