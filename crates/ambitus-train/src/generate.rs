//! `ambitus generate`: what a model makes of given prompts; for parity with the reference.

use crate::inference::{self, InferenceOptions, Open, Source};
use ambitus_families::error::{RunError, replaces_a_file};
use ambitus_families::generate::{Generated, Settings, Values};
use ambitus_plan::inference::{Held, spare};
use ambitus_store::{DType as FileType, SafetensorsWriter, TensorSpec};
use std::path::Path;
use std::time::Instant;

/// What generation took.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Planned bytes of the process, or of the card.
    pub planned_bytes: u64,
    /// Of these, keys and values of what was read and written.
    pub cache_bytes: u64,
    /// Wall seconds, without loading.
    pub seconds: f64,
    /// Tokens, or frames.
    pub rows: usize,
}

/// Generates what `batch` asks for, and writes it to `out`.
///
/// # Errors
/// A model that does not generate, a batch or model that does not fit, by file and tensor, and a plan above the budget.
pub fn generate(
    source: &dyn Source,
    batch: &Path,
    out: &Path,
    settings: &Settings,
    options: InferenceOptions,
) -> Result<Taken, RunError> {
    let generator = source.generator()?;
    replaces_a_file(out)?;
    let spare = spare(options.device, options.threads, options.memory);
    let mut job = generator.job(batch, settings, spare)?;
    let opened = inference::open(
        source,
        |session, cache| job.programs(session, cache),
        Held { before: job.read_bytes(), then: job.bytes() },
        &options,
        job.less(),
    )?;
    let Open { mut exec, planned_bytes, cache_bytes } = opened;
    source.load(&mut *exec)?;
    let start = Instant::now();
    let made = job.run(&mut *exec)?;
    let seconds = start.elapsed().as_secs_f64();
    let beside = |g: &&Generated| [".logits", ".states"].iter().any(|leaf| g.name.ends_with(leaf));
    let rows = made.iter().filter(|g| !beside(g)).map(|g| g.shape[0]).sum();
    write(out, made)?;
    Ok(Taken { planned_bytes, cache_bytes, seconds, rows })
}

fn write(out: &Path, mut made: Vec<Generated>) -> Result<(), RunError> {
    // The order of the file: wide elements first.
    made.sort_by_key(|g| (matches!(g.values, Values::F32(_)), g.name.clone()));
    let spec = |g: &Generated| {
        let dtype = if matches!(g.values, Values::F32(_)) { FileType::F32 } else { FileType::I64 };
        TensorSpec::new(&g.name, dtype, &g.shape)
    };
    let mut writer = SafetensorsWriter::create(out, made.iter().map(spec).collect(), &Default::default())?;
    for g in &made {
        match &g.values {
            Values::F32(values) => writer.write_f32(&g.name, values)?,
            Values::I64(values) => writer.write_i64(&g.name, values)?,
        }
    }
    writer.finish()?;
    Ok(())
}
