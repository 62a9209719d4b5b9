//! Export: the folder that the original project loads.
//!
//! Names, scalars and the file's format are those of the family ([`ExportForm`]), [`dtype`] says in which type weights are written. The model's
//! configuration, vocabulary or tokenizer are copied next to them, unchanged but for that type, where they name it. Adapters are
//! merged into the weights that they adapt; [`adapter`] writes them alone.

pub mod adapter;
pub mod dtype;
pub(crate) mod merge;

use crate::run_dir::{RunDir, frozen};
use crate::saved::{self, Progress};
use ambitus_compile::passes::lora::adapted_module;
use ambitus_families::error::RunError;
use ambitus_families::family::{ExportForm, Exported, Family, Place, Progressed, TorchLayout};
use ambitus_recipe::recipe::Lora;
use ambitus_store::{Checkpoint, DType, Item, PiecedFiles, TensorSpec, TensorWriter, write_atomic};
use dtype::Dtype;
use merge::Adapter;
use std::collections::BTreeMap;
use std::path::Path;

/// The file of weights where a family has no layouts of its own.
const SAFETENSORS: &str = "model.safetensors";

/// Which weights are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The moving average.
    Ema,
    /// The weights themselves.
    Raw,
}

impl Source {
    /// Returns the better weights by the last validation; without validation the average, unless the run kept none.
    pub(crate) fn better(progress: &Progress) -> Source {
        match progress.last {
            Some((raw, Some(ema))) if ema <= raw => Source::Ema,
            _ => Source::Raw,
        }
    }

    /// Returns the word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Source::Ema => "ema",
            Source::Raw => "raw",
        }
    }
}

/// In which form a model is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The whole model, with adapters added in.
    Model,
    /// The adapters alone.
    Adapter,
}

/// What is done to values on their way: `change(first element, values)`.
pub(crate) type Change<'a> = &'a mut dyn FnMut(usize, &mut [f32]);

/// The parameters of a checkpoint, averaged if that is asked for, and whole, whichever rank wrote which part.
pub(crate) struct Parameters {
    model: PiecedFiles,
    ema: Option<PiecedFiles>,
}

impl Parameters {
    pub(crate) fn open(checkpoint: &Checkpoint, source: Source) -> Result<Parameters, RunError> {
        let path = checkpoint.path.display();
        let model = saved::open(checkpoint, saved::MODEL)?
            .ok_or_else(|| RunError::Model(format!("{path}: holds no parameters")))?;
        let ema = match source {
            Source::Raw => None,
            Source::Ema => Some(saved::open(checkpoint, saved::AVERAGES)?.ok_or_else(|| {
                RunError::Usage(format!(
                    "{path}: the run kept no moving average (`ema: false`); export --weights raw"
                ))
            })?),
        };
        Ok(Parameters { model, ema })
    }

    /// Returns the names and shapes, sorted by name.
    fn all(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.model.tensors().map(|t| (t.name(), t.shape()))
    }

    /// Returns the files that hold a parameter, and its name there. Frozen tensors have no average: they never moved.
    fn place(&self, parameter: &str) -> (&PiecedFiles, String) {
        let averaged = format!("ema.{parameter}");
        match &self.ema {
            Some(files) if files.find(&averaged).is_some() => (files, averaged),
            _ => (&self.model, parameter.to_owned()),
        }
    }

    /// Returns a whole parameter.
    fn read(&self, parameter: &str, scratch: &mut [u8]) -> Result<Vec<f32>, RunError> {
        let (files, key) = self.place(parameter);
        let mut values = vec![0.0; files.get(&key)?.elements()];
        files.read_range(&key, 0..values.len(), scratch, |first, x| {
            values[first..first + x.len()].copy_from_slice(x);
        })?;
        Ok(values)
    }

    /// Writes a parameter as the tensor `name`, piece by piece, unless its type cannot hold a value.
    fn copy(
        &self,
        parameter: &str,
        writer: &mut TensorWriter,
        (name, dtype): (&str, Dtype),
        scratch: &mut [u8],
        change: Option<Change<'_>>,
    ) -> Result<(), RunError> {
        let mut written = Ok(());
        self.stream(parameter, scratch, change.unwrap_or(&mut |_, _| {}), &mut |_, values| {
            if written.is_ok() {
                written = dtype
                    .holds(&self.path(), name, values)
                    .and_then(|()| Ok(writer.write_f32(name, values)?));
            }
        })?;
        written
    }

    /// Gives a parameter piece by piece, changed on its way.
    pub(crate) fn stream(
        &self,
        parameter: &str,
        scratch: &mut [u8],
        change: Change<'_>,
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), RunError> {
        let (files, key) = self.place(parameter);
        let mut changed = Vec::new();
        files.read_range(&key, 0..files.get(&key)?.elements(), scratch, |first, piece| {
            changed.clear();
            changed.extend_from_slice(piece);
            change(first, &mut changed);
            take(first, &changed);
        })?;
        Ok(())
    }

    /// Returns the shape of a parameter.
    pub(crate) fn shape(&self, parameter: &str) -> Result<Vec<usize>, RunError> {
        Ok(self.model.get(parameter)?.shape().to_vec())
    }

    /// Returns the bytes that the largest adapter takes while it is added.
    pub(crate) fn adapter_bytes(&self) -> u64 {
        let adapters = self.all().filter(|(name, _)| adapted_module(name).is_some());
        2 * adapters.map(|(_, shape)| 4 * shape.iter().product::<usize>() as u64).max().unwrap_or(0)
    }

    /// Returns the folder of the files, for messages.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.model.path().to_owned()
    }
}

/// What an export needs of a run besides a checkpoint.
pub struct Run<'a> {
    /// Whose model it is.
    pub family: &'static dyn Family,
    /// Its folder, with the model's configuration and vocabulary or tokenizer, all of which go along.
    pub dir: &'a RunDir,
    /// The recipe's adapters.
    pub lora: Option<&'a Lora>,
    /// Which of the family's layouts; absent: its default.
    pub layout: Option<&'a str>,
}

/// Writes the export of a checkpoint to `out`. The file of weights appears when it is whole.
///
/// # Errors
/// A layout that the family does not have; a checkpoint without averages when they are asked for; values that the type cannot hold; kept files that are damaged; files
/// that cannot be read or written.
pub fn export(
    checkpoint: &Checkpoint,
    (source, dtype): (Source, Dtype),
    run: &Run<'_>,
    out: &Path,
) -> Result<(), RunError> {
    let parameters = Parameters::open(checkpoint, source)?;
    let mut kept = run.dir.kept()?;
    std::fs::create_dir_all(out).map_err(|e| RunError::io(out, "cannot create", e))?;
    let form = run.family.export();
    if let Some(made) = form.made(run.layout) {
        let dir = run.dir.model();
        let mut whole = Whole { parameters: &parameters, scratch: scratch() };
        return (made.write)(&progressed(checkpoint, source, &dir)?, &mut whole, out);
    }
    let layout = form.layout(run.layout)?;
    let ExportForm { prefix, scalars, metadata, exact, left_out, config, .. } = form;
    let outer = layout.map_or("", |layout| layout.prefix);
    let config = config.filter(|name| kept.names.iter().any(|kept| kept == name));
    let retyped =
        config.map(|name| dtype::retyped(&run.dir.model().join(name), dtype)).transpose()?.flatten();
    let dtype_of = |weight: &str| if exact.contains(&weight) { Dtype::Fp32 } else { dtype };
    let place = layout.and_then(|layout| layout.place);
    let frozen = match place {
        Some(_) => None,
        None => run.dir.frozen(&kept)?,
    };
    let parts = parts(&parameters, place, (prefix, left_out));
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let specs = parts
        .iter()
        .map(|(name, (weights, shape))| TensorSpec::new(name, dtype_of(&weights[0]).stored(), shape))
        .chain(scalars.iter().map(|(name, dtype)| TensorSpec::new(*name, *dtype, &[])))
        .chain(frozen.iter().flat_map(|file| file.tensors()).map(frozen::spec))
        .map(|spec| TensorSpec { name: format!("{outer}{}", spec.name), ..spec })
        .collect();
    let mut writer = match layout {
        Some(layout) => TensorWriter::create_torch(
            out.join(layout.file),
            specs,
            &dictionary(layout, checkpoint, source, &run.dir.model())?,
        )?,
        None => TensorWriter::create(out.join(SAFETENSORS), specs, &metadata)?,
    };
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    let mut scratch = scratch();
    for name in order {
        let inner = name.strip_prefix(outer).unwrap_or(&name);
        if let Some(file) = frozen.as_ref().filter(|file| file.contains(inner)) {
            frozen::copy(file, inner, &name, &mut writer, &mut scratch)?;
            continue;
        }
        let Some((weights, _)) = parts.get(inner) else {
            let scalar = scalars.iter().find(|(scalar, _)| *scalar == inner);
            match scalar.is_some_and(|(_, dtype)| *dtype == DType::Bool) {
                true => writer.write(&name, &[1])?,
                false => writer.write_i64(&name, &[0])?,
            }
            continue;
        };
        for weight in weights {
            let mut adapter =
                Adapter::read(&parameters, (weight, form.is_by_columns(weight)), run.lora, &mut scratch)?;
            let mut add = |first: usize, piece: &mut [f32]| {
                if let Some(adapter) = &mut adapter {
                    adapter.add(first, piece);
                }
            };
            parameters.copy(weight, &mut writer, (&name, dtype_of(weight)), &mut scratch, Some(&mut add))?;
        }
    }
    writer.finish()?;
    if place.is_some() {
        return Ok(());
    }
    if let (Some(name), Some(text)) = (config, retyped) {
        write_atomic(out.join(name), text.as_bytes())?;
        kept.names.retain(|kept| kept != name);
    }
    run.dir.copy_kept(&kept, out)
}

/// The model's tensors that are one of an export, in their order, and its shape.
type Parts = BTreeMap<String, (Vec<String>, Vec<usize>)>;

/// Returns the tensors of an export by their names, but for frozen ones.
fn parts(
    parameters: &Parameters,
    place: Option<fn(&str) -> Place>,
    (prefix, left_out): (&str, &[&str]),
) -> Parts {
    let mut all: BTreeMap<String, Vec<(usize, String, Vec<usize>)>> = BTreeMap::new();
    let weights =
        parameters.all().filter(|(name, _)| adapted_module(name).is_none() && !left_out.contains(name));
    for (name, shape) in weights {
        let Place { name: there, part: (i, n) } = match place {
            Some(place) => place(name),
            None => Place { name: format!("{prefix}{name}"), part: (0, 1) },
        };
        let mut whole = shape.to_vec();
        if let Some(rows) = whole.first_mut() {
            *rows *= n;
        }
        all.entry(there).or_default().push((i, name.to_owned(), whole));
    }
    let joined = |mut parts: Vec<(usize, String, Vec<usize>)>| {
        parts.sort();
        let shape = parts[0].2.clone();
        (parts.into_iter().map(|(_, name, _)| name).collect(), shape)
    };
    all.into_iter().map(|(name, parts)| (name, joined(parts))).collect()
}

/// Returns what a PyTorch checkpoint holds: the tensors under their key, and what the layout has beside them.
fn dictionary(
    layout: &TorchLayout,
    checkpoint: &Checkpoint,
    source: Source,
    dir: &Path,
) -> Result<Vec<(String, Item)>, RunError> {
    let mut all = vec![(layout.key.to_owned(), Item::Tensors)];
    all.extend((layout.beside)(&progressed(checkpoint, source, dir)?)?);
    Ok(all)
}

/// Returns what an export knows of its run.
fn progressed<'a>(
    checkpoint: &Checkpoint,
    source: Source,
    dir: &'a Path,
) -> Result<Progressed<'a>, RunError> {
    let progress = saved::progress(checkpoint)?;
    let loss = progress.last.map(|(raw, ema)| match source {
        Source::Ema => ema.unwrap_or(raw),
        Source::Raw => raw,
    });
    Ok(Progressed { dir, updates: progress.update, loss })
}

/// Returns room for what is read at once.
fn scratch() -> Vec<u8> {
    vec![0u8; ambitus_families::weights::STAGING_BYTES]
}

/// Parameters that are read whole, for what is made of them.
struct Whole<'a> {
    parameters: &'a Parameters,
    scratch: Vec<u8>,
}

impl Exported for Whole<'_> {
    fn read(&mut self, name: &str) -> Result<Vec<f32>, RunError> {
        self.parameters.read(name, &mut self.scratch)
    }
}
