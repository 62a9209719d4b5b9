//! What training asks of a model of any family, in one place.

use crate::batch::{Batch, Capacity, Layout};
use crate::init::Init;
use ambitus_ir::{Program, Session};
use std::fmt::Debug;
use std::sync::Arc;

/// A checked model shape: its programs, and what its tensors are.
pub trait Model: Debug + Send + Sync {
    /// The forward step with output `loss` `[1]`; `train`: with dropout where the configuration has it.
    fn loss(&self, s: &mut Session, cap: Capacity, name: &str, train: bool) -> Program;

    /// One step of sampling, of families that sample by the whole clip.
    fn sample(&self, s: &mut Session, cap: Capacity, name: &str) -> Option<Program> {
        let _ = (s, cap, name);
        None
    }

    /// Inputs of [`Model::loss`] without its normalisers.
    fn layout(&self, cap: Capacity) -> Layout;

    /// Bytes of a clip of `rows` rows as it is read from the disk.
    fn clip_bytes(&self, rows: usize) -> u64;

    /// What a row is.
    fn rows(&self) -> Rows;

    /// How a fresh tensor of this shape is drawn.
    fn init(&self, name: &str, dims: &[usize]) -> Init;

    /// The values of a tensor that follows from the configuration: files need not hold it.
    fn made(&self, name: &str) -> Option<Vec<f32>> {
        let _ = name;
        None
    }

    /// Tensors that the original has under a second name: the model's name for it, and the other.
    fn aliases(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The linear layers that adapters go to where nobody says, by pattern.
    fn adapted(&self) -> &'static [&'static str];

    /// Bytes of the original project's training step for the same micro-batch, by arithmetic; `mixed`: with autocast.
    fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64;

    /// The project that loads an export.
    fn project(&self) -> &'static str;

    /// How a voice in an export is heard, in the words of the project's own tool.
    fn listen(&self, export: &str) -> Option<String> {
        let _ = export;
        None
    }

    /// What the first loss of a run says, where the family's users know what it should be.
    fn first_loss(&self, loss: f64) -> Option<String> {
        let _ = loss;
        None
    }

    /// The same with dropout `p`; `None` where the family has none.
    fn with_dropout(&self, p: f32) -> Option<Arc<dyn Model>> {
        let _ = p;
        None
    }
}

impl dyn Model + '_ {
    /// An empty batch.
    pub fn batch(&self, cap: Capacity) -> Batch {
        Batch::new(&self.layout(cap))
    }
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
