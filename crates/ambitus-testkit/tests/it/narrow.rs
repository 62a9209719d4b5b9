//! 8-bit moments against torchao's own, recorded by `parity/adamw8bit/record.py`.

use ambitus_ir::ops::narrow::{AdamW8bit, dynamic_map};
use ambitus_ir::{DType, TensorType};
use ambitus_testkit::{Interp, Rounding, Tensor};
use safetensors::{Dtype, SafeTensors};

/// What torchao gives, which every update starts from; and one update by the interpreter: weights and scales are near, codes
/// equal but for the second moments that torchao rounds to zero.
#[test]
fn updates_are_torchaos() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parity/adamw8bit/fixtures/adamw8bit.safetensors");
    let bytes = std::fs::read(path).expect("the fixture is in the repository");
    let file = SafeTensors::deserialize(&bytes).expect("the fixture is a safetensors file");
    let read = |name: &str| {
        let t = file.tensor(name).expect(name);
        let dtype = match t.dtype() {
            Dtype::F16 => DType::F16,
            Dtype::U8 => DType::U8,
            _ => DType::F32,
        };
        // Codes lie flat here.
        let dims = if dtype == DType::U8 { vec![t.shape().iter().product()] } else { t.shape().to_vec() };
        let mut x = Tensor::from_bytes(TensorType::new(dtype, &dims), t.data());
        if dtype == DType::F16 {
            x.ty = TensorType::f32(&dims);
        }
        x
    };
    for (name, signed) in [("map_m", true), ("map_v", false)] {
        let theirs = read(name);
        for (a, b) in dynamic_map(signed).iter().zip(&theirs.data) {
            assert!((f64::from(*a) - b).abs() <= 2e-7 * b.abs(), "{name}: {a} instead of {b}");
        }
    }
    let op = AdamW8bit { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, id: 0, part: None };
    let mut interp = Interp::new(Rounding::Exact);
    let state = |t: usize, x: &str| read(&format!("{x}.{t}"));
    const MOMENTS: [&str; 4] = ["codes_m", "scales_m", "codes_v", "scales_v"];
    let zero = |x: &str| {
        let t = state(1, x);
        Tensor::full(t.ty, 0.0)
    };
    let mut raised = 0;
    for t in 1..=5 {
        let (w, moments) = match t {
            1 => (read("w"), MOMENTS.map(zero)),
            _ => (state(t - 1, "w"), MOMENTS.map(|x| state(t - 1, x))),
        };
        let mut x = vec![w, state(t, "g")];
        x.extend(moments);
        x.extend([1e-3, 1.0, t as f32, 1.0].map(Tensor::scalar));
        let y = interp.op(&op.clone().into(), &x).expect("the operands fit");
        let want: Vec<Tensor> = ["w"].iter().chain(&MOMENTS).map(|x| state(t, x)).collect();
        for (k, (have, want)) in y.iter().zip(&want).enumerate() {
            assert_eq!(have.data.len(), want.data.len());
            for (i, (a, b)) in have.data.iter().zip(&want.data).enumerate() {
                if k == 3 && *b == 0.0 && *a == 1.0 {
                    raised += 1;
                    continue;
                }
                // A second moment that was rounded to zero makes a step long, and fp32's rounding of its divisor with it.
                let moved = if k == 0 { (b - x[0].data[i]).abs() } else { 0.0 };
                let most = if k % 2 == 1 { 0.0 } else { 1e-6 * (1.0 + b.abs()) + 1e-4 * moved };
                assert!((a - b).abs() <= most, "update {t}, result {k}[{i}]: {a} instead of {b}");
            }
        }
    }
    assert!(raised > 20, "{raised}: second moments that are not zero and that torchao calls zero");
}
