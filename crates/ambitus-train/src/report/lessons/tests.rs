//! A planted case for each lesson, and the near miss of which nothing is said.

use super::*;
use crate::metrics::{Lost, Real};
use crate::report::notes::{Others, Validation};
use serde_json::{Value, json};

/// A run of 1,000 updates of a second each that nothing limits.
struct Planted {
    summary: Summary,
    notes: Notes,
    plan: Value,
}

fn run() -> Planted {
    let summary = Summary {
        updates: 1000,
        update_seconds: 1000.0,
        step_seconds_median: Some(1.0),
        frames: 950_000,
        packing_fill: Some(0.95),
        threads: Some(8),
        ..Summary::default()
    };
    let plan = json!({
        "budget_bytes": 4_u64 << 30,
        "micro_batch": { "frames": 1000, "clips": 10 },
        "run": { "unit": "frames", "clip_rows": { "mean": 190.0, "most": 480.0, "longest": 500.0, "per_second": 100.0 } },
        "choices": [{ "key": "learning_rate", "value": "1e-4", "from": "default" }, { "key": "precision", "value": "fp32", "from": "default" }],
        "recipe": [{ "key": "save_every", "value": "10" }, { "key": "updates", "value": "1000" }, { "key": "memory", "value": "4GiB" }],
        "candidates": [
            { "options": "--checkpoint values:3", "seconds": 2.0, "peak_bytes": 4_u64 << 30, "verdict": "chosen" },
            { "options": "--micro-batch 500", "seconds": 2.2, "peak_bytes": 3_u64 << 30, "verdict": "slower" },
            { "options": "", "seconds": 1.9, "peak_bytes": 5_u64 << 30, "verdict": "too_large" },
        ],
    });
    Planted { summary, notes: Notes::default(), plan }
}

impl Planted {
    fn lessons(&self) -> Vec<Lesson> {
        let plan = serde_json::from_value(self.plan.clone()).expect("a plan");
        lessons(&self.summary, &self.notes, &plan)
    }

    /// There is one lesson.
    #[track_caller]
    fn says(&self, limit: Limit, share: f64, line: &str) {
        let all = self.lessons();
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((all[0].limit, all[0].english()), (limit, line.to_owned()));
        assert!((all[0].share - share).abs() < 1e-9, "{}", all[0].share);
        // Both languages have the same numbers.
        let numbers = |text: &str| {
            let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
            let mut all: Vec<String> = digits.map(str::to_owned).collect();
            all.sort();
            all
        };
        assert_eq!(numbers(&all[0].chinese()), numbers(line), "{}", all[0].chinese());
    }

    #[track_caller]
    fn says_nothing(&self) {
        assert_eq!(self.lessons(), []);
    }

    fn validated(mut self, losses: &[(u64, f64)]) -> Planted {
        let of = |&(update, loss): &(u64, f64)| Validation { update, loss: Real(loss), average: None };
        self.notes.validations = losses.iter().map(of).collect();
        self
    }
}

#[test]
fn nothing_is_said_of_a_run_that_nothing_limits_or_that_is_not_known() {
    run().says_nothing();
    assert_eq!(lessons(&Summary::default(), &Notes::default(), &Plan::default()), []);
    // What is much of a run that nobody waited for.
    let mut short = run();
    (short.summary.update_seconds, short.summary.loader_wait_seconds) = (10.0, 4.0);
    short.says_nothing();
}

/// Whatever a damaged file says, there is an answer.
#[test]
fn absurd_numbers_are_no_reason_to_end() {
    let most = u64::MAX;
    let mut planted = run().validated(&[(0, 4.0), (most / 2, 3.0), (most / 3 * 2, 2.0), (most, 1.0)]);
    (planted.summary.updates, planted.summary.skipped_updates, planted.summary.page_faults_major) =
        (most, most, most);
    (planted.summary.loader_wait_seconds, planted.notes.lost.cores) = (-1e300, f64::INFINITY);
    planted.plan["candidates"][2] = json!({ "seconds": -1e300, "peak_bytes": most, "verdict": "too_large" });
    planted.plan["micro_batch"] = json!({ "frames": 1e300, "clips": -1e300 });
    assert!(planted.lessons().len() <= 2);
    planted.summary.skipped_updates = 0;
    assert_eq!(planted.lessons().last().map(|l| l.limit), Some(Limit::StillFalling));
}

#[test]
fn waiting_for_data() {
    let mut run = run();
    run.summary.loader_wait_seconds = 340.0;
    run.says(
        Limit::Loader,
        0.34,
        "what limited it: updates waited 5 min 40 s for data, 34 % of the time; try next: a faster disk for data.cache, or one in memory",
    );
    run.summary.loader_wait_seconds = 99.0;
    run.says_nothing();
}

#[test]
fn checkpoints() {
    let mut run = run();
    run.summary.saving_seconds = 250.0;
    run.says(
        Limit::Saving,
        0.2,
        "what limited it: checkpoints, one every 10 updates, took 4 min 10 s, 20 % of the time; try next: save_every: 50",
    );
    // With that, they take 5 %.
    assert!((250.0_f64 / 5.0 / (250.0 / 5.0 + 1000.0) - 0.05).abs() < 0.003);
    run.plan["recipe"][0]["value"] = "0".into();
    run.says_nothing();
    run.plan["recipe"][0]["value"] = "1000".into();
    run.says_nothing();
}

#[test]
fn pages_from_disk() {
    let mut run = run();
    // Eight threads wait for them at a time.
    run.summary.page_faults_major = 9_600_000;
    run.says(
        Limit::Paging,
        0.12,
        "what limited it: the machine was short of memory: 9600000 pages came back from disk, which took at least 2 min 00 s, 12 % of \
         the time; try next: memory: 3.6GiB",
    );
    run.notes.others =
        Some(Others { update: 9, processes: vec![("browser".to_owned(), 2 << 30)], cards: Vec::new() });
    assert!(run.lessons()[0].change == "without browser beside it, which holds 2.00 GiB");
    // One that holds little is not to blame.
    run.notes.others.as_mut().expect("others").processes[0].1 = 100 << 20;
    assert!(run.lessons()[0].change.starts_with("memory: "));
    run.summary.page_faults_major = 7_000_000;
    run.says_nothing();
    // Slow steps say more than the fastest disk would.
    run.notes.lost.paging = 150.0;
    assert_eq!((run.lessons()[0].limit, run.lessons()[0].share), (Limit::Paging, 0.15));
}

#[test]
fn other_programs_on_the_cores() {
    let mut run = run();
    run.notes.lost = Lost { cores: 180.0, ..Lost::default() };
    run.says(
        Limit::OtherPrograms,
        0.18,
        "what limited it: other programs took the cores for 3 min 00 s, 18 % of the time; try next: nothing beside it, or threads: 7",
    );
    let processes =
        [("browser", 9), ("indexer", 8), ("shell", 7)].map(|(name, n)| (name.to_owned(), n)).to_vec();
    run.notes.others = Some(Others { processes, ..Default::default() });
    run.summary.threads = Some(1);
    assert_eq!(run.lessons()[0].change, "nothing beside it (the largest there: browser, indexer)");
    run.notes.lost.cores = 90.0;
    run.says_nothing();
}

#[test]
fn padding_for_one_long_clip() {
    let mut run = run();
    (run.summary.packing_fill, run.summary.frames) = (Some(0.6), 600_000);
    run.plan["run"]["clip_rows"]["longest"] = 1000.0.into();
    run.says(
        Limit::Padding,
        0.4,
        "what limited it: 40 % of the time went into padding: a micro-batch computes 1000 frames; it holds the longest clip, 10.0 s, and \
         19 of 20 have at most 4.8 s; try next: data.max_seconds: 4.8",
    );
    // Where it is filled and the rest is in another one, that is not for the longest.
    (run.summary.packing_fill, run.summary.frames) = (Some(0.75), 1_500_000);
    assert_eq!(run.lessons()[0].change, "batch: {frames: 2000}");
    (run.summary.packing_fill, run.summary.frames) = (Some(0.6), 600_000);
    // Nothing is computed while it waits.
    run.summary.loader_wait_seconds = 900.0;
    assert_eq!(run.lessons()[0].limit, Limit::Loader);
    run.summary.loader_wait_seconds = 0.0;
    run.summary.packing_fill = Some(0.91);
    run.says_nothing();
}

#[test]
fn padding_of_small_updates_of_few_places_and_of_gaps() {
    let mut run = run();
    (run.summary.packing_fill, run.summary.frames) = (Some(0.6), 1_200_000);
    run.says(
        Limit::Padding,
        0.4,
        "what limited it: 40 % of the time went into padding: a micro-batch computes 1000 frames; an update has 1200 frames on average; \
         try next: batch: {frames: 2000}",
    );
    run.plan["recipe"][1] = json!({ "key": "batch.frames", "value": "2000" });
    run.says_nothing();
    run.plan["micro_batch"]["clips"] = 3.into();
    run.says(
        Limit::Padding,
        0.4,
        "what limited it: 40 % of the time went into padding: a micro-batch computes 1000 frames; it has 3 places for clips, which have \
         190 frames on average; try next: micro_batch: {clips: 6}",
    );
    // More micro-batches than its rows need: clips do not go into one. The search knew that.
    run.plan["micro_batch"]["clips"] = 10.into();
    (run.summary.packing_fill, run.summary.frames) = (Some(0.6), 1_800_000);
    run.plan["choices"][1] =
        json!({ "key": "micro_batch", "value": "1000 frames, 10 clips", "from": "command line" });
    run.says(
        Limit::Padding,
        0.4,
        "what limited it: 40 % of the time went into padding: a micro-batch computes 1000 frames; clips of 190 frames on average leave \
         gaps in it; try next: micro_batch: 2000",
    );
    run.plan["choices"][1]["from"] = "the search, 5000 cut to what updates fill".into();
    run.says_nothing();
    run.summary.frames = 1_200_000;
    // A plan of a version that did not note the lengths.
    run.plan["run"]["clip_rows"] = json!({});
    run.says_nothing();
}

#[test]
fn memory_for_a_faster_plan() {
    let mut run = run();
    run.plan["candidates"][2]["seconds"] = 1.6.into();
    run.says(
        Limit::Memory,
        0.2,
        "what limited it: to fit 4.00 GiB the plan is --checkpoint values:3, with which an update takes 1.00 s; as the plan predicts, it \
         would be 0.80 s with everything kept, which did not fit; try next: memory: 5.2GiB",
    );
    // The least that is worth it, in any order.
    run.plan["candidates"][1] = json!({ "options": "--micro-batch 2000", "seconds": 1.0, "peak_bytes": 9_u64 << 30, "verdict": "too_large" });
    assert_eq!(run.lessons()[0].change, "memory: 5.2GiB");
    run.plan["recipe"][2]["key"] = "other".into();
    assert_eq!(run.lessons()[0].change, "a machine that has 5.2GiB free");
    run.plan["run"]["on_card"] = true.into();
    assert_eq!(run.lessons()[0].change, "a GPU that has 5.2GiB free");
    // What fits is not chosen for another reason; and what waits for data is not made faster.
    run.plan["candidates"][1]["verdict"] = "slower".into();
    run.summary.loader_wait_seconds = 600.0;
    assert_eq!(run.lessons()[0].limit, Limit::Loader);
    run.summary.loader_wait_seconds = 0.0;
    run.plan["candidates"][2]["verdict"] = "slower".into();
    run.says_nothing();
}

#[test]
fn what_cost_most_is_said() {
    let mut run = run();
    run.summary.loader_wait_seconds = 200.0;
    run.notes.lost = Lost { cores: 150.0, ..Lost::default() };
    assert_eq!(run.lessons().iter().map(|l| l.limit).collect::<Vec<_>>(), [Limit::Loader]);
    run.notes.lost.cores = 250.0;
    run.summary.skipped_updates = 100;
    let both = run.lessons().iter().map(|l| l.limit).collect::<Vec<_>>();
    assert_eq!(both, [Limit::OtherPrograms, Limit::SkippedUpdates]);
}

#[test]
fn updates_that_were_not_applied() {
    let mut run = run();
    run.summary.skipped_updates = 80;
    let found = "what it learned: 80 of 1000 updates, 8 %, were not applied because a gradient was not finite; try next: ";
    run.says(Limit::SkippedUpdates, 0.08, &format!("{found}learning_rate: 3.3e-5"));
    run.plan["choices"][1]["value"] = "fp16-mixed".into();
    run.says(Limit::SkippedUpdates, 0.08, &format!("{found}precision: fp32"));
    run.summary.skipped_updates = 49;
    run.says_nothing();
    // A loss scale that looks for its value, in a short run.
    (run.summary.updates, run.summary.skipped_updates) = (100, 17);
    run.says_nothing();
}

#[test]
fn overfitting_is_fewer_updates() {
    let mut run = run();
    (run.summary.best_update, run.summary.overfitting) = (Some(400), Some("overfitting: …".to_owned()));
    run.says(
        Limit::Overfitting,
        0.6,
        "what it learned: the validation loss was lowest after update 400 of 1000; try next: updates: 400, or stop: {after: 3}, which \
         exports the best",
    );
    // One that ended there has the best already.
    run.summary.stopped = Some("stopped …".to_owned());
    run.says_nothing();
}

#[test]
fn no_gain_is_a_lower_rate() {
    let mut run = run();
    (run.summary.validation_base, run.summary.validation_best, run.summary.validation_last) =
        (Some(2.0), Some(2.25), Some(2.5));
    run.says(
        Limit::NoGain,
        0.25,
        "what it learned: no validation loss was below the base's, 2.0000, and the last is 2.5000; try next: learning_rate: 3.3e-5",
    );
    run.summary.validation_last = Some(2.01);
    run.says_nothing();
    (run.summary.validation_best, run.summary.validation_last) = (Some(1.9), Some(2.5));
    run.says_nothing();
}

#[test]
fn a_fall_that_has_not_ended_is_more_updates() {
    let steady = [(0, 4.0), (333, 3.0), (666, 2.0), (1000, 1.0)];
    let mut planted = run().validated(&steady);
    let found = "what it learned: the validation loss still fell: 33 % of its fall was after update 666 of 1000; try next: ";
    planted.says(Limit::StillFalling, 1.0 / 3.0, &format!("{found}updates: 1500"));
    planted.plan["recipe"][1] = json!({ "key": "epochs", "value": "3.0" });
    planted.says(Limit::StillFalling, 1.0 / 3.0, &format!("{found}epochs: 4.5"));
    planted.summary.stopped = Some("stopped …".to_owned());
    planted.says_nothing();
    // It has ended; it ended and rose; it was lower before; the last is not of the end; it rose at first; nothing between; noise; not finite.
    for losses in [
        &[(0, 4.0), (333, 2.0), (666, 1.5), (1000, 1.0)][..],
        &[(0, 4.0), (666, 1.0), (1000, 1.1)],
        &[(0, 4.0), (333, 0.9), (666, 2.0), (1000, 1.0)],
        &[(0, 4.0), (333, 3.0), (666, 2.0), (990, 1.0)],
        &[(0, 4.0), (666, 9.0), (1000, 3.0)],
        &[(0, 4.0), (1000, 1.0)],
        &[(0, 4.0), (200, 3.0), (1000, 1.0)],
        &[(0, 1.01), (666, 1.005), (1000, 1.0)],
        &[(0, 4.0), (666, f64::NAN), (1000, 1.0)],
        &[],
    ] {
        run().validated(losses).says_nothing();
    }
}

#[test]
fn numbers_are_as_recipes_have_them() {
    assert_eq!([1, 9, 10, 149, 150, 1501, 123_456].map(rounded_up), [1, 9, 10, 150, 150, 1600, 130_000]);
    for (bytes, text) in
        [(0, "0MiB"), (1, "1MiB"), (100 << 20, "100MiB"), (1 << 30, "1.0GiB"), ((3 << 30) + 1, "3.1GiB")]
    {
        assert_eq!(enough(bytes), text);
        assert!(text.parse::<ByteSize>().expect("a size").0 >= bytes);
    }
}
