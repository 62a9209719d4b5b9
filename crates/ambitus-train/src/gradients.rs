//! `ambitus gradients`: the loss and every gradient of one update on given clips and draws; for parity with the reference.

use crate::budget::{MicroBatch, RunPlan, Shape, clip_frames};
use crate::device::Device;
use crate::error::RunError;
use crate::load;
use crate::model_dir::ModelDir;
use crate::recipe::DeviceChoice;
use crate::search::{self, Free};
use crate::session::{SessionOptions, program};
use ambitus_compile::passes::accumulate::GRAD;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{INITIAL_SCALE, Precision};
use ambitus_compile::pipeline::Trained;
use ambitus_exec::executor::Executor;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateId, StateKind};
use ambitus_models::f5::batch::{self, Batch, Clip};
use ambitus_models::f5::config::{Config, MAX_FRAMES, MELS};
use ambitus_models::f5::draw::Draw;
use ambitus_models::f5::model::Capacity;
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::path::Path;

/// A clip of a batch file.
struct GivenClip {
    mel: Vec<f32>,
    noise: Vec<f32>,
    text: Vec<i32>,
    span: Vec<bool>,
    draw: Draw,
}

impl GivenClip {
    fn clip(&self) -> Clip<'_> {
        Clip {
            mel: &self.mel,
            text: &self.text,
            draw: self.draw,
            noise: Some(&self.noise),
            span: Some(&self.span),
        }
    }
}

/// Options of the plan that `gradients` takes.
#[derive(Clone, Debug)]
pub struct GradientOptions {
    /// What backward makes again.
    pub checkpoint: Blocks,
    /// What to compute in; gradients are f32 and unscaled all the same.
    pub precision: Precision,
    /// Frames of a micro-batch; all clips in one without.
    pub micro_batch: Option<usize>,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Threads of the CPU executor.
    pub threads: usize,
    /// Budget in bytes.
    pub memory: Option<u64>,
}

/// Computes loss and gradients of the clips in `batch` and writes them to `out`.
///
/// # Errors
/// A model or batch that does not fit together, by file and tensor.
pub fn gradients(
    model: &ModelDir,
    batch: &Path,
    out: &Path,
    options: GradientOptions,
) -> Result<f32, RunError> {
    let mut cfg = model.config.clone();
    cfg.dropout = 0.0;
    let clips = read_batch(batch, &cfg)?;
    let frames: Vec<usize> = clips.iter().map(|c| c.clip().frames()).collect();
    let total: usize = frames.iter().sum();
    let capacity = Capacity { frames: options.micro_batch.unwrap_or(total), clips: clips.len() };
    let micro_batches = split(&frames, capacity.frames).map_err(|(i, n)| {
        RunError::Usage(format!(
            "{}: clips.{i} has {n} frames, more than the {} of --micro-batch",
            batch.display(),
            capacity.frames
        ))
    })?;
    let device = Device::find(options.device, options.threads)?;
    device.require(options.precision)?;
    let shape = Shape {
        config: cfg.clone(),
        session: SessionOptions {
            capacity,
            checkpoint: options.checkpoint,
            precision: options.precision,
            trained: Trained::All,
            optimizer: None,
            clip_per_tensor: false,
            update_in_backward: false,
            offload: Default::default(),
            ema: false,
            evaluate: false,
            sample: None,
        },
        beside: device.beside(),
        update_frames: total,
        clip_frames: clip_frames(frames.iter().map(|n| *n as f64)),
        micro_batches: micro_batches.len(),
        prepare_bytes: 0,
    };
    let plan = RunPlan::new(shape.clone(), device.target())?;
    if let Some(budget) = options.memory {
        let longest = frames.iter().copied().max().unwrap_or(1);
        let smaller = Capacity { frames: longest, ..capacity };
        let of = |capacity: Capacity, count| MicroBatch { asked: capacity.frames as u64, capacity, count };
        let micro_batches = vec![of(capacity, micro_batches.len()), of(smaller, clips.len())];
        let every = Free { checkpoint: true, micro_batches, variants: Vec::new(), host_room: u64::MAX };
        search::require(&plan, &shape, &every, budget, device.target())?;
    }
    device.require_free(plan.peak_bytes)?;
    let planned = plan.planned;
    let weights = model.weights.as_ref();
    if let Some(w) = weights {
        w.check(&planned.session.states, false)?;
    }
    for (i, clip) in clips.iter().enumerate() {
        batch::check_text(&clip.text, &cfg).map_err(|id| {
            RunError::Usage(format!(
                "{}: clips.{i}.text: id {id} has no row; the vocabulary has {} tokens",
                batch.display(),
                cfg.text_rows - 1
            ))
        })?;
    }
    let mut exec = device.open(planned, None)?;
    load::load(&mut *exec, &cfg, weights, 0)?;

    let scored: usize = clips.iter().map(|c| c.clip().span_frames()).sum();
    if scored == 0 {
        return Err(RunError::Usage(format!("{}: no frame is predicted in any span", batch.display())));
    }
    let norm = batch::norm(scored);
    let mut host = Batch::new(capacity);
    let mut loss = 0.0f64;
    for (i, members) in micro_batches.iter().enumerate() {
        let members: Vec<Clip<'_>> = members.iter().map(|&k| clips[k].clip()).collect();
        host.fill(&members);
        loss += f64::from(run_micro(&mut *exec, program::MICRO, &host, norm, i > 0)?);
    }
    let scale = if options.precision.scales_loss() { INITIAL_SCALE } else { 1.0 };
    write(&*exec, loss as f32, scale, out)?;
    Ok(loss as f32)
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
fn split(frames: &[usize], capacity: usize) -> Result<Vec<Vec<usize>>, (usize, usize)> {
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for (i, &n) in frames.iter().enumerate() {
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

fn read_batch(path: &Path, cfg: &Config) -> Result<Vec<GivenClip>, RunError> {
    let file = TensorFile::open(path)?;
    let bad = |name: &str, why: String| RunError::Usage(format!("{}: {name}: {why}", path.display()));
    let mut scratch = vec![0u8; load::STAGING_BYTES];
    let mut clips = Vec::new();
    while file.contains(&format!("clips.{}.mel", clips.len())) {
        let i = clips.len();
        let tensor = |leaf: &str| format!("clips.{i}.{leaf}");
        let mut floats = |leaf: &str, want: Option<usize>| -> Result<Vec<f32>, RunError> {
            let name = tensor(leaf);
            let n = file.get(&name)?.elements();
            if want.is_some_and(|w| w != n) {
                return Err(bad(&name, format!("has {n} elements, {} are expected", want.unwrap_or(0))));
            }
            let mut out = vec![0.0; n];
            file.read_into(&name, &mut out, &mut scratch)?;
            match out.iter().position(|x| !x.is_finite()) {
                Some(at) => Err(bad(&name, format!("element {at} is {}", out[at]))),
                None => Ok(out),
            }
        };
        let shape = file.get(&tensor("mel"))?.shape().to_vec();
        let &[n, MELS] = shape.as_slice() else {
            return Err(bad(&tensor("mel"), format!("is {shape:?}, not [frames, {MELS}]")));
        };
        if n == 0 || (n > MAX_FRAMES && cfg.conv_layers > 0) {
            return Err(bad(&tensor("mel"), format!("{n} frames; 1 to {MAX_FRAMES} have a text position")));
        }
        let mel = floats("mel", None)?;
        let noise = floats("x0", Some(n * MELS))?;
        let time = floats("time", Some(1))?[0];
        let span: Vec<bool> = floats("span", Some(n))?.iter().map(|x| *x != 0.0).collect();
        let drop_audio = floats("drop_audio", Some(1))?[0] != 0.0;
        let drop_text = floats("drop_text", Some(1))?[0] != 0.0;
        let name = tensor("text");
        let mut ids = vec![0i64; file.get(&name)?.elements()];
        file.read_i64(&name, &mut ids, &mut scratch)?;
        let text: Vec<i32> = ids.iter().map(|id| i32::try_from(*id).unwrap_or(i32::MAX)).collect();
        let draw = Draw { time, span: (0, 0), drop_audio, drop_text, key: [0, 0] };
        clips.push(GivenClip { mel, noise, text, span, draw });
    }
    if clips.is_empty() {
        return Err(bad("clips.0.mel", "is missing; the batch has no clip".to_owned()));
    }
    Ok(clips)
}

/// Writes loss and gradients; these are `scale` times too large in the executor.
fn write(exec: &dyn Executor, loss: f32, scale: f32, out: &Path) -> Result<(), RunError> {
    let session = &exec.planned().session;
    let grads: Vec<(usize, &str)> = session
        .states
        .iter()
        .enumerate()
        .filter(|(_, s)| s.kind == StateKind::Gradient)
        .map(|(i, s)| (i, s.name.as_str()))
        .collect();
    let mut specs: Vec<TensorSpec> = grads
        .iter()
        .map(|(i, name)| TensorSpec::new(*name, DType::F32, &session.states[*i].ty.shape))
        .collect();
    debug_assert!(grads.iter().all(|(_, name)| name.starts_with(GRAD)));
    specs.push(TensorSpec::new("loss", DType::F32, &[1]));
    let mut writer = SafetensorsWriter::create(out, specs, &Default::default())?;
    let order: Vec<TensorSpec> = writer.specs().to_vec();
    let mut values = Vec::new();
    for spec in order {
        if spec.name == "loss" {
            writer.write_f32("loss", &[loss])?;
            continue;
        }
        let Some((i, _)) = grads.iter().find(|(_, name)| *name == spec.name) else { continue };
        values.resize(session.states[*i].ty.shape.elements(), 0.0);
        exec.read_state(StateId(*i as u32), &mut values)?;
        values.iter_mut().for_each(|x| *x /= scale);
        writer.write_f32(&spec.name, &values)?;
    }
    writer.finish()?;
    Ok(())
}
