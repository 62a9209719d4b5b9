//! Which recordings are cut, and which transcripts come along.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Recording;
use crate::error::DataError;

/// Extensions of recordings, in folders.
const EXTENSIONS: [&str; 14] =
    ["wav", "flac", "mp3", "ogg", "oga", "m4a", "m4b", "aac", "mp4", "m4v", "mov", "mkv", "mka", "webm"];
/// Extensions of transcripts beside recordings, from the one that says most. Whisper's tools write all of them.
const TRANSCRIPTS: [&str; 3] = ["json", "srt", "vtt"];
/// Longest name of clips, bytes, without their numbers: file systems take 255.
const LONGEST_NAME: usize = 120;

/// Returns the recordings that are given: files, and all of a folder, in the order of their names. A transcript is a `.json`, `.srt` or
/// `.vtt` of the same name beside a recording, or `transcript` where there is one recording.
///
/// # Errors
/// Nothing there, a folder without recordings, a recording that is given twice, a transcript for several.
pub fn recordings(given: &[PathBuf], transcript: Option<&Path>) -> Result<Vec<Recording>, DataError> {
    let mut paths = Vec::new();
    for path in given {
        let is_folder = fs::metadata(path).map_err(|e| DataError::io(path, e))?.is_dir();
        match is_folder {
            true => paths.extend(within(path)?),
            false => paths.push(path.clone()),
        }
    }
    let mut seen = BTreeSet::new();
    for path in &paths {
        let real = fs::canonicalize(path).map_err(|e| DataError::io(path, e))?;
        if !seen.insert(real) {
            return Err(DataError::file(path, "given twice"));
        }
    }
    if let Some(transcript) = transcript.filter(|_| paths.len() != 1) {
        let reason = format!(
            "a transcript for {} recordings; put each beside its recording, under the same name",
            paths.len()
        );
        return Err(DataError::file(transcript, reason));
    }
    let mut taken = BTreeSet::new();
    let of = |path: PathBuf| {
        let beside = || TRANSCRIPTS.iter().map(|e| path.with_extension(e)).find(|p| p.is_file());
        let transcript = transcript.map(Path::to_owned).or_else(beside);
        let name = unused(&name(&path), &mut taken);
        Recording { path, transcript, name }
    };
    Ok(paths.into_iter().map(of).collect())
}

fn within(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder).map_err(|e| DataError::io(folder, e))? {
        let path = item.map_err(|e| DataError::io(folder, e))?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known)) && path.is_file() {
            found.push(path);
        }
    }
    if found.is_empty() {
        return Err(DataError::file(folder, format!("no recordings in it ({})", EXTENSIONS.join(", "))));
    }
    found.sort();
    Ok(found)
}

/// Returns a recording's name without what metadata and file systems read otherwise.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let mut name: String = stem.chars().map(plain).collect();
    while name.len() > LONGEST_NAME {
        name.pop();
    }
    let name = name.trim_start_matches('.');
    if name.is_empty() { "recording".to_owned() } else { name.to_owned() }
}

/// Returns the name, with a number where it is taken. Some file systems know no small and large letters.
fn unused(name: &str, taken: &mut BTreeSet<String>) -> String {
    let all = std::iter::once(name.to_owned()).chain((2..).map(|n| format!("{name}-{n}")));
    let mut free = all.filter(|name| taken.insert(name.to_lowercase()));
    free.next().expect("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("a")).expect("a folder");
        for name in ["talk.wav", "a/talk.wav", "a/Talk: 2|x.mp3", "a/talk.srt", "a/talk.json", "a/notes.txt"]
        {
            fs::write(at(name), "").expect("a file");
        }
        let all = recordings(&[at("talk.wav"), at("a")], None).expect("all are there");
        let names: Vec<_> = all.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["talk", "Talk__2_x", "talk-2"]);
        assert_eq!(all[0].transcript, None);
        assert_eq!(all[2].transcript, Some(at("a/talk.json")));
        let refused = |given: &[PathBuf], transcript: Option<&Path>| {
            recordings(given, transcript).expect_err("refused").to_string()
        };
        assert!(refused(&[at("a"), at("a/../a/talk.wav")], None).ends_with("given twice"));
        assert!(refused(&[at("a")], Some(&at("a/talk.srt"))).contains("for 2 recordings"));
        assert!(refused(&[at("b.wav")], None).contains("b.wav"));
        fs::create_dir(at("b")).expect("a folder");
        assert!(refused(&[at("b")], None).contains("no recordings"));
    }
}
