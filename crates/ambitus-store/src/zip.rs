//! The directory of a zip archive. Only stored entries are of use, as `torch.save` writes them; nothing is unpacked.
//!
//! Entry names are only ever compared, never used as paths. Checked: exactly one archive that spans the whole file
//! (offset 0 to the end record), each local header agrees with the central directory, and no entry's bytes overlap
//! another's. Format: PKWARE APPNOTE 6.3, sections 4.3 to 4.5 (zip64).

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::budget::Budget;
use crate::error::printable;
use crate::tensor_file::check_name;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const END64_LOCATOR: u32 = 0x0706_4b50;

/// Largest central directory that is read: 100 000 entries with long names.
const MAX_DIRECTORY: u64 = 16 << 20;
const END_LEN: usize = 22;
const MAX_COMMENT: usize = 0xffff;

/// One entry: where its bytes are in the file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub name: String,
    pub start: u64,
    pub len: u64,
    /// False if the bytes are compressed; such entries are listed, never unpacked.
    pub stored: bool,
}

/// Little-endian fields of a record that is already in memory.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self.0.split_at_checked(n).ok_or("the zip directory is cut short")?;
        self.0 = rest;
        Ok(head)
    }

    fn number(&mut self, n: usize) -> Result<u64, String> {
        Ok(self.bytes(n)?.iter().rev().fold(0, |value, &b| value << 8 | u64::from(b)))
    }

    fn u16(&mut self) -> Result<u64, String> {
        self.number(2)
    }

    fn u32(&mut self) -> Result<u64, String> {
        self.number(4)
    }

    fn signature(&mut self, expected: u32) -> Result<(), String> {
        if self.u32()? == u64::from(expected) {
            Ok(())
        } else {
            Err("a zip record is not where it should be".into())
        }
    }
}

fn read(file: &File, at: u64, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).map_err(|e| format!("cannot read the zip directory: {e}"))?;
    Ok(bytes)
}

/// Returns all entries, sorted by name.
pub(crate) fn read_entries(file: &File, file_len: u64, budget: &mut Budget) -> Result<Vec<Entry>, String> {
    let (count, start, len) = find_directory(file, file_len)?;
    if len > MAX_DIRECTORY {
        return Err(format!("claims a zip directory of {len} bytes; at most {MAX_DIRECTORY} are read"));
    }
    let directory = read(file, start, len as usize)?;
    let mut fields = Fields(&directory);
    let mut entries = Vec::new();
    while !fields.0.is_empty() {
        let entry = central_entry(&mut fields, start)?;
        // The entry, twice for a table that grows by doubling, and its name.
        budget.take(2 * size_of::<Entry>() + 2 * entry.name.len() + 32)?;
        entries.push(entry);
    }
    if entries.len() as u64 != count {
        return Err(format!("the zip directory has {} entries and claims {count}", entries.len()));
    }
    // In file order: each ends before the next local header, the last before the directory.
    entries.sort_unstable_by_key(|e| e.start);
    if entries.first().is_none_or(|e| e.start != 0) {
        return Err("has something before its first zip entry".into());
    }
    let mut free = 0;
    for entry in &mut entries {
        let fault = |what: String| format!("zip entry `{}` {what}", printable(&entry.name));
        let header = entry.start;
        if header < free {
            return Err(fault("overlaps another entry".into()));
        }
        entry.start = local_data(file, entry).map_err(fault)?;
        free = entry.start.checked_add(entry.len).filter(|&end| end <= start).ok_or_else(|| {
            format!(
                "zip entry `{}` claims {} bytes, more than the file holds",
                printable(&entry.name),
                entry.len
            )
        })?;
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = entries.windows(2).find(|w| w[0].name == w[1].name) {
        return Err(format!("zip entry `{}` is there twice", printable(&pair[0].name)));
    }
    Ok(entries)
}

/// Returns the number of entries, start and length of the central directory.
fn find_directory(file: &File, file_len: u64) -> Result<(u64, u64, u64), String> {
    let truncated = "is cut short: the end of the zip archive is missing";
    let tail_len = file_len.min((END_LEN + MAX_COMMENT) as u64);
    let tail_start = file_len - tail_len;
    let tail = read(file, tail_start, tail_len as usize)?;
    // The end record is the one whose comment reaches exactly to the end of the file.
    let at = (0..tail.len().saturating_sub(END_LEN - 1))
        .rev()
        .find(|&i| {
            tail[i..].starts_with(&END.to_le_bytes())
                && i + END_LEN + u16::from_le_bytes([tail[i + 20], tail[i + 21]]) as usize == tail.len()
        })
        .ok_or(truncated)?;
    let mut f = Fields(&tail[at..]);
    f.signature(END)?;
    let (disk, directory_disk, here) = (f.u16()?, f.u16()?, f.u16()?);
    let (mut count, mut len, mut start) = (f.u16()?, f.u32()?, f.u32()?);
    let mut end_at = tail_start + at as u64;
    if disk != 0 && disk != 0xffff || directory_disk != 0 && directory_disk != 0xffff || here != count {
        return Err("is one part of a zip archive in several files".into());
    }
    let overflows = count == 0xffff || len == 0xffff_ffff || start == 0xffff_ffff;
    let locator_at = end_at.saturating_sub(20);
    let locator = read(file, locator_at, (end_at - locator_at) as usize)?;
    // PyTorch writes the zip64 records of every archive, needed or not.
    if overflows || locator.starts_with(&END64_LOCATOR.to_le_bytes()) {
        let mut f = Fields(&locator);
        f.signature(END64_LOCATOR)?;
        f.u32()?;
        end_at = f.number(8)?;
        if end_at.checked_add(56).is_none_or(|end| end > locator_at) {
            return Err("the zip64 end record is not in the file".into());
        }
        let record = read(file, end_at, 56)?;
        let mut f = Fields(&record);
        f.signature(END64)?;
        f.bytes(8 + 2 + 2 + 4 + 4)?;
        let here = f.number(8)?;
        let wide = (f.number(8)?, f.number(8)?, f.number(8)?);
        let agrees = |narrow: u64, limit: u64, wide: u64| narrow == limit || narrow == wide;
        if here != wide.0
            || !agrees(count, 0xffff, wide.0)
            || !agrees(len, 0xffff_ffff, wide.1)
            || !agrees(start, 0xffff_ffff, wide.2)
        {
            return Err("has two zip end records that contradict each other".into());
        }
        (count, len, start) = wide;
    }
    if start.checked_add(len) != Some(end_at) {
        return Err("the zip directory does not end where the end record begins".into());
    }
    Ok((count, start, len))
}

/// Reads one central directory record; `start` of the result is still the place of the local header.
fn central_entry(f: &mut Fields, directory_start: u64) -> Result<Entry, String> {
    f.signature(CENTRAL)?;
    f.bytes(4)?;
    let (flags, method) = (f.u16()?, f.u16()?);
    f.bytes(4 + 4)?;
    let (mut packed, mut len) = (f.u32()?, f.u32()?);
    let (name_len, extra_len, comment_len) = (f.u16()?, f.u16()?, f.u16()?);
    f.bytes(2 + 2 + 4)?;
    let mut start = f.u32()?;
    let name = f.bytes(name_len as usize)?;
    let mut extra = Fields(f.bytes(extra_len as usize)?);
    f.bytes(comment_len as usize)?;
    let name = std::str::from_utf8(name).map_err(|_| "a zip entry has a name that is not UTF-8")?;
    check_name(name)?;
    let fault = |what: &str| Err(format!("zip entry `{}` {what}", printable(name)));
    if name.starts_with('/') || name.contains('\\') || name.split('/').any(|part| part == "..") {
        return fault("has a name that leads out of the archive");
    }
    while extra.0.len() >= 4 {
        let (id, size) = (extra.u16()?, extra.u16()?);
        let mut field = Fields(extra.bytes(size as usize)?);
        if id == 1 {
            for value in [&mut len, &mut packed, &mut start] {
                if *value == 0xffff_ffff {
                    *value = field.number(8)?;
                }
            }
        }
    }
    if flags & 1 != 0 {
        return fault("is encrypted");
    }
    let stored = method == 0;
    if (stored && packed != len) || start >= directory_start {
        return fault("has sizes that contradict each other");
    }
    Ok(Entry { name: name.into(), start, len: packed, stored })
}

/// Checks the local header against the entry; where the entry's bytes start.
fn local_data(file: &File, entry: &Entry) -> Result<u64, String> {
    const LEN: usize = 30;
    let header = read(file, entry.start, LEN + entry.name.len())?;
    let mut f = Fields(&header);
    f.signature(LOCAL)?;
    f.bytes(2)?;
    let (flags, method) = (f.u16()?, f.u16()?);
    f.bytes(4 + 4)?;
    let (packed, len, name_len, extra_len) = (f.u32()?, f.u32()?, f.u16()?, f.u16()?);
    // Sizes may be left to a trailing descriptor (flag 8) or to a zip64 field; otherwise they are repeated here.
    let left_out = |size: u64| size == 0xffff_ffff || (flags & 8 != 0 && size == 0);
    let same = |size: u64| size == entry.len || left_out(size);
    if (method == 0) != entry.stored
        || !same(packed)
        || (entry.stored && !same(len))
        || f.0 != entry.name.as_bytes()
        || name_len as usize != f.0.len()
    {
        return Err("has two headers that contradict each other".into());
    }
    Ok(entry.start + LEN as u64 + name_len + extra_len)
}
