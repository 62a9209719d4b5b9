//! Generation from a batch file: `clips.i.ref_mel` f32 `[R, M]`, `clips.i.text` i64 `[Nt]` (the reference's and the new), `clips.i.frames`
//! i64 `[1]` (in all) and `clips.i.x0` f32 `[frames, M]`; results `clips.i.mel` f32 `[frames, M]`.

use super::flow::{self, Given};
use super::folder::Folder;
use crate::error::RunError;
use crate::generate::{Flow, Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::Capacity;
use ambitus_models::f5::batch;
use ambitus_models::f5::config::{Config, MAX_FRAMES, MELS};
use ambitus_models::f5::model;
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
        let cfg = &self.config;
        let mut file = BatchFile::open(file)?;
        let mut clips = Vec::new();
        for i in 0..file.clips("ref_mel")? {
            let tensor = |leaf: &str| format!("clips.{i}.{leaf}");
            let (text, _) = file.ids(i, "text", &["tokens"])?;
            batch::check_text(&text, cfg).map_err(|id| {
                let tokens = cfg.text_rows - 1;
                file.bad(&tensor("text"), format!("id {id} has no row; the vocabulary has {tokens} tokens"))
            })?;
            let shape = file.shape(&tensor("ref_mel"))?;
            let [reference, MELS] = shape[..] else {
                return Err(file.bad(&tensor("ref_mel"), format!("is {shape:?}, not [frames, {MELS}]")));
            };
            let least = reference.max(text.len());
            let (frames, _) = file.ids::<u64>(i, "frames", &["1"])?;
            let frames = match frames[..] {
                [n] if n > least as u64 && n <= MAX_FRAMES as u64 => n as usize,
                _ => {
                    let why = format!(
                        "is {frames:?}: one number above {least}, the frames of the reference and the ids of the text, \
                         and up to {MAX_FRAMES}"
                    );
                    return Err(file.bad(&tensor("frames"), why));
                }
            };
            let shape = file.shape(&tensor("x0"))?;
            if shape != [frames, MELS] {
                return Err(file.bad(&tensor("x0"), format!("is {shape:?}, not [{frames}, {MELS}]")));
            }
            let mut mel = file.floats(&tensor("ref_mel"), reference * MELS)?;
            let noise = file.floats(&tensor("x0"), frames * MELS)?;
            mel.resize(frames * MELS, 0.0);
            clips.push(Wanted { mel, reference, text, noise });
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

    fn less(&self) -> &'static str {
        "clips of fewer frames, or --cfg 0, take less"
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
