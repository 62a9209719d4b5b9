//! What training asks of a model of any family, in one place.

use crate::batch::{Batch, Capacity, Layout};
use crate::init::Init;
use ambitus_ir::{Program, Session};
use std::fmt::Debug;
use std::sync::Arc;

/// A checked model shape: its programs, and what its tensors are.
pub trait Model: Debug + Send + Sync {
    /// Returns who is trained, each by its own loss. Each player sees a micro-batch after the previous ones, whose outputs may
    /// be its inputs.
    fn players(&self) -> &'static [Player] {
        &[Player::ONLY]
    }

    /// Returns the forward step of a player, by its index, with output `loss` `[1]`; `train`: with dropout where the
    /// configuration has it. What a validation measures is the loss of the first.
    fn loss(&self, s: &mut Session, player: usize, cap: Capacity, name: &str, train: bool) -> Program;

    /// Returns the outputs `[1]` of the first player's forward step that the log names besides the loss: its parts, sums over an
    /// update as the loss is.
    fn reported(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the outputs f32 `[T]` of the first player's forward step that hold an integer of each row: `gradients` writes them.
    fn traced(&self) -> &'static [&'static str] {
        &[]
    }

    /// Builds one step of sampling, for families that generate whole clips.
    fn sample(&self, s: &mut Session, cap: Capacity, name: &str) -> Option<Program> {
        let _ = (s, cap, name);
        None
    }

    /// Returns the inputs of [`Model::loss`] without its normalisers.
    fn layout(&self, cap: Capacity) -> Layout;

    /// Returns the bytes of a clip of `rows` rows as it is read from the disk.
    fn clip_bytes(&self, rows: usize) -> u64;

    /// Returns what a row is.
    fn rows(&self) -> Rows;

    /// Returns how a fresh tensor of this shape is drawn.
    fn init(&self, name: &str, dims: &[usize]) -> Init;

    /// Returns the values of a tensor that follows from the configuration: files need not hold it.
    fn made(&self, name: &str) -> Option<Vec<f32>> {
        let _ = name;
        None
    }

    /// Returns the tensors that the original has under a second name: the model's name for it, and the other.
    fn aliases(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Returns the linear layers that adapters go to by default, by pattern.
    fn adapted(&self) -> &'static [&'static str];

    /// Returns the bytes of the original project's training step for the same micro-batch, by arithmetic; `mixed`: with autocast.
    fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64;

    /// Returns the project that loads an export.
    fn project(&self) -> &'static str;

    /// Returns how a voice in an export is heard, in the words of the project's own tool.
    fn listen(&self, export: &str) -> Option<String> {
        let _ = export;
        None
    }

    /// Returns what the first loss of a run says, where the family's users know what it should be.
    fn first_loss(&self, loss: f64) -> Option<String> {
        let _ = loss;
        None
    }

    /// Returns this model that has at most as many rows of context, which a clip attends to besides its own; `None` if the family has none.
    fn with_context(&self, rows: usize) -> Option<Arc<dyn Model>> {
        let _ = rows;
        None
    }

    /// Returns this model with dropout `p`; `None` if the family has none.
    fn with_dropout(&self, p: f32) -> Option<Arc<dyn Model>> {
        let _ = p;
        None
    }
}

impl dyn Model + '_ {
    /// Returns an empty batch.
    pub fn batch(&self, cap: Capacity) -> Batch {
        Batch::new(&self.layout(cap))
    }
}

/// Parameters that one loss trains. Most models are one player; a generator and its discriminator are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Player {
    /// In names of programs, in recipes and in the log: `g`. Empty for the only one.
    pub name: &'static str,
    /// Its parameters, by pattern; all, where there is none. The others are constants to its loss.
    pub trains: &'static [&'static str],
}

impl Player {
    /// The player of a model that has one.
    pub const ONLY: Player = Player { name: "", trains: &[] };
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
