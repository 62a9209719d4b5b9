//! `ambitus clips`.

use crate::args::{ClipsArgs, threads};
use crate::terminal::{self, Terminal};
use ambitus_families::ALL;
use ambitus_families::cutting::{self, Asked, Clips, Limits, Note};
use ambitus_families::error::RunError;
use serde_json::json;
use std::path::Path;

/// Lines that a terminal shows of each kind; the table in the folder has all.
const SHOWN: usize = 10;

pub fn run(a: &ClipsArgs) -> Result<(), RunError> {
    let asked = Asked {
        given: &a.recordings,
        transcript: a.transcript.as_deref(),
        out: &a.out,
        model: a.model.as_deref(),
        least: a.min_seconds,
        most: a.max_seconds,
        threads: threads(a.threads),
    };
    let mut console = Terminal::new();
    let (clips, limits) = cutting::cut(ALL, &asked, &mut console)?;
    drop(console);
    for line in lines(&clips, limits, &a.out) {
        terminal::message(&line);
    }
    if a.json {
        let of = |cut: &cutting::Cut| json!({ "file": a.out.join(&cut.file), "source": cut.source, "start": cut.start, "end": cut.end });
        terminal::json(&clips.cuts.iter().map(of).collect::<Vec<_>>());
    }
    Ok(())
}

/// Returns what became of the recordings, for people.
fn lines(clips: &Clips, limits: Limits, out: &Path) -> Vec<String> {
    let cuts = &clips.cuts;
    let seconds: f64 = cuts.iter().map(|cut| cut.end - cut.start).sum();
    let joined = cuts.iter().filter(|cut| cut.joined > 1).count();
    let of = |note: Note| cuts.iter().filter(move |cut| cut.note == Some(note));
    let mut lines = vec![format!(
        "{} clips in {}: {} of {} of the recordings; {joined} of several stretches that were joined{}",
        cuts.len(),
        out.display(),
        minutes(seconds),
        minutes(clips.seconds),
        if clips.there > 0 { format!("; {} were there", clips.there) } else { String::new() },
    )];
    for (note, limit) in
        [(Note::Over, limits.most), (Note::Segment, limits.most), (Note::Under, limits.least)]
    {
        let said = of(note).map(|cut| {
            let (file, source) = (cut.file.display(), cut.source.display());
            format!("  {file}: {:.2} s from {:.2} s of {source}", cut.end - cut.start, cut.start)
        });
        list(&mut lines, &format!("{} ({limit:.2} s)", note.text()), said.collect());
    }
    let left = clips.left.iter();
    let said = left.map(|left| {
        format!("  {:.2} to {:.2} s of {}: {}", left.start, left.end, left.source.display(), left.reason)
    });
    list(&mut lines, "of the recordings that are in no clip", said.collect());
    lines
}

/// Adds the first of some lines under what they have in common.
fn list(lines: &mut Vec<String>, what: &str, mut said: Vec<String>) {
    if said.is_empty() {
        return;
    }
    lines.push(format!("{what}: {}", said.len()));
    let more = said.len().saturating_sub(SHOWN);
    said.truncate(SHOWN);
    lines.append(&mut said);
    if more > 0 {
        lines.push(format!("  … and {more} more in clips.tsv"));
    }
}

fn minutes(seconds: f64) -> String {
    format!("{}:{:04.1} min", (seconds / 60.0) as u64, seconds % 60.0)
}
