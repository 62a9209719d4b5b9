//! Generation from a batch file: `clips.i.text_ids` i64 `[U]`, empty without text.

use super::folder::Folder;
use super::recorded::states;
use crate::batches::write_batch;
use crate::error::RunError;
use crate::generate::{Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use crate::sampling::Draws;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::Batch;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::musicgen::batch::put_states;
use ambitus_models::musicgen::config::Config;
use ambitus_models::musicgen::model;
use ambitus_models::musicgen::written::{Written, fill_first, fill_step, layout};
use std::path::Path;
use std::sync::Arc;

/// Seconds of music where nothing is said: what the published models are trained on.
const SECONDS: f64 = 30.0;

/// A text that is to be heard.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// States of the text, `[U, E]`; none without.
    pub states: Arc<[f32]>,
    /// Codes of the sound that is continued, `[K, T]` codebook by codebook; none without.
    pub begun: Arc<[Vec<u32>]>,
    /// N: columns after the first.
    pub columns: usize,
}

impl Asked {
    /// Returns the code that a codebook is given in a column after the first.
    fn given(&self, cfg: &Config, k: usize, column: usize) -> Option<u32> {
        let frame = column.checked_sub(cfg.delays[k])?;
        self.begun.get(k)?.get(frame).copied()
    }
}

/// Texts of which codes are written, some at a time.
pub(super) struct Writer {
    /// The decoder, with as many rows of context as any text has.
    pub config: Config,
    pub settings: Settings,
    pub asked: Vec<Asked>,
    /// Strength of guidance: logits are u + (c - u) * this, c those with the text and u those without. 1: only c are computed.
    pub guidance: f32,
    /// Codes from here on are not chosen: those that the codec does not have.
    pub codes: usize,
}

/// A group of texts as sequences: those with their texts, then those without of texts that are guided.
struct Group<'a> {
    asked: &'a [Asked],
    /// The text of every sequence.
    of: Vec<usize>,
    /// The sequence without text of each.
    bare: Vec<Option<usize>>,
}

impl Writer {
    /// Returns a writer of these texts, which are guided by `guidance` where the settings do not say.
    pub fn new(config: &Config, settings: &Settings, asked: Vec<Asked>, guidance: f32) -> Writer {
        let context = asked.iter().map(|a| a.states.len() / config.text_dim).max().unwrap_or(0);
        let config = Config { context: context.max(1), ..config.clone() };
        let guidance = settings.guidance.unwrap_or(guidance);
        let codes = config.vocab;
        Writer { config, settings: settings.clone(), asked, guidance, codes }
    }

    /// Returns the texts that are written at a time.
    pub fn sequences(&self) -> usize {
        self.settings.sequences.clamp(1, self.asked.len().max(1))
    }

    fn guides(&self) -> bool {
        self.guidance != 1.0 && self.asked.iter().any(|a| !a.states.is_empty())
    }

    /// Returns the sizes for any group of texts.
    pub fn room(&self, cache: DType) -> Room {
        let sequences = self.sequences() * if self.guides() { 2 } else { 1 };
        let tokens = self.asked.iter().map(|a| a.columns).max().unwrap_or(1).max(1);
        Room { sequences, tokens, prompts: sequences, cache }
    }

    /// Returns the bytes of the texts' states.
    pub fn asked_bytes(&self) -> u64 {
        let begun = |a: &Asked| a.begun.iter().map(Vec::len).sum::<usize>();
        self.asked.iter().map(|a| (size_of::<Asked>() + 4 * (a.states.len() + begun(a))) as u64).sum()
    }

    /// Returns the bytes of logits, of inputs and of what is written.
    pub fn bytes(&self) -> u64 {
        let (room, c) = (self.room(DType::F32), &self.config);
        let inputs = layout(c, room, true).bytes() + layout(c, room, false).bytes();
        let written = 2 * c.codebooks() * room.tokens * self.sequences();
        inputs + 4 * (c.codebooks() * c.vocab * (room.sequences + 2) + written) as u64
    }

    fn group(&self, first: usize) -> Group<'_> {
        let asked = &self.asked[first..self.asked.len().min(first + self.sequences())];
        let mut of: Vec<usize> = (0..asked.len()).collect();
        let mut bare = vec![None; asked.len()];
        let guided = |a: &Asked| self.guidance != 1.0 && !a.states.is_empty();
        for (i, _) in asked.iter().enumerate().filter(|(_, a)| guided(a)) {
            bare[i] = Some(of.len());
            of.push(i);
        }
        Group { asked, of, bare }
    }

    /// Writes the group of texts from `first` on.
    ///
    /// # Errors
    /// From the executor.
    pub fn write(
        &self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        first: usize,
    ) -> Result<Vec<Written>, RunError> {
        let (cfg, room, group) = (&self.config, self.room(DType::F32), self.group(first));
        let mut all: Vec<Written> = group.asked.iter().map(|a| Written::new(cfg, a.columns)).collect();
        let tokens = group.asked.iter().map(|a| a.states.len() / cfg.text_dim);
        let bare = group.of.len() - group.asked.len();
        let tokens: Vec<usize> = tokens.chain(std::iter::repeat_n(0, bare)).collect();
        let (prefill, step) = (name(PREFILL), name(STEP));
        let mut batch = Batch::new(&layout(cfg, room, true));
        fill_first(cfg, &mut batch, room, &tokens);
        group.asked.iter().enumerate().for_each(|(s, a)| put_states(cfg, &mut batch, s, &a.states));
        let context = batch.int("context").to_vec();
        let mut program = &prefill;
        let width = cfg.codebooks() * cfg.vocab;
        let mut logits = vec![0.0; room.sequences * width];
        while all.iter().any(|written| !written.is_over()) {
            write_batch(exec, program, &batch)?;
            exec.run(program, 0)?;
            exec.read_f32(program, "logits", 0, &mut logits)?;
            for (i, written) in all.iter_mut().enumerate().filter(|(_, written)| !written.is_over()) {
                let (conditional, rest) = logits[i * width..].split_at_mut(width);
                if let Some(bare) = group.bare[i] {
                    guide(conditional, &rest[(bare - i - 1) * width..], self.guidance);
                }
                written.push(cfg, conditional, |k, before, logits| {
                    if let Some(code) = group.asked[i].given(cfg, k, before.len()) {
                        return code;
                    }
                    logits[self.codes.min(cfg.vocab)..].fill(f32::NEG_INFINITY);
                    let sequence = ((first + i) * cfg.codebooks() + k) as u32;
                    let draws = Draws::Keyed { sequence, step: before.len() as u32 };
                    self.settings.sampling.choose(logits, before, draws)
                });
            }
            if program == &prefill {
                (program, batch) = (&step, Batch::new(&layout(cfg, room, false)));
            }
            fill_step(cfg, &mut batch, room, &context, group.of.iter().map(|i| &all[*i]));
        }
        Ok(all)
    }
}

/// Leads the logits c away from those without text u: u + (c - u) * x (arXiv 2207.12598, in audiocraft's and transformers' order).
fn guide(conditional: &mut [f32], bare: &[f32], x: f32) {
    conditional.iter_mut().zip(bare).for_each(|(c, u)| *c = u + (*c - u) * x);
}

/// Returns the columns after the first that `frames` frames take.
pub(super) fn columns(cfg: &Config, frames: usize) -> usize {
    (frames + cfg.longest_delay()).max(least_columns(cfg))
}

/// Returns the columns after the first at least: with fewer, transformers delays nothing.
fn least_columns(cfg: &Config) -> usize {
    (2 * cfg.longest_delay()).max(1)
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let cfg = &self.config;
        let usual = columns(cfg, (SECONDS * cfg.frame_rate) as usize);
        let (new, least) = (settings.max_new.unwrap_or(usual), least_columns(cfg));
        if new < least {
            let late = cfg.longest_delay();
            return Err(RunError::Usage(format!(
                "--max-new: {new} columns; codebooks that are {late} columns late need {least} or more"
            )));
        }
        let mut file = BatchFile::open(file)?;
        let n = file.clips("text_ids")?;
        let (states, read) = states(self, &mut file, n, spare)?;
        let asked = |states: Vec<f32>| Asked { states: states.into(), begun: Arc::new([]), columns: new };
        let asked = states.into_iter().map(asked).collect();
        Ok(Box::new(Given { writer: Writer::new(cfg, settings, asked, 1.0), read }))
    }
}

/// Texts of a file.
struct Given {
    writer: Writer,
    /// Bytes that the text encoder took.
    read: u64,
}

impl Job for Given {
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program> {
        model::generate(session, &self.writer.config, self.writer.room(cache))
    }

    fn read_bytes(&self) -> u64 {
        self.read + self.writer.asked_bytes()
    }

    fn bytes(&self) -> u64 {
        let writer = &self.writer;
        // Results are codes of 8 bytes.
        let columns: usize = writer.asked.iter().map(|a| a.columns).sum();
        writer.bytes() + writer.asked_bytes() + (12 * writer.config.codebooks() * columns) as u64
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let mut results = Vec::new();
        let writer = &self.writer;
        for first in (0..writer.asked.len()).step_by(writer.sequences()) {
            let all = writer.write(exec, &str::to_owned, first)?;
            for (i, written) in all.iter().enumerate() {
                let codes = written.codes(&writer.config);
                let shape = vec![codes.len(), codes.first().map_or(0, Vec::len)];
                let values = Values::I64(codes.iter().flatten().map(|id| i64::from(*id)).collect());
                results.push(Generated { name: format!("clips.{}.codes", first + i), shape, values });
            }
        }
        Ok(results)
    }
}
