//! Folders of codecs with random weights, in every form, for tests.

use ambitus_models::common::codec::weights::{Tensor, spellings};
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How a convolution's weight is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    Folded,
    New,
    Old,
}

/// (g, v) or, of a tensor without norm, the values.
pub type Values = (Option<Vec<f32>>, Vec<f32>);

/// Names, axes and values.
pub type Held = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Numbers in -1..1 that depend on a name.
pub fn random(name: &str, n: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| draw()).collect()
}

/// Returns g v / |v| over every axis but the first.
pub fn folded(t: &Tensor, (g, mut v): Values) -> Vec<f32> {
    for (row, g) in v.chunks_mut(t.dims[1..].iter().product()).zip(g.iter().flatten()) {
        let norm = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let factor = (f64::from(*g) / norm) as f32;
        row.iter_mut().for_each(|x| *x *= factor);
    }
    v
}

/// Returns what a checkpoint holds of tensors that it calls as `name_of` says.
pub fn held(
    all: &[Tensor],
    values: impl Fn(&Tensor) -> Values,
    name_of: impl Fn(&str) -> String,
    spelling: Spelling,
) -> Held {
    let mut held = Held::new();
    for t in all {
        let name = name_of(&t.name);
        let spelled = match (spelling, t.normed) {
            (Spelling::Folded, _) | (_, false) => &spellings(&name)[0],
            (Spelling::New, true) => &spellings(&name)[1],
            (Spelling::Old, true) => &spellings(&name)[2],
        };
        match (&spelled[..], values(t)) {
            ([g_name, v_name], (Some(g), v)) => {
                let mut norm = vec![1; t.dims.len()];
                norm[0] = t.dims[0];
                held.insert(g_name.clone(), (norm, g));
                held.insert(v_name.clone(), (t.dims.clone(), v));
            }
            (_, values) => drop(held.insert(name, (t.dims.clone(), folded(t, values)))),
        }
    }
    held
}

/// A codec's folder, which is removed with this.
pub struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    /// Writes a configuration and tensors.
    pub fn new(config: &str, held: &Held) -> Folder {
        let folder = Folder { dir: tempfile::tempdir().unwrap() };
        folder.config(config);
        write(&folder.file(), held);
        folder
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join("model.safetensors")
    }

    /// Puts a configuration in place of the one that is there.
    pub fn config(&self, text: &str) {
        std::fs::write(self.path().join("config.json"), text).unwrap();
    }

    /// Changes tensors: name, axes, values; those of which it says no are left out.
    pub fn change(&self, change: impl Fn(&str, &mut Vec<usize>, &mut Vec<f32>) -> bool) {
        let mut held = read(&self.file());
        held.retain(|name, (shape, data)| change(name, shape, data));
        write(&self.file(), &held);
    }

    /// Adds a tensor.
    pub fn add(&self, name: &str) {
        let mut held = read(&self.file());
        held.insert(name.to_owned(), (vec![1], vec![1.0]));
        write(&self.file(), &held);
    }

    /// Cuts the file into two, with an index.
    pub fn shard(&self) {
        let (mut places, mut shards) = (serde_json::Map::new(), [Held::new(), Held::new()]);
        for (i, (name, tensor)) in read(&self.file()).into_iter().enumerate() {
            let shard = format!("model-0000{}-of-00002.safetensors", i % 2 + 1);
            places.insert(name.clone(), shard.into());
            shards[i % 2].insert(name, tensor);
        }
        for (i, held) in shards.iter().enumerate() {
            write(&self.path().join(format!("model-0000{}-of-00002.safetensors", i + 1)), held);
        }
        std::fs::remove_file(self.file()).unwrap();
        let index = serde_json::json!({ "metadata": {}, "weight_map": places });
        std::fs::write(self.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

fn read(path: &Path) -> Held {
    let file = TensorFile::open(path).unwrap();
    let mut scratch = vec![0; 1 << 16];
    let mut one = |t: &ambitus_store::TensorInfo| {
        let mut data = vec![0.0; t.elements()];
        file.read_into(t.name(), &mut data, &mut scratch).unwrap();
        (t.name().to_owned(), (t.shape().to_vec(), data))
    };
    file.tensors().iter().map(&mut one).collect()
}

fn write(path: &Path, held: &Held) {
    let specs = held.iter().map(|(name, (shape, _))| TensorSpec::new(name, DType::F32, shape)).collect();
    let mut writer = SafetensorsWriter::create(path, specs, &BTreeMap::new()).unwrap();
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    order.iter().for_each(|name| writer.write_f32(name, &held[name].1).unwrap());
    writer.finish().unwrap();
}
