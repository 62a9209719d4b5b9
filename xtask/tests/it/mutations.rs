//! Watches every kernel for races, and deletes the barriers of the kernels, the commits and waits of their copies and products, and fences, one
//! at a time: the emulated card must find it.
//!
//! A tenth is deleted, drawn anew each time; all with `AMBITUS_LONG=1`; those of a file with `AMBITUS_PLACES=conv.cu`.

use crate::{Emulation, apart, emulated, emulation, of_driver};
use ambitus_ir::DType;
use ambitus_testkit::{Case, drawn};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::path::Path;
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

/// What the cases in an element type showed while nothing was deleted, on a card or on Hopper.
struct Watched {
    dtype: DType,
    hopper: bool,
    /// Races, and results that are not the interpreter's.
    faults: Vec<String>,
    /// The cases that come by each barrier.
    cases: BTreeMap<String, Vec<Case>>,
}

impl Watched {
    /// Runs every case; `None` without a C++ compiler.
    fn of(places: &[String], (dtype, hopper): (DType, bool)) -> Option<Watched> {
        let _one = emulation(Emulation { races: true, hopper, ..Emulation::default() })?;
        let mut watched = Watched { dtype, hopper, faults: Vec::new(), cases: BTreeMap::new() };
        emulated::each_case(dtype, hopper, |case, outcome| {
            watched.faults.extend(outcome.faults);
            for place in places {
                if with_place::<u32>("emulated_came_by", place) > 0 {
                    watched.cases.entry(place.clone()).or_default().push(case.clone());
                }
            }
        });
        Some(watched)
    }

    /// Returns the barriers without which no case fails.
    fn survivors(&self, places: Vec<String>) -> Vec<String> {
        let how = Emulation { races: true, hopper: self.hopper, ..Emulation::default() };
        let Some(_one) = emulation(how) else { return places };
        let survives = |place: &String| {
            let fails = |case: &&Case| {
                let (_, outcome) = ops::check(emulated::card(), self.dtype, std::slice::from_ref(*case));
                !outcome.faults.is_empty()
            };
            let failed = without(place, || self.cases.get(place).into_iter().flatten().find(fails));
            println!("{place}: {}", failed.map_or("survives", |case| &case.name));
            failed.is_none()
        };
        places.into_iter().filter(survives).collect()
    }
}

/// In one test, since both need every case watched.
#[test]
fn no_kernel_has_a_race_and_a_deleted_barrier_is_found() {
    apart("mutations::no_kernel_has_a_race_and_a_deleted_barrier_is_found", races_and_deleted_barriers);
}

fn races_and_deleted_barriers() {
    let mut places = barriers();
    assert!(places.len() > 20, "{places:?}");
    match std::env::var("AMBITUS_PLACES") {
        Ok(word) => places.retain(|place| place.contains(&word)),
        Err(_) => places = drawn(places, 10),
    }
    // Some stand only where elements are narrow, some only on Hopper.
    let cards = [(DType::F32, false), (DType::BF16, false), (DType::BF16, true)];
    let Some(watched) = cards.map(|card| Watched::of(&places, card)).into_iter().collect::<Option<Vec<_>>>()
    else {
        return;
    };
    watched.iter().for_each(|seen| emulated::none(&seen.faults));
    emulated::banks_are_apart();
    println!("without {}", places.join(", without "));
    let survived = watched.iter().fold(places, |places, seen| seen.survivors(places));
    assert!(survived.is_empty(), "no case fails without the barriers of {}", survived.join(", "));
}
