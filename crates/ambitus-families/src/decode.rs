//! Generation token by token, for every family that writes tokens.

use crate::batches::write_batch;
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_models::Batch;
use ambitus_models::decode::{PREFILL, Room, STEP, fill_prompts, fill_step};

/// A sequence that goes on.
struct Sequence {
    /// Prompt and new tokens.
    tokens: Vec<u32>,
    /// Of the prompt.
    prompt: usize,
    ended: bool,
}

/// `choose(i, before, logits)` returns the token of prompt i that follows those before it, by the logits `[V]`, which it may change.
/// What it fails with ends generation.
pub type Choose<'c> = dyn FnMut(usize, &[u32], &mut [f32]) -> Result<u32, RunError> + 'c;

/// The loop of prefill and steps over the programs of [`ambitus_models::decode`].
pub struct Decoder<'n> {
    /// Returns the name of a program from that of [`ambitus_models::decode`]: those on averages have others.
    pub name: &'n dyn Fn(&str) -> String,
    /// Sizes.
    pub room: Room,
    /// V.
    pub vocabulary: usize,
    /// New tokens of each sequence at most.
    pub most: Vec<usize>,
    /// Tokens that end a sequence; they are its last.
    pub stops: Vec<u32>,
}

impl Decoder<'_> {
    /// Generates for at most [`Room::sequences`] prompts, whose tokens and new ones fit [`Room::tokens`]: returns the new tokens of
    /// each. `choose` is asked for every token.
    ///
    /// # Errors
    /// From the executor and `choose`.
    pub fn run(
        &self,
        exec: &mut dyn Executor,
        prompts: &[&[u32]],
        choose: &mut Choose<'_>,
    ) -> Result<Vec<Vec<u32>>, RunError> {
        let begun = |(prompt, most): (&&[u32], &usize)| Sequence {
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            ended: *most == 0,
        };
        let mut sequences: Vec<Sequence> = prompts.iter().zip(&self.most).map(begun).collect();
        let mut logits = vec![0.0; self.room.sequences * self.vocabulary];
        let mut batch = Batch::new(&self.room.layout(true));
        fill_prompts(&mut batch, self.room, prompts);
        let (prefill, step) = ((self.name)(PREFILL), (self.name)(STEP));
        let mut program = &prefill;
        while sequences.iter().any(|s| !s.ended) {
            write_batch(exec, program, &batch)?;
            exec.run(program, 0)?;
            exec.read_f32(program, "logits", 0, &mut logits)?;
            for (i, (s, logits)) in sequences.iter_mut().zip(logits.chunks_mut(self.vocabulary)).enumerate() {
                if s.ended {
                    continue;
                }
                let next = choose(i, &s.tokens, logits)?;
                s.tokens.push(next);
                s.ended = self.stops.contains(&next) || s.tokens.len() - s.prompt == self.most[i];
            }
            if program == &prefill {
                (program, batch) = (&step, Batch::new(&self.room.layout(false)));
            }
            // The last token is not read yet.
            let reads =
                |s: &Sequence| (!s.ended).then(|| Some((*s.tokens.last()?, s.tokens.len() - 1))).flatten();
            let tokens: Vec<Option<(u32, usize)>> = sequences.iter().map(reads).collect();
            fill_step(&mut batch, self.room, &tokens);
        }
        Ok(sequences.into_iter().map(|mut s| s.tokens.split_off(s.prompt)).collect())
    }
}
