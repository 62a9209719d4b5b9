//! `listen.html`: a data set on one page, to listen to its clips and to correct them (`ambitus prepare --page`).
//!
//! The page is one file beside the clips, which it plays from where they are; nothing serves it. What is decided on it is saved as
//! `corrections.csv` ([`CORRECTIONS_FILE`]), which everything that reads the data set reads. `docs/decisions/0041-listening.md` says why.

use crate::report::{in_link, write_page};
use ambitus_data::check::{Checked, Clip, Issue};
use ambitus_data::sources::{Audio, CORRECTIONS_FILE, Correction, Sets, corrections};
use ambitus_data::{DataError, Source};
use ambitus_families::error::RunError;
use askama::Template;
use askama::filters::HtmlSafe;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the page in the folder of a data set.
pub const PAGE_FILE: &str = "listen.html";

/// The page of a data set.
#[derive(Debug)]
pub struct Page {
    /// Where the data set lies.
    folder: PathBuf,
    /// Where the page will be.
    path: PathBuf,
    /// The clips as they were before they were corrected.
    source: Source,
    corrections: HashMap<String, Correction>,
}

impl Page {
    /// Returns the page of a data set, in its folder or at `to`. `room`: bytes that the list of clips may take.
    ///
    /// # Errors
    /// Several data sets; sounds in tables; a file that does not end with `.html`; a data set that cannot be read.
    pub fn open(sets: &Sets, to: Option<&Path>, room: u64) -> Result<Page, RunError> {
        let Some(set) = sets.single() else {
            let why = "--page is of one data set: name it with --data";
            return Err(RunError::Usage(why.to_owned()));
        };
        if let Some(to) = to.filter(|to| to.extension().is_none_or(|e| !e.eq_ignore_ascii_case("html"))) {
            let why = format!("--page {}: the page's name must end with .html", to.display());
            return Err(RunError::Usage(why));
        }
        let above = |path: &Path| -> PathBuf {
            path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")).to_owned()
        };
        // Before anything is measured.
        if let Some(to) = to.filter(|to| !above(to).is_dir()) {
            return Err(RunError::Usage(format!(
                "--page {}: there is no folder {}",
                to.display(),
                above(to).display()
            )));
        }
        let folder = if set.path.is_dir() { set.path.clone() } else { above(&set.path) };
        let source = Source::read_uncorrected(sets, &std::env::temp_dir(), room)?;
        for entry in source.entries() {
            let entry = entry?;
            if matches!(entry.audio, Audio::Row(_)) {
                let file = entry.file.display();
                return Err(RunError::Usage(format!(
                    "--page plays files, and {file} is a table with the sounds in it"
                )));
            }
        }
        let mut of_names = HashMap::new();
        for (name, correction) in corrections(&folder)? {
            // As everywhere, the first counts.
            of_names.entry(name).or_insert(correction);
        }
        let path = to.map_or_else(|| folder.join(PAGE_FILE), Path::to_owned);
        Ok(Page { folder, path, source, corrections: of_names })
    }

    /// Writes the page, whole or not at all, and returns where it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, checked: &Checked) -> Result<PathBuf, RunError> {
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = whole(&self.folder);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = whole(&self.path);
        let listen = Listen {
            name: folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            written: now.as_millis(),
            version: env!("CARGO_PKG_VERSION"),
            corrections: CORRECTIONS_FILE,
            verdict: &checked.verdict,
            clips: Clips { page: &self, checked, beside: at.parent().unwrap_or(&folder).to_owned() },
            folder: folder.to_string_lossy().into_owned(),
        };
        write_page(&self.path, &listen)?;
        Ok(self.path)
    }
}

#[derive(Template)]
#[template(path = "listen.html")]
struct Listen<'a> {
    /// Name of the data set's folder.
    name: String,
    /// Its whole path.
    folder: String,
    /// When it was written, in milliseconds since 1970.
    written: u128,
    version: &'static str,
    /// Name of the file of corrections.
    corrections: &'static str,
    verdict: &'a [String],
    clips: Clips<'a>,
}

/// The clips as JSON, each made as it is written: the most doubtful first, those that were left out last.
struct Clips<'a> {
    page: &'a Page,
    checked: &'a Checked,
    /// The whole path of the page's folder.
    beside: PathBuf,
}

/// A clip as the page has it.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    /// The way to its sound; none where there is nothing to play.
    link: Option<String>,
    /// File and line.
    place: String,
    voice: Option<String>,
    /// As written in the data.
    text: String,
    corrected: Option<&'a str>,
    keep: Option<bool>,
    doubt: f64,
    issues: &'a [Issue],
    seconds: f64,
    /// See [`Clip::outline`], in base64.
    outline: String,
}

impl Clips<'_> {
    /// Returns the row of a clip, which was looked at or left out.
    fn row<'a>(&'a self, name: &'a str, clip: Option<&'a Clip>) -> Result<Row<'a>, DataError> {
        let page = self.page;
        let below = |path: &Path| path.strip_prefix(&page.folder).unwrap_or(path).display().to_string();
        let correction = page.corrections.get(name);
        let entry = page.source.find(name).map(|at| page.source.entry(at)).transpose()?;
        let place = match (&entry, clip) {
            (Some(entry), _) => format!("{}:{}", below(&entry.file), entry.line),
            (None, Some(Clip { file, line: Some(line), .. })) => format!("{}:{line}", below(Path::new(file))),
            (None, clip) => clip.map_or_else(String::new, |clip| below(Path::new(&clip.file))),
        };
        let link = entry.as_ref().and_then(|entry| match &entry.audio {
            Audio::File(path) => Some(self.link(path)),
            Audio::Row(_) => None,
        });
        Ok(Row {
            name,
            link,
            place,
            voice: entry.as_ref().and_then(|entry| entry.voice.clone()),
            text: entry.map_or_else(String::new, |entry| entry.text),
            corrected: correction.and_then(|c| c.text.as_deref()),
            keep: correction.and_then(|c| c.keep),
            doubt: clip.map_or(0.0, |clip| clip.doubt),
            issues: clip.map_or(&[], |clip| &clip.issues),
            seconds: clip.map_or(0.0, |clip| clip.seconds),
            outline: clip.map_or_else(String::new, |clip| STANDARD.encode(&clip.outline)),
        })
    }

    /// Returns the way from the page to a sound.
    fn link(&self, sound: &Path) -> String {
        let sound = std::path::absolute(sound).unwrap_or_else(|_| sound.to_owned());
        match sound.strip_prefix(&self.beside) {
            // `a:b.wav` would be an address.
            Ok(below) => format!("./{}", in_link(&below.to_string_lossy())),
            Err(_) => format!("file://{}", in_link(&sound.to_string_lossy())),
        }
    }
}

impl fmt::Display for Clips<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let corrections = &self.page.corrections;
        let mut out: Vec<&str> =
            corrections.iter().filter(|(_, c)| c.keep == Some(false)).map(|(name, _)| &**name).collect();
        out.retain(|name| self.page.source.find(name).is_some());
        out.sort_unstable();
        f.write_str("[")?;
        let looked_at = self.checked.clips.iter().map(|clip| (&*clip.name, Some(clip)));
        for (i, (name, clip)) in looked_at.chain(out.into_iter().map(|name| (name, None))).enumerate() {
            let row = self.row(name, clip).map_err(|_| fmt::Error)?;
            let json = serde_json::to_string(&row).map_err(|_| fmt::Error)?;
            // `</script>` in a text would end the list.
            write!(f, "{}{}", if i == 0 { "" } else { ",\n" }, json.replace('<', "\\u003c"))?;
        }
        f.write_str("]")
    }
}

/// JSON without `<` is only text.
impl HtmlSafe for Clips<'_> {}

#[cfg(test)]
mod tests;
