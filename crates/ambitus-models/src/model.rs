//! A model of any family: what training asks of it, in one place.

use crate::batch::{Batch, Capacity, Layout};
use crate::init::Init;
use crate::{f5, orpheus};
use ambitus_ir::{Program, Session};

/// A checked model shape of one of the families.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// F5-TTS.
    F5(f5::config::Config),
    /// Orpheus, and other Llama decoders.
    Orpheus(orpheus::config::Config),
}

/// What a row of a packed batch is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// `frames` or `tokens`.
    pub unit: &'static str,
    /// How many a second of audio has.
    pub per_second: f64,
    /// The most that one clip may have.
    pub most: Option<usize>,
}

impl From<f5::config::Config> for Model {
    fn from(cfg: f5::config::Config) -> Model {
        Model::F5(cfg)
    }
}

impl From<orpheus::config::Config> for Model {
    fn from(cfg: orpheus::config::Config) -> Model {
        Model::Orpheus(cfg)
    }
}

impl Model {
    /// The forward step with output `loss` `[1]`; `train`: with dropout where the configuration has it.
    pub fn loss(&self, s: &mut Session, cap: Capacity, name: &str, train: bool) -> Program {
        match self {
            Model::F5(cfg) => f5::model::loss(s, cfg, cap, name, train),
            Model::Orpheus(cfg) => orpheus::model::loss(s, cfg, cap, name),
        }
    }

    /// One step of sampling, of families that sample by the whole clip.
    pub fn sample(&self, s: &mut Session, cap: Capacity, name: &str) -> Option<Program> {
        match self {
            Model::F5(cfg) => Some(f5::model::sample(s, cfg, cap, name)),
            Model::Orpheus(_) => None,
        }
    }

    /// Inputs of [`Model::loss`] without `norm`.
    pub fn layout(&self, cap: Capacity) -> Layout {
        match self {
            Model::F5(_) => f5::batch::layout(cap),
            Model::Orpheus(_) => orpheus::batch::layout(cap),
        }
    }

    /// An empty batch.
    pub fn batch(&self, cap: Capacity) -> Batch {
        Batch::new(&self.layout(cap))
    }

    /// Bytes of a clip of so many rows as it is read from the disk.
    pub fn clip_bytes(&self, rows: usize) -> u64 {
        let each = match self {
            Model::F5(_) => 4 * f5::config::MELS,
            // An id and a label.
            Model::Orpheus(_) => 8,
        };
        (rows * each) as u64
    }

    /// What a row is.
    pub fn rows(&self) -> Rows {
        match self {
            Model::F5(cfg) => f5::config::rows(cfg),
            Model::Orpheus(_) => orpheus::config::ROWS,
        }
    }

    /// How a fresh tensor of this shape is drawn.
    pub fn init(&self, name: &str, dims: &[usize]) -> Init {
        match self {
            Model::F5(cfg) => f5::weights::init(name, dims, cfg),
            Model::Orpheus(cfg) => orpheus::weights::init(name, cfg),
        }
    }

    /// The values of a tensor that follows from the configuration: files need not hold it.
    pub fn made(&self, name: &str) -> Option<Vec<f32>> {
        match self {
            Model::F5(cfg) => (name == f5::weights::INV_FREQ).then(|| f5::weights::inv_freq(cfg)),
            Model::Orpheus(_) => None,
        }
    }

    /// Tensors that the original has under a second name: the model's name for it, and the other.
    pub fn aliases(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Model::F5(_) => &[],
            Model::Orpheus(cfg) => orpheus::weights::aliases(cfg),
        }
    }

    /// The linear layers that adapters go to where nobody says, by pattern.
    pub fn adapted(&self) -> &'static [&'static str] {
        match self {
            Model::F5(_) => &f5::weights::ADAPTED,
            Model::Orpheus(_) => &orpheus::weights::ADAPTED,
        }
    }

    /// Bytes of the original project's training step for the same micro-batch, by arithmetic; `mixed`: with autocast.
    pub fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64 {
        match self {
            Model::F5(cfg) => f5::weights::original_bytes(cfg, parameters, rows, mixed),
            Model::Orpheus(cfg) => orpheus::weights::original_bytes(cfg, parameters, rows, mixed),
        }
    }

    /// The project that loads an export.
    pub fn project(&self) -> &'static str {
        match self {
            Model::F5(_) => "F5-TTS",
            Model::Orpheus(_) => "transformers",
        }
    }

    /// How a voice in an export is heard, in the words of the project's own tool.
    pub fn listen(&self, export: &str) -> Option<String> {
        match self {
            Model::F5(_) => Some(f5::listen(export)),
            Model::Orpheus(_) => None,
        }
    }

    /// What the first loss of a run says, where the family's users know what it should be.
    pub fn first_loss(&self, loss: f64) -> Option<String> {
        match self {
            Model::F5(_) => None,
            Model::Orpheus(cfg) => orpheus::first_loss(cfg, loss),
        }
    }

    /// The same with this dropout, where the family has any.
    pub fn set_dropout(&mut self, p: f32) {
        match self {
            Model::F5(cfg) => cfg.dropout = p,
            Model::Orpheus(_) => {}
        }
    }
}
