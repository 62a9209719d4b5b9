//! The lines that another process adds to a file, each once.

use ambitus_store::open_file;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are read at a time; a longer line is not ours.
const CHUNK: usize = 64 << 10;

/// How far a file has been read, in bounded memory.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// Bytes of the lines that were read.
    at: u64,
    /// The last of them, by which a file that was cut or replaced is known.
    last: Vec<u8>,
}

impl Tail {
    /// Returns a file, of which nothing is read yet and which need not be there.
    pub fn new(path: PathBuf) -> Tail {
        Tail { path, at: 0, last: Vec::new() }
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hands lines that were added to `take`, without their ends. A line that does not end yet is waited for. `None`: the file was
    /// cut or replaced, and its lines come again from the start.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub fn read(&mut self, take: &mut dyn FnMut(Option<&[u8]>)) -> io::Result<()> {
        let file = match open_file(&self.path) {
            Ok((file, _)) => Some(file),
            Err(_) if self.path.symlink_metadata().is_err() => None,
            Err(e) => return Err(e.source.unwrap_or_else(|| io::Error::other(e.what))),
        };
        if !file.as_ref().map_or(self.at == 0, |file| self.is_in(file)) {
            (self.at, self.last) = (0, Vec::new());
            take(None);
        }
        let Some(file) = file else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        loop {
            let n = fill(&file, &mut chunk, self.at)?;
            match chunk[..n].iter().rposition(|byte| *byte == b'\n') {
                Some(end) => {
                    let mut last = &[][..];
                    for line in chunk[..end].split(|byte| *byte == b'\n') {
                        take(Some(line));
                        last = line;
                    }
                    self.last.clear();
                    self.last.extend_from_slice(last);
                    self.last.push(b'\n');
                    self.at += end as u64 + 1;
                }
                None if n < CHUNK => return Ok(()),
                // What is left of it reads as nothing.
                None => (self.at, self.last) = (self.at + n as u64, Vec::new()),
            }
        }
    }

    /// Returns whether what was read last is still where it was.
    fn is_in(&self, file: &File) -> bool {
        let mut there = vec![0; self.last.len()];
        let reaches = file.metadata().is_ok_and(|m| m.len() >= self.at);
        reaches
            && file.read_exact_at(&mut there, self.at - self.last.len() as u64).is_ok()
            && there == self.last
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match file.read_at(&mut buffer[n..], at + n as u64) {
            Ok(0) => break,
            Ok(read) => n += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(tail: &mut Tail) -> Vec<String> {
        let mut out = Vec::new();
        tail.read(&mut |line| {
            out.push(line.map_or("again".to_owned(), |line| String::from_utf8_lossy(line).into_owned()));
        })
        .unwrap();
        out
    }

    #[test]
    fn lines_come_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::new(path.clone());
        assert!(read(&mut tail).is_empty());
        let mut text = String::new();
        for (added, expected) in [
            ("a\nb", &["a"][..]),
            ("", &[]),
            ("c\n\nd", &["bc", ""]),
            ("\n", &["d"]),
            (&"x".repeat(CHUNK), &[]),
            ("y\nz\n", &["y", "z"]),
        ] {
            text += added;
            fs::write(&path, &text).unwrap();
            assert_eq!(read(&mut tail), expected, "{added:?}");
        }
        let many: String = (0..50_000).map(|i| format!("{i}\n")).collect();
        fs::write(&path, text + &many).unwrap();
        assert_eq!(read(&mut tail).concat(), many.replace('\n', ""));
    }

    #[test]
    fn a_file_that_was_cut_or_replaced_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::new(path.clone());
        fs::write(&path, "1 a\n2 b\n3 c\n").unwrap();
        assert_eq!(read(&mut tail), ["1 a", "2 b", "3 c"]);
        // Cut, and cut and grown beyond where it was.
        fs::write(&path, "1 a\n").unwrap();
        assert_eq!(read(&mut tail), ["again", "1 a"]);
        fs::write(&path, "1 x\n2 y\n3 z\n").unwrap();
        assert_eq!(read(&mut tail), ["again", "1 x", "2 y", "3 z"]);
        // Replaced by the same.
        fs::rename(&path, dir.path().join("old")).unwrap();
        fs::copy(dir.path().join("old"), &path).unwrap();
        assert!(read(&mut tail).is_empty());
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&mut tail), ["again"]);
        assert!(read(&mut tail).is_empty());
        fs::create_dir(&path).unwrap();
        assert!(tail.read(&mut |_| {}).is_err());
    }
}
