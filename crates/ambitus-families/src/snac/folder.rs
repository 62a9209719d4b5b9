//! A codec's folder: `config.json` and its weights, checked before a weight is read.

use crate::error::RunError;
use crate::weights::{MAX_CONFIG_BYTES, STAGING_BYTES, finite, frozen_file, read_text};
use ambitus_exec::executor::Executor;
use ambitus_ir::StateId;
use ambitus_models::snac::config::{Config, File};
use ambitus_models::snac::weights::{Tensor, tensors};
use ambitus_recipe::recipe::short;
use ambitus_store::{TensorFile, open_file};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Names listed in a message before "and n more".
const LISTED: usize = 8;

/// An opened folder.
pub struct Folder {
    /// The codec's shape.
    pub config: Config,
    file: TensorFile,
    /// Every tensor by its state's name, with its names in the file: itself, or (g, v).
    tensors: BTreeMap<String, (Tensor, Vec<String>)>,
}

impl Folder {
    /// Reads the configuration and compares the index of the weights with it.
    ///
    /// # Errors
    /// Names the file and the key, or every missing, extra and misshapen tensor.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let config = read_config(dir)?;
        let path = frozen_file(dir, "put the codec's files there (hubertsiuzdak/snac_24khz)")?;
        let file = TensorFile::open(&path)?;
        let tensors = find(&config, &file)?;
        Ok(Folder { config, file, tensors })
    }

    /// Returns a hash of the configuration and of the file of weights.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        let path = self.file.path();
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        let read = hash.update_reader(open_file(path)?.0).map(drop);
        read.map_err(|e| RunError::io(path, "cannot read", e))?;
        Ok(*hash.finalize().as_bytes())
    }

    /// Writes every state of a session, one tensor at a time: besides the arena, a tensor twice and a staging buffer.
    ///
    /// # Errors
    /// Unreadable files, and values that are not finite.
    pub fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        let names: Vec<String> = exec.planned().session.states.iter().map(|s| s.name.clone()).collect();
        let mut scratch = vec![0u8; STAGING_BYTES];
        let mut read = |name: &str| -> Result<Vec<f32>, RunError> {
            let mut out = vec![0.0; self.file.get(name)?.elements()];
            self.file.read_into(name, &mut out, &mut scratch)?;
            Ok(out)
        };
        for (i, state) in names.iter().enumerate() {
            let Some((tensor, names)) = self.tensors.get(state) else {
                return Err(RunError::Training(format!(
                    "the codec's program has a state {state} of no tensor"
                )));
            };
            let values = match names.as_slice() {
                [g, v] => tensor.fold(Some(&read(g)?), read(v)?),
                names => tensor.fold(None, read(&names[0])?),
            };
            finite(&self.file, &names.join(", "), &values)?;
            exec.write_state(StateId(i as u32), &values)?;
        }
        Ok(())
    }
}

/// Returns whether the folder has a SNAC codec's configuration, right or wrong.
pub fn is_snac(dir: &Path) -> bool {
    let text = read_text(&dir.join("config.json"), MAX_CONFIG_BYTES, "");
    let config = text.ok().and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    config.is_some_and(|config| config.get("vq_strides").is_some())
}

fn read_config(dir: &Path) -> Result<Config, RunError> {
    let path = dir.join("config.json");
    let bad = |why: String| RunError::Model(format!("{}: {why}", path.display()));
    let remedy = "give a folder with a SNAC codec's config.json and weights";
    let text = read_text(&path, MAX_CONFIG_BYTES, remedy)?;
    let file: File = serde_json::from_str(&text)
        .map_err(|e| bad(format!("{}; this is not a SNAC codec's", short(&e.to_string()))))?;
    file.config().map_err(|e| bad(e.to_string()))
}

/// Returns where each tensor is in the file.
fn find(config: &Config, file: &TensorFile) -> Result<BTreeMap<String, (Tensor, Vec<String>)>, RunError> {
    let (mut missing, mut misshapen) = (Vec::new(), Vec::new());
    let (mut found, mut known) = (BTreeMap::new(), BTreeSet::new());
    for tensor in tensors(config) {
        let names = if tensor.normed {
            // The spelling that the file has some of; else the current one, to be named as missing.
            let spelled = Tensor::NORMED.map(|s| tensor.normed_names(s));
            let some = spelled.iter().find(|names| names.iter().any(|n| file.contains(n)));
            some.unwrap_or(&spelled[0]).to_vec()
        } else {
            vec![tensor.name.clone()]
        };
        let dims = if tensor.normed {
            vec![tensor.norm_dims(), tensor.dims.clone()]
        } else {
            vec![tensor.dims.clone()]
        };
        for (name, dims) in names.iter().zip(dims) {
            known.insert(name.clone());
            if !file.contains(name) {
                missing.push(name.clone());
                continue;
            }
            let have = file.get(name)?.shape();
            if have != dims {
                misshapen.push(format!("{name} is {have:?}, the configuration says {dims:?}"));
            }
        }
        found.insert(tensor.name.clone(), (tensor, names));
    }
    let in_file = file.tensors().iter().map(|t| t.name().to_owned());
    let extra: Vec<String> = in_file.filter(|name| !known.contains(name)).collect();
    let mut problems = Vec::new();
    let mut say = |what: &str, names: &[String]| {
        if !names.is_empty() {
            let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
            let more = names.len().saturating_sub(LISTED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            problems.push(format!("{} {what}: {shown}{more}", names.len()));
        }
    };
    say("tensors missing", &missing);
    say("tensors that the configuration does not have", &extra);
    say("tensors of another shape", &misshapen);
    let refused: Vec<String> = file.refused().iter().map(|(key, why)| format!("{key} ({why})")).collect();
    say("entries that were not read", &refused);
    if problems.is_empty() {
        return Ok(found);
    }
    Err(RunError::Model(format!(
        "{}: does not fit config.json:\n  {}\ncheck that config.json belongs to these weights",
        file.path().display(),
        problems.join("\n  ")
    )))
}
