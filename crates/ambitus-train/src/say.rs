//! `ambitus say`: speech of texts, in files or as a stream, while it is made.

use crate::inference::{self, InferenceOptions, Open};
use crate::trained::Trained;
use crate::writing::{Out, Said, Writing};
use ambitus_data::{DataError, SoundWriter};
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::speech::{Asked, Line, Speech};
use ambitus_plan::device::Device;
use ambitus_plan::inference::{Held, InferencePlan};
use ambitus_store::open_file;
use serde::Serialize;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Seconds of a piece, and sequences at a time, that are tried where the budget has no room for the usual ones.
const SMALLER: [(f64, usize); 9] =
    [(20.0, 4), (20.0, 1), (12.0, 1), (8.0, 1), (6.0, 1), (4.5, 1), (3.0, 1), (2.0, 1), (1.0, 1)];

/// The most bytes of texts.
const MAX_TEXT_BYTES: u64 = 4 << 20;

/// Where texts come from.
#[derive(Clone, Copy, Debug)]
pub enum Text<'a> {
    /// One.
    Given(&'a str),
    /// A file, one a line.
    File(&'a Path),
    /// Standard input, one a line.
    Standard,
}

impl Text<'_> {
    /// Returns the lines with words.
    ///
    /// # Errors
    /// None; what cannot be read or is no UTF-8.
    pub fn lines(self) -> Result<Vec<Line>, RunError> {
        let (text, from) = match self {
            Text::Given(text) => (text.replace(['\n', '\r'], " "), "the text".to_owned()),
            Text::File(path) => (read(open_file(path)?.0, path)?, path.display().to_string()),
            Text::Standard => {
                let from = "standard input";
                (read(std::io::stdin(), Path::new(from))?, from.to_owned())
            }
        };
        let words = text.lines().map(str::trim).filter(|l| l.chars().any(char::is_alphanumeric));
        let lines: Vec<Line> = words.map(|l| Line::Text(l.to_owned())).collect();
        match lines.is_empty() {
            true => Err(RunError::Usage(format!("{from}: has no words to say"))),
            false => Ok(lines),
        }
    }
}

fn read(from: impl Read, path: &Path) -> Result<String, RunError> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| RunError::io(path, "cannot read", e))?;
    let refused = |why: String| RunError::Usage(format!("{}: {why}", path.display()));
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(refused(format!("has more than {MAX_TEXT_BYTES} bytes of text; give it in parts")));
    }
    String::from_utf8(bytes).map_err(|e| refused(format!("is not UTF-8 text ({e})")))
}

/// What speech took.
#[derive(Clone, Debug, Serialize)]
pub struct Taken {
    /// Planned bytes of the process, or of the card.
    pub planned_bytes: u64,
    /// Of these, keys and values.
    pub cache_bytes: u64,
    /// Wall seconds, without loading.
    pub seconds: f64,
    /// Seconds of speech.
    pub speech_seconds: f64,
    /// By line.
    pub lines: Vec<Said>,
}

/// Says what is asked.
///
/// # Errors
/// A family that does not speak; what [`Trained::open`] and its family refuse; a budget without room for a second of speech;
/// sound that cannot be written.
pub fn say(
    trained: &Trained,
    asked: &Asked<'_>,
    options: &InferenceOptions,
    out: &Out,
    console: &mut dyn Console,
) -> Result<Taken, RunError> {
    let device = options.device()?;
    let (mut speech, plan) = fitting(trained, asked, (options, &device), console)?;
    trained.check(&inference::parameters(&plan))?;
    speech.notes().iter().for_each(|note| console.line(note));
    let less = "speech of a second does not fit; raise --memory";
    let Open { mut exec, planned_bytes, cache_bytes } = inference::opened(plan, (options, &device), less)?;
    trained.load(&mut *exec)?;
    let pieces = speech.pieces();
    let mut writing = Writing::new(out, &*speech, &pieces, console);
    match speech.speak(&mut *exec, &str::to_owned, &mut writing) {
        // Who listened wanted no more.
        Err(RunError::Data(DataError::Io { source, .. })) if source.kind() == ErrorKind::BrokenPipe => {}
        done => {
            done?;
            writing.end()?;
        }
    }
    let (seconds, speech_seconds) = (writing.taken(), writing.of_speech());
    let lines = writing.said;
    Ok(Taken { planned_bytes, cache_bytes, seconds, speech_seconds, lines })
}

/// Returns speech that fits the budget, in shorter pieces where that is needed, or the least that does not.
fn fitting(
    trained: &Trained,
    asked: &Asked<'_>,
    on: (&InferenceOptions, &Device),
    console: &mut dyn Console,
) -> Result<(Box<dyn Speech>, InferencePlan), RunError> {
    let model = &trained.model;
    let speaker = model.opened.speaker().ok_or_else(|| {
        RunError::Usage(format!("{}: {} does not speak here", model.dir.display(), model.family.name()))
    })?;
    if asked.seconds.is_some() && !speaker.has_length() {
        let why = "--seconds: this model chooses how long it speaks; leave it out";
        return Err(RunError::Usage(why.to_owned()));
    }
    if asked.settings.noise.is_some() && !speaker.has_noise() {
        let why = "--noise: this model has no scale of noise; leave it out";
        return Err(RunError::Usage(why.to_owned()));
    }
    let planned = |asked: &Asked<'_>| {
        let speech = speaker.speech(asked)?;
        // The adapters are gone before anything is said.
        let then = speech.bytes().max(trained.adding_bytes()) + SoundWriter::BYTES;
        let held = Held { before: speech.read_bytes(), then };
        let plan = inference::plan(&*speech.programs(), held, on)?;
        Ok::<_, RunError>((speech, plan))
    };
    let fits = |plan: &InferencePlan| on.0.memory.is_none_or(|budget| plan.peak_bytes <= budget);
    let (mut speech, mut plan) = planned(asked)?;
    for (seconds, sequences) in SMALLER {
        if fits(&plan) {
            break;
        }
        let mut settings = asked.settings.clone();
        settings.sequences = settings.sequences.min(sequences);
        let before = speech.pieces();
        let most_seconds = asked.most_seconds.min(seconds);
        (speech, plan) = planned(&Asked { settings: &settings, most_seconds, ..asked.clone() })?;
        if fits(&plan) && speech.pieces() != before {
            console.line(&format!("said in pieces of about {seconds} s, to stay within --memory"));
        }
    }
    Ok((speech, plan))
}
