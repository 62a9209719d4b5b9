//! From a model's shape and a run's options to a planned session.

use crate::placement::Placement;
use ambitus_compile::CompileError;
use ambitus_compile::optimizer::Optimizer;
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Layout, Sharding};
use ambitus_compile::pipeline::{self, Options, Pipeline, Player, Trained};
use ambitus_compile::plan::{Gradients, Needs};
use ambitus_families::speech::{Programs, Speech};
use ambitus_ir::plan::{PlannedProgram, PlannedSession};
use ambitus_ir::target::Target;
use ambitus_ir::{DType, Program, Session, StateDecl, StateKind};
use ambitus_models::{Capacity, Model};
use std::fmt;
use std::sync::Arc;

/// Names of the programs, which are also the names of their phases. Those of one of several players end in its name
/// ([`Player::program`]).
pub mod program {
    /// Forward and backward of one micro-batch; the whole update, where that is in backward.
    pub const MICRO: &str = "micro";
    /// Forward and backward of several micro-batches, where they go through the ranks as a pipeline.
    pub const PIPELINE: &str = ambitus_compile::pipeline::SEVERAL;
    /// Clip, AdamW, counters; absent where the update is in backward.
    pub const UPDATE: &str = "update";
    /// Moving average.
    pub const EMA: &str = "ema";
    /// Loss of a micro-batch without dropout, on the weights.
    pub const EVALUATE: &str = "evaluate";
    /// Loss of a micro-batch without dropout, on the moving average.
    pub const EVALUATE_EMA: &str = "evaluate_ema";
    /// One step of sampling, on the weights.
    pub const SAMPLE: &str = "sample";
    /// One step of sampling, on the moving average.
    pub const SAMPLE_EMA: &str = "sample_ema";
    /// Before the names of the programs that speak, on the weights.
    pub const SAY: &str = "say_";
    /// Before the names of the programs that speak, on the moving average.
    pub const SAY_EMA: &str = "say_ema_";
}

/// Something that an update does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Forward and backward of every micro-batch, for the player of this index; where the update is in backward, all of it. Players
    /// that follow one another see each micro-batch together.
    Micro(usize),
    /// Applies the gradients of this player.
    Update(usize),
    /// Moves the average.
    Ema,
}

impl Act {
    /// Returns the player, where this is forward and backward.
    pub fn micro(&self) -> Option<usize> {
        if let Act::Micro(player) = self { Some(*player) } else { None }
    }
}

/// Returns what an update does, in order.
pub fn acts(model: &dyn Model, options: &SessionOptions) -> Vec<Act> {
    let players = 0..model.players().len();
    let mut acts: Vec<Act> = players.clone().map(Act::Micro).collect();
    if !options.update_in_backward {
        acts.extend(players.map(Act::Update));
    }
    acts.extend(options.ema.then_some(Act::Ema));
    acts
}

/// Returns the players of a model, for the compiler.
pub fn players(model: &dyn Model) -> Vec<Player> {
    let patterns = |of: &[&str]| of.iter().map(|p| Pattern::new(*p)).collect();
    let player = |p: &ambitus_models::Player| Player { name: p.name.to_owned(), trains: patterns(p.trains) };
    model.players().iter().map(player).collect()
}

/// Everything that decides the bytes of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionOptions {
    /// Rows and clips of a micro-batch.
    pub capacity: Capacity,
    /// Blocks that are recomputed.
    pub checkpoint: Blocks,
    /// What the model computes in.
    pub precision: Precision,
    /// What of the model is trained.
    pub trained: Trained,
    /// Optimizer; without, the session has no update (`gradients`).
    pub optimizer: Option<Optimizer>,
    /// Clip each gradient by its own norm, not all by the global one.
    pub clip_per_tensor: bool,
    /// The micro-batch program is the whole update, and no gradient is kept. Needs `optimizer` and `clip_per_tensor`.
    pub update_in_backward: bool,
    /// Every update is one micro-batch of each rank, so that gradients take bytes only until they are applied.
    pub whole_updates: bool,
    /// What waits in the host's memory.
    pub offload: Offload,
    /// How ranks share what is kept; without, there is one.
    pub sharding: Option<Sharding>,
    /// Which part of the model each rank has, in place of sharding; the session that is built is the whole one, of which
    /// [`Parts`](crate::parts::Parts) are made.
    pub placement: Option<Placement>,
    /// Keep a moving average.
    pub ema: bool,
    /// Include evaluation.
    pub evaluate: bool,
    /// Rows and clips of a sampling step, of families that have one.
    pub sample: Option<Capacity>,
    /// What speaks while it trains.
    pub speech: Option<Spoken>,
}

/// What speaks while a run trains, for its plan.
#[derive(Clone)]
pub struct Spoken {
    /// Builds its programs.
    pub programs: Programs,
}

impl Spoken {
    /// Returns what a plan needs to know.
    pub fn of(speech: &dyn Speech) -> Spoken {
        Spoken { programs: speech.programs() }
    }

    /// Returns its programs, built in a session that computes so.
    pub fn build(&self, session: &mut Session, precision: Precision) -> Vec<Program> {
        (self.programs)(session, precision.narrow().unwrap_or(DType::F32))
    }
}

impl fmt::Debug for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spoken").finish_non_exhaustive()
    }
}

/// The same programs, not equal ones.
impl PartialEq for Spoken {
    fn eq(&self, other: &Spoken) -> bool {
        Arc::ptr_eq(&self.programs, &other.programs)
    }
}

/// Builds, differentiates, optimises and plans. Reads no file and touches no device.
///
/// # Errors
/// See [`CompileError`].
pub fn compile(
    model: &dyn Model,
    options: &SessionOptions,
    target: &dyn Target,
) -> Result<PlannedSession, CompileError> {
    let session = build(model, options, target)?;
    Ok(Needs::of(session, target, 1, options.gradients()).plan())
}

/// Returns the session before it is planned.
///
/// # Errors
/// See [`CompileError`].
pub fn build(
    model: &dyn Model,
    options: &SessionOptions,
    target: &dyn Target,
) -> Result<Session, CompileError> {
    let passes = options.passes(model);
    build_by(model, options, &Pipeline::new(&passes, target))
}

/// Returns the session before it is planned, by the pipeline of [`SessionOptions::passes`].
///
/// # Errors
/// See [`CompileError`].
pub fn build_by(
    model: &dyn Model,
    options: &SessionOptions,
    pipeline: &Pipeline<'_>,
) -> Result<Session, CompileError> {
    let (s, trained, others) = forwards(model, options);
    pipeline.session(s, trained, others)
}

/// A session up to where it is decided what its micro-batch program recomputes and offloads: plans that differ in these alone
/// share it.
#[derive(Clone)]
pub struct Stem {
    shared: pipeline::Stem,
    /// What of the model is trained, and by whom.
    trained: Trained,
    players: Vec<Player>,
}

impl Stem {
    /// Builds and differentiates; `options.checkpoint` and `options.offload` are not looked at. What the size of a micro-batch
    /// does not change is taken from the stem of another size, where there is one.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn new(
        model: &dyn Model,
        options: &SessionOptions,
        target: &dyn Target,
        other_size: Option<&Stem>,
    ) -> Result<Stem, CompileError> {
        let passes = options.passes(model);
        let (s, trained, others) = forwards(model, options);
        let other_size = other_size.map(|stem| &stem.shared);
        let shared = Pipeline::new(&passes, target).begin(s, trained, others, other_size)?;
        Ok(Stem { shared, trained: passes.trained, players: passes.players })
    }

    /// Returns the session with the options that [`Stem::new`] did not look at; the others must be the same.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn finish(self, options: &SessionOptions, target: &dyn Target) -> Result<Session, CompileError> {
        Pipeline::new(&options.passes_for(self.trained, self.players), target).end(self.shared)
    }
}

/// A program and its name on averages.
type Averaged = (Program, String);

/// Returns what the model builds: the forward programs that are trained, and the others.
fn forwards(model: &dyn Model, options: &SessionOptions) -> (Session, Vec<Program>, Vec<Averaged>) {
    let mut s = Session::default();
    let trained = losses(model, options, &mut s);
    let mut others = Vec::new();
    if options.evaluate {
        let p = model.loss(&mut s, 0, options.capacity, program::EVALUATE, false);
        others.push((p, program::EVALUATE_EMA.to_owned()));
    }
    if let Some(cap) = options.sample {
        let p = model.sample(&mut s, cap, program::SAMPLE);
        others.extend(p.map(|p| (p, program::SAMPLE_EMA.to_owned())));
    }
    for p in options.speech.iter().flat_map(|speech| speech.build(&mut s, options.precision)) {
        let names = [program::SAY, program::SAY_EMA].map(|before| format!("{before}{}", p.name));
        let [name, averaged] = names;
        others.push((Program { name, ..p }, averaged));
    }
    (s, trained, others)
}

/// Returns the programs of a kind, one of each player.
pub fn of_players<'s>(session: &'s Session, model: &dyn Model, kind: &str) -> Vec<&'s Program> {
    players(model).iter().filter_map(|p| session.program(&p.program(kind))).collect()
}

/// Returns the planned programs of a micro-batch, one of each player.
pub fn planned_micros<'p>(planned: &'p PlannedSession, model: &dyn Model) -> Vec<&'p PlannedProgram> {
    players(model).iter().filter_map(|p| planned.program(&p.program(program::MICRO))).collect()
}

/// Returns the forward program of each player.
fn losses(model: &dyn Model, options: &SessionOptions, s: &mut Session) -> Vec<Program> {
    let players = players(model).into_iter().enumerate();
    players.map(|(i, p)| model.loss(s, i, options.capacity, &p.program(program::MICRO), true)).collect()
}

impl SessionOptions {
    /// Returns how long gradients take bytes.
    pub fn gradients(&self) -> Gradients {
        if self.whole_updates { Gradients::Passing } else { Gradients::Kept }
    }

    /// Returns what the pipeline is made from.
    pub fn passes(&self, model: &dyn Model) -> Options {
        self.passes_for(trained(model, &self.trained), players(model))
    }

    fn passes_for(&self, trained: Trained, players: Vec<Player>) -> Options {
        Options {
            trained,
            players,
            precision: self.precision,
            sharding: self.sharding,
            optimizer: self.optimizer.clone(),
            clip_per_tensor: self.clip_per_tensor,
            update_in_backward: self.update_in_backward,
            ema: self.ema,
            checkpoint: self.checkpoint.clone(),
            offload: self.offload,
            placed: self.placement.is_some(),
        }
    }

    /// Returns whether both have the same [`Stem`].
    pub fn has_stem_of(&self, other: &SessionOptions) -> bool {
        let SessionOptions { checkpoint, offload, placement, whole_updates, .. } = other.clone();
        SessionOptions { checkpoint, offload, placement, whole_updates, ..self.clone() } == *other
    }
}

/// Returns where the ranks of a session keep its parameters: by it they are loaded and read.
///
/// # Errors
/// As [`build`].
pub fn layout(model: &dyn Model, options: &SessionOptions) -> Result<Option<Layout>, CompileError> {
    if options.sharding.is_none() {
        return Ok(None);
    }
    let mut s = Session::default();
    let Some(trained) = losses(model, options, &mut s).into_iter().next() else { return Ok(None) };
    pipeline::layout(&mut s, trained, &options.passes(model))
}

/// Returns what is trained, with the family's own layers for adapters that name none.
fn trained(model: &dyn Model, asked: &Trained) -> Trained {
    match asked {
        Trained::Adapters(lora) if lora.targets.is_empty() => {
            let targets = model.adapted().iter().map(|t| Pattern::new(*t)).collect();
            Trained::Adapters(Lora { targets, ..lora.clone() })
        }
        other => other.clone(),
    }
}

/// Returns the elements of all parameters of a kind.
pub fn parameter_count(states: &[StateDecl], trainable_only: bool) -> u64 {
    let parameters = states.iter().filter(|s| s.kind == StateKind::Parameter);
    let counted = parameters.filter(|s| s.trainable || !trainable_only);
    counted.map(|s| s.ty.shape.elements() as u64).sum()
}
