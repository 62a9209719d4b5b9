//! The records of a zip archive that is written in one pass, as `torch.save` lays it out: entries are stored, their bytes begin at
//! multiples of 64, and their checksums follow them (PKWARE APPNOTE 6.3, sections 4.3 to 4.5; the zip64 ends are always written).

use crc32fast::Hasher;

/// Of an entry's bytes, from the start of the file.
const ALIGNMENT: u64 = 64;
/// Checksum and sizes follow the bytes; names are UTF-8.
const FLAGS: u16 = 1 << 3 | 1 << 11;
/// Version of the format with zip64.
const VERSION: u16 = 45;
/// A size or place that stands in a zip64 field instead.
const WIDE: u32 = u32::MAX;
/// What PyTorch calls the field that it fills space with.
const PADDING: &[u8; 2] = b"FB";

struct Entry {
    name: String,
    header: u64,
    len: u64,
    crc: u32,
}

/// An archive while it is written. It returns the bytes that come next; where they go is the caller's.
#[derive(Default)]
pub(crate) struct Archive {
    entries: Vec<Entry>,
    /// Checksum of the entry that is open.
    open: Option<Hasher>,
}

impl Archive {
    /// Returns whether an entry is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns what comes before the `len` bytes of an entry; the file has `at` bytes so far.
    pub fn begin(&mut self, name: String, len: u64, at: u64) -> Vec<u8> {
        let mut extra = Vec::new();
        if len >= u64::from(WIDE) {
            extra.extend([1, 0, 16, 0]);
            extra.extend([len, len].map(u64::to_le_bytes).concat());
        }
        let fixed = at + 30 + name.len() as u64 + extra.len() as u64 + 4;
        let padding = fixed.next_multiple_of(ALIGNMENT) - fixed;
        extra.extend(PADDING);
        extra.extend((padding as u16).to_le_bytes());
        extra.extend(std::iter::repeat_n(b'Z', padding as usize));
        let mut out = Vec::new();
        out.extend(0x0403_4b50u32.to_le_bytes());
        for field in [VERSION, FLAGS, 0, 0, 0] {
            out.extend(field.to_le_bytes());
        }
        let size: u32 = if len >= u64::from(WIDE) { WIDE } else { 0 };
        for field in [0, size, size] {
            out.extend(field.to_le_bytes());
        }
        out.extend((name.len() as u16).to_le_bytes());
        out.extend((extra.len() as u16).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(extra);
        self.entries.push(Entry { name, header: at, len, crc: 0 });
        self.open = Some(Hasher::new());
        out
    }

    /// Takes bytes of the open entry into its checksum.
    pub fn take(&mut self, bytes: &[u8]) {
        if let Some(crc) = &mut self.open {
            crc.update(bytes);
        }
    }

    /// Returns what comes after the bytes of the open entry.
    pub fn end(&mut self) -> Vec<u8> {
        let (Some(crc), Some(entry)) = (self.open.take(), self.entries.last_mut()) else {
            return Vec::new();
        };
        entry.crc = crc.finalize();
        let mut out = Vec::new();
        out.extend(0x0807_4b50u32.to_le_bytes());
        out.extend(entry.crc.to_le_bytes());
        for _ in 0..2 {
            match entry.len >= u64::from(WIDE) {
                true => out.extend(entry.len.to_le_bytes()),
                false => out.extend((entry.len as u32).to_le_bytes()),
            }
        }
        out
    }

    /// Returns the directory and the ends of a file that has `at` bytes so far.
    pub fn finish(&self, at: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in &self.entries {
            directory_entry(entry, &mut out);
        }
        let len = out.len() as u64;
        let count = self.entries.len() as u64;
        out.extend(0x0606_4b50u32.to_le_bytes());
        out.extend(44u64.to_le_bytes());
        out.extend([VERSION, VERSION].map(u16::to_le_bytes).concat());
        out.extend([0u32, 0].map(u32::to_le_bytes).concat());
        out.extend([count, count, len, at].map(u64::to_le_bytes).concat());
        out.extend(0x0706_4b50u32.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((at + len).to_le_bytes());
        out.extend(1u32.to_le_bytes());
        let few = count.min(u64::from(u16::MAX)) as u16;
        let narrow = |value: u64| value.min(u64::from(WIDE)) as u32;
        out.extend(0x0605_4b50u32.to_le_bytes());
        out.extend([0, 0, few, few].map(u16::to_le_bytes).concat());
        out.extend([narrow(len), narrow(at)].map(u32::to_le_bytes).concat());
        out.extend(0u16.to_le_bytes());
        out
    }
}

fn directory_entry(entry: &Entry, out: &mut Vec<u8>) {
    let mut wide = Vec::new();
    let mut narrow = |values: &[u64]| {
        let fits = values.iter().all(|value| *value < u64::from(WIDE));
        if !fits {
            wide.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        if fits { values[0] as u32 } else { WIDE }
    };
    let size = narrow(&[entry.len, entry.len]);
    let header = narrow(&[entry.header]);
    let mut extra = Vec::new();
    if !wide.is_empty() {
        extra.extend([1u16, wide.len() as u16].map(u16::to_le_bytes).concat());
        extra.extend(wide);
    }
    out.extend(0x0201_4b50u32.to_le_bytes());
    out.extend([VERSION, VERSION, FLAGS, 0, 0, 0].map(u16::to_le_bytes).concat());
    out.extend([entry.crc, size, size].map(u32::to_le_bytes).concat());
    out.extend([entry.name.len() as u16, extra.len() as u16, 0, 0, 0].map(u16::to_le_bytes).concat());
    out.extend([0, header].map(u32::to_le_bytes).concat());
    out.extend(entry.name.as_bytes());
    out.extend(extra);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::zip::read_entries;
    use std::os::unix::fs::FileExt;

    /// Entries beyond 4 GiB and of more than 4 GiB, in a file with holes.
    #[test]
    fn an_archive_of_any_size_is_read_back() {
        let file = tempfile::tempfile().unwrap();
        let (mut archive, mut at) = (Archive::default(), 0u64);
        let put = |bytes: &[u8], at: &mut u64| {
            file.write_all_at(bytes, *at).unwrap();
            *at += bytes.len() as u64;
        };
        let mut starts = Vec::new();
        for (name, len) in [("a/data.pkl", 5), ("a/data/0", 5 << 30), ("a/data/1", 0), ("a/data/2", 7)] {
            let begin = archive.begin(name.into(), len, at);
            put(&begin, &mut at);
            starts.push((at, len));
            assert!(at.is_multiple_of(64) && archive.is_open());
            at += len;
            let end = archive.end();
            put(&end, &mut at);
        }
        let directory = archive.finish(at);
        put(&directory, &mut at);
        let found = read_entries(&file, at, &mut Budget::for_file(at)).unwrap();
        assert!(found.iter().map(|e| (e.start, e.len)).eq(starts));
        assert!(found.iter().all(|e| e.stored));
    }

    #[test]
    fn checksums_are_the_standards() {
        let mut archive = Archive::default();
        archive.begin("x".into(), 9, 0);
        archive.take(b"1234");
        archive.take(b"56789");
        assert_eq!(archive.end()[4..8], 0xcbf4_3926u32.to_le_bytes());
    }
}
