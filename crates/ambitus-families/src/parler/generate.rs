//! Generation from a batch file: `clips.i.description_ids` i64 `[U]` and `clips.i.prompt_ids` i64 `[P]`.

use super::folder::Folder;
use super::recorded::states;
use crate::batches::write_batch;
use crate::error::RunError;
use crate::generate::{Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use crate::sampling::Draws;
use crate::weights::{MAX_CONFIG_BYTES, read_text};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::Batch;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::parler::batch::put_states;
use ambitus_models::parler::config::Config;
use ambitus_models::parler::model;
use ambitus_models::parler::speech::{Prompt, Written, fill_prompts, fill_step, layout};
use ambitus_recipe::recipe::short;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// transformers' `max_length`: it writes no other to the file.
const MAX_LENGTH: usize = 20;

/// What `generation_config.json` says of lengths.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lengths {
    /// Columns, the first among them.
    pub max_length: Option<usize>,
    /// Columns before a codebook may end.
    pub min_new_tokens: Option<usize>,
}

impl Lengths {
    /// Reads them from a model folder; a folder without the file says nothing.
    pub fn read(dir: &Path) -> Result<Lengths, RunError> {
        let path = dir.join("generation_config.json");
        if !path.is_file() {
            return Ok(Lengths::default());
        }
        let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
        let bad =
            |e: serde_json::Error| RunError::Model(format!("{}: {}", path.display(), short(&e.to_string())));
        serde_json::from_str(&text).map_err(bad)
    }
}

/// A text, and how it is to be spoken.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// Ids of the prompt, `[P]`.
    pub prompt: Vec<u32>,
    /// States of the description, `[U, E]`, which texts may share.
    pub states: Arc<[f32]>,
    /// Columns, the first among them, at most.
    pub columns: usize,
}

/// Texts that are written as codes, some at a time.
pub(super) struct Writer {
    /// The decoder, with as many rows of context as any text has.
    pub config: Config,
    pub settings: Settings,
    pub said: Vec<Said>,
    /// Columns before a codebook may end.
    pub least: usize,
}

impl Writer {
    /// Returns a writer of these texts.
    pub fn new(config: &Config, settings: &Settings, said: Vec<Said>, least: usize) -> Writer {
        let context = |s: &Said| config.context_of(s.prompt.len(), s.states.len() / config.text_dim);
        let config = Config { context: said.iter().map(context).max().unwrap_or(1).max(1), ..config.clone() };
        Writer { config, settings: settings.clone(), said, least }
    }

    /// Returns the texts that are written at a time.
    pub fn sequences(&self) -> usize {
        self.settings.sequences.clamp(1, self.said.len().max(1))
    }

    /// Returns the sizes for any group of texts.
    pub fn room(&self, cache: DType) -> Room {
        let before = |s: &Said| self.config.rows_of(s.prompt.len(), 0) - self.config.codebooks;
        // The first column is read with the prompt.
        let texts: Vec<_> = self.said.iter().map(|s| (before(s) + 1, s.columns - 1)).collect();
        Room::of(&texts, self.sequences(), cache)
    }

    /// Returns the bytes of what is to be said: prompts, and states, those that texts share once.
    pub fn said_bytes(&self) -> u64 {
        let mut states = Vec::new();
        for said in &self.said {
            if !states.iter().any(|known| Arc::ptr_eq(known, &said.states)) {
                states.push(said.states.clone());
            }
        }
        let prompts: usize = self.said.iter().map(|s| 4 * s.prompt.len() + size_of::<Said>()).sum();
        let states: usize = states.iter().map(|s| 4 * s.len()).sum();
        (prompts + states) as u64
    }

    /// Returns the bytes of logits, of inputs and of what is written.
    pub fn bytes(&self) -> u64 {
        let (room, c) = (self.room(DType::F32), &self.config);
        let inputs = layout(c, room, true).bytes() + layout(c, room, false).bytes();
        let written =
            2 * c.codebooks * self.said.iter().map(|s| s.columns).max().unwrap_or(0) * room.sequences;
        inputs + 4 * (c.codebooks * c.vocab * (room.sequences + 2) + written) as u64
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
        let (cfg, room) = (&self.config, self.room(DType::F32));
        let group = &self.said[first..self.said.len().min(first + room.sequences)];
        let described = |s: &Said| s.states.len() / cfg.text_dim;
        let prompts: Vec<Prompt<'_>> =
            group.iter().map(|s| Prompt { prompt: &s.prompt, described: described(s) }).collect();
        let mut all: Vec<Written> =
            group.iter().map(|s| Written::new(cfg, s.prompt.len(), s.columns)).collect();
        let (prefill, step) = (name(PREFILL), name(STEP));
        let mut batch = Batch::new(&layout(cfg, room, true));
        fill_prompts(cfg, &mut batch, room, &prompts);
        group.iter().enumerate().for_each(|(i, s)| put_states(cfg, &mut batch, i, &s.states));
        let context = batch.int("context").to_vec();
        let mut program = &prefill;
        let width = cfg.codebooks * cfg.vocab;
        let mut logits = vec![0.0; room.sequences * width];
        while all.iter().any(|written| !written.is_over()) {
            write_batch(exec, program, &batch)?;
            exec.run(program, 0)?;
            exec.read_f32(program, "logits", 0, &mut logits)?;
            for (i, (written, logits)) in all.iter_mut().zip(logits.chunks_mut(width)).enumerate() {
                if written.is_over() {
                    continue;
                }
                written.push(cfg, self.least, logits, |k, before, logits| {
                    let sequence = ((first + i) * cfg.codebooks + k) as u32;
                    let draws = Draws::Keyed { sequence, step: before.len() as u32 };
                    self.settings.sampling.choose(logits, before, draws)
                });
            }
            if program == &prefill {
                (program, batch) = (&step, Batch::new(&layout(cfg, room, false)));
            }
            fill_step(cfg, &mut batch, room, &context, &all);
        }
        Ok(all)
    }
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let cfg = &self.config;
        let lengths = Lengths::read(&self.dir)?;
        let (books, least) = (cfg.codebooks, 2 * cfg.codebooks - 1);
        let columns = settings.max_new.map_or(lengths.max_length.unwrap_or(MAX_LENGTH), |new| new + 1);
        if columns < least {
            let from =
                if settings.max_new.is_some() { "--max-new" } else { "max_length of generation_config.json" };
            return Err(RunError::Usage(format!(
                "{from}: {columns} columns, the first among them; {books} codebooks need {least} or more"
            )));
        }
        let mut file = BatchFile::open(file)?;
        let mut prompts = Vec::new();
        for i in 0..file.clips("prompt_ids")? {
            let (prompt, _) = file.ids::<u32>(i, "prompt_ids", &["tokens"])?;
            let rows = cfg.rows_of(prompt.len(), columns) - books;
            let fits = cfg.rows().most.is_none_or(|most| rows <= most) && !prompt.is_empty();
            if !fits || prompt.iter().any(|id| *id as usize >= cfg.prompts) {
                return Err(file.bad(
                    &format!("clips.{i}.prompt_ids"),
                    format!(
                        "{} ids and {columns} columns: ids must be there and below {}, and both together at most the {} of \
                         max_position_embeddings",
                        prompt.len(),
                        cfg.prompts,
                        cfg.positions
                    ),
                ));
            }
            prompts.push(prompt);
        }
        let (states, read) = states((&self.dir, cfg), &mut file, prompts.len(), spare)?;
        let said = prompts.into_iter().zip(states);
        let said = said.map(|(prompt, states)| Said { prompt, states: states.into(), columns }).collect();
        let writer = Writer::new(cfg, settings, said, lengths.min_new_tokens.unwrap_or(0));
        Ok(Box::new(Given { writer, read }))
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
        self.read + self.writer.said_bytes()
    }

    fn bytes(&self) -> u64 {
        let writer = &self.writer;
        // Results are ids and codes of 8 bytes.
        let columns: usize = writer.said.iter().map(|s| s.columns).sum();
        writer.bytes() + writer.said_bytes() + (16 * writer.config.codebooks * columns) as u64
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let mut results = Vec::new();
        let writer = &self.writer;
        for first in (0..writer.said.len()).step_by(writer.sequences()) {
            let all = writer.write(exec, &str::to_owned, first)?;
            for (i, written) in all.iter().enumerate() {
                let codes = written.codes(&writer.config);
                for (leaf, ids) in [("tokens", &written.chosen), ("codes", &codes)] {
                    let shape = vec![ids.len(), ids.first().map_or(0, Vec::len)];
                    let values = Values::I64(ids.iter().flatten().map(|id| i64::from(*id)).collect());
                    results.push(Generated { name: format!("clips.{}.{leaf}", first + i), shape, values });
                }
            }
        }
        Ok(results)
    }
}
