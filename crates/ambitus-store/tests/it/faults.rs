//! Every operation of saving fails once, and from then on, in every way: an earlier checkpoint always survives.

use std::path::Path;
use std::sync::Arc;

use crate::common::{self, disk::MemDisk};
use ambitus_store::{Fault, FaultDisk, RealDisk, write_atomic, write_atomic_on};

#[test]
fn whatever_fails_a_checkpoint_remains() {
    let parent = Path::new("checkpoints");
    let start = MemDisk::new();
    let base = common::base(Arc::new(start.clone()), parent);
    for fault in [Fault::Kill, Fault::Eio, Fault::Enospc, Fault::ShortWrite, Fault::Interrupted] {
        for persistent in [false, true] {
            if persistent && fault == Fault::Interrupted {
                continue; // nobody interrupts for ever
            }
            for n in 1.. {
                let below = Arc::new(start.fork(u64::MAX));
                let disk = FaultDisk::over(below.clone(), fault, n, persistent);
                let log = common::run(Arc::new(disk.clone()), parent);
                let context = format!("{fault:?} at operation {n}, persistent: {persistent}");
                if fault == Fault::ShortWrite {
                    assert!(log.errors.is_empty(), "{context}: a short write is no error: {:?}", log.errors);
                }
                if !persistent && fault != Fault::Kill {
                    assert!(log.saved.len() >= 4, "{context}: one fault costs one save: {:?}", log.errors);
                }
                common::check(below, parent, base, &log, &context);
                if n > disk.ops() {
                    assert!(n > 100, "{context}: the whole run was tried");
                    assert!(log.errors.is_empty() && log.saved.len() == 5);
                    break;
                }
            }
        }
    }
}

#[test]
fn a_small_file_is_all_old_or_all_new() {
    let (old, new) = (vec![1u8; 500], vec![2u8; 700]);
    for fault in [Fault::Kill, Fault::Eio, Fault::Enospc, Fault::ShortWrite, Fault::Interrupted] {
        for n in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("summary.json");
            std::fs::write(&path, &old).unwrap();
            let disk = FaultDisk::new(fault, n, false);
            let result = write_atomic_on(&disk, &path, &new);
            let found = std::fs::read(&path).unwrap();
            assert!(found == new || (found == old && result.is_err()), "{fault:?} at {n}");
            write_atomic(&path, b"next").unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
            if n > disk.ops() {
                break;
            }
        }
    }
}

#[test]
fn the_real_disk_behaves_like_the_one_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().join("run/checkpoints");
    std::fs::create_dir(dir.path().join("run")).unwrap();
    let base = common::base(Arc::new(RealDisk), &parent);
    let log = common::run(Arc::new(RealDisk), &parent);
    assert!(log.errors.is_empty(), "{:?}", log.errors);
    common::check(Arc::new(RealDisk), &parent, base, &log, "no fault");
}
