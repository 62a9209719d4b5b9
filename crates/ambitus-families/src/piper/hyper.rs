//! The options in a trainer's checkpoint, `hyper_parameters`, and what shapes of its tensors say: the shape of the model.

use crate::error::RunError;
use crate::weights::{MAX_CONFIG_BYTES, Weights, read_text};
use ambitus_models::hifigan::config::{Block, Unit, Up};
use ambitus_models::piper::config::{
    Config, Durations, Gated, Judging, PERIOD_STRIDES, PERIODS, STRIDES, Spectra,
};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The trainer's options in a run's folder, of which exports are made.
pub(super) const OPTIONS_FILE: &str = "options.json";
/// In it, the shape of the model: the trainer's options do not say all of it.
pub(super) const SHAPE: &str = "shape";
/// Numbers of a speaker where the options say none: what the trainer takes then.
const SPEAKER: usize = 512;

/// Of `hyper_parameters`, what says what is computed. Absent ones are piper1-gpl's defaults.
#[derive(Deserialize)]
#[serde(default)]
struct Options {
    sample_rate: u32,
    num_speakers: usize,
    resblock_dilation_sizes: Value,
    upsample_rates: Value,
    filter_length: usize,
    hop_length: usize,
    win_length: usize,
    mel_channels: usize,
    mel_fmin: f64,
    mel_fmax: Option<f64>,
    n_heads: usize,
    gin_channels: usize,
    use_sdp: bool,
    use_spectral_norm: bool,
    use_mrd: bool,
    segment_size: usize,
    c_mel: f64,
    c_kl: f64,
    p_dropout: f64,
}

impl Default for Options {
    fn default() -> Options {
        let Config { spectra: s, heads, mel_weight, kl_weight, dropout, .. } = Config::medium();
        Options {
            sample_rate: s.rate,
            num_speakers: 1,
            resblock_dilation_sizes: serde_json::json!([[1, 2], [2, 6], [3, 12]]),
            upsample_rates: serde_json::json!([8, 8, 4]),
            filter_length: s.n_fft,
            hop_length: s.hop,
            win_length: s.window,
            mel_channels: s.bands,
            mel_fmin: s.low,
            mel_fmax: None,
            n_heads: heads,
            gin_channels: 0,
            use_sdp: true,
            use_spectral_norm: false,
            use_mrd: false,
            segment_size: 8192,
            c_mel: mel_weight.into(),
            c_kl: kl_weight.into(),
            p_dropout: f64::from(dropout),
        }
    }
}

/// Reads the model's shape; `speakers`: instead of those that it has.
///
/// # Errors
/// Names the option or the tensor: what is missing, impossible, or not computed here.
pub(super) fn config(weights: &Weights, speakers: Option<usize>) -> Result<Config, RunError> {
    let fail = |why: String| RunError::Model(format!("{}: {why}", weights.path.display()));
    let settings = weights.files[0].settings().cloned().unwrap_or_else(|| Value::Object(Default::default()));
    let mut options: Options = serde_json::from_value(settings)
        .map_err(|e| fail(format!("hyper_parameters: {}", short(&e.to_string()))))?;
    options.num_speakers = speakers.unwrap_or(options.num_speakers);
    let config = shape(&options, &Shapes(weights)).map_err(fail)?;
    config.check().map_err(|e| fail(e.to_string()))?;
    Ok(config)
}

/// Returns the options under which the trainer builds this model: what the checkpoint said of other things, and its shape.
pub(super) fn written(config: &Config, weights: Option<&Weights>) -> Value {
    let said = weights.and_then(|weights| weights.files[0].settings()?.as_object().cloned());
    let mut all = said.unwrap_or_default();
    // What was neither number nor text: paths of another machine.
    all.retain(|_, value| !value.is_null());
    let Config { spectra: s, durations, .. } = config;
    let [taps, rates] =
        [|up: &Up| up.taps, |up: &Up| up.rate].map(|of| config.ups.iter().map(of).collect::<Vec<_>>());
    let kernels: Vec<usize> = config.blocks.iter().map(|block| block.taps).collect();
    let dilations: Vec<&[usize]> = config.blocks.iter().map(|block| &*block.dilations).collect();
    let shape = serde_json::json!({
        "sample_rate": s.rate, "num_symbols": config.symbols, "num_speakers": config.speakers,
        "resblock": match config.unit { Unit::Double => "1", Unit::Single => "2" },
        "resblock_kernel_sizes": kernels, "resblock_dilation_sizes": dilations,
        "upsample_rates": rates, "upsample_kernel_sizes": taps, "upsample_initial_channel": config.width,
        "filter_length": s.n_fft, "hop_length": s.hop, "win_length": s.window,
        "mel_channels": s.bands, "mel_fmin": s.low, "mel_fmax": s.high,
        "inter_channels": config.inter, "hidden_channels": config.hidden, "filter_channels": config.filter,
        "n_heads": config.heads, "n_layers": config.layers, "kernel_size": config.kernel,
        "p_dropout": said_as(config.dropout), "use_spectral_norm": false, "use_mrd": false, "gin_channels": config.speaker,
        "use_sdp": matches!(durations, Durations::Stochastic { .. }), "segment_size": config.slice(),
        "c_mel": said_as(config.mel_weight), "c_kl": said_as(config.kl_weight),
    });
    if let Value::Object(shape) = shape {
        all.extend(shape);
    }
    let shape = serde_json::to_value(config).expect("numbers and lists of them");
    all.insert(SHAPE.to_owned(), shape);
    Value::Object(all)
}

/// Returns the shortest number that a float is the nearest to.
fn said_as(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// Returns the shape of a model of which a run kept the options in a folder; none where it did not. `speakers`: instead of those that it has.
///
/// # Errors
/// A file that cannot be read, or says an impossible shape.
pub(super) fn kept(dir: &Path, speakers: Option<usize>) -> Result<Option<Config>, RunError> {
    let path = dir.join(OPTIONS_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let fail = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let shape = read_json(&path)?.get_mut(SHAPE).map(Value::take);
    let read = shape.map(serde_json::from_value::<Config>).transpose();
    let mut config = read.map_err(|e| fail(format!("{SHAPE}: {}", short(&e.to_string()))))?;
    if let (Some(config), Some(n)) = (&mut config, speakers) {
        (config.speakers, config.speaker) = (n, numbers(n, config.speaker));
    }
    config.as_ref().map_or(Ok(()), Config::check).map_err(|e| fail(e.to_string()))?;
    Ok(config)
}

/// Reads a file that a run kept.
///
/// # Errors
/// One that cannot be read.
pub(super) fn read_json(path: &Path) -> Result<Value, RunError> {
    let text = read_text(path, MAX_CONFIG_BYTES, "it was written when the run began")?;
    serde_json::from_str(&text)
        .map_err(|e| RunError::Model(format!("{}: {}", path.display(), short(&e.to_string()))))
}

/// Returns the numbers of a speaker of so many, where the trainer's options say `gin_channels`.
pub(super) fn numbers(speakers: usize, gin_channels: usize) -> usize {
    match (speakers, gin_channels) {
        (..=1, _) => 0,
        (_, 0) => SPEAKER,
        (_, n) => n,
    }
}

fn shape(options: &Options, of: &Shapes<'_>) -> Result<Config, String> {
    for (key, on) in [("use_spectral_norm", options.use_spectral_norm), ("use_mrd", options.use_mrd)] {
        if on {
            return Err(format!("hyper_parameters.{key}: true is not computed here; false is"));
        }
    }
    let hop = options.hop_length.max(1);
    if !options.segment_size.is_multiple_of(hop) {
        let why = format!("{} is no multiple of hop_length, {hop}", options.segment_size);
        return Err(format!("hyper_parameters.segment_size: {why}"));
    }
    let [symbols, hidden] = of.two("model_g.enc_p.emb.weight", [0, 1])?;
    let inter = of.one("model_g.enc_p.proj.weight", 0)? / 2;
    let layers = of.count("model_g.enc_p.encoder.attn_layers.");
    let [filter, kernel] = of.two("model_g.enc_p.encoder.ffn_layers.0.conv_1.weight", [0, 2])?;
    let places = of.one("model_g.enc_p.encoder.attn_layers.0.emb_rel_k", 1)?;
    let gated = |under: &str| -> Result<Gated, String> {
        let taps = of.one(&format!("{under}.in_layers.0.weight_v"), 2)?;
        Ok(Gated { layers: of.count(&format!("{under}.in_layers.")), taps })
    };
    let durations = match options.use_sdp {
        true => Durations::Stochastic { taps: of.one("model_g.dp.convs.convs_sep.0.weight", 2)? },
        false => {
            let [width, taps] = of.two("model_g.dp.conv_1.weight", [0, 2])?;
            Durations::Plain { width, taps }
        }
    };
    let (unit, blocks) = blocks(options, of)?;
    let rate = options.sample_rate;
    let spectra = Spectra {
        rate,
        n_fft: options.filter_length,
        hop,
        window: options.win_length,
        bands: options.mel_channels,
        low: options.mel_fmin,
        high: options.mel_fmax.unwrap_or(f64::from(rate) / 2.0),
    };
    Ok(Config {
        symbols,
        hidden,
        inter,
        filter,
        heads: options.n_heads,
        layers,
        kernel,
        near: places / 2,
        speakers: options.num_speakers.max(1),
        speaker: numbers(options.num_speakers, options.gin_channels),
        posterior: gated("model_g.enc_q.enc")?,
        coupling: gated("model_g.flow.flows.0.enc")?,
        durations,
        width: of.one("model_g.dec.conv_pre.weight", 0)?,
        ups: ups(options, of)?,
        blocks,
        unit,
        judges: judges(of)?,
        segment: options.segment_size / hop,
        spectra,
        mel_weight: options.c_mel as f32,
        kl_weight: options.c_kl as f32,
        dropout: options.p_dropout as f32,
        context: 1,
    })
}

fn ups(options: &Options, of: &Shapes<'_>) -> Result<Vec<Up>, String> {
    let rates: Vec<usize> = listed("upsample_rates", &options.upsample_rates)?;
    let up = |(i, rate): (usize, usize)| {
        let taps = of.one(&format!("model_g.dec.ups.{i}.weight_v"), 2)?;
        Ok(Up { rate, taps })
    };
    rates.into_iter().enumerate().map(up).collect()
}

/// Returns what residual blocks are made of, and those of a step.
fn blocks(options: &Options, of: &Shapes<'_>) -> Result<(Unit, Vec<Block>), String> {
    // The option is a word or a number, depending on who wrote it; the tensors' names are one thing.
    let (unit, first) = match of.0.shape_of("model_g.dec.resblocks.0.convs1.0.weight_v") {
        Some(_) => (Unit::Double, "convs1"),
        None => (Unit::Single, "convs"),
    };
    let dilations: Vec<Vec<usize>> = listed("resblock_dilation_sizes", &options.resblock_dilation_sizes)?;
    let block = |(i, dilations): (usize, Vec<usize>)| {
        let taps = of.one(&format!("model_g.dec.resblocks.{i}.{first}.0.weight_v"), 2)?;
        Ok(Block { taps, dilations })
    };
    let blocks: Result<Vec<Block>, String> = dilations.into_iter().enumerate().map(block).collect();
    Ok((unit, blocks?))
}

/// Returns the convolutions of each discriminator.
fn judges(of: &Shapes<'_>) -> Result<Vec<Vec<Judging>>, String> {
    let judge = |i: usize| {
        let strides = if i == 0 { &STRIDES[..] } else { &PERIOD_STRIDES[..] };
        let (mut inputs, mut judge) = (1, Vec::new());
        for (k, &stride) in strides.iter().chain(&[1]).enumerate() {
            let layer = if k == strides.len() { "conv_post".to_owned() } else { format!("convs.{k}") };
            let name = format!("model_d.discriminators.{i}.{layer}.weight_v");
            let [out, of_group] = of.two(&name, [0, 1])?;
            let taps = of.one(&name, 2)?;
            if of_group == 0 || inputs % of_group > 0 {
                return Err(format!("{name}: {of_group} channels of a group do not divide {inputs}"));
            }
            judge.push(Judging { out, taps, groups: inputs / of_group, stride });
            inputs = out;
        }
        Ok(judge)
    };
    (0..=PERIODS.len()).map(judge).collect()
}

/// Shapes of the checkpoint's tensors.
struct Shapes<'a>(&'a Weights);

impl Shapes<'_> {
    fn one(&self, name: &str, axis: usize) -> Result<usize, String> {
        let shape = self.0.shape_of(name).ok_or_else(|| format!("tensor {name} is missing"))?;
        let n = shape.get(axis).copied().filter(|n| *n > 0);
        n.ok_or_else(|| format!("tensor {name} is {shape:?}, which has no axis {axis}"))
    }

    fn two(&self, name: &str, axes: [usize; 2]) -> Result<[usize; 2], String> {
        Ok([self.one(name, axes[0])?, self.one(name, axes[1])?])
    }

    /// Returns how many numbered modules there are under a name.
    fn count(&self, under: &str) -> usize {
        let number = |name: &str| name.strip_prefix(under)?.split('.').next()?.parse::<usize>().ok();
        self.0.names().filter_map(number).max().map_or(0, |last| last.saturating_add(1))
    }
}

/// Returns a list of an option, which may be written as Python writes one: `(8, 8, 4)`.
fn listed<T: serde::de::DeserializeOwned>(key: &str, value: &Value) -> Result<Vec<T>, String> {
    let read = match value {
        Value::String(text) => serde_json::from_str(&as_json(text)),
        value => serde_json::from_value(value.clone()),
    };
    read.map_err(|_| format!("hyper_parameters.{key}: {} is not understood", short(&value.to_string())))
}

/// Returns nested tuples as JSON. The outermost parentheses may be left out, as Python allows.
fn as_json(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = text.replace('(', "[").replace(')', "]").replace(",]", "]");
    let whole = text.starts_with('[') && {
        let mut depth = 0;
        let closes = text.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '[') - i32::from(*c == ']');
            depth == 0
        });
        closes.is_some_and(|(at, _)| at + 1 == text.len())
    };
    if whole { text } else { format!("[{}]", text.trim_end_matches(',')) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_trainer_and_its_command_line_write_them() {
        let of = |value: Value| listed::<usize>("upsample_rates", &value).unwrap();
        assert_eq!(of(serde_json::json!([8, 8, 4])), [8, 8, 4]);
        assert_eq!(of("(8, 8, 4)".into()), [8, 8, 4]);
        assert_eq!(of("8,8,4".into()), [8, 8, 4]);
        let nested = listed::<Vec<usize>>("resblock_dilation_sizes", &"((1, 3), (2,),)".into()).unwrap();
        assert_eq!(nested, [vec![1, 3], vec![2]]);
        let nested = listed::<Vec<usize>>("resblock_dilation_sizes", &"(1, 2), (2, 6)".into()).unwrap();
        assert_eq!(nested, [vec![1, 2], vec![2, 6]]);
        let why = listed::<usize>("upsample_rates", &"os.system(1)".into()).unwrap_err();
        assert!(why.contains("hyper_parameters.upsample_rates: \"os.system(1)\" is not understood"), "{why}");
    }
}
