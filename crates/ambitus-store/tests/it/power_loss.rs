//! Power loss at every operation of saving: what was not flushed may be lost, kept or torn, in any combination.

use std::path::Path;
use std::sync::Arc;

use crate::common::{self, disk::MemDisk};

/// States tried for each operation at which the power goes.
const DRAWS: u64 = 100;

#[test]
fn whenever_the_power_goes_a_checkpoint_remains() {
    let disk = MemDisk::new();
    let parent = Path::new("checkpoints");
    let base = common::base(Arc::new(disk.clone()), parent);
    let mut states = 0;
    for n in 0.. {
        let disk = disk.fork(n);
        let log = common::run(Arc::new(disk.clone()), parent);
        for seed in 0..DRAWS {
            // SplitMix64.
            let mut x = seed ^ (n << 32);
            let draw = || {
                x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            };
            common::check(
                Arc::new(disk.crash(draw)),
                parent,
                base,
                &log,
                &format!("power lost at operation {n}, draw {seed}"),
            );
            states += 1;
        }
        if !disk.is_off() {
            break;
        }
    }
    assert!(states >= 10_000, "{states}");
}
