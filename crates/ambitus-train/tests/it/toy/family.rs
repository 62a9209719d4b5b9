//! A toy's folder, `toy.json` and `model.safetensors`, and its clips.

use super::model::{Config, MELS};
use ambitus_data::{ClipIndex, DataError, Source, Tokenizer, TokenizerKind, load_clip, mel, prepare};
use ambitus_families::clips::{Clips, Use};
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{ExportForm, Family, ModelDir, OpenOptions, Opened, TorchLayout, of_model};
use ambitus_families::prepare::{
    Bound, Job, Made, PREPARE_THREADS, Preparer, Room, What, limited, no_data, prepare_options, shown,
};
use ambitus_families::recorded::Spare;
use ambitus_families::weights::{Differences, MAX_CONFIG_BYTES, Weights, read_text};
use ambitus_ir::StateDecl;
use ambitus_models::{Batch, Model, Norms, one_norm};
use ambitus_recipe::recipe::{Defaults, OwnKey, Section};
use ambitus_store::{Item, TensorFile};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// The family.
pub struct Toy;

/// `toy:` of a recipe.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Keys {
    gain: Option<f32>,
}

static SECTION: Section = Section {
    name: "toy",
    keys: &[OwnKey { name: "gain", says: "Of every mel.", before: None, option: None }],
};

impl Family for Toy {
    fn name(&self) -> &'static str {
        "Toy"
    }

    fn files(&self) -> &'static str {
        "toy.json and model.safetensors"
    }

    fn section(&self) -> &'static Section {
        &SECTION
    }

    fn recognises(&self, dir: &Path) -> bool {
        dir.join("toy.json").is_file()
    }

    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        let Keys { gain } = options.own(&SECTION)?;
        let path = dir.join("toy.json");
        let bad = |e: serde_json::Error| RunError::Model(format!("{}: {e}", path.display()));
        let text = read_text(&path, MAX_CONFIG_BYTES, "write one")?;
        let config: Config = serde_json::from_str(&text).map_err(bad)?;
        let file = dir.join("model.safetensors");
        let weights = match options.from_scratch {
            true => None,
            false => {
                let files = vec![TensorFile::open(&file)?];
                Some(Weights { files, prefix: "toy.".to_owned(), path: file })
            }
        };
        Ok(ModelDir {
            dir: dir.to_owned(),
            family: &Toy,
            model: Arc::new(config),
            opened: Box::new(Folder { gain: gain.unwrap_or(1.0) }),
            wants_checkpointing: false,
            kept: vec!["toy.json".to_owned()],
            weights,
        })
    }

    fn defaults(&self, model: &dyn Model) -> Defaults {
        Defaults { learning_rate: 1e-3, clips: 3, ..of_model(model) }
    }

    fn export(&self) -> ExportForm {
        ExportForm { prefix: "toy.", ..ExportForm::default() }
    }
}

/// A toy whose project writes PyTorch checkpoints, in two layouts.
pub struct Pickled;

static LAYOUTS: [TorchLayout; 2] = [
    TorchLayout {
        name: "plain",
        file: "toy.pth",
        key: "model",
        prefix: "",
        place: None,
        beside: |_| Ok(Vec::new()),
    },
    TorchLayout {
        name: "wrapped",
        file: "toy.pth",
        key: "weights",
        prefix: "outer.",
        place: None,
        beside: |run| {
            let config = run.dir.join("toy.json").is_file();
            let loss = run.loss.map_or(Item::None, Item::Float);
            let all =
                [("step", Item::Int(run.updates as i64)), ("loss", loss), ("config", Item::Bool(config))];
            Ok(all.map(|(key, item)| (key.to_owned(), item)).into())
        },
    },
];

impl Family for Pickled {
    fn name(&self) -> &'static str {
        "Pickled toy"
    }

    fn files(&self) -> &'static str {
        Toy.files()
    }

    fn section(&self) -> &'static Section {
        Toy.section()
    }

    fn recognises(&self, dir: &Path) -> bool {
        Toy.recognises(dir)
    }

    fn open(&self, dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
        Toy.open(dir, options)
    }

    fn defaults(&self, model: &dyn Model) -> Defaults {
        Toy.defaults(model)
    }

    fn export(&self) -> ExportForm {
        ExportForm { layouts: &LAYOUTS, ..Toy.export() }
    }
}

struct Folder {
    gain: f32,
}

impl Opened for Folder {
    fn check(&self, weights: &Weights, states: &[StateDecl]) -> Result<(), RunError> {
        let all = Differences::new(weights, states, |_| false, |_| false);
        match (all.missing.first(), all.extra.first(), all.misshapen.first()) {
            (None, None, None) => Ok(()),
            first => Err(RunError::Model(format!("{}: does not fit: {first:?}", weights.path.display()))),
        }
    }

    fn preparer(&self) -> Result<Box<dyn Preparer + '_>, RunError> {
        Ok(Box::new(Mels(Tokenizer::new(TokenizerKind::Byte, None)?)))
    }

    fn clips(&self, index: Arc<ClipIndex>, chosen: &[usize], _seed: u64) -> Box<dyn Clips> {
        let frames = chosen.iter().map(|&i| index.frames()[i]).collect();
        Box::new(ToyClips { index, chosen: chosen.to_vec(), frames, gain: self.gain })
    }

    fn recorded(&self, file: &Path, _spare: Spare) -> Result<Box<dyn Clips>, RunError> {
        Err(RunError::Usage(format!("{}: a toy has no batch files", file.display())))
    }

    fn rows_of(&self, seconds: f64) -> u32 {
        mel::frames((seconds * f64::from(mel::SAMPLE_RATE)).round() as u64) as u32
    }

    fn text_assumed(&self, _counted: bool) -> &'static str {
        "texts are not looked at"
    }

    fn assumes_clips(&self) -> bool {
        true
    }
}

struct Mels(Tokenizer);

impl Preparer for Mels {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let dir = job.recipe.data.dir.as_ref().ok_or_else(no_data)?;
        let (options, room) =
            (prepare_options(job.recipe, mel::SAMPLE_RATE), Room::new(job, PREPARE_THREADS));
        let source = room.read(0, Source::read(dir, &options.cache, room.left(0)))?;
        let bytes = limited(&options, |o| room.process + o.memory_bound(&self.0, &source));
        let prepared = prepare(&source, &self.0, &options, &shown(console))?;
        Ok(Made::new(What::Clips(Box::new(prepared)), job.recipe, &bytes))
    }

    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        let beside = Room::new(job, PREPARE_THREADS).process + held;
        Ok(limited(&prepare_options(job.recipe, mel::SAMPLE_RATE), move |o| beside + o.fixed_bound(&self.0)))
    }

    fn stays(&self) -> u64 {
        0
    }
}

struct ToyClips {
    index: Arc<ClipIndex>,
    chosen: Vec<usize>,
    frames: Vec<u32>,
    gain: f32,
}

impl Clips for ToyClips {
    fn rows(&self) -> &[u32] {
        &self.frames
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        let frames: u32 = uses.iter().map(|of| self.frames[of.clip]).sum();
        Ok(one_norm(1.0 / (MELS as f32 * frames.max(1) as f32)))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let ([mel, there], []) = batch.tables::<2, 0>();
        mel.fill(0.0);
        there.fill(0.0);
        let mut at = 0;
        for of in uses {
            let clip = load_clip(&self.index.path(self.chosen[of.clip]))?.mel;
            let frames = clip.len() / MELS;
            mel[at * MELS..][..clip.len()].copy_from_slice(&clip);
            mel[at * MELS..][..clip.len()].iter_mut().for_each(|x| *x *= self.gain);
            there[at..at + frames].fill(1.0);
            at += frames;
        }
        Ok(())
    }
}
