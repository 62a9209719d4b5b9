//! Files of codes: JSON, and safetensors.

use super::{Codes, Spec};
use crate::error::{RunError, replaces_a_file};
use ambitus_data::DataError;
use ambitus_recipe::recipe::short;
use ambitus_store::{DType, SafetensorsWriter, StoreError, TensorFile, TensorSpec, open_file, write_atomic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;

/// The most bytes of a file of codes: a day and a half of sound in JSON.
const MAX_CODES_BYTES: u64 = 64 << 20;
/// Bytes through which tensors are read.
const STAGING_BYTES: usize = 64 << 10;

/// A file of codes: JSON, or where its name ends in `.safetensors` `codes` i64 `[C, F]`, `codes.i` i64 `[n]` of each codebook
/// where these have codes of different rates, and the two numbers as metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodesFile {
    /// Of the audio, Hz.
    pub sample_rate: u32,
    /// Samples of the audio that the codes are of, before it was padded to whole frames; absent: all that the codes say.
    #[serde(default)]
    pub samples: Option<u64>,
    /// The codes of each codebook, the slowest first. Older files call them `layers`.
    #[serde(alias = "layers")]
    pub codes: Vec<Vec<u32>>,
}

/// Returns whether a file of this name holds tensors.
pub(super) fn is_tensors(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"))
}

/// Returns the error of a file of data.
pub(super) fn of_file(path: &Path, reason: String) -> RunError {
    RunError::Data(DataError::File { path: path.to_owned(), reason })
}

/// Returns the error of a file of data: what is wrong with it is wrong with the data.
pub(super) fn of_tensors(e: StoreError) -> RunError {
    if e.is_io() { e.into() } else { RunError::Data(DataError::Invalid(e.to_string())) }
}

impl CodesFile {
    /// Reads a file and checks it against a codec.
    ///
    /// # Errors
    /// Names the place in the file, or the codebook and the code that do not suit the codec.
    pub fn read(path: &Path, codec: &Spec) -> Result<(CodesFile, Codes), RunError> {
        let mut file = if is_tensors(path) { read_tensors(path, codec)? } else { read_json(path)? };
        if file.sample_rate != codec.rate {
            let why = format!("sample_rate: {} Hz, this codec's is {} Hz", file.sample_rate, codec.rate);
            return Err(of_file(path, why));
        }
        let codes = Codes { layers: std::mem::take(&mut file.codes) };
        let frames = codec.frames(&codes).map_err(|why| of_file(path, why))?;
        let most = codec.samples(frames) as u64;
        if let Some(samples) = file.samples.filter(|n| *n > most) {
            return Err(of_file(path, format!("samples: {samples} are more than the {most} of the codes")));
        }
        Ok((file, codes))
    }

    /// Writes it whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written, or something else than a file is there.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        replaces_a_file(path)?;
        if is_tensors(path) {
            return self.write_tensors(path);
        }
        let text =
            serde_json::to_string(self).map_err(|e| RunError::Io(format!("{}: {e}", path.display())))?;
        Ok(write_atomic(path, (text + "\n").as_bytes())?)
    }

    fn write_tensors(&self, path: &Path) -> Result<(), RunError> {
        let frames = self.codes.first().map_or(0, Vec::len);
        let alike = self.codes.iter().all(|codes| codes.len() == frames);
        let name = |i: usize| if alike { "codes".to_owned() } else { format!("codes.{i}") };
        let specs = match alike {
            true => vec![TensorSpec::new("codes", DType::I64, &[self.codes.len(), frames])],
            false => {
                let spec =
                    |(i, codes): (usize, &Vec<u32>)| TensorSpec::new(name(i), DType::I64, &[codes.len()]);
                self.codes.iter().enumerate().map(spec).collect()
            }
        };
        let samples = self.samples.map(|n| ("samples".to_owned(), n.to_string()));
        let rate = ("sample_rate".to_owned(), self.sample_rate.to_string());
        let metadata: BTreeMap<_, _> = samples.into_iter().chain([rate]).collect();
        let mut writer = SafetensorsWriter::create(path, specs, &metadata)?;
        // In the order of the file, which is by name: `codes.10` lies before `codes.2`.
        let mut order: Vec<usize> = (0..self.codes.len()).collect();
        if !alike {
            order.sort_by_key(|i| name(*i));
        }
        for i in order {
            let codes: Vec<i64> = self.codes[i].iter().map(|c| i64::from(*c)).collect();
            writer.write_i64(&name(i), &codes)?;
        }
        writer.finish()?;
        Ok(())
    }
}

fn too_long(path: &Path, len: u64) -> RunError {
    of_file(path, format!("has {len} bytes, more than the {MAX_CODES_BYTES} that are read"))
}

fn read_json(path: &Path) -> Result<CodesFile, RunError> {
    let (file, len) = open_file(path).map_err(|e| match e.is_io() {
        true => RunError::from(e),
        false => of_file(path, e.what),
    })?;
    if len > MAX_CODES_BYTES {
        return Err(too_long(path, len));
    }
    // From the file, not from its text: codes alone are kept in memory.
    serde_json::from_reader(BufReader::new(file.take(MAX_CODES_BYTES))).map_err(|e| match e.io_error_kind() {
        Some(_) => RunError::io(path, "cannot read", e.into()),
        None => {
            of_file(path, format!("{}; give a file that `ambitus codec encode` wrote", short(&e.to_string())))
        }
    })
}

fn read_tensors(path: &Path, codec: &Spec) -> Result<CodesFile, RunError> {
    let file = TensorFile::open(path).map_err(of_tensors)?;
    if file.file_len() > MAX_CODES_BYTES {
        return Err(too_long(path, file.file_len()));
    }
    let mut scratch = vec![0; STAGING_BYTES];
    let mut read = |name: &str| -> Result<Vec<u32>, RunError> {
        let mut codes = vec![0; file.get(name).map_err(of_tensors)?.elements()];
        file.read_i64(name, &mut codes, &mut scratch).map_err(of_tensors)?;
        let bad = codes.iter().find(|code| u32::try_from(**code).is_err());
        match bad {
            Some(code) => Err(of_file(path, format!("{name}: {code} is no code of any codebook"))),
            None => Ok(codes.iter().map(|code| *code as u32).collect()),
        }
    };
    let codes = if file.contains("codes") || !file.contains("codes.0") {
        let shape = file.get("codes").map_err(of_tensors)?.shape().to_vec();
        let [books, frames] = shape[..] else {
            let why = format!("codes: is {shape:?}, must be [codebooks, frames]");
            return Err(of_file(path, why));
        };
        // A shape without elements may have any number of codebooks.
        if books != codec.codebooks.len() {
            let want = codec.codebooks.len();
            let channels = match () {
                () if 2 * books == want => "; one channel's: leave out --stereo",
                () if books == 2 * want => "; two channels': add --stereo",
                () => "",
            };
            let why = format!("codes: are of {books} codebooks, the codec has {want}{channels}");
            return Err(of_file(path, why));
        }
        let all = read("codes")?;
        (0..books).map(|i| all[i * frames..(i + 1) * frames].to_vec()).collect()
    } else {
        (0..codec.codebooks.len()).map(|i| read(&format!("codes.{i}"))).collect::<Result<_, _>>()?
    };
    Ok(CodesFile {
        sample_rate: number(&file, "sample_rate")?.unwrap_or(codec.rate),
        samples: number(&file, "samples")?,
        codes,
    })
}

/// Returns a number among a file's metadata.
pub(super) fn number<N: std::str::FromStr>(file: &TensorFile, key: &str) -> Result<Option<N>, RunError> {
    let parse = |text: &String| {
        let why = || of_file(file.path(), format!("metadata `{key}`: `{}` is no such number", short(text)));
        text.parse().map_err(|_| why())
    };
    file.metadata().get(key).map(parse).transpose()
}
