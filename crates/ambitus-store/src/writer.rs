//! A tensor file, streamed: the header first, then each tensor's bytes from wherever they live.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{create_temp, publish, temp_path};
use crate::dtype::encode_f32;
use crate::safetensors::MAX_HEADER;
use crate::tensor_file::{MAX_RANK, check_name};
use crate::torch_writer::{Item, pickle};
use crate::zip_writer::Archive;
use crate::{DType, Disk, DiskFile, RealDisk, Result, StoreError};

/// Bytes given to the operating system, and hashed, at a time.
const CHUNK: usize = 1 << 20;
/// Bytes of the buffer in which values are encoded.
const STAGING: usize = 16 << 10;

/// Declares a tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// Type of the stored elements.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Returns a declaration.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec() }
    }

    pub(crate) fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.size() as u64, |n, &d| n.checked_mul(d as u64))
    }
}

/// What a finished file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where it is.
    pub path: PathBuf,
    /// Length of the file.
    pub bytes: u64,
    /// BLAKE3 of the whole file, in lower-case hex.
    pub blake3: String,
}

/// A [`TensorWriter`], where the file is one of safetensors.
pub type SafetensorsWriter = TensorWriter;

/// Folder of the entries of a PyTorch checkpoint.
const ROOT: &str = "archive";

/// Writes a tensor file in one pass, or nothing: the file appears under its name when [`Self::finish`] succeeds.
/// Dropped before, it removes its temporary file.
///
/// Tensors lie in the file, and are to be written, in the order of [`Self::specs`]: of safetensors by element type, then by name,
/// as the Python package orders them; of a PyTorch checkpoint as they were declared.
pub struct TensorWriter {
    disk: Arc<dyn Disk>,
    file: Option<Box<dyn DiskFile>>,
    /// The file being written.
    at: PathBuf,
    /// Its name when finished; equal to `at` inside a checkpoint that is itself renamed.
    path: PathBuf,
    specs: Vec<TensorSpec>,
    /// Tensor being written, and how many of its bytes are.
    current: usize,
    filled: u64,
    written: u64,
    hash: blake3::Hasher,
    staging: Box<[u8]>,
    /// What is around the tensors of a PyTorch checkpoint.
    archive: Option<Archive>,
}

impl TensorWriter {
    /// Starts a safetensors file with these tensors, in any order, and these strings as `__metadata__`.
    pub fn create(
        path: impl AsRef<Path>,
        specs: Vec<TensorSpec>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        Self::create_on(Arc::new(RealDisk), path.as_ref(), specs, metadata)
    }

    /// Creates a file on the given disk. See [`Self::create`].
    pub fn create_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        specs: Vec<TensorSpec>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        Self::start(disk, temp_path(path)?, path.into(), specs, metadata)
    }

    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        at: PathBuf,
        path: PathBuf,
        mut specs: Vec<TensorSpec>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        specs.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
        let header = header(&specs, metadata).map_err(|what| StoreError::new(&path, what, ""))?;
        let mut writer = Self::open(disk, at, path, specs)?;
        writer.put(&(header.len() as u64).to_le_bytes())?;
        writer.put(&header)?;
        Ok(writer)
    }

    /// Starts a PyTorch checkpoint (`torch.save`, zip form) of a dictionary, one value of which is [`Item::Tensors`].
    pub fn create_torch(
        path: impl AsRef<Path>,
        specs: Vec<TensorSpec>,
        root: &[(String, Item)],
    ) -> Result<Self> {
        Self::create_torch_on(Arc::new(RealDisk), path.as_ref(), specs, root)
    }

    /// Creates a PyTorch checkpoint on the given disk. See [`Self::create_torch`].
    pub fn create_torch_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        specs: Vec<TensorSpec>,
        root: &[(String, Item)],
    ) -> Result<Self> {
        let pickle = pickle(root, &specs).map_err(|what| StoreError::new(path, what, ""))?;
        let mut writer = Self::open(disk, temp_path(path)?, path.into(), specs)?;
        writer.archive = Some(Archive::default());
        writer.put_entry("data.pkl", &pickle)?;
        writer.put_entry("byteorder", b"little")?;
        Ok(writer)
    }

    fn open(disk: Arc<dyn Disk>, at: PathBuf, path: PathBuf, specs: Vec<TensorSpec>) -> Result<Self> {
        let file = create_temp(&*disk, &at)?;
        Ok(Self {
            disk,
            file: Some(file),
            at,
            path,
            specs,
            current: 0,
            filled: 0,
            written: 0,
            hash: blake3::Hasher::new(),
            staging: vec![0; STAGING].into(),
            archive: None,
        })
    }

    /// Returns the declared tensors, in the order in which they are to be written.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Appends little-endian bytes to `name`, which must be the next unfinished tensor.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.expect(name, bytes.len() as u64)?;
        self.put_data(bytes)?;
        self.filled += bytes.len() as u64;
        Ok(())
    }

    /// Appends values to the float tensor `name`, rounded to its type, to nearest even.
    pub fn write_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        self.write_as(name, values, DType::is_float, encode_f32)
    }

    /// Appends values to the I64 tensor `name`.
    pub fn write_i64(&mut self, name: &str, values: &[i64]) -> Result<()> {
        self.write_as(
            name,
            values,
            |d| d == DType::I64,
            |_, values, out| {
                for (o, v) in out.chunks_exact_mut(8).zip(values) {
                    o.copy_from_slice(&v.to_le_bytes());
                }
            },
        )
    }

    fn write_as<T>(
        &mut self,
        name: &str,
        values: &[T],
        takes: fn(DType) -> bool,
        encode: fn(DType, &[T], &mut [u8]),
    ) -> Result<()> {
        self.expect(name, 0)?;
        let dtype = self.specs[self.current].dtype;
        if !takes(dtype) {
            return Err(
                self.misuse(name, format!("is declared {}, which these values are not", dtype.name()))
            );
        }
        let total = (values.len() as u64).saturating_mul(dtype.size() as u64);
        self.expect(name, total)?;
        let mut staging = std::mem::take(&mut self.staging);
        let put = values.chunks(staging.len() / dtype.size()).try_for_each(|part| {
            let bytes = &mut staging[..part.len() * dtype.size()];
            encode(dtype, part, bytes);
            self.put_data(bytes)
        });
        self.staging = staging;
        put?;
        self.filled += total;
        Ok(())
    }

    /// Checks that `name` is the tensor to be written and has room for `more` bytes.
    fn expect(&mut self, name: &str, more: u64) -> Result<()> {
        while self.current < self.specs.len() && self.filled == self.size(self.current) {
            let empty_one = self.filled == 0 && self.specs[self.current].name == name;
            if empty_one && more == 0 {
                return Ok(());
            }
            self.next()?;
        }
        match self.specs.get(self.current) {
            Some(next) if next.name != name => {
                Err(self.misuse(name, format!("is written out of turn: `{}` comes next", next.name)))
            }
            Some(_) if more > self.size(self.current) - self.filled => {
                let declared = self.size(self.current);
                Err(self.misuse(name, format!("is declared with {declared} bytes; more were given")))
            }
            Some(_) => Ok(()),
            None => Err(self.misuse(name, "comes after the last declared tensor".into())),
        }
    }

    /// Goes on to the next tensor; this one is complete.
    fn next(&mut self) -> Result<()> {
        if self.archive.is_some() {
            self.put_data(&[])?;
        }
        if let Some(archive) = &mut self.archive {
            let end = archive.end();
            self.put(&end)?;
        }
        self.current += 1;
        self.filled = 0;
        Ok(())
    }

    /// Puts bytes of the current tensor, whose entry in an archive begins with the first of them.
    fn put_data(&mut self, bytes: &[u8]) -> Result<()> {
        let (i, len) = (self.current, self.size(self.current));
        if let Some(archive) = self.archive.as_mut().filter(|archive| !archive.is_open()) {
            let begin = archive.begin(format!("{ROOT}/data/{i}"), len, self.written);
            self.put(&begin)?;
        }
        if let Some(archive) = &mut self.archive {
            archive.take(bytes);
        }
        self.put(bytes)
    }

    /// Puts a whole entry of an archive.
    fn put_entry(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let at = self.written;
        let Some(archive) = &mut self.archive else { return Ok(()) };
        let begin = archive.begin(format!("{ROOT}/{name}"), bytes.len() as u64, at);
        archive.take(bytes);
        let end = archive.end();
        self.put(&begin)?;
        self.put(bytes)?;
        self.put(&end)
    }

    fn size(&self, i: usize) -> u64 {
        self.specs[i].bytes().expect("sizes were checked when the header was made")
    }

    fn misuse(&self, name: &str, what: String) -> StoreError {
        StoreError::new(&self.path, what, "").of(name)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Err(StoreError::new(&self.path, "an earlier write failed", ""));
        };
        for chunk in bytes.chunks(CHUNK) {
            if let Err(e) = file.write_all(chunk) {
                // How much of the chunk arrived is unknown: this file can only be thrown away.
                self.file = None;
                return Err(StoreError::io(&self.path, "cannot write", e));
            }
            self.hash.update(chunk);
            self.written += chunk.len() as u64;
        }
        Ok(())
    }

    /// Flushes the file to the device and gives it its name.
    pub fn finish(mut self) -> Result<Written> {
        while self.current < self.specs.len() {
            if self.filled < self.size(self.current) {
                let name = self.specs[self.current].name.clone();
                return Err(self.misuse(&name, "was declared but not written in full".into()));
            }
            self.next()?;
        }
        if self.archive.is_some() {
            self.put_entry("version", b"3\n")?;
        }
        if let Some(archive) = &self.archive {
            let directory = archive.finish(self.written);
            self.put(&directory)?;
        }
        let Some(mut file) = self.file.take() else {
            return Err(StoreError::new(&self.path, "an earlier write failed", ""));
        };
        let mut publish_it = || {
            file.sync().map_err(|e| StoreError::io(&self.path, "cannot flush to disk", e))?;
            if self.at == self.path { Ok(()) } else { publish(&*self.disk, &self.at, &self.path) }
        };
        if let Err(e) = publish_it() {
            self.file = Some(file); // so that drop removes the temporary file
            return Err(e);
        }
        self.at = PathBuf::new();
        Ok(Written {
            path: self.path.clone(),
            bytes: self.written,
            blake3: self.hash.finalize().to_hex().to_string(),
        })
    }
}

impl Drop for TensorWriter {
    fn drop(&mut self) {
        if !self.at.as_os_str().is_empty() {
            // Nothing better can be done about a failure here; the next writer removes what is stale.
            let _ = self.disk.remove_file(&self.at);
        }
    }
}

/// Returns the JSON header, padded with spaces to a multiple of 8 bytes.
fn header(specs: &[TensorSpec], metadata: &BTreeMap<String, String>) -> std::result::Result<Vec<u8>, String> {
    let text = |s: &str| serde_json::to_string(s).map_err(|e| e.to_string());
    let mut names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("tensor `{}` is declared twice", twice[0]));
    }
    let mut fields = Vec::with_capacity(specs.len() + 1);
    if !metadata.is_empty() {
        fields.push(format!(
            "\"__metadata__\":{}",
            serde_json::to_string(metadata).map_err(|e| e.to_string())?
        ));
    }
    let mut at = 0u64;
    for spec in specs {
        check_name(&spec.name)?;
        if spec.name == "__metadata__" || spec.shape.len() > MAX_RANK {
            return Err(format!("tensor `{}` has a reserved name or over {MAX_RANK} dimensions", spec.name));
        }
        let end = spec
            .bytes()
            .and_then(|b| at.checked_add(b))
            .ok_or(format!("tensor `{}` is too large", spec.name))?;
        let (name, dtype) = (text(&spec.name)?, spec.dtype.name());
        let shape = spec.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        fields.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{at},{end}]}}"
        ));
        at = end;
    }
    let mut header = format!("{{{}}}", fields.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER {
        return Err(format!("a header of {} bytes is larger than any reader takes", header.len()));
    }
    Ok(header)
}
