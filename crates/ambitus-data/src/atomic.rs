//! Files that are either whole or not there.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::DataError;

/// Writes through a temporary file in the same folder, synced and then renamed; on any failure nothing is left.
pub(crate) fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>,
) -> Result<(), DataError> {
    let attempt = || {
        let temporary = temporary(path)?;
        let mut writer = BufWriter::new(temporary.as_file());
        fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        temporary.as_file().sync_data()?;
        temporary.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    attempt().map_err(|e| DataError::io(path, e))
}

/// Makes a temporary file in the folder of `path`, which is made where it is missing. A folder, device or pipe at `path`, whose place
/// it would take, is refused.
pub(crate) fn temporary(path: &Path) -> std::io::Result<NamedTempFile> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "a folder, device or pipe is there"));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".ambitus-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Readable as any other file; the process's umask applies.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}
