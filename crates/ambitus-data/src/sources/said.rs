//! What is said of a clip, as it is kept: transcripts, descriptions and names of voices, without what no clip can hold.

use super::Problem;
use super::listing::MAX_TEXT;
use crate::outcomes::Cause;

/// Longest name of a voice, bytes: it is spoken to the model with every text.
const MAX_VOICE: usize = 256;

/// Returns the name of a voice, if there is one.
pub(super) fn voice(said: Option<&str>) -> Result<Option<&str>, String> {
    let voice = said.map(str::trim).filter(|v| !v.is_empty());
    match voice.filter(|v| v.len() > MAX_VOICE) {
        Some(long) => {
            Err(format!("a voice whose name has {} bytes; at most {MAX_VOICE} are read", long.len()))
        }
        None => Ok(voice),
    }
}

/// Longest description, bytes: some sentences, of which a model reads every word with every frame.
pub(super) const MAX_DESCRIPTION: usize = 4 << 10;

/// Returns a description as a transcript is kept, if there is one.
pub(super) fn description(said: Option<&str>) -> Result<Option<String>, Problem> {
    let Some(said) = said.map(str::trim).filter(|said| !said.is_empty()) else { return Ok(None) };
    let cleaned = match said.len() > MAX_DESCRIPTION {
        true => Err(format!("a description of {} bytes; at most {MAX_DESCRIPTION} are read", said.len())),
        false => one_line(said, "description"),
    };
    cleaned.map(Some).map_err(|reason| (Cause::Description, reason))
}

/// Returns a transcript without surrounding space; line breaks and tabs inside become spaces.
pub(super) fn clean(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("empty transcript".into());
    }
    speakable(text)?;
    one_line(text, "transcript")
}

/// Returns a text with spaces for its line breaks and tabs.
fn one_line(text: &str, what: &str) -> Result<String, String> {
    let text: String = text.replace("\r\n", " ").replace(['\n', '\r', '\t'], " ");
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(format!("binary data in the {what} (U+{:04X})", c as u32)),
        None => Ok(text),
    }
}

/// Refuses a text that no clip can hold, before anything is made of it.
pub(super) fn speakable(text: &str) -> Result<(), String> {
    match text.len() > MAX_TEXT {
        true => Err(format!(
            "{} bytes of text; at most {MAX_TEXT} are read, for nobody says more in ten minutes, which is the longest clip",
            text.len()
        )),
        false => Ok(()),
    }
}
