//! The pipeline, in full view.

use crate::passes::Pass;
use crate::passes::accumulate::Accumulate;
use crate::passes::checkpoint::Checkpoint;
use crate::passes::dead::Dead;
use crate::passes::freeze;
use crate::passes::fuse::Fuse;
use crate::passes::in_backward::InBackward;
use crate::passes::lora::{self, Lora};
use crate::passes::lower::Lower;
use crate::passes::offload::Offload;
use crate::passes::pattern::Pattern;
use crate::passes::policy::{self, Blocks};
use crate::passes::precision::{self, Mixed, Precision};
use crate::passes::pure::{self, Pure};
use crate::passes::schedule::Schedule;
use crate::passes::shard::{self, Layout, Shard};
use crate::passes::simplify::Simplify;
use crate::{CompileError, autodiff};
use ambitus_ir::target::Target;
use ambitus_ir::verify::verify;
use ambitus_ir::{Program, Session, StateDecl};

/// What the caller may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What of the blocks is made again in backward.
    pub checkpoint: Blocks,
    /// Parameters are kept in bf16 alone ([`crate::passes::pure`]).
    pub pure: bool,
    /// Which rank holds what, where there are several.
    pub shard: Option<Layout>,
}

impl Options {
    /// With parameters as they are declared.
    pub fn new(checkpoint: Blocks) -> Options {
        Options { checkpoint, pure: false, shard: None }
    }
}

/// What of a model is trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Trained {
    /// Every parameter that the model calls trainable.
    #[default]
    All,
    /// All but those that match.
    Except(Vec<Pattern>),
    /// Adapters beside chosen products.
    Adapters(Lora),
}

/// Readies a built forward program for what is trained; comes before [`micro`] and [`plain`], and for every forward program
/// of a session, as they share the parameters. `training`: with the dropout of adapters.
///
/// # Errors
/// Patterns that match nothing or leave nothing, by name.
pub fn choose(
    session: &mut Session,
    forward: Program,
    trained: &Trained,
    training: bool,
) -> Result<Program, CompileError> {
    match trained {
        Trained::All => Ok(forward),
        Trained::Except(patterns) => freeze::freeze(session, patterns).map(|()| forward),
        Trained::Adapters(lora) => {
            let p = lora::adapt(session, forward, lora, training)?;
            check(session, &p, "lora");
            Ok(p)
        }
    }
}

/// Puts a forward program into a precision; comes after [`choose`], for every forward program of a session. Where the
/// precision needs a loss scale, the session declares it.
pub fn precise(session: &mut Session, forward: Program, precision: Precision) -> Program {
    if precision.scales_loss() {
        precision::declare_loss_scale(session);
    }
    match precision.narrow() {
        None => forward,
        Some(dtype) => run(session, forward, &Mixed { dtype }),
    }
}

/// Turns a forward program with an output `loss` into the micro-batch program: forward, backward, accumulation.
///
/// # Errors
/// See [`CompileError`].
pub fn micro(
    session: &mut Session,
    forward: Program,
    options: Options,
    target: &dyn Target,
) -> Result<Program, CompileError> {
    micro_for(session, forward, options, target, &|_| true)
}

/// As [`micro`], training only those trainable parameters that `trains` picks.
///
/// # Errors
/// See [`CompileError`].
pub fn micro_for(
    session: &mut Session,
    forward: Program,
    options: Options,
    target: &dyn Target,
    trains: &dyn Fn(&StateDecl) -> bool,
) -> Result<Program, CompileError> {
    build(session, forward, options, target, trains, None)
}

/// As [`micro_for`], with the update in its backward: the program is a whole update, of one micro-batch, and needs none of
/// [`optimizer`](crate::optimizer)'s `update` programs.
///
/// # Errors
/// See [`CompileError`].
pub fn micro_in_backward(
    session: &mut Session,
    forward: Program,
    options: Options,
    target: &dyn Target,
    trains: &dyn Fn(&StateDecl) -> bool,
    update: InBackward<'_>,
) -> Result<Program, CompileError> {
    build(session, forward, options, target, trains, Some(update))
}

fn build(
    session: &mut Session,
    forward: Program,
    options: Options,
    target: &dyn Target,
    trains: &dyn Fn(&StateDecl) -> bool,
    update: Option<InBackward<'_>>,
) -> Result<Program, CompileError> {
    let p = begin(session, forward, &options, target, trains, update.is_some())?;
    end(session, p, &options, target, update)
}

/// The first part of [`micro_for`], before anything is decided about what backward makes again: the same for every
/// [`Options::checkpoint`]. `in_backward`: [`end`] will be given an update.
///
/// # Errors
/// See [`CompileError`].
pub fn begin(
    session: &mut Session,
    forward: Program,
    options: &Options,
    target: &dyn Target,
    trains: &dyn Fn(&StateDecl) -> bool,
    in_backward: bool,
) -> Result<Program, CompileError> {
    if in_backward && session.state(precision::LOSS_SCALE).is_some() {
        return Err(CompileError::ScaledInBackward);
    }
    if in_backward && options.shard.is_some() {
        return Err(CompileError::ShardedPerTensor);
    }
    let p = run(session, forward, &Simplify);
    let p = autodiff::differentiate_for(session, p, trains)?;
    check(session, &p, "autodiff");
    let p = run(session, p, &Simplify);
    let mut p = run(session, p, &Lower { target });
    if let Some(layout) = &options.shard {
        p = run(session, p, &Shard { layout });
    }
    let p = run(session, p, &Accumulate { several_only: in_backward });
    let mut p = run(session, p, &Fuse { target });
    if options.pure {
        pure::declare(session);
        p = run(session, p, &Pure);
    }
    Ok(p)
}

/// The second part of [`micro_for`]. Declares states only for an update in backward.
///
/// # Errors
/// See [`CompileError`].
pub fn end(
    session: &mut Session,
    p: Program,
    options: &Options,
    target: &dyn Target,
    update: Option<InBackward<'_>>,
) -> Result<Program, CompileError> {
    let mut recompute = policy::tag(&p, &options.checkpoint, target)?;
    if let Some(layout) = &options.shard {
        shard::tag(&p, &layout.sharding, &mut recompute);
    }
    let p = run(session, p, &Checkpoint { recompute });
    let mut p = run(session, p, &Dead);
    if let Some(update) = update {
        // After checkpointing, when every instruction that reads a weight is there.
        p = run(session, p, &update);
        p = run(session, p, &Lower { target });
    }
    p = run(session, p, &Schedule);
    if let Some(layout) = &options.shard {
        p = run(session, p, &layout.sharding.prefetch);
    }
    Ok(p)
}

/// Prepares a program without backward: evaluation, sampling, updates. Forward programs of pure bf16 are built before the
/// micro-batch's parameters are declared so, and prepared after it.
pub fn plain(session: &mut Session, program: Program, target: &dyn Target) -> Program {
    plain_sharded(session, program, target, None)
}

/// As [`plain`], for ranks that share parameters. Updates and averages, which work on what a rank holds, need no layout.
pub fn plain_sharded(
    session: &mut Session,
    program: Program,
    target: &dyn Target,
    layout: Option<&Layout>,
) -> Program {
    let p = run(session, program, &Pure);
    let p = run(session, p, &Simplify);
    let mut p = run(session, p, &Lower { target });
    if let Some(layout) = layout {
        p = run(session, p, &Shard { layout });
    }
    let p = run(session, p, &Dead);
    let p = run(session, p, &Schedule);
    match layout {
        Some(layout) => run(session, p, &layout.sharding.prefetch),
        None => p,
    }
}

/// Takes what flats replaced out of a session of ranks, when every program is there.
pub fn sharded(session: &mut Session, layout: &Layout) {
    shard::drop_tensors(session, layout);
    session.programs.iter().for_each(|p| check(session, p, "shard"));
}

/// Moves states and activations to the host's memory; the last of all, when every program is there.
pub fn offload(session: &mut Session, options: &Offload) {
    if options.is_none() {
        return;
    }
    options.declare(session);
    let programs = std::mem::take(&mut session.programs);
    let programs = programs.into_iter().map(|p| run(session, p, options)).collect();
    session.programs = programs;
}

/// Runs one pass and verifies its result.
pub fn run(session: &mut Session, p: Program, pass: &dyn Pass) -> Program {
    let p = pass.run(session, p);
    check(session, &p, pass.name());
    p
}

fn check(session: &Session, p: &Program, pass: &str) {
    if let Err(violation) = verify(session, p) {
        panic!("bug in pass `{pass}`: {violation}");
    }
}
