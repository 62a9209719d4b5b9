//! A Hugging Face folder of a `LlamaForCausalLM`: `config.json` and `model.safetensors`, or shards and their index.

use super::keys::{Keys, SECTION};
use crate::error::RunError;
use crate::family::{ModelDir, OpenOptions};
use crate::weights::{
    Differences, LISTED, MAX_CONFIG_BYTES, STAGING_BYTES, Weights, architectures, listed, read_text, say,
};
use ambitus_ir::StateDecl;
use ambitus_models::orpheus::config::{Config, File};
use ambitus_models::orpheus::weights::{EMBEDDING, HEAD, ignored};
use ambitus_recipe::near::distance;
use ambitus_recipe::recipe::short;
use ambitus_store::{DType, TensorFile};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration's file.
pub(super) const CONFIG: &str = "config.json";
/// Its `architectures`, and `model_type`.
const ARCHITECTURE: &str = "LlamaForCausalLM";
const MODEL_TYPE: &str = "llama";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The most bytes that an index of shards may have.
const MAX_INDEX_BYTES: u64 = 4 << 20;
/// Pairs of names that are compared in search of renamed tensors: a tenth of a second.
const MAX_COMPARED: usize = 1 << 14;
/// What an export copies besides the configuration, where it is there: tokenizer and generation.
const BESIDE: [&str; 9] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// An index of shards, as transformers writes it.
#[derive(Deserialize)]
struct Shards {
    /// The file of every tensor.
    weight_map: Places,
}

/// Returns whether the folder's `config.json` names `LlamaForCausalLM`, or no architecture at all, as those written by hand. If
/// it cannot be read, `open` says why.
pub(super) fn recognises(dir: &Path) -> bool {
    let named = architectures(dir);
    dir.join(CONFIG).is_file()
        && (named.is_empty() || named.iter().any(|name| name == ARCHITECTURE || name == MODEL_TYPE))
}

/// Tensor and file, as they stand: a map would hide a tensor that is named twice.
struct Places(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Places, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Places;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Places, A::Error> {
                let mut places = Vec::new();
                while let Some(place) = map.next_entry()? {
                    places.push(place);
                }
                Ok(Places(places))
            }
        }
        de.deserialize_map(Pairs)
    }
}

pub(super) fn open(dir: &Path, options: OpenOptions) -> Result<ModelDir, RunError> {
    let keys = options.own(&SECTION)?;
    if options.dropout.is_some() {
        return Err(RunError::Usage(format!(
            "dropout: {} holds a Llama, which has none: leave it out",
            dir.display()
        )));
    }
    let path = dir.join(CONFIG);
    let text = read_text(&path, MAX_CONFIG_BYTES, "copy it from the checkpoint's own folder")?;
    let fail = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let file: File = serde_json::from_str(&text).map_err(|e| fail(short(&e.to_string())))?;
    let config = file.config().map_err(|why| fail(why.to_string()))?;
    let beside = BESIDE.iter().filter(|name| dir.join(name).is_file());
    Ok(ModelDir {
        dir: dir.to_owned(),
        family: &super::Orpheus,
        opened: Box::new(Folder { dir: dir.to_owned(), config: config.clone(), keys }),
        model: Arc::new(config),
        wants_checkpointing: false,
        kept: [CONFIG].iter().chain(beside).map(|name| (*name).to_owned()).collect(),
        weights: if options.from_scratch { None } else { Some(open_weights(dir)?) },
    })
}

/// An opened folder.
pub(super) struct Folder {
    pub dir: PathBuf,
    pub config: Config,
    pub keys: Keys,
}

/// Opens `model.safetensors`, else the shards of the index.
fn open_weights(dir: &Path) -> Result<Weights, RunError> {
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

/// Returns every shard that the index names. One message for all that is wrong with them.
fn open_shards(dir: &Path, index: &Path) -> Result<Vec<TensorFile>, RunError> {
    let text = read_text(index, MAX_INDEX_BYTES, "copy it from the checkpoint's own folder")?;
    let shards: Shards = serde_json::from_str(&text)
        .map_err(|e| RunError::Model(format!("{}: {e}; fetch it again", index.display())))?;
    let (mut by_shard, mut named) = (BTreeMap::<&str, Vec<&str>>::new(), BTreeMap::<&str, Vec<&str>>::new());
    for (tensor, shard) in &shards.weight_map.0 {
        by_shard.entry(shard).or_default().push(tensor);
        named.entry(tensor).or_default().push(shard);
    }
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    say(&mut problems, "tensors twice in the index", several(&named));
    for (shard, tensors) in &by_shard {
        let plain =
            Path::new(shard).components().count() == 1 && !shard.contains(['/', '\\']) && *shard != "..";
        if !plain {
            problems.push(format!("`{}` is not a file of this folder", shard.escape_debug()));
            continue;
        }
        let path: PathBuf = dir.join(shard);
        if !path.is_file() {
            let names: Vec<String> = tensors.iter().map(|t| (*t).to_owned()).collect();
            problems.push(format!(
                "{shard} is missing, which holds {} tensors: {}",
                names.len(),
                listed(&names)
            ));
            continue;
        }
        match TensorFile::open(&path) {
            Err(e) => problems.push(e.to_string()),
            Ok(file) => {
                let absent = tensors.iter().filter(|t| !file.contains(t)).map(|t| (*t).to_owned()).collect();
                say(&mut problems, &format!("tensors missing from {shard}"), absent);
                files.push((*shard, file));
            }
        }
    }
    let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (shard, file) in &files {
        for tensor in file.tensors() {
            holders.entry(tensor.name()).or_default().push(shard);
        }
    }
    say(&mut problems, "tensors in two shards", several(&holders));
    if problems.is_empty() {
        return Ok(files.into_iter().map(|(_, file)| file).collect());
    }
    if let Some(more) = problems.len().checked_sub(LISTED).filter(|more| *more > 0) {
        problems.truncate(LISTED);
        problems.push(format!("and {more} more"));
    }
    Err(RunError::Model(format!(
        "{}: does not fit its shards:\n  {}\nfetch the folder again, whole: shards and index of one checkpoint",
        index.display(),
        problems.join("\n  ")
    )))
}

/// Returns those tensors that are in more than one place, with the places.
fn several(places: &BTreeMap<&str, Vec<&str>>) -> Vec<String> {
    let twice = places.iter().filter(|(_, shards)| shards.len() > 1);
    twice.map(|(tensor, shards)| format!("{tensor} (in {})", shards.join(" and "))).collect()
}

/// Compares the files' index with the parameters that the model declares. The head of a tied model is the embedding: a copy
/// of it may be there.
pub(super) fn check(weights: &Weights, cfg: &Config, states: &[StateDecl]) -> Result<(), RunError> {
    let beside = |name: &str| ignored(name) || (cfg.tied && name == HEAD);
    let mut all = Differences::new(weights, states, |_| false, beside);
    let mut problems = Vec::new();
    let renamed = take_renamed(weights, states, &mut all);
    let missing: Vec<String> = all.missing.iter().map(|n| (*n).to_owned()).collect();
    let no_head = missing.iter().any(|n| n == HEAD);
    say(&mut problems, "tensors missing", missing);
    say(&mut problems, "tensors under another name, rename them", renamed);
    say(&mut problems, "tensors that the configuration does not have", all.extra);
    let other_rows = all
        .misshapen
        .iter()
        .find(|(n, have, want)| *n == EMBEDDING && have.len() == 2 && have[1..] == want[1..]);
    let rows = other_rows.map(|(_, have, _)| have[0]);
    let shapes = all.misshapen.into_iter();
    let shapes =
        shapes.map(|(name, have, want)| format!("{name} is {have:?}, the configuration says {want:?}"));
    say(&mut problems, "tensors of another shape", shapes.collect());
    if no_head {
        problems.push(format!(
            "without {HEAD} the head must be the embedding: if this checkpoint is tied, set \"tie_word_embeddings\": true"
        ));
    }
    if let Some(rows) = rows {
        problems.push(format!(
            "the vocabulary does not fit: vocab_size is {}, the embedding has {rows} rows; they must be equal (Orpheus has \
             156939 before fine-tuning and 156940 after)",
            cfg.vocab
        ));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(RunError::Model(format!(
        "{}: does not fit config.json:\n  {}\ncheck that config.json belongs to this checkpoint, and fetch the files again if it does",
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

/// Returns a tied model's own head, where the files hold one that is not the embedding.
pub(super) fn doubts(weights: &Weights, cfg: &Config) -> Result<Vec<String>, RunError> {
    let (true, Some(_), Some(_)) = (cfg.tied, weights.find(EMBEDDING), weights.find(HEAD)) else {
        return Ok(Vec::new());
    };
    if digest(weights, EMBEDDING)? == digest(weights, HEAD)? {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "{}: {HEAD} is not {EMBEDDING}, though config.json ties them (tie_word_embeddings): the embedding is used for both, as \
         transformers does; if the head was trained for itself, set it to false",
        weights.path.display()
    )])
}

/// Returns a hash of a tensor's shape and values, whatever type they are stored in.
fn digest(weights: &Weights, name: &str) -> Result<Option<blake3::Hash>, RunError> {
    let Some((file, name)) = weights.find(name) else { return Ok(None) };
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{:?}", file.get(&name)?.shape()).as_bytes());
    let mut bytes = Vec::new();
    file.read_pieces(&name, &mut vec![0; STAGING_BYTES / 4], |_, piece| {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|x| x.to_le_bytes()));
        hash.update(&bytes);
    })?;
    Ok(Some(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_ir::ops::copy::Space;
    use ambitus_ir::{StateKind, TensorType};
    use ambitus_store::{SafetensorsWriter, TensorSpec};

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
