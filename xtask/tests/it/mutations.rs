//! Deletes the barriers of the kernels, the commits and waits of their copies and products, and fences, one at a time: the emulated card must
//! find it.
//!
//! A tenth of them, drawn anew each time; all with `AMBITUS_LONG=1`; those of a file with `AMBITUS_PLACES=conv.cu`.

use crate::{Emulation, emulated, emulation, of_driver};
use ambitus_ir::DType;
use ambitus_testkit::Case;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use xtask::ops;

/// What is deleted.
const DELETED: [&str; 8] = [
    "__syncthreads()",
    "__syncwarp()",
    "copies_commit()",
    "copies_wait(",
    "wgmma_fence(",
    "wgmma_commit()",
    "wgmma_wait(",
    "fence_products()",
];

/// Returns the places of all of it in all kernels, as in `conv.cu:149`.
fn barriers() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/ambitus-cuda/src/kernels");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the kernels") {
        let path = entry.expect("a file").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // Two headers have barriers, the others say what commits, waits and fences are.
        if !name.ends_with(".cu") && !["device.h", "tiles.h"].contains(&&*name) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file of kernels");
        let lines = text.lines().enumerate();
        let barrier = |line: &str| DELETED.iter().any(|word| line.contains(word));
        found.extend(lines.filter(|(_, line)| barrier(line)).map(|(i, _)| format!("{name}:{}", i + 1)));
    }
    found.sort();
    found
}

/// Calls a function of the emulated driver with a barrier's place.
fn with_place<R>(function: &str, place: &str) -> R {
    let place = CString::new(place).expect("a text");
    // SAFETY: both functions of the emulated driver that are called so take one text, which they copy.
    unsafe { of_driver::<unsafe extern "C" fn(*const c_char) -> R>(function)(place.as_ptr()) }
}

/// Does something while what stands at a place is not there.
pub fn without<R>(place: &str, what: impl FnOnce() -> R) -> R {
    with_place::<()>("emulated_delete", place);
    let done = what();
    with_place::<()>("emulated_delete", "");
    done
}

/// Returns the cases in an element type that come by each barrier.
fn cases_by_barrier(places: &[String], dtype: DType, hopper: bool) -> BTreeMap<String, Vec<Case>> {
    let mut found: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    emulated::each_case(dtype, hopper, |case, _| {
        for place in places {
            if with_place::<u32>("emulated_came_by", place) > 0 {
                found.entry(place.clone()).or_default().push(case.clone());
            }
        }
    });
    found
}

/// Returns the barriers without which no case fails.
fn survivors(places: Vec<String>, dtype: DType, hopper: bool) -> Vec<String> {
    let how = Emulation { races: true, hopper, ..Emulation::default() };
    let Some(_one) = emulation(how).filter(|_| !places.is_empty()) else { return Vec::new() };
    let cases = cases_by_barrier(&places, dtype, hopper);
    let survives = |place: &String| {
        let fails = |case: &&Case| {
            let (_, outcome) = ops::check(emulated::card(), dtype, std::slice::from_ref(*case));
            !outcome.faults.is_empty()
        };
        let failed = without(place, || cases.get(place).into_iter().flatten().find(fails));
        println!("{place}: {}", failed.map_or("survives", |case| &case.name));
        failed.is_none()
    };
    places.into_iter().filter(survives).collect()
}

#[test]
fn a_deleted_barrier_is_found() {
    let mut places = barriers();
    assert!(places.len() > 20, "{places:?}");
    if let Ok(word) = std::env::var("AMBITUS_PLACES") {
        places.retain(|place| place.contains(&word));
    } else if std::env::var_os("AMBITUS_LONG").is_none() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").subsec_nanos() as usize;
        places = places.into_iter().enumerate().filter(|(i, _)| i % 10 == now % 10).map(|(_, p)| p).collect();
    }
    println!("without {}", places.join(", without "));
    // Some stand only where elements are narrow, some only on Hopper.
    let survived = survivors(survivors(places, DType::F32, false), DType::BF16, false);
    let survived = survivors(survived, DType::BF16, true);
    assert!(survived.is_empty(), "no case fails without the barriers of {}", survived.join(", "));
}
