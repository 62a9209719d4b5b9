//! The header of a safetensors file, checked before anything is believed.
//!
//! Format: u64 little-endian header length n, n bytes of JSON, then the data; `data_offsets` are relative to byte
//! 8 + n. Checked here: the header's size, no duplicate key anywhere, plain names, every size without overflow, and
//! that the tensors cover the data exactly: no overlap, no hole, nothing after them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::DType;
use crate::budget::Budget;
use crate::error::printable;
use crate::tensor_file::{Index, Layout, MAX_NAME, MAX_RANK, TensorInfo, check_name};

/// Largest header that is read; a model of 10 000 tensors needs about 1 MiB.
pub(crate) const MAX_HEADER: u64 = 16 << 20;

/// What [`TensorFile::metadata`](crate::TensorFile::metadata) gives.
pub(crate) type Metadata = BTreeMap<String, String>;

/// Reads and checks the header of a file of `len` bytes.
pub(crate) fn read_index(file: &File, len: u64, budget: &mut Budget) -> Result<Index, String> {
    let mut head = [0u8; 8];
    file.read_exact_at(&mut head, 0).map_err(|e| format!("cannot read the header length: {e}"))?;
    let header_len = u64::from_le_bytes(head);
    if header_len > MAX_HEADER {
        return Err(format!("claims a header of {header_len} bytes; at most {MAX_HEADER} are read"));
    }
    let data_start = 8 + header_len;
    if data_start > len {
        return Err(format!("claims a header of {header_len} bytes, but the file has only {len}"));
    }
    let mut json = vec![0u8; header_len as usize];
    file.read_exact_at(&mut json, 8).map_err(|e| format!("cannot read the header: {e}"))?;
    if json.first() != Some(&b'{') {
        return Err("the header is not a JSON object".into());
    }
    let mut de = serde_json::Deserializer::from_slice(&json);
    let (entries, metadata) = HeaderSeed(budget)
        .deserialize(&mut de)
        .and_then(|header| de.end().map(|()| header))
        .map_err(|e| format!("bad header: {e}"))?;
    drop(json);
    check(entries, metadata, data_start, len)
}

/// Builds the index from entries in any order.
fn check(
    mut entries: Vec<(String, Entry)>,
    metadata: Metadata,
    data_start: u64,
    len: u64,
) -> Result<Index, String> {
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut twice: Vec<&str> =
        entries.windows(2).filter(|w| w[0].0 == w[1].0).map(|w| w[0].0.as_str()).collect();
    twice.dedup();
    if let [first, others @ ..] = &twice[..] {
        let more = and_others(others);
        return Err(format!("the header has the key `{}` twice{more}", printable(first)));
    }
    // By place: with no holes and no overlaps, each tensor starts where the last one ended.
    entries.sort_unstable_by_key(|(_, e)| e.data_offsets);
    let data_len = len - data_start;
    let mut at = 0;
    let mut index = Index { metadata, ..Index::default() };
    let mut entries = entries.into_iter();
    while let Some((name, Entry { dtype, shape: Shape(shape), data_offsets: (begin, end) })) = entries.next()
    {
        let shown = printable(&name);
        if begin != at || end < begin {
            return Err(format!(
                "tensor `{shown}`: bytes {begin}..{end} leave a hole or overlap (expected to start at {at})"
            ));
        }
        if end > data_len {
            let cut: Vec<&str> = entries.as_slice().iter().map(|(name, _)| name.as_str()).collect();
            let more = and_others(&cut);
            return Err(format!(
                "tensor `{shown}`: ends at byte {end} of the data, but the file holds {data_len}{more}"
            ));
        }
        at = end;
        let Some(dtype) = DType::from_name(&dtype) else {
            index.refused.push((name, format!("element type {} is not supported", printable(&dtype))));
            continue;
        };
        let bytes = shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d as u64));
        if bytes != Some(end - begin) {
            return Err(format!(
                "tensor `{shown}`: shape {shape:?} of {} does not take the {} bytes it is given",
                dtype.name(),
                end - begin
            ));
        }
        index.tensors.push(TensorInfo {
            name,
            dtype,
            shape,
            start: data_start + begin,
            layout: Layout::Contiguous,
        });
    }
    if at != data_len {
        return Err(format!("{} bytes after the last tensor belong to nothing", data_len - at));
    }
    index.sort();
    Ok(index)
}

/// Returns `; the same holds for 3 more: a, b, c` if there are any.
fn and_others(names: &[&str]) -> String {
    const SHOWN: usize = 32;
    if names.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| printable(name)).collect();
    let rest = if names.len() > SHOWN { ", …" } else { "" };
    format!("; the same holds for {} more: {}{rest}", names.len(), shown.join(", "))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

struct Shape(Box<[usize]>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_RANK} dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format!("a tensor with over {MAX_RANK} dimensions")));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims.into()))
            }
        }
        de.deserialize_seq(Dims)
    }
}

/// Reads the header object, counting what it makes against the file's size.
struct HeaderSeed<'b>(&'b mut Budget);

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = (Vec<(String, Entry)>, Metadata);
    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Self::Value, D::Error> {
        de.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = (Vec<(String, Entry)>, Metadata);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // Bytes that one tensor takes while the index is made: both tables (growing by doubling), name and shape.
        const PER_TENSOR: usize = 512;
        let mut entries = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let read = map.next_value_seed(MetadataSeed(&mut *self.0))?;
                if metadata.replace(read).is_some() {
                    return Err(A::Error::custom("the header has the key `__metadata__` twice"));
                }
                continue;
            }
            check_name(&name).map_err(A::Error::custom)?;
            self.0.take(PER_TENSOR + 2 * name.len()).map_err(A::Error::custom)?;
            let entry = map
                .next_value::<Entry>()
                .map_err(|e| A::Error::custom(format!("tensor `{}`: {e}", printable(&name))))?;
            entries.push((name, entry));
        }
        Ok((entries, metadata.unwrap_or_default()))
    }
}

struct MetadataSeed<'b>(&'b mut Budget);

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = Metadata;
    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Metadata, D::Error> {
        de.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        const PER_ENTRY: usize = 256;
        let mut metadata = Metadata::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            self.0.take(PER_ENTRY + key.len() + value.len()).map_err(A::Error::custom)?;
            if key.len() > MAX_NAME {
                return Err(A::Error::custom(format!("a metadata key of {} bytes", key.len())));
            }
            if metadata.contains_key(&key) {
                return Err(A::Error::custom(format!(
                    "the metadata has the key `{}` twice",
                    printable(&key)
                )));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }
}
