//! The adapters of a run alone, as Hugging Face's PEFT stores them: `adapter_model.safetensors` with
//! `base_model.model.<module>.lora_A.weight` `[r, In]` and `lora_B.weight` `[Out, r]`, and `adapter_config.json`.
//!
//! What the recipe trained whole besides them (`also_train`) is written as `modules_to_save`, by module. PEFT gives each such
//! module its own weights, so a tied embedding is written for both it and the head: else the head would stay the base's.

use super::dtype::Dtype;
use super::{Parameters, Run, Source};
use ambitus_compile::passes::lora::adapted_module;
use ambitus_families::error::RunError;
use ambitus_families::family::OpenOptions;
use ambitus_store::{Checkpoint, SafetensorsWriter, TensorSpec, write_atomic};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What PEFT puts before the names of the model it wraps.
const PREFIX: &str = "base_model.model.";

/// Writes the adapters of a checkpoint to `out`.
///
/// # Errors
/// A run without adapters, biases trained in layers that have adapters, values that the type cannot hold, and files that cannot
/// be read or written.
pub fn export(
    checkpoint: &Checkpoint,
    (source, dtype): (Source, Dtype),
    run: &Run<'_>,
    out: &Path,
) -> Result<(), RunError> {
    let lora = run.lora.ok_or_else(|| {
        RunError::Usage(
            "the run trained no adapters (no `lora` in its recipe): export without --adapter".to_owned(),
        )
    })?;
    let parameters = Parameters::open(checkpoint, source)?;
    let adapted: BTreeSet<&str> = parameters.all().filter_map(|(name, _)| adapted_module(name)).collect();
    let module = |name: &str| name.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
    let also = lora.adapters().also_train;
    let base = || parameters.all().filter(|(name, _)| adapted_module(name).is_none());
    let mut saved: BTreeSet<String> = base()
        .filter(|(name, _)| also.iter().any(|p| p.matches(name)))
        .map(|(name, _)| module(name))
        .collect();
    if let Some(both) = saved.iter().find(|m| adapted.contains(m.as_str())) {
        return Err(RunError::Usage(format!(
            "`lora.also_train` trained the bias of {both}, which has an adapter: PEFT's layout cannot hold both; \
             export without --adapter, which writes the merged model"
        )));
    }
    run.dir.kept()?;
    let shape = OpenOptions { from_scratch: true, ..OpenOptions::default() };
    let aliases = run.family.open(&run.dir.model(), shape)?.model.aliases();
    let kept = |name: &str| adapted_module(name).is_some() || saved.contains(&module(name));
    // What is written, by the name it gets; of a second name, the same tensor again.
    let mut written: BTreeMap<String, &str> = BTreeMap::new();
    let mut specs = Vec::new();
    for (name, shape) in parameters.all().filter(|(name, _)| kept(name)) {
        let others = aliases.iter().filter(|(one, _)| *one == name).map(|(_, other)| *other);
        for stored in std::iter::once(name).chain(others) {
            written.insert(format!("{PREFIX}{stored}"), name);
            specs.push(TensorSpec::new(format!("{PREFIX}{stored}"), dtype.stored(), shape));
        }
    }
    std::fs::create_dir_all(out).map_err(|e| RunError::io(out, "cannot create", e))?;
    // What Hugging Face's readers ask for.
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = SafetensorsWriter::create(out.join("adapter_model.safetensors"), specs, &metadata)?;
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    let mut scratch = vec![0u8; ambitus_families::weights::STAGING_BYTES];
    for name in &order {
        parameters.copy(written[name], &mut writer, (name, dtype), &mut scratch, None)?;
    }
    writer.finish()?;
    let seconds = aliases.iter().filter(|(one, _)| saved.contains(&module(one)));
    let seconds: Vec<String> = seconds.map(|(_, other)| module(other)).collect();
    saved.extend(seconds);
    let alpha = lora.alpha();
    let form = run.family.export();
    let by_columns = |module: &str| form.is_by_columns(&format!("{module}.weight"));
    let config = serde_json::json!({
        "peft_type": "LORA",
        "task_type": null,
        "base_model_name_or_path": null,
        "inference_mode": true,
        "r": lora.rank,
        // Whole numbers as such, as PEFT writes them.
        "lora_alpha": if alpha.fract() == 0.0 { serde_json::json!(alpha as u64) } else { serde_json::json!(alpha) },
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rslora,
        "use_dora": false,
        "fan_in_fan_out": !adapted.is_empty() && adapted.iter().all(|module| by_columns(module)),
        "bias": "none",
        "target_modules": adapted,
        "modules_to_save": (!saved.is_empty()).then_some(&saved),
    });
    write_atomic(out.join("adapter_config.json"), format!("{config:#}\n").as_bytes())?;
    Ok(())
}
