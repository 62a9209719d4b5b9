//! Files of weights: which tensors they hold, and how these differ from what a model declares.

mod shards;

pub use shards::{INDEX, SINGLE, open_frozen, open_shards};

use crate::error::RunError;
use ambitus_compile::passes::lora::adapted_module;
use ambitus_exec::executor::Executor;
use ambitus_ir::{StateDecl, StateId, StateKind};
use ambitus_store::{DType, TensorFile, read_file};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most bytes that a configuration may have.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Bytes through which tensors are read and converted.
pub const STAGING_BYTES: usize = 1 << 20;
/// Names listed in a message before "and n more".
pub(crate) const LISTED: usize = 32;
/// The files that may hold a frozen model's weights, the preferred first.
pub const FROZEN_FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// Files of weights and where the model's tensors are in them.
pub struct Weights {
    /// The indexed files: one, or the shards of one checkpoint, in which no tensor is twice.
    pub files: Vec<TensorFile>,
    /// What stands before the model's tensor names there.
    pub prefix: String,
    /// What they are called in messages.
    pub path: PathBuf,
}

impl Weights {
    /// Returns the file with a model tensor and its name there.
    pub fn find(&self, state: &str) -> Option<(&TensorFile, String)> {
        let name = self.name_of(state);
        let file = self.files.iter().find(|f| f.contains(&name))?;
        Some((file, name))
    }

    /// Returns the name in the files of a model tensor.
    pub fn name_of(&self, state: &str) -> String {
        format!("{}{state}", self.prefix)
    }

    /// Returns the shape in the files of a model tensor.
    pub fn shape_of(&self, state: &str) -> Option<Vec<usize>> {
        let (file, name) = self.find(state)?;
        file.get(&name).ok().map(|t| t.shape().to_vec())
    }

    /// Returns all tensors under the prefix, without it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().flat_map(|f| f.tensors()).filter_map(|t| t.name().strip_prefix(&*self.prefix))
    }

    /// Returns the type of most elements under the prefix, of those that are floats.
    pub fn dtype(&self) -> Option<DType> {
        let all = self.files.iter().flat_map(|f| f.tensors());
        let mut elements = BTreeMap::new();
        for t in all.filter(|t| t.dtype().is_float() && t.name().starts_with(&*self.prefix)) {
            *elements.entry(t.dtype()).or_insert(0) += t.elements();
        }
        elements.into_iter().max_by_key(|(_, n)| *n).map(|(dtype, _)| dtype)
    }
}

/// Returns the file with a frozen model's weights; `remedy` is for when there is none.
///
/// # Errors
/// Says which files are looked for.
pub fn frozen_file(dir: &Path, remedy: &str) -> Result<PathBuf, RunError> {
    let found = FROZEN_FILES.iter().map(|name| dir.join(name)).find(|p| p.is_file());
    let names = FROZEN_FILES.join(" or ");
    found.ok_or_else(|| RunError::Model(format!("{}: no {names} in this folder; {remedy}", dir.display())))
}

/// Writes every parameter of a session from the tensor of its name, piece by piece: besides the arena, two staging buffers.
///
/// # Errors
/// Unreadable files, values that are not finite.
pub fn load_frozen(weights: &Weights, exec: &mut dyn Executor) -> Result<(), RunError> {
    let states = exec.planned().session.states.iter().enumerate();
    let parameters = states.filter(|(_, s)| s.kind == StateKind::Parameter);
    let names: Vec<(usize, String)> = parameters.map(|(i, s)| (i, s.name.clone())).collect();
    let mut scratch = vec![0u8; STAGING_BYTES];
    for (i, state) in &names {
        let Some((file, name)) = weights.find(state) else {
            let why = format!("{}: tensor {state} is missing", weights.path.display());
            return Err(RunError::Model(why));
        };
        let mut result = Ok(());
        file.read_pieces(&name, &mut scratch, |first, values| {
            if result.is_ok() {
                let written =
                    |()| exec.write_state_at(StateId(*i as u32), first, values).map_err(RunError::from);
                result = finite(file, &name, values).and_then(written);
            }
        })?;
        result?;
    }
    Ok(())
}

/// Refuses values of a tensor that are not finite.
///
/// # Errors
/// Names the tensor and the value.
pub fn finite(file: &TensorFile, name: &str, values: &[f32]) -> Result<(), RunError> {
    match values.iter().find(|x| !x.is_finite()) {
        None => Ok(()),
        Some(bad) => Err(RunError::Model(format!(
            "{}: tensor {name} holds or gives {bad}; this checkpoint is broken, fetch it again",
            file.path().display()
        ))),
    }
}

/// How files differ from what a model declares; names are the model's.
#[derive(Default)]
pub struct Differences<'s> {
    /// In the model alone.
    pub missing: Vec<&'s str>,
    /// In the files alone.
    pub extra: Vec<String>,
    /// Name, shape in the file, shape of the model.
    pub misshapen: Vec<(&'s str, Vec<usize>, Vec<usize>)>,
}

impl<'s> Differences<'s> {
    /// Starts a comparison. `made`: what files need not hold; `ignored`: what they may hold besides.
    pub fn new(
        weights: &Weights,
        states: &'s [StateDecl],
        made: impl Fn(&str) -> bool,
        ignored: impl Fn(&str) -> bool,
    ) -> Differences<'s> {
        let mut out = Differences::default();
        // Adapters are made, not read.
        let of_file = |s: &&StateDecl| s.kind == StateKind::Parameter && adapted_module(&s.name).is_none();
        let mut known = std::collections::HashSet::new();
        for s in states.iter().filter(of_file) {
            known.insert(s.name.as_str());
            match weights.shape_of(&s.name) {
                None if made(&s.name) => {}
                None => out.missing.push(&s.name),
                Some(have) if have == *s.ty.shape => {}
                Some(have) => out.misshapen.push((&s.name, have, s.ty.shape.to_vec())),
            }
        }
        let extra = weights.names().filter(|n| !known.contains(n) && !ignored(n));
        out.extra = extra.map(str::to_owned).collect();
        out
    }
}

/// Adds `3 tensors missing: a, b, c` to the problems, where there are any.
pub fn say(problems: &mut Vec<String>, what: &str, names: Vec<String>) {
    if !names.is_empty() {
        problems.push(format!("{} {what}: {}", names.len(), listed(&names)));
    }
}

/// Returns the first names of a list, and how many more there are.
pub fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        n if n > LISTED => format!("{shown} and {} more", n - LISTED),
        _ => shown,
    }
}

/// Returns what a folder's `config.json` says of whose model it is: its `architectures`, else its `model_type`, else its `model`. Nothing
/// where the file is missing, cannot be read or does not say.
pub fn architectures(dir: &Path) -> Vec<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named {
        architectures: Option<Vec<String>>,
        model_type: Option<String>,
        model: Option<Value>,
    }
    let text = read_text(&dir.join("config.json"), MAX_CONFIG_BYTES, "");
    let named: Named =
        text.ok().and_then(|text| serde_json::from_str(&plain_json(&text)).ok()).unwrap_or_default();
    match named.architectures.filter(|all| !all.is_empty()) {
        Some(all) => all,
        None => {
            let model = named.model.and_then(|model| model.as_str().map(str::to_owned));
            named.model_type.or(model).into_iter().collect()
        }
    }
}

/// Returns a text of JSON with `null` for `Infinity`, `-Infinity` and `NaN`, which Python writes.
pub fn plain_json(text: &str) -> String {
    let (mut out, mut rest, mut quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        let word =
            ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !quoted && rest.starts_with(word));
        let taken = word.map_or(c.len_utf8(), str::len);
        match word {
            Some(_) => out.push_str("null"),
            None => out.push(c),
        }
        rest = &rest[taken..];
        match c {
            '"' => quoted = !quoted,
            // What follows is no end of the string.
            '\\' if quoted => {
                if let Some(c) = rest.chars().next() {
                    out.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
            _ => {}
        }
    }
    out
}

/// Reads a text file of at most `most` bytes; `remedy` is for when it is missing.
pub fn read_text(path: &Path, most: u64, remedy: &str) -> Result<String, RunError> {
    let bytes = read_file(path, most).map_err(|e| match e.source.as_ref().map(std::io::Error::kind) {
        Some(std::io::ErrorKind::NotFound) => {
            RunError::Model(format!("{}: is missing; {remedy}", path.display()))
        }
        _ => e.into(),
    })?;
    String::from_utf8(bytes).map_err(|_| RunError::Model(format!("{}: is not UTF-8 text", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_store::{SafetensorsWriter, TensorSpec};

    #[test]
    fn numbers_that_json_does_not_have_are_none() {
        let text = r#"{"a": Infinity, "b": [-Infinity, NaN, 1], "c": "Infinity \" NaN", "d\\": "NaN"}"#;
        let want = r#"{"a": null, "b": [null, null, 1], "c": "Infinity \" NaN", "d\\": "NaN"}"#;
        assert_eq!(plain_json(text), want);
    }

    #[test]
    fn the_type_of_weights_is_that_of_most_elements_under_the_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let all = [
            ("ema_model.w", DType::Bf16, 5),
            ("ema_model.norm", DType::F32, 2),
            ("ema_model.bias", DType::F32, 2),
            ("ema_model.ids", DType::I64, 9),
            ("w", DType::F16, 9),
        ];
        let specs = all.iter().map(|(name, dtype, n)| TensorSpec::new(*name, *dtype, &[*n])).collect();
        let mut writer = SafetensorsWriter::create(&path, specs, &BTreeMap::new()).unwrap();
        for spec in writer.specs().to_vec() {
            writer.write(&spec.name, &vec![0; spec.shape[0] * spec.dtype.size()]).unwrap();
        }
        writer.finish().unwrap();
        let dtype = |prefix: &str| {
            let files = vec![TensorFile::open(&path).unwrap()];
            Weights { files, prefix: prefix.to_owned(), path: path.clone() }.dtype()
        };
        assert_eq!(
            [dtype("ema_model."), dtype("w"), dtype("x")],
            [Some(DType::Bf16), Some(DType::F16), None]
        );
    }
}
