//! What a run leaves for eyes and ears: loss, memory over the step, and a held-out clip whose middle was generated.

use crate::error::RunError;
use crate::export::Source;
use crate::metrics::Update;
use crate::pictures::{LossPicture, MelPicture, MemoryPicture, Picture};
use crate::resolve::Resolved;
use crate::run_dir::RunDir;
use crate::sample::{self, Settings};
use crate::session::program;
use ambitus_compile::plan::report;
use ambitus_data::{griffin_lim, load_clip, mel, wav};
use ambitus_exec::executor::Executor;
use ambitus_ir::Phase;
use ambitus_models::f5::config::MELS;
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::collections::BTreeMap;

/// Griffin-Lim rounds: enough for a speaker to be known by.
const ROUNDS: usize = 48;
/// The base model's sample, kept for the pictures at the end.
const BASE_SAMPLE: &str = "base_sample.safetensors";

/// Mel `[N, M]` and text ids of a clip.
type Held = (Vec<f32>, Vec<i32>);

/// The held-out clip that is sampled.
fn held_out(r: &Resolved) -> Result<Option<Held>, RunError> {
    let (Some(sample), Some(_), Some(prepared)) =
        (&r.recipe.sample, r.plan.shape.session.sample, r.data.mel())
    else {
        return Ok(None);
    };
    let named = sample.clip.as_ref().and_then(|name| {
        r.data
            .split
            .validation
            .iter()
            .copied()
            .find(|&i| prepared.index.clips[i].name.contains(name.as_str()))
    });
    let Some(i) = named.or(r.data.split.validation.first().copied()) else { return Ok(None) };
    let clip = load_clip(&prepared.index.path(i))?;
    let capacity = r.plan.shape.session.sample.map_or(0, |c| c.rows / 2);
    let frames = clip.frames().min(capacity);
    let ids = clip.ids.iter().map(|id| *id as i32).collect();
    Ok(Some((clip.mel[..frames * MELS].to_vec(), ids)))
}

fn sampled(r: &Resolved, exec: &mut dyn Executor, name: &str) -> Result<Option<Vec<f32>>, RunError> {
    let (Some((mel, text)), Some(capacity), Some(s)) =
        (held_out(r)?, r.plan.shape.session.sample, &r.recipe.sample)
    else {
        return Ok(None);
    };
    let settings = Settings { steps: s.steps, cfg: s.cfg as f32, seed: r.recipe.seed };
    sample::inpaint(exec, name, capacity, &mel, &text, settings).map(Some)
}

/// Samples from the model that the run starts with, before it changes. Where that overflows fp16 there is no sample.
///
/// # Errors
/// From the executor or the disk.
pub fn sample_base(r: &Resolved, run: &RunDir, exec: &mut dyn Executor) -> Result<(), RunError> {
    let base = sampled(r, exec, program::SAMPLE)?.filter(|mel| mel.iter().all(|x| x.is_finite()));
    let Some(base) = base else { return Ok(()) };
    let shape = [base.len() / MELS, MELS];
    let specs = vec![TensorSpec::new("mel", DType::F32, &shape)];
    let path = run.folder("audio")?.join(BASE_SAMPLE);
    let mut writer = SafetensorsWriter::create(path, specs, &BTreeMap::new())?;
    writer.write_f32("mel", &base)?;
    writer.finish()?;
    Ok(())
}

/// Draws all pictures and writes the sounds.
///
/// # Errors
/// From the executor or the disk.
pub fn pictures(
    r: &Resolved,
    run: &RunDir,
    exec: &mut dyn Executor,
    source: Source,
    log: &[Update],
    validations: &[(u64, f64)],
    base_loss: Option<f64>,
) -> Result<(), RunError> {
    let dir = run.folder("pictures")?;
    let mut points: Vec<(u64, f64)> = base_loss.map(|l| (0, l)).into_iter().collect();
    points.extend(validations);
    let losses: Vec<(u64, f64)> = log.iter().map(|u| (u.update, u.loss)).collect();
    let loss = LossPicture { title: "loss", training: &losses, validation: &[("validation", &points)] };
    loss.save(&dir.join("loss.png"))?;
    let (series, marks) = memory_over_step(r);
    let title = "memory over one micro-batch";
    let memory = MemoryPicture { title, series: &series, budget: Some(r.budget), marks: &marks };
    memory.save(&dir.join("memory.png"))?;

    let Some((truth, _)) = held_out(r)? else { return Ok(()) };
    let name = match source {
        Source::Ema => program::SAMPLE_EMA,
        Source::Raw => program::SAMPLE,
    };
    let Some(tuned) = sampled(r, exec, name)? else { return Ok(()) };
    let audio = run.folder("audio")?;
    let mut base = vec![0.0; truth.len()];
    let path = audio.join(BASE_SAMPLE);
    let mut panels = vec![("true", truth.as_slice())];
    if path.exists() {
        TensorFile::open(&path)?.read_into("mel", &mut base, &mut vec![0; crate::load::STAGING_BYTES])?;
        panels.push(("base", base.as_slice()));
    }
    panels.push(("tuned", tuned.as_slice()));
    let masked = sample::middle(truth.len() / MELS);
    let title = "a held-out clip, its middle generated";
    let frame_seconds = 1.0 / r.plan.shape.model.rows().per_second;
    let mels = MelPicture { title, panels: &panels, masked: masked.0..masked.1, frame_seconds };
    mels.save(&dir.join("mel.png"))?;
    for (name, mel) in panels {
        let wave = griffin_lim::griffin_lim(mel, ROUNDS, r.recipe.seed);
        wav::write_wav(&audio.join(format!("{name}.wav")), &wave, mel::SAMPLE_RATE)?;
    }
    Ok(())
}

/// A category's name and its bytes at every instruction.
type Series = (String, Vec<u64>);

/// Bytes of every category at every instruction of a micro-batch, and where its parts start.
fn memory_over_step(r: &Resolved) -> (Vec<Series>, Vec<(usize, String)>) {
    let Some(micro) = r.plan.planned.program(program::MICRO) else { return Default::default() };
    let usage = report::timeline(micro);
    let c = &r.plan.categories;
    let flat = |bytes: u64| vec![bytes; usage.len()];
    let series = [
        ("process", flat(c.process)),
        ("io", flat(c.io)),
        ("parameters", flat(c.parameters)),
        ("gradients", flat(c.gradients)),
        ("optimizer", flat(c.optimizer)),
        ("ema", flat(c.ema)),
        ("activations", usage.iter().map(|u| u.activations).collect()),
        ("workspace", usage.iter().map(|u| u.workspace).collect()),
    ];
    let backward = micro.program.instrs.iter().position(|i| i.origin.phase == Phase::Backward);
    let mut marks = vec![(0, "forward".to_owned())];
    marks.extend(backward.map(|i| (i, "backward".to_owned())));
    (series.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect(), marks)
}
