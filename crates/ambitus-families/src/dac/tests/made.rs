//! Folders of DACs with random weights.

use crate::codec::made::{self, Folder, Spelling, Values, held, random};
use ambitus_models::common::codec::weights::Tensor;
use ambitus_models::dac::config::Config;
use ambitus_models::dac::weights::{Names, tensors};

/// A small codec with these strides, whose latent channels are not the encoder's.
pub fn shape(rates: &[usize]) -> Config {
    Config {
        encoder_dim: 3,
        encoder_rates: rates.to_vec(),
        latent_dim: 11,
        decoder_dim: 17,
        decoder_rates: rates.iter().rev().copied().collect(),
        codebook_size: 19,
        codebook_dim: 4,
        vq_strides: vec![1; 3],
    }
}

/// Returns (g, v) or the values of a tensor: snakes' frequencies about one, and convolutions that neither die nor explode. What goes
/// through a tanh at the end must not saturate it.
fn values(t: &Tensor) -> Values {
    let n: usize = t.dims.iter().product();
    let mut v = random(&t.name, n);
    if t.name.ends_with("alpha") {
        v.iter_mut().for_each(|x| *x = 1.0 + 0.5 * *x);
    }
    let g = t.normed.then(|| {
        let norms = random(&format!("{} g", t.name), t.dims[0]);
        let last = t.name.starts_with("decoder") && t.dims[0] == 1;
        let size = match last {
            true => 0.05,
            false if t.name.ends_with("block.3.weight") => 0.3,
            false => 0.9,
        };
        norms.iter().map(|x| size * (1.0 + 0.3 * x)).collect()
    });
    (g, v)
}

/// Returns a tensor with its norm.
pub fn folded(t: &Tensor) -> Vec<f32> {
    made::folded(t, values(t))
}

/// Writes a codec under a prefix; where that is a model's part, some tensors of the model too.
pub fn written(cfg: &Config, names: Names, spelling: Spelling, prefix: &str) -> Folder {
    let mut held = held(&tensors(cfg), values, |state| format!("{prefix}{}", names.of(state)), spelling);
    let mut own =
        r#"{"model_type":"dac","sampling_rate":16000,"codebook_size":19,"n_codebooks":3}"#.to_owned();
    if prefix.starts_with("audio_encoder.") {
        held.insert("text_encoder.shared.weight".to_owned(), (vec![2, 2], vec![0.0; 4]));
        held.insert("decoder.model.decoder.layer_norm.weight".to_owned(), (vec![2], vec![1.0; 2]));
        own = format!(r#"{{"model_type":"parler_tts","hidden_size":"no codec's","audio_encoder":{own}}}"#);
    }
    Folder::new(&own, &held)
}
