//! Recordings of a real voice with known pauses, cut to clips.

use std::path::{Path, PathBuf};

use ambitus_data::cut::{Clips, Limits, Note, Options, cut, recordings};
use ambitus_data::{DataError, Source};

const RATE: usize = 22_050;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Samples of 0.8 s of speech without a pause.
fn speech() -> Vec<i16> {
    let bytes = std::fs::read(fixture("speech_22k_mono.wav")).expect("fixture");
    bytes[44..].chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect()
}

/// Writes sentences, by how often the voice says its 0.8 s in each, with the seconds of faint noise after them; returns where they are.
fn talk(path: &Path, sentences: &[(usize, f64)]) -> Vec<(f64, f64)> {
    let (voice, mut state) = (speech(), 1u32);
    let mut noise = |seconds: f64| -> Vec<i16> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28) as i16 - 8
        };
        (0..(seconds * RATE as f64) as usize).map(|_| next()).collect()
    };
    let mut samples = noise(0.6);
    let mut spans = Vec::new();
    for &(times, pause) in sentences {
        let begin = samples.len();
        (0..times).for_each(|_| samples.extend(&voice));
        spans.push((begin as f64 / RATE as f64, samples.len() as f64 / RATE as f64));
        samples.extend(noise(pause));
    }
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: RATE as u32,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    samples.iter().for_each(|&x| writer.write_sample(x).expect("written"));
    writer.finalize().expect("finished");
    spans
}

fn cut_all(given: &[PathBuf], out: &Path, limits: Limits, threads: usize) -> Result<Clips, DataError> {
    let all = recordings(given, None)?;
    cut(&all, out, &Options { limits, threads, progress: &|_, _, _| true })
}

fn samples(path: &Path) -> Vec<i16> {
    hound::WavReader::open(path).expect("a wav").samples().map(|x| x.expect("a sample")).collect()
}

/// Every file of a folder with its bytes.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for item in std::fs::read_dir(folder).expect("a folder") {
        let path = item.expect("an item").path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), std::fs::read(&path).expect("a file")));
        }
    }
    all.sort();
    all
}

#[test]
fn clips_hold_whole_sentences_and_nothing_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let (a, b) = (dir.path().join("a.wav"), dir.path().join("b.wav"));
    let spans = talk(&a, &[(4, 0.7), (5, 1.2), (3, 0.5), (6, 0.9)]);
    talk(&b, &[(1, 0.6), (4, 0.6)]);
    let before = contents(dir.path());
    let given = [a.clone(), b.clone()];
    let out = dir.path().join("out");
    let clips = cut_all(&given, &out, Limits::USUAL, 1).expect("cut");
    assert!(clips.left.is_empty(), "{:?}", clips.left);
    let source = samples(&a);
    let mut said = 0;
    let mut ended = 0.0;
    for clip in clips.cuts.iter().filter(|clip| clip.source == a) {
        assert!(clip.start >= ended && clip.end > clip.start && clip.note.is_none());
        for edge in [clip.start, clip.end] {
            assert!(
                spans.iter().all(|&(from, to)| edge < from + 0.03 || edge > to - 0.03),
                "{edge} of {spans:?}"
            );
        }
        said += spans.iter().filter(|(from, to)| clip.start <= *from && clip.end >= *to).count();
        ended = clip.end;
        let held = samples(&out.join(&clip.file));
        let from = (clip.start * RATE as f64).round() as usize;
        assert_eq!(held.len(), ((clip.end - clip.start) * RATE as f64).round() as usize);
        assert!(held.iter().zip(&source[from..]).all(|(x, y)| (x - y).abs() <= 1));
    }
    assert_eq!(said, spans.len(), "{:?}", clips.cuts);
    // Short ones are joined, and whatever works on them, the same comes out.
    assert!(clips.cuts.iter().all(|clip| clip.end - clip.start >= 2.0));
    let other = dir.path().join("other");
    assert_eq!(cut_all(&given, &other, Limits::USUAL, 3).expect("cut").cuts, clips.cuts);
    let named = |folder: &Path| -> Vec<_> {
        let all = contents(folder).into_iter();
        all.map(|(path, bytes)| (path.strip_prefix(folder).expect("below").to_owned(), bytes)).collect()
    };
    assert_eq!(named(&other), named(&out));
    assert_eq!(
        before,
        contents(dir.path())
            .into_iter()
            .filter(|(path, _)| before.iter().any(|(p, _)| p == path))
            .collect::<Vec<_>>()
    );
}

#[test]
fn what_was_interrupted_is_gone_on_with() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.wav");
    talk(&path, &[(4, 0.7), (5, 1.2), (3, 0.5), (6, 0.9)]);
    let out = dir.path().join("out");
    let given = [path.clone()];
    let whole = cut_all(&given, &out, Limits::USUAL, 1).expect("cut");
    let all = contents(&out);
    let clip = |i: usize| out.join(&whole.cuts[i].file);
    std::fs::remove_file(clip(0)).expect("removed");
    std::fs::write(clip(1), b"RIFF").expect("written");
    std::fs::remove_file(out.join("clips.tsv")).expect("removed");
    std::fs::write(out.join("wavs/.ambitus-killed"), b"RIFF").expect("written");
    let again = cut_all(&given, &out, Limits::USUAL, 1).expect("cut");
    assert_eq!(again.there, whole.cuts.len() - 2);
    assert_eq!(contents(&out), all);
    // Others are not mixed with these, nor with what is somebody else's.
    let refused = |out: &Path, limits| cut_all(&given, out, limits, 1).expect_err("refused").to_string();
    assert!(refused(&out, Limits { least: 1.0, most: 5.0 }).contains("name a new folder"));
    assert!(refused(dir.path(), Limits::USUAL).contains("not empty"));
    assert_eq!(contents(&out), all);
    // A stop leaves nothing half-written.
    let stopped = dir.path().join("stopped");
    let all = recordings(&given, None).expect("there");
    let options = Options { limits: Limits::USUAL, threads: 1, progress: &|_, doing, _| doing != "cutting" };
    assert!(matches!(cut(&all, &stopped, &options), Err(DataError::Stopped)));
    assert!(contents(&stopped).iter().all(|(path, _)| !path.ends_with("clips.tsv")));
}

#[test]
fn what_is_over_and_under_the_limits_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.wav");
    let spans = talk(&path, &[(1, 4.0), (9, 4.0), (1, 0.5)]);
    let clips = cut_all(&[path], &dir.path().join("out"), Limits { least: 2.0, most: 5.0 }, 1).expect("cut");
    let notes: Vec<_> = clips.cuts.iter().map(|clip| clip.note).collect();
    assert_eq!(notes, [Some(Note::Under), Some(Note::Over), Some(Note::Under)]);
    assert!(clips.cuts[1].start < spans[1].0 && clips.cuts[1].end > spans[1].1);
    let silent = dir.path().join("silent.wav");
    talk(&silent, &[(0, 3.0)]);
    let clips = cut_all(&[silent], &dir.path().join("none"), Limits::USUAL, 1).expect("cut");
    assert_eq!((clips.cuts.len(), clips.left.len()), (0, 1));
}

#[test]
fn nothing_is_written_if_anything_is_wrong() {
    let dir = tempfile::tempdir().expect("a folder");
    let (good, short) = (dir.path().join("good.wav"), dir.path().join("short.wav"));
    talk(&good, &[(4, 0.7)]);
    let bytes = std::fs::read(&good).expect("a file");
    std::fs::write(&short, &bytes[..bytes.len() - 1000]).expect("written");
    let out = dir.path().join("out");
    let given = [good, short, fixture("refused/video_only.mp4")];
    let said = cut_all(&given, &out, Limits::USUAL, 2).expect_err("refused").to_string();
    assert!(said.contains("2 recordings cannot be cut; nothing was written"), "{said}");
    assert!(
        said.contains("short.wav: truncated") && said.contains("video_only.mp4: unsupported: no audio track"),
        "{said}"
    );
    assert!(!out.exists());
    let said = cut_all(&given[..2], &out, Limits::USUAL, 2).expect_err("refused").to_string();
    assert!(said.contains("short.wav: truncated"), "{said}");
}

/// Times that are off by some tenths, as transcribers' are: the cuts are in the pauses, and every word is where it is said.
#[test]
fn a_transcript_says_what_is_cut() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("talk.wav");
    let spans = talk(&path, &[(3, 0.7), (4, 0.5), (2, 0.4), (3, 1.5), (3, 0.5)]);
    let time = |s: f64| format!("00:00:{:02}.{:03}", s as u32, (s.fract() * 1000.0) as u32);
    let texts = ["One | “two”.", "\"Three\" & four,", "five.", "", "Seven."];
    let mut vtt = "WEBVTT\n\n".to_owned();
    for (i, (&(from, to), text)) in spans.iter().zip(texts).enumerate().filter(|(i, _)| *i != 3) {
        let off = [0.2, -0.15, 0.1, 0.0, -0.2][i];
        let text = text.replace('&', "&amp;");
        vtt += &format!("{} --> {}\n{text}\n\n", time(from + off), time(to + off));
    }
    std::fs::write(path.with_extension("vtt"), vtt).expect("written");
    let out = dir.path().join("out");
    let clips = cut_all(&[path], &out, Limits::USUAL, 1).expect("cut");
    let said: Vec<_> = clips.cuts.iter().map(|clip| clip.text.as_deref().expect("a text")).collect();
    assert_eq!(said, ["One | “two”.", "\"Three\" & four, five.", "Seven."]);
    for (clip, (first, last)) in clips.cuts.iter().zip([(0, 0), (1, 2), (4, 4)]) {
        assert!(clip.start <= spans[first].0 && clip.end >= spans[last].1, "{clip:?} of {spans:?}");
    }
    // What nobody wrote down is in no clip, which is said.
    assert_eq!(clips.left.len(), 1, "{:?}", clips.left);
    assert!((clips.left[0].start - spans[3].0).abs() < 0.2 && (clips.left[0].end - spans[3].1).abs() < 0.2);
    // A segment without the times of its words cannot be parted, however many pauses are in it.
    let long = dir.path().join("long.wav");
    talk(&long, &[(5, 0.7), (5, 0.7), (5, 0.7)]);
    let srt = "1\n00:00:00,500 --> 00:00:14,000\nAll of it.\n";
    std::fs::write(long.with_extension("srt"), srt).expect("written");
    let one = cut_all(&[long], &dir.path().join("long"), Limits::USUAL, 1).expect("cut");
    assert_eq!(one.cuts.iter().map(|clip| clip.note).collect::<Vec<_>>(), [Some(Note::Segment)]);
    // The folder is a data set, and its texts are these.
    let source = Source::read(&out, dir.path(), u64::MAX).expect("a data set");
    let read: Vec<String> = (0..source.len()).map(|i| source.entry(i).expect("a clip").text).collect();
    assert_eq!(read, said);
}
