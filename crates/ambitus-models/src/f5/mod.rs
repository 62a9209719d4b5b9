//! F5-TTS: a diffusion transformer over mel frames, trained by conditional flow matching (arXiv 2410.06885).
//!
//! The reference is the package `f5-tts` 1.1.22; `parity/f5/NOTES.md` holds its forward pass line by line.

pub mod batch;
pub mod config;
pub mod draw;
pub mod model;
pub mod weights;

/// The command of F5-TTS that speaks with an export (`f5_tts/infer/infer_cli.py`).
pub fn listen(export: &str) -> String {
    format!(
        "f5-tts_infer-cli --model_cfg {export}/config.yaml --ckpt_file {export}/model.safetensors --vocab_file {export}/vocab.txt \
         --ref_audio CLIP.wav --ref_text 'what CLIP says' --gen_text 'what to say'"
    )
}
