use super::notes::{Note, NotesFile, Others, Slow};
use super::*;
use crate::metrics::{LOG_FILE, Update, sample_update};
use ambitus_families::console::Console;
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

/// What a name must never do.
const HOSTILE: [&str; 4] = [
    "<script>window.hit = 1</script>",
    "\"><img src=x onerror=\"window.hit = 1\">",
    "'); window.hit = 1; //</title></style>",
    "{{ hit }} &lt;b&gt; \u{202e} 声音",
];

/// Returns a folder for a run: one that is kept, for a browser, where `AMBITUS_PAGES` names one.
fn folder(name: &str) -> (Option<tempfile::TempDir>, PathBuf) {
    let kept = std::env::var_os("AMBITUS_PAGES").map(PathBuf::from);
    let temporary = kept.is_none().then(|| tempfile::tempdir().unwrap());
    let root = kept.unwrap_or_else(|| temporary.as_ref().unwrap().path().to_owned()).join(name);
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(&root).unwrap();
    (temporary, root)
}

/// Writes a second of silence.
fn silence(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let (rate, bytes) = (8000_u32, 16_000_u32);
    let mut wav = b"RIFF".to_vec();
    wav.extend((36 + bytes).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    wav.extend(rate.to_le_bytes());
    wav.extend((2 * rate).to_le_bytes());
    wav.extend(b"\x02\0\x10\0data");
    wav.extend(bytes.to_le_bytes());
    wav.resize(wav.len() + bytes as usize, 0);
    std::fs::write(path, wav).unwrap();
}

/// Writes a log of `n` updates.
fn log(run: &Path, n: u64) {
    let mut text = String::new();
    for update in 1..=n {
        let noise = f64::from((update as u32).wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
        let loss = 0.6 + (-(update as f64) / (n as f64 / 4.0)).exp() + 0.2 * noise;
        let u =
            Update { loss, grad_norm: 1.0 + noise, step_seconds: 0.5 + 0.1 * noise, ..sample_update(update) };
        writeln!(text, "{}", serde_json::to_string(&u).unwrap()).unwrap();
    }
    std::fs::write(run.join(LOG_FILE), text).unwrap();
}

fn plan(run: &Path, word: &str, updates: u64) {
    let choice = json!([{ "key": word, "value": word, "from": word }]);
    let wave: Vec<u64> = (0..240).map(|i: u64| (200 + i.min(240 - i)) << 20).collect();
    let plan = json!({
        "peak_bytes": 1_400_000_000, "budget_bytes": 1_500_000_000, "peak_in": word,
        "phases": [{ "name": word, "peak_bytes": 1_000_000_000 }, { "name": "micro", "peak_bytes": 1_400_000_000 }],
        "categories": { "parameters": 700_000_000, "activations": 700_000_000, word: 1 },
        "choices": choice, "recipe": choice, "data": [word],
        "candidates": [
            { "options": word, "numerics": word, "peak_bytes": 1, "seconds": 0.1, "verdict": "chosen" },
            { "options": word, "numerics": word, "peak_bytes": 1, "seconds": 0.1, "verdict": word },
        ],
        "over_micro_batch": { "instructions": 900, "marks": [[0, word]], "categories": [["process", [100 << 20]], [word, wave]] },
        "run": { "updates": updates, "unit": word, "device": word, "on_card": false },
    });
    std::fs::write(run.join("plan.json"), plan.to_string()).unwrap();
}

fn page(run: &Path) -> String {
    std::fs::read_to_string(run.join(REPORT_FILE)).unwrap()
}

#[track_caller]
fn whole(text: &str) {
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"), "{text}");
}

/// Text of data is text in the page, wherever it stands.
#[test]
fn names_are_text() {
    let (_kept, root) = folder("hostile");
    for (i, word) in HOSTILE.into_iter().enumerate() {
        let run = root.join(word.replace('/', "\u{2215}"));
        std::fs::create_dir_all(&run).unwrap();
        log(&run, 40);
        plan(&run, word, 40);
        let file = word.replace('/', "\u{2215}");
        silence(&run.join(format!("samples/{i}/{file}.wav")));
        let facts =
            json!({ "weights": word, "lines": [{ "file": format!("{file}.wav"), "oddities": [word] }] });
        std::fs::write(run.join(format!("samples/{i}/samples.json")), facts.to_string()).unwrap();
        let mut notes = NotesFile::resume(&run, 0).unwrap();
        notes.add(Note::Slow(Slow { update: 3, seconds: 2.0, why: word.to_owned() }));
        let (processes, cards) = (vec![(word.to_owned(), 9)], vec![word.to_owned()]);
        notes.add(Note::Others(Others { update: 3, processes, cards }));
        rebuild(&run).unwrap();
    }
    for word in HOSTILE {
        let run = root.join(word.replace('/', "\u{2215}"));
        rebuild(&run).unwrap();
        let text = page(&run);
        whole(&text);
        assert!(!text.contains("<img") && !text.contains("<script>window"), "{word}");
        assert_eq!((text.matches("<script").count(), text.matches("</title>").count()), (1, 1), "{word}");
        assert!(text.contains("<audio") && !text.contains("http://") && !text.contains("https://"), "{word}");
        // Beside the three others.
        assert_eq!(text.matches("/report.html\"").count(), 3);
    }
    let (path, wrong) = write_runs(ambitus_families::ALL, &root).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    whole(&text);
    assert!(!text.contains("<img") && text.matches("<script").count() == 1);
    assert_eq!(text.matches("<polyline").count(), HOSTILE.len());
    // None has a recipe.
    assert_eq!(wrong.len(), HOSTILE.len());
}

/// A long run's page is as large as a short one's, and its curves have as many points.
#[test]
fn a_hundred_thousand_updates_are_one_small_page() {
    let sizes = [2_000, 100_000].map(|n| {
        let (_kept, root) = folder(&format!("of-{n}"));
        log(&root, n);
        plan(&root, "frames", n);
        rebuild(&root).unwrap();
        let text = page(&root);
        whole(&text);
        let points = text.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
        let most = points.map(|points| points.split_whitespace().count()).max();
        assert!(most.is_some_and(|n| n > 500 && n <= 2 * crate::metrics::COLUMNS), "{most:?}");
        assert!(text.contains(&format!("Update {n} of {n}")));
        text.len()
    });
    assert!(sizes[1] < 500_000 && sizes[1] < 2 * sizes[0], "{sizes:?}");
}

/// Lessons are in both languages, of a run that has ended, and names in them are text.
#[test]
fn lessons_are_on_the_page() {
    let (_kept, root) = folder("lessons");
    log(&root, 40);
    plan(&root, "word", 40);
    let mut notes = NotesFile::resume(&root, 0).unwrap();
    let processes = HOSTILE.map(|word| (word.to_owned(), 9 << 30)).to_vec();
    notes.add(Note::Others(Others { update: 40, processes, cards: Vec::new() }));
    let lost = crate::metrics::Lost { cores: 20.0, ..Default::default() };
    notes.add(Note::Lost(notes::LostBy { update: 40, lost }));
    for (update, loss) in [(0, 4.0), (13, 3.0), (26, 2.0), (40, 1.0)] {
        notes.add(Note::Validation(notes::Validation {
            update,
            loss: crate::metrics::Real(loss),
            average: None,
        }));
    }
    rebuild(&root).unwrap();
    assert!(!page(&root).contains("what limited it"), "it may go on");
    let summary = Summary {
        ended: "complete".to_owned(),
        updates: 40,
        update_seconds: 80.0,
        threads: Some(4),
        ..Summary::default()
    };
    summary.write(&root).unwrap();
    rebuild(&root).unwrap();
    let text = page(&root);
    whole(&text);
    for said in [
        "<span lang=\"en\">what limited it: other programs took the cores for 20 s, 25 % of the time; try next: nothing beside it (",
        "<span lang=\"zh\">限制因素：其他程序占用 CPU 核心 20 s，占 25 % 的时间；下次可以试试：",
        "<span lang=\"en\">what it learned: the validation loss still fell: 33 % of its fall was after update 26 of 40; try next: updates: 60",
        "<span lang=\"zh\">学习情况：",
    ] {
        assert!(text.contains(said), "{said}");
    }
    assert!(text.contains("threads: 3") && !text.contains("<img") && text.matches("<script").count() == 1);
}

/// What a killed run leaves has a page, whatever is torn or missing.
#[test]
fn any_folder_has_a_whole_page() {
    let (_kept, root) = folder("torn");
    rebuild(&root).unwrap();
    whole(&page(&root));
    log(&root, 30);
    let text = std::fs::read_to_string(root.join(LOG_FILE)).unwrap();
    std::fs::write(root.join(LOG_FILE), &text[..text.len() - 20]).unwrap();
    for (plan, summary) in
        [("{\"peak_bytes\": 3", "{"), ("[]", "null"), ("{\"phases\": 7}", "{\"updates\": -1}")]
    {
        std::fs::write(root.join("plan.json"), plan).unwrap();
        std::fs::write(root.join("summary.json"), summary).unwrap();
        std::fs::write(root.join("notes.jsonl"), "{\"kind\":").unwrap();
        rebuild(&root).unwrap();
        let text = page(&root);
        whole(&text);
        assert!(text.contains("not ended") && text.contains("Update 29 of 29"));
    }
}

#[derive(Default)]
struct Heard(Vec<String>);

impl Console for Heard {
    fn line(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
    fn progress(&mut self, _: &str) {}
}

/// What each process of a run has lost is the run's, from the checkpoint that it goes on from.
#[test]
fn what_is_lost_is_the_whole_runs() {
    let root = tempfile::tempdir().unwrap();
    let lost = |saving: f64| crate::metrics::Lost { saving, ..Default::default() };
    let mut page = Page::resume(root.path(), false, 0, None, &mut Heard::default());
    page.lost(10, lost(1.0));
    page.lost(20, lost(2.0));
    page.lost(30, lost(3.0));
    let mut page = Page::resume(root.path(), false, 20, None, &mut Heard::default());
    assert_eq!(page.notes().lost, lost(2.0));
    page.lost(30, lost(0.5));
    page.lost(40, lost(0.75));
    assert_eq!(Notes::read(root.path()).lost, lost(2.75));
}

/// Pages and notes that cannot be written are said once, and cost the run nothing.
#[test]
fn a_page_that_cannot_be_written_is_said_once() {
    let root = tempfile::tempdir().unwrap();
    for name in [REPORT_FILE, notes::NOTES_FILE] {
        std::fs::create_dir(root.path().join(name)).unwrap();
        std::fs::write(root.path().join(name).join("x"), "x").unwrap();
    }
    let mut heard = Heard::default();
    let mut page = Page::resume(root.path(), false, 0, Some(1.0), &mut heard);
    for update in [0, 10, 20] {
        page.validated(update, 1.0, None);
        page.write(&History::new(30), update, &mut heard);
    }
    assert_eq!(heard.0.len(), 2, "{:?}", heard.0);
    assert!(heard.0.iter().all(|line| line.ends_with("the run continues")));
}
