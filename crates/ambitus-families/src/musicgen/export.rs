//! Audiocraft's layout of an export: `state_dict.bin`, whose tensors have its names and whose text is its configuration.

use super::folder::{CHECKPOINT, SECTION_OF_TENSORS, YAML, of_transformers};
use crate::error::RunError;
use crate::family::{Place, Progressed, TorchLayout};
use ambitus_models::musicgen::config::Config;
use ambitus_models::musicgen::weights::package_name;
use ambitus_store::Item;
use std::fmt::Write;

/// What audiocraft calls the text.
const TEXT: &str = "description";
/// Its version, whose configuration is written.
const VERSION: &str = "1.3.0";

/// The layouts besides transformers' `model.safetensors`.
pub(super) static LAYOUTS: [TorchLayout; 1] = [TorchLayout {
    name: "audiocraft",
    file: CHECKPOINT,
    key: SECTION_OF_TENSORS,
    prefix: "",
    place: Some(place),
    beside,
}];

fn place(own: &str) -> Place {
    let (name, part) = package_name(own, TEXT);
    Place { name, part }
}

/// Returns what `audiocraft.utils.export.export_lm` writes beside the tensors.
fn beside(run: &Progressed<'_>) -> Result<Vec<(String, Item)>, RunError> {
    let config = of_transformers(run.dir)?;
    if !config.projects {
        return Err(RunError::Usage(
            "--layout audiocraft: this model reads the text encoder's states as they are, audiocraft's models always project them: leave it \
             out"
                .to_owned(),
        ));
    }
    let text = |text: &str| Item::Text(text.to_owned());
    let all = [(YAML, text(&yaml(&config))), ("version", text(VERSION)), ("exported", Item::Bool(true))];
    Ok(all.map(|(key, item)| (key.to_owned(), item)).into())
}

/// Returns the sections that `audiocraft.models.builders.get_lm_model` reads.
fn yaml(config: &Config) -> String {
    let Config { dim, heads, ffn, layers, vocab, channels, text_dim, .. } = *config;
    // It takes the whole part of scale times width.
    let scale = match ffn.is_multiple_of(dim) {
        true => (ffn / dim).to_string(),
        false => ((ffn as f64 + 0.5) / dim as f64).to_string(),
    };
    let t5 = match text_dim {
        512 => "t5-small",
        1024 => "t5-large",
        _ => "t5-base",
    };
    let mut out = String::new();
    let books = config.codebooks();
    let stereo = channels == 2;
    let _ = write!(
        out,
        "lm_model: transformer_lm
device: cpu
dtype: float32
sample_rate: 32000
channels: {channels}
interleave_stereo_codebooks: {{use: {stereo}, per_timestep: false}}
dataset: {{segment_duration: 30}}
transformer_lm:
  n_q: {books}
  card: {vocab}
  dim: {dim}
  num_heads: {heads}
  num_layers: {layers}
  hidden_scale: {scale}
  dropout: 0.0
  emb_lr: null
  activation: gelu
  norm_first: true
  bias_ff: false
  bias_attn: false
  bias_proj: false
  past_context: null
  causal: true
  custom: false
  memory_efficient: true
  attention_as_float32: false
  layer_scale: null
  positional_embedding: sin
  xpos: false
  checkpointing: none
  weight_init: gaussian
  depthwise_init: current
  zero_bias_init: true
  norm: layer_norm
  cross_attention: false
  qk_layer_norm: false
  qk_layer_norm_cross: false
  attention_dropout: null
  kv_repeat: 1
  two_step_cfg: false
codebooks_pattern:
  modeling: delay
  delay: {{delays: {:?}, flatten_first: 0, empty_initial: 0}}
attribute_dropout: {{}}
classifier_free_guidance: {{training_dropout: 0.3, inference_coef: 3.0}}
fuser:
  cross_attention_pos_emb: false
  cross_attention_pos_emb_scale: 1
  sum: []
  prepend: []
  cross: [{TEXT}]
  input_interpolate: []
conditioners:
  {TEXT}:
    model: t5
    t5: {{name: {t5}, finetune: false, word_dropout: 0.3, normalize_text: false}}
",
        config.delays
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::musicgen::package;
    use ambitus_models::musicgen::config::delays;

    #[test]
    fn what_is_written_is_read_again() {
        let stereo = Config { delays: delays(8, 2), channels: 2, ..Config::small() };
        for config in [Config::small(), stereo, Config { ffn: 1500, ..Config::small() }] {
            assert_eq!(package::config(&yaml(&config)).unwrap(), (config, TEXT.to_owned()));
        }
    }
}
