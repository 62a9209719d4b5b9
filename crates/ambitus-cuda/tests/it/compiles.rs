//! Every kernel compiles for every card, without a card: within its registers, without spills.
//!
//! Needs NVRTC: `cargo xtask nvrtc` fetches it and says how to set `AMBITUS_CUDA_LIBS`. Without it the test says that it was
//! skipped; where the variable is set, it fails.

use ambitus_cuda::libraries;
use ambitus_cuda::nvrtc::{self, KernelReport};

/// Compute capabilities of Turing, Ampere (A100, GeForce, Orin), Ada, Hopper and Blackwell (B200, GeForce).
const CAPABILITIES: [(u32, u32); 8] = [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)];
/// Registers of a multiprocessor, on all of them.
const REGISTERS: u32 = 65_536;
/// Bytes of static shared memory that a block may have.
const SHARED: u32 = 48 << 10;
/// Local memory that sines and cosines of large angles take on their slow path (no spill).
const SINE_STACK: u32 = 32;

fn faults(r: &KernelReport) -> Vec<String> {
    let mut faults = Vec::new();
    if r.spilled > 0 {
        faults.push(format!("spills {} bytes", r.spilled));
    }
    if r.stack > SINE_STACK {
        faults.push(format!("keeps {} bytes in local memory", r.stack));
    }
    if r.registers > r.registers_allowed {
        faults.push(format!("takes {} registers, {} are allowed", r.registers, r.registers_allowed));
    }
    if r.registers * r.block * 2 > REGISTERS {
        faults.push(format!("{} registers x {} threads: one block a multiprocessor", r.registers, r.block));
    }
    if r.shared > SHARED {
        faults.push(format!("takes {} bytes of shared memory", r.shared));
    }
    faults
}

/// Whether there is NVRTC; where its folder is named there has to be.
fn has_nvrtc() -> bool {
    let Err(why) = nvrtc::version() else { return true };
    assert!(std::env::var_os(libraries::FOLDERS_VARIABLE).is_none(), "{why}");
    println!("SKIPPED: {why}");
    false
}

/// What a card loads, where this NVRTC makes machine code for it, and Hopper's own.
fn architectures() -> Vec<String> {
    let loaded = CAPABILITIES.map(|capability| nvrtc::architecture(capability).expect("a version"));
    let mut architectures: Vec<String> = loaded.into_iter().filter(|a| a.starts_with("sm_")).collect();
    architectures.push("sm_90a".to_owned());
    assert_eq!(architectures.len(), 9, "NVRTC 12.8 or later: {architectures:?}");
    architectures
}

/// What no program has yet: see the tests of the emulated GPU.
#[test]
fn operations_of_warps_compile_for_every_card() {
    if !has_nvrtc() {
        return;
    }
    for architecture in architectures() {
        let compiled = nvrtc::compile_alone("warp.cu", include_str!("warp.cu"), &architecture);
        assert!(!compiled.expect("the kernels compile").image.is_empty(), "{architecture}");
    }
}

#[test]
fn every_kernel_compiles_for_every_card_within_its_budget() {
    if !has_nvrtc() {
        return;
    }
    let architectures = architectures();
    let reports = std::thread::scope(|s| {
        let report = |a| move || nvrtc::report(a).expect("the kernels compile");
        let jobs: Vec<_> = architectures.iter().map(|a| s.spawn(report(a))).collect();
        jobs.into_iter().map(|job| job.join().expect("the kernels compile")).collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for r in reports.iter().flatten() {
        let what = |why| format!("{} for {}: {why}", r.kernel, r.architecture);
        all.extend(faults(r).into_iter().map(what));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
