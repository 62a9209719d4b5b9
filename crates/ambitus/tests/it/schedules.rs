//! Learning rates by the real binary: a run has those that its plan says, also when it is resumed and in each of its stages. What
//! the schedules are is tested against torch and transformers where they are computed.

use crate::common::{self, json, ok, said};
use serde_json::Value;
use std::path::Path;

const SHORT: &str = "batch: {clips: 2}\nmicro_batch: 200\nsave_every: 3\nkeep: 9\nvalidate_every: 0\nthreads: 2\nmemory: 1GiB\nwarmup: 2";

/// The rates that a log has, in order.
fn logged(run: &Path) -> Vec<f64> {
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).expect("the log");
    let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["learning_rate"].as_f64();
    log.lines().filter_map(line).collect()
}

fn rates(plan: &Value) -> Vec<f64> {
    let rates = plan["learning_rates"]["first"].as_array().expect("rates");
    rates.iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[test]
fn a_run_has_the_rates_of_its_plan_also_when_it_is_resumed() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    for (i, schedule) in
        ["warm-restarts,per=epoch,period=1,floor=0.1", "cosine,cycles=1", "inverse-sqrt"].iter().enumerate()
    {
        let name = format!("run{i}");
        let run = common::recipe(dir, &name, &format!("{SHORT}\nupdates: 9\nschedule: {schedule}"))
            .display()
            .to_string();
        let plan = json(dir, &["plan", &run, "--json"]);
        assert_eq!(
            plan["learning_rates"]["first"], plan["learning_rates"]["last"],
            "of fewer than 100 updates all"
        );
        ok(dir, &["train", &run]);
        let run = dir.join(&name);
        assert_eq!(logged(&run), rates(&plan), "{schedule}");
        assert!(rates(&plan)[0] == 0.0 && rates(&plan)[2] == 1e-3, "{plan:#}");
        // From the checkpoint before the last, by the recipe that the run keeps.
        std::fs::remove_dir_all(run.join("checkpoints/step-9")).expect("a checkpoint");
        ok(dir, &["resume", &name]);
        assert_eq!(logged(&run), rates(&plan), "{schedule}");
    }
}

#[test]
fn each_stage_has_its_own_schedule() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let stages = "schedule: constant\nstages:\n  - {name: one, updates: 3}\n  \
                  - {name: two, updates: 4, schedule: {kind: milestones, at: [1], gamma: 0.5}}";
    let run = common::recipe(dir, "run", &format!("{SHORT}\n{stages}")).display().to_string();
    let plan = json(dir, &["plan", &run, "--json"]);
    ok(dir, &["train", &run]);
    let parts = plan["stages"].as_array().expect("stages");
    let known = [("1-one", &[0.0, 5e-4, 1e-3][..]), ("2-two", &[0.0, 5e-4, 1e-3, 5e-4])];
    assert_eq!(parts.len(), known.len());
    for (part, (name, known)) in parts.iter().zip(known) {
        assert_eq!(rates(part), known, "{name}");
        assert_eq!(logged(&dir.join("run/stages").join(name)), known, "{name}");
    }
}

#[test]
fn a_schedule_that_means_nothing_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    for (schedule, why) in [
        ("sideways", "`sideways` is not linear"),
        ("cosine,floor=2", "schedule.floor"),
        ("constant,gamma=0.5", "means nothing to constant"),
        ("milestones", "say at which updates the rate falls"),
        ("{kind: linear, wobble: 3}", "wobble"),
    ] {
        let run = common::recipe(dir, "bad", &format!("{SHORT}\nschedule: {schedule}")).display().to_string();
        let (code, text) = said(dir, &["plan", &run]);
        assert!(code == 2 && text.contains(why), "{schedule}: {code}: {text}");
        if !schedule.starts_with('{') {
            let run = common::recipe(dir, "good", SHORT).display().to_string();
            let (code, text) = said(dir, &["plan", &run, "--schedule", schedule]);
            assert!(code == 2 && text.contains(why), "{schedule}: {code}: {text}");
        }
    }
}
