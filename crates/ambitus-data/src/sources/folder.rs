//! Audio files with a `.txt` of the same name next to them.

use std::path::{Path, PathBuf};

use super::listing::{Lister, Said};
use super::resolve::Root;
use super::{EXTENSIONS, add, is_audio};
use crate::error::DataError;
use crate::outcomes::Cause;

/// Folders below the data folder that are looked into.
const MAX_DEPTH: usize = 8;
/// Largest transcript file, bytes: far more than anyone says in a clip.
const MAX_TRANSCRIPT: u64 = 1 << 20;

pub(super) fn read(root: &Root, out: &mut Lister) -> Result<(), DataError> {
    let mut found = false;
    walk(&root.given, MAX_DEPTH, &mut |path| {
        if is_audio(&path) {
            found = true;
            return clip(root, &path, out);
        }
        Ok(())
    })?;
    if !found {
        return Ok(());
    }
    walk(&root.given, MAX_DEPTH, &mut |path| {
        if path.extension().is_some_and(|e| e == "txt") && !has_audio(&path) {
            let reason = format!("no audio file of this name next to it (.{})", EXTENSIONS.join(", ."));
            let name = path.strip_prefix(&root.given).unwrap_or(&path).to_string_lossy().into_owned();
            return out.problem(&name, &path, None, (Cause::NoAudio, reason));
        }
        Ok(())
    })
}

/// Adds an audio file with the text next to it.
fn clip(root: &Root, path: &Path, out: &mut Lister) -> Result<(), DataError> {
    let below = path.strip_prefix(&root.given).unwrap_or(path);
    let Some(name) = below.to_str().map(|n| n.replace('\\', "/")) else {
        let problem = (Cause::NoAudio, "its name is not UTF-8; rename it".to_owned());
        return out.problem(&below.to_string_lossy(), path, None, problem);
    };
    let text = path.with_extension("txt");
    let corrected = out.corrected(&name)?;
    // Then the file need not be there.
    let needless = corrected.is_some_and(|(_, c)| c.text.is_some() || c.keep == Some(false));
    if needless || (!text.exists() && out.is_music()) {
        return match root.inside(path) {
            Ok(()) => add(out, &name, Ok(path.to_owned()), &Said::beside("")),
            Err(reason) => out.problem(&name, path, None, (Cause::NoAudio, reason)),
        };
    }
    let mut problem = |file: &Path, line, cause, reason| out.problem(&name, file, line, (cause, reason));
    if !text.exists() {
        return problem(path, None, Cause::Transcript, format!("no transcript ({})", text.display()));
    }
    if let Err(reason) = root.inside(&text) {
        return problem(&text, None, Cause::Transcript, reason);
    }
    let said = match crate::files::read_utf8(&text, MAX_TRANSCRIPT) {
        Ok(said) => said,
        Err(DataError::Line { line, reason, .. }) => {
            return problem(&text, Some(line), Cause::Transcript, reason);
        }
        Err(DataError::File { reason, .. }) => return problem(&text, None, Cause::Transcript, reason),
        Err(DataError::Io { source, .. }) => {
            return problem(&text, None, Cause::Transcript, source.to_string());
        }
        Err(other) => return Err(other),
    };
    match root.inside(path) {
        Ok(()) => add(out, &name, Ok(path.to_owned()), &Said::beside(&said)),
        Err(reason) => problem(&text, Some(1), Cause::NoAudio, reason),
    }
}

/// Returns whether an audio file has the name of this text file.
fn has_audio(text: &Path) -> bool {
    let capital = |e: &str| e[..1].to_uppercase() + &e[1..];
    EXTENSIONS
        .iter()
        .flat_map(|e| [(*e).to_owned(), e.to_uppercase(), capital(e)])
        .any(|e| text.with_extension(e).exists())
}

/// Visits the files of a folder, in no order.
fn walk(
    folder: &Path,
    depth: usize,
    each: &mut dyn FnMut(PathBuf) -> Result<(), DataError>,
) -> Result<(), DataError> {
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let item = item.map_err(|e| DataError::io(folder, e))?;
        if item.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // Not `path.is_dir()`: a linked folder could lead outside or in a circle.
        if item.file_type().is_ok_and(|t| t.is_dir()) {
            if depth > 0 {
                walk(&item.path(), depth - 1, each)?;
            }
        } else {
            each(item.path())?;
        }
    }
    Ok(())
}
