//! Names of T5's tensors in files.
//!
//! States carry the names of transformers' `T5EncoderModel`: `encoder.block.0.layer.0.SelfAttention.q.weight`. Files of larger models
//! have them behind a prefix, files of whole T5 models have a decoder besides.

/// What stands before the names in the file of a model whose text encoder it is.
pub const PREFIX: &str = "text_encoder.";

/// The embedding's names; a file has one of them, or both of one tensor.
pub const EMBEDDINGS: [&str; 2] = ["shared.weight", "encoder.embed_tokens.weight"];

/// Returns whether files may hold this tensor besides the encoder's: the embedding's other name, and a whole T5's decoder and head.
pub fn ignored(name: &str) -> bool {
    EMBEDDINGS.contains(&name) || name.starts_with("decoder.") || name.starts_with("lm_head.")
}
