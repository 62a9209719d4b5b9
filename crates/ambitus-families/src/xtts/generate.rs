//! Generation from a batch file: `clips.i.text_ids` i64 `[t]` and `clips.i.cond_mel` f32 `[F, 80]`.

use super::folder::Folder;
use super::recorded::mel;
use crate::batches::write_batch;
use crate::error::RunError;
use crate::generate::{Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use crate::sampling::Draws;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::Batch;
use ambitus_models::decode::{PREFILL, Room, STEP};
use ambitus_models::xtts::config::{BANDS, Config, LATENTS};
use ambitus_models::xtts::model;
use ambitus_models::xtts::writing::{conditioned, fill_prompts, fill_step, layout, prompt_rows};
use std::path::Path;
use std::sync::Arc;

/// A text, and what it is conditioned on.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// Ids, `[t]`.
    pub text: Vec<u32>,
    /// Mels `[F, 80]` of pieces of a voice, of whose latents the mean is taken; texts may share them.
    pub mels: Arc<[Vec<f32>]>,
    /// Codes at most, the stop among them.
    pub most: usize,
}

/// What is written of a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// Codes, the stop among them.
    pub codes: Vec<u32>,
    /// The states that they were chosen by, `[n, D]`.
    pub states: Vec<f32>,
    ended: bool,
}

/// The voice that was heard last, and its latents `[32, D]`: the texts of one voice share its mels.
#[derive(Default)]
pub(super) struct Heard {
    mels: Option<Arc<[Vec<f32>]>>,
    latents: Vec<f32>,
}

/// Texts that are written as codes, some at a time.
pub(super) struct Writer {
    pub config: Config,
    pub settings: Settings,
    pub said: Vec<Said>,
    /// Ids before each text that a penalty of repetition sees.
    pub before: Vec<u32>,
}

impl Writer {
    /// Returns the texts that are written at a time.
    pub fn sequences(&self) -> usize {
        self.settings.sequences.clamp(1, self.said.len().max(1))
    }

    /// Returns the sizes for any group of texts.
    pub fn room(&self, cache: DType) -> Room {
        let texts: Vec<_> = self.said.iter().map(|s| (prompt_rows(s.text.len()), s.most)).collect();
        Room::of(&texts, self.sequences(), cache)
    }

    /// Returns the lengths of all mels, each once.
    pub fn frames(&self) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.said.iter().flat_map(|s| s.mels.iter().map(|mel| mel.len() / BANDS)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Builds the programs.
    pub fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program> {
        model::generate(session, &self.config, self.room(cache), &self.frames())
    }

    /// Returns the bytes of texts and mels, those that texts share once.
    pub fn said_bytes(&self) -> u64 {
        let mut mels: Vec<&Arc<[Vec<f32>]>> = Vec::new();
        for said in &self.said {
            if !mels.iter().any(|known| Arc::ptr_eq(known, &said.mels)) {
                mels.push(&said.mels);
            }
        }
        let mels: usize = mels.iter().flat_map(|mels| mels.iter()).map(|mel| 4 * mel.len()).sum();
        let texts: usize = self.said.iter().map(|s| 4 * s.text.len() + size_of::<Said>()).sum();
        (mels + texts) as u64
    }

    /// Returns the bytes of texts and mels, of inputs and of what is written.
    pub fn bytes(&self) -> u64 {
        let (room, c) = (self.room(DType::F32), &self.config);
        let longest = self.frames().last().copied().unwrap_or(0) * BANDS;
        let inputs = layout(c, room, true).bytes() + layout(c, room, false).bytes() + 4 * longest as u64;
        let latents = (room.sequences + 1) * LATENTS * c.dim + room.sequences * (c.codes + c.dim);
        let most = self.said.iter().map(|s| s.most).max().unwrap_or(0);
        let written = 2 * room.sequences * most * (c.dim + 2);
        self.said_bytes() + inputs + 4 * (2 * latents + written + 4 * c.codes) as u64
    }

    /// Returns the mean of the latents `[32, D]` of a text's mels.
    fn latents(
        &self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        said: &Said,
    ) -> Result<Vec<f32>, RunError> {
        let mut mean = vec![0.0; LATENTS * self.config.dim];
        let mut one = mean.clone();
        for mel in said.mels.iter() {
            let frames = mel.len() / BANDS;
            let config = Config { frames, ..self.config.clone() };
            let program = name(&model::condition(frames));
            write_batch(exec, &program, &conditioned(&config, mel))?;
            exec.run(&program, 0)?;
            exec.read_f32(&program, "latents", 0, &mut one)?;
            mean.iter_mut().zip(&one).for_each(|(sum, x)| *sum += x);
        }
        let n = said.mels.len().max(1) as f32;
        mean.iter_mut().for_each(|x| *x /= n);
        Ok(mean)
    }

    /// Writes the group of texts from `first` on. `heard`: of the group before, with the same weights.
    ///
    /// # Errors
    /// From the executor.
    pub fn write(
        &self,
        exec: &mut dyn Executor,
        name: &dyn Fn(&str) -> String,
        first: usize,
        heard: &mut Heard,
    ) -> Result<Vec<Written>, RunError> {
        let (cfg, room) = (&self.config, self.room(DType::F32));
        let group = &self.said[first..self.said.len().min(first + room.sequences)];
        let mut latents: Vec<Vec<f32>> = Vec::new();
        for said in group {
            if !heard.mels.as_ref().is_some_and(|mels| Arc::ptr_eq(mels, &said.mels)) {
                *heard = Heard { latents: self.latents(exec, name, said)?, mels: Some(said.mels.clone()) };
            }
            latents.push(heard.latents.clone());
        }
        let prompts: Vec<(&[u32], &[f32])> =
            group.iter().zip(&latents).map(|(said, latents)| (&*said.text, &**latents)).collect();
        let begun = |said: &Said| Written { ended: said.most == 0, ..Written::default() };
        let mut all: Vec<Written> = group.iter().map(begun).collect();
        let mut before = vec![self.before.clone(); group.len()];
        let (prefill, step) = (name(PREFILL), name(STEP));
        let mut batch = Batch::new(&layout(cfg, room, true));
        fill_prompts(cfg, &mut batch, room, &prompts);
        let mut program = &prefill;
        let mut logits = vec![0.0; room.sequences * cfg.codes];
        let mut states = vec![0.0; room.sequences * cfg.dim];
        while all.iter().any(|written| !written.ended) {
            write_batch(exec, program, &batch)?;
            exec.run(program, 0)?;
            exec.read_f32(program, "logits", 0, &mut logits)?;
            exec.read_f32(program, "states", 0, &mut states)?;
            let rows = logits.chunks_mut(cfg.codes).zip(states.chunks(cfg.dim));
            for (i, (written, (logits, states))) in all.iter_mut().zip(rows).enumerate() {
                if written.ended {
                    continue;
                }
                let step = written.codes.len() as u32;
                let draws = Draws::Keyed { sequence: (first + i) as u32, step };
                let code = self.settings.sampling.choose(logits, &before[i], draws);
                before[i].push(code);
                written.codes.push(code);
                written.states.extend_from_slice(states);
                written.ended = code == cfg.stop || written.codes.len() == group[i].most;
            }
            if program == &prefill {
                (program, batch) = (&step, Batch::new(&layout(cfg, room, false)));
            }
            let reads: Vec<Option<(usize, &[u32])>> = group
                .iter()
                .zip(&all)
                .map(|(said, written)| (!written.ended).then_some((said.text.len(), &*written.codes)))
                .collect();
            fill_step(&mut batch, room, &reads);
        }
        Ok(all)
    }
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, _spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let mut file = BatchFile::open(file)?;
        let cfg = &self.config;
        let mut said = Vec::new();
        for i in 0..file.clips("text_ids")? {
            let name = format!("clips.{i}.text_ids");
            let (text, _) = file.ids(i, "text_ids", &["ids"])?;
            let most = cfg.most_text();
            if text.is_empty() || text.len() > most {
                return Err(file.bad(&name, format!("has {} ids, must be 1 to {most}", text.len())));
            }
            if let Some(at) = text.iter().position(|id| *id as usize >= cfg.text_vocab) {
                let why = format!("element {at} is {}; the vocabulary has {} ids", text[at], cfg.text_vocab);
                return Err(file.bad(&name, why));
            }
            let (mel, _) = mel(&mut file, i)?;
            let most = settings.max_new.map_or(cfg.most_codes(), |n| n.min(cfg.most_codes()));
            said.push(Said { text, mels: vec![mel].into(), most });
        }
        let writer = Writer { config: cfg.clone(), settings: settings.clone(), said, before: Vec::new() };
        Ok(Box::new(Given { writer }))
    }
}

/// A file's texts.
struct Given {
    writer: Writer,
}

impl Job for Given {
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program> {
        self.writer.programs(session, cache)
    }

    fn bytes(&self) -> u64 {
        let writer = &self.writer;
        let all: usize = writer.said.iter().map(|s| s.most).sum();
        writer.bytes() + (all * (8 + 4 * writer.config.dim)) as u64
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let (writer, mut results, mut heard) = (&self.writer, Vec::new(), Heard::default());
        for first in (0..writer.said.len()).step_by(writer.sequences()) {
            for (i, written) in writer.write(exec, &str::to_owned, first, &mut heard)?.into_iter().enumerate()
            {
                let (name, n) = (format!("clips.{}", first + i), written.codes.len());
                let codes = Values::I64(written.codes.iter().map(|code| i64::from(*code)).collect());
                results.push(Generated { name: format!("{name}.codes"), shape: vec![n], values: codes });
                let (name, shape) = (format!("{name}.latents"), vec![n, writer.config.dim]);
                results.push(Generated { name, shape, values: Values::F32(written.states) });
            }
        }
        Ok(results)
    }
}
