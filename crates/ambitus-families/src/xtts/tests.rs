//! From audio and texts to batches, with the small DVAE and the small vocabulary of `parity/`.

use super::folder::Folder;
use super::keys::Keys;
use crate::clips::{Use, When};
use crate::codec::Codec as _;
use crate::console::Silent;
use crate::dvae;
use crate::error::RunError;
use crate::family::Opened;
use crate::prepare::{Job, Made, What};
use ambitus_compile::passes::pattern::Pattern;
use ambitus_data::pieces::load_piece_clip;
use ambitus_data::{ClipIndex, Prepared, Verdict, mel, wav};
use ambitus_ir::{Session, StateKind};
use ambitus_models::xtts::config::Config;
use ambitus_models::{Batch, Capacity, Model};
use ambitus_recipe::recipe::Recipe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SECONDS: [(&str, f64); 2] = [("long", 7.0), ("short", 1.5)];

/// A folder with what preparing needs.
fn folder(dir: &Path, keys: Keys) -> Folder {
    let parity = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity");
    let model = dir.join("model");
    std::fs::create_dir_all(&model).unwrap();
    for (from, name) in [
        ("dvae/fixtures/small", "dvae.pth"),
        ("dvae/fixtures/small", "mel_stats.pth"),
        ("xtts_text/fixtures", "vocab.json"),
    ] {
        std::fs::copy(parity.join(from).join(name), model.join(name)).unwrap();
    }
    // Of codes that makes 195.
    let shaped = Folder::shaped(Config { code_positions: 200, ..Config::v2() });
    Folder { dir: model, keys, ..shaped }
}

fn data(dir: &Path) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let mut lines = "audio_file|text\n".to_owned();
    let others = [("brief", 0.4), ("codes", 9.2), ("foreign", 1.0), ("words", 1.0)];
    for (name, seconds) in SECONDS.into_iter().chain(others) {
        let n = (seconds * 24_000.0) as usize;
        let tone: Vec<f32> = (0..n).map(|t| 0.3 * (t as f32 * (0.02 + t as f32 * 1e-7)).sin()).collect();
        wav::write_wav(&data.join(format!("{name}.wav")), &tone, 24_000).unwrap();
        let text = match name {
            "foreign" => "A \u{1f600}.",
            "words" => &"Zq ".repeat(80),
            _ => "The bright 4 days.",
        };
        lines += &format!("{name}.wav|{text}\n");
    }
    std::fs::write(data.join("metadata.csv"), lines).unwrap();
    data
}

fn read(folder: &Folder, data: &Path, run: bool, budget: u64) -> Result<Made, RunError> {
    let mut recipe = Recipe::new(&folder.dir, data);
    recipe.data.cache = Some(data.with_file_name("cache"));
    let job =
        Job { recipe: &recipe, run, threads: 1, budget, on_card: false, process_bytes: [1 << 20, 1 << 16] };
    folder.preparer()?.read(&job, &mut Silent)
}

fn prepared(folder: &Folder, data: &Path) -> Prepared {
    match read(folder, data, true, 1 << 30).unwrap().what {
        What::Clips(prepared) => *prepared,
        What::Lengths(_, why) => panic!("{why}"),
    }
}

fn english() -> Keys {
    Keys { language: Some("en".to_owned()), ..Keys::default() }
}

#[test]
fn audio_becomes_codes_with_their_sound_and_what_is_left_out_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (folder(dir.path(), english()), data(dir.path()));
    let made = prepared(&folder, &data);
    assert_eq!(
        (0..made.index.len()).map(|i| made.index.name(i)).collect::<Vec<_>>(),
        ["long.wav", "short.wav"]
    );
    for (name, expected) in [
        ("brief.wav", "0.40 s, shorter than 0.5 s"),
        ("codes.wav", "has 199 codes, more than the 195 of the model"),
        ("foreign.wav", "the text has characters that vocab.json does not have"),
        ("words.wav", "tokens of text, more than the 200 that the project trains on"),
    ] {
        let mut all = made.outcomes.iter().map(Result::unwrap);
        match all.find(|outcome| outcome.name == name).unwrap().verdict {
            Verdict::Ok { .. } => panic!("{name} is used"),
            Verdict::Bad { reason, .. } | Verdict::Outside { reason } => {
                assert!(reason.contains(expected), "{name}: {reason}");
            }
        }
    }
    let mut codec = dvae::Codec::open(&folder.dir, 1).unwrap();
    let texts = super::text::Texts::read(&folder.dir, u64::MAX, false).unwrap();
    for (i, (name, seconds)) in SECONDS.into_iter().enumerate() {
        let sound = ambitus_data::audio::load(&data.join(format!("{name}.wav")), 22_050, 30.0).unwrap();
        assert_eq!(sound.len(), (seconds * 22_050.0) as usize);
        let clip = load_piece_clip(&made.index.path(i)).unwrap();
        assert!(clip.sound(0..sound.len()).eq(sound.iter().copied()));
        assert_eq!(clip.codes(), codec.encode_clip(&sound).unwrap());
        assert_eq!(clip.text(), texts.encode("The bright 4 days.", "en").unwrap());
        assert_eq!(clip.codes().len(), sound.len().div_ceil(1024));
        let rows = folder.config.rows_of(clip.text().len(), clip.codes().len());
        assert_eq!(made.index.frames()[i] as usize, rows);
    }
    // From the cache, and measured where nothing is made.
    assert_eq!(prepared(&folder, &data).summary.cached, 2);
    codec.close();
    let lengths = |folder: &Folder, budget| match read(folder, &data, false, budget).unwrap().what {
        What::Lengths(lengths, why) => (lengths.index.frames().to_vec(), why),
        What::Clips(_) => panic!("made"),
    };
    let needed = read(&folder, &data, true, 1 << 30).unwrap().prepare_bytes;
    let (rows, why) = lengths(&folder, needed - 1);
    assert_eq!(rows, made.index.frames());
    assert!(why.contains("preparing the data (6 clips"), "{why}");
    std::fs::remove_file(folder.dir.join("dvae.pth")).unwrap();
    let (rows, why) = lengths(&folder, 1 << 30);
    assert!(why.contains("has no dvae.pth") && rows.len() == 4, "{why} {rows:?}");
    let missing = read(&folder, &data, true, 1 << 30).err().unwrap().to_string();
    assert!(missing.contains("has no dvae.pth; training makes"), "{missing}");
}

#[test]
fn the_language_is_the_recipes_or_the_data_sets() {
    let dir = tempfile::tempdir().unwrap();
    let (mut folder, data) = (folder(dir.path(), Keys::default()), data(dir.path()));
    let said = |folder: &Folder| read(folder, &data, true, 1 << 30).err().expect("refused").to_string();
    assert!(said(&folder).contains("xtts.language: is missing"), "{}", said(&folder));
    folder.keys.language = Some("ko".to_owned());
    assert!(said(&folder).contains("xtts.language: Korean is written in Latin letters"), "{}", said(&folder));
    folder.keys.language = Some("fi".to_owned());
    assert!(said(&folder).contains("`fi` is none of the model's"), "{}", said(&folder));
    folder.keys.language = None;
    std::fs::write(data.join("lang.txt"), "en\n").unwrap();
    let ours = prepared(&folder, &data).index.digest();
    folder.keys = english();
    assert_eq!(prepared(&folder, &data).summary.cached, 2);
    // Texts that are taken as they are, or in another language, are other clips.
    for keys in [Keys { cleaned: true, ..english() }, Keys { language: Some("fr".to_owned()), ..english() }] {
        folder.keys = keys;
        let lines = "audio_file|text\nlong.wav|the bright days.\nshort.wav|it [STOP] here.\n";
        std::fs::write(data.join("metadata.csv"), lines).unwrap();
        let made = prepared(&folder, &data);
        // Of texts that are cleaned here, nothing ends one.
        let last = made.outcomes.iter().last().unwrap().unwrap().to_string();
        assert_eq!(last.contains("the text has [STOP], which ends a text"), folder.keys.cleaned, "{last}");
        assert_eq!((made.summary.cached, made.index.len()), (0, if folder.keys.cleaned { 1 } else { 2 }));
        assert_ne!(made.index.digest(), ours);
    }
}

fn used(clip: usize, when: When) -> Use {
    Use { clip, when }
}

fn float(batch: &Batch, name: &str) -> Vec<f32> {
    batch.floats().find(|(input, _)| *input == name).unwrap().1.to_vec()
}

fn int(batch: &Batch, name: &str) -> Vec<i32> {
    batch.ints().find(|(input, _)| *input == name).unwrap().1.to_vec()
}

#[test]
fn a_batch_holds_a_piece_of_each_clip_and_does_not_score_its_codes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut folder, data) = (folder(dir.path(), english()), data(dir.path()));
    let index: Arc<ClipIndex> = prepared(&folder, &data).index;
    let clips = folder.clips(index.clone(), &[1, 0], 7);
    assert_eq!(clips.rows(), [index.frames()[1], index.frames()[0]]);
    let mut batch = (&folder.config as &dyn Model).batch(Capacity { rows: 500, clips: 2 });
    let uses = [used(0, When::Round(0)), used(1, When::Round(0))];

    // A validation: from the begin, half of the shorter, and all is scored.
    clips.fill(&uses, &mut batch).unwrap();
    let mels = float(&batch, "mel");
    assert_eq!(mels.len(), 2 * 517 * 80);
    let scale = dvae::statistics(&folder.dir.join("mel_stats.pth"), 80).unwrap();
    let files = [1, 0].map(|i| load_piece_clip(&index.path(i)).unwrap());
    for ((clip, samples), mel) in files.iter().zip([33_075 / 2, 99_225]).zip(mels.chunks(517 * 80)) {
        let mut sound: Vec<f32> = clip.sound(0..samples).collect();
        sound.resize(132_300, 0.0);
        assert!(mel == mel::rows(&super::conditioning::FRONT, Some(&scale), &sound).unwrap());
    }
    let of = |norms: Vec<(String, f32)>| norms.into_iter().map(|(_, x)| (1.0 / x).round() as usize);
    let counts = files.each_ref().map(|clip| clip.counts());
    let text: usize = counts.iter().map(|c| c.text + 1).sum();
    let codes: usize = counts.iter().map(|c| c.codes + 4).sum();
    assert!(of(clips.norms(&uses).unwrap()).eq([text, codes]));
    assert_eq!(int(&batch, "keys"), [0; 4]);
    let scored = |batch: &Batch| int(batch, "code_labels").iter().filter(|id| **id >= 0).count();
    assert_eq!(scored(&batch), codes);

    // Training: pieces of clip, seed and epoch, wherever in a batch; what they cover is not scored.
    let uses = [used(0, When::Epoch(0)), used(1, When::Epoch(0))];
    clips.fill(&uses, &mut batch).unwrap();
    let (first, keys) = (float(&batch, "mel"), int(&batch, "keys"));
    assert!(first[..100] != mels[..100] && first[517 * 80..] != mels[517 * 80..]);
    assert!(of(clips.norms(&uses).unwrap()).eq([text, scored(&batch)]));
    let least = [33_075 / 2 / 1024, 66_150 / 1024];
    assert!(scored(&batch) <= codes - least[0] - least[1] && scored(&batch) > 8);
    clips.fill(&[used(1, When::Epoch(0)), used(1, When::Epoch(1))], &mut batch).unwrap();
    let again = float(&batch, "mel");
    assert!(again[..517 * 80] == first[517 * 80..] && again[517 * 80..] != first[517 * 80..]);
    assert_eq!(int(&batch, "keys")[..2], keys[2..]);
    let other = folder.clips(index.clone(), &[1, 0], 8);
    other.fill(&uses, &mut batch).unwrap();
    assert_ne!(int(&batch, "keys"), keys);
    // Unless the recipe says otherwise.
    folder.keys.mask_prompt = false;
    let all = folder.clips(index.clone(), &[1, 0], 7);
    all.fill(&uses, &mut batch).unwrap();
    assert!(scored(&batch) == codes && float(&batch, "mel") == first);

    // Another clip in a clip's place.
    std::fs::copy(index.path(0), index.path(1)).unwrap();
    let said = clips.norms(&uses).unwrap_err().to_string();
    assert!(said.contains("is not the clip of index.json"), "{said}");
}

/// The trainer's two groups of the published size, as counted from its own class.
#[test]
fn weight_decay_leaves_out_what_the_project_does() {
    let opened = super::Xtts::shaped(Config::v2());
    let patterns: Vec<Pattern> = opened.defaults().no_decay.iter().map(Pattern::new).collect();
    let mut session = Session::default();
    opened.model.loss(&mut session, 0, Capacity { rows: 64, clips: 1 }, "micro", true);
    let of = |decays: bool| {
        let all = session.states.iter().filter(|s| s.kind == StateKind::Parameter);
        let group = all.filter(|s| patterns.iter().any(|p| p.matches(&s.name)) != decays);
        group.fold((0, 0), |(n, sum), s| (n + 1, sum + s.ty.shape.elements()))
    };
    assert_eq!((of(true), of(false)), ((147, 431_628_288), (279, 9_390_275)));
}
