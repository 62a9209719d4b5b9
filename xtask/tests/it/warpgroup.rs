//! What the emulated Hopper says of products of four warps: a tiny kernel, right and wrong.

use crate::warp::{Kernels, LAUNCH_FAILED};
use crate::{Emulation, emulation};
use ambitus_ir::{DType, TensorType};
use ambitus_testkit::{Rng, Tensor};

const CODE: &str = include_str!("../../../crates/ambitus-cuda/tests/it/warpgroup.cu");
const M: usize = 64;
const N: usize = 128;
const K: usize = 64;
/// Bytes of the matrices in shared memory, and those to spare: on both sides.
const SHARED: u32 = 2048 + 2 * (M + N) as u32 * K as u32;

#[repr(C)]
struct Multiply {
    a: *const u16,
    b: *const u16,
    c: *mut f32,
    half: i32,
    over_rows: i32,
    wrong: i32,
}

/// Two matrices, in 16 bits, and their product, with the second's rows as columns or as they are.
struct Matrices {
    a: Vec<u16>,
    b: Vec<u16>,
    c: Vec<f64>,
    half: bool,
    over_rows: bool,
}

impl Matrices {
    fn new(half: bool, over_rows: bool) -> Matrices {
        let dtype = if half { DType::F16 } else { DType::BF16 };
        let mut rng = Rng::new(11);
        let mut matrix = |rows, cols| {
            rng.tensor(TensorType { dtype, pitch: cols, ..TensorType::f32(&[rows, cols]) }, -2.0, 2.0)
        };
        let (a, b) = (matrix(M, K), if over_rows { matrix(K, N) } else { matrix(N, K) });
        let right = |k: usize, n: usize| b.data[if over_rows { k * N + n } else { n * K + k }];
        let c = (0..M * N).map(|i| (0..K).map(|k| a.data[i / N * K + k] * right(k, i % N)).sum()).collect();
        let narrow = |t: &Tensor| t.to_bytes().chunks(2).map(|x| u16::from_ne_bytes([x[0], x[1]])).collect();
        Matrices { a: narrow(&a), b: narrow(&b), c, half, over_rows }
    }

    fn run(&self, kernels: &Kernels, wrong: i32) -> (i32, Vec<f32>) {
        let mut c = vec![0.0; M * N];
        let args = Multiply {
            a: self.a.as_ptr(),
            b: self.b.as_ptr(),
            c: c.as_mut_ptr(),
            half: self.half.into(),
            over_rows: self.over_rows.into(),
            wrong,
        };
        (kernels.run("warpgroup", 128, SHARED, &args), c)
    }
}

#[test]
fn products_of_four_warps_are_those_of_matrices_and_wrong_ones_are_faults() {
    for (half, over_rows) in [(false, false), (true, false), (false, true), (true, true)] {
        let matrices = Matrices::new(half, over_rows);
        for (turns, late) in [(0, false), (1, true), (2, true), (3, false), (4, true)] {
            let Some(_one) = emulation(Emulation { turns, late, hopper: true, races: true }) else { return };
            let kernels = Kernels::load("warpgroup.cu", CODE);
            let (rc, c) = matrices.run(&kernels, 0);
            assert_eq!(rc, 0);
            for (i, (got, want)) in c.iter().zip(&matrices.c).enumerate() {
                assert!(
                    (f64::from(*got) - want).abs() < 1e-4,
                    "{half} {over_rows}: {got}, not {want} at {i}"
                );
            }
            // Sums that are read too early, memory that is written too early or is not seen, warps that do not agree.
            for wrong in 1..=if over_rows { 3 } else { 4 } {
                assert_eq!(matrices.run(&kernels, wrong).0, LAUNCH_FAILED, "{half} {over_rows} {wrong}");
            }
        }
    }
}
