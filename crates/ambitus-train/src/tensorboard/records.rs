//! The records of event files, which are those of TFRecord: the length of the data in 8 bytes, the checksum of these 8, the data, the
//! checksum of the data, all little-endian. A checksum is CRC-32C, [masked](https://www.tensorflow.org/tutorials/load_data/tfrecord).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use super::message::Message;

/// Bytes of a record besides its data: length and checksum before, checksum after.
const BEFORE: u64 = 12;
const AFTER: u64 = 4;
/// Bytes that are copied or checked at a time.
const PIECE: usize = 1 << 14;

/// CRC-32C (Castagnoli, reflected 0x82F63B78) of every byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// A CRC-32C of bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
struct Crc(u32);

impl Crc {
    fn new() -> Crc {
        Crc(u32::MAX)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |crc, byte| TABLE[(crc as u8 ^ byte) as usize] ^ crc >> 8);
    }

    /// Returns it as records have it, rotated and shifted, so that checksums of checksums are none.
    fn masked(self) -> [u8; 4] {
        (!self.0).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
    }
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.add(bytes);
    crc.masked()
}

/// A file of records, open for appending.
#[derive(Debug)]
pub struct Records {
    file: File,
    /// Bytes of whole records; what is behind them is a torn one.
    end: u64,
    /// What is written at a time.
    piece: Vec<u8>,
}

impl Records {
    /// Keeps records from the start on, as long as they are whole and `of` finds something in the first bytes of their data, and cuts
    /// off the rest. `whole` is given what was found in each that is kept.
    ///
    /// # Errors
    /// From the file system.
    pub fn resume<T>(
        file: File,
        of: &dyn Fn(&[u8]) -> Option<T>,
        whole: &mut dyn FnMut(T),
    ) -> io::Result<Records> {
        let mut left = file.metadata()?.len();
        let mut reader = BufReader::with_capacity(PIECE, &file);
        let (mut piece, mut end) = (vec![0; PIECE], 0);
        while let Some((bytes, found)) = next(&mut reader, left, &mut piece, of)? {
            end += bytes;
            left -= bytes;
            whole(found);
        }
        file.set_len(end)?;
        Ok(Records { file, end, piece })
    }

    /// Removes all records.
    ///
    /// # Errors
    /// From the file system.
    pub fn clear(&mut self) -> io::Result<()> {
        self.end = 0;
        self.file.set_len(0)
    }

    /// Appends a record; the bytes of `rest` are its message's tail. A file of any length is copied in pieces.
    ///
    /// # Errors
    /// From the file system; a `rest` that ends early. Then the record is cut off where that can be done, else by [`Records::resume`].
    pub fn append(&mut self, message: &Message, rest: &mut dyn Read) -> io::Result<()> {
        let start = self.end;
        self.append_at_end(message, rest).inspect_err(|_| {
            self.end = start;
            let _ = self.file.set_len(start);
        })
    }

    fn append_at_end(&mut self, message: &Message, mut rest: &mut dyn Read) -> io::Result<()> {
        let len = (message.bytes.len() as u64 + message.tail).to_le_bytes();
        let mut crc = Crc::new();
        crc.add(&message.bytes);
        self.piece.clear();
        self.piece.extend(len);
        self.piece.extend(masked(&len));
        self.piece.extend(&message.bytes);
        let mut left = message.tail;
        while left > 0 {
            self.write_piece()?;
            let n = Read::take(&mut rest, left.min(PIECE as u64)).read_to_end(&mut self.piece)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            crc.add(&self.piece);
            left -= n as u64;
        }
        self.piece.extend(crc.masked());
        self.write_piece()
    }

    fn write_piece(&mut self) -> io::Result<()> {
        // At a place of its own: a write that failed may have left a part of it.
        self.file.write_all_at(&self.piece, self.end)?;
        self.end += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }

    /// Returns once every record is on the disk.
    ///
    /// # Errors
    /// From the file system.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Returns the bytes of the next record of a file with `left` more bytes and what `of` finds in it, if it is whole and has that.
fn next<T>(
    reader: &mut impl Read,
    left: u64,
    piece: &mut Vec<u8>,
    of: &dyn Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<(u64, T)>> {
    let Some(room) = left.checked_sub(BEFORE + AFTER) else { return Ok(None) };
    let (mut len, mut sum) = ([0; 8], [0; 4]);
    reader.read_exact(&mut len)?;
    reader.read_exact(&mut sum)?;
    let bytes = u64::from_le_bytes(len);
    if masked(&len) != sum || bytes > room {
        return Ok(None);
    }
    let (mut crc, mut unread, mut found) = (Crc::new(), bytes, None);
    while unread > 0 {
        piece.resize(unread.min(PIECE as u64) as usize, 0);
        reader.read_exact(piece)?;
        if unread == bytes {
            found = of(piece);
        }
        crc.add(piece);
        unread -= piece.len() as u64;
    }
    reader.read_exact(&mut sum)?;
    let whole = crc.masked() == sum;
    Ok(found.filter(|_| whole).map(|found| (BEFORE + bytes + AFTER, found)))
}

#[cfg(test)]
mod tests;
