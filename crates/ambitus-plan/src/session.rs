//! From a model's shape and a run's options to a planned session.

use crate::placement::Placement;
use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::in_backward::InBackward;
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Layout, Sharding};
use ambitus_compile::pipeline::{self, Options, Trained};
use ambitus_compile::{CompileError, plan};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session, StateDecl, StateKind};
use ambitus_models::{Capacity, Model};

/// Names of the programs, which are also the names of their phases.
pub mod program {
    /// Forward and backward of one micro-batch; the whole update, where that is in backward.
    pub const MICRO: &str = "micro";
    /// Forward and backward of several micro-batches, where they go through the ranks as a pipeline.
    pub const PIPELINE: &str = "pipeline";
    /// Clip, AdamW, counters; absent where the update is in backward.
    pub const UPDATE: &str = "update";
    /// Moving average.
    pub const EMA: &str = "ema";
    /// Loss of a micro-batch without dropout, on the weights.
    pub const EVALUATE: &str = "evaluate";
    /// The same on the moving average.
    pub const EVALUATE_EMA: &str = "evaluate_ema";
    /// One step of sampling, on the weights.
    pub const SAMPLE: &str = "sample";
    /// The same on the moving average.
    pub const SAMPLE_EMA: &str = "sample_ema";
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
    Ok(plan::plan(build(model, options, target)?, target, 1))
}

/// The session before it is planned.
///
/// # Errors
/// See [`CompileError`].
pub fn build(
    model: &dyn Model,
    options: &SessionOptions,
    target: &dyn Target,
) -> Result<Session, CompileError> {
    Stem::new(model, options, target, None)?.finish(options, target)
}

/// A session up to where its micro-batch program is told what to make again and what waits on the host: plans that differ
/// in these alone share it.
#[derive(Clone)]
pub struct Stem {
    /// All states, and all programs but `micro`; with an update in backward only what the model itself declares.
    session: Session,
    micro: Program,
    /// Of a session with an update in backward, what is still to be prepared, with its name on averages.
    forwards: Vec<(Program, &'static str)>,
    /// Where ranks keep the parameters.
    layout: Option<Layout>,
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
        if options.sharding.is_some() && options.clip_per_tensor {
            return Err(CompileError::ShardedPerTensor);
        }
        let mut s = Session::default();
        let trained = &trained(model, &options.trained);
        let (forward, layout) = forward(&mut s, model, options)?;
        // Every forward program is built before parameters may be declared in another type.
        let mut forwards = Vec::new();
        if options.evaluate {
            let p = model.loss(&mut s, options.capacity, program::EVALUATE, false);
            forwards.push((p, program::EVALUATE_EMA));
        }
        if let Some(cap) = options.sample {
            let p = model.sample(&mut s, cap, program::SAMPLE);
            forwards.extend(p.map(|p| (p, program::SAMPLE_EMA)));
        }
        for (p, _) in &mut forwards {
            let forward = pipeline::choose(&mut s, std::mem::take(p), trained, false)?;
            *p = pipeline::precise(&mut s, forward, options.precision);
        }
        let passes = options.passes(layout);
        let in_backward = options.in_backward().is_some();
        let micro = pipeline::begin(&mut s, forward, &passes, target, &|_| true, in_backward)?;
        let mut stem = Stem { session: s, micro, forwards, layout: passes.shard };
        if !in_backward {
            let forwards = std::mem::take(&mut stem.forwards);
            others(&mut stem.session, forwards, options, (target, stem.layout.as_ref()), other_size);
        }
        Ok(stem)
    }

    /// The session with the options that [`Stem::new`] did not look at; the others must be the same.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn finish(self, options: &SessionOptions, target: &dyn Target) -> Result<Session, CompileError> {
        let mut s = self.session;
        let update = options.in_backward().map(|optimizer| InBackward { optimizer, step: optimizer::STEP });
        let in_backward = update.is_some();
        let passes = options.passes(self.layout);
        let micro = pipeline::end(&mut s, self.micro, &passes, target, update)?;
        if in_backward {
            others(&mut s, self.forwards, options, (target, None), None);
        }
        s.programs.insert(0, micro);
        if let Some(layout) = &passes.shard {
            pipeline::sharded(&mut s, layout);
        }
        // Parts are made before anything of them is moved to the host.
        if options.placement.is_none() {
            pipeline::offload(&mut s, &options.offload);
        }
        Ok(s)
    }
}

/// Adds the programs beside `micro`, and the states that they need.
fn others(
    s: &mut Session,
    forwards: Vec<(Program, &'static str)>,
    options: &SessionOptions,
    (target, layout): (&dyn Target, Option<&Layout>),
    other_size: Option<&Stem>,
) {
    let mut programs = Vec::new();
    if let Some(known) = other_size.map(|stem| &stem.session).filter(|known| begins(known, s)) {
        // Updates follow from the states alone.
        known.states[s.states.len()..].iter().for_each(|state| _ = s.declare(state.clone()));
        let updates = known.programs.iter().filter(|p| [program::UPDATE, program::EMA].contains(&&*p.name));
        programs.extend(updates.cloned());
    } else if let Some(optimizer) = &options.optimizer {
        if options.in_backward().is_none() {
            let p = match layout {
                Some(layout) => optimizer::update_sharded(s, optimizer, layout),
                None if options.clip_per_tensor => optimizer::update_per_tensor(s, optimizer),
                None => optimizer::update(s, optimizer),
            };
            programs.push(pipeline::plain(s, p, target));
        }
        if options.ema {
            let p = optimizer::ema(s);
            programs.push(pipeline::plain(s, p, target));
        }
    }
    for (p, on_averages) in forwards {
        let p = pipeline::plain_sharded(s, p, target, layout);
        let averaged =
            (options.ema && options.optimizer.is_some()).then(|| optimizer::on_averages(s, &p, on_averages));
        programs.push(p);
        programs.extend(averaged);
    }
    s.programs = programs;
}

/// The first states of `whole` are those of `part`.
fn begins(whole: &Session, part: &Session) -> bool {
    whole.states.get(..part.states.len()) == Some(&*part.states)
}

impl SessionOptions {
    /// The optimizer, where it is applied in backward.
    fn in_backward(&self) -> Option<&Optimizer> {
        self.optimizer.as_ref().filter(|_| self.update_in_backward)
    }

    /// What the passes of `micro` are told.
    fn passes(&self, shard: Option<Layout>) -> Options {
        let pure = self.precision == Precision::Bf16Pure;
        Options { checkpoint: self.checkpoint.clone(), pure, shard }
    }

    /// Both have the same [`Stem`].
    pub fn has_stem_of(&self, other: &SessionOptions) -> bool {
        let SessionOptions { checkpoint, offload, placement, .. } = other.clone();
        SessionOptions { checkpoint, offload, placement, ..self.clone() } == *other
    }
}

/// The step's forward, and where ranks keep its parameters.
fn forward(
    s: &mut Session,
    model: &dyn Model,
    options: &SessionOptions,
) -> Result<(Program, Option<Layout>), CompileError> {
    let forward = model.loss(s, options.capacity, program::MICRO, true);
    let forward = pipeline::choose(s, forward, &trained(model, &options.trained), true)?;
    let forward = pipeline::precise(s, forward, options.precision);
    let few = options.optimizer.as_ref().map_or(0, Optimizer::few);
    let layout = options.sharding.map(|sharding| Layout::of(s, &forward, sharding, few));
    Ok((forward, layout))
}

/// Where the ranks of a session keep its parameters: by it they are loaded and read.
///
/// # Errors
/// As [`build`].
pub fn layout(model: &dyn Model, options: &SessionOptions) -> Result<Option<Layout>, CompileError> {
    if options.sharding.is_none() {
        return Ok(None);
    }
    forward(&mut Session::default(), model, options).map(|(_, layout)| layout)
}

/// What is trained, with the family's own layers for adapters that name none.
fn trained(model: &dyn Model, asked: &Trained) -> Trained {
    match asked {
        Trained::Adapters(lora) if lora.targets.is_empty() => {
            let targets = model.adapted().iter().map(|t| Pattern::new(*t)).collect();
            Trained::Adapters(Lora { targets, ..lora.clone() })
        }
        other => other.clone(),
    }
}

/// Elements of all parameters of a kind.
pub fn parameter_count(states: &[StateDecl], trainable_only: bool) -> u64 {
    let parameters = states.iter().filter(|s| s.kind == StateKind::Parameter);
    let counted = parameters.filter(|s| s.trainable || !trainable_only);
    counted.map(|s| s.ty.shape.elements() as u64).sum()
}
