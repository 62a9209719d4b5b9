//! `ambitus say`.

use crate::args::{SayArgs, WeightsArg};
use crate::terminal::{self, Terminal, json};
use ambitus_families::ALL;
use ambitus_families::error::RunError;
use ambitus_families::generate::Settings;
use ambitus_families::speech::{Asked, Reference, Speaker};
use ambitus_plan::budget::START_BYTES;
use ambitus_plan::memory;
use ambitus_recipe::size::ByteSize;
use ambitus_train::export::Source;
use ambitus_train::say::{self, Taken, Text};
use ambitus_train::trained::Trained;
use ambitus_train::writing::Out;
use std::path::Path;

pub fn run(a: &SayArgs) -> Result<(), RunError> {
    let is_stream = a.out == Path::new("-");
    let out = match is_stream {
        true => Out::Stream(|| Box::new(std::io::stdout())),
        false => Out::file(a.out.clone())?,
    };
    if a.json && is_stream {
        return Err(RunError::Usage(
            "--json: standard output takes the sound (-o -); name a file".to_owned(),
        ));
    }
    if !(a.speed.is_finite() && (0.1..=10.0).contains(&a.speed)) {
        return Err(RunError::Usage(format!("--speed: {} is not from 0.1 to 10", a.speed)));
    }
    if let Some(seconds) = a.seconds.filter(|s| !(s.is_finite() && (0.02..=3600.0).contains(s))) {
        return Err(RunError::Usage(format!("--seconds: {seconds} is not from 0.02 to 3600")));
    }
    let text = match (&a.text, &a.text_file) {
        (Some(text), _) => Text::Given(text),
        (None, Some(path)) if path != Path::new("-") => Text::File(path),
        _ => Text::Standard,
    };
    let lines = text.lines()?;
    // Checked before a model is opened.
    a.how.settings(Settings { noise: a.noise, ..Settings::SPEECH })?;
    let source = a.weights.map(|w| match w {
        WeightsArg::Ema => Source::Ema,
        WeightsArg::Raw => Source::Raw,
    });
    let mut terminal = Terminal::new();
    let trained = Trained::open(ALL, &a.model, (a.adapter.as_deref(), source), &mut terminal)?;
    let mut project = trained.model.opened.speaker().map_or(Settings::SPEECH, Speaker::settings);
    if is_stream {
        // What is heard first is not to wait for others.
        project.sequences = 1;
    }
    project.noise = a.noise.or(project.noise);
    let settings = a.how.settings(project)?;
    let text = a.ref_text.clone().unwrap_or_default();
    let reference = a.reference.clone().map(|path| Reference::Sound(path, text));
    let options = a.how.on.options();
    let asked = Asked {
        lines: &lines,
        reference: reference.as_ref(),
        voice: a.voice.as_deref(),
        language: a.language.as_deref(),
        cleaned: a.cleaned,
        decoder: a.codec.as_deref().or(a.vocoder.as_deref()),
        settings: &settings,
        speed: a.speed,
        seconds: a.seconds,
        most_seconds: f64::INFINITY,
        threads: options.threads,
        room: options.memory.map_or(u64::MAX, |bytes| bytes.saturating_sub(START_BYTES)),
    };
    let taken = say::say(&trained, &asked, &options, &out, &mut terminal)?;
    drop(terminal);
    let Taken { planned_bytes, seconds, speech_seconds, .. } = taken;
    let measured = memory::process().ok().map(|p| p.peak_rss_bytes);
    if a.json {
        let mut said = serde_json::to_value(&taken).map_err(|e| RunError::Io(e.to_string()))?;
        said["measured_bytes"] = measured.into();
        said["model"] = trained.said.clone().into();
        json(&said);
        return Ok(());
    }
    terminal::message(&format!(
        "{}: {speech_seconds:.1} s of speech in {seconds:.1} s ({:.2} a second); planned {}, measured {}",
        trained.said,
        speech_seconds / seconds.max(1e-9),
        ByteSize(planned_bytes),
        measured.map_or("?".to_owned(), |b| ByteSize(b).to_string())
    ));
    Ok(())
}
