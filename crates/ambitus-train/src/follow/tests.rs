use super::*;
use crate::metrics::sample_update;
use crate::report::notes::{Slow, Validation};
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::Write;

fn add(path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn line(u: &Update) -> String {
    serde_json::to_string(u).unwrap() + "\n"
}

fn note(run: &Path, note: &Note) {
    add(&run.join(NOTES_FILE), &(serde_json::to_string(note).unwrap() + "\n"));
}

fn validation(run: &Path, update: u64, loss: f64) {
    note(run, &Note::Validation(Validation { update, loss: metrics::Real(loss), average: None }));
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("声音");
    fs::create_dir(&run).unwrap();
    fs::write(run.join(RECIPE_FILE), "").unwrap();
    let plan = json!({
        "budget_bytes": 2_u64 << 30, "host_bytes": 1_u64 << 30, "host_on_disk": null,
        "run": { "updates": 20, "unit": "tokens", "on_card": false },
        "recipe": [{ "key": "clip_per_tensor", "value": "false", "from": "default" }],
    });
    fs::write(run.join(PLAN_FILE), plan.to_string()).unwrap();
    (dir, run)
}

#[test]
fn what_happens_is_told_once_and_in_order() {
    let (_dir, run) = folder();
    let _lock = Lock::take(&run).unwrap();
    let mut followed = Followed::new(&run);
    assert_eq!(followed.look(9).unwrap(), (0, Vec::new()));
    assert_eq!(followed.line(), "starting");
    let log = run.join(LOG_FILE);
    validation(&run, 0, 0.8);
    for update in 1..=4 {
        add(&log, &line(&Update { loss: 0.5, applied: update != 2, ..sample_update(update) }));
    }
    note(&run, &Note::Slow(Slow { update: 3, seconds: 9.0, why: "update 3 took 9.00 s: why".to_owned() }));
    validation(&run, 4, 0.6);
    let samples = run.join("samples/4");
    fs::create_dir_all(&samples).unwrap();
    // The next line is torn, and the samples are not all there.
    let torn = line(&Update { loss: 0.5, ..sample_update(5) });
    add(&log, &torn[..40]);
    let (earlier, news) = followed.look(9).unwrap();
    let expected = [
        "update 0: validation loss 0.8000",
        "update 2: a gradient was not finite; the update was skipped",
        "update 3 took 9.00 s: why",
        "update 4: validation loss 0.6000",
    ];
    assert_eq!((earlier, news), (0, expected.map(str::to_owned).to_vec()));
    let shown = "update  4/20 · loss 0.5000 · 8 s left · best 0.6000 · 1800 tokens/s · memory 1.00 of 3.00 GiB · epoch 1.0 · training";
    assert_eq!(followed.line(), shown);
    add(&log, &torn[40..]);
    let facts = json!({ "weights": "ema", "lines": [
        { "file": "x/1.wav", "seconds": 1.5, "oddities": ["it is silent"] }, { "file": "2.wav", "seconds": 0.5, "oddities": [] },
    ] });
    fs::write(samples.join("samples.json"), facts.to_string()).unwrap();
    let (_, news) = followed.look(9).unwrap();
    assert!(
        news[0].starts_with("update 4: 2.0 s of sound in ") && news[0].ends_with("of the ema weights"),
        "{news:?}"
    );
    assert!(news[1].ends_with("1.wav: it is silent") && news.len() == 2, "{news:?}");
    assert!(followed.line().starts_with("update  5/20 "));
    assert_eq!(followed.look(9).unwrap(), (0, Vec::new()));

    // Whoever looks later sees as many as are wanted.
    let (earlier, news) = Followed::new(&run).look(2).unwrap();
    assert_eq!((earlier, news.len()), (4, 2));
    // A resumed run cuts its log; what comes again is no news, what comes instead is.
    let text = fs::read_to_string(&log).unwrap();
    let kept: String = text.split_inclusive('\n').take(2).collect();
    fs::write(&log, kept + &line(&Update { applied: false, step_seconds: 0.25, ..sample_update(3) }))
        .unwrap();
    let (_, news) = followed.look(9).unwrap();
    assert_eq!(news, ["update 3: a gradient was not finite; the update was skipped"]);
    assert!(followed.line().starts_with("update  3/20 "), "{}", followed.line());
    assert!(!followed.has_ended() && followed.how_it_ended().is_empty());
}

/// The loss that is shown is that of the run's own line: both follow from the log.
#[test]
fn means_are_those_of_the_run() {
    let (_dir, run) = folder();
    let mut history = metrics::History::new(20);
    for update in 1..=20 {
        let u = Update { step_seconds: 1.0 / 3.0 + update as f64, ..sample_update(update) };
        history.add(&u);
        add(&run.join(LOG_FILE), &line(&u));
    }
    let mut followed = Followed::new(&run);
    followed.look(0).unwrap();
    assert_eq!(followed.seen.pace, history.pace);
}

#[test]
fn how_a_run_ended_is_told_from_its_folder() {
    let (dir, run) = folder();
    let look = || {
        let mut followed = Followed::new(&run);
        followed.look(0).unwrap();
        followed
    };
    let said = |words: &[&str]| {
        let followed = look();
        let text = followed.how_it_ended().join("\n");
        assert!(followed.has_ended() && words.iter().all(|w| text.contains(w)), "{text}");
        followed.line()
    };
    assert_eq!(said(&["no process holds it, and it has no update yet", "ambitus resume"]), "not begun");
    (1..=3).for_each(|update| add(&run.join(LOG_FILE), &line(&sample_update(update))));
    let at = said(&["no process holds it: it was killed or failed after update 3 of 20", "(from its start)"]);
    assert!(at.starts_with("ended early · update  3/20 · loss") && !at.contains("left"), "{at}");
    let save = |step| RunDir::at(run.clone()).checkpoints().begin(step).unwrap().commit(json!({})).unwrap();
    save(2);
    said(&["no process holds it", "(from update 2)"]);
    save(3);
    said(&["interrupted after update 3 of 20, which is saved; go on with: ambitus resume"]);
    // A lock that somebody holds, whatever else is there; and one of a machine that cannot be looked at.
    let lock = Lock::take(&run).unwrap();
    assert!(!look().has_ended());
    drop(lock);
    let summary = Summary {
        updates: 20,
        validation_base: Some(0.8),
        validation_best: Some(0.6),
        stopped: Some("stopped because".to_owned()),
        ended: "complete".to_owned(),
        ..Summary::default()
    };
    fs::write(run.join(".lock"), "process 1 on elsewhere.test\n\n").unwrap();
    let followed = look();
    assert!(!followed.has_ended() && followed.line().ends_with("training · process 1 on elsewhere.test"));
    let old = SystemTime::now() - 2 * SILENT;
    for file in [LOG_FILE, PLAN_FILE, RECIPE_FILE] {
        fs::File::options().append(true).open(run.join(file)).unwrap().set_modified(old).unwrap();
    }
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    said(&["nothing was written for 2 h 00 min, and process 1 on elsewhere.test cannot be looked at"]);
    summary.write(&run).unwrap();
    let words = ["complete after 20 updates, validation loss: base 0.8000, best 0.6000", "stopped because"];
    assert!(said(&words).starts_with("complete · update"));
    let mut followed = look();
    drop(dir);
    followed.look(0).unwrap();
    assert!(followed.has_ended() && followed.how_it_ended()[0].contains("the folder is gone"));
}

#[test]
fn a_run_in_stages_is_followed_from_one_to_the_next() {
    let (_dir, run) = folder();
    let _lock = Lock::take(&run).unwrap();
    let stage = |name: &str| run.join("stages").join(name);
    for name in ["1-head", "2-all", "10-last"] {
        fs::create_dir_all(stage(name)).unwrap();
        fs::copy(run.join(PLAN_FILE), stage(name).join(PLAN_FILE)).unwrap();
    }
    let mut followed = Followed::new(&run);
    followed.look(9).unwrap();
    assert_eq!(followed.line(), "stage 1-head · starting");
    validation(&stage("1-head"), 20, 0.7);
    let summary = Summary { ended: "complete".to_owned(), ..Summary::default() };
    summary.write(&stage("1-head")).unwrap();
    add(&stage("2-all").join(LOG_FILE), &line(&sample_update(1)));
    validation(&stage("2-all"), 1, 0.6);
    let (_, news) = followed.look(9).unwrap();
    assert_eq!(
        news,
        ["update 20: validation loss 0.7000", "stage 2-all:", "update 1: validation loss 0.6000"]
    );
    assert!(followed.line().starts_with("stage 2-all · update  1/20 · "), "{}", followed.line());
    summary.write(&stage("2-all")).unwrap();
    followed.look(9).unwrap();
    assert_eq!(followed.line(), "stage 10-last · starting");
}

#[test]
fn a_look_changes_nothing_and_damage_is_passed_over() {
    let (_dir, run) = folder();
    add(&run.join(LOG_FILE), "nonsense\n{\"update\": 3}\n\u{0}\n");
    add(&run.join(LOG_FILE), &line(&sample_update(7)));
    add(&run.join(NOTES_FILE), "{}\n[[[[\n");
    fs::create_dir_all(run.join("samples/2")).unwrap();
    fs::write(run.join("samples/2/samples.json"), "[").unwrap();
    fs::write(run.join(".lock"), "").unwrap();
    let state = || {
        let entries = fs::read_dir(&run).unwrap().map(|e| e.unwrap());
        let mut all: Vec<_> =
            entries.map(|e| (e.path(), e.metadata().unwrap().modified().unwrap())).collect();
        all.sort();
        all
    };
    let before = state();
    let mut followed = Followed::new(&run);
    for _ in 0..2 {
        assert_eq!(followed.look(9).unwrap(), (0, Vec::new()));
    }
    assert_eq!(followed.seen.update, 7);
    assert_eq!(state(), before);
    fs::remove_file(run.join(LOG_FILE)).unwrap();
    fs::create_dir(run.join(LOG_FILE)).unwrap();
    assert_eq!(followed.look(9).unwrap_err().exit_code(), 6);
}
