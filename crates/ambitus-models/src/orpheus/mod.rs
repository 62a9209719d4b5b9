//! Orpheus: a Llama decoder over text and audio tokens, and any other `LlamaForCausalLM` (`README.md` beside this file).

pub mod batch;
pub mod config;
pub mod model;
pub mod weights;

/// Ids of Orpheus: its text's, the wrapper ids' and the audio's.
const SPEECH_VOCABULARY: usize = 156_938;

/// What the first loss of a run says, for vocabularies with Orpheus's audio ids. Runs of a checkpoint that users call healthy
/// start near 5; those that stay at 6 to 7 were given other tokens than the checkpoint knows (canopyai/Orpheus-TTS, issues
/// 273 and 286).
pub fn first_loss(cfg: &config::Config, loss: f64) -> Option<String> {
    if cfg.vocab < SPEECH_VOCABULARY {
        return None;
    }
    let random = (cfg.vocab as f64).ln();
    Some(match loss {
        l if l < 6.0 => format!("first loss {l:.2}: as it should be (near 5 and below)"),
        l if l < 8.0 => format!(
            "first loss {l:.2}: fine-tuning a checkpoint starts near 5. If it stays at 6 to 7, these are not the tokens that \
             the checkpoint knows: check the codec (SNAC 24 kHz), tokenizer.json, and that the texts belong to the audio"
        ),
        l => format!(
            "first loss {l:.2}: a model that guesses has {random:.2}, a checkpoint of Orpheus near 5. Right for random weights \
             (from_scratch); otherwise this is not an Orpheus checkpoint"
        ),
    })
}
