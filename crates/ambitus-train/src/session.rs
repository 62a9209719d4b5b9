//! From a model's shape and a run's options to a planned session.

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
use ambitus_ir::{Program, Session, StateKind};
use ambitus_models::{Capacity, Model};

/// Names of the programs, which are also the names of their phases.
pub mod program {
    /// Forward and backward of one micro-batch; the whole update, where that is in backward.
    pub const MICRO: &str = "micro";
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
    model: &Model,
    options: &SessionOptions,
    target: &dyn Target,
) -> Result<PlannedSession, CompileError> {
    Ok(plan::plan(build(model, options, target)?, target, 1))
}

/// The session before it is planned.
///
/// # Errors
/// See [`CompileError`].
pub fn build(model: &Model, options: &SessionOptions, target: &dyn Target) -> Result<Session, CompileError> {
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
    let pure = options.precision == Precision::Bf16Pure;
    let passes = Options { checkpoint: options.checkpoint.clone(), pure, shard: layout.clone() };
    let in_backward = options.optimizer.as_ref().filter(|_| options.update_in_backward);
    let mut programs = vec![match in_backward {
        Some(optimizer) => {
            let update = InBackward { optimizer, step: optimizer::STEP };
            pipeline::micro_in_backward(&mut s, forward, passes, target, &|_| true, update)?
        }
        None => pipeline::micro(&mut s, forward, passes, target)?,
    }];
    if let Some(optimizer) = &options.optimizer {
        if in_backward.is_none() {
            let p = match options.sharding {
                Some(sharding) => optimizer::update_sharded(&mut s, optimizer, sharding.mesh),
                None if options.clip_per_tensor => optimizer::update_per_tensor(&mut s, optimizer),
                None => optimizer::update(&mut s, optimizer),
            };
            programs.push(pipeline::plain(&mut s, p, target));
        }
        if options.ema {
            let p = optimizer::ema(&mut s);
            programs.push(pipeline::plain(&mut s, p, target));
        }
    }
    for (p, on_averages) in forwards {
        let p = pipeline::plain_sharded(&mut s, p, target, layout.as_ref());
        let averaged = (options.ema && options.optimizer.is_some())
            .then(|| optimizer::on_averages(&mut s, &p, on_averages));
        programs.push(p);
        programs.extend(averaged);
    }
    s.programs = programs;
    if let Some(layout) = &layout {
        pipeline::sharded(&mut s, layout);
    }
    pipeline::offload(&mut s, &options.offload);
    Ok(s)
}

/// The step's forward, and where ranks keep its parameters.
fn forward(
    s: &mut Session,
    model: &Model,
    options: &SessionOptions,
) -> Result<(Program, Option<Layout>), CompileError> {
    let forward = model.loss(s, options.capacity, program::MICRO, true);
    let forward = pipeline::choose(s, forward, &trained(model, &options.trained), true)?;
    let forward = pipeline::precise(s, forward, options.precision);
    let layout = options.sharding.map(|sharding| Layout::of(s, &forward, sharding));
    Ok((forward, layout))
}

/// Where the ranks of a session keep its parameters: by it they are loaded and read.
///
/// # Errors
/// As [`build`].
pub fn layout(model: &Model, options: &SessionOptions) -> Result<Option<Layout>, CompileError> {
    forward(&mut Session::default(), model, options).map(|(_, layout)| layout)
}

/// What is trained, with the family's own layers for adapters that name none.
fn trained(model: &Model, asked: &Trained) -> Trained {
    match asked {
        Trained::Adapters(lora) if lora.targets.is_empty() => {
            let targets = model.adapted().iter().map(|t| Pattern::new(*t)).collect();
            Trained::Adapters(Lora { targets, ..lora.clone() })
        }
        other => other.clone(),
    }
}

/// Elements of all parameters of a kind.
pub fn parameter_count(session: &Session, trainable_only: bool) -> u64 {
    let parameters = session.states.iter().filter(|s| s.kind == StateKind::Parameter);
    let counted = parameters.filter(|s| s.trainable || !trainable_only);
    counted.map(|s| s.ty.shape.elements() as u64).sum()
}
