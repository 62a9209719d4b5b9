//! Folders of weights as transformers writes them: `model.safetensors`, or shards and their index.

use crate::error::RunError;
use crate::weights::{Differences, INDEX, SINGLE, Weights, listed, open_shards, say};
use ambitus_ir::StateDecl;
use ambitus_recipe::near::distance;
use ambitus_store::{DType, TensorFile};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The configuration's file.
pub const CONFIG: &str = "config.json";
/// Pairs of names that are compared in search of renamed tensors: a tenth of a second.
const MAX_COMPARED: usize = 1 << 14;
/// What an export copies besides the configuration, where it is there: tokenizer and generation.
pub const KEPT: [&str; 11] = [
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// Tensors of a model's files that are not trained: encoders and codecs.
pub struct Frozen {
    /// The files.
    pub weights: Weights,
    /// Returns whether a tensor is one of them.
    pub holds: fn(&str) -> bool,
}

/// Opens `model.safetensors`, else the shards of the index. `ignored`: what may have any type, because it is not read.
///
/// # Errors
/// One message for all that is wrong with index and shards; tensors of other types than F32, BF16 and F16.
pub fn open(dir: &Path, ignored: impl Fn(&str) -> bool) -> Result<Weights, RunError> {
    let single = dir.join(SINGLE);
    let (path, files) = if single.is_file() {
        (single.clone(), vec![TensorFile::open(&single)?])
    } else if dir.join(INDEX).is_file() {
        (dir.join(INDEX), open_shards(dir, &dir.join(INDEX))?)
    } else {
        let pickled =
            dir.join("pytorch_model.bin").is_file() || dir.join("pytorch_model.bin.index.json").is_file();
        return Err(RunError::Model(format!(
            "{}: no {SINGLE} and no {INDEX} in this folder; {}, or set `from_scratch: true`",
            dir.display(),
            if pickled {
                "it holds pytorch_model.bin: save it again with `save_pretrained(..., safe_serialization=True)`"
            } else {
                "put the checkpoint there"
            }
        )));
    };
    for file in &files {
        let wrong = |t: &&ambitus_store::TensorInfo| {
            !matches!(t.dtype(), DType::F32 | DType::Bf16 | DType::F16) && !ignored(t.name())
        };
        let others: Vec<String> = file
            .tensors()
            .iter()
            .filter(wrong)
            .map(|t| format!("{} ({})", t.name(), t.dtype().name()))
            .collect();
        let refused = file.refused().iter().map(|(name, why)| format!("{name} ({why})"));
        let others: Vec<String> = others.into_iter().chain(refused).collect();
        if !others.is_empty() {
            return Err(RunError::Model(format!(
                "{}: {} tensors are not F32, BF16 or F16: {}; use the checkpoint that was not quantised",
                file.path().display(),
                others.len(),
                listed(&others)
            )));
        }
    }
    Ok(Weights { files, prefix: String::new(), path })
}

/// Compares the files' index with the parameters that a model declares. `made`: what files need not hold; `beside`: what they may
/// hold besides; `more` adds what a family says of what is missing and misshapen.
///
/// # Errors
/// One message that names every missing, unexpected or misshapen tensor.
pub fn check(
    weights: &Weights,
    states: &[StateDecl],
    made: impl Fn(&str) -> bool,
    beside: impl Fn(&str) -> bool,
    more: impl FnOnce(&Differences<'_>) -> Vec<String>,
) -> Result<(), RunError> {
    compare(CONFIG, weights, states, made, beside, more)
}

/// Compares files' index with the parameters that a model declares by the configuration `config`. See [`check`].
///
/// # Errors
/// As [`check`].
pub fn compare(
    config: &str,
    weights: &Weights,
    states: &[StateDecl],
    made: impl Fn(&str) -> bool,
    beside: impl Fn(&str) -> bool,
    more: impl FnOnce(&Differences<'_>) -> Vec<String>,
) -> Result<(), RunError> {
    let mut all = Differences::new(weights, states, made, beside);
    let mut problems = Vec::new();
    let renamed = take_renamed(weights, states, &mut all);
    let more = more(&all);
    say(&mut problems, "tensors missing", all.missing.iter().map(|n| (*n).to_owned()).collect());
    say(&mut problems, "tensors under another name, rename them", renamed);
    say(&mut problems, "tensors that the configuration does not have", all.extra);
    let shapes = all.misshapen.into_iter();
    let shapes =
        shapes.map(|(name, have, want)| format!("{name} is {have:?}, the configuration says {want:?}"));
    say(&mut problems, "tensors of another shape", shapes.collect());
    problems.extend(more);
    if problems.is_empty() {
        return Ok(());
    }
    Err(RunError::Model(format!(
        "{}: does not fit {config}:\n  {}\ncheck that {config} belongs to this checkpoint, and fetch the files again if it does",
        weights.path.display(),
        problems.join("\n  ")
    )))
}

/// Takes missing tensors that may have been renamed: the file has an unexpected one of the same shape and layer, with nearly
/// the same name. However many names there are, few are compared.
fn take_renamed(weights: &Weights, states: &[StateDecl], all: &mut Differences<'_>) -> Vec<String> {
    let numbers = |name: &str| -> Vec<String> {
        name.split('.').filter(|part| part.bytes().all(|b| b.is_ascii_digit())).map(str::to_owned).collect()
    };
    let mut alike: HashMap<(Vec<String>, Vec<usize>), Vec<String>> = HashMap::new();
    for extra in &all.extra {
        let shape = weights.shape_of(extra).unwrap_or_default();
        alike.entry((numbers(extra), shape)).or_default().push(extra.clone());
    }
    let shapes: HashMap<&str, Vec<usize>> =
        states.iter().map(|s| (s.name.as_str(), s.ty.shape.to_vec())).collect();
    let (mut renamed, mut taken, mut left) = (Vec::new(), HashSet::new(), MAX_COMPARED);
    all.missing.retain(|name| {
        let Some(candidates) =
            shapes.get(name).and_then(|shape| alike.get_mut(&(numbers(name), shape.clone())))
        else {
            return true;
        };
        let near = |other: &String| other.len().abs_diff(name.len()) <= name.len() / 2;
        let compared = candidates.iter().enumerate().filter(|(_, other)| near(other)).take(left);
        let compared: Vec<_> = compared.map(|(i, other)| (distance(other, name), i)).collect();
        left -= compared.len();
        match compared.into_iter().min() {
            Some((away, i)) if away <= name.len() / 2 => {
                let nearest = candidates.swap_remove(i);
                renamed.push(format!("{name} (the file has {nearest})"));
                taken.insert(nearest);
                false
            }
            _ => true,
        }
    });
    all.extra.retain(|extra| !taken.contains(extra));
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_ir::ops::copy::Space;
    use ambitus_ir::{StateKind, TensorType};
    use ambitus_store::{SafetensorsWriter, TensorSpec};
    use std::collections::BTreeMap;

    fn states(names: impl Iterator<Item = String>) -> Vec<StateDecl> {
        let ty = TensorType::new(ambitus_ir::DType::F32, &[2]);
        let one =
            |name| StateDecl { name, ty, kind: StateKind::Parameter, trainable: true, home: Space::Device };
        names.map(one).collect()
    }

    fn weights(names: impl Iterator<Item = String>) -> (tempfile::TempDir, Weights) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let specs = names.map(|name| TensorSpec::new(name, DType::F32, &[2])).collect();
        let mut writer = SafetensorsWriter::create(&path, specs, &BTreeMap::new()).unwrap();
        let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
        order.iter().for_each(|name| writer.write_f32(name, &[0.0; 2]).unwrap());
        writer.finish().unwrap();
        let file = TensorFile::open(&path).unwrap();
        (dir, Weights { files: vec![file], prefix: String::new(), path })
    }

    const PARTS: [&str; 4] = ["self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj"];

    fn of_layers(layers: usize, end: &'static str) -> impl Iterator<Item = String> {
        let of = move |i| PARTS.iter().map(move |part| format!("model.layers.{i}.{part}.{end}"));
        (0..layers).flat_map(of)
    }

    fn compared(file: impl Iterator<Item = String>, states: &[StateDecl]) -> (usize, Vec<String>, usize) {
        let (_dir, weights) = weights(file);
        let mut all = Differences::new(&weights, states, |_| false, |_| false);
        let renamed = take_renamed(&weights, states, &mut all);
        (all.missing.len(), renamed, all.extra.len())
    }

    #[test]
    fn renamed_tensors_are_found_layer_by_layer() {
        let states = states(of_layers(40, "weight"));
        let (missing, renamed, extra) = compared(of_layers(40, "weights"), &states);
        assert_eq!((missing, renamed.len(), extra), (0, states.len(), 0));
        let pair = |i: usize, part| {
            let name = format!("model.layers.{i}.{part}.weight");
            format!("{name} (the file has {name}s)")
        };
        assert!((0..40).all(|i| PARTS.iter().all(|part| renamed.contains(&pair(i, part)))), "{renamed:?}");
    }

    /// Names in the tens of thousands that are all alike: pair by pair that would take hours.
    #[test]
    fn however_many_names_there_are_few_are_compared() {
        let states = states(of_layers(1024, "weight"));
        let file = (0..20_000).map(|i| format!("model.layers.{}.self_attn.x{i:0>30}", i % 8));
        let (missing, renamed, extra) = compared(file, &states);
        assert_eq!((missing + renamed.len(), extra + renamed.len()), (states.len(), 20_000));
    }
}
