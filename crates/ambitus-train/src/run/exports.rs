//! What a run is exported as: from which of its checkpoints, which weights, in which form and type.

use super::stages;
use crate::export::dtype::Dtype;
use crate::export::{self, Form, Source};
use crate::run_dir::RunDir;
use crate::saved;
use ambitus_families::console::Console;
use ambitus_families::error::RunError;
use ambitus_families::family::{self, Families, Family};
use ambitus_recipe::recipe::Recipe;
use ambitus_store::Checkpoint;
use std::fs::File;
use std::path::Path;

/// What is asked of an export.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Which weights; absent: the better ones by validation.
    pub source: Option<Source>,
    /// In which form.
    pub form: Form,
    /// Of a whole model, in which of its family's layouts; absent: its default.
    pub layout: Option<&'a str>,
    /// In which type; absent: the run's own (see [`dtype`](crate::export::dtype)), or fp32 where that cannot hold a weight.
    pub dtype: Option<Dtype>,
}

/// What was exported.
#[derive(Clone, Copy, Debug)]
pub struct Exported {
    /// Which weights.
    pub source: Source,
    /// In which type.
    pub dtype: Dtype,
}

/// Exports a run's newest checkpoint (`ambitus export`), or its best, where it has a `stop`; of a run in stages, that of the last complete stage.
///
/// # Errors
/// No checkpoint yet, or none that can be used, a layout that the family does not have, no adapters where they are asked for, a weight that the type asked for cannot hold,
/// another type than fp32 for what a next stage begins with, or files that cannot be written. Then no file has changed.
pub fn export_run(
    families: Families,
    root: &Path,
    wanted: Wanted<'_>,
    out: &Path,
    console: &mut dyn Console,
) -> Result<Exported, RunError> {
    let (whole, of_whole) = RunDir::open(families, root)?;
    let (run, recipe) = stages::latest(families, whole.clone(), of_whole.clone())?;
    let of_result = if recipe.stop.is_some() { saved::best } else { saved::newest_good };
    let checkpoint = of_result(&run.checkpoints(), console)?
        .ok_or_else(|| RunError::Usage(format!("{}: has no complete checkpoint yet", root.display())))?;
    let progress = saved::progress(&checkpoint)?;
    let source = wanted.source.unwrap_or_else(|| Source::better(&progress));
    if !run.kept()?.checked {
        let model = run.model();
        console.line(&format!(
            "{}: the run has no hashes of these files, so they are exported unchecked",
            model.display()
        ));
    }
    let narrow = wanted.dtype.filter(|dtype| *dtype != Dtype::Fp32 && wanted.form == Form::Model);
    if let Some(dtype) = narrow.filter(|_| whole.is_stage() && is_same(out, &whole.root.join("export"))) {
        return Err(RunError::Usage(format!(
            "--dtype {dtype}: {} is what the next stage begins with, in fp32; name another folder with --out",
            out.display()
        )));
    }
    let family = family::of(families, &run.model())?;
    let own = match wanted.form {
        Form::Model => own_dtype(&whole, &of_whole, family)?,
        Form::Adapter => Dtype::Fp32,
    };
    let run = export::Run { dir: &run, family, lora: recipe.lora.as_ref(), layout: wanted.layout };
    let dtype = export_from(&run, &checkpoint, (source, wanted.form), (wanted.dtype, own), out, console)?;
    Ok(Exported { source, dtype })
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns the type in which a run's model is exported where none is asked for.
pub(super) fn own_dtype(run: &RunDir, recipe: &Recipe, family: &dyn Family) -> Result<Dtype, RunError> {
    if run.is_stage() { Ok(Dtype::Fp32) } else { Dtype::of_base(&stages::first(run, recipe), family) }
}

/// Writes an export in the type `asked` for, else in the run's `own`, or in fp32 where that cannot hold a weight: a run that ends
/// has an export. Returns the type.
pub(super) fn export_from(
    run: &export::Run<'_>,
    checkpoint: &Checkpoint,
    (source, form): (Source, Form),
    (asked, own): (Option<Dtype>, Dtype),
    out: &Path,
    console: &mut dyn Console,
) -> Result<Dtype, RunError> {
    let is_new = !out.exists();
    std::fs::create_dir_all(out).map_err(|e| RunError::io(out, "cannot create", e))?;
    // Another export into this folder waits for this one instead of writing into its files. On a file system without locks it
    // does not wait.
    let held = File::open(out).map_err(|e| RunError::io(out, "cannot open", e))?;
    let _ = held.lock();
    let write = |dtype| {
        let written = match form {
            Form::Model => export::export(checkpoint, (source, dtype), run, out),
            Form::Adapter => export::adapter::export(checkpoint, (source, dtype), run, out),
        };
        written.map(|()| dtype)
    };
    let mut written = write(asked.unwrap_or(own));
    if let (None, Err(RunError::Model(why))) = (asked, &written)
        && own != Dtype::Fp32
    {
        let said = format!("exported in fp32: {why}");
        written = write(Dtype::Fp32).inspect(|_| console.line(&said));
    }
    if is_new && written.is_err() {
        // Only if nothing is in it.
        let _ = std::fs::remove_dir(out);
    }
    written
}
