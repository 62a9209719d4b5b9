//! A file system in memory that knows what is durable: a file's bytes after its fsync; creating, renaming and removing
//! a name after the fsync of its directory. At a crash each change that is not durable happens or not by a draw, and
//! unflushed bytes become old, new, a prefix of the new, or zeros.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Cursor, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use ambitus_store::{Disk, DiskFile, Entry};

#[derive(Clone)]
enum Change {
    Link(OsString, usize),
    Unlink(OsString),
    Rename(OsString, OsString, usize),
}

type Names = BTreeMap<OsString, usize>;

#[derive(Clone)]
enum Inode {
    File { now: Vec<u8>, durable: Vec<u8> },
    Dir { now: Names, durable: Names, pending: Vec<Change> },
}

fn apply(names: &mut Names, change: Change) {
    match change {
        Change::Link(name, inode) => drop(names.insert(name, inode)),
        Change::Unlink(name) => drop(names.remove(&name)),
        Change::Rename(from, to, inode) => {
            names.remove(&from);
            names.insert(to, inode);
        }
    }
}

#[derive(Clone)]
struct Tree {
    inodes: Vec<Inode>,
    /// Operations until the power goes.
    left: u64,
}

#[derive(Clone)]
pub struct MemDisk(Arc<Mutex<Tree>>);

impl MemDisk {
    /// An empty disk.
    pub fn new() -> Self {
        let root = Inode::Dir { now: Names::new(), durable: Names::new(), pending: Vec::new() };
        Self(Arc::new(Mutex::new(Tree { inodes: vec![root], left: u64::MAX })))
    }

    /// A copy of the disk as it is, on which the power goes after `left` operations.
    pub fn fork(&self, left: u64) -> Self {
        let tree = self.0.lock().unwrap().clone();
        Self(Arc::new(Mutex::new(Tree { left, ..tree })))
    }

    /// True if the power has gone.
    pub fn is_off(&self) -> bool {
        self.0.lock().unwrap().left == 0
    }

    /// What a machine finds after the power came back, by the draws.
    pub fn crash(&self, draw: impl FnMut() -> u64) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().unwrap().crash(draw))))
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Tree {
    fn tick(&mut self) -> io::Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("the power is gone"))?;
        Ok(())
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        path.iter().filter(|name| *name != ".").try_fold(0, |at, name| match &self.inodes[at] {
            Inode::Dir { now, .. } => now.get(name).copied().ok_or_else(not_found),
            Inode::File { .. } => Err(not_found()),
        })
    }

    fn names(&mut self, dir: &Path) -> io::Result<(&mut Names, &mut Vec<Change>)> {
        let at = self.find(dir)?;
        match &mut self.inodes[at] {
            Inode::Dir { now, pending, .. } => Ok((now, pending)),
            Inode::File { .. } => Err(not_found()),
        }
    }

    fn change(&mut self, dir: &Path, change: Change) -> io::Result<()> {
        let (now, pending) = self.names(dir)?;
        pending.push(change.clone());
        apply(now, change);
        Ok(())
    }

    fn add(&mut self, path: &Path, inode: Inode) -> io::Result<usize> {
        self.tick()?;
        if self.find(path).is_ok() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let id = self.inodes.len();
        self.inodes.push(inode);
        self.change(path.parent().unwrap(), Change::Link(path.file_name().unwrap().into(), id))?;
        Ok(id)
    }

    fn crash(&self, mut draw: impl FnMut() -> u64) -> Tree {
        let mut after = Tree { left: u64::MAX, ..self.clone() };
        for inode in &mut after.inodes {
            match inode {
                Inode::Dir { now, durable, pending } => {
                    for change in pending.drain(..) {
                        if draw() & 1 == 0 {
                            apply(durable, change);
                        }
                    }
                    *now = durable.clone();
                }
                Inode::File { now, durable } if now != durable => {
                    *now = match draw() % 4 {
                        0 => durable.clone(),
                        1 => now.clone(),
                        2 => now[..draw() as usize % (now.len() + 1)].to_vec(),
                        _ => vec![0; now.len()],
                    };
                    *durable = now.clone();
                }
                Inode::File { .. } => {}
            }
        }
        after
    }
}

struct MemFile(MemDisk, usize);

impl Write for MemFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut tree = self.0.0.lock().unwrap();
        tree.tick()?;
        if let Inode::File { now, .. } = &mut tree.inodes[self.1] {
            now.extend(buf);
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut tree = self.0.0.lock().unwrap();
        tree.tick()?;
        if let Inode::File { now, durable } = &mut tree.inodes[self.1] {
            durable.clone_from(now);
        }
        Ok(())
    }
}

impl Disk for MemDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let id = self.0.lock().unwrap().add(path, Inode::File { now: Vec::new(), durable: Vec::new() })?;
        Ok(Box::new(MemFile(self.clone(), id)))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
        let mut tree = self.0.lock().unwrap();
        tree.tick()?;
        match &tree.inodes[tree.find(path)?] {
            Inode::File { now, .. } => Ok((Box::new(Cursor::new(now.clone())), now.len() as u64)),
            Inode::Dir { .. } => Err(not_found()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut tree = self.0.lock().unwrap();
        tree.tick()?;
        let names = tree.names(dir)?.0.clone();
        let is_dir = |id: usize| matches!(tree.inodes[id], Inode::Dir { .. });
        Ok(names.into_iter().map(|(name, id)| Entry { name, is_dir: is_dir(id) }).collect())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let empty = Inode::Dir { now: Names::new(), durable: Names::new(), pending: Vec::new() };
        self.0.lock().unwrap().add(dir, empty).map(drop)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.0.lock().unwrap();
        tree.tick()?;
        let id = tree.find(from)?;
        if let Ok(there) = tree.find(to)
            && matches!(&tree.inodes[there], Inode::Dir { now, .. } if !now.is_empty())
        {
            return Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty));
        }
        assert_eq!(from.parent(), to.parent(), "a rename stays in its directory");
        let name = |p: &Path| p.file_name().unwrap().to_owned();
        tree.change(from.parent().unwrap(), Change::Rename(name(from), name(to), id))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.0.lock().unwrap();
        tree.tick()?;
        tree.find(path)?;
        tree.change(path.parent().unwrap(), Change::Unlink(path.file_name().unwrap().into()))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut tree = self.0.lock().unwrap();
        tree.tick()?;
        if !tree.names(dir)?.0.is_empty() {
            return Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty));
        }
        tree.change(dir.parent().unwrap(), Change::Unlink(dir.file_name().unwrap().into()))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut tree = self.0.lock().unwrap();
        tree.tick()?;
        let at = tree.find(dir)?;
        if let Inode::Dir { now, durable, pending } = &mut tree.inodes[at] {
            durable.clone_from(now);
            pending.clear();
        }
        Ok(())
    }
}
