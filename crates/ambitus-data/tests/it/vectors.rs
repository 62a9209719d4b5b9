//! Numbers against recorded outputs of the Python packages (`parity/f5`).

use std::path::PathBuf;

use ambitus_data::{audio, mel, text};
use safetensors::SafeTensors;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../parity/f5/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn values(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// Tolerance that the project promises for the linear mel: |Δ| <= 1e-5 + 1e-4·value.
const MEL_ABSOLUTE: f32 = 1e-5;
const MEL_RELATIVE: f32 = 1e-4;

/// Texts that the package cuts into pieces within a limit are cut alike.
#[test]
fn texts_are_cut_as_the_package_does() {
    #[derive(serde::Deserialize)]
    struct Case {
        text: String,
        most: usize,
        pieces: Vec<String>,
    }
    let cases: Vec<Case> = serde_json::from_slice(&fixture("chunks.json")).expect("JSON");
    assert!(cases.len() > 50);
    for Case { text: whole, most, pieces } in cases {
        assert_eq!(text::chunks(&whole, most), pieces, "{whole:?} at {most}");
    }
}

#[test]
fn mel_matches_the_package() {
    let bytes = fixture("mel_vectors.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid file");
    let mut cases = 0;
    let mut worst = 0.0f32;
    for name in tensors.names() {
        let Some(case) = name.strip_suffix(".wave") else {
            continue;
        };
        let rows = mel::log_mel(&values(&tensors, name)).expect("long enough");
        let expected = values(&tensors, &format!("{case}.linear"));
        assert_eq!(rows.len(), expected.len(), "{case}");
        for (i, (&row, &expected)) in rows.iter().zip(&expected).enumerate() {
            let expected = expected.max(mel::FLOOR);
            let (error, allowed) = ((row.exp() - expected).abs(), MEL_ABSOLUTE + MEL_RELATIVE * expected);
            worst = worst.max(error / allowed);
            assert!(
                error <= allowed,
                "{case}: frame {} band {}: {} against {expected}",
                i / mel::MELS,
                i % mel::MELS,
                row.exp()
            );
        }
        cases += 1;
    }
    assert!(cases >= 5);
    println!("{cases} waveforms; worst error {:.1} % of the tolerance", 100.0 * worst);
}

/// The project promises 1e-3 relative L2 of torchaudio's kernel; the same sum in another order stays far below.
const RESAMPLE_L2: f64 = 1e-6;

#[test]
fn resampling_matches_torchaudio() {
    let bytes = fixture("resample_vectors.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid file");
    let mut cases = 0;
    for name in tensors.names() {
        let Some(case) = name.strip_suffix(".input") else {
            continue;
        };
        let rate: u32 = case.split('.').next().and_then(|r| r.parse().ok()).expect("rate in the name");
        let out = audio::resample(&values(&tensors, name), rate, 24_000);
        let expected = values(&tensors, &format!("{case}.output"));
        assert_eq!(out.len(), expected.len(), "{case}");
        let square = |v: f64| v * v;
        let error: f64 = out.iter().zip(&expected).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
        let norm: f64 = expected.iter().map(|&b| square(f64::from(b))).sum();
        let relative = (error / norm).sqrt();
        println!("{case}: {relative:.2e}");
        assert!(relative < RESAMPLE_L2, "{case}: {relative:e}");
        cases += 1;
    }
    assert!(cases >= 8);
}

#[test]
fn tokens_match_the_package() {
    #[derive(serde::Deserialize)]
    struct Vector {
        text: String,
        tokens: Vec<String>,
    }
    let vectors: Vec<Vector> = serde_json::from_slice(&fixture("text_vectors.json")).expect("valid file");
    let vocab = text::Vocab::new(vec![" ".into()]).expect("valid");
    let tokenizer = text::Tokenizer::new(text::TokenizerKind::Pinyin, Some(vocab)).expect("valid");
    let wrong: Vec<String> = vectors
        .iter()
        .filter_map(|v| {
            let tokens = tokenizer.tokens(&v.text);
            (tokens != v.tokens)
                .then(|| format!("{:?}\n  is       {tokens:?}\n  expected {:?}", v.text, v.tokens))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), vectors.len(), wrong.join("\n"));
}
