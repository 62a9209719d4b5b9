//! F5-TTS's clips of a batch file, with every draw given: `clips.i.{mel,x0,time,text,span,drop_audio,drop_text}`.

use crate::clips::{Clips, Use};
use crate::error::RunError;
use crate::weights::STAGING_BYTES;
use ambitus_data::DataError;
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::config::{Config, MAX_FRAMES, MELS};
use ambitus_models::f5::draw::Draw;
use ambitus_models::{Batch, Norms, one_norm};
use ambitus_store::TensorFile;
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
    let file = TensorFile::open(path)?;
    let bad = |name: &str, why: String| RunError::Usage(format!("{}: {name}: {why}", path.display()));
    let mut scratch = vec![0u8; STAGING_BYTES];
    let mut clips = Vec::new();
    while file.contains(&format!("clips.{}.mel", clips.len())) {
        let i = clips.len();
        let tensor = |leaf: &str| format!("clips.{i}.{leaf}");
        let mut floats = |leaf: &str, want: Option<usize>| -> Result<Vec<f32>, RunError> {
            let name = tensor(leaf);
            let n = file.get(&name)?.elements();
            if want.is_some_and(|w| w != n) {
                return Err(bad(&name, format!("has {n} elements, {} are expected", want.unwrap_or(0))));
            }
            let mut out = vec![0.0; n];
            file.read_into(&name, &mut out, &mut scratch)?;
            match out.iter().position(|x| !x.is_finite()) {
                Some(at) => Err(bad(&name, format!("element {at} is {}", out[at]))),
                None => Ok(out),
            }
        };
        let shape = file.get(&tensor("mel"))?.shape().to_vec();
        let &[n, MELS] = shape.as_slice() else {
            return Err(bad(&tensor("mel"), format!("is {shape:?}, not [frames, {MELS}]")));
        };
        if n == 0 || (n > MAX_FRAMES && cfg.conv_layers > 0) {
            return Err(bad(&tensor("mel"), format!("{n} frames; 1 to {MAX_FRAMES} have a text position")));
        }
        let mel = floats("mel", None)?;
        let noise = floats("x0", Some(n * MELS))?;
        let time = floats("time", Some(1))?[0];
        let span: Vec<bool> = floats("span", Some(n))?.iter().map(|x| *x != 0.0).collect();
        let drop_audio = floats("drop_audio", Some(1))?[0] != 0.0;
        let drop_text = floats("drop_text", Some(1))?[0] != 0.0;
        let name = tensor("text");
        let mut ids = vec![0i64; file.get(&name)?.elements()];
        file.read_i64(&name, &mut ids, &mut scratch)?;
        let text: Vec<i32> = ids.iter().map(|id| i32::try_from(*id).unwrap_or(i32::MAX)).collect();
        batch::check_text(&text, cfg).map_err(|id| {
            let tokens = cfg.text_rows - 1;
            bad(&name, format!("id {id} has no row; the vocabulary has {tokens} tokens"))
        })?;
        let draw = Draw { time, span: (0, 0), drop_audio, drop_text, key: [0, 0] };
        clips.push(GivenClip { mel, noise, text, span, draw });
    }
    if clips.is_empty() {
        return Err(bad("clips.0.mel", "is missing; the batch has no clip".to_owned()));
    }
    let given = Given { rows: clips.iter().map(|c| c.clip().frames() as u32).collect(), clips };
    if given.clips.iter().all(|c| c.clip().span_frames() == 0) {
        return Err(RunError::Usage(format!("{}: no frame is predicted in any span", path.display())));
    }
    Ok(given)
}
