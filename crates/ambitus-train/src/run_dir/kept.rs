//! The files of the model's folder that a run keeps for its exports: configuration, vocabulary or tokenizer, and frozen tensors. They lie in `model/`,
//! next to a manifest with the hashes that they had when the run began, and with the type of the model's weights.

use super::RunDir;
use super::frozen::{self, FROZEN};
use ambitus_families::error::RunError;
use ambitus_families::family::{KeptFile, ModelDir};
use ambitus_families::hugging_face::Frozen;
use ambitus_families::weights::Weights;
use ambitus_store::{DType, Manifest, Shard, StoreError, TensorFile, Written, copy_file, write_atomic};
use serde_json::json;
use std::io::ErrorKind;
use std::path::Path;

/// The most bytes of a kept file: the largest tokenizers have a tenth of it.
const MAX_KEPT_BYTES: u64 = 256 << 20;
/// What to do about a damaged one.
const REMEDY: &str =
    "put the files back that the run began with, or resume the run (`ambitus resume`), which does so";

/// The manifest's key of the weights' type.
const DTYPE: &str = "dtype";

/// The kept files of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Their names in the folder `model`.
    pub names: Vec<String>,
    /// They have the hashes that they began with. Unknown for runs older than these hashes.
    pub checked: bool,
}

impl RunDir {
    /// Keeps what an export needs of the model's folder. Returns a warning if it is not known whether the run began with it.
    ///
    /// # Errors
    /// A file that has changed since the run began, is absurdly large, or cannot be read or written.
    pub fn keep_model(&self, model: &ModelDir) -> Result<Option<String>, RunError> {
        let dir = self.folder("model")?;
        let (before, note) = match self.manifest() {
            Ok(before) => (before, None),
            Err(e) if e.is_io() => return Err(e.into()),
            Err(e) => {
                (None, Some(format!("{}: {}: the model's files are kept anew", e.path.display(), e.what)))
            }
        };
        let weights = model.weights.as_ref();
        let dtype = before.as_ref().and_then(dtype).or_else(|| weights.and_then(Weights::dtype));
        let mut shards = before.map_or_else(Vec::new, |m| m.shards);
        let own = model.kept.iter().map(|name| (name.clone(), KeptFile::At(model.dir.join(name))));
        for (name, file) in own.chain(model.opened.kept()?) {
            let was = shards.iter().position(|s| s.name == name).map(|i| shards.swap_remove(i));
            let accept = |hash: &str| match &was {
                Some(was) if was.blake3 != hash => Err(format!(
                    "is not what it was when the run began; put that back, or move {} away",
                    dir.display()
                )),
                _ => Ok(()),
            };
            let to = dir.join(&name);
            let (bytes, blake3) = match file {
                KeptFile::At(path) => {
                    let copy = copy_file(path, to, MAX_KEPT_BYTES, accept)?;
                    (copy.bytes, copy.blake3)
                }
                KeptFile::Text(text) => {
                    let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
                    accept(&hash).map_err(|what| RunError::Model(format!("{}: {what}", to.display())))?;
                    write_atomic(to, text.as_bytes())?;
                    (text.len() as u64, hash)
                }
            };
            shards.push(Shard { name, bytes, blake3 });
        }
        if let Some(frozen) = model.opened.frozen()? {
            let was = shards.iter().position(|s| s.name == FROZEN).map(|i| shards.swap_remove(i));
            shards.push(keep_frozen(&frozen, was, &dir)?);
        }
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        Manifest { step: 0, shards, meta: json!({ DTYPE: dtype.map(DType::name) }) }.write_to(&dir)?;
        Ok(note)
    }

    /// Returns the files that the run keeps, compared with their hashes.
    ///
    /// # Errors
    /// A file that is damaged or gone, by name.
    pub fn kept(&self) -> Result<Kept, RunError> {
        let dir = self.model();
        let unusable = |e: StoreError| match e.source.as_ref().map(std::io::Error::kind) {
            None | Some(ErrorKind::NotFound) => {
                RunError::Model(format!("{}: {}; {REMEDY}", e.path.display(), e.what))
            }
            _ => e.into(),
        };
        let Some(manifest) = self.manifest().map_err(unusable)? else {
            let names = std::fs::read_dir(&dir).and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
            });
            let names = names.map_err(|e| RunError::io(&dir, "cannot list", e))?;
            return Ok(Kept { names, checked: false });
        };
        if let Some(large) = manifest.shards.iter().find(|s| s.bytes > MAX_KEPT_BYTES && s.name != FROZEN) {
            let (path, bytes) = (dir.join(&large.name), large.bytes);
            return Err(RunError::Model(format!("{}: has {bytes} bytes; {REMEDY}", path.display())));
        }
        manifest.check(&dir).map_err(unusable)?;
        Ok(Kept { names: manifest.shards.into_iter().map(|s| s.name).collect(), checked: true })
    }

    /// Returns the type of most of the weights that the run began with; unknown for runs from random values, and older ones.
    ///
    /// # Errors
    /// A damaged manifest.
    pub fn base_dtype(&self) -> Result<Option<DType>, RunError> {
        Ok(self.manifest()?.as_ref().and_then(dtype))
    }

    /// Returns the frozen tensors that the run keeps.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn frozen(&self, kept: &Kept) -> Result<Option<TensorFile>, RunError> {
        let there = kept.names.iter().any(|name| name == FROZEN);
        Ok(there.then(|| TensorFile::open(self.model().join(FROZEN))).transpose()?)
    }

    /// Copies kept files into a folder, but for the frozen tensors, which stand there in the model's own file.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn copy_kept(&self, kept: &Kept, to: &Path) -> Result<(), RunError> {
        for name in kept.names.iter().filter(|name| *name != FROZEN) {
            copy_file(self.model().join(name), to.join(name), MAX_KEPT_BYTES, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Reads the manifest; `None` for a run older than these hashes.
    fn manifest(&self) -> Result<Option<Manifest>, StoreError> {
        match Manifest::read_from(&self.model()) {
            Err(e) if e.source.as_ref().is_some_and(|e| e.kind() == ErrorKind::NotFound) => Ok(None),
            read => read.map(Some),
        }
    }
}

/// Keeps frozen tensors, unless they are there as they were.
fn keep_frozen(frozen: &Frozen, was: Option<Shard>, dir: &Path) -> Result<Shard, RunError> {
    let path = dir.join(FROZEN);
    let alone = was.map(|was| Manifest { step: 0, shards: vec![was], meta: json!({}) });
    if let Some(was) = alone.as_ref().filter(|alone| alone.check(dir).is_ok()) {
        return Ok(was.shards[0].clone());
    }
    let Written { bytes, blake3, .. } = frozen::write(frozen, &path)?;
    match alone {
        Some(was) if was.shards[0].blake3 != blake3 => Err(RunError::Model(format!(
            "{}: the model's encoders or codec are not what they were when the run began; put its files back, or move {} away",
            frozen.weights.path.display(),
            dir.display()
        ))),
        _ => Ok(Shard { name: FROZEN.to_owned(), bytes, blake3 }),
    }
}

/// Returns the type of weights that a manifest notes.
fn dtype(manifest: &Manifest) -> Option<DType> {
    DType::from_name(manifest.meta[DTYPE].as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_families::family::OpenOptions;
    use ambitus_store::{SafetensorsWriter, TensorFile, TensorSpec};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    /// Returns a model's folder, and a run that keeps its files.
    fn run() -> (tempfile::TempDir, ModelDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/quickstart/model");
        let model = dir.path().join("base");
        fs::create_dir(&model).unwrap();
        for name in ["config.yaml", "vocab.txt"] {
            fs::copy(fixture.join(name), model.join(name)).unwrap();
        }
        let options = OpenOptions { from_scratch: true, ..OpenOptions::default() };
        let model = ModelDir::open(ambitus_families::ALL, &model, options).unwrap();
        let run = RunDir::at(dir.path().join("run"));
        assert_eq!(run.keep_model(&model).unwrap(), None);
        (dir, model, run)
    }

    #[test]
    fn damage_is_found_by_name_and_mended_by_going_on() {
        let (_dir, model, run) = run();
        let names = vec!["config.yaml".to_owned(), "vocab.txt".to_owned()];
        assert_eq!(run.kept().unwrap(), Kept { names, checked: true });
        let changed =
            |path: &Path| fs::write(path, fs::read_to_string(path).unwrap().replacen('k', "j", 1)).unwrap();
        type Damage<'a> = &'a dyn Fn(&Path);
        let damages: [(&str, Damage<'_>); 4] = [
            ("vocab.txt", &changed),
            ("config.yaml", &|path| fs::write(path, fs::read_to_string(path).unwrap() + " ").unwrap()),
            ("config.yaml", &|path| fs::remove_file(path).unwrap()),
            ("manifest.json", &|path| {
                fs::write(path, fs::read_to_string(path).unwrap().replacen('0', "1", 1)).unwrap()
            }),
        ];
        for (name, damage) in damages {
            damage(&run.model().join(name));
            let e = run.kept().unwrap_err();
            assert!(e.exit_code() == 4 && e.to_string().contains(name), "{e}");
            let note = run.keep_model(&model).unwrap();
            assert_eq!(note.is_some(), name == "manifest.json", "{note:?}");
            assert!(run.kept().unwrap().checked);
        }
        // A run of before hashes were kept.
        fs::remove_file(run.model().join("manifest.json")).unwrap();
        assert!(!run.kept().unwrap().checked);
    }

    #[test]
    fn the_type_of_the_weights_is_that_of_the_start() {
        let (dir, mut model, run) = run();
        assert_eq!(run.base_dtype().unwrap(), None);
        let weights = |dtype: DType| {
            let path = dir.path().join(dtype.name());
            let specs = vec![TensorSpec::new("w", dtype, &[2])];
            let mut writer = SafetensorsWriter::create(&path, specs, &BTreeMap::new()).unwrap();
            writer.write_f32("w", &[0.0; 2]).unwrap();
            let files = vec![TensorFile::open(writer.finish().unwrap().path).unwrap()];
            Some(Weights { files, prefix: String::new(), path })
        };
        for dtype in [DType::Bf16, DType::F32] {
            model.weights = weights(dtype);
            run.keep_model(&model).unwrap();
            assert_eq!(run.base_dtype().unwrap(), Some(DType::Bf16));
        }
    }

    #[test]
    fn another_model_is_refused_and_the_kept_one_stays() {
        let (_dir, model, run) = run();
        let vocab = model.dir.join("vocab.txt");
        let was = fs::read(&vocab).unwrap();
        fs::write(&vocab, "another").unwrap();
        let e = run.keep_model(&model).unwrap_err();
        assert!(e.exit_code() == 4 && e.to_string().contains("base/vocab.txt: is not what it was"), "{e}");
        assert_eq!(fs::read(run.model().join("vocab.txt")).unwrap(), was);
        assert!(run.kept().unwrap().checked);
        // Absurd sizes are refused before they are read.
        fs::File::create(&vocab).unwrap().set_len(3 << 30).unwrap();
        let e = run.keep_model(&model).unwrap_err();
        assert!(e.exit_code() == 4 && e.to_string().contains("3221225472 bytes"), "{e}");
    }

    #[test]
    fn a_manifest_leads_nowhere_else() {
        let (dir, _, run) = run();
        fs::write(dir.path().join("secret"), "x").unwrap();
        let hash = blake3::hash(b"x").to_hex().to_string();
        let shard = |name: &str, bytes| Shard { name: name.to_owned(), bytes, blake3: hash.clone() };
        for bad in [
            shard("../../secret", 1),
            shard("/etc/passwd", 1),
            shard("..", 1),
            shard("", 1),
            shard("vocab.txt", 1 << 40),
        ] {
            let manifest = Manifest { step: 0, shards: vec![bad.clone()], meta: serde_json::Value::Null };
            manifest.write_to(&run.model()).unwrap();
            let e = run.kept().unwrap_err();
            assert_eq!(e.exit_code(), 4, "{bad:?}: {e}");
        }
        let path: PathBuf = run.model().join("manifest.json");
        for bad in ["[]".to_owned(), "[".repeat(100_000), "\0".to_owned()] {
            fs::write(&path, &bad).unwrap();
            let e = run.kept().unwrap_err();
            assert!(e.exit_code() == 4 && e.to_string().contains("manifest.json: "), "{e}");
        }
    }
}
