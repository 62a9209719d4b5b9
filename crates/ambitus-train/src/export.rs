//! Export: the folder that the F5-TTS project loads.
//!
//! `model.safetensors` holds `ema_model.transformer.*`, `ema_model.…inv_freq` and the scalars `initted` and `step`, which is
//! what its trainer loads strictly and its inference strips; beside it `config.yaml` and `vocab.txt` as they were.

use crate::error::RunError;
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec, write_atomic};
use std::collections::BTreeMap;
use std::path::Path;

/// Which weights are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The moving average.
    Ema,
    /// The weights themselves.
    Raw,
}

impl Source {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Source::Ema => "ema",
            Source::Raw => "raw",
        }
    }
}

const PREFIX: &str = "ema_model.";

/// Writes the export of a checkpoint folder (`step-N`) to `out`. `config` and `vocab` are the files' contents.
///
/// # Errors
/// A checkpoint without averages when they are asked for; files that cannot be read or written.
pub fn export(
    checkpoint: &Path,
    source: Source,
    config: &str,
    vocab: Option<&[u8]>,
    out: &Path,
) -> Result<(), RunError> {
    let model = TensorFile::open(checkpoint.join("model.safetensors"))?;
    let ema_path = checkpoint.join("ema.safetensors");
    let ema = match source {
        Source::Raw => None,
        Source::Ema if ema_path.is_file() => Some(TensorFile::open(&ema_path)?),
        Source::Ema => {
            return Err(RunError::Usage(format!(
                "{}: the run kept no moving average (`ema: false`); export --weights raw",
                checkpoint.display()
            )));
        }
    };
    std::fs::create_dir_all(out).map_err(|e| RunError::io(out, "cannot create", e))?;
    let mut specs: Vec<TensorSpec> = model
        .tensors()
        .iter()
        .map(|t| TensorSpec::new(format!("{PREFIX}{}", t.name()), DType::F32, t.shape()))
        .collect();
    specs.push(TensorSpec::new("initted", DType::Bool, &[]));
    specs.push(TensorSpec::new("step", DType::I64, &[]));
    let mut writer = SafetensorsWriter::create(out.join("model.safetensors"), specs, &BTreeMap::new())?;
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    let mut scratch = vec![0u8; crate::load::STAGING_BYTES];
    for name in order {
        match name.strip_prefix(PREFIX) {
            None if name == "initted" => writer.write(&name, &[1])?,
            None => writer.write_i64(&name, &[0])?,
            Some(tensor) => {
                // Frozen tensors have no average: they never moved.
                let averaged = format!("ema.{tensor}");
                let (file, key) = match &ema {
                    Some(file) if file.contains(&averaged) => (file, averaged.as_str()),
                    _ => (&model, tensor),
                };
                let mut written = Ok(());
                file.read_pieces(key, &mut scratch, |_, piece| {
                    if written.is_ok() {
                        written = writer.write_f32(&name, piece);
                    }
                })?;
                written?;
            }
        }
    }
    writer.finish()?;
    write_atomic(out.join("config.yaml"), config.as_bytes())?;
    if let Some(vocab) = vocab {
        write_atomic(out.join("vocab.txt"), vocab)?;
    }
    Ok(())
}
