//! `ambitus gradients`: the loss and every gradient of one update on given clips and draws; for parity with the reference.

mod gathered;
mod placed;
mod sharded;

use crate::launch::Processes;
use crate::weights;
use ambitus_compile::passes::accumulate::BETA;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{INITIAL_SCALE, Precision};
use ambitus_compile::passes::shard::Sharding;
use ambitus_compile::passes::unroll::of;
use ambitus_compile::pipeline::Trained;
use ambitus_exec::executor::Executor;
use ambitus_families::batches::{write_batch, write_f32, write_inputs};
use ambitus_families::clips::{Clips, Use, When};
use ambitus_families::error::{RunError, replaces_a_file};
use ambitus_families::family::ModelDir;
use ambitus_models::{Batch, Capacity, Norms, Player};
use ambitus_plan::budget::{MicroBatch, RunPlan, Shape, clip_rows};
use ambitus_plan::device::Device;
use ambitus_plan::inference;
use ambitus_plan::placement;
use ambitus_plan::refusal;
use ambitus_plan::search::{Free, HostRoom};
use ambitus_plan::session::{self, SessionOptions, program};
use ambitus_recipe::recipe::DeviceChoice;
use gathered::{Gathered, write};
use std::path::Path;

/// Options of the plan that `gradients` takes.
#[derive(Clone, Debug)]
pub struct GradientOptions {
    /// What backward recomputes.
    pub checkpoint: Blocks,
    /// What to compute in; gradients are f32 and unscaled all the same.
    pub precision: Precision,
    /// Rows of a micro-batch; all clips in one without.
    pub micro_batch: Option<usize>,
    /// How ranks share the model; without, there is one.
    pub sharding: Option<Sharding>,
    /// Which part of the model each rank has, in place of sharding; without, none its own.
    pub placement: Option<placement::Placement>,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Threads of the CPU executor.
    pub threads: usize,
    /// Budget in bytes.
    pub memory: Option<u64>,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The loss.
    pub loss: f32,
    /// Warnings about the model's files.
    pub doubts: Vec<String>,
}

/// What is to be computed.
struct Work<'a> {
    /// The model.
    dir: &'a ModelDir,
    /// The update's clips.
    clips: &'a dyn Clips,
    /// Which of them each micro-batch has.
    micro_batches: &'a [Vec<usize>],
    /// The update's normalisers.
    norms: Norms,
    /// Sizes of a micro-batch.
    capacity: Capacity,
}

/// Computes loss and gradients of the clips in `batch` and writes them to `out`. In a world this is one of its ranks, as
/// many as `options.sharding` or `options.placement` has: each computes its share, rank 0 writes.
///
/// # Errors
/// A model or batch that does not fit together, by file and tensor.
pub fn gradients(
    dir: &ModelDir,
    batch: &Path,
    out: &Path,
    options: GradientOptions,
    world: Option<&Processes>,
) -> Result<Computed, RunError> {
    replaces_a_file(out)?;
    let spare = inference::spare(options.device, options.threads, options.memory);
    let clips = dir.opened.recorded(batch, spare)?;
    let model = dir.model.with_dropout(0.0).unwrap_or_else(|| dir.model.clone());
    let model = model.with_context(clips.context() as usize).unwrap_or(model);
    let rows: Vec<usize> = clips.rows().iter().map(|n| *n as usize).collect();
    let total: usize = rows.iter().sum();
    let capacity = Capacity { rows: options.micro_batch.unwrap_or(total), clips: rows.len() };
    let micro_batches = split(&rows, capacity.rows).map_err(|(i, n)| {
        RunError::Usage(format!(
            "{}: clips.{i} has {n} {}, more than the {} of --micro-batch",
            batch.display(),
            model.rows().unit,
            capacity.rows
        ))
    })?;
    let norms = clips.norms(&uses(&(0..rows.len()).collect::<Vec<_>>()))?;
    let placed = options.placement.as_ref().map(|p| p.ranks);
    let ranks = placed.or(options.sharding.map(|s| s.mesh.ranks)).unwrap_or(1);
    let device = device_of(&options, ranks, world)?;
    let shape = Shape {
        model: model.clone(),
        session: SessionOptions {
            capacity,
            checkpoint: options.checkpoint.clone(),
            precision: options.precision,
            trained: Trained::All,
            optimizer: None,
            clip_per_tensor: false,
            update_in_backward: false,
            whole_updates: false,
            offload: Default::default(),
            sharding: options.sharding,
            placement: options.placement.clone(),
            ema: false,
            evaluate: false,
            sample: None,
            speech: None,
        },
        beside: device.beside(),
        update_rows: total,
        clip_rows: clip_rows(rows.iter().map(|n| *n as f64)),
        micro_batches: micro_batches.len(),
        prepare_bytes: 0,
        planned_at_once: 1,
        looked_at_bytes: 0,
        data_bytes: 0,
        spoken: Default::default(),
    };
    let plan = RunPlan::new(shape.clone(), device.target())?;
    let work = Work { dir, clips: &*clips, micro_batches: &micro_batches, norms: norms.clone(), capacity };
    if let Some(parts) = &plan.parts {
        let doubts = dir.doubts()?;
        let loss = work.placed(&plan, parts, &device, &options, world, out)?;
        return Ok(Computed { loss, doubts });
    }
    if let Some(sharding) = options.sharding {
        let doubts = dir.doubts()?;
        let loss = work.sharded(plan, sharding, &device, &options, world, out)?;
        return Ok(Computed { loss, doubts });
    }
    if let Some(budget) = options.memory {
        let longest = rows.iter().copied().max().unwrap_or(1);
        let smaller = Capacity { rows: longest, ..capacity };
        let of = |capacity: Capacity, count| MicroBatch { capacity, count, whole_updates: false };
        let micro_batches = vec![of(capacity, micro_batches.len()), of(smaller, rows.len())];
        let (variants, offloads) = (Vec::new(), Vec::new());
        let every = Free { checkpoint: true, micro_batches, variants, offloads, host_room: HostRoom::ALL };
        refusal::require_plan(&plan, &shape, &every, budget, device.target())?;
    }
    device.require_free(plan.peak_bytes)?;
    let planned = plan.planned;
    dir.check(&planned.session.states)?;
    let mut exec = device.open(planned, None, "")?;
    let doubts = weights::load(&mut *exec, dir, 0)?;
    let (mut host, players) = (model.batch(capacity), session::players(&*model));
    host.set_norms(&norms);
    let (mut losses, mut traced) = (work.none(), Traced::new());
    for (i, members) in micro_batches.iter().enumerate() {
        clips.fill(&uses(members), &mut host)?;
        for (k, player) in players.iter().enumerate() {
            work.run(&mut *exec, (k, &player.program(program::MICRO)), &host, i > 0, &mut losses)?;
        }
        let first = players[0].program(program::MICRO);
        work.trace(&*exec, &first, &rows, members, &mut traced)?;
    }
    let scale = if options.precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
    write(&*exec, &Gathered::Alone, &losses, &traced, scale, out)?;
    Ok(Computed { loss: losses[0].1 as f32, doubts })
}

/// Sums over micro-batches: of each player's loss, and of what the model reports besides; not a number where this rank has none.
type Losses = Vec<(String, f64)>;
/// Numbers of a clip's rows, by tensor.
type Traced = Vec<(String, Vec<i64>)>;

impl Work<'_> {
    fn none(&self) -> Losses {
        let of_player = |player: &Player| match player.name {
            "" => "loss".to_owned(),
            name => format!("loss.{name}"),
        };
        let model = &self.dir.model;
        let losses = model.players().iter().map(of_player);
        losses.chain(model.reported().iter().map(|name| (*name).to_owned())).map(|name| (name, 0.0)).collect()
    }

    /// Runs a micro-batch of a player, by its index and its program's name, and adds what it gives.
    fn run(
        &self,
        exec: &mut dyn Executor,
        (player, name): (usize, &str),
        host: &Batch,
        further: bool,
        losses: &mut Losses,
    ) -> Result<(), RunError> {
        losses[player].1 += f64::from(run_micro(exec, name, host, further)?);
        match player {
            0 => add_reported(exec, name, &str::to_owned, &mut losses[self.dir.model.players().len()..]),
            _ => Ok(()),
        }
    }

    /// Adds what the program of a micro-batch of these clips traced of their rows.
    fn trace(
        &self,
        exec: &dyn Executor,
        name: &str,
        rows: &[usize],
        members: &[usize],
        traced: &mut Traced,
    ) -> Result<(), RunError> {
        let mut values = vec![0.0; self.capacity.rows];
        for output in self.dir.model.traced() {
            exec.read_f32(name, output, 0, &mut values)?;
            let mut at = 0;
            for &clip in members {
                let of_clip = values[at..][..rows[clip]].iter().map(|x| *x as i64).collect();
                traced.push((format!("clips.{clip}.{output}"), of_clip));
                at += rows[clip];
            }
        }
        Ok(())
    }
}

/// Adds what a program that ran reports besides the loss; `called` is its name for an output.
fn add_reported(
    exec: &dyn Executor,
    program: &str,
    called: &dyn Fn(&str) -> String,
    reported: &mut [(String, f64)],
) -> Result<(), RunError> {
    for (name, sum) in reported {
        let (name, mut value) = (called(name), [f32::NAN]);
        let planned = exec.planned().program(program);
        if planned.is_some_and(|p| p.program.output(&name).is_some()) {
            exec.read_f32(program, &name, 0, &mut value)?;
        }
        *sum += f64::from(value[0]);
    }
    Ok(())
}

/// Returns the device that computes the first of `ranks` ranks here, or this process's own among others.
fn device_of(options: &GradientOptions, ranks: usize, world: Option<&Processes>) -> Result<Device, RunError> {
    let choice = Device::of_rank(options.device, world.map_or(0, |w| w.local))?;
    let here = world.map_or(ranks, |w| w.here);
    let device = Device::find(choice, options.threads.div_ceil(here).max(1))?;
    let placed = options.placement.is_some();
    let device = match world {
        Some(world) if placed => device.connected(ranks).beside_engine(world.bytes),
        Some(_) => device.connected(ranks),
        // Of ranks that share, the processor's memory is counted where they are.
        None if placed || device.is_card() => device.with_ranks(ranks),
        None => device,
    };
    device.computing_in(options.precision)
}

fn uses(members: &[usize]) -> Vec<Use> {
    members.iter().map(|&clip| Use { clip, when: When::Epoch(0) }).collect()
}

/// Writes a batch and runs a program with output `loss` on it. `further`: gradients are added to what is there.
///
/// # Errors
/// From the executor.
pub fn run_micro(exec: &mut dyn Executor, name: &str, host: &Batch, further: bool) -> Result<f32, RunError> {
    write_batch(exec, name, host)?;
    write_f32(exec, name, BETA, f32::from(u8::from(further)))?;
    exec.run(name, 0)?;
    let mut loss = [0.0];
    exec.read_f32(name, "loss", 0, &mut loss)?;
    Ok(loss[0])
}

/// Writes a micro-batch, the `k`th of a pipeline's program.
///
/// # Errors
/// From the executor.
pub fn write_one_of(exec: &mut dyn Executor, k: usize, host: &Batch) -> Result<(), RunError> {
    write_inputs(exec, program::PIPELINE, host, &|input| of(input, k))
}

/// Runs a pipeline's program on what was written: the losses of the first `count` of its micro-batches. `further` as of
/// [`run_micro`].
///
/// # Errors
/// From the executor.
pub fn run_several(exec: &mut dyn Executor, count: usize, further: bool) -> Result<Vec<f32>, RunError> {
    write_f32(exec, program::PIPELINE, BETA, f32::from(u8::from(further)))?;
    exec.run(program::PIPELINE, 0)?;
    let mut losses = vec![0.0; count];
    for (k, loss) in losses.iter_mut().enumerate() {
        exec.read_f32(program::PIPELINE, &of("loss", k), 0, std::slice::from_mut(loss))?;
    }
    Ok(losses)
}

/// Cuts clips, in order, into runs that fit. `Err` names the clip that cannot.
fn split(rows: &[usize], capacity: usize) -> Result<Vec<Vec<usize>>, (usize, usize)> {
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for (i, &n) in rows.iter().enumerate() {
        if n > capacity {
            return Err((i, n));
        }
        if used.saturating_add(n) > capacity {
            out.push(Vec::new());
            used = 0;
        }
        used += n;
        if let Some(last) = out.last_mut() {
            last.push(i);
        }
    }
    Ok(out)
}
