//! Tensors of the model's files that are not trained and go along unchanged: encoders and codecs. A run keeps them in `model/`, in one
//! file, so that it can speak and export without the model that it began with.

use ambitus_families::error::RunError;
use ambitus_families::hugging_face::Frozen;
use ambitus_families::weights::STAGING_BYTES;
use ambitus_store::{TensorFile, TensorSpec, TensorWriter, Written};
use std::path::Path;

/// The file in a run's `model` folder.
pub const FROZEN: &str = "model.safetensors";

/// Writes a model's frozen tensors to a file, as they are stored, by the model's own names.
///
/// # Errors
/// Files that cannot be read or written.
pub fn write(frozen: &Frozen, to: &Path) -> Result<Written, RunError> {
    let mut specs = Vec::new();
    for file in &frozen.weights.files {
        let named = file.tensors().iter().filter_map(|t| {
            let name = t.name().strip_prefix(&*frozen.weights.prefix)?;
            (frozen.holds)(name).then(|| TensorSpec { name: name.to_owned(), ..spec(t) })
        });
        specs.extend(named);
    }
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let mut writer = TensorWriter::create(to, specs, &metadata)?;
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    let mut scratch = vec![0u8; STAGING_BYTES];
    for name in order {
        // Every name is one of these files'.
        if let Some((file, there)) = frozen.weights.find(&name) {
            copy(file, &there, &name, &mut writer, &mut scratch)?;
        }
    }
    Ok(writer.finish()?)
}

/// Returns a tensor as it is stored.
pub fn spec(tensor: &ambitus_store::TensorInfo) -> TensorSpec {
    TensorSpec::new(tensor.name(), tensor.dtype(), tensor.shape())
}

/// Copies a tensor's bytes to a writer that expects it under the name `to`.
///
/// # Errors
/// Files that cannot be read or written.
pub fn copy(
    from: &TensorFile,
    name: &str,
    to: &str,
    writer: &mut TensorWriter,
    scratch: &mut [u8],
) -> Result<(), RunError> {
    let mut written = Ok(());
    from.read_stored(name, scratch, |bytes| {
        if written.is_ok() {
            written = writer.write(to, bytes);
        }
    })?;
    Ok(written?)
}
