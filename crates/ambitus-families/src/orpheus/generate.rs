//! Generation of a Llama decoder from prompts of a batch file: `clips.i.input_ids` i64 `[T]`, and where draws are given `clips.i.q`
//! f32 `[n, V]`.

use super::folder::Folder;
use crate::decode::Decoder;
use crate::error::RunError;
use crate::generate::{Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use crate::sampling::Draws;
use crate::weights::{MAX_CONFIG_BYTES, read_text};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::decode::Room;
use ambitus_models::orpheus::config::Config;
use ambitus_models::orpheus::model;
use serde_json::Value;
use std::path::Path;

/// New tokens of a sequence where nothing is said.
const MOST_NEW: usize = 1200;

/// A prompt of a file, and how it goes on.
struct Prompt {
    ids: Vec<u32>,
    /// Draws `[n, V]`, where they are given.
    draws: Option<Vec<f32>>,
    /// New tokens at most.
    most: usize,
}

/// A file's prompts.
struct Prompts {
    config: Config,
    settings: Settings,
    stops: Vec<u32>,
    prompts: Vec<Prompt>,
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, _spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let mut file = BatchFile::open(file)?;
        let vocab = self.config.vocab;
        let mut prompts = Vec::new();
        for i in 0..file.clips("input_ids")? {
            let name = format!("clips.{i}.input_ids");
            let (ids, _) = file.ids::<u32>(i, "input_ids", &["tokens"])?;
            if ids.is_empty() {
                return Err(file.bad(&name, "is [0], not [tokens]"));
            }
            if let Some(at) = ids.iter().position(|id| *id as usize >= vocab) {
                let id = ids[at];
                return Err(
                    file.bad(&name, format!("element {at} is {id}; the vocabulary has {vocab} tokens"))
                );
            }
            let name = format!("clips.{i}.q");
            let given = !settings.sampling.greedy && file.contains(&name);
            let draws = given.then(|| self.draws(&mut file, &name, settings.max_new)).transpose()?;
            let drawn = draws.as_ref().map_or(MOST_NEW, |q| q.len() / vocab);
            prompts.push(Prompt { ids, draws, most: settings.max_new.unwrap_or(drawn) });
        }
        let (config, settings) = (self.config.clone(), settings.clone());
        Ok(Box::new(Prompts { config, settings, stops: stops(&self.dir)?, prompts }))
    }
}

impl Folder {
    /// Returns the draws `[n, V]` of a clip, for as many new tokens as are asked for.
    fn draws(
        &self,
        file: &mut BatchFile<'_>,
        name: &str,
        asked: Option<usize>,
    ) -> Result<Vec<f32>, RunError> {
        let vocab = self.config.vocab;
        let shape = file.shape(name)?;
        let [n, v] = shape[..] else {
            return Err(file.bad(name, format!("is {shape:?}, not [new tokens, {vocab}]")));
        };
        let max = asked.unwrap_or(n);
        if v != vocab || n < max {
            let why = format!("is [{n}, {v}]; [{max}, {vocab}] draws are needed");
            return Err(file.bad(name, why));
        }
        let draws = file.floats(name, n * v)?;
        match draws.iter().position(|q| *q <= 0.0) {
            Some(at) => Err(file.bad(name, format!("element {at} is {}; draws are above 0", draws[at]))),
            None => Ok(draws),
        }
    }
}

/// Returns the tokens that end a text: `eos_token_id` of generation_config.json, or else of config.json, one or a list.
///
/// # Errors
/// Files that do not read, and what is no token.
fn stops(dir: &Path) -> Result<Vec<u32>, RunError> {
    for name in ["generation_config.json", crate::hugging_face::CONFIG] {
        let path = dir.join(name);
        if !path.is_file() {
            continue;
        }
        let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
        let text = read_text(&path, MAX_CONFIG_BYTES, "copy it again")?;
        let json: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        let ids = match json.get("eos_token_id") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(ids)) => ids.clone(),
            Some(id) => vec![id.clone()],
        };
        let token = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Option<Vec<u32>> = ids.iter().map(token).collect();
        return ids.ok_or_else(|| bad("eos_token_id: neither a token nor a list of tokens".to_owned()));
    }
    Ok(Vec::new())
}

impl Prompts {
    fn sequences(&self) -> usize {
        self.settings.sequences.clamp(1, self.prompts.len())
    }

    /// Returns the sizes for any group of prompts.
    fn room(&self, cache: DType) -> Room {
        let texts: Vec<_> = self.prompts.iter().map(|p| (p.ids.len(), p.most)).collect();
        Room::of(&texts, self.sequences(), cache)
    }
}

impl Job for Prompts {
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program> {
        model::generate(session, &self.config, self.room(cache))
    }

    fn bytes(&self) -> u64 {
        let (v, s) = (self.config.vocab as u64, self.sequences() as u64);
        let draws: u64 = self.prompts.iter().flat_map(|p| &p.draws).map(|q| 4 * q.len() as u64).sum();
        let new: u64 = self.prompts.iter().map(|p| p.most as u64).sum();
        let logits = if self.settings.logits { 4 * new * v } else { 0 };
        // Logits of a step, and what sorts one sequence's.
        4 * v * s + 16 * v + draws + logits
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let (room, settings) = (self.room(DType::F32), &self.settings);
        let vocabulary = self.config.vocab;
        let mut results = Vec::new();
        for (k, group) in self.prompts.chunks(room.sequences).enumerate() {
            let first = k * room.sequences;
            let prompts: Vec<&[u32]> = group.iter().map(|p| &*p.ids).collect();
            let mut kept = vec![Vec::new(); prompts.len()];
            let (most, stops) = (group.iter().map(|p| p.most).collect(), self.stops.clone());
            let decoder = Decoder { name: &str::to_owned, room, vocabulary, most, stops };
            let tokens = decoder.run(exec, &prompts, &mut |i, before, logits| {
                if settings.logits {
                    kept[i].extend_from_slice(logits);
                }
                let step = before.len() - prompts[i].len();
                let draws = match &group[i].draws {
                    Some(q) => Draws::Given(&q[step * vocabulary..(step + 1) * vocabulary]),
                    None => Draws::Keyed { sequence: (first + i) as u32, step: step as u32 },
                };
                Ok(settings.sampling.choose(logits, before, draws))
            })?;
            for (i, (tokens, logits)) in tokens.into_iter().zip(kept).enumerate() {
                let (name, n) = (format!("clips.{}", first + i), tokens.len());
                if settings.logits {
                    let (name, values) = (format!("{name}.logits"), Values::F32(logits));
                    results.push(Generated { name, shape: vec![n, vocabulary], values });
                }
                let values = Values::I64(tokens.into_iter().map(i64::from).collect());
                results.push(Generated { name: format!("{name}.tokens"), shape: vec![n], values });
            }
        }
        Ok(results)
    }
}
