//! A look at the page headers of a column chunk before anything of it is decoded.
//!
//! A page header says how large the page becomes, and the decoder allocates by that. Here each header is read with
//! bounded positional reads (Thrift's compact protocol, struct `PageHeader` of parquet.thrift) and compared with what the
//! file has.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// What a page may expand to: repeated values compress without end, so a little is free.
const FREE_BYTES: u64 = 16 << 20;
const MOST_EXPANSION: u64 = 64;
/// Most values of a page: one row is read at a time, but only its end says how long it is.
const MOST_VALUES: i64 = 16 << 20;
/// Longest page header, bytes (its statistics may hold values).
const MOST_HEADER: usize = 1 << 20;
const WINDOW: usize = 8 << 10;

/// Largest sizes among the pages of a chunk, bytes in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    dictionary: u64,
    data: u64,
    /// Values of a page.
    pub(super) values: u64,
}

impl Sizes {
    /// Returns what a reader of the chunk holds: the dictionary and one page, each as it lies in the file and decompressed.
    pub(super) fn held(self) -> u64 {
        self.dictionary + self.data
    }
}

/// Walks the pages in `[at, end)`.
pub(super) fn check(file: &mut File, mut at: u64, end: u64) -> Result<Sizes, String> {
    let mut sizes = Sizes::default();
    while at < end {
        let header = header_at(file, at, end)?;
        let (compressed, whole) = (header.compressed, header.uncompressed);
        at += header.length as u64;
        let sound = u64::try_from(compressed).ok().filter(|&c| c <= end - at);
        let (Some(compressed), Ok(whole)) = (sound, u64::try_from(whole)) else {
            return Err(format!(
                "damaged: a page of {compressed} bytes at byte {at}, where its column ends at {end}"
            ));
        };
        if whole > FREE_BYTES + MOST_EXPANSION * compressed
            || header.values > MOST_VALUES
            || header.values < 0
        {
            return Err(format!(
                "a page of {compressed} bytes at byte {at} says it holds {} values in {whole} bytes; at most {MOST_VALUES} \
                 values and {} bytes are read. If it is sound, write the file again with smaller row groups",
                header.values,
                FREE_BYTES + MOST_EXPANSION * compressed
            ));
        }
        let held = compressed + whole;
        let most = if header.dictionary { &mut sizes.dictionary } else { &mut sizes.data };
        *most = (*most).max(held);
        sizes.values = sizes.values.max(header.values as u64);
        at += compressed;
    }
    Ok(sizes)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    length: usize,
    dictionary: bool,
    uncompressed: i64,
    compressed: i64,
    values: i64,
}

fn header_at(file: &mut File, at: u64, end: u64) -> Result<Header, String> {
    let mut window = WINDOW;
    loop {
        let wanted = (window as u64).min(end - at);
        let mut bytes = Vec::with_capacity(wanted as usize);
        let read =
            file.seek(SeekFrom::Start(at)).and_then(|_| file.by_ref().take(wanted).read_to_end(&mut bytes));
        read.map_err(|e| e.to_string())?;
        match (Thrift { bytes: &bytes, at: 0 }).page_header() {
            Some(header) => return Ok(header),
            None if (bytes.len() as u64) < wanted || wanted == end - at || window >= MOST_HEADER => {
                return Err(format!("damaged: no page header at byte {at}"));
            }
            None => window *= 8,
        }
    }
}

/// A reader of Thrift's compact protocol; `None` if the bytes end or make no sense.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

const STOP: u8 = 0;
const STRUCT: u8 = 12;
/// Structs in structs, of which a page header has three.
const DEPTH: usize = 16;

impl Thrift<'_> {
    fn page_header(&mut self) -> Option<Header> {
        const TYPE: i16 = 1;
        const UNCOMPRESSED: i16 = 2;
        const COMPRESSED: i16 = 3;
        const DICTIONARY: i16 = 7;
        const BY_KIND: [i16; 3] = [5, DICTIONARY, 8];
        let mut header = Header { uncompressed: -1, compressed: -1, ..Header::default() };
        let mut id = 0;
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (TYPE, 5) => header.dictionary = self.integer()? == 2,
                (UNCOMPRESSED, 5) => header.uncompressed = self.integer()?,
                (COMPRESSED, 5) => header.compressed = self.integer()?,
                (id, STRUCT) if BY_KIND.contains(&id) => header.values = self.first_integer()?,
                _ => self.skip(kind, DEPTH)?,
            }
        }
        header.length = self.at;
        Some(header)
    }

    /// Returns the first field of a struct, a count; the rest is passed over.
    fn first_integer(&mut self) -> Option<i64> {
        let (mut id, mut found) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (1, 5) => found = self.integer()?,
                _ => self.skip(kind, DEPTH)?,
            }
        }
        Some(found)
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Returns a zigzag number.
    fn integer(&mut self) -> Option<i64> {
        let n = self.unsigned()?;
        Some((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// Reads the kind of the next field, whose number goes to `id`; the inner `None` is the end of the struct.
    fn field(&mut self, id: &mut i16) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == STOP {
            return Some(None);
        }
        *id = match byte >> 4 {
            0 => i16::try_from(self.integer()?).ok()?,
            delta => id.checked_add(i16::from(delta))?,
        };
        Some(Some(byte & 0x0f))
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        let at = self.at as u64 + bytes.min(u64::from(u32::MAX));
        (at <= self.bytes.len() as u64).then(|| self.at = at as usize)
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // Of a boolean field the kind is the value.
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.unsigned().map(|_| ()),
            7 => self.pass(8),
            8 => self.unsigned().and_then(|n| self.pass(n)),
            9 | 10 => {
                let byte = self.byte()?;
                let count = match byte >> 4 {
                    15 => self.unsigned()?,
                    n => u64::from(n),
                };
                // Booleans have a byte each here, and every other element at least one.
                (count <= self.bytes.len() as u64).then_some(())?;
                for _ in 0..count {
                    match byte & 0x0f {
                        1 | 2 => self.pass(1)?,
                        kind => self.skip(kind, depth)?,
                    }
                }
                Some(())
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data page, 300 bytes for 200, 17 values, with a statistics struct that holds a binary.
    const PAGE: &[u8] = &[
        0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x90, 0x03, 0x2c, 0x15, 0x22, 0x15, 0x00, 0x15, 0x06, 0x15, 0x06,
        0x1c, 0x18, 0x02, 0xaa, 0xbb, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn page_headers_are_read_and_cut_ones_refused() {
        let header = Thrift { bytes: PAGE, at: 0 }.page_header().expect("whole");
        assert_eq!(
            header,
            Header { length: PAGE.len(), dictionary: false, uncompressed: 300, compressed: 200, values: 17 }
        );
        for end in 0..PAGE.len() {
            assert_eq!(Thrift { bytes: &PAGE[..end], at: 0 }.page_header(), None, "{end}");
        }
        // Structs without end, and a list that claims more than there is.
        assert_eq!(Thrift { bytes: &[0x1c; 4000], at: 0 }.page_header(), None);
        assert_eq!(Thrift { bytes: &[0x19, 0xf5, 0xff, 0xff, 0xff, 0x0f], at: 0 }.page_header(), None);
    }
}
