//! Tensors that lie whole in one file or, piece by piece, in several.
//!
//! A whole tensor is under its name. A piece is a 1-D tensor under `NAME[lo:hi]`: the elements lo to hi, row-major, of a tensor
//! whose extents are in the metadata of the same file, as `NAME`: `[512,256]`. Pieces of all files together make up each
//! tensor, once; who wrote which is of no matter to a reader.

use crate::{DType, Result, StoreError, TensorFile, TensorSpec};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Declares the elements `range` of a tensor: gives its specification, and notes the whole's extents in the metadata of the
/// file, unless it is the whole.
pub fn piece_spec(
    whole: TensorSpec,
    range: Range<usize>,
    metadata: &mut BTreeMap<String, String>,
) -> TensorSpec {
    let elements = whole.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if range.start == 0 && Some(range.end) == elements {
        return whole;
    }
    let shape: Vec<String> = whole.shape.iter().map(usize::to_string).collect();
    metadata.insert(whole.name.clone(), format!("[{}]", shape.join(",")));
    TensorSpec::new(format!("{}[{}:{}]", whole.name, range.start, range.end), whole.dtype, &[range.len()])
}

/// A tensor of several files.
#[derive(Clone, Debug)]
pub struct Pieced {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Its elements, where they are: in which file, under which name. Ascending.
    pieces: Vec<(Range<usize>, usize, String)>,
}

impl Pieced {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the stored elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns its extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Open files of tensors and of pieces of tensors.
pub struct PiecedFiles {
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, Pieced>,
}

impl PiecedFiles {
    /// Opens the files and checks that their pieces make up every tensor. No tensor data is read.
    ///
    /// # Errors
    /// As [`TensorFile::open`]; pieces that are missing, overlap, or do not agree on what they are pieces of.
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<PiecedFiles> {
        let files = paths.into_iter().map(TensorFile::open).collect::<Result<Vec<_>>>()?;
        let mut tensors: BTreeMap<String, Pieced> = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            let damaged = |what: String, name: &str| {
                StoreError::new(file.path(), what, "use another checkpoint").of(name)
            };
            for t in file.tensors() {
                let (name, shape, range) = whole(file, t.name(), t.shape());
                let pieces = tensors.entry(name.to_owned()).or_insert_with(|| Pieced {
                    name: name.to_owned(),
                    dtype: t.dtype(),
                    shape: shape.clone(),
                    pieces: Vec::new(),
                });
                if pieces.dtype != t.dtype() || pieces.shape != shape || range.len() != t.elements() {
                    let what = format!(
                        "is {} elements of {}{shape:?}, other pieces are of {}{:?}",
                        t.elements(),
                        t.dtype().name(),
                        pieces.dtype.name(),
                        pieces.shape
                    );
                    return Err(damaged(what, t.name()));
                }
                pieces.pieces.push((range, i, t.name().to_owned()));
            }
        }
        for t in tensors.values_mut() {
            t.pieces.sort_by_key(|p| (p.0.start, p.0.end));
            let mut end = Some(0);
            for (range, ..) in &t.pieces {
                end = end.filter(|end| *end == range.start).map(|_| range.end);
            }
            let elements = t.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            if end.is_none() || end != elements {
                let have: Vec<String> =
                    t.pieces.iter().map(|(r, ..)| format!("{}:{}", r.start, r.end)).collect();
                let path = files[t.pieces[0].1].path();
                let what = format!("has the pieces {} of a tensor of {:?}", have.join(", "), t.shape);
                return Err(StoreError::new(path, what, "use another checkpoint").of(&t.name));
            }
        }
        Ok(PiecedFiles { files, tensors })
    }

    /// Returns a path for messages: the first file's.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), TensorFile::path)
    }

    /// Returns every tensor, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &Pieced> {
        self.tensors.values()
    }

    /// Returns the tensor of that name.
    pub fn find(&self, name: &str) -> Option<&Pieced> {
        self.tensors.get(name)
    }

    /// Returns the tensor of that name, or an error that names it.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<&Pieced> {
        self.find(name).ok_or_else(|| {
            StoreError::new(self.path(), "is not there", "check that this is the checkpoint of this run")
                .of(name)
        })
    }

    /// Reads elements of a tensor as f32, in order: `take(first element, values)`, at most as many values as `scratch` has
    /// bytes. Of the files only these elements' bytes are read.
    ///
    /// # Errors
    /// Unknown names, elements that the tensor has not, unreadable files.
    pub fn read_range(
        &self,
        name: &str,
        range: Range<usize>,
        scratch: &mut [u8],
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let t = self.get(name)?;
        if range.end > t.elements() {
            let what = format!("has {} elements, {} are expected", t.elements(), range.end);
            return Err(StoreError::new(self.path(), what, "use another checkpoint").of(name));
        }
        for (piece, file, key) in &t.pieces {
            let (from, to) = (range.start.max(piece.start), range.end.min(piece.end));
            if from < to {
                let inside = from - piece.start..to - piece.start;
                self.files[*file].read_range(key, inside, scratch, |at, x| take(piece.start + at, x))?;
            }
        }
        Ok(())
    }
}

/// Returns the tensor of which an entry of a file has elements, and which.
fn whole<'a>(file: &TensorFile, key: &'a str, shape: &[usize]) -> (&'a str, Vec<usize>, Range<usize>) {
    let piece = || {
        let (name, range) = key.strip_suffix(']')?.rsplit_once('[')?;
        let (lo, hi) = range.split_once(':')?;
        let (lo, hi): (usize, usize) = (lo.parse().ok()?, hi.parse().ok()?);
        let extents = file.metadata().get(name)?.strip_prefix('[')?.strip_suffix(']')?;
        let extents = extents.split(',').map(|n| n.parse().ok()).collect::<Option<Vec<usize>>>()?;
        (lo <= hi).then_some((name, extents, lo..hi))
    };
    piece().unwrap_or_else(|| (key, shape.to_vec(), 0..shape.iter().product()))
}
