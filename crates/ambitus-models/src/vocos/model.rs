//! The vocoder as a program, for inference. T mel frames of M channels, D channels, N samples of a window.

use super::config::Config;
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// The program.
pub const DECODE: &str = "decode";
/// The window of the inverse transform, `[N]`, which is no weight of the program.
pub const WINDOW: &str = "head.istft.window";

/// Taps of every convolution, centred.
const TAPS: usize = 7;
const EPS: f32 = 1e-6;

/// Builds the program for `frames` frames: inputs `mel` `[T, M]` and `segments` i32 `[2]`, which is 0 and the number of frames
/// that there are; output `head` `[T, N + 2]`, of each frame the logarithms of magnitudes and then the phases. Frames past the
/// end count as none, as zeros do that the package's convolutions pad with.
pub fn decode(session: &mut Session, cfg: &Config, frames: usize) -> Program {
    let mut b = Builder::new(session, DECODE);
    let mel = b.input("mel", TensorType::f32(&[frames, cfg.mels]));
    let segments = b.input("segments", TensorType::i32(&[2]));
    let x = b.scope("backbone", |b| {
        let x = conv(b, "embed", mel, cfg.dim, 1, segments);
        let mut x = norm(b, "norm", x);
        for i in 0..cfg.layers {
            x = b.block("convnext", i, |b| block(b, cfg, segments, x));
        }
        norm(b, "final_layer_norm", x)
    });
    let y = linear(&mut b, "head.out", x, cfg.n_fft + 2);
    b.output("head", y);
    b.finish()
}

/// Returns what a file of weights holds besides, with its shape: windows and mel filters.
pub fn buffers(cfg: &Config) -> [(&'static str, Vec<usize>); 3] {
    [
        ("feature_extractor.mel_spec.spectrogram.window", vec![cfg.mel_window]),
        ("feature_extractor.mel_spec.mel_scale.fb", vec![cfg.mel_window / 2 + 1, cfg.mels]),
        (WINDOW, vec![cfg.n_fft]),
    ]
}

/// Returns the number of frames on either side of a frame on which its spectrum depends.
pub fn reach(cfg: &Config) -> usize {
    TAPS / 2 * (1 + cfg.layers)
}

/// Applies a ConvNeXt block with a layer scale, `[T, D]` to `[T, D]` (arXiv 2201.03545).
fn block(b: &mut Builder<'_>, cfg: &Config, segments: ValueId, x: ValueId) -> ValueId {
    let h = conv(b, "dwconv", x, cfg.dim, cfg.dim, segments);
    let h = norm(b, "norm", h);
    let h = linear(b, "pwconv1", h, cfg.inner);
    let h = b.activation(ActivationKind::GeluErf, h);
    let h = linear(b, "pwconv2", h, cfg.dim);
    let gamma = b.frozen_parameter("gamma", &[cfg.dim]);
    let gamma = b.reshape(gamma, &[1, cfg.dim]);
    b.gated_residual(x, gamma, h, segments)
}

fn conv(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize, groups: usize, segments: ValueId) -> ValueId {
    let from = b.dim(x, 1);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from / groups, TAPS]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    b.conv1d(x, w, bias, segments, groups, TAPS / 2)
}

fn norm(b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
    let width = b.dim(x, 1);
    let gamma = b.frozen_parameter(&format!("{name}.weight"), &[width]);
    let beta = b.frozen_parameter(&format!("{name}.bias"), &[width]);
    b.layer_norm(x, gamma, beta, EPS)
}

fn linear(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize) -> ValueId {
    let from = b.dim(x, 1);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    b.linear(x, w, Some(bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tensors and parameters are the package's (`vocos` 0.1.0 with the published configuration).
    #[test]
    fn the_published_tensors() {
        let cfg = Config::vocos_mel_24khz();
        let mut s = Session::default();
        let p = decode(&mut s, &cfg, 64);
        ambitus_ir::verify::verify(&s, &p).unwrap();
        assert_eq!(s.states.len() + buffers(&cfg).len(), 83);
        let parameters: usize = s.states.iter().map(|s| s.ty.shape.elements()).sum();
        assert_eq!(parameters, 13_531_650);
        assert!(s.states.iter().all(|s| !s.trainable));
        let shape = |name: &str| s.states.iter().find(|s| s.name == name).map(|s| s.ty.shape.to_vec());
        assert_eq!(shape("backbone.embed.weight"), Some(vec![512, 100, 7]));
        assert_eq!(shape("backbone.convnext.7.dwconv.weight"), Some(vec![512, 1, 7]));
        assert_eq!(shape("head.out.weight"), Some(vec![1026, 512]));
        assert_eq!(reach(&cfg), 27);
    }
}
