use super::*;
use crate::metrics::{Log, OfPlayer, Real, sample_update};
use crate::report::Page;
use std::collections::BTreeMap;
use std::fs;

/// A field of a message as the wire has it.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// A reader of protocol buffers that shares nothing with what writes them.
#[derive(Clone, Debug, PartialEq)]
struct Fields(Vec<(u64, Field)>);

impl Fields {
    fn of(mut bytes: &[u8]) -> Fields {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let end = bytes.iter().position(|b| *b < 128).expect("an end");
            let value = bytes[..=end].iter().rev().fold(0, |n, b| n << 7 | u64::from(b & 127));
            *bytes = &bytes[end + 1..];
            value
        }
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let fixed = |bytes: &mut &[u8], n: usize| {
                let (front, rest) = bytes.split_at(n);
                *bytes = rest;
                front.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
            };
            let field = match key & 7 {
                0 => Field::Number(varint(&mut bytes)),
                1 => Field::Number(fixed(&mut bytes, 8)),
                5 => Field::Number(fixed(&mut bytes, 4)),
                2 => {
                    let len = varint(&mut bytes) as usize;
                    let (inner, rest) = bytes.split_at(len);
                    bytes = rest;
                    Field::Bytes(inner.to_vec())
                }
                wire => panic!("wire {wire}"),
            };
            all.push((key >> 3, field));
        }
        Fields(all)
    }

    fn all(&self, number: u64) -> impl Iterator<Item = &Field> {
        self.0.iter().filter(move |(n, _)| *n == number).map(|(_, field)| field)
    }

    fn bytes(&self, number: u64) -> &[u8] {
        match self.all(number).next() {
            Some(Field::Bytes(bytes)) => bytes,
            other => panic!("field {number} is {other:?} of {self:?}"),
        }
    }

    fn number(&self, number: u64) -> u64 {
        match self.all(number).next() {
            Some(Field::Number(value)) => *value,
            other => panic!("field {number} is {other:?} of {self:?}"),
        }
    }

    fn text(&self, number: u64) -> String {
        String::from_utf8(self.bytes(number).to_vec()).expect("UTF-8")
    }

    fn inner(&self, number: u64) -> Fields {
        Fields::of(self.bytes(number))
    }

    fn messages(&self, number: u64) -> Vec<Fields> {
        let bytes = |field: &Field| match field {
            Field::Bytes(bytes) => Fields::of(bytes),
            Field::Number(n) => panic!("{n}"),
        };
        self.all(number).map(bytes).collect()
    }

    fn float(&self, number: u64) -> f32 {
        f32::from_bits(self.number(number) as u32)
    }
}

/// Returns what the records of a file hold, bit by bit as the format says; all of them must be whole.
pub(super) fn data_of(mut file: &[u8]) -> Vec<Vec<u8>> {
    let sum = |bytes: &[u8]| {
        let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x82F6_3B78))
        });
        (!crc).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
    };
    let mut all = Vec::new();
    while !file.is_empty() {
        let len = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
        assert_eq!(file[8..12], sum(&file[..8]));
        let (data, rest) = file[12..].split_at(len);
        assert_eq!(rest[..4], sum(data));
        all.push(data.to_vec());
        file = &rest[4..];
    }
    all
}

/// A value of a file: its step, its tag, and its fields.
type Valued = (u64, String, Fields);

/// The values of the one event file of a run.
fn values(run: &Path) -> Vec<Valued> {
    let records = data_of(&fs::read(file(run)).expect("a file"));
    let events: Vec<Fields> = records.iter().map(|data| Fields::of(data)).collect();
    assert_eq!(events[0].text(3), "brain.Event:2");
    let mut all = Vec::new();
    for event in &events[1..] {
        let seconds = f64::from_bits(event.number(1));
        assert!((1.7e9..1e11).contains(&seconds), "{seconds}");
        all.extend(event.inner(5).messages(1).into_iter().map(|v| (event.number(2), v.text(1), v)));
    }
    assert!(all.is_sorted_by_key(|(step, ..)| *step), "steps are in order");
    all
}

fn file(run: &Path) -> PathBuf {
    let files: Vec<_> =
        fs::read_dir(run.join(FOLDER)).expect("a folder").map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// The scalars, by tag, of every step.
fn scalars(values: &[Valued]) -> BTreeMap<String, Vec<(u64, f32)>> {
    let mut all: BTreeMap<String, Vec<(u64, f32)>> = BTreeMap::new();
    for (step, tag, value) in values.iter().filter(|(.., v)| v.all(2).next().is_some()) {
        all.entry(tag.clone()).or_default().push((*step, value.float(2)));
    }
    all
}

const SETTINGS: &str =
    r#"{"seed": 7, "clip_per_tensor": true, "model": {"dir": "a b"}, "betas": [0.9, 0.99]}"#;

fn begin() -> Vec<Message> {
    let settings: Value = serde_json::from_str(SETTINGS).unwrap();
    let mut all = Vec::new();
    leaves(&mut String::new(), '.', &settings, &mut |key, value| all.push((key.to_owned(), value.clone())));
    vec![
        message::version(now()),
        message::text(now(), 0, "recipe", "seed: 7\n"),
        message::experiment(now(), &all, &["train/loss"]),
        message::session_start(now(), &all),
    ]
}

/// Returns the events of a run after an update, not opened yet.
fn events(run: &Path, update: u64) -> Events {
    Events { folder: run.join(FOLDER), run: run.to_owned(), first: begin(), update, open: None }
}

/// Resumes log, events and notes of a run after an update, and does updates up to another, with a validation before the first and after
/// every second.
fn train(run: &Path, from: u64, to: u64) -> (Events, Option<String>) {
    let mut log = Log::resume(&run.join(LOG_FILE), from, 50).unwrap().log;
    let mut events = events(run, from);
    let said = events.reopen();
    let base = Some(3.0);
    let mut page = Page::resume(run, false, from, base, &mut ambitus_families::console::Silent);
    if from == 0 {
        assert_eq!(events.validated(0, 3.0, None), None);
    }
    for update in from + 1..=to {
        let line = sample_update(update);
        log.append(&line).unwrap();
        assert_eq!(events.update(&line), None);
        if update % 2 == 0 {
            assert_eq!(events.validated(update, 2.0, Some(1.0)), None);
            page.validated(update, 2.0, Some(1.0));
        }
    }
    log.sync().unwrap();
    assert_eq!(events.sync(), None);
    (events, said)
}

#[test]
fn everything_is_read_back() {
    let run = tempfile::tempdir().unwrap();
    let run = run.path();
    let (mut events, said) = train(run, 0, 3);
    assert_eq!(said, None);
    let mut line = Update { loss: f64::INFINITY, loss_scale: Some(1024.0), ..sample_update(4) };
    line.losses.insert("kl".to_owned(), Real(0.25));
    let of_player =
        OfPlayer { loss: 3.0, losses: BTreeMap::new(), learning_rate: 1e-4, grad_norm: 0.5, applied: false };
    line.players.insert("d".to_owned(), of_player);
    assert_eq!(events.update(&line), None);
    let wave = run.join("hello.wav");
    let mut sound = ambitus_data::SoundWriter::create(&wave, 24_000, 2).unwrap();
    sound.push(&vec![0.5; 50_000]).unwrap();
    sound.finish().unwrap();
    fs::write(run.join("mel.png"), b"a picture").unwrap();
    assert_eq!(events.sound(4, "samples/hello", &wave), None);
    assert_eq!(events.end(4), None);
    assert_eq!(events.picture(4, "mel", &run.join("mel.png")), None);

    let values = values(run);
    let all = scalars(&values);
    assert_eq!(all["train/loss"][..3], [(1, 1.0), (2, 0.5), (3, 1.0 / 3.0)]);
    assert!(all["train/loss"][3].1.is_nan());
    assert_eq!(
        (&all["validation/raw"], &all["validation/ema"]),
        (&vec![(0, 3.0), (2, 2.0)], &vec![(2, 1.0)])
    );
    for (tag, of_last) in [
        ("train/losses/kl", 0.25),
        ("train/players/d/loss", 3.0),
        ("train/players/d/applied", 0.0),
        ("train/applied", 1.0),
        ("train/loss_scale", 1024.0),
        ("train/rss_bytes", 2f32.powi(30)),
        ("train/learning_rate", 1e-5),
    ] {
        assert_eq!(all[tag].last(), Some(&(4, of_last)), "{tag}");
    }
    assert!(!all.contains_key("train/update"), "it is the step");

    let of = |tag: &str| values.iter().find(|(_, t, _)| t == tag).map(|(step, _, v)| (*step, v)).expect(tag);
    let (step, sound) = of("samples/hello");
    let audio = sound.inner(6);
    assert_eq!((step, audio.float(1), audio.number(2), audio.number(3)), (4, 24_000.0, 2, 25_000));
    assert!(audio.bytes(4) == fs::read(&wave).unwrap() && audio.text(5) == "audio/wav");
    let image = of("mel").1.inner(4);
    assert_eq!([1, 2, 3].map(|n| image.number(n)), [675, 1200, 3]);
    assert_eq!(image.bytes(4), b"a picture");
    let text = of("recipe").1;
    assert_eq!((text.inner(8).text(8), text.inner(9).inner(1).text(1)), ("seed: 7\n".into(), "text".into()));
    assert_eq!((text.inner(8).number(1), text.inner(8).inner(2).inner(2).number(1)), (7, 1));
}

#[test]
fn settings_are_read_back() {
    let run = tempfile::tempdir().unwrap();
    train(run.path(), 0, 1).0.end(1);
    let values = values(run.path());
    let of = |tag: &str| {
        let plugin = values.iter().find(|(_, t, _)| t == tag).expect(tag).2.inner(9).inner(1);
        assert_eq!(plugin.text(1), "hparams");
        plugin.inner(2)
    };
    let experiment = of("_hparams_/experiment").inner(2);
    let kinds: Vec<(String, u64)> = experiment.messages(4).iter().map(|h| (h.text(1), h.number(4))).collect();
    let named = |all: [(&str, u64); 4]| all.map(|(name, kind)| (name.to_owned(), kind)).to_vec();
    assert_eq!(kinds, named([("betas", 1), ("clip_per_tensor", 2), ("model.dir", 1), ("seed", 3)]));
    assert_eq!(experiment.inner(5).inner(1).text(2), "train/loss");
    let start = of("_hparams_/session_start_info").inner(3);
    let set = start.messages(1);
    assert_eq!(set[0].inner(2).text(3), "[0.9,0.99]");
    assert_eq!(set[1].inner(2).number(4), 1);
    assert_eq!(set[2].inner(2).text(3), "a b");
    assert_eq!(f64::from_bits(set[3].inner(2).number(2)), 7.0);
    assert_eq!(of(SESSION_END).inner(4).number(1), 1);
}

/// Whatever byte the file ends at or is damaged at: after a resume every update is there once, and what was whole stays.
#[test]
fn one_curve_over_resumes() {
    let once = tempfile::tempdir().unwrap();
    train(once.path(), 0, 9);
    let expected = scalars(&values(once.path()));
    let run = tempfile::tempdir().unwrap();
    let run = run.path();
    train(run, 0, 6).0.end(6);
    let (path, log) = (file(run), run.join(LOG_FILE));
    let [whole, lines] = [&path, &log].map(|path| fs::read(path).unwrap());
    for from in [4, 6] {
        for at in (0..whole.len()).step_by(101) {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            for damaged in [&whole[..at], &flipped, &[&whole[..], &[7; 40]].concat()] {
                fs::write(&path, damaged).unwrap();
                fs::write(&log, &lines).unwrap();
                let (_, said) = train(run, from, 9);
                let all = values(run);
                assert!(said.is_none() || at < whole.len() && damaged.len() <= whole.len());
                let found = scalars(&all);
                assert!(found == expected, "at {at}, from {from}: {found:?}");
                assert!(!all.iter().any(|(_, tag, _)| tag == SESSION_END), "it goes on");
                assert_eq!(all.iter().filter(|(_, tag, _)| tag == "recipe").count(), 1);
            }
        }
    }
    // Without notes the log's numbers are there, with the validations that came later.
    fs::write(&path, &whole[..40]).unwrap();
    fs::write(&log, &lines).unwrap();
    fs::remove_file(run.join(NOTES_FILE)).unwrap();
    let said = train(run, 6, 9).1.expect("what is lost");
    assert!(
        said.contains("updates 1 to 6 are taken from the log, validation losses from notes.jsonl"),
        "{said}"
    );
    let found = scalars(&values(run));
    assert_eq!((&found["train/loss"], &*found["validation/raw"]), (&expected["train/loss"], &[(8, 2.0)][..]));
    // One that begins again has nothing of before.
    train(run, 0, 9);
    assert_eq!(scalars(&values(run)), expected);
}

/// The file is no reason to end a run, and comes back with the next checkpoint.
#[test]
fn what_cannot_be_written_is_said_and_mended() {
    let run = tempfile::tempdir().unwrap();
    let run = run.path();
    fs::write(run.join(FOLDER), "in the way").unwrap();
    let mut log = Log::resume(&run.join(LOG_FILE), 0, 50).unwrap().log;
    let mut events = events(run, 0);
    let said = events.reopen().expect("a reason");
    assert!(said.contains(FOLDER) && said.contains("the run continues"), "{said}");
    for update in 1..=4 {
        let line = sample_update(update);
        log.append(&line).unwrap();
        assert_eq!(events.update(&line), None);
    }
    log.sync().unwrap();
    assert!(events.sync().is_some());
    fs::remove_file(run.join(FOLDER)).unwrap();
    let said = events.sync().expect("what was missing");
    assert!(said.contains("updates 1 to 4 are taken from the log"), "{said}");
    assert_eq!(scalars(&values(run))["train/loss"].len(), 4);
    // A sound that is gone is none either.
    let said = events.sound(4, "samples/gone", &run.join("gone.wav")).expect("a reason");
    assert!(said.contains("gone.wav"), "{said}");
    fs::write(run.join("noise.wav"), [7; 100]).unwrap();
    assert_eq!(events.sync(), None);
    assert!(events.sound(4, "samples/noise", &run.join("noise.wav")).expect("a reason").contains("no WAV"));
    assert_eq!(events.sync(), None);
    assert_eq!(scalars(&values(run))["train/loss"].len(), 4);
}
