//! Damaged and hostile files: an error, no panic, and no allocation that the file's size does not justify.

use std::path::Path;

use crate::counting::{ALONE, peak_of};
use ambitus_data::audio::{AudioReader, READER_BYTES};
use ambitus_data::prepare::PrepareOptions;
use ambitus_data::sources::Audio;
use ambitus_data::speech::{Codec, Codes, LabelScope, Sequences, SpeechOptions, prepare_speech};
use ambitus_data::{Bpe, Limits, Policy, Source, Tokenizer, TokenizerKind, load_clip, prepare};

/// A repeatable source of choices.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    /// Flips, overwrites, cuts, repeats.
    fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(6) {
            // Headers are where the lies are.
            let reach = if self.below(2) == 0 { out.len().min(200) } else { out.len() };
            let at = self.below(reach);
            match self.below(6) {
                0 if !out.is_empty() => out[at] ^= 1 << self.below(8),
                1 if !out.is_empty() => out[at] = [0, 0xff, 0x7f, 0x80][self.below(4)],
                2 => {
                    let end = (at + 4).min(out.len());
                    out[at.min(end)..end].fill(0xff);
                }
                3 => out.truncate(at),
                4 => {
                    let end = (at + self.below(64)).min(out.len());
                    let piece = out[at.min(end)..end].to_vec();
                    out.splice(at.min(out.len())..at.min(out.len()), piece);
                }
                _ if !out.is_empty() => out[at] = self.below(256) as u8,
                _ => {}
            }
        }
        out
    }
}

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .expect("fixtures")
        .map(|f| f.expect("entry").path())
        // Those that are refused have a folder.
        .filter(|path| path.is_file())
        .map(|path| {
            (
                path.file_name().expect("name").to_string_lossy().into_owned(),
                std::fs::read(&path).expect("fixture"),
            )
        })
        .collect();
    all.sort();
    all
}

fn drain(path: &Path) -> bool {
    let Ok(mut reader) = AudioReader::open(path) else {
        return false;
    };
    loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => assert!(chunk.iter().all(|x| x.is_finite())),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[test]
fn damaged_audio_is_refused_in_bounded_memory() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const ROUNDS: usize = 250;
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("a.bin");
    let mut rng = Lcg(1);
    for (name, bytes) in fixtures() {
        std::fs::write(&path, &bytes).expect("written");
        let (ok, _) = peak_of(|| drain(&path));
        assert!(ok, "{name} itself");
        let mut worst = 0;
        for _ in 0..ROUNDS {
            std::fs::write(&path, rng.mutate(&bytes)).expect("written");
            let (_, peak) = peak_of(|| drain(&path));
            worst = worst.max(peak);
        }
        println!("{name}: at most {} KiB", worst / 1024);
        assert!(worst <= READER_BYTES, "{name}: {worst}");
    }
}

#[test]
fn a_crafted_vorbis_header_cannot_ask_for_gigabytes() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (_, bytes) = fixtures().into_iter().find(|(n, _)| n.ends_with(".ogg")).expect("fixture");
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("a.ogg");
    // The first codebook's dimensions and entries, at byte 8 of the setup packet ("\x05vorbis", count, "BCV").
    let at = bytes.windows(3).position(|w| w == b"BCV").expect("codebook") + 3;
    let mut crafted = bytes;
    crafted[at..at + 5].copy_from_slice(&[32, 0, 0xff, 0xff, 0x01]);
    std::fs::write(&path, &crafted).expect("written");
    let (ok, peak) = peak_of(|| drain(&path));
    assert!(!ok && peak <= READER_BYTES, "{peak}");
}

/// A file of zeros: sparse on disk.
fn long_wav(path: &Path, seconds: u32) {
    use std::io::Write;
    let bytes = 16_000 * 2 * seconds;
    let mut header = Vec::new();
    header.extend_from_slice(b"RIFF");
    header.extend_from_slice(&(bytes + 36).to_le_bytes());
    header.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    header.extend_from_slice(&16_000u32.to_le_bytes());
    header.extend_from_slice(&32_000u32.to_le_bytes());
    header.extend_from_slice(b"\x02\0\x10\0data");
    header.extend_from_slice(&bytes.to_le_bytes());
    let mut file = std::fs::File::create(path).expect("created");
    file.write_all(&header).expect("written");
    // A second of noise in the middle, so that cutting has something to keep.
    let middle = 44 + u64::from(bytes) / 4 * 2;
    file.set_len(44 + u64::from(bytes)).expect("sized");
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(middle)).expect("sought");
    let noise: Vec<u8> =
        (0..16_000i32).flat_map(|i| (((i * 7919) % 20_000 - 10_000) as i16).to_le_bytes()).collect();
    file.write_all(&noise).expect("written");
}

#[test]
fn long_files_take_no_more_memory_than_short_ones() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let tokenizer = Tokenizer::new(TokenizerKind::Byte, None).expect("valid");
    let options = PrepareOptions {
        limits: Limits { max_seconds: 2.0, ..Limits::default() },
        policy: Policy::Cut,
        cache: dir.path().join("cache"),
        threads: 1,
        rate: 24_000,
        edits: Default::default(),
    };
    let mut peaks = Vec::new();
    for seconds in [30, 600] {
        long_wav(&data.join("a.wav"), seconds);
        std::fs::write(data.join("a.txt"), "Noise.").expect("written");
        let source = Source::read(&data, dir.path(), u64::MAX).expect("readable");
        let (prepared, peak) = peak_of(|| prepare(&source, &tokenizer, &options, &|_| true));
        let prepared = prepared.expect("prepared");
        // A second of noise and 0.1 s of silence on both sides.
        let seconds = 60.0 * prepared.summary.minutes;
        assert!((seconds - 1.2).abs() < 0.05, "{seconds}");
        assert!((peak as u64) < options.memory_bound(&tokenizer, &source), "{peak}");
        peaks.push(peak);
    }
    println!("{peaks:?} bytes");
    // Equal but for chance in the order of growth.
    assert!(peaks[1] < peaks[0] + (64 << 10), "{peaks:?}");
}

/// The longest input it got, and codes that do not repeat.
struct Counted(usize);

impl Codec for Counted {
    fn encode(&mut self, samples: &[f32]) -> Result<Codes, String> {
        self.0 = self.0.max(samples.len());
        let n = samples.len().div_ceil(2048) as u32;
        Codes::new([(0..n).collect(), (0..2 * n).collect(), (0..4 * n).collect()])
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

#[test]
fn long_files_become_token_clips_in_the_memory_of_short_ones() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/orpheus/fixtures");
    let sequences =
        Sequences::new(Bpe::read(&model, u64::MAX).expect("tokenizer"), LabelScope::All).expect("tokenizer");
    let speech = SpeechOptions::default();
    let mut options = PrepareOptions {
        limits: Limits { max_seconds: 2.0, ..Limits::default() },
        policy: Policy::Cut,
        cache: dir.path().join("cache"),
        threads: 1,
        rate: 24_000,
        edits: Default::default(),
    };
    let mut peaks = Vec::new();
    for seconds in [30, 600] {
        long_wav(&data.join("a.wav"), seconds);
        std::fs::write(data.join("a.txt"), "Noise.").expect("written");
        let source = Source::read(&data, dir.path(), u64::MAX).expect("readable");
        let bound = speech.memory_bound(&source, &options, &sequences) - sequences.bpe().memory_bytes();
        let mut codec = Counted(0);
        let (prepared, peak) =
            peak_of(|| prepare_speech(&source, &sequences, &mut codec, &speech, &options, &|_| true));
        assert_eq!(prepared.expect("prepared").index.len(), 1);
        assert!(codec.0 <= 2 * 24_000, "{}", codec.0);
        assert!((peak as u64) < bound, "{peak} of {bound}");
        peaks.push(peak);
        // Without cutting it is too long, which is known before the codec is asked.
        options.policy = Policy::Skip;
        let mut codec = Counted(0);
        assert!(prepare_speech(&source, &sequences, &mut codec, &speech, &options, &|_| true).is_err());
        assert_eq!(codec.0, 0);
        options.policy = Policy::Cut;
    }
    assert!(peaks[1] < peaks[0] + (64 << 10), "{peaks:?}");
}

/// Of the reader and of two files without a name.
const BUFFERS: usize = 256 << 10;

#[test]
fn damaged_metadata_and_clips_never_panic() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    const ROUNDS: usize = 400;
    let dir = tempfile::tempdir().expect("folder");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).expect("folder");
    for name in ["a.wav", "b.wav"] {
        std::fs::write(data.join(name), b"RIFF").expect("written");
    }
    let csv = "audio_file|text|speaker\r\na.wav|\"He said \"\"no\"\" | yes\"|x\r\nb.wav|plain \\ text|y\r\n";
    let lines = "{\"audio\": {\"path\": \"a.wav\"}, \"text\": \"one\"}\n{\"path\": \"b.wav\", \"sentence\": \"two \\u00e9\"}\n";
    let plain = "a|text one|text 1\nb.wav|text two|\n";
    let mut rng = Lcg(2);
    for (name, bytes) in [("m.csv", csv), ("m.jsonl", lines), ("m.txt", plain)] {
        let path = data.join(name);
        for _ in 0..ROUNDS {
            let mutated = rng.mutate(bytes.as_bytes());
            std::fs::write(&path, &mutated).expect("written");
            let (result, peak) = peak_of(|| Source::read(&path, dir.path(), u64::MAX));
            if let Ok(source) = result {
                assert!(source.entries().map(|e| e.expect("readable")).all(|e| !e.text.trim().is_empty()
                    && matches!(&e.audio, Audio::File(path) if path.starts_with(&data))));
            }
            // Beside the line, what is read and what is wrong waits to be written.
            assert!(peak < 64 * (mutated.len() + 4096) + BUFFERS, "{name}: {peak}");
        }
        std::fs::remove_file(&path).expect("removed");
    }
    // Clip files with lying counts.
    let path = dir.path().join("x.clip");
    let mut clip = b"ambclip1".to_vec();
    clip.resize(200, 0xff);
    for _ in 0..ROUNDS {
        std::fs::write(&path, rng.mutate(&clip)).expect("written");
        let (result, peak) = peak_of(|| load_clip(&path));
        assert!(result.is_err() && peak < 64 << 10, "{peak}");
    }
}
