//! What the emulated card says of operations of warps, late copies and shared memory that a launch asks for: tiny kernels, right ones and
//! wrong ones.

use crate::{Emulation, emulation, of_driver};
use ambitus_cuda::nvrtc;
use ambitus_ir::{DType, TensorType};
use ambitus_testkit::{Rng, Tensor};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{from_ref, null_mut};

const CODE: &str = include_str!("../../../crates/ambitus-cuda/tests/it/warp.cu");
pub const LAUNCH_FAILED: c_int = 719;
const INVALID_VALUE: c_int = 1;

/// Sixteen bytes that are read at once.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
struct Chunk([u32; 4]);

/// The tiny kernels, loaded.
pub struct Kernels(*mut c_void);

impl Kernels {
    pub fn load(name: &str, code: &str) -> Kernels {
        let compiled = nvrtc::compile_alone(name, code, "sm_80").expect("the kernels compile");
        let mut module = null_mut();
        type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
        // SAFETY: the emulated driver's function, on a live pointer and an image that it made.
        let rc =
            unsafe { of_driver::<Load>("cuModuleLoadData")(&mut module, compiled.image.as_ptr().cast()) };
        assert_eq!(rc, 0);
        Kernels(module)
    }

    fn function(&self, name: &str) -> *mut c_void {
        let (mut function, name) = (null_mut(), CString::new(name).expect("a name"));
        type Get = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
        // SAFETY: as above, on the module that was loaded.
        let rc = unsafe { of_driver::<Get>("cuModuleGetFunction")(&mut function, self.0, name.as_ptr()) };
        assert_eq!(rc, 0, "{name:?}");
        function
    }

    /// Runs one block of a kernel; `args` is laid out as its struct, with addresses of live memory in it.
    pub fn run<A>(&self, name: &str, threads: c_uint, shared: c_uint, args: &A) -> c_int {
        type Launch = unsafe extern "C" fn(
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> c_int;
        let mut parameters = [from_ref(args).cast_mut().cast::<c_void>()];
        // SAFETY: callers lay out the arguments as the kernel's struct; memory of the card is memory of the process.
        unsafe {
            of_driver::<Launch>("cuLaunchKernel")(
                self.function(name),
                1,
                1,
                1,
                threads,
                1,
                1,
                shared,
                null_mut(),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}

/// Every order of threads, with copies that land at once and late.
fn each_way(mut seen: impl FnMut(&Kernels)) {
    for turns in 0..=4 {
        for late in [false, true] {
            let Some(_one) = emulation(Emulation { turns, late, ..Emulation::default() }) else { return };
            seen(&Kernels::load("warp.cu", CODE));
        }
    }
}

fn with_races(seen: impl FnOnce(&Kernels)) {
    let Some(_one) = emulation(Emulation { late: true, races: true, ..Emulation::default() }) else { return };
    seen(&Kernels::load("warp.cu", CODE));
}

#[repr(C)]
struct Products {
    a: *const u16,
    b: *const u16,
    c: *mut f32,
    kind: i32,
}

#[test]
fn products_of_fragments_are_those_of_matrices() {
    let mut rng = Rng::new(3);
    for (kind, dtype, k) in [(0, DType::BF16, 16), (1, DType::F16, 16), (2, DType::F16, 8)] {
        let mut matrix = |dtype, rows, cols| {
            rng.tensor(TensorType { dtype, pitch: cols, ..TensorType::f32(&[rows, cols]) }, -2.0, 2.0)
        };
        let (a, b, c) = (matrix(dtype, 16, k), matrix(dtype, k, 8), matrix(DType::F32, 16, 8));
        let narrow =
            |t: &Tensor| t.to_bytes().chunks(2).map(|x| u16::from_ne_bytes([x[0], x[1]])).collect::<Vec<_>>();
        let (left, right) = (narrow(&a), narrow(&b));
        let mut first: Option<Vec<f32>> = None;
        each_way(|kernels| {
            let mut sums: Vec<f32> = c.data.iter().map(|x| *x as f32).collect();
            let args = Products { a: left.as_ptr(), b: right.as_ptr(), c: sums.as_mut_ptr(), kind };
            assert_eq!(kernels.run("products", 32, 0, &args), 0);
            for (i, got) in sums.iter().enumerate() {
                let want: f64 =
                    c.data[i] + (0..k).map(|j| a.data[i / 8 * k + j] * b.data[j * 8 + i % 8]).sum::<f64>();
                assert!((f64::from(*got) - want).abs() < 1e-5, "{dtype:?} {k}: {got}, not {want} at {i}");
            }
            assert!(first.get_or_insert_with(|| sums.clone()) == &sums, "other bits in another order");
        });
    }
}

#[repr(C)]
struct Fragments {
    from: *const u16,
    to: *mut u32,
    pitch: i32,
    off: i32,
    transposed: i32,
}

#[test]
fn fragments_are_rows_and_columns_of_eight_by_eight() {
    let from: Vec<u16> = (0..256).collect();
    let mut to = vec![0u32; 128];
    for transposed in [false, true] {
        each_way(|kernels| {
            let args = Fragments {
                from: from.as_ptr(),
                to: to.as_mut_ptr(),
                pitch: 24,
                off: 0,
                transposed: transposed.into(),
            };
            assert_eq!(kernels.run("fragments", 32, 0, &args), 0);
            for (i, word) in to.iter().enumerate() {
                let (lane, m) = (i / 4, i % 4);
                for e in 0..2 {
                    let (i, j) = (lane / 4, 2 * (lane % 4) + e);
                    let (row, col) = if transposed { (j, i) } else { (i, j) };
                    let want = 16 * (row + 8 * (m % 2)) + col + 8 * (m / 2);
                    assert_eq!(
                        word >> (16 * e) & 0xffff,
                        want as u32,
                        "lane {lane}, matrix {m}, {transposed}"
                    );
                }
            }
        });
    }
}

#[test]
fn rows_of_fragments_are_aligned_and_wait_for_each_other_in_one_bank() {
    let (from, mut to) = (vec![1u16; 256], vec![0u32; 128]);
    with_races(|kernels| {
        let mut run = |pitch, off| {
            let args = Fragments { from: from.as_ptr(), to: to.as_mut_ptr(), pitch, off, transposed: 0 };
            kernels.run("fragments", 32, 0, &args)
        };
        assert_eq!(run(24, 1), LAUNCH_FAILED);
        let again = |pitch, run: &mut dyn FnMut(i32, i32) -> c_int| {
            crate::emulated::conflicts("fragments");
            assert_eq!(run(pitch, 0), 0);
            crate::emulated::conflicts("fragments").1
        };
        // Rows of 48 bytes lie in other banks, rows of 128 in the same.
        let (few, many) = (again(24, &mut run), again(64, &mut run));
        assert!(many >= few + 4 * 7, "{few} and {many} conflicts");
    });
}

#[repr(C)]
struct Copies {
    from: *const Chunk,
    to: *mut u32,
    tiles: i32,
    n: i32,
}

/// What every thread of `copies` adds up.
fn sums(from: &[Chunk], tiles: usize, n: usize) -> Vec<u32> {
    let of = |me: usize| {
        let chunks = (0..tiles)
            .map(|tile| tile * 64 + (me + 17) % 64)
            .map(|at| if at < n { from[at].0 } else { [0; 4] });
        chunks.flatten().fold(0u32, |sum, word| sum.wrapping_mul(31).wrapping_add(word))
    };
    (0..64).map(of).collect()
}

#[test]
fn copies_land_early_or_late_and_no_wait_may_be_missing() {
    let (tiles, n) = (5, 5 * 64 - 9);
    let from: Vec<Chunk> = (0..n as u32).map(|i| Chunk([i, i * i, 7, !i])).collect();
    let mut to = vec![0; 64];
    let args = Copies { from: from.as_ptr(), to: to.as_mut_ptr(), tiles: tiles as i32, n: n as i32 };
    let want = sums(&from, tiles, n);
    each_way(|kernels| {
        assert_eq!(kernels.run("copies", 64, 0, &args), 0);
        assert_eq!(to, want);
    });
    let lines = CODE.lines().enumerate();
    let stands = |line: &str| {
        ["copies_commit()", "copies_wait(", "__syncthreads()"].iter().any(|word| line.contains(word))
    };
    let (first, last) = ["KERNEL(copies)", "a.to[me] = sum"]
        .map(|at| CODE.lines().position(|l| l.contains(at)).expect("a line"))
        .into();
    let places: Vec<usize> =
        lines.filter(|(i, line)| (first..last).contains(i) && stands(line)).map(|(i, _)| i + 1).collect();
    assert_eq!(places.len(), 4, "{places:?}");
    with_races(|kernels| {
        assert_eq!(kernels.run("copies", 64, 0, &args), 0);
        for line in places {
            crate::mutations::without(&format!("warp.cu:{line}"), || {
                assert_eq!(kernels.run("copies", 64, 0, &args), LAUNCH_FAILED, "without line {line}");
            });
        }
        assert_eq!(kernels.run("unawaited", 32, 0, &from.as_ptr()), LAUNCH_FAILED);
    });
}

#[repr(C)]
struct Dynamic {
    to: *mut u32,
    n: i32,
    beyond: i32,
    filled: i32,
}

#[test]
fn shared_memory_of_a_launch_has_bounds_and_nothing_in_it() {
    let mut to = vec![0u32; 32 << 10];
    let mut dynamic =
        |n: usize, [beyond, filled]: [i32; 2]| Dynamic { to: to.as_mut_ptr(), n: n as i32, beyond, filled };
    let (filled, found, beyond) = (dynamic(100, [0, 1]), dynamic(100, [0, 0]), dynamic(100, [1, 1]));
    let large = dynamic(16 << 10, [0, 1]);
    each_way(|kernels| {
        assert_eq!(kernels.run("dynamic", 32, 400, &filled), 0);
        assert!((0..100).all(|i| to[i] == 99 - i as u32));
        assert_eq!(kernels.run("dynamic", 32, 400, &found), 0);
        assert!(to[..100].iter().all(|word| f32::from_bits(*word).is_nan()), "what was there before");
        assert_eq!(kernels.run("dynamic", 32, 400, &beyond), LAUNCH_FAILED);
        // More than 48 KiB only for a kernel that asked.
        assert_eq!(kernels.run("dynamic", 32, 64 << 10, &large), INVALID_VALUE);
        type Set = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
        let ask = |bytes| {
            // SAFETY: the emulated driver's function, on a function that it gave.
            unsafe { of_driver::<Set>("cuFuncSetAttribute")(kernels.function("dynamic"), 8, bytes) }
        };
        assert_eq!(ask(200 << 10), INVALID_VALUE);
        assert_eq!(ask(64 << 10), 0);
        assert_eq!(kernels.run("dynamic", 32, 64 << 10, &large), 0);
        assert!((0..16 << 10).all(|i| to[i] == ((16 << 10) - 1 - i) as u32));
    });
    with_races(|kernels| assert_eq!(kernels.run("dynamic", 32, 400, &beyond), LAUNCH_FAILED));
}

#[repr(C)]
struct Apart {
    to: *mut f32,
    missing: i32,
}

#[test]
fn lanes_that_are_gone_or_elsewhere_are_faults() {
    let mut to = vec![0.0; 32];
    for missing in [0, 1] {
        let args = Apart { to: to.as_mut_ptr(), missing };
        each_way(|kernels| assert_eq!(kernels.run("apart", 32, 0, &args), LAUNCH_FAILED));
    }
}
