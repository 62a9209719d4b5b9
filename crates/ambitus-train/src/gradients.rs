//! `ambitus gradients`: the loss and every gradient of one update on given clips and draws; for parity with the reference.

mod mel;
mod ranks;
mod tokens;

use crate::budget::{MicroBatch, RunPlan, Shape, clip_rows};
use crate::clips::{Clips, Use, When};
use crate::device::Device;
use crate::error::RunError;
use crate::launch::Processes;
use crate::load;
use crate::model_dir::ModelDir;
use crate::recipe::DeviceChoice;
use crate::search::{self, Free};
use crate::session::{SessionOptions, program};
use ambitus_comm::{Communicator, staging};
use ambitus_compile::passes::accumulate::GRAD;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{INITIAL_SCALE, Precision};
use ambitus_compile::passes::shard::{Layout, Sharding};
use ambitus_compile::pipeline::Trained;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateId, StateKind};
use ambitus_models::{Batch, Capacity, Model};
use ambitus_store::{DType, SafetensorsWriter, TensorSpec};
use std::path::Path;

/// Options of the plan that `gradients` takes.
#[derive(Clone, Debug)]
pub struct GradientOptions {
    /// What backward makes again.
    pub checkpoint: Blocks,
    /// What to compute in; gradients are f32 and unscaled all the same.
    pub precision: Precision,
    /// Rows of a micro-batch; all clips in one without.
    pub micro_batch: Option<usize>,
    /// How ranks share the model; without, there is one.
    pub sharding: Option<Sharding>,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Threads of the CPU executor.
    pub threads: usize,
    /// Budget in bytes.
    pub memory: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The loss.
    pub loss: f32,
    /// What is odd about the model's files.
    pub doubts: Vec<String>,
}

/// The clips of a batch file.
fn read(batch: &Path, model: &Model) -> Result<Box<dyn Clips>, RunError> {
    match model {
        Model::F5(cfg) => Ok(Box::new(mel::read(batch, cfg)?)),
        Model::Orpheus(cfg) => Ok(Box::new(tokens::read(batch, cfg)?)),
    }
}

/// Computes loss and gradients of the clips in `batch` and writes them to `out`. In a world this is one of its ranks, as
/// many as `options.sharding` has: each computes its share, rank 0 writes.
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
    let mut model = dir.model.clone();
    model.set_dropout(0.0);
    let clips = read(batch, &model)?;
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
    let norm = clips.norm(&uses(&(0..rows.len()).collect::<Vec<_>>()))?;
    let here = world.map_or(options.sharding.map_or(1, |s| s.mesh.ranks), |w| w.here);
    let device = Device::find(options.device, options.threads.div_ceil(here).max(1))?;
    device.require(options.precision)?;
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
            offload: Default::default(),
            sharding: options.sharding,
            ema: false,
            evaluate: false,
            sample: None,
        },
        beside: device.beside(),
        update_rows: total,
        clip_rows: clip_rows(rows.iter().map(|n| *n as f64)),
        micro_batches: micro_batches.len(),
        prepare_bytes: 0,
    };
    let plan = RunPlan::new(shape.clone(), device.target())?;
    if let Some(sharding) = options.sharding {
        let work = ranks::Work { dir, clips: &*clips, micro_batches: &micro_batches, norm, capacity };
        let doubts = dir.doubts()?;
        let loss = work.gradients(plan, sharding, &device, &options, world, out)?;
        return Ok(Computed { loss, doubts });
    }
    if let Some(budget) = options.memory {
        let longest = rows.iter().copied().max().unwrap_or(1);
        let smaller = Capacity { rows: longest, ..capacity };
        let of = |capacity: Capacity, count| MicroBatch { asked: capacity.rows as u64, capacity, count };
        let micro_batches = vec![of(capacity, micro_batches.len()), of(smaller, rows.len())];
        let every = Free { checkpoint: true, micro_batches, variants: Vec::new(), host_room: u64::MAX };
        search::require(&plan, &shape, &every, budget, device.target())?;
    }
    device.require_free(plan.peak_bytes)?;
    let planned = plan.planned;
    dir.check(&planned.session.states, false)?;
    let mut exec = device.open(planned, None)?;
    let doubts = load::load(&mut *exec, dir, 0)?;
    let mut host = model.batch(capacity);
    let mut loss = 0.0f64;
    for (i, members) in micro_batches.iter().enumerate() {
        clips.fill(&uses(members), &mut host)?;
        loss += f64::from(run_micro(&mut *exec, program::MICRO, &host, norm, i > 0)?);
    }
    let scale = if options.precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
    write(&*exec, None, loss as f32, scale, out)?;
    Ok(Computed { loss: loss as f32, doubts })
}

fn uses(members: &[usize]) -> Vec<Use> {
    members.iter().map(|&clip| Use { clip, when: When::Epoch(0) }).collect()
}

/// Writes a batch and runs a program with output `loss` on it. `further`: gradients are added to what is there.
///
/// # Errors
/// From the executor.
pub fn run_micro(
    exec: &mut dyn Executor,
    name: &str,
    host: &Batch,
    norm: f32,
    further: bool,
) -> Result<f32, RunError> {
    write_batch(exec, name, host)?;
    exec.write_f32(name, "norm", 0, &[norm])?;
    if has_input(exec.planned(), name, "beta") {
        exec.write_f32(name, "beta", 0, &[f32::from(u8::from(further))])?;
    }
    exec.run(name, 0)?;
    let mut loss = [0.0];
    exec.read_f32(name, "loss", 0, &mut loss)?;
    Ok(loss[0])
}

/// Writes those inputs of a batch that a program takes.
///
/// # Errors
/// From the executor.
pub fn write_batch(exec: &mut dyn Executor, name: &str, host: &Batch) -> Result<(), RunError> {
    for (input, data) in host.floats() {
        if has_input(exec.planned(), name, input) {
            exec.write_f32(name, input, 0, data)?;
        }
    }
    for (input, data) in host.ints() {
        if has_input(exec.planned(), name, input) {
            exec.write_i32(name, input, 0, data)?;
        }
    }
    Ok(())
}

/// True when a program of the plan has such an input.
pub fn has_input(planned: &PlannedSession, program: &str, input: &str) -> bool {
    planned.program(program).is_some_and(|p| p.program.input(input).is_some())
}

/// Clips in order, cut into runs that fit. `Err` names the clip that cannot.
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

/// The ranks that hold one copy together: the first `ranks` of all.
struct Holders<'a> {
    /// What lies where.
    layout: &'a Layout,
    ranks: usize,
    comm: &'a dyn Communicator,
}

impl Holders<'_> {
    /// Elements `at..` of a state that lies across the holders, `held` on each, for rank 0; the others hand in theirs.
    fn read(
        &self,
        exec: &dyn Executor,
        state: StateId,
        held: usize,
        at: usize,
        values: &mut [f32],
    ) -> Result<(), RunError> {
        let name = &exec.planned().session.states[state.0 as usize].name;
        let rank = self.comm.rank();
        let most = (staging(self.comm.ranks()) / 4).min(values.len());
        let (mut mine, mut both) = (vec![0u8; 4 * most], vec![0u8; 8 * most]);
        for k in 0..self.ranks {
            let (from, to) = ((k * held).max(at), ((k + 1) * held).min(at + values.len()));
            for first in (from..to).step_by(most) {
                let n = most.min(to - first);
                let part = &mut values[first - at..][..n];
                if rank == k {
                    exec.read_state_at(state, first - k * held, part)?;
                }
                if k == 0 || (rank != 0 && rank != k) {
                    continue;
                }
                if rank == k {
                    let bytes = mine.as_chunks_mut().0.iter_mut();
                    bytes.zip(part.iter()).for_each(|(b, x)| *b = x.to_le_bytes());
                }
                let both = &mut both[..8 * n];
                self.comm.all_gather(name, &[0, k], &mine[..4 * n], both)?;
                if rank == 0 {
                    let bytes = both[4 * n..].as_chunks().0.iter();
                    part.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
                }
            }
        }
        Ok(())
    }
}

/// Writes loss and gradients; these are `scale` times too large in the executor. Of several ranks, which all call it, rank 0
/// writes.
fn write(
    exec: &dyn Executor,
    holders: Option<&Holders>,
    loss: f32,
    scale: f32,
    out: &Path,
) -> Result<(), RunError> {
    let session = &exec.planned().session;
    // By tensor: the state, and where it begins in it.
    let mut grads: Vec<(TensorSpec, usize, usize)> = Vec::new();
    for (i, s) in session.states.iter().enumerate().filter(|(_, s)| s.kind == StateKind::Gradient) {
        let flat = s.name.strip_prefix(GRAD).and_then(|name| holders?.layout.flat(name));
        match flat {
            None => grads.push((TensorSpec::new(s.name.as_str(), DType::F32, &s.ty.shape), i, 0)),
            Some(flat) => grads.extend(flat.tensors.iter().map(|t| {
                let name = format!("{GRAD}{}", t.name);
                (TensorSpec::new(name.as_str(), DType::F32, &t.shape), i, t.at)
            })),
        }
    }
    let mut specs: Vec<TensorSpec> = grads.iter().map(|(spec, ..)| spec.clone()).collect();
    specs.push(TensorSpec::new("loss", DType::F32, &[1]));
    // The order of the file, on every rank.
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    let writes = holders.is_none_or(|h| h.comm.rank() == 0);
    let create = || SafetensorsWriter::create(out, specs.clone(), &Default::default());
    let mut writer = writes.then(create).transpose()?;
    let mut values = Vec::new();
    for spec in &specs {
        values.resize(spec.shape.iter().product(), 0.0);
        if let Some((_, i, at)) = grads.iter().find(|(s, ..)| s.name == spec.name) {
            let (state, held) = (StateId(*i as u32), session.states[*i].ty.shape.elements());
            match holders {
                None => exec.read_state_at(state, *at, &mut values)?,
                Some(holders) => holders.read(exec, state, held, *at, &mut values)?,
            }
            values.iter_mut().for_each(|x| *x /= scale);
        } else {
            values.fill(loss);
        }
        if let Some(writer) = &mut writer {
            writer.write_f32(&spec.name, &values)?;
        }
    }
    writer.map(SafetensorsWriter::finish).transpose()?;
    Ok(())
}
