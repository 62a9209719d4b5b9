//! A voice as an ONNX file and the JSON beside it, as Piper's programs take them: `NAME.onnx` and `NAME.onnx.json`.
//!
//! The graph is what the trainer's modules compute when they speak (VITS, arXiv 2106.06103; piper1-gpl @b275826), with opset 15. Inputs: `input`
//! i64 `[batch_size, phonemes]`, ids; `input_lengths` i64 `[batch_size]`; `scales` f32 `[3]`, what the noise of frames, durations and the
//! noise of durations are multiplied by; `sid` i64 `[1]`, the speaker of all texts, where there are several. Output: `output` f32
//! `[batch_size, 1, 1, time]`, samples. The third axis is the trainer's: released voices have it. Behind the end of a text that is shorter than
//! others of its batch, samples mean nothing, as in a released voice.
//!
//! Initializers have the checkpoint's names without `model_g.`, and weights that it stores as lengths and directions are products, named as
//! other weights: `dec.ups.0.weight`. They are read and written one at a time.

mod durations;
mod frames;
mod graph;
mod layers;
mod proto;
mod sound;
#[cfg(test)]
mod tests;
mod text;

use crate::error::{RunError, is_full};
use ambitus_models::piper::config::Config;
use graph::{Axis, Graph, Initializer, Kind, Source};
use proto::Message;
use serde_json::{Value, json};
use std::io::Write;

/// What stands before the generator's names in a checkpoint.
const PREFIX: &str = "model_g.";
/// Of the format (`IR_VERSION_2021_7_30`, the one of opset 15 and later ones).
const IR_VERSION: i64 = 8;
/// Of operators, as in the trainer's own files.
const OPSET: i64 = 15;
/// A message of protocol buffers is smaller than 2 GiB.
const MOST_BYTES: u64 = i32::MAX as u64;
/// Numbers that are written at once.
const PIECE: usize = 1 << 14;
/// What `piper_version` says where the trainer's file had none: that of released voices.
const PIPER_VERSION: &str = "1.0.0";

/// Writes a voice's ONNX file to `out`. `weights` returns all values of a tensor of the checkpoint, by its name there (`model_g.*`), in the
/// order of its axes; it is asked for two at most at a time, and those are what is in memory. `metadata`: keys and values that go into the file
/// (`metadata_props`). The same arguments give the same bytes.
///
/// # Errors
/// A configuration that is none, a tensor of another size, with values that are no numbers or with a direction of no length, a file of 2 GiB or more;
/// what `weights` fails with, and a failed write.
pub fn write(
    config: &Config,
    weights: &mut dyn FnMut(&str) -> Result<Vec<f32>, RunError>,
    metadata: &[(&str, &str)],
    out: &mut dyn Write,
) -> Result<(), RunError> {
    config.check().map_err(|e| RunError::Model(e.to_string()))?;
    let graph = graph(config);
    let (before, heads, after) = frame(&graph, metadata)?;
    let mut put = |bytes: &[u8]| out.write_all(bytes).map_err(failed);
    put(before.bytes())?;
    for (tensor, head) in graph.initializers().iter().zip(&heads) {
        put(head.bytes())?;
        match &tensor.source {
            Source::Ints(all) => put_all(all, |n| n.to_le_bytes(), &mut put)?,
            Source::Floats(all) => put_all(all, |x| x.to_le_bytes(), &mut put)?,
            Source::Tensor => {
                let all = read(weights, &format!("{PREFIX}{}", tensor.name), tensor.elements())?;
                put_all(&all, |x| x.to_le_bytes(), &mut put)?;
            }
            Source::Normed(layer) => {
                let all = product(weights, layer, &tensor.dims)?;
                put_all(&all, |x| x.to_le_bytes(), &mut put)?;
            }
        }
    }
    put(after.bytes())?;
    out.flush().map_err(failed)
}

/// Returns the JSON beside a voice's ONNX file, of the `config.json` of its folder: all that is in it, with what the model says of rate, samples
/// of a frame, symbols and speakers, and, where absent, the usual scales, no names of speakers and a version.
pub fn voice_json(config_json: &Value, config: &Config) -> Value {
    let mut voice = config_json.as_object().cloned().unwrap_or_default();
    let mut audio = voice.get("audio").and_then(Value::as_object).cloned().unwrap_or_default();
    audio.insert("sample_rate".to_owned(), json!(config.spectra.rate));
    let mut scales = voice.get("inference").and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, usual) in [("noise_scale", 0.667), ("length_scale", 1.0), ("noise_w", 0.8)] {
        scales.entry(key).or_insert(json!(usual));
    }
    for (key, value) in [
        ("audio", Value::Object(audio)),
        ("inference", Value::Object(scales)),
        ("num_symbols", json!(config.symbols)),
        ("num_speakers", json!(config.speakers)),
        ("hop_length", json!(config.spectra.hop)),
    ] {
        voice.insert(key.to_owned(), value);
    }
    voice.entry("speaker_id_map").or_insert(json!({}));
    voice.entry("piper_version").or_insert(json!(PIPER_VERSION));
    Value::Object(voice)
}

/// Returns the graph of a voice.
fn graph(cfg: &Config) -> Graph {
    const BATCH: Axis = Axis::Any("batch_size");
    let mut graph = Graph::default();
    let g = &mut graph;
    let ids = g.input("input", Kind::Int, &[BATCH, Axis::Any("phonemes")]);
    let lengths = g.input("input_lengths", Kind::Int, &[BATCH]);
    let scales = g.input("scales", Kind::Float, &[Axis::Of(3)]);
    let voice = (cfg.speakers > 1).then(|| {
        let number = g.input("sid", Kind::Int, &[Axis::Of(1)]);
        frames::voice(g, cfg, number)
    });
    let [noise, pace] = [0, 1].map(|i| layers::entry(g, scales, i));
    let text = text::encode(g, cfg, [ids, lengths]);
    let logarithms = durations::predict(g, cfg, &text, voice, scales);
    let frames = frames::lasting(g, &text, logarithms, pace);
    let x = frames::drawn(g, &text, &frames, noise);
    let x = frames::flow(g, cfg, &frames, voice, x);
    let x = g.op("Mul", &[x, frames.mask]);
    let wave = sound::generate(g, cfg, voice, x);
    let axis = g.ints(&[1]);
    let one = Axis::Of(1);
    g.output("output", "Unsqueeze", &[wave, axis], &[BATCH, one, one, Axis::Any("time")]);
    graph
}

/// Returns what is in the file before the initializers (`ModelProto`, `GraphProto`), before the values of each (`TensorProto`), and behind all.
fn frame(graph: &Graph, metadata: &[(&str, &str)]) -> Result<(Message, Vec<Message>, Message), RunError> {
    let mut name = Message::default();
    name.text(2, "voice");
    let (mut heads, mut bytes) = (Vec::new(), 0);
    for tensor in graph.initializers() {
        let head = head(tensor);
        bytes += head.bytes().len() as u64 + tensor.value_bytes();
        heads.push(head);
    }
    bytes += (graph.nodes().len() + name.bytes().len() + graph.ends().len()) as u64;

    let mut before = Message::default();
    before.int(1, IR_VERSION);
    before.text(2, "ambitus");
    before.text(3, env!("CARGO_PKG_VERSION"));
    before.head(7, bytes);
    before.extend(graph.nodes());
    before.extend(name.bytes());
    let mut after = Message::default();
    after.extend(graph.ends());
    let mut opset = Message::default();
    opset.text(1, "");
    opset.int(2, OPSET);
    after.message(8, &opset);
    for (key, value) in metadata {
        let mut entry = Message::default();
        entry.text(1, key);
        entry.text(2, value);
        after.message(14, &entry);
    }
    if bytes + after.bytes().len() as u64 > MOST_BYTES {
        return Err(RunError::Model(format!(
            "the voice has {bytes} bytes; an ONNX file has less than 2 GiB"
        )));
    }
    Ok((before, heads, after))
}

/// Returns what stands before a tensor's values.
fn head(tensor: &Initializer) -> Message {
    let mut of = Message::default();
    for &n in &tensor.dims {
        of.int(1, n as i64);
    }
    of.int(2, tensor.kind() as i64);
    of.text(8, &tensor.name);
    of.head(9, tensor.value_bytes());
    let mut head = Message::default();
    head.head(5, of.bytes().len() as u64 + tensor.value_bytes());
    head.extend(of.bytes());
    head
}

/// Writes numbers as bytes, the lowest first.
fn put_all<T: Copy, const N: usize>(
    all: &[T],
    bytes: impl Fn(T) -> [u8; N],
    put: &mut impl FnMut(&[u8]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let mut buffer = Vec::with_capacity(N * all.len().min(PIECE));
    for piece in all.chunks(PIECE) {
        buffer.clear();
        buffer.extend(piece.iter().flat_map(|x| bytes(*x)));
        put(&buffer)?;
    }
    Ok(())
}

/// Returns a tensor of the checkpoint.
fn read(
    weights: &mut dyn FnMut(&str) -> Result<Vec<f32>, RunError>,
    name: &str,
    elements: usize,
) -> Result<Vec<f32>, RunError> {
    let all = weights(name)?;
    if all.len() != elements {
        let why = format!("{name} has {} values; the voice's shape wants {elements}", all.len());
        return Err(RunError::Model(why));
    }
    match all.iter().position(|x| !x.is_finite()) {
        Some(i) => {
            Err(RunError::Model(format!("{name}: value {i} is {}; such a voice does not speak", all[i])))
        }
        None => Ok(all),
    }
}

/// Returns g v / |v| of a layer, |v| over all axes but the first.
fn product(
    weights: &mut dyn FnMut(&str) -> Result<Vec<f32>, RunError>,
    layer: &str,
    dims: &[usize],
) -> Result<Vec<f32>, RunError> {
    let (rows, row) = (dims[0], dims[1..].iter().product::<usize>());
    let lengths = read(weights, &format!("{PREFIX}{layer}.weight_g"), rows)?;
    let name = format!("{PREFIX}{layer}.weight_v");
    let mut all = read(weights, &name, rows * row)?;
    for (i, (direction, length)) in all.chunks_mut(row).zip(lengths).enumerate() {
        let square: f64 = direction.iter().map(|x| f64::from(*x).powi(2)).sum();
        if square == 0.0 {
            return Err(RunError::Model(format!("{name}: row {i} is zero, which is no direction")));
        }
        let by = f64::from(length) / square.sqrt();
        direction.iter_mut().for_each(|x| *x = (f64::from(*x) * by) as f32);
    }
    Ok(all)
}

/// Returns the error of a write.
fn failed(e: std::io::Error) -> RunError {
    let text = format!("cannot write the voice: {e}");
    if is_full(&e) { RunError::Full(text) } else { RunError::Io(text) }
}
