//! Generation from a batch file: `clips.i.ref_mel` f32 `[R, M]`, `clips.i.text` i64 `[Nt]` (the reference's and the new), `clips.i.frames`
//! i64 `[1]` (in all) and `clips.i.x0` f32 `[frames, M]`; results `clips.i.mel` f32 `[frames, M]`.

use super::flow::{self, Given};
use super::folder::Folder;
use crate::error::RunError;
use crate::generate::{Flow, Generated, Generator, Job, Settings, Values};
use crate::recorded::Spare;
use crate::weights::STAGING_BYTES;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::Capacity;
use ambitus_models::f5::batch;
use ambitus_models::f5::config::{Config, MAX_FRAMES, MELS};
use ambitus_models::f5::model;
use ambitus_store::TensorFile;
use std::path::Path;

/// Name of the program of a step.
const STEP: &str = "flow";

/// A clip of the file.
struct Wanted {
    /// `[N, M]`: the reference's frames, then zeros.
    mel: Vec<f32>,
    /// R.
    reference: usize,
    text: Vec<i32>,
    noise: Vec<f32>,
}

impl Wanted {
    fn frames(&self) -> usize {
        self.mel.len() / MELS
    }
}

struct Clips {
    config: Config,
    flow: Flow,
    clips: Vec<Wanted>,
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, _spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let (path, cfg) = (file, &self.config);
        let file = TensorFile::open(path)?;
        let bad = |name: &str, why: String| RunError::Usage(format!("{}: {name}: {why}", path.display()));
        let mut scratch = vec![0u8; STAGING_BYTES];
        let mut clips = Vec::new();
        while file.contains(&format!("clips.{}.ref_mel", clips.len())) {
            let i = clips.len();
            let tensor = |leaf: &str| format!("clips.{i}.{leaf}");
            let mut ints = |leaf: &str| -> Result<Vec<i64>, RunError> {
                let mut ids = vec![0i64; file.get(&tensor(leaf))?.elements()];
                file.read_i64(&tensor(leaf), &mut ids, &mut scratch)?;
                Ok(ids)
            };
            let frames = ints("frames")?;
            let text: Vec<i32> =
                ints("text")?.iter().map(|id| i32::try_from(*id).unwrap_or(i32::MAX)).collect();
            batch::check_text(&text, cfg).map_err(|id| {
                let tokens = cfg.text_rows - 1;
                bad(&tensor("text"), format!("id {id} has no row; the vocabulary has {tokens} tokens"))
            })?;
            let mut matrix = |leaf: &str| -> Result<Vec<f32>, RunError> {
                let shape = file.get(&tensor(leaf))?.shape().to_vec();
                let &[n, MELS] = shape.as_slice() else {
                    return Err(bad(&tensor(leaf), format!("is {shape:?}, not [frames, {MELS}]")));
                };
                let mut out = vec![0.0; n * MELS];
                file.read_into(&tensor(leaf), &mut out, &mut scratch)?;
                match out.iter().position(|x| !x.is_finite()) {
                    Some(at) => Err(bad(&tensor(leaf), format!("element {at} is {}", out[at]))),
                    None => Ok(out),
                }
            };
            let (mut mel, noise) = (matrix("ref_mel")?, matrix("x0")?);
            let reference = mel.len() / MELS;
            let least = reference.max(text.len());
            let frames = match frames[..] {
                [n] if n > least as i64 && n <= MAX_FRAMES as i64 => n as usize,
                _ => {
                    let why = format!(
                        "is {frames:?}: one number above {least}, the frames of the reference and the ids of the text, \
                         and up to {MAX_FRAMES}"
                    );
                    return Err(bad(&tensor("frames"), why));
                }
            };
            if noise.len() != frames * MELS {
                return Err(bad(&tensor("x0"), format!("has {} frames, not {frames}", noise.len() / MELS)));
            }
            mel.resize(frames * MELS, 0.0);
            clips.push(Wanted { mel, reference, text, noise });
        }
        if clips.is_empty() {
            return Err(bad("clips.0.ref_mel", "is missing; the batch has no clip".to_owned()));
        }
        Ok(Box::new(Clips { config: cfg.clone(), flow: settings.flow, clips }))
    }
}

impl Clips {
    /// Returns the size for any of the clips.
    fn capacity(&self) -> Capacity {
        let clips = flow::clips(self.flow);
        Capacity { rows: clips * self.clips.iter().map(Wanted::frames).max().unwrap_or(1), clips }
    }
}

impl Job for Clips {
    fn programs(&self, session: &mut Session, _cache: DType) -> Vec<Program> {
        vec![model::sample(session, &self.config, self.capacity(), STEP)]
    }

    fn bytes(&self) -> u64 {
        let all: usize = self.clips.iter().map(|c| c.mel.len()).sum();
        let (rows, layout) = (self.capacity().rows, batch::layout(self.capacity()));
        // Reference, noise and result of every clip; of a step its inputs, x, conditions and velocity.
        12 * all as u64 + layout.bytes() + 12 * (rows * MELS) as u64
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let mut results = Vec::new();
        for (i, clip) in self.clips.iter().enumerate() {
            let given = Given {
                mel: &clip.mel,
                text: &clip.text,
                generated: clip.reference..clip.frames(),
                noise: &clip.noise,
            };
            let mel = flow::integrate(exec, (STEP, self.capacity()), &given, self.flow)?;
            let (name, shape) = (format!("clips.{i}.mel"), vec![clip.frames(), MELS]);
            results.push(Generated { name, shape, values: Values::F32(mel) });
        }
        Ok(results)
    }
}
