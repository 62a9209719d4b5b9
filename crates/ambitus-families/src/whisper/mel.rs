//! Log-mel frames as the package makes them: log10 of 80 or 128 bands of Slaney's, at most 8 below the loudest (80 dB), (x + 4) / 4.

use ambitus_data::mel::{self, Front, Log, Scale, Window};
use ambitus_models::whisper::config::Config;

/// Of the sound, Hz.
pub(super) const RATE: u32 = 16_000;
/// Samples of a frame.
pub(super) const HOP: usize = 160;
/// Seconds of a state, by which times are told.
pub(super) const STATE: f64 = 0.02;
/// How far below the loudest band of a sound its others go.
const RANGE: f32 = 8.0;

/// Returns the settings for a number of bands.
pub(super) fn front(bands: usize) -> Front {
    Front {
        rate: RATE,
        n_fft: 400,
        window: Window::Hann(400),
        hop: HOP,
        bands,
        range: [0.0, 8000.0],
        scale: Scale::Slaney,
        slaney: true,
        power: true,
        log: Log::Base10(1e-10),
    }
}

/// Returns the samples of a window.
pub(super) fn samples(cfg: &Config) -> usize {
    cfg.frames() * HOP
}

/// Returns a band as the encoder reads it; `loudest`: the highest of the sound.
pub(super) fn scaled(x: f32, loudest: f32) -> f32 {
    (x.max(loudest - RANGE) + 4.0) / 4.0
}

/// Returns the frames `[2 N, M]` of a clip that is no longer than a window: silence follows it.
pub(super) fn window(cfg: &Config, clip: &[f32]) -> Vec<f32> {
    let mut padded = clip.to_vec();
    padded.resize(samples(cfg), 0.0);
    let mut rows = mel::rows(&front(cfg.mels), None, &padded).unwrap_or_default();
    // The frame after the last sample is left out.
    rows.truncate(cfg.frames() * cfg.mels);
    let loudest = rows.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    rows.iter_mut().for_each(|x| *x = scaled(*x, loudest));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_store::TensorFile;
    use ambitus_testkit::tolerances::MEL_BAND;
    use std::path::Path;

    /// openai-whisper's frames (`parity/whisper/record.py`): nearly all within 1e-5, none off by more than its own rounding.
    #[test]
    fn frames_are_the_packages() {
        for bands in [80, 128] {
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/whisper/fixtures");
            let file =
                TensorFile::open(fixtures.join(bands.to_string()).join("generate.safetensors")).unwrap();
            let read = |name: &str| {
                let mut all = vec![0.0; file.get(name).unwrap().elements()];
                file.read_into(name, &mut all, &mut vec![0; 1 << 16]).unwrap();
                all
            };
            let (wave, want) = (read("clips.0.wave"), read("clips.0.mel"));
            let rows = mel::rows(&front(bands), None, &wave[..3000]).unwrap();
            let rows = &rows[..want.len()];
            let loudest = rows.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let off: Vec<f32> =
                rows.iter().zip(&want).map(|(x, want)| (scaled(*x, loudest) - want).abs()).collect();
            let far = off.iter().filter(|off| **off > 1e-5).count();
            assert!(far * 100 <= off.len(), "{bands}: {far} of {}", off.len());
            assert!(off.iter().all(|off| *off < MEL_BAND), "{bands}");
        }
    }
}
