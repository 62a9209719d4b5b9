//! Speech from text: ids of each sentence, how long they last, and samples of windows of frames (`infer` of piper1-gpl's VITS). Noise is drawn
//! by seed, line and sentence. Sentences follow one another without a pause of their own, as in the project.

use super::folder::Folder;
use super::inference::Scales;
use super::text::Texts;
use super::voice::{IDS_A_SECOND, Said, Voice, frames};
use crate::error::RunError;
use crate::speech::{
    Asked, BYTES_A_SECOND, Line, Listener, Programs, Reference, Speaker, Speech, SpokenLines,
};
use ambitus_data::DataError;
use ambitus_data::doubts::expected_seconds;
use ambitus_data::pieces::load_piece_clip;
use ambitus_data::text::chunks;
use ambitus_exec::executor::Executor;
use ambitus_models::clip_key;
use ambitus_models::piper::config::Config;
use ambitus_models::piper::speak::{Noise, READ, SOUND};
use std::path::Path;
use std::sync::Arc;

/// The longest sentence, about: longer ones are cut at spaces.
const MOST_SECONDS: f64 = 40.0;

/// What reads a text: the ids of each of its sentences, or what is wrong with it.
pub(super) type Sentences = dyn Fn(&str) -> Result<Vec<Vec<u32>>, String>;

/// A sentence.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    ids: Vec<u32>,
    speaker: u32,
}

/// Lines to be spoken.
struct Speaking {
    config: Config,
    scales: Scales,
    seed: u64,
    /// Of each line.
    lines: Vec<Vec<Piece>>,
    /// Seconds that each line should take as it is written.
    expected: Vec<f64>,
    speed: f64,
    notes: Vec<String>,
}

impl Speaker for Folder {
    fn example(&self) -> Option<&'static str> {
        Some(if self.config.speakers > 1 { "\"Good morning.\" --voice NAME" } else { "\"Good morning.\"" })
    }

    fn has_noise(&self) -> bool {
        true
    }

    fn speech(&self, asked: &Asked<'_>) -> Result<Box<dyn Speech>, RunError> {
        self.speech_by(asked, &|| self.sentences())
    }

    fn of_length(&self, seconds: f64, _threads: usize) -> Result<Box<dyn Speech>, RunError> {
        let ids = vec![0; (seconds * IDS_A_SECOND).ceil().max(1.0) as usize];
        Ok(Box::new(Speaking {
            config: self.config.clone(),
            scales: Scales::default(),
            seed: 0,
            lines: vec![vec![Piece { ids, speaker: 0 }]],
            expected: vec![seconds],
            speed: 1.0,
            notes: Vec::new(),
        }))
    }

    fn most_seconds(&self) -> f64 {
        MOST_SECONDS
    }
}

impl Folder {
    /// Returns what reads texts.
    fn sentences(&self) -> Result<Box<Sentences>, RunError> {
        let texts = Texts::read(&self.dir)?;
        Ok(Box::new(move |text| texts.sentences(text)))
    }

    /// Returns speech of lines, with texts read by what `open` gives.
    pub(super) fn speech_by(
        &self,
        asked: &Asked<'_>,
        open: &dyn Fn() -> Result<Box<Sentences>, RunError>,
    ) -> Result<Box<dyn Speech>, RunError> {
        asked.refuse_language()?;
        let (scales, speaker) = (self.scales()?, self.asked_speaker(asked)?);
        let (mut lines, mut expected, mut sentences) = (Vec::new(), Vec::new(), None);
        for line in asked.lines {
            let (pieces, seconds) = match line {
                Line::Clip(path) => {
                    let (own, ids, seconds) = self.of_clip(path)?;
                    (vec![Piece { ids, speaker: speaker.unwrap_or(own) }], seconds)
                }
                Line::Text(text) => {
                    let sentences = match &mut sentences {
                        Some(sentences) => sentences,
                        none => none.insert(open()?),
                    };
                    let who = speaker.unwrap_or(0);
                    (
                        self.pieces(text, (who, asked.most_seconds), &**sentences)?,
                        expected_seconds(text, None),
                    )
                }
            };
            lines.push(pieces);
            expected.push(seconds);
        }
        let mut notes = Vec::new();
        if speaker.is_none() && sentences.is_some() && self.config.speakers > 1 {
            notes.push(format!("speaker 0 of {} speaks; --voice names another", self.config.speakers));
        }
        Ok(Box::new(Speaking {
            config: self.config.clone(),
            scales: scales.with(asked.settings.noise.unwrap_or(1.0), asked.speed),
            seed: asked.settings.sampling.seed,
            lines,
            expected,
            speed: asked.speed,
            notes,
        }))
    }

    /// Returns who speaks, where that is said, and refuses what a voice has no use for.
    fn asked_speaker(&self, asked: &Asked<'_>) -> Result<Option<u32>, RunError> {
        if let Some(Reference::Sound(..)) = asked.reference {
            let why = match self.config.speakers {
                1 => "--ref: this model speaks in its own voice, and takes no clip; leave it out",
                _ => "--ref: this model's speakers have names, and it takes no clip: name one (--voice)",
            };
            return Err(RunError::Usage(why.to_owned()));
        }
        if asked.decoder.is_some() {
            let why = "--codec, --vocoder: this model makes sound itself; leave it out";
            return Err(RunError::Usage(why.to_owned()));
        }
        match (asked.voice, asked.reference) {
            (Some(_), _) if self.config.speakers == 1 => {
                Err(RunError::Usage("--voice: this voice has one speaker; leave it out".to_owned()))
            }
            (Some(named), _) => {
                self.speaker(named).map(Some).map_err(|why| RunError::Usage(format!("--voice: {why}")))
            }
            // While a run trains: texts in the voice of a clip that is held out.
            (None, Some(Reference::Clip(path)))
                if self.config.speakers > 1
                    && asked.lines.iter().any(|line| matches!(line, Line::Text(_))) =>
            {
                Ok(Some(self.of_clip(path)?.0))
            }
            _ => Ok(None),
        }
    }

    /// Returns a prepared clip's speaker, ids and seconds.
    fn of_clip(&self, path: &Path) -> Result<(u32, Vec<u32>, f64), RunError> {
        let clip = load_piece_clip(path)?;
        let mut ids = clip.text();
        let bad = |reason: String| DataError::File { path: path.to_owned(), reason };
        let speaker = match self.config.speakers {
            1 => 0,
            _ if ids.is_empty() => return Err(bad("names no speaker".to_owned()).into()),
            _ => ids.remove(0),
        };
        self.check(&ids, speaker).map_err(bad)?;
        let seconds = clip.counts().samples as f64 / f64::from(self.config.spectra.rate);
        Ok((speaker, ids, seconds))
    }

    /// Returns the sentences of a text, cut where they are longer than `most` seconds.
    fn pieces(
        &self,
        text: &str,
        (speaker, most): (u32, f64),
        sentences: &Sentences,
    ) -> Result<Vec<Piece>, RunError> {
        let most = (most.min(MOST_SECONDS) * BYTES_A_SECOND) as usize;
        let mut pieces = Vec::new();
        for chunk in chunks(text, most.max(1)) {
            for ids in sentences(&chunk).map_err(|why| RunError::Usage(format!("`{chunk}`: {why}")))? {
                if ids.is_empty() {
                    continue;
                }
                let of_model =
                    |why: String| RunError::Model(format!("{}: `{chunk}`: {why}", self.dir.display()));
                self.check(&ids, speaker).map_err(of_model)?;
                pieces.push(Piece { ids, speaker });
            }
        }
        Ok(pieces)
    }

    /// Checks ids and speaker against the model.
    pub(super) fn check(&self, ids: &[u32], speaker: u32) -> Result<(), String> {
        let (symbols, speakers) = (self.config.symbols, self.config.speakers);
        match ids.iter().find(|id| **id as usize >= symbols) {
            _ if ids.is_empty() => Err("has no phonemes".to_owned()),
            Some(id) => Err(format!("phoneme {id} is not among the {symbols} of the model")),
            None if speaker as usize >= speakers => {
                Err(format!("speaker {speaker} is not among the {speakers} of the model"))
            }
            None => Ok(()),
        }
    }
}

impl Speaking {
    fn voice(&self) -> Voice {
        let longest = self.lines.iter().flatten().map(|piece| piece.ids.len()).max().unwrap_or(1);
        Voice::new(&self.config, longest, self.scales)
    }
}

impl Speech for Speaking {
    fn programs(&self) -> Programs {
        let voice = self.voice();
        Arc::new(move |session, _| voice.programs(session))
    }

    fn runs(&self) -> Vec<(String, f64)> {
        let voice = self.voice();
        let pieces = self.lines.iter().flatten();
        let windows = |piece: &Piece| voice.windows(frames(&self.config, piece.ids.len(), self.scales)[0]);
        let all = [(READ, pieces.clone().count()), (SOUND, pieces.map(windows).sum())];
        all.into_iter().map(|(name, times)| (name.to_owned(), times as f64)).collect()
    }

    fn read_bytes(&self) -> u64 {
        self.resting_bytes()
    }

    fn bytes(&self) -> u64 {
        self.voice().bytes() + self.resting_bytes()
    }

    fn resting_bytes(&self) -> u64 {
        let piece = |piece: &Piece| size_of::<Piece>() + 4 * piece.ids.len();
        self.lines.iter().map(|line| 32 + line.iter().map(piece).sum::<usize>()).sum::<usize>() as u64
    }

    fn rest(&mut self) {}

    fn rate(&self) -> u32 {
        self.config.spectra.rate
    }

    fn pieces(&self) -> Vec<usize> {
        self.lines.iter().map(Vec::len).collect()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn speak(
        &mut self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        to: &mut dyn Listener,
    ) -> Result<(), RunError> {
        let (voice, mut spoken) = (self.voice(), SpokenLines::new(self.lines.len()));
        for (i, pieces) in self.lines.iter().enumerate() {
            spoken.end_before(i, to)?;
            for (k, piece) in pieces.iter().enumerate() {
                let key = clip_key(self.seed, i as u64, k as u64);
                let [_, most] = frames(&self.config, piece.ids.len(), self.scales);
                let said = Said {
                    ids: &piece.ids,
                    speaker: piece.speaker,
                    scales: self.scales,
                    noise: Noise::Drawn(key),
                    duration_noise: Noise::Drawn(key),
                    most,
                };
                let lasting = voice.speak(exec, name, &said, &mut |samples| to.samples(i, samples))?;
                spoken.line(i).reached_limit |= lasting.cut;
            }
            let length = self.expected[i] / self.speed;
            spoken.line(i).expected_seconds = Some(length);
        }
        spoken.end_before(self.lines.len(), to)
    }
}
