//! F5-TTS's clips of a batch file, with every draw given: `clips.i.{mel,x0,time,text,span,drop_audio,drop_text}`.

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::recorded::BatchFile;
use ambitus_data::DataError;
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::config::{Config, MAX_FRAMES, MELS};
use ambitus_models::f5::draw::Draw;
use ambitus_models::{Batch, Norms, one_norm};
use std::path::Path;

/// The clips of a batch file.
pub struct Given {
    clips: Vec<GivenClip>,
    rows: Vec<u32>,
}

/// A clip of a batch file.
struct GivenClip {
    mel: Vec<f32>,
    noise: Vec<f32>,
    text: Vec<i32>,
    span: Vec<bool>,
    draw: Draw,
}

impl GivenClip {
    fn clip(&self) -> Clip<'_> {
        Clip {
            mel: &self.mel,
            text: &self.text,
            draw: self.draw,
            noise: Some(&self.noise),
            span: Some(&self.span),
        }
    }
}

impl Clips for Given {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        Ok(one_norm(batch::norm(uses.iter().map(|u| self.clips[u.clip].clip().span_frames()).sum())))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let clips: Vec<Clip<'_>> = uses.iter().map(|u| self.clips[u.clip].clip()).collect();
        batch::fill(batch, &clips);
        Ok(())
    }
}

/// Reads and checks the clips of a file.
pub fn read(path: &Path, cfg: &Config) -> Result<Given, RunError> {
    let mut file = BatchFile::open(path)?;
    let mut clips = Vec::new();
    for i in 0..file.clips("mel")? {
        let tensor = |leaf: &str| format!("clips.{i}.{leaf}");
        let shape = file.shape(&tensor("mel"))?;
        let [n, MELS] = shape[..] else {
            return Err(file.bad(&tensor("mel"), format!("is {shape:?}, not [frames, {MELS}]")));
        };
        if n == 0 || (n > MAX_FRAMES && cfg.conv_layers > 0) {
            return Err(
                file.bad(&tensor("mel"), format!("{n} frames; 1 to {MAX_FRAMES} have a text position"))
            );
        }
        let mel = file.floats(&tensor("mel"), n * MELS)?;
        let noise = file.floats(&tensor("x0"), n * MELS)?;
        let time = file.floats(&tensor("time"), 1)?[0];
        let span: Vec<bool> = file.floats(&tensor("span"), n)?.iter().map(|x| *x != 0.0).collect();
        let drop_audio = file.floats(&tensor("drop_audio"), 1)?[0] != 0.0;
        let drop_text = file.floats(&tensor("drop_text"), 1)?[0] != 0.0;
        let (text, _) = file.ids(i, "text", &["tokens"])?;
        batch::check_text(&text, cfg).map_err(|id| {
            let tokens = cfg.text_rows - 1;
            file.bad(&tensor("text"), format!("id {id} has no row; the vocabulary has {tokens} tokens"))
        })?;
        let draw = Draw { time, span: (0, 0), drop_audio, drop_text, key: [0, 0] };
        clips.push(GivenClip { mel, noise, text, span, draw });
    }
    let given = Given { rows: clips.iter().map(|c| c.clip().frames() as u32).collect(), clips };
    if given.clips.iter().all(|c| c.clip().span_frames() == 0) {
        return Err(RunError::Usage(format!("{}: no frame is predicted in any span", path.display())));
    }
    Ok(given)
}
