//! Music as codes beside what is told of it: lists of audiocraft and folders, and the pass, with a toy codec that remembers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ambitus_data::codes::{CodesOptions, Encoder, Frames, Rows, Texts, prepare_states};
use ambitus_data::music::{
    Codec, Counts, LONGEST, MusicClip, MusicOptions, Pieces, Sound, Weighting, load_music_clip, longest_file,
    music_lengths, prepare_music,
};
use ambitus_data::prepare::Verdict;
use ambitus_data::sources::Entry;
use ambitus_data::{DataError, Limits, Policy, PrepareOptions, Prepared, SoundWriter, Source, wav};

const RATE: u32 = 8_000;
const FRAME: usize = 80;
const BOOKS: usize = 2;

/// A code is what the frame's samples and all before them say.
#[derive(Default)]
struct Remembers {
    calls: usize,
    /// Samples of the longest piece that was given.
    longest: usize,
}

/// Returns the codes of a channel.
fn coded(samples: &[f32]) -> Vec<Vec<u32>> {
    let mut memory = 0i64;
    let mut codes = vec![Vec::new(); BOOKS];
    for frame in samples.chunks(FRAME) {
        memory = memory / 2 + frame.iter().map(|x| (x * 3000.0) as i64).sum::<i64>();
        codes.iter_mut().enumerate().for_each(|(k, c)| c.push((memory >> (3 * k)).rem_euclid(1000) as u32));
    }
    codes
}

impl Codec for Remembers {
    fn encode(&mut self, sound: &mut Sound<'_>) -> Result<Result<Vec<Vec<u32>>, String>, DataError> {
        self.calls += 1;
        let mut all = Vec::new();
        while let Some(piece) = sound()? {
            self.longest = self.longest.max(piece.len());
            all.extend(piece);
        }
        Ok(Ok(coded(&all)))
    }

    fn fingerprint(&self) -> [u8; 32] {
        [3; 32]
    }
}

/// Ids are the lengths of words. Other texts are the description backwards, and the metadata.
struct Words {
    others: usize,
}

const WORDS: Words = Words { others: 0 };

impl Texts for Words {
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
        let description = entry.description.as_deref().unwrap_or_default();
        let words: Vec<&str> = match number {
            0 => description.split(' ').rev().collect(),
            _ => entry.fields.iter().map(|(_, value)| value.as_str()).collect(),
        };
        words.join(" ")
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

/// States are ids.
struct Ids;

impl Encoder for Ids {
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String> {
        Ok(ids.iter().map(|id| *id as f32).collect())
    }

    fn width(&self) -> usize {
        1
    }
}

fn rows(counts: Counts) -> Result<Rows, String> {
    Ok(Rows { own: counts.frames + 1, context: counts.text })
}

fn music(channels: usize, pieces: Pieces) -> MusicOptions<'static> {
    let frames = Frames { codebooks: BOOKS * channels, samples: FRAME };
    MusicOptions {
        frames,
        channels,
        pieces,
        weighting: Weighting::default(),
        longest: LONGEST,
        most_text: 20,
        rows: &rows,
        spec: "test",
    }
}

/// Segments of two seconds: 200 frames.
fn options(cache: &Path) -> PrepareOptions {
    let limits = Limits { min_seconds: 0.5, max_seconds: 2.0, min_chars: 1 };
    let (cache, edits) = (cache.to_owned(), Default::default());
    PrepareOptions { limits, policy: Policy::Skip, cache, threads: 2, rate: RATE, edits }
}

fn tone(samples: usize, step: usize) -> Vec<f32> {
    (0..samples)
        .map(|t| 0.4 * (t as f32 * 0.01 * step as f32).sin() + (t * step % 1009) as f32 / 5000.0)
        .collect()
}

struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Folder {
        Folder { dir: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("data").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path("")).expect("a folder");
        std::fs::write(self.path(name), text).expect("writes");
    }

    fn sound(&self, name: &str, seconds: f64, step: usize) {
        wav::write_wav(&self.path(name), &tone((seconds * f64::from(RATE)) as usize, step), RATE)
            .expect("writes");
    }

    fn stereo(&self, name: &str, left: &[f32], right: &[f32]) {
        let mut file = SoundWriter::create(&self.path(name), RATE, 2).expect("a file");
        file.push(&left.iter().zip(right).flat_map(|(l, r)| [*l, *r]).collect::<Vec<_>>()).expect("writes");
        file.finish().expect("ends");
    }

    fn source(&self, name: &str) -> Source {
        Source::read_music(&self.path(name), &self.dir.path().join("scratch"), 1 << 20).expect("is read")
    }

    fn prepared(&self, music: &MusicOptions<'_>) -> (Result<Prepared, DataError>, Remembers) {
        let (mut codec, source) = (Remembers::default(), self.source(""));
        let options = options(&self.dir.path().join("cache"));
        let made = prepare_music(&source, &WORDS, (&mut codec, [5; 32]), music, &options, &|_| true);
        (made, codec)
    }

    /// Returns the samples of a file as they are read.
    fn read(&self, name: &str) -> Vec<f32> {
        ambitus_data::audio::load(&self.path(name), RATE, 1e4).expect("reads")
    }
}

fn clips(prepared: &Prepared) -> Vec<(String, MusicClip)> {
    let index = &prepared.index;
    let open = |i: usize| (index.name(i).to_owned(), load_music_clip(&index.path(i)).expect("loads"));
    (0..index.len()).map(open).collect()
}

/// Returns all codes of a file by codebook.
fn all(clip: &MusicClip) -> Vec<Vec<u32>> {
    let codes = clip.codes(0..clip.frames()).expect("reads");
    codes.chunks(clip.frames()).map(<[u32]>::to_vec).collect()
}

#[test]
fn lists_of_audiocraft_are_read_plain_and_compressed() {
    let folder = Folder::new();
    folder.write(
        "a.json",
        r#"{"description": "A slow song", "bpm": 90, "genre": "Jazz", "moods": ["Calm"], "title": "t"}"#,
    );
    folder.write("b.json", r#"{"description": "None", "key": "C"}"#);
    folder.write("broken.json", "{");
    folder.write("long.json", &format!(r#"{{"genre": "{}"}}"#, "a".repeat(5000)));
    for name in ["a.wav", "b.wav", "c.wav", "d.wav", "broken.wav", "long.wav"] {
        folder.sound(name, 1.0, 3);
    }
    let absolute = folder.path("b.wav").display().to_string();
    let list = format!(
        "{{\"path\": \"a.wav\", \"duration\": 1.0, \"sample_rate\": 8000, \"amplitude\": null, \"weight\": 2.5, \"info_path\": null}}\n\
         {{\"path\": \"{absolute}\", \"duration\": 1.0, \"sample_rate\": 8000, \"weight\": null}}\n\
         {{\"path\": \"c.wav\", \"duration\": 1.0, \"sample_rate\": 8000}}\n\
         {{\"path\": \"d.wav\", \"weight\": 0}}\n{{\"path\": \"e.wav\", \"weight\": -1}}\n{{\"path\": \"broken.wav\"}}\n{{\"path\": \"long.wav\"}}\n{{\"path\": \"f.wav\"}}\n"
    );
    folder.write("data.jsonl", &list);
    let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut compressed, list.as_bytes()).expect("compresses");
    std::fs::write(folder.path("data.jsonl.gz"), compressed.finish().expect("compresses")).expect("writes");
    // Without the plain list the folder's other one is read.
    for (name, alone) in [("", false), ("data.jsonl", false), ("data.jsonl.gz", false), ("", true)] {
        if alone {
            std::fs::remove_file(folder.path("data.jsonl")).expect("removes");
        }
        let source = folder.source(name);
        let entries: Vec<_> = source.entries().map(|e| e.expect("an entry")).collect();
        assert_eq!(entries.iter().map(|e| e.weight).collect::<Vec<_>>(), [1.0, 2.5, 1.0], "{name}");
        let by = |name: &str| entries.iter().find(|e| e.name.ends_with(name)).expect("is there");
        let a = by("a.wav");
        assert_eq!(a.description.as_deref(), Some("A slow song"));
        let fields: Vec<_> = a.fields.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(fields, [("bpm", "90.0"), ("genre", "jazz"), ("moods", "calm")]);
        assert_eq!((by("b.wav").description.clone(), by("b.wav").fields.len()), (None, 1));
        assert_eq!((by("c.wav").description.clone(), by("c.wav").fields.len()), (None, 0));
        let said = source.problems.describe().join("\n");
        for words in [
            "d.wav",
            "its weight is 0",
            "weight: -1 is no number above 0",
            "broken.json",
            "`genre` of 5000 bytes; at most 4096 are read",
            "no such audio file",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}

#[test]
fn folders_have_texts_json_or_neither() {
    let folder = Folder::new();
    folder.write("a.txt", "a text\n");
    folder.write("b.json", r#"{"description": "of JSON"}"#);
    folder.write("b.txt", "of the text");
    for name in ["a.wav", "b.wav", "c.wav"] {
        folder.sound(name, 1.0, 3);
    }
    let source = folder.source("");
    let told: Vec<_> = source.entries().map(|e| e.expect("an entry").description).collect();
    assert_eq!(told, [Some("a text".to_owned()), Some("of JSON".to_owned()), None]);
    // Other models need a text.
    let other = Source::read(&folder.path(""), &folder.dir.path().join("scratch"), 1 << 20).expect("is read");
    assert_eq!(other.len(), 2);
}

/// Files of any length, in pieces, once; damaged ones again.
#[test]
fn codes_are_of_whole_files_and_are_made_once() {
    let folder = Folder::new();
    folder.write("a.txt", "two words");
    folder.sound("a.wav", 61.3, 3);
    folder.sound("b.wav", 1.01, 5);
    folder.sound("short.wav", 0.3, 5);
    wav::write_wav(&folder.path("silent.wav"), &[0.0; 9000], RATE).expect("writes");
    let music = music(1, Pieces::Whole);
    let (made, codec) = folder.prepared(&music);
    let prepared = made.expect("is prepared");
    // Nobody held a file.
    assert!(codec.longest < 2 * RATE as usize, "{}", codec.longest);
    let clips = clips(&prepared);
    assert_eq!(clips.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a.wav", "b.wav"]);
    for (name, clip) in &clips {
        assert_eq!(all(clip), coded(&folder.read(name)), "{name}");
    }
    // A use has at most the frames of a segment.
    assert_eq!(prepared.index.frames(), [201, 102]);
    assert_eq!((prepared.index.context(), clips[0].1.kept.plain), (2, 2));
    assert!(clips[0].1.kept.others.is_empty());
    let said = prepared.outcomes.describe().join("\n");
    assert!(said.contains("0.30 s, shorter than 0.5 s") && said.contains("nothing to hear in it"), "{said}");

    let (again, codec) = folder.prepared(&music);
    assert_eq!(
        (again.expect("is prepared").index, codec.calls),
        (prepared.index.clone(), 2),
        "what has no codes is looked at again"
    );
    let path = prepared.index.path(0);
    let mut bytes = std::fs::read(&path).expect("reads");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&path, bytes).expect("writes");
    let (again, codec) = folder.prepared(&music);
    assert_eq!((again.expect("is prepared").index, codec.calls), (prepared.index.clone(), 3));
    assert_eq!(all(&load_music_clip(&path).expect("loads")), coded(&folder.read("a.wav")));

    let options = options(&folder.dir.path().join("cache"));
    let lengths = music_lengths(&folder.source(""), &WORDS, &music, &options, &|_| true).expect("measures");
    // Silence is found where it is encoded.
    assert_eq!(lengths.index.frames(), [201, 102, 114]);
}

/// What is held of a file is bounded by the longest one, and no file is longer than was bounded.
#[test]
fn the_longest_file_bounds_what_is_held() {
    let folder = Folder::new();
    folder.write("short.txt", "a text");
    folder.sound("short.wav", 1.0, 3);
    folder.sound("long.wav", 30.0, 3);
    let options = options(&folder.dir.path().join("cache"));
    let longest = longest_file(&folder.source(""), &options, &|_| true).expect("is read");
    assert!((30.0..32.0).contains(&longest), "{longest}");
    let bound = |longest| MusicOptions { longest, ..music(1, Pieces::Whole) }.fixed_bound(&options);
    assert!(bound(longest) < bound(LONGEST), "{} {}", bound(longest), bound(LONGEST));
    let (made, _) = folder.prepared(&MusicOptions { longest, ..music(1, Pieces::Whole) });
    assert_eq!(made.expect("is made").index.len(), 2);
    std::fs::remove_dir_all(folder.dir.path().join("cache")).expect("removes");
    let (made, _) = folder.prepared(&MusicOptions { longest: 10.0, ..music(1, Pieces::Whole) });
    let made = made.expect("is made");
    let said = made.outcomes.describe().join("\n");
    assert!(
        made.index.len() == 1 && said.contains("long.wav") && said.contains("than its header says"),
        "{said}"
    );
    folder.write("stream.ogg", "no audio");
    assert!(longest_file(&folder.source(""), &options, &|_| true).expect("is read") < LONGEST);
    assert!(matches!(longest_file(&folder.source(""), &options, &|_| false), Err(DataError::Stopped)));
}

#[test]
fn channels_are_coded_apart() {
    let folder = Folder::new();
    folder.write("mono.txt", "a");
    folder.sound("mono.wav", 1.5, 7);
    let (left, right) = (tone(12_345, 3), tone(12_345, 11));
    folder.stereo("both.wav", &left, &right);
    for (name, channel) in [("left.wav", &left), ("right.wav", &right)] {
        wav::write_wav(&folder.dir.path().join(name), channel, RATE).expect("writes");
    }
    let (made, _) = folder.prepared(&music(2, Pieces::Whole));
    let clips = clips(&made.expect("is prepared"));
    let alone = |path: PathBuf| coded(&ambitus_data::audio::load(&path, RATE, 1e4).expect("reads"));
    let (left, right) =
        (alone(folder.dir.path().join("left.wav")), alone(folder.dir.path().join("right.wav")));
    assert_eq!(all(&clips[0].1), [left[0].clone(), right[0].clone(), left[1].clone(), right[1].clone()]);
    let mono = alone(folder.path("mono.wav"));
    assert_eq!(all(&clips[1].1), [mono[0].clone(), mono[0].clone(), mono[1].clone(), mono[1].clone()]);
}

/// What is in one channel alone is music, whichever that is, and its segments are those of both.
#[test]
fn one_channel_may_be_silent() {
    let folder = Folder::new();
    let (sound, silence) = (tone(30 * RATE as usize, 3), vec![0.0; 30 * RATE as usize]);
    folder.write("left.txt", "a");
    folder.stereo("left.wav", &sound, &silence);
    folder.stereo("none.wav", &silence, &silence);
    folder.stereo("right.wav", &silence, &sound);
    for pieces in [Pieces::Whole, Pieces::Drawn { count: 2, seed: 1 }] {
        let (made, _) = folder.prepared(&music(2, pieces));
        let clips = clips(&made.expect("is prepared"));
        assert_eq!(
            clips.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["left.wav", "right.wav"]
        );
        let (left, right) = (all(&clips[0].1), all(&clips[1].1));
        // Of each codebook the left channel's codes come first.
        assert!(left[1].iter().chain(&right[0]).all(|code| *code == 0), "{pieces:?}");
        assert!(left[0].iter().any(|code| *code != 0) && right[1].iter().any(|code| *code != 0));
    }
}

/// Segments that are drawn while preparing are heard alone, and are the same every time.
#[test]
fn drawn_segments_are_encoded_by_themselves() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    folder.sound("a.wav", 30.0, 3);
    folder.sound("b.wav", 1.01, 5);
    let drawn = |seed: u64| music(1, Pieces::Drawn { count: 3, seed });
    let (made, codec) = folder.prepared(&drawn(1));
    let first = clips(&made.expect("is prepared"));
    assert_eq!(codec.calls, 4);
    let (a, b) = (&first[0].1, &first[1].1);
    assert_eq!((a.frames(), b.frames()), (600, 101));
    assert_eq!(all(b), coded(&folder.read("b.wav")));
    let (samples, codes) = (folder.read("a.wav"), all(a));
    let starts: Vec<usize> = (0..3)
        .map(|piece| {
            let own: Vec<Vec<u32>> =
                codes.iter().map(|c| c[200 * piece..200 * (piece + 1)].to_vec()).collect();
            let fits = |at: &usize| coded(&samples[at * FRAME..(at + 200) * FRAME]) == own;
            (0..=2800).find(fits).expect("is a segment of the file, on the bounds of frames")
        })
        .collect();
    assert!(starts.windows(2).all(|s| s[0] != s[1]), "{starts:?}");
    // Each use reads one of them.
    assert!((0..50).all(|i| a.segment(200, Some([i, 1])).start % 200 == 0));

    let (again, codec) = folder.prepared(&drawn(1));
    assert_eq!((all(&clips(&again.expect("is prepared"))[0].1), codec.calls), (codes.clone(), 0));
    let (other, _) = folder.prepared(&drawn(2));
    assert_ne!(all(&clips(&other.expect("is prepared"))[0].1), codes);
}

/// Weights of lists, and lengths, are those of the index and of what a plan reads.
#[test]
fn files_have_weights() {
    let folder = Folder::new();
    folder.write(
        "data.jsonl",
        "{\"path\": \"a.wav\", \"weight\": 3.0}\n{\"path\": \"b.wav\"}\n{\"path\": \"c.wav\"}\n",
    );
    for (name, seconds) in [("a.wav", 1.0), ("b.wav", 4.0), ("c.wav", 2.0)] {
        folder.sound(name, seconds, 3);
    }
    let mut digests = Vec::new();
    for (by_weight, by_duration, want) in [
        (false, false, &[][..]),
        (true, false, &[3.0, 1.0, 1.0]),
        (false, true, &[1.0, 4.0, 2.0]),
        (true, true, &[3.0, 4.0, 2.0]),
    ] {
        let music =
            MusicOptions { weighting: Weighting { by_weight, by_duration }, ..music(1, Pieces::Whole) };
        let near = |found: &[f32]| {
            found.len() == want.len() && found.iter().zip(want).all(|(a, b)| (a - b).abs() < 0.01)
        };
        let prepared = folder.prepared(&music).0.expect("is prepared");
        assert!(near(prepared.index.weights()), "{:?}", prepared.index.weights());
        let read = ambitus_data::ClipIndex::load(&folder.dir.path().join("cache/index.json")).expect("reads");
        assert_eq!(read, *prepared.index);
        digests.push(read.digest());
        let options = options(&folder.dir.path().join("cache"));
        let lengths =
            music_lengths(&folder.source(""), &WORDS, &music, &options, &|_| true).expect("measures");
        assert!(near(lengths.index.weights()), "{:?}", lengths.index.weights());
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 4);
}

#[test]
fn a_pass_may_end_within_a_long_file() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    folder.sound("a.wav", 65.0, 3);
    let (calls, source) = (AtomicUsize::new(0), folder.source(""));
    let options = options(&folder.dir.path().join("cache"));
    let stop = |_: ambitus_data::prepare::Progress<'_>| calls.fetch_add(1, Ordering::Relaxed) < 2;
    let mut codec = Remembers::default();
    let made =
        prepare_music(&source, &WORDS, (&mut codec, [5; 32]), &music(1, Pieces::Whole), &options, &stop);
    assert!(matches!(made, Err(DataError::Stopped)), "{made:?}");
    // After 10, 20 and 30 seconds.
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    assert!(
        std::fs::read_dir(&options.cache).expect("lists").all(|f| f
            .expect("a file")
            .path()
            .extension()
            .is_none_or(|e| e != "music"))
    );
}

#[test]
fn texts_have_states_of_their_own() {
    let folder = Folder::new();
    folder.write("a.txt", "some quiet yes");
    folder.write("b.json", r#"{"genre": "rock", "moods": ["quiet"]}"#);
    folder.sound("a.wav", 1.0, 3);
    folder.sound("b.wav", 1.0, 3);
    let options = options(&folder.dir.path().join("cache"));
    let of_codes = CodesOptions {
        description: None,
        most_description: 20,
        draws: 0,
        frames: Frames { codebooks: BOOKS, samples: FRAME },
        rows: &|_| Err("is not asked for".to_owned()),
        spec: "test",
    };
    let texts = Words { others: 2 };
    prepare_states(&folder.source(""), &texts, (&mut Ids, &[5; 32]), &of_codes, &options, &|_| true)
        .expect("encodes");
    let (mut codec, source) = (Remembers::default(), folder.source(""));
    let music = music(1, Pieces::Whole);
    let prepared = prepare_music(&source, &texts, (&mut codec, [5; 32]), &music, &options, &|_| true);
    let prepared = prepared.expect("is prepared");
    let clips = clips(&prepared);
    let states = |clip: usize, other| clips[clip].1.states(prepared.index.folder(), other, 1).expect("loads");
    assert_eq!((states(0, None), states(0, Some(0))), (vec![4.0, 5.0, 3.0], vec![3.0, 5.0, 4.0]));
    let ids = |clip: usize| clips[clip].1.kept.others.iter().map(|other| other.ids).collect::<Vec<_>>();
    assert_eq!((ids(0), ids(1), clips[1].1.kept.plain), (vec![3, 0], vec![0, 2], 0));
    assert_eq!((states(1, Some(1)), prepared.index.context()), (vec![4.0, 5.0], 3));
    assert!(matches!(prepared.outcomes.odd.first().map(|o| &o.verdict), None | Some(Verdict::Ok { .. })));
}
