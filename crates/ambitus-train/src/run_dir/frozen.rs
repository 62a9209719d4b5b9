//! Tensors of the model's files that are not trained and go along unchanged: encoders and codecs. A run keeps them in `model/`, in one
//! file, so that it can speak and export without the model that it began with.

use ambitus_families::error::RunError;
use ambitus_families::hugging_face::Frozen;
use ambitus_families::weights::STAGING_BYTES;
use ambitus_store::{SafetensorsWriter, TensorFile, TensorSpec, Written};
use std::path::Path;

/// The file in a run's `model` folder.
pub const FROZEN: &str = "model.safetensors";

/// Writes a model's frozen tensors to a file, as they are stored.
///
/// # Errors
/// Files that cannot be read or written.
pub fn write(frozen: &Frozen, to: &Path) -> Result<Written, RunError> {
    let mut specs = Vec::new();
    for file in &frozen.weights.files {
        specs.extend(file.tensors().iter().filter(|t| (frozen.holds)(t.name())).map(spec));
    }
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let mut writer = SafetensorsWriter::create(to, specs, &metadata)?;
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    let mut scratch = vec![0u8; STAGING_BYTES];
    for name in order {
        // Every name is one of these files'.
        if let Some((file, _)) = frozen.weights.find(&name) {
            copy(file, &name, &mut writer, &mut scratch)?;
        }
    }
    Ok(writer.finish()?)
}

/// Returns a tensor as it is stored.
pub fn spec(tensor: &ambitus_store::TensorInfo) -> TensorSpec {
    TensorSpec::new(tensor.name(), tensor.dtype(), tensor.shape())
}

/// Copies a tensor's bytes to a writer that expects it.
///
/// # Errors
/// Files that cannot be read or written.
pub fn copy(
    from: &TensorFile,
    name: &str,
    writer: &mut SafetensorsWriter,
    scratch: &mut [u8],
) -> Result<(), RunError> {
    let mut written = Ok(());
    from.read_stored(name, scratch, |bytes| {
        if written.is_ok() {
            written = writer.write(name, bytes);
        }
    })?;
    Ok(written?)
}
