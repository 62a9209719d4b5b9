//! Mel front ends and spectrograms against the recorded outputs of the Python packages (`parity/dvae`, `parity/piper`).

use ambitus_data::mel::{self, Front, Linear, Log, Scale, Window};
use safetensors::SafeTensors;
use std::path::Path;

/// Most that rows may differ, relative L2, and the logarithm of a single band: torchaudio's transform is in f32, so a band near the
/// floor beside a loud one is itself up to 1e-4 from fp64.
const ROWS_L2: f64 = 1e-5;
const BAND: f32 = 5e-4;

/// Rows with a transform that is longer than the window; those of codes have one as long.
const ROWS: Front = Front {
    rate: 22_050,
    n_fft: 2048,
    window: Window::Hann(1024),
    hop: 256,
    bands: 80,
    range: [0.0, 8000.0],
    scale: Scale::Htk,
    slaney: true,
    power: true,
    log: Log::Clamped(1e-5),
};

fn fixture() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/dvae/fixtures/mels.safetensors");
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn values(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Compares rows `[N, bands]` with recorded `[bands, N]`.
fn same(rows: &[f32], want: &[f32], bands: usize, name: &str) {
    assert_eq!(rows.len(), want.len(), "{name}");
    let frames = rows.len() / bands;
    let (mut worst, mut off, mut all) = (0.0f32, 0.0, 0.0);
    for (i, x) in rows.iter().enumerate() {
        let y = want[i % bands * frames + i / bands];
        worst = worst.max((x - y).abs());
        off += f64::from(x - y).powi(2);
        all += f64::from(y).powi(2);
    }
    let off = (off / all).sqrt();
    assert!(worst <= BAND && off <= ROWS_L2, "{name}: {worst:e}, {off:e}");
}

#[test]
fn rows_are_the_packages() {
    let bytes = fixture();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let wave = values(&file, "wave");
    let of = |front: &Front, wave: &[f32]| mel::rows(front, None, wave).unwrap();
    same(&of(&ROWS, &wave), &values(&file, "conditioning"), 80, "conditioning");
    let codes = Front { n_fft: 1024, ..ROWS };
    same(&of(&codes, &wave), &values(&file, "dvae"), 80, "codes");
    let speaker = Front {
        rate: 16_000,
        n_fft: 512,
        window: Window::Hamming(400),
        hop: 160,
        bands: 64,
        slaney: false,
        log: Log::Added(1e-6),
        ..ROWS
    };
    let emphasised = values(&file, "emphasised");
    same(&of(&speaker, &emphasised), &values(&file, "speaker"), 64, "speaker");
}

#[test]
fn bands_are_divided_and_short_sounds_have_no_rows() {
    let wave: Vec<f32> = (0..3000).map(|i| (i as f32 * 0.05).sin() * 0.3).collect();
    let whole = mel::rows(&ROWS, None, &wave).unwrap();
    assert_eq!(whole.len(), 80 * ROWS.frames(3000) as usize);
    let scale: Vec<f32> = (0..80).map(|i| -1.0 - i as f32 / 16.0).collect();
    let divided = mel::rows(&ROWS, Some(&scale), &wave).unwrap();
    assert!(divided.iter().enumerate().all(|(i, x)| *x == whole[i] / scale[i % 80]));
    // In pieces, with a window that is shorter than the transform.
    let (mut stream, mut rows) = (mel::MelStream::of(&ROWS), Vec::new());
    wave.chunks(700).for_each(|piece| stream.push(piece, &mut rows));
    assert_eq!(stream.finish(&mut rows), Ok(3000));
    assert_eq!(rows, whole);
    assert!(mel::rows(&ROWS, None, &wave[..1025]).is_some());
    assert!(mel::rows(&ROWS, None, &wave[..1024]).is_none());
}

/// Spectrograms without a mel scale, of `spectrogram_torch`.
#[test]
fn spectrograms_are_those_of_the_reference() {
    for (name, window) in [("base", 64), ("speakers", 48), ("plain", 64)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures").join(name);
        let bytes = std::fs::read(path.join("batch.safetensors")).expect("a batch");
        let file = SafeTensors::deserialize(&bytes).expect("a batch");
        let front = Linear { n_fft: 64, hop: 16, window };
        for clip in 0..3 {
            let [spec, wave] = ["spec", "wave"].map(|leaf| values(&file, &format!("clips.{clip}.{leaf}")));
            let have = front.rows(&wave).expect("long enough");
            assert_eq!((have.len(), have.len() / 33), (spec.len(), wave.len() / 16));
            let square =
                |x: &dyn Fn(usize) -> f32| (0..spec.len()).map(|i| f64::from(x(i)).powi(2)).sum::<f64>();
            let off = (square(&|i| have[i] - spec[i]) / square(&|i| spec[i])).sqrt();
            assert!(off < ROWS_L2, "{name} {clip}: {off}");
        }
    }
    let front = Linear { n_fft: 64, hop: 16, window: 64 };
    assert!(front.rows(&[0.0; 24]).is_none(), "no more than what is reflected");
    // Samples after the last whole hop are heard in what is reflected, and make no row.
    assert_eq!(front.rows(&[0.5; 47]).expect("long enough").len(), 2 * 33);
}
