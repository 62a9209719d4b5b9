//! Encoder and decoder on an executor: windows in, logits out.

use crate::batches::write_batch;
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::whisper::config::Config;
use ambitus_models::whisper::{decoder, encoder};
use ambitus_models::{Batch, Layout};

/// What is run, and the last logits.
pub(super) struct Decoding<'a> {
    cfg: &'a Config,
    room: Room,
    window: Batch,
    prompts: Batch,
    next: Batch,
    /// `[S, V]`.
    logits: Vec<f32>,
}

impl<'a> Decoding<'a> {
    /// Returns the inputs of all programs.
    fn layouts(cfg: &Config, room: Room) -> [Layout; 3] {
        [encoder::layout(cfg), decoder::layout(room, true), decoder::layout(room, false)]
    }

    /// Returns the bytes of inputs and logits.
    pub fn bytes(cfg: &Config, room: Room) -> u64 {
        let inputs: u64 = Decoding::layouts(cfg, room).iter().map(Layout::bytes).sum();
        inputs + 4 * (room.sequences * cfg.vocab) as u64
    }

    /// Begins with nothing read.
    pub fn new(cfg: &'a Config, room: Room) -> Decoding<'a> {
        let [window, prompts, next] = Decoding::layouts(cfg, room).map(|layout| Batch::new(&layout));
        Decoding { cfg, room, window, prompts, next, logits: vec![0.0; room.sequences * cfg.vocab] }
    }

    /// Encodes a window's frames `[2 N, M]` for sequence s; `states` takes the encoder's states `[N, D]`.
    ///
    /// # Errors
    /// From the executor.
    pub fn encode(
        &mut self,
        exec: &mut dyn Executor,
        s: usize,
        mel: &[f32],
        states: Option<&mut [f32]>,
    ) -> Result<(), RunError> {
        encoder::fill(self.cfg, &mut self.window, s);
        self.window.float("mel").copy_from_slice(mel);
        write_batch(exec, encoder::ENCODE, &self.window)?;
        exec.run(encoder::ENCODE, 0)?;
        if let Some(states) = states {
            exec.read_f32(encoder::ENCODE, "states", 0, states)?;
        }
        Ok(())
    }

    /// Reads prompts, and returns the logits `[S, V]` of what follows each. `start`: see [`decoder::fill_prefill`].
    ///
    /// # Errors
    /// From the executor.
    pub fn prefill(
        &mut self,
        exec: &mut dyn Executor,
        prompts: &[&[u32]],
        start: Option<(usize, &mut [f32])>,
    ) -> Result<&mut [f32], RunError> {
        let at = start.as_ref().map(|(at, _)| *at);
        decoder::fill_prefill(self.cfg, &mut self.prompts, self.room, prompts, at.as_slice());
        write_batch(exec, PREFILL, &self.prompts)?;
        exec.run(PREFILL, 0)?;
        if let Some((_, logits)) = start {
            exec.read_f32(PREFILL, "start_logits", 0, logits)?;
        }
        exec.read_f32(PREFILL, "logits", 0, &mut self.logits)?;
        Ok(&mut self.logits)
    }

    /// Reads a token of every sequence at its place, or none of those that have ended, and returns the logits `[S, V]`.
    ///
    /// # Errors
    /// From the executor.
    pub fn step(
        &mut self,
        exec: &mut dyn Executor,
        tokens: &[Option<(u32, usize)>],
    ) -> Result<&mut [f32], RunError> {
        decoder::fill_next(self.cfg, &mut self.next, self.room, tokens);
        write_batch(exec, STEP, &self.next)?;
        exec.run(STEP, 0)?;
        exec.read_f32(STEP, "logits", 0, &mut self.logits)?;
        Ok(&mut self.logits)
    }
}
