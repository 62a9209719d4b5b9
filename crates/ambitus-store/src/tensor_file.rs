//! A file of tensors: its index, and bounded positional reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::budget::Budget;
use crate::dtype::{decode_f32, decode_i64};
use crate::error::printable;
use crate::files::open_file;
use crate::strides::{Odometer, dense_order, row_major, rows};
use crate::{DType, Result, StoreError, safetensors, torch};

/// A good size for the staging buffer of the reading methods: large enough that the disk is the limit.
pub const DEFAULT_SCRATCH_BYTES: usize = 1 << 20;

/// Dimensions of a tensor, at most.
pub(crate) const MAX_RANK: usize = 16;
/// Bytes of a tensor's name, at most.
pub(crate) const MAX_NAME: usize = 1024;

/// What kind of file this is; recognised by content, not by extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A safetensors file.
    Safetensors,
    /// A zip archive with a pickle, as `torch.save` writes.
    TorchZip,
}

/// A Python number stored next to the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `int` that fits 64 bits.
    Int(i64),
    /// `float`.
    Float(f64),
    /// `bool`.
    Bool(bool),
}

/// How a tensor's elements lie in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Row-major, without gaps.
    Contiguous,
    /// Distance of neighbours along each axis, in elements.
    Strided(Box<[usize]>),
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[usize]>,
    /// Absolute place in the file of element 0.
    pub(crate) start: u64,
    pub(crate) layout: Layout,
}

impl TensorInfo {
    /// Returns the name; in PyTorch files the keys of nested containers joined by dots.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the stored elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the extents, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes of the elements as stored.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}

/// What a format's reader finds in a file.
#[derive(Default)]
pub(crate) struct Index {
    pub tensors: Vec<TensorInfo>,
    /// Name (or key) and reason of what is in the file but cannot be read.
    pub refused: Vec<(String, String)>,
    pub scalars: Vec<(String, Scalar)>,
    pub metadata: BTreeMap<String, String>,
    /// Null where there are none.
    pub settings: serde_json::Value,
}

impl Index {
    /// Sorts by name; lookups are binary searches.
    pub fn sort(&mut self) {
        self.tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.refused.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        self.scalars.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    }
}

/// An open file of tensors. Reading never moves a cursor, so one file may be read from several threads.
pub struct TensorFile {
    file: File,
    path: PathBuf,
    len: u64,
    format: Format,
    index: Index,
}

impl TensorFile {
    /// Opens a safetensors file or a PyTorch zip checkpoint and checks its whole index against its real length.
    /// No tensor data is read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |doing| move |e| StoreError::io(path, doing, e);
        let (file, len) = open_file(path)?;
        let mut magic = [0u8; 9];
        let have = len.min(9) as usize;
        file.read_exact_at(&mut magic[..have], 0).map_err(io("cannot read"))?;
        let mut budget = Budget::for_file(len);
        let fetch = "the file is damaged or not what it claims; fetch or export it again";
        let (format, index) = match &magic[..have] {
            [b'P', b'K', 3, 4, ..] => {
                let index = torch::read_index(&file, len, &mut budget)
                    .map_err(|(what, remedy)| StoreError::new(path, what, remedy.unwrap_or(fetch)))?;
                (Format::TorchZip, index)
            }
            // Before pickles: a header of 0x180 bytes begins as they do.
            [.., b'{'] if have == 9 => {
                let index = safetensors::read_index(&file, len, &mut budget)
                    .map_err(|what| StoreError::new(path, what, fetch))?;
                (Format::Safetensors, index)
            }
            [0x80, 0..=5, ..] => {
                return Err(StoreError::new(
                    path,
                    "is a PyTorch checkpoint in the format from before version 1.6, which is one executable pickle",
                    "convert it where you trust it: `torch.save(torch.load(path, weights_only=True), new_path)` in PyTorch 2",
                ));
            }
            _ => {
                return Err(StoreError::new(
                    path,
                    "is neither a safetensors file nor a PyTorch zip checkpoint",
                    "if it came from a download, look whether it is a web page or a Git LFS pointer, and fetch it again",
                ));
            }
        };
        Ok(Self { file, path: path.into(), len, format, index })
    }

    /// Returns the file with other names: `parts(name)` are those of a tensor's equal parts along its first axis, in order. A tensor without
    /// any, or that does not have such parts, keeps its own.
    #[must_use]
    pub fn renamed(mut self, parts: impl Fn(&str) -> Vec<String>) -> Self {
        let mut tensors = Vec::with_capacity(self.index.tensors.len());
        for tensor in std::mem::take(&mut self.index.tensors) {
            let names = parts(&tensor.name);
            let rows = tensor.shape.first().copied().unwrap_or(1);
            if names.is_empty()
                || !rows.is_multiple_of(names.len())
                || (tensor.shape.is_empty() && names.len() > 1)
            {
                tensors.push(tensor);
                continue;
            }
            let each = rows / names.len();
            let row = match &tensor.layout {
                Layout::Contiguous => tensor.elements() / rows.max(1),
                Layout::Strided(strides) => strides.first().copied().unwrap_or(0),
            };
            for (i, name) in names.into_iter().enumerate() {
                let mut part = TensorInfo { name, ..tensor.clone() };
                part.start += (i * each * row * tensor.dtype.size()) as u64;
                if let Some(rows) = part.shape.first_mut() {
                    *rows = each;
                }
                tensors.push(part);
            }
        }
        self.index.tensors = tensors;
        self.index.sort();
        self
    }

    /// Returns the file as if it held only the tensors whose names `keep` takes.
    #[must_use]
    pub fn keeping(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.index.tensors.retain(|tensor| keep(&tensor.name));
        self
    }

    /// Returns where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length in bytes when it was opened.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// Returns the kind of file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the strings of a safetensors file's `__metadata__`, or those that a PyTorch checkpoint holds at its top: audiocraft's
    /// `xp.cfg` is such a one.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.index.metadata
    }

    /// Returns the options that Lightning's trainers keep in a checkpoint, its `hyper_parameters`: tuples as lists, objects as null.
    pub fn settings(&self) -> Option<&serde_json::Value> {
        Some(&self.index.settings).filter(|settings| settings.is_object())
    }

    /// Returns every readable tensor, sorted by name. See [`Self::refused`] for the others.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.index.tensors
    }

    /// Returns what is in the file but cannot be read: name or key, and why. Sorted by name.
    pub fn refused(&self) -> &[(String, String)] {
        &self.index.refused
    }

    /// Returns every Python number, sorted by name.
    pub fn scalars(&self) -> &[(String, Scalar)] {
        &self.index.scalars
    }

    /// Returns the Python number of that name.
    pub fn scalar(&self, name: &str) -> Option<Scalar> {
        let at = self.index.scalars.binary_search_by(|(n, _)| n.as_str().cmp(name)).ok()?;
        Some(self.index.scalars[at].1)
    }

    /// Returns true if there is a tensor of that name and it can be read.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.index.tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        Some(&self.index.tensors[at])
    }

    /// Returns the tensor of that name, or an error that says why there is none.
    pub fn get(&self, name: &str) -> Result<&TensorInfo> {
        if let Some(info) = self.find(name) {
            return Ok(info);
        }
        let parent =
            |key: &str| name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if let Some((key, why)) = self.index.refused.iter().find(|(key, _)| parent(key)) {
            return Err(self.refusal(key, why));
        }
        let error =
            StoreError::new(&self.path, "is not in the file", "check that this is the file of this model");
        Err(error.of(name))
    }

    fn refusal(&self, key: &str, why: &str) -> StoreError {
        StoreError::new(
            &self.path,
            why,
            "save a plain dictionary of tensors (a state dict) and use that file",
        )
        .of(key)
    }

    /// Returns the first components of all names, each once, sorted: in a PyTorch training checkpoint its top-level keys.
    pub fn top_level(&self) -> Vec<&str> {
        let tensors = self.index.tensors.iter().map(|t| &t.name);
        let names = tensors
            .chain(self.index.scalars.iter().map(|s| &s.0))
            .chain(self.index.refused.iter().map(|r| &r.0));
        let mut heads: Vec<&str> = names.map(|n| n.split('.').next().unwrap_or_default()).collect();
        heads.sort_unstable();
        heads.dedup();
        heads
    }

    /// Returns the tensors under `section.`, with the rest of their name; `""` is the whole file.
    ///
    /// Fails if anything in the section cannot be read, naming it: a partial section is never taken for a whole one.
    pub fn section<'a>(&'a self, section: &str) -> Result<Vec<(&'a str, &'a TensorInfo)>> {
        let rest = |name: &'a str| match section {
            "" => Some(name),
            _ => name.strip_prefix(section)?.strip_prefix('.'),
        };
        if let Some((key, why)) = self.index.refused.iter().find(|(k, _)| k == section || rest(k).is_some()) {
            return Err(self.refusal(key, why));
        }
        Ok(self.index.tensors.iter().filter_map(|t| Some((rest(&t.name)?, t))).collect())
    }

    /// Reads a tensor as f32, row-major: floats and integers round to nearest, booleans are 0 and 1.
    ///
    /// `out` has the tensor's number of elements; `scratch` (at least 8 bytes, see [`DEFAULT_SCRATCH_BYTES`]) is the
    /// only memory used.
    pub fn read_into(&self, name: &str, out: &mut [f32], scratch: &mut [u8]) -> Result<()> {
        let info = self.get(name)?;
        self.check_len(info, out.len(), info.elements())?;
        self.gather(info, scratch, |i, bytes| {
            decode_f32(info.dtype, bytes, &mut out[i..i + bytes.len() / info.dtype.size()]);
        })
    }

    /// Reads a tensor as f32 in pieces, in row-major order: `take(first element, values)`, at most as many values as
    /// `scratch` holds bytes. Tensors that lie scattered in the file come in one piece, whole.
    pub fn read_pieces(&self, name: &str, scratch: &mut [u8], take: impl FnMut(usize, &[f32])) -> Result<()> {
        self.read_range(name, 0..self.get(name)?.elements(), scratch, take)
    }

    /// Reads the elements `range` in pieces, and of the file only their bytes (of tensors that lie scattered, all). See
    /// [`Self::read_pieces`].
    pub fn read_range(
        &self,
        name: &str,
        range: Range<usize>,
        scratch: &mut [u8],
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let info = self.get(name)?;
        if range.end > info.elements() {
            return self.check_len(info, range.end, info.elements());
        }
        let mut piece = Vec::new();
        if info.layout != Layout::Contiguous {
            piece.resize(info.elements(), 0.0);
            self.read_into(name, &mut piece, scratch)?;
            take(range.start, &piece[range]);
            return Ok(());
        }
        let size = info.dtype.size();
        let part = TensorInfo {
            shape: [range.len()].into(),
            start: info.start + (range.start * size) as u64,
            ..info.clone()
        };
        self.gather(&part, scratch, |first, bytes| {
            piece.resize(bytes.len() / size, 0.0);
            decode_f32(info.dtype, bytes, &mut piece);
            take(range.start + first, &piece);
        })
    }

    /// Reads a tensor of integers or booleans as i64; a float tensor is an error.
    pub fn read_i64(&self, name: &str, out: &mut [i64], scratch: &mut [u8]) -> Result<()> {
        let info = self.get(name)?;
        if info.dtype.is_float() {
            return Err(self.wrong_type(info, "an integer or boolean type"));
        }
        self.check_len(info, out.len(), info.elements())?;
        self.gather(info, scratch, |i, bytes| {
            decode_i64(info.dtype, bytes, &mut out[i..i + bytes.len() / info.dtype.size()]);
        })
    }

    /// Reads a tensor of type U8 or BOOL.
    pub fn read_u8(&self, name: &str, out: &mut [u8], scratch: &mut [u8]) -> Result<()> {
        let info = self.get(name)?;
        if !matches!(info.dtype, DType::U8 | DType::Bool) {
            return Err(self.wrong_type(info, "U8 or BOOL"));
        }
        self.read_bytes(name, out, scratch)
    }

    /// Reads a tensor's elements as stored (little-endian), row-major; `out` has [`TensorInfo::bytes`] bytes.
    pub fn read_bytes(&self, name: &str, out: &mut [u8], scratch: &mut [u8]) -> Result<()> {
        let info = self.get(name)?;
        self.check_len(info, out.len(), info.bytes())?;
        if info.layout == Layout::Contiguous {
            return self.read_at(info, info.start, out);
        }
        let size = info.dtype.size();
        self.gather(info, scratch, |i, bytes| out[i * size..][..bytes.len()].copy_from_slice(bytes))
    }

    /// Reads a tensor's elements as stored (little-endian) in pieces, in row-major order, through `scratch`.
    pub fn read_stored(&self, name: &str, scratch: &mut [u8], mut take: impl FnMut(&[u8])) -> Result<()> {
        self.gather(self.get(name)?, scratch, |_, bytes| take(bytes))
    }

    fn wrong_type(&self, info: &TensorInfo, wanted: &str) -> StoreError {
        let what = format!("has element type {}, expected {wanted}", info.dtype.name());
        StoreError::new(&self.path, what, "check that this is the right file").of(&info.name)
    }

    fn check_len(&self, info: &TensorInfo, got: usize, need: usize) -> Result<()> {
        if got == need {
            return Ok(());
        }
        let what = format!("has shape {:?} ({need} values to read), but {got} are expected", info.shape);
        Err(StoreError::new(&self.path, what, "check that the file belongs to this model and configuration")
            .of(&info.name))
    }

    fn read_at(&self, info: &TensorInfo, at: u64, out: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(out, at)
            .map_err(|e| StoreError::io(&self.path, "cannot read", e).of(&info.name))
    }

    /// Calls `sink(i, bytes)` with pieces that hold the row-major elements i, i+1, … until all were given once.
    fn gather(
        &self,
        info: &TensorInfo,
        scratch: &mut [u8],
        mut sink: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let size = info.dtype.size();
        let fit = scratch.len() / size;
        if fit == 0 {
            return Err(StoreError::new(
                &self.path,
                "the staging buffer is under 8 bytes",
                "pass a larger one",
            )
            .of(&info.name));
        }
        // `run` elements from storage element `from`, in pieces that fit the scratch: sink(first of piece, bytes).
        let mut read_run = |from: usize, run: usize, sink: &mut dyn FnMut(usize, &[u8])| -> Result<()> {
            for first in (0..run).step_by(fit) {
                let piece = &mut scratch[..fit.min(run - first) * size];
                self.read_at(info, info.start + ((from + first) * size) as u64, piece)?;
                sink(first, piece);
            }
            Ok(())
        };
        let n = info.elements();
        match &info.layout {
            _ if n == 0 => Ok(()),
            Layout::Contiguous => read_run(0, n, &mut sink),
            Layout::Strided(strides) => match dense_order(&info.shape, strides) {
                // A transposed dense block: read it once in file order, put every element where it belongs.
                Some(order) => {
                    let dims: Vec<usize> = order.iter().map(|&d| info.shape[d]).collect();
                    let to = row_major(&info.shape);
                    let to: Vec<usize> = order.iter().map(|&d| to[d]).collect();
                    let mut odometer = Odometer::new(&dims, &to);
                    read_run(0, n, &mut |_, bytes| {
                        for element in bytes.chunks_exact(size) {
                            sink(odometer.offset, element);
                            odometer.step();
                        }
                    })
                }
                // Otherwise row by row, a row being the longest tail of axes that lies in one piece.
                None => {
                    let (outer, run) = rows(&info.shape, strides);
                    let mut odometer = Odometer::new(&info.shape[..outer], &strides[..outer]);
                    for row in 0..n / run {
                        read_run(odometer.offset, run, &mut |i, bytes| sink(row * run + i, bytes))?;
                        odometer.step();
                    }
                    Ok(())
                }
            },
        }
    }
}

/// Checks a tensor's name, which is for people and for other formats: not empty, bounded, no control characters.
pub(crate) fn check_name(name: &str) -> std::result::Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(format!("`{}` is not a name for a tensor", printable(name)));
    }
    Ok(())
}
