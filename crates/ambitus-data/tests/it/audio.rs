//! Every audio format that is promised, and every fault by its reason.

use std::path::{Path, PathBuf};

use ambitus_data::audio::{self, AudioReader, Container};
use ambitus_data::{AudioFault, DataError};

fn load(path: &Path, max_seconds: f64) -> Result<Vec<f32>, DataError> {
    audio::load(path, 24_000, max_seconds)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn fault(path: &Path) -> AudioFault {
    match load(path, 60.0) {
        Err(DataError::Audio { path: named, reason }) => {
            assert_eq!(named, path);
            reason
        }
        other => panic!("{}: {other:?}", path.display()),
    }
}

fn tone(i: usize) -> f32 {
    (i as f32 * 0.03).sin() * 0.5
}

fn write_wav(path: &Path, bits: u16, float: bool, rate: u32, channels: u16, n: usize) {
    let spec = hound::WavSpec {
        channels,
        sample_rate: rate,
        bits_per_sample: bits,
        sample_format: if float { hound::SampleFormat::Float } else { hound::SampleFormat::Int },
    };
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    for i in 0..n {
        for c in 0..channels {
            // Channels differ, and their mean is the tone.
            let side = if channels == 1 { 0.0 } else { 0.2 * (f32::from(c) - f32::from(channels - 1) / 2.0) };
            let x = tone(i) + side;
            if float {
                writer.write_sample(x).expect("written");
            } else {
                let full = ((1u64 << (bits - 1)) - 1) as f32;
                writer.write_sample((x * full) as i32).expect("written");
            }
        }
    }
    writer.finalize().expect("finished");
}

#[test]
fn wav_of_every_depth_and_channel_count() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("a.wav");
    for (bits, float) in [(8, false), (16, false), (24, false), (32, false), (32, true)] {
        for channels in [1, 2, 3] {
            write_wav(&path, bits, float, 24_000, channels, 5000);
            let samples = load(&path, 60.0).expect("readable");
            assert_eq!(samples.len(), 5000);
            // One step of the coarsest quantisation, twice (writing truncates, reading scales by 2^n).
            let step = 2.0 / f32::from(1u16 << (bits.min(12) - 1));
            for (i, &x) in samples.iter().enumerate() {
                assert!((x - tone(i)).abs() < step, "{bits} bits, {channels} channels, sample {i}: {x}");
            }
        }
    }
}

#[test]
fn compressed_formats_hold_the_same_speech() {
    // Those of AAC, video and opus were made of it by ffmpeg 9.0 (`-c:a aac -b:a 48k`; pictures: `-f lavfi -i color=s=32x32:r=5`).
    let reference = load(&fixture("speech_22k_mono.wav"), 60.0).expect("readable");
    let energy = |v: &[f32]| v.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    for (name, container, rate, channels, alike) in [
        ("speech_22k_mono.flac", Container::Flac, 22050, 1, 0.9999),
        ("speech_24k_stereo.ogg", Container::Ogg, 24000, 2, 0.9),
        ("speech_44k_mono.mp3", Container::Mp3, 44100, 1, 0.9),
        ("speech_16k_mono.mp3", Container::Mp3, 16000, 1, 0.9),
        ("speech.m4a", Container::Mp4, 22050, 1, 0.9),
        ("speech.aac", Container::Adts, 22050, 1, 0.9),
        ("speech_video.mp4", Container::Mp4, 22050, 1, 0.9),
        ("speech_video.mkv", Container::Mkv, 22050, 1, 0.9),
    ] {
        let path = fixture(name);
        let info = AudioReader::open(&path).expect("readable").info();
        assert_eq!((info.container, info.rate, info.channels), (container, rate, channels), "{name}");
        let samples = load(&path, 60.0).expect("readable");
        // Encoders without a length tag pad the ends; the best alignment within that padding counts.
        const MOST_PADDING: usize = 4000;
        let best = (0..MOST_PADDING.min(samples.len()))
            .map(|shift| {
                let part = &samples[shift..];
                let n = part.len().min(reference.len());
                let dot: f64 =
                    part[..n].iter().zip(&reference).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                dot / (energy(&part[..n]) * energy(&reference[..n])).sqrt()
            })
            .fold(0.0, f64::max);
        assert!(best > alike, "{name}: {best}");
        let seconds = samples.len() as f64 / 24_000.0;
        assert!((seconds - 0.8).abs() < 0.2, "{name}: {seconds} s");
    }
}

#[test]
fn reasons_of_faults() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("a.wav");
    let put = |bytes: &[u8]| std::fs::write(&path, bytes).expect("written");
    write_wav(&path, 16, false, 22_050, 1, 2000);
    let good = std::fs::read(&path).expect("readable");
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    put(&[]);
    assert_eq!(fault(&path), AudioFault::Empty);
    put(b"hello, this is a text");
    assert!(matches!(fault(&path), AudioFault::Unknown(_)));
    put(&good[..good.len() - 100]);
    assert!(matches!(fault(&path), AudioFault::Truncated(_)));
    put(&good[..20]);
    assert!(matches!(fault(&path), AudioFault::Truncated(_) | AudioFault::Header(_)));
    put(&with(22, &[0, 0]));
    assert_eq!(fault(&path), AudioFault::Channels(0));
    put(&with(22, &[0xff, 0xff]));
    assert_eq!(fault(&path), AudioFault::Channels(65535));
    put(&with(24, &0u32.to_le_bytes()));
    assert_eq!(fault(&path), AudioFault::Rate(0));
    put(&with(24, &4_000_000_000u32.to_le_bytes()));
    assert_eq!(fault(&path), AudioFault::Rate(4_000_000_000));
    put(&with(20, &[0x55, 0]));
    assert!(matches!(fault(&path), AudioFault::Unsupported(_)));
    put(&with(32, &[9, 0]));
    assert!(matches!(fault(&path), AudioFault::Header(_)));
    put(&with(40, &0u32.to_le_bytes()));
    assert_eq!(fault(&path), AudioFault::Empty);
    // Streamed to a pipe: the length is unknown, and the audio is all there.
    let mut streamed = with(40, &u32::MAX.to_le_bytes());
    streamed[4..8].fill(0xff);
    put(&streamed);
    assert_eq!(load(&path, 60.0).expect("readable").len(), 2177);

    for bad in [f32::NAN, f32::INFINITY, 32767.0] {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 24_000,
            bits_per_sample: 32,
            sample_format: hound::SampleFormat::Float,
        };
        let mut writer = hound::WavWriter::create(&path, spec).expect("created");
        for i in 0..3000 {
            writer.write_sample(if i == 2400 { bad } else { tone(i) }).expect("written");
        }
        writer.finalize().expect("finished");
        match fault(&path) {
            AudioFault::Sample { seconds, .. } => assert!((seconds - 0.1).abs() < 1e-9),
            other => panic!("{other}"),
        }
    }
    for name in ["speech_44k_mono.mp3", "speech_16k_mono.mp3"] {
        let bytes = std::fs::read(fixture(name)).expect("fixture");
        put(&bytes[..bytes.len() * 2 / 3]);
        assert!(matches!(fault(&path), AudioFault::Truncated(_)), "{name}: {}", fault(&path));
        // A tag at the end is not a cut frame.
        put(&[&bytes[..], b"TAG", &[b' '; 125]].concat());
        assert!(load(&path, 60.0).is_ok(), "{name}");
    }
    for name in ["speech_22k_mono.flac", "speech_24k_stereo.ogg"] {
        let bytes = std::fs::read(fixture(name)).expect("fixture");
        put(&bytes[..bytes.len() * 2 / 3]);
        assert!(matches!(fault(&path), AudioFault::Truncated(_)), "{name}: {}", fault(&path));
        // A flipped bit in the middle is noticed by the checksums.
        let mut changed = bytes.clone();
        changed[bytes.len() / 2] ^= 0x10;
        put(&changed);
        let fault = fault(&path);
        assert!(
            matches!(fault, AudioFault::Truncated(_) | AudioFault::Damaged { .. } | AudioFault::Header(_)),
            "{name}: {fault}"
        );
    }
    for name in ["speech.m4a", "speech_video.mp4", "speech_video.mkv"] {
        let bytes = std::fs::read(fixture(name)).expect("fixture");
        put(&bytes[..bytes.len() * 2 / 3]);
        assert!(matches!(fault(&path), AudioFault::Truncated(_)), "{name}: {}", fault(&path));
    }
    assert!(fault(&fixture("refused/video_only.mp4")).to_string().contains("no audio track"));
    assert!(fault(&fixture("refused/speech_opus.mkv")).to_string().contains("convert it"));
    // Gigabytes after the samples are not searched for more of them.
    put(&std::fs::read(fixture("speech_22k_mono.flac")).expect("fixture"));
    std::fs::File::options().write(true).open(&path).expect("there").set_len(3 << 30).expect("sparse");
    assert!(matches!(fault(&path), AudioFault::Header(_)), "{}", fault(&path));
    assert!(matches!(load(&dir.path().join("none.wav"), 1.0), Err(DataError::Io { .. })));
    assert!(matches!(load(dir.path(), 1.0), Err(DataError::File { .. })));
    write_wav(&path, 16, false, 24_000, 1, 48_000);
    assert!(load(&path, 1.0).is_err());
}

#[test]
fn written_wav_is_read_back() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("sub/out.wav");
    let wave: Vec<f32> = (0..4800).map(tone).collect();
    ambitus_data::wav::write_wav(&path, &wave, 24_000).expect("written");
    let back = load(&path, 1.0).expect("readable");
    // One step of 16 bits.
    assert!(wave.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1.0 / 16_000.0));
    assert!(ambitus_data::wav::write_wav(&path, &[f32::NAN], 24_000).is_err());
    assert_eq!(load(&path, 1.0).expect("still there").len(), 4800);
    assert_eq!(std::fs::read_dir(dir.path().join("sub")).expect("folder").count(), 1);
}
