//! One process at a time writes in a run's folder.

use ambitus_families::error::RunError;
use ambitus_store::{open_file, open_own_file};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The file whose lock is the folder's. It stays: a file that comes and goes could be locked by two under one name.
pub(super) const LOCK_FILE: &str = ".lock";
/// What is read of it: both lines.
const SHOWN: usize = 200;

/// A run's folder, held until this is dropped or the process ends, however it does.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the folder, which is made where it is missing.
    ///
    /// # Errors
    /// [`RunError::Usage`] that says who has it; a folder that cannot be made or written.
    pub fn take(root: &Path) -> Result<Lock, RunError> {
        let path = root.join(LOCK_FILE);
        loop {
            std::fs::create_dir_all(root).map_err(|e| RunError::io(root, "cannot create", e))?;
            let file = match open_own_file(&path) {
                Ok(file) => file,
                // Whoever had the folder has just taken it away.
                Err(e) if e.source.as_ref().is_some_and(|e| e.kind() == io::ErrorKind::NotFound) => continue,
                Err(e) => return Err(RunError::Io(e.to_string())),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(RunError::Usage(taken(root, &file))),
                // A file system without locks keeps no other process out.
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(e)) => return Err(RunError::io(&path, "cannot lock", e)),
            }
            if is_at(&file, &path) {
                // For others to read; the lock holds without it, as on a full disk. Who is looking meanwhile finds whole lines.
                let who = who();
                let written =
                    file.write_all_at(who.as_bytes(), 0).and_then(|()| file.set_len(who.len() as u64));
                let _ = written.or_else(|_| file.set_len(0));
                return Ok(Lock { _file: file });
            }
        }
    }

    /// Returns who holds a folder, without touching the lock: a shared one for a moment would refuse a run that begins in it.
    pub fn holder(root: &Path) -> Holder {
        let path = root.join(LOCK_FILE);
        let text = match open_file(&path) {
            Ok((file, _)) => read(&file),
            Err(_) if path.symlink_metadata().is_err() => return Holder::Nobody,
            Err(e) => return Holder::Unknown(e.to_string()),
        };
        let (who, was_born) = text.split_once('\n').unwrap_or_default();
        let process = who.strip_prefix("process ").and_then(|rest| rest.split_once(" on "));
        match process.and_then(|(process, on)| Some((process.parse().ok()?, on))) {
            // Numbers of processes are those of a container.
            Some((_, on))
                if on == host() && was_born.split(' ').nth(1).is_some_and(|ns| ns != namespace()) =>
            {
                Holder::Unknown(who.to_owned())
            }
            Some((process, on)) if on == host() => match birth(process) {
                Some(born) if was_born.trim_end() == born => Holder::Here,
                _ => Holder::Nobody,
            },
            Some(_) => Holder::Unknown(who.to_owned()),
            None => Holder::Unknown("a process without a name".to_owned()),
        }
    }
}

/// Who holds a run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody, any more.
    Nobody,
    /// A process of this machine, which lives.
    Here,
    /// One that cannot be looked at from here, as one of another machine.
    Unknown(String),
}

/// Returns whether the path still leads to the file that was locked.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().is_ok_and(|a| path.symlink_metadata().is_ok_and(|b| same(&a, b)))
}

/// Returns the lines of a lock file: what people read, and what makes sure of the process.
fn who() -> String {
    let process = std::process::id();
    format!("process {process} on {}\n{}\n", host(), birth(process).unwrap_or_default())
}

fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// Returns which processes this one can see by their numbers.
fn namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid").map_or_else(|_| String::new(), |ns| ns.display().to_string())
}

/// Returns what tells a process of this machine that lives from all that have its number later: the machine's boot, where its number
/// counts, and the ticks after the boot at which the process began.
fn birth(process: u32) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // Fields from the third on: before it is the name, which may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // One that is dead and not yet waited for holds nothing.
    let lives = !matches!(fields.next()?, "Z" | "X");
    let began = fields.nth(18)?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    lives.then(|| format!("{} {} {began}", boot.trim(), namespace()))
}

fn read(file: &File) -> String {
    let mut text = [0; SHOWN];
    let n = file.read_at(&mut text, 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..n]).into_owned()
}

fn taken(root: &Path, file: &File) -> String {
    let text = read(file);
    let line = text.lines().next().unwrap_or("");
    let who = if line.is_empty() { "another process" } else { line };
    format!(
        "{}: {} runs here: wait until it ends or stop it; `ambitus watch`, `runs` and `export` may look on",
        root.display(),
        who.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let first = Lock::take(&root).unwrap();
        let refused = Lock::take(&root).unwrap_err();
        assert_eq!(refused.exit_code(), 2);
        let mine = format!("process {} on ", std::process::id());
        assert!(refused.to_string().contains(&mine), "{refused}");
        drop(first);
        Lock::take(&root).unwrap();
    }

    #[test]
    fn who_holds_a_folder_is_seen_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        assert_eq!(Lock::holder(dir.path()), Holder::Nobody);
        assert!(!path.exists());
        let lock = Lock::take(dir.path()).unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Here);
        let text = std::fs::read_to_string(&path).unwrap();
        // Another process has the number now, or none, or the file came from elsewhere.
        let (first, born) = text.split_once('\n').unwrap();
        std::fs::write(&path, format!("{first}\n{born}1\n")).unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Nobody);
        std::fs::write(&path, format!("process 4194305 on {}\n{born}", host())).unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Nobody);
        let elsewhere = born.replace("pid:[", "pid:[9");
        assert_ne!(elsewhere, born);
        std::fs::write(&path, format!("{first}\n{elsewhere}")).unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Unknown(first.to_owned()));
        std::fs::write(&path, format!("process 1 on another.host\n{born}")).unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Unknown("process 1 on another.host".to_owned()));
        for damaged in ["", "process\n", "\u{0}\u{ff}"] {
            std::fs::write(&path, damaged).unwrap();
            assert!(matches!(Lock::holder(dir.path()), Holder::Unknown(_)), "{damaged:?}");
        }
        drop(lock);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Dead, and not waited for.
        while birth(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    /// Many at once, some of which take the folder away again: never two at a time.
    #[test]
    fn never_two_at_a_time() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let inside = AtomicU32::new(0);
        std::thread::scope(|s| {
            for k in 0..4 {
                let (root, inside) = (&root, &inside);
                s.spawn(move || {
                    for _ in 0..50 {
                        // However long the others have it: a try that is refused is repeated.
                        let lock = (0..1_000_000).find_map(|_| {
                            std::thread::yield_now();
                            Lock::take(root).ok()
                        });
                        let lock = lock.expect("had by others for a million tries");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        // Whoever takes the folder away is done with it: from then on another may have a new one.
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if k % 2 == 0 {
                            std::fs::remove_file(root.join(LOCK_FILE)).unwrap();
                            let _ = std::fs::remove_dir(root);
                        }
                        drop(lock);
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(LOCK_FILE);
        assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
        assert_eq!(Lock::take(dir.path()).unwrap_err().exit_code(), 6);
        std::fs::remove_file(&lock).unwrap();
        let target = dir.path().join("target");
        std::os::unix::fs::symlink(&target, &lock).unwrap();
        assert_eq!(Lock::take(dir.path()).unwrap_err().exit_code(), 6);
        assert!(!target.exists());
    }
}
