//! Audio files with a `.txt` of the same name beside them.

use std::path::{Path, PathBuf};

use super::resolve::Root;
use super::{Collector, EXTENSIONS};
use crate::error::DataError;

/// Folders below the data folder that are looked into.
const MAX_DEPTH: usize = 8;
/// Largest transcript, bytes: far more than half a minute of speech.
const MAX_TRANSCRIPT: u64 = 1 << 20;

pub(super) fn read(root: &Root, out: &mut Collector) -> Result<(), DataError> {
    let mut audio = Vec::new();
    walk(&root.given, MAX_DEPTH, &mut audio)?;
    audio.sort();
    for path in audio {
        let below = path.strip_prefix(&root.given).unwrap_or(&path);
        let Some(name) = below.to_str().map(|n| n.replace('\\', "/")) else {
            let reason = "its name is not UTF-8; rename it";
            out.problem(&below.to_string_lossy(), &path, None, reason);
            continue;
        };
        let transcript = path.with_extension("txt");
        if !transcript.exists() {
            let reason = format!("no transcript ({})", transcript.display());
            out.problem(&name, &path, None, reason);
            continue;
        }
        if let Err(reason) = root.inside(&transcript) {
            out.problem(&name, &transcript, None, reason);
            continue;
        }
        match crate::files::read_utf8(&transcript, MAX_TRANSCRIPT) {
            Ok(text) => {
                let audio = root.inside(&path).map(|()| path.clone());
                out.add(&name, audio, (&text, None), &transcript, 1);
            }
            Err(DataError::Line { line, reason, .. }) => {
                out.problem(&name, &transcript, Some(line), reason);
            }
            Err(DataError::File { reason, .. }) => out.problem(&name, &transcript, None, reason),
            Err(DataError::Io { source, .. }) => {
                out.problem(&name, &transcript, None, source.to_string());
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn walk(folder: &Path, depth: usize, out: &mut Vec<PathBuf>) -> Result<(), DataError> {
    for item in std::fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let item = item.map_err(|e| DataError::io(folder, e))?;
        let path = item.path();
        if item.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // Not `path.is_dir()`: a linked folder could lead outside or in a circle.
        if item.file_type().is_ok_and(|t| t.is_dir()) {
            if depth > 0 {
                walk(&path, depth - 1, out)?;
            }
        } else if path
            .extension()
            .and_then(|e| e.to_str())
            .is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)))
        {
            out.push(path);
        }
    }
    Ok(())
}
