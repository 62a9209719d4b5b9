//! Names and fresh values of a voice's tensors, what follows from its configuration, and what training it in PyTorch takes.
//!
//! States carry the names of the trainer's checkpoints: `model_g.enc_p.emb.weight`, `model_d.discriminators.0.convs.0.weight_v`.

use super::config::{Config, Spectra};
use crate::init::Init;
use std::f64::consts::TAU;

/// The waves of a window, which no file holds.
pub const WAVES: &str = "spectra.waves";
/// The bands of a mel, which no file holds.
pub const BANDS: &str = "spectra.bands";
/// Both.
pub const OF_NO_FILE: [&str; 2] = [WAVES, BANDS];

/// Returns how a tensor is drawn for training from scratch: as the project does where it says so, else by torch's fan-in.
pub fn init(name: &str, dims: &[usize]) -> Init {
    let (layer, kind) = name.rsplit_once('.').unwrap_or(("", name));
    let fan_in = dims.iter().skip(1).product::<usize>().max(1) as f32;
    let begins_as_none = layer.ends_with(".post") || (layer.contains("flows.") && layer.ends_with(".proj"));
    match kind {
        "gamma" => Init::Constant(1.0),
        // The length of a row that is uniform within 1 / sqrt(fan in), as torch draws directions.
        "weight_g" => Init::Constant(3_f32.powf(-0.5)),
        "beta" | "m" | "logs" => Init::Zero,
        "weight" | "bias" if begins_as_none => Init::Zero,
        "bias" => Init::Zero,
        "weight" if layer.ends_with(".emb") => Init::Normal((dims[1] as f32).powf(-0.5)),
        "weight" if layer.ends_with(".emb_g") => Init::Normal(1.0),
        "emb_rel_k" | "emb_rel_v" => Init::Normal((dims[2] as f32).powf(-0.5)),
        _ => Init::Uniform(fan_in.powf(-0.5)),
    }
}

/// Returns the values of a tensor that follows from the configuration.
pub fn made(name: &str, cfg: &Config) -> Option<Vec<f32>> {
    match name {
        WAVES => Some(waves(&cfg.spectra)),
        BANDS => Some(bands(&cfg.spectra)),
        _ => None,
    }
}

/// Returns the cosines and then the sines of every bin over a frame, under Hann's window, `[2 bins, n_fft]`.
fn waves(s: &Spectra) -> Vec<f32> {
    let before = (s.n_fft - s.window) / 2;
    let hann = |n: usize| match n.checked_sub(before) {
        Some(at) if at < s.window => 0.5 - 0.5 * (TAU * at as f64 / s.window as f64).cos(),
        _ => 0.0,
    };
    let window: Vec<f64> = (0..s.n_fft).map(hann).collect();
    let angle = |bin: usize, n: usize| TAU * (bin * n % s.n_fft) as f64 / s.n_fft as f64;
    let row = |f: fn(f64) -> f64, bin: usize| {
        let window = &window;
        (0..s.n_fft).map(move |n| (f(angle(bin, n)) * window[n]) as f32)
    };
    let bins = s.bins();
    let cosines = (0..bins).flat_map(|bin| row(f64::cos, bin));
    cosines.chain((0..bins).flat_map(|bin| row(f64::sin, bin))).collect()
}

/// Returns triangles of area one that are evenly spaced on Slaney's scale (librosa 0.10, `filters.mel`), `[bands, bins]`.
fn bands(s: &Spectra) -> Vec<f32> {
    // Linear up to 1 kHz, logarithmic above.
    let (step, knee) = (200.0 / 3.0, 1000.0);
    let (knee_mel, log_step) = (knee / step, 6.4_f64.ln() / 27.0);
    let mel = |hz: f64| if hz < knee { hz / step } else { knee_mel + (hz / knee).ln() / log_step };
    let hz = |mel: f64| if mel < knee_mel { mel * step } else { knee * ((mel - knee_mel) * log_step).exp() };
    let (low, high) = (mel(s.low), mel(s.high));
    let edge = |i: usize| hz(low + (high - low) * i as f64 / (s.bands + 1) as f64);
    let edges: Vec<f64> = (0..s.bands + 2).map(edge).collect();
    let row = |m: usize| {
        let edges = &edges;
        (0..s.bins()).map(move |bin| {
            let at = bin as f64 * f64::from(s.rate) / s.n_fft as f64;
            let up = (at - edges[m]) / (edges[m + 1] - edges[m]);
            let down = (edges[m + 2] - at) / (edges[m + 2] - edges[m + 1]);
            (up.min(down).max(0.0) * 2.0 / (edges[m + 2] - edges[m])) as f32
        })
    };
    (0..s.bands).flat_map(row).collect()
}

/// Returns the bytes of the project's training step, by arithmetic: AdamW, fp32, nothing recomputed; `mixed` is autocast to 16 bits.
///
/// States: 16 a parameter. Numbers that are saved for backward (piper1-gpl @b275826, counted by hooks of a voice of medium quality): 25 MiB
/// a second of audio and clip, 53 MiB a clip of each of two passes of the discriminators, 417 MiB besides; half of it with autocast.
pub fn original_bytes(cfg: &Config, parameters: u64, rows: usize, mixed: bool) -> u64 {
    const MIB: u64 = 1 << 20;
    let seconds = rows as f64 / cfg.rows().per_second;
    // Of clips of five seconds.
    let clips = (seconds / 5.0).ceil().max(1.0) as u64;
    let saved = (seconds * 25.0) as u64 * MIB + clips * 106 * MIB + 417 * MIB;
    parameters * 16 + if mixed { saved / 2 } else { saved }
}
