//! Audiocraft's folder as transformers has it. A run keeps configuration, text encoder, codec and tokenizer in that form, whatever folder it
//! begins with: so it speaks by itself, and its exports have either layout.

use super::folder::{CHECKPOINT, Folder};
use crate::encodec;
use crate::error::RunError;
use crate::family::KeptFile;
use crate::hugging_face::{CONFIG, Frozen, KEPT};
use crate::t5;
use crate::weights::Weights;
use ambitus_models::musicgen::config::{Config, delays};
use ambitus_models::musicgen::weights::{AUDIO, TEXT, frozen as is_frozen};
use serde_json::json;

/// Returns the tensors of text encoder and codec, by transformers' names.
pub(super) fn frozen(folder: &Folder) -> Result<Frozen, RunError> {
    let (_, text) = t5::as_part(&folder.text_encoder()?, TEXT)?;
    let (_, codec) = encodec::as_part(&folder.codec(), AUDIO)?;
    let path = folder.dir.join(CHECKPOINT);
    let files = text.into_iter().chain(codec).collect();
    Ok(Frozen { weights: Weights { files, prefix: String::new(), path }, holds: is_frozen })
}

/// Returns the configuration, and the tokenizer's files.
pub(super) fn kept(folder: &Folder) -> Result<Vec<(String, KeptFile)>, RunError> {
    let text = folder.text_encoder()?;
    let files = KEPT.iter().map(|name| (*name, text.join(name))).filter(|(_, path)| path.is_file());
    let mut all: Vec<_> = files.map(|(name, path)| (name.to_owned(), KeptFile::At(path))).collect();
    all.push((CONFIG.to_owned(), KeptFile::Text(config(folder)?)));
    Ok(all)
}

fn config(folder: &Folder) -> Result<String, RunError> {
    let of = &folder.config;
    let Config { dim, heads, ffn, layers, vocab, channels, spread, .. } = *of;
    let books = of.codebooks();
    if of.delays != delays(books, channels) {
        return Err(RunError::Model(format!(
            "{}: its delays are {:?}; a run keeps the model in transformers' form, which has {:?} and no others",
            folder.dir.join(CHECKPOINT).display(),
            of.delays,
            delays(books, channels)
        )));
    }
    let (text, _) = t5::as_part(&folder.text_encoder()?, TEXT)?;
    let (audio, _) = encodec::as_part(&folder.codec(), AUDIO)?;
    let whole = json!({
        "architectures": ["MusicgenForConditionalGeneration"],
        "model_type": "musicgen",
        "is_encoder_decoder": true,
        "text_encoder": text,
        "audio_encoder": audio,
        "decoder": {
            "model_type": "musicgen_decoder",
            "vocab_size": vocab,
            "hidden_size": dim,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "ffn_dim": ffn,
            "num_codebooks": books,
            "audio_channels": channels,
            "activation_function": "gelu",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "initializer_factor": spread,
            "pad_token_id": vocab,
            "bos_token_id": vocab,
        },
    });
    Ok(format!("{whole:#}\n"))
}
