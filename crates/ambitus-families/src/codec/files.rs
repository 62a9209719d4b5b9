//! From files of sound, codes or mel frames to files, in bounded memory.

use super::codes::{is_tensors, number, of_file, of_tensors};
use super::{Codec, Codes, CodesFile, Decoding, Encoding, SideBySide, Spec, Vocoder};
use crate::error::{RunError, replaces_a_file};
use ambitus_data::SoundWriter;
use ambitus_data::audio::{AudioReader, Resampler};
use ambitus_data::wav::write_wav_pieces;
use ambitus_data::{AudioFault, DataError};
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::collections::BTreeMap;
use std::path::Path;

/// The tensor of a sound.
const WAVE: &str = "wave";
/// The tensor of mel frames.
const MEL: &str = "mel";
/// The most bytes of mel frames, which are read at once: almost two hours at 24 kHz.
const MAX_MEL_BYTES: usize = 256 << 20;
/// Samples read at a time.
const PIECE: usize = 1 << 16;
/// Bytes through which tensors are read.
const STAGING_BYTES: usize = 64 << 10;

/// Encodes an audio file of any length, rate and number of channels, or `wave` f32 `[n]` of a safetensors file, at the codec's
/// own rate.
///
/// # Errors
/// Audio that cannot be used; the executor.
pub fn encode_file(codec: &mut dyn Codec, audio: &Path) -> Result<CodesFile, RunError> {
    let (codes, samples) = encode(codec, audio, None)?;
    codes_file(codec.spec(), audio, codes, samples)
}

/// Encodes both channels of an audio file apart ([`Codes::of_channels`]), or `wave` f32 `[2, n]` of a safetensors file: twice the time, and
/// no more memory. A file of one channel is both.
///
/// # Errors
/// As [`encode_file`].
pub fn encode_stereo_file(codec: &mut dyn Codec, audio: &Path) -> Result<CodesFile, RunError> {
    let (left, samples) = encode(codec, audio, Some(0))?;
    let (right, _) = encode(codec, audio, Some(1))?;
    codes_file(&codec.spec().stereo(), audio, Codes::of_channels(left, right), samples)
}

/// Returns the codes of a file, or of one of its channels, and its samples at the codec's rate.
fn encode(codec: &mut dyn Codec, audio: &Path, channel: Option<usize>) -> Result<(Codes, u64), RunError> {
    let rate = codec.spec().rate;
    let mut encoding = codec.encoding()?;
    let samples = match is_tensors(audio) {
        true => push_wave(&mut *encoding, audio, rate, channel)?,
        false => push_audio(&mut *encoding, audio, rate, channel)?,
    };
    if samples == 0 {
        let (path, reason) = (audio.to_owned(), AudioFault::Empty);
        return Err(DataError::Audio { path, reason }.into());
    }
    Ok((encoding.finish()?, samples))
}

/// Returns the file of a sound's codes.
fn codes_file(spec: &Spec, audio: &Path, codes: Codes, samples: u64) -> Result<CodesFile, RunError> {
    let rate = spec.rate;
    let frames = spec.frames(&codes).map_err(RunError::Training)?;
    if frames == 0 {
        let why = format!("has {samples} samples at {rate} Hz, less than one frame of {}", spec.frame);
        return Err(of_file(audio, why));
    }
    // A codec that does not pad leaves out what is less than a frame.
    let samples = samples.min(spec.samples(frames) as u64);
    Ok(CodesFile { sample_rate: rate, samples: Some(samples), codes: codes.layers })
}

/// Gives an audio file to an encoder, or one channel of it, and returns its samples at `rate`.
fn push_audio(
    encoding: &mut dyn Encoding,
    audio: &Path,
    rate: u32,
    channel: Option<usize>,
) -> Result<u64, RunError> {
    let mut reader = AudioReader::open(audio)?;
    if let Some(channel) = channel {
        reader = reader.of_channel(channel);
    }
    let mut resampler = Resampler::new(reader.info().rate, rate);
    let (mut samples, mut piece) = (0u64, Vec::new());
    while let Some(chunk) = reader.next_chunk()? {
        piece.clear();
        resampler.push(chunk, &mut piece);
        samples += piece.len() as u64;
        encoding.push(&piece)?;
    }
    piece.clear();
    resampler.finish(&mut piece);
    samples += piece.len() as u64;
    encoding.push(&piece)?;
    Ok(samples)
}

/// Gives the tensor of a sound to an encoder, or one channel of it, and returns its samples.
fn push_wave(
    encoding: &mut dyn Encoding,
    path: &Path,
    rate: u32,
    channel: Option<usize>,
) -> Result<u64, RunError> {
    let (file, shape) = floats(path, WAVE)?;
    let (from, samples) = match (channel, &shape[..]) {
        (None, &[samples]) => (0, samples),
        (Some(channel), &[2, samples]) => (channel * samples, samples),
        _ => {
            let want = if channel.is_none() { "[samples]" } else { "[2, samples]" };
            return Err(of_file(path, format!("{WAVE}: is {shape:?}, must be {want}")));
        }
    };
    if let Some(other) = number::<u32>(&file, "sample_rate")?.filter(|other| *other != rate) {
        let why =
            format!("metadata `sample_rate`: {other} Hz, this codec's is {rate} Hz; give it a wav file");
        return Err(of_file(path, why));
    }
    let (mut scratch, mut piece) = (vec![0; STAGING_BYTES], Vec::new());
    for first in (0..samples).step_by(PIECE) {
        piece.clear();
        let range = from + first..from + samples.min(first + PIECE);
        let read = file.read_range(WAVE, range, &mut scratch, |_, values| piece.extend_from_slice(values));
        read.map_err(of_tensors)?;
        if let Some(i) = piece.iter().position(|x| !x.is_finite()) {
            return Err(of_file(path, format!("{WAVE}[{}]: is {}", first + i, piece[i])));
        }
        encoding.push(&piece)?;
    }
    Ok(samples as u64)
}

/// Opens a file with a tensor of floats, and returns its shape.
fn floats(path: &Path, name: &str) -> Result<(TensorFile, Vec<usize>), RunError> {
    let file = TensorFile::open(path).map_err(of_tensors)?;
    let tensor = file.get(name).map_err(of_tensors)?;
    if !tensor.dtype().is_float() {
        let why = format!("{name}: holds {}, must hold floats (F32)", tensor.dtype().name());
        return Err(of_file(path, why));
    }
    let shape = tensor.shape().to_vec();
    Ok((file, shape))
}

/// Decodes a file of codes to a file of sound ([`write_sound`]) and returns its samples; with a seed, the noise blocks add
/// noise. A codec of mel frames gives `mel` f32 `[T, channels]` of a safetensors file.
///
/// # Errors
/// As [`CodesFile::read`] and [`write_sound`]; another file for mel frames.
pub fn decode_file(
    codec: &mut dyn Codec,
    codes: &Path,
    out: &Path,
    noise: Option<u64>,
) -> Result<u64, RunError> {
    let rate = codec.spec().rate;
    let (file, codes) = CodesFile::read(codes, codec.spec())?;
    let frames = codec.spec().frames(&codes).map_err(|why| RunError::Data(DataError::Invalid(why)))?;
    let samples = file.samples.unwrap_or(codec.spec().samples(frames) as u64);
    if let Some(mels) = codec.mels() {
        let shape = [codec.spec().samples(frames) / mels.hop, mels.channels];
        if !is_tensors(out) {
            return Err(RunError::Usage(format!(
                "{}: this codec gives mel frames, which are no sound yet; name a .safetensors file, which will hold `{MEL}` {shape:?}",
                out.display()
            )));
        }
        write_values(out, MEL, &shape, mels.rate, &mut *codec.decoding_of(&codes, frames, noise)?)?;
        return Ok(samples);
    }
    write_sound(out, rate, samples, &mut *codec.decoding_of(&codes, frames, noise)?)?;
    Ok(samples)
}

/// Decodes a file of codes of two channels ([`Codes::of_channels`]) to a sound of two, `wave` f32 `[2, n]` where the file's name ends in
/// `.safetensors`, and returns the samples of a channel. Two codecs are needed, since a sound file has both channels side by side.
///
/// # Errors
/// As [`decode_file`]; a codec of mel frames.
pub fn decode_stereo_file(
    [left, right]: [&mut dyn Codec; 2],
    codes: &Path,
    out: &Path,
) -> Result<u64, RunError> {
    if left.mels().is_some() {
        return Err(RunError::Usage("this codec gives mel frames, which have no channels".to_owned()));
    }
    let spec = left.spec().stereo();
    let (file, codes) = CodesFile::read(codes, &spec)?;
    let frames = spec.frames(&codes).map_err(|why| RunError::Data(DataError::Invalid(why)))?;
    let samples = file.samples.unwrap_or(spec.samples(frames) as u64);
    let parts = codes.channels();
    replaces_a_file(out)?;
    if is_tensors(out) {
        let mut channels = [left.decoding(&parts[0], None)?, right.decoding(&parts[1], None)?];
        write_rows(out, WAVE, &[2, samples as usize], spec.rate, &mut channels)?;
        return Ok(samples);
    }
    let mut sound = SoundWriter::create(out, spec.rate, 2)?;
    take(&mut SideBySide::new([left, right], &parts)?, 2 * samples as usize, &mut |piece| {
        Ok(sound.push(piece)?)
    })?;
    Ok(sound.finish()?)
}

/// Decodes `mel` `[T, channels]` of a safetensors file to a file of sound ([`write_sound`]) and returns its samples and the
/// bytes that this took.
///
/// # Errors
/// Frames that are not this vocoder's; the executor; as [`write_sound`].
pub fn decode_mel_file(vocoder: &mut dyn Vocoder, mel: &Path, out: &Path) -> Result<(u64, u64), RunError> {
    let frames = read_mel(mel, vocoder.mels().channels)?;
    let samples = vocoder.samples(frames.len() / vocoder.mels().channels) as u64;
    let (rate, bytes) = (vocoder.mels().rate, vocoder.bytes() + 4 * frames.len() as u64);
    write_sound(out, rate, samples, &mut *vocoder.decoding(&frames, 0)?)?;
    Ok((samples, bytes))
}

fn read_mel(path: &Path, channels: usize) -> Result<Vec<f32>, RunError> {
    let (file, shape) = floats(path, MEL)?;
    if shape.len() != 2 || shape[1] != channels {
        return Err(of_file(path, format!("{MEL}: is {shape:?}, must be [frames, {channels}]")));
    }
    let values: usize = shape.iter().product();
    if values > MAX_MEL_BYTES / 4 {
        let why = format!(
            "{MEL}: {} frames are more than the {} that are read",
            shape[0],
            MAX_MEL_BYTES / 4 / channels
        );
        return Err(of_file(path, format!("{why}; cut it")));
    }
    let mut mel = vec![0.0; values];
    file.read_into(MEL, &mut mel, &mut vec![0; STAGING_BYTES]).map_err(of_tensors)?;
    match mel.iter().position(|x| !x.is_finite()) {
        Some(i) => Err(of_file(path, format!("{MEL}[{}, {}]: is {}", i / channels, i % channels, mel[i]))),
        None => Ok(mel),
    }
}

/// Writes the first `samples` samples of a sound, whole or not at all: `wave` f32 `[n]` where the file's name ends in
/// `.safetensors`, with the rate as metadata, else a 16-bit wav file.
///
/// # Errors
/// The executor; numbers that are not finite; when the file cannot be written, or something else than a file is there.
pub fn write_sound(path: &Path, rate: u32, samples: u64, sound: &mut dyn Decoding) -> Result<(), RunError> {
    replaces_a_file(path)?;
    let mut left = samples as usize;
    if is_tensors(path) {
        return write_values(path, WAVE, &[left], rate, sound);
    }
    write_wav_pieces(path, rate, || {
        let Some(piece) = sound.next_piece()? else { return Ok(None) };
        let n = left.min(piece.len());
        left -= n;
        Ok(Some(piece[..n].to_vec()))
    })
}

/// Writes the first values that are decoded, as many as the shape has, as a tensor: whole or not at all.
fn write_values(
    path: &Path,
    name: &str,
    shape: &[usize],
    rate: u32,
    values: &mut dyn Decoding,
) -> Result<(), RunError> {
    write_pieces(path, name, shape, rate, |put| take(values, shape.iter().product(), put))
}

/// [`write_values`] of a decoding for each row of the shape.
fn write_rows(
    path: &Path,
    name: &str,
    shape: &[usize; 2],
    rate: u32,
    rows: &mut [Box<dyn Decoding + '_>; 2],
) -> Result<(), RunError> {
    write_pieces(path, name, shape, rate, |put| {
        rows.iter_mut().try_for_each(|row| take(&mut **row, shape[1], put))
    })
}

/// Writes what `give` puts as a tensor, whole or not at all.
fn write_pieces(
    path: &Path,
    name: &str,
    shape: &[usize],
    rate: u32,
    give: impl FnOnce(&mut Put<'_>) -> Result<(), RunError>,
) -> Result<(), RunError> {
    replaces_a_file(path)?;
    let metadata = BTreeMap::from([("sample_rate".to_owned(), rate.to_string())]);
    let spec = TensorSpec::new(name, DType::F32, shape);
    let mut writer = SafetensorsWriter::create(path, vec![spec], &metadata)?;
    give(&mut |piece| {
        if piece.iter().any(|x| !x.is_finite()) {
            return Err(of_file(
                path,
                "not written: what was decoded is not finite; check the weights".to_owned(),
            ));
        }
        Ok(writer.write_f32(name, piece)?)
    })?;
    writer.finish()?;
    Ok(())
}

/// Takes values that are written.
type Put<'p> = dyn FnMut(&[f32]) -> Result<(), RunError> + 'p;

/// Puts the first `left` values that are decoded.
fn take(values: &mut dyn Decoding, mut left: usize, put: &mut Put<'_>) -> Result<(), RunError> {
    while let Some(piece) = values.next_piece()? {
        let n = left.min(piece.len());
        left -= n;
        put(&piece[..n])?;
    }
    Ok(())
}
