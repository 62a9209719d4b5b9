//! A PyTorch checkpoint (`torch.save`, zip form): `data.pkl` describes, `data/<key>` holds the storages.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::DType;
use crate::budget::Budget;
use crate::error::printable;
use crate::pickle::{self, Node, Pickle, Tensor, Value};
use crate::plain::json;
use crate::strides::{dense_order, row_major, rows};
use crate::tensor_file::{Index, Layout, MAX_RANK, Scalar, TensorInfo, check_name};
use crate::zip::{self, Entry};

/// Largest `data.pkl` that is read and written; a training checkpoint of 10 000 tensors takes about 4 MiB.
pub(crate) const MAX_PICKLE: u64 = 16 << 20;
/// Nesting of containers whose tensors are named.
const MAX_DEPTH: usize = 32;
/// Reads that one non-contiguous tensor may take.
const MAX_ROWS: usize = 1 << 20;
/// What Lightning's trainers keep of their options.
const SETTINGS: &str = "hyper_parameters";
/// Name of a tensor that is the whole checkpoint, not a member of a dictionary.
const BARE: &str = "tensor";

/// An error and, where there is a better one than fetching the file again, its remedy.
pub(crate) type Fault = (String, Option<&'static str>);

fn plain(what: String) -> Fault {
    (what, None)
}

/// Reads and checks the index of a file of `len` bytes.
pub(crate) fn read_index(file: &File, len: u64, budget: &mut Budget) -> Result<Index, Fault> {
    let entries = zip::read_entries(file, len, budget).map_err(plain)?;
    let mut pickles =
        entries.iter().filter(|e| e.name.split_once('/').is_some_and(|(_, rest)| rest == "data.pkl"));
    let (Some(entry), None) = (pickles.next(), pickles.next()) else {
        return Err(plain(
            "is a zip archive, but not one that torch.save wrote (no data.pkl, or several)".into(),
        ));
    };
    let root = &entry.name[..entry.name.len() - "/data.pkl".len()];
    const PACKED: &str =
        "is compressed, which PyTorch never does: this file was packed again by something else";
    if !entry.stored {
        return Err((PACKED.into(), Some("unpack it and zip it without compression, or save it again")));
    }
    if entry.len > MAX_PICKLE {
        return Err(plain(format!("has a data.pkl of {} bytes; at most {MAX_PICKLE} are read", entry.len)));
    }
    if let Some(order) = find(&entries, &format!("{root}/byteorder")) {
        let mut text = [0; 6];
        let little = order.stored
            && order.len == 6
            && file.read_exact_at(&mut text, order.start).is_ok()
            && &text == b"little";
        if !little {
            let remedy = "load and save it again on an ordinary (little-endian) machine";
            return Err(("was written on a big-endian machine".into(), Some(remedy)));
        }
    }
    let mut bytes = vec![0; entry.len as usize];
    file.read_exact_at(&mut bytes, entry.start).map_err(|e| plain(format!("cannot read data.pkl: {e}")))?;
    let pickle = pickle::read(&bytes, budget).map_err(plain)?;
    let mut walk = Walk { pickle: &pickle, entries: &entries, root, index: Index::default(), budget };
    walk.top()?;
    let mut index = walk.index;
    index.sort();
    let mut names: Vec<&str> = index.tensors.iter().map(|t| t.name.as_str()).collect();
    names.extend(index.scalars.iter().map(|s| s.0.as_str()));
    names.extend(index.refused.iter().map(|r| r.0.as_str()));
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(plain(format!("has two values of the name `{}`", printable(pair[0]))));
    }
    Ok(index)
}

fn find<'e>(entries: &'e [Entry], name: &str) -> Option<&'e Entry> {
    entries.binary_search_by(|e| e.name.as_str().cmp(name)).ok().map(|i| &entries[i])
}

/// Names everything in the pickle's containers.
struct Walk<'a, 'b> {
    pickle: &'a Pickle<'a>,
    entries: &'a [Entry],
    root: &'a str,
    index: Index,
    budget: &'b mut Budget,
}

impl Walk<'_, '_> {
    fn top(&mut self) -> Result<(), Fault> {
        let Value::Node(id) = self.pickle.root else {
            return Err(plain("holds no dictionary of tensors".into()));
        };
        match &self.pickle.nodes[id as usize] {
            &Node::Opaque { of } => {
                let what = format!("is an object made by `{}`, which is not run", self.pickle.global(of));
                Err((
                    what,
                    Some("save a plain dictionary of tensors (a state dict) where you trust the file"),
                ))
            }
            Node::Dict(_) | Node::List(_) | Node::Tuple(_) => self.container(id, "", 0),
            Node::Tensor(_) => self.member(BARE.into(), self.pickle.root, 0),
            _ => Err(plain("holds no dictionary of tensors".into())),
        }
    }

    fn container(&mut self, id: u32, prefix: &str, depth: usize) -> Result<(), Fault> {
        if depth == MAX_DEPTH {
            return Err(plain(format!("is nested deeper than {MAX_DEPTH} levels")));
        }
        let pickle = self.pickle;
        match &pickle.nodes[id as usize] {
            Node::Dict(items) => {
                for (i, &(key, value)) in items.iter().enumerate() {
                    let key = match key {
                        Value::Str(text) => pickle.text(text).to_string(),
                        Value::Int(n) => n.to_string(),
                        _ => String::new(),
                    };
                    if check_name(&key).is_ok() {
                        let name = self.join(prefix, &key)?;
                        self.member(name, value, depth)?;
                    } else if !self.is_leaf(value) {
                        let name = self.join(prefix, &format!("<entry {i}>"))?;
                        self.refuse(name, "has a key that is no name".into())?;
                    }
                }
            }
            Node::List(items) | Node::Tuple(items) => {
                for (i, &value) in items.iter().enumerate() {
                    // Numbers in lists (learning rates, indices) have no names of use to anyone.
                    if !self.is_leaf(value) {
                        let name = self.join(prefix, &i.to_string())?;
                        self.member(name, value, depth)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true for what holds no tensor.
    fn is_leaf(&self, value: Value) -> bool {
        match value {
            Value::Node(id) => matches!(self.pickle.nodes[id as usize], Node::Global { .. } | Node::Set),
            _ => true,
        }
    }

    fn join(&mut self, prefix: &str, key: &str) -> Result<String, Fault> {
        let name = if prefix.is_empty() { key.to_string() } else { format!("{prefix}.{key}") };
        check_name(&name).map_err(plain)?;
        // The same container may be reached many times; this bounds what it can unfold to.
        self.budget.take(2 * size_of::<TensorInfo>() + name.len() + size_of::<&str>()).map_err(plain)?;
        Ok(name)
    }

    fn member(&mut self, name: String, value: Value, depth: usize) -> Result<(), Fault> {
        if depth == 0 && name == SETTINGS {
            let settings = json(self.pickle, value);
            self.index.settings = settings.map_err(|why| plain(format!("{SETTINGS} {why}")))?;
        }
        let scalar = match value {
            Value::Bool(b) => Scalar::Bool(b),
            Value::Int(n) => Scalar::Int(n),
            Value::Float(x) => Scalar::Float(x),
            Value::Str(text) if depth == 0 => {
                let text = self.pickle.text(text).to_owned();
                self.budget.take(text.len()).map_err(plain)?;
                self.index.metadata.insert(name, text);
                return Ok(());
            }
            Value::None | Value::Str(_) | Value::Ignored => return Ok(()),
            Value::Node(id) => {
                return match &self.pickle.nodes[id as usize] {
                    Node::Dict(_) | Node::List(_) | Node::Tuple(_) => self.container(id, &name, depth + 1),
                    Node::Tensor(tensor) => match self.tensor(tensor) {
                        Ok(found) => {
                            self.budget.take(4 * 8 * found.shape.len()).map_err(plain)?;
                            self.index.tensors.push(TensorInfo { name, ..found });
                            Ok(())
                        }
                        Err(why) => self.refuse(name, why),
                    },
                    &Node::Opaque { of } => {
                        let why = format!("is made by `{}`, which is not run", self.pickle.global(of));
                        self.refuse(name, why)
                    }
                    Node::Storage(_) => self.refuse(name, "is a bare storage, not a tensor".into()),
                    Node::Global { .. } | Node::Set => Ok(()),
                };
            }
        };
        self.index.scalars.push((name, scalar));
        Ok(())
    }

    fn refuse(&mut self, name: String, why: String) -> Result<(), Fault> {
        self.budget.take(2 * size_of::<(String, String)>() + why.len()).map_err(plain)?;
        self.index.refused.push((name, why));
        Ok(())
    }

    /// Checks a tensor against its storage, and the storage against the archive. The name is left empty.
    fn tensor(&self, tensor: &Tensor) -> Result<TensorInfo, String> {
        let kind = self.pickle.global(tensor.storage.kind);
        let dtype = dtype_of(&kind).ok_or_else(|| format!("has the unsupported storage `{kind}`"))?;
        let size = dtype.size() as u64;
        let key = self.pickle.text(tensor.storage.key);
        let entry = find(self.entries, &format!("{}/data/{key}", self.root))
            .ok_or_else(|| format!("refers to storage `{}`, which the file does not have", printable(key)))?;
        if !entry.stored {
            return Err(format!("has the compressed storage `{}`", printable(key)));
        }
        let elements =
            u64::try_from(tensor.storage.elements).map_err(|_| "has a storage of negative size")?;
        if elements.checked_mul(size) != Some(entry.len) {
            return Err(format!(
                "has a storage of {elements} x {size} bytes, but the file holds {}",
                entry.len
            ));
        }
        let (shape, strides) = (self.dims(tensor.shape)?, self.dims(tensor.strides)?);
        let offset = u64::try_from(tensor.offset).map_err(|_| "starts before its storage")?;
        if shape.len() != strides.len() {
            return Err(format!("has {} dimensions and {} strides", shape.len(), strides.len()));
        }
        let start = offset
            .checked_mul(size)
            .and_then(|b| b.checked_add(entry.start))
            .ok_or("has an offset too large")?;
        let info = |shape, layout| TensorInfo { name: String::new(), dtype, shape, start, layout };
        if shape.contains(&0) {
            // Products of the other extents may not fit; nothing is read from an empty tensor.
            let whole = shape.iter().map(|&d| d.max(1)).try_fold(8usize, usize::checked_mul);
            return whole.map(|_| info(shape, Layout::Contiguous)).ok_or("has a shape too large".into());
        }
        let outside = || {
            format!(
                "has shape {shape:?}, strides {strides:?}, offset {offset}: outside its storage of {elements}"
            )
        };
        let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64)).ok_or_else(outside)?;
        let last = shape
            .iter()
            .zip(&strides)
            .try_fold(offset, |last, (&d, &s)| last.checked_add((d as u64 - 1).checked_mul(s as u64)?));
        if last.is_none_or(|last| last >= elements) {
            return Err(outside());
        }
        if count > elements {
            return Err(format!(
                "repeats elements (shape {shape:?}, strides {strides:?}); save it after `.contiguous()`"
            ));
        }
        let mut expected = row_major(&shape);
        for (want, (&d, &s)) in expected.iter_mut().zip(shape.iter().zip(&strides)) {
            if d == 1 {
                *want = s; // the stride of an axis of extent 1 says nothing
            }
        }
        if expected == *strides {
            return Ok(info(shape, Layout::Contiguous));
        }
        let (outer, _) = rows(&shape, &strides);
        if dense_order(&shape, &strides).is_none() && shape[..outer].iter().product::<usize>() > MAX_ROWS {
            return Err(format!(
                "is scattered (shape {shape:?}, strides {strides:?}); save it after `.contiguous()`"
            ));
        }
        Ok(info(shape, Layout::Strided(strides)))
    }

    fn dims(&self, tuple: u32) -> Result<Box<[usize]>, String> {
        let Node::Tuple(items) = &self.pickle.nodes[tuple as usize] else {
            return Err("has a shape that is not a tuple".into());
        };
        if items.len() > MAX_RANK {
            return Err(format!("has {} dimensions; at most {MAX_RANK} are supported", items.len()));
        }
        let dim = |v: &Value| match v {
            Value::Int(n) => usize::try_from(*n).map_err(|_| format!("has a negative extent or stride {n}")),
            _ => Err("has an extent that is not a number".to_string()),
        };
        items.iter().map(dim).collect()
    }
}

fn dtype_of(storage: &str) -> Option<DType> {
    Some(match storage.strip_prefix("torch.")?.strip_suffix("Storage")? {
        "Float" => DType::F32,
        "Double" => DType::F64,
        "Half" => DType::F16,
        "BFloat16" => DType::Bf16,
        "Long" => DType::I64,
        "Int" => DType::I32,
        "Short" => DType::I16,
        "Char" => DType::I8,
        "Byte" => DType::U8,
        "Bool" => DType::Bool,
        _ => return None,
    })
}
