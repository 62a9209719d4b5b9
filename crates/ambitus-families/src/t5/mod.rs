//! A frozen text encoder (T5): token ids of a text to states on the CPU, one text at a time.
//!
//! A session has a program for each of a few lengths up to the longest text: they share the weights, and a text runs through the shortest
//! that has room for it. So short texts cost little. The lengths are always the same, so a text's states depend on its ids alone.

mod folder;
mod recorded;
#[cfg(test)]
mod tests;

pub use folder::as_part;
pub use recorded::recorded_states;

use crate::error::RunError;
use ambitus_compile::{pipeline, plan};
use ambitus_data::DataError;
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::Session;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::t5::config::Config;
use ambitus_models::t5::{model, pairs};
use folder::Folder;
use std::path::Path;
use std::sync::Arc;

/// Tokens of the smallest program: fewer take as long, for each weight is read once.
const FEWEST: usize = 32;
/// Tokens of a text at most. Attention holds a number for each head and pair of tokens.
pub const MOST_TOKENS: usize = 4096;

/// An encoder whose weights and work lie in one planned arena.
pub struct Encoder {
    folder: Folder,
    threads: usize,
    /// Tokens of each program, ascending.
    sizes: Vec<usize>,
    /// There is one with dropout for each.
    drops: bool,
    planned: Arc<PlannedSession>,
    open: Option<CpuExecutor>,
}

impl Encoder {
    /// Opens a folder with `config.json` and weights (`model.safetensors`, shards and their index, or `pytorch_model.bin`), and plans for
    /// texts of up to `tokens` ids. The folder is an encoder's, a whole T5's, or that of a model whose configuration has a
    /// `text_encoder`. No weight is read before the first use.
    ///
    /// # Errors
    /// Names the file and key, or every tensor that does not fit; more than [`MOST_TOKENS`].
    pub fn open(dir: &Path, tokens: usize, threads: usize) -> Result<Encoder, RunError> {
        Encoder::open_with(dir, tokens, threads, false)
    }

    /// Opens a folder, with programs for [`drawn`](Encoder::drawn) as well if `drops`. See [`open`](Encoder::open).
    ///
    /// # Errors
    /// As [`open`](Encoder::open).
    pub fn open_with(dir: &Path, tokens: usize, threads: usize, drops: bool) -> Result<Encoder, RunError> {
        if tokens > MOST_TOKENS {
            return Err(too_long(tokens, MOST_TOKENS));
        }
        let mut sizes = vec![FEWEST];
        while let Some(next) = sizes.last().filter(|n| **n < tokens).map(|n| longer(*n)) {
            sizes.push(next);
        }
        Ok(Encoder::of_sizes(Folder::open(dir)?, sizes, threads.max(1), drops))
    }

    /// Plans programs of these sizes, each also with dropout.
    fn of_sizes(folder: Folder, sizes: Vec<usize>, threads: usize, drops: bool) -> Encoder {
        let (target, mut session) = (CpuTarget::new(threads), Session::default());
        let mut programs = Vec::with_capacity(sizes.len());
        for tokens in &sizes {
            for drops in [false, true].into_iter().take(1 + usize::from(drops)) {
                let p = model::encode(&mut session, &folder.config, folder.embedding, *tokens, drops);
                programs.push(pipeline::plain(&mut session, p, &target));
            }
        }
        session.programs = programs;
        let planned = Arc::new(plan::plan(session, &target, 1));
        Encoder { folder, threads, sizes, drops, planned, open: None }
    }

    /// Returns the encoder's shape.
    pub fn config(&self) -> &Config {
        &self.folder.config
    }

    /// Returns the number of ids that a text may have.
    pub fn tokens(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Returns the bytes of the arena and of the longest text's tables and states.
    pub fn bytes(&self) -> u64 {
        let beside = self.tokens() * (self.tokens() + 1 + self.config().dim);
        self.planned.arena_bytes() + 4 * beside as u64
    }

    /// Changes whenever states may: of configuration and weights. Reads all weights.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        self.folder.fingerprint()
    }

    /// Gives the arena back; the next use opens it again.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Returns the states of a text, `[U, D]` row-major for U ids: with the end token that the tokenizer puts after it.
    ///
    /// # Errors
    /// Ids that are none of the vocabulary, more of them than was planned for; the executor; weights that cannot be read or do not give
    /// numbers.
    pub fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, RunError> {
        self.encode(ids, None)
    }

    /// Returns the states of a text with dropout, as while the encoder is trained: a draw that follows from the ids and `number`.
    ///
    /// # Errors
    /// As [`states`](Encoder::states).
    ///
    /// # Panics
    /// Unless it was opened with them.
    pub fn drawn(&mut self, ids: &[u32], number: u32) -> Result<Vec<f32>, RunError> {
        assert!(self.drops, "an encoder with dropout");
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let hash = blake3::hash(&bytes);
        let word = u32::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]));
        self.encode(ids, Some([word, number]))
    }

    fn encode(&mut self, ids: &[u32], key: Option<[u32; 2]>) -> Result<Vec<f32>, RunError> {
        let Some(tokens) = self.sizes.iter().copied().find(|n| ids.len() <= *n) else {
            return Err(too_long(ids.len(), self.tokens()));
        };
        let Config { dim, vocab, heads, .. } = *self.config();
        if let Some(at) = ids.iter().position(|id| *id as usize >= vocab) {
            return Err(RunError::Data(DataError::Invalid(format!(
                "ids[{at}]: {} is not below the text encoder's vocabulary of {vocab}; use the tokenizer of its folder",
                ids[at]
            ))));
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = vec![-1; tokens];
        rows.iter_mut().zip(ids).for_each(|(row, id)| *row = *id as i32);
        let mut buckets = vec![0; tokens * tokens];
        pairs::fill(tokens, std::slice::from_ref(&(0..ids.len())), &mut buckets);
        let program = model::name(tokens, key.is_some());
        let exec = self.ready()?;
        exec.write_i32(&program, "ids", 0, &rows)?;
        exec.write_i32(&program, "pairs", 0, &buckets)?;
        if let Some(key) = key {
            exec.write_i32(&program, "key", 0, &key.map(u32::cast_signed))?;
            exec.write_i32(&program, "rows", 0, &[0, ids.len() as i32])?;
            exec.write_i32(&program, "scores", 0, &[0, (heads * tokens) as i32])?;
        }
        exec.run(&program, 0)?;
        let mut states = vec![0.0; tokens * dim];
        exec.read_f32(&program, "states", 0, &mut states)?;
        states.truncate(ids.len() * dim);
        states.shrink_to_fit();
        if states.iter().any(|x| !x.is_finite()) {
            let why = "the text encoder gives numbers that are not finite; check its weights";
            return Err(RunError::Model(why.to_owned()));
        }
        Ok(states)
    }

    /// Opens and fills the arena, once.
    fn ready(&mut self) -> Result<&mut CpuExecutor, RunError> {
        let exec = match self.open.take() {
            Some(exec) => exec,
            None => {
                let mut exec = CpuExecutor::open(self.planned.clone(), self.threads)?;
                self.folder.load(&mut exec)?;
                exec
            }
        };
        Ok(self.open.insert(exec))
    }
}

impl ambitus_data::codes::Encoder for Encoder {
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String> {
        Encoder::states(self, ids).map_err(|e| e.to_string())
    }

    fn drawn(&mut self, ids: &[u32], number: usize) -> Result<Vec<f32>, String> {
        Encoder::drawn(self, ids, number as u32).map_err(|e| e.to_string())
    }

    fn width(&self) -> usize {
        self.config().dim
    }
}

/// Returns the length of the next longer program: powers of two, and halfway between them.
fn longer(tokens: usize) -> usize {
    if tokens.is_power_of_two() { tokens + tokens / 2 } else { tokens / 3 * 4 }
}

fn too_long(tokens: usize, most: usize) -> RunError {
    RunError::Data(DataError::Invalid(format!(
        "a text of {tokens} tokens for the text encoder, which takes {most} at most here: shorten the text"
    )))
}
