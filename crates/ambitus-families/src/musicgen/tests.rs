//! What a batch holds of prepared files, and what is said of folders that do not fit.

use super::clips::MusicClips;
use super::keys::Keys;
use crate::clips::{Clips, Use, When};
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::recorded::Spare;
use ambitus_data::codes::{self, CodesOptions, Frames, Rows, prepare_states};
use ambitus_data::music::{
    self, Counts, LONGEST, MusicOptions, Pieces, Sound, Weighting, load_music_clip, prepare_music,
};
use ambitus_data::sources::Entry;
use ambitus_data::{ClipIndex, DataError, Limits, Policy, PrepareOptions, Source, wav};
use ambitus_models::musicgen::config::{Config, delays};
use ambitus_models::{Batch, Capacity, Model};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FRAME: usize = 640;
/// Frames of a segment.
const SEGMENT: usize = 50;

fn config() -> Config {
    Config { vocab: 1024, delays: delays(2, 1), text_dim: 2, context: 4, ..Config::small() }
}

/// Numbers that follow from lengths and places. Other texts are the first words of a description, one, two and so on.
struct Toy {
    others: usize,
}

const TOY: Toy = Toy { others: 0 };

impl codes::Texts for Toy {
    fn prompt(&self, _: &str) -> Result<Vec<u32>, String> {
        Ok(Vec::new())
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.split(' ').map(|word| word.len() as u32).collect())
    }

    fn others(&self) -> usize {
        self.others
    }

    fn other(&self, entry: &Entry, number: usize) -> String {
        let words = entry.description.as_deref().unwrap_or_default().split(' ').take(number);
        words.collect::<Vec<_>>().join(" ")
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

impl codes::Encoder for Toy {
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String> {
        Ok(ids.iter().flat_map(|id| [*id as f32, 0.5]).collect())
    }

    fn width(&self) -> usize {
        2
    }
}

impl music::Codec for Toy {
    fn encode(&mut self, sound: &mut Sound<'_>) -> Result<Result<Vec<Vec<u32>>, String>, DataError> {
        let mut samples = 0;
        while let Some(piece) = sound()? {
            samples += piece.len();
        }
        let frames = samples.div_ceil(FRAME) as u32;
        Ok(Ok((0..2).map(|k| (0..frames).map(|t| (2 * t + k) % 1024).collect()).collect()))
    }

    fn fingerprint(&self) -> [u8; 32] {
        [2; 32]
    }
}

/// Prepares a long file with a text, a short one with one, and one without.
fn prepared(dir: &Path, toy: &Toy) -> Arc<ClipIndex> {
    for (name, seconds) in [("a", 8), ("b", 1), ("c", 2)] {
        let tone: Vec<f32> = (0..seconds * 16_000).map(|t| 0.3 * (t as f32 * 0.1).sin()).collect();
        wav::write_wav(&dir.join(format!("{name}.wav")), &tone, 32_000).unwrap();
    }
    std::fs::write(dir.join("a.txt"), "slow piano in rain").unwrap();
    std::fs::write(dir.join("b.txt"), "drums").unwrap();
    let rows = |counts: Counts| Ok(Rows { own: counts.frames + 1, context: counts.text });
    let none = |_: codes::Counts| Ok(Rows { own: 0, context: 0 });
    let frames = Frames { codebooks: 2, samples: FRAME };
    let music = MusicOptions {
        frames,
        channels: 1,
        pieces: Pieces::Whole,
        weighting: Weighting { by_weight: true, by_duration: true },
        longest: LONGEST,
        most_text: 9,
        rows: &rows,
        spec: "toy-v1",
    };
    let limits = Limits { max_seconds: SEGMENT as f64 / 50.0, min_seconds: 0.1, ..Limits::default() };
    let cache = dir.join("cache");
    let options = PrepareOptions {
        limits,
        policy: Policy::Skip,
        cache,
        threads: 1,
        rate: 32_000,
        edits: Default::default(),
    };
    let source = Source::read_music(dir, &options.cache, u64::MAX).unwrap();
    let states = CodesOptions {
        description: None,
        most_description: 9,
        draws: 0,
        frames,
        rows: &none,
        spec: "toy-v1",
    };
    prepare_states(&source, toy, (&mut { TOY }, &[3; 32]), &states, &options, &|_| true).unwrap();
    prepare_music(&source, toy, (&mut { TOY }, [3; 32]), &music, &options, &|_| true).unwrap().index
}

fn ints(batch: &Batch, name: &str) -> Vec<i32> {
    batch.ints().find(|(input, _)| *input == name).unwrap().1.to_vec()
}

#[test]
fn a_batch_holds_segments_and_their_texts() {
    let dir = tempfile::tempdir().unwrap();
    let index = prepared(dir.path(), &TOY);
    let names: Vec<&str> = (0..3).map(|i| index.name(i)).collect();
    assert!(names[0].starts_with('a') && names[2].starts_with('c'), "{names:?}");
    let cfg = config();
    let with = |share| Keys { condition_dropout: share, ..Keys::default() };
    let clips = MusicClips::new(index.clone(), &[0, 1, 2], 7, (cfg.clone(), with(0.0)));
    assert_eq!((clips.rows(), clips.context()), (&[51, 26, 51][..], 4));
    // Their seconds, of those that are chosen.
    assert_eq!(clips.weights(), [4.0, 0.5, 1.0]);
    let some = MusicClips::new(index.clone(), &[2, 0], 7, (cfg.clone(), with(0.0)));
    assert_eq!(some.weights(), [1.0, 4.0]);
    let norms = clips.norms(&[0, 1].map(|clip| Use { clip, when: When::Epoch(0) })).unwrap();
    assert_eq!(norms[1], ("norm.1".to_owned(), 1.0 / (2.0 * 73.0)));

    let cap = Capacity { rows: 130, clips: 3 };
    let mut batch = (&cfg as &dyn Model).batch(cap);
    let fill = |clips: &MusicClips, batch: &mut Batch, when| {
        let uses = [0, 1, 2].map(|clip| Use { clip, when });
        clips.fill(&uses, batch).unwrap();
    };
    let mut starts = Vec::new();
    for epoch in 0..20 {
        fill(&clips, &mut batch, When::Epoch(epoch));
        assert_eq!(ints(&batch, "context"), [0, 4, 5, 5]);
        assert_eq!(ints(&batch, "segments"), [0, 51, 77, 128]);
        // The first code of the second codebook is scored a step later.
        let (first, second) = (ints(&batch, "labels.0"), ints(&batch, "labels.1"));
        assert_eq!(first[0] + 1, second[1]);
        assert_eq!(first[49] - first[0], 98);
        starts.push(first[0] / 2);
        // A file that is shorter than a segment is read whole.
        assert_eq!(first[51], 0);
    }
    let long = load_music_clip(&index.path(0)).unwrap().frames() as i32;
    assert!(starts.iter().all(|s| (0..=long - SEGMENT as i32).contains(s)), "{starts:?}");
    starts.sort_unstable();
    starts.dedup();
    assert!(starts.len() > 10, "{starts:?}");
    // The same use anywhere, and in validations always the beginning.
    let alone = |when| {
        let mut batch = (&cfg as &dyn Model).batch(cap);
        clips.fill(&[Use { clip: 0, when }], &mut batch).unwrap();
        ints(&batch, "labels.0")[..51].to_vec()
    };
    fill(&clips, &mut batch, When::Epoch(3));
    assert_eq!(alone(When::Epoch(3)), ints(&batch, "labels.0")[..51]);
    assert_eq!(alone(When::Round(0))[0], 0);

    // Texts are dropped as often as is asked for, in validations never.
    let dropped = |share| {
        let clips = MusicClips::new(index.clone(), &[0], 7, (cfg.clone(), with(share)));
        let mut batch = (&cfg as &dyn Model).batch(cap);
        let drops = (0..400).filter(|epoch| {
            clips.fill(&[Use { clip: 0, when: When::Epoch(*epoch) }], &mut batch).unwrap();
            ints(&batch, "context")[1] == 0
        });
        let n = drops.count();
        clips.fill(&[Use { clip: 0, when: When::Round(0) }], &mut batch).unwrap();
        assert_eq!(ints(&batch, "context")[1], 4);
        n
    };
    assert_eq!((dropped(0.0), dropped(1.0)), (0, 400));
    assert!((80..160).contains(&dropped(0.3)));
}

#[test]
fn a_use_has_one_of_the_texts_that_were_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let index = prepared(dir.path(), &Toy { others: 4 });
    let cfg = config();
    let keys = Keys { condition_dropout: 0.0, ..Keys::default() };
    let clips = MusicClips::new(index, &[0], 7, (cfg.clone(), keys));
    let mut batch = (&cfg as &dyn Model).batch(Capacity { rows: 60, clips: 1 });
    let mut words = |when| {
        clips.fill(&[Use { clip: 0, when }], &mut batch).unwrap();
        let n = ints(&batch, "context")[1] as usize;
        let states = batch.floats().find(|(input, _)| *input == "states").unwrap().1;
        (n, states[..2 * n].iter().step_by(2).map(|x| *x as usize).collect::<Vec<_>>())
    };
    let lengths = [4, 5, 2, 4];
    let mut counts = [0; 4];
    for epoch in 0..400 {
        let (n, read) = words(When::Epoch(epoch));
        assert_eq!(read, lengths[..n]);
        counts[n] += 1;
    }
    assert!(counts.iter().all(|n| (70..130).contains(n)), "{counts:?}");
    // A validation has the description.
    assert_eq!(words(When::Round(0)), (4, lengths.to_vec()));
}

#[test]
fn how_texts_are_drawn_is_checked() {
    let read = |text: &str| serde_json::from_str::<Keys>(text).expect("its form").checked();
    let drawn = |text: &str| read(text).expect("keys").drawn();
    assert_eq!(drawn("{}").count, 0);
    let of = drawn(r#"{"texts": 3}"#);
    let shares = (of.word_dropout, of.merge, of.drop_description, of.keep_metadata);
    assert_eq!((of.count, shares), (3, (0.3, 0.25, 0.5, 0.5)));
    let of = drawn(r#"{"word_dropout": 0.2}"#);
    assert_eq!((of.count, of.word_dropout), (8, 0.2));
    for (text, part) in [
        (r#"{"texts": 65}"#, "65 is more than 64"),
        (r#"{"merge_metadata": -0.1}"#, "musicgen.merge_metadata: -0.1 is not in 0..=1"),
    ] {
        let why = read(text).expect_err(text);
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn what_is_encoded_is_checked() {
    let read = |text: &str| serde_json::from_str::<Keys>(text).expect("its form").checked();
    let pieces = |text: &str| read(text).expect("keys").pieces(7);
    assert_eq!(pieces("{}"), Pieces::Whole);
    assert_eq!(pieces(r#"{"codes": "segment"}"#), Pieces::Drawn { count: 8, seed: 7 });
    assert_eq!(pieces(r#"{"codes": "segment", "segments": 3}"#), Pieces::Drawn { count: 3, seed: 7 });
    for (text, words) in [
        (r#"{"segments": 3}"#, "musicgen.segments: says something with `codes: segment` alone"),
        (r#"{"codes": "segment", "segments": 65}"#, "musicgen.segments: 65 is more than 64"),
        (r#"{"condition_dropout": 1.5}"#, "musicgen.condition_dropout: 1.5"),
    ] {
        assert!(read(text).expect_err(words).starts_with(words), "{text}");
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/musicgen/fixtures").join(name)
}

fn open(dir: &Path) -> Result<ModelDir, RunError> {
    ModelDir::open(crate::ALL, dir, OpenOptions::default())
}

#[test]
fn a_melody_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for named in [
        "\"architectures\": [\"MusicgenMelodyForConditionalGeneration\"]",
        "\"model_type\": \"musicgen_melody\"",
    ] {
        std::fs::write(dir.path().join("config.json"), format!("{{{named}}}")).unwrap();
        let why = open(dir.path()).err().unwrap();
        assert!(why.exit_code() == 4 && why.to_string().contains("melody models are not supported"), "{why}");
    }
}

/// A text needs T5 beside audiocraft's checkpoint, codes alone do not.
#[test]
fn an_encoder_is_needed_for_texts_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("packed").join("state_dict.bin"), dir.path().join("state_dict.bin")).unwrap();
    let model = open(dir.path()).unwrap();
    let spare = Spare { threads: 1, bytes: u64::MAX };
    let why = model.opened.recorded(&fixture("packed").join("batch.safetensors"), spare).err().unwrap();
    assert!(why.exit_code() == 4 && why.to_string().contains("t5: is missing"), "{why}");
    let batch = dir.path().join("batch.safetensors");
    let specs = [("clips.0.codes", vec![3, 2]), ("clips.0.text_ids", vec![0])];
    let specs =
        specs.map(|(name, shape)| ambitus_store::TensorSpec::new(name, ambitus_store::DType::I64, &shape));
    let mut file =
        ambitus_store::SafetensorsWriter::create(&batch, specs.to_vec(), &Default::default()).unwrap();
    file.write_i64("clips.0.codes", &[1; 6]).unwrap();
    file.write_i64("clips.0.text_ids", &[]).unwrap();
    file.finish().unwrap();
    let clips = model.opened.recorded(&batch, spare).unwrap();
    assert_eq!((clips.rows(), clips.context()), (&[3][..], 0));
}
