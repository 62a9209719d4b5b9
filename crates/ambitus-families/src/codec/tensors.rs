//! The tensors of a convolutional codec in its files: found, compared with what it should have, and read into an arena.

use crate::error::RunError;
use crate::weights::{STAGING_BYTES, Weights, finite, say};
use ambitus_exec::executor::Executor;
use ambitus_ir::StateId;
use ambitus_models::common::codec::weights::Tensor;
use ambitus_store::TensorFile;
use std::collections::{BTreeMap, BTreeSet};

/// A codec's tensors, each where it was found.
pub struct Tensors {
    weights: Weights,
    /// By the state's name, with the names in the files after the prefix: of the tensor, or of (g, v).
    found: BTreeMap<String, (Tensor, Vec<String>)>,
}

impl Tensors {
    /// Finds every tensor of a codec under the prefix. `name_of`: what the files call a state; `source`: what says which there are, for
    /// messages.
    ///
    /// # Errors
    /// What is missing, misshapen, too much or not readable, each in one line.
    pub fn find(
        weights: Weights,
        all: Vec<Tensor>,
        name_of: impl Fn(&str) -> String,
        source: &str,
    ) -> Result<Tensors, Vec<String>> {
        Tensors::find_among(weights, all, name_of, |_| false, source)
    }

    /// Finds every tensor of a part among others: `ignored` says what the files may hold besides. See [`Tensors::find`].
    ///
    /// # Errors
    /// As [`Tensors::find`].
    pub fn find_among(
        weights: Weights,
        all: Vec<Tensor>,
        name_of: impl Fn(&str) -> String,
        ignored: impl Fn(&str) -> bool,
        source: &str,
    ) -> Result<Tensors, Vec<String>> {
        let (mut missing, mut misshapen) = (Vec::new(), Vec::new());
        let (mut found, mut known) = (BTreeMap::new(), BTreeSet::new());
        for tensor in all {
            let mut spellings = tensor.spellings(&name_of(&tensor.name));
            // The spelling that the files have some of; else the plain one, to be named as missing.
            let some = |names: &Vec<(String, _)>| names.iter().any(|(name, _)| weights.find(name).is_some());
            let spelled = spellings.swap_remove(spellings.iter().position(some).unwrap_or(0));
            for (name, dims) in &spelled {
                known.insert(name.clone());
                match weights.shape_of(name) {
                    None => missing.push(weights.name_of(name)),
                    Some(have) if have == *dims => {}
                    Some(have) => misshapen
                        .push(format!("{} is {have:?}, {source} says {dims:?}", weights.name_of(name))),
                }
            }
            let names = spelled.into_iter().map(|(name, _)| name).collect();
            found.insert(tensor.name.clone(), (tensor, names));
        }
        let extra = weights.names().filter(|name| !known.contains(*name) && !ignored(name));
        let extra = extra.map(|name| weights.name_of(name)).collect();
        let refused = weights.files.iter().flat_map(TensorFile::refused);
        let refused = refused.filter(|(key, _)| key.starts_with(&*weights.prefix));
        let refused = refused.map(|(key, why)| format!("{key} ({why})")).collect();
        let mut problems = Vec::new();
        say(&mut problems, "tensors missing", missing);
        say(&mut problems, &format!("tensors that {source} does not have"), extra);
        say(&mut problems, "tensors of another shape", misshapen);
        say(&mut problems, "entries that were not read", refused);
        if problems.is_empty() { Ok(Tensors { weights, found }) } else { Err(problems) }
    }

    /// Returns the files.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Adds the name and the values of every tensor to a hash.
    ///
    /// # Errors
    /// Unreadable files.
    pub fn hash(&self, hash: &mut blake3::Hasher) -> Result<(), RunError> {
        let (mut scratch, mut bytes) = (vec![0u8; STAGING_BYTES], Vec::new());
        for name in self.found.values().flat_map(|(_, names)| names) {
            hash.update(name.as_bytes());
            let (file, name) = self.file_of(name)?;
            file.read_pieces(&name, &mut scratch, |_, values| {
                bytes.clear();
                bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
                hash.update(&bytes);
            })?;
        }
        Ok(())
    }

    /// Writes every state of a session, some rows of a tensor at a time: besides the arena, a few megabytes.
    ///
    /// # Errors
    /// Unreadable files, and values that are not finite.
    pub fn load(&self, exec: &mut dyn Executor) -> Result<(), RunError> {
        let states: Vec<String> = exec.planned().session.states.iter().map(|s| s.name.clone()).collect();
        for (i, state) in states.iter().enumerate() {
            let Some((tensor, names)) = self.found.get(state) else {
                let why = format!("the codec's program has a state {state} of no tensor");
                return Err(RunError::Training(why));
            };
            self.load_one(exec, StateId(i as u32), tensor, names)?;
        }
        Ok(())
    }

    fn load_one(
        &self,
        exec: &mut dyn Executor,
        state: StateId,
        tensor: &Tensor,
        names: &[String],
    ) -> Result<(), RunError> {
        let mut scratch = vec![0u8; STAGING_BYTES];
        let (rows, row) = (tensor.dims[0], tensor.row());
        let (mut g, mut v) = (Vec::new(), Vec::new());
        let (norm, name) = match names {
            [norm, name] => (Some(norm), name),
            names => (None, &names[0]),
        };
        if let Some(norm) = norm {
            let (file, norm) = self.file_of(norm)?;
            g.resize(rows, 0.0);
            file.read_into(&norm, &mut g, &mut scratch)?;
        }
        let (file, name) = self.file_of(name)?;
        for first in (0..rows).step_by(tensor.rows_at_once()) {
            let end = rows.min(first + tensor.rows_at_once());
            v.clear();
            file.read_range(&name, first * row..end * row, &mut scratch, |_, values| {
                v.extend_from_slice(values);
            })?;
            let mut result = Ok(());
            tensor.fold_rows(first, norm.map(|_| &g[first..end]), &mut v, |at, values| {
                if result.is_ok() {
                    let write = |()| exec.write_state_at(state, at, values).map_err(RunError::from);
                    result = finite(file, &names.join(", "), values).and_then(write);
                }
            });
            result?;
        }
        Ok(())
    }

    fn file_of(&self, name: &str) -> Result<(&TensorFile, String), RunError> {
        self.weights.find(name).ok_or_else(|| {
            let (path, name) = (self.weights.path.display(), self.weights.name_of(name));
            RunError::Model(format!("{path}: tensor {name} is missing"))
        })
    }
}
