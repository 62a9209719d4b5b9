//! Times the CPU kernels: `cargo run --release -p ambitus-exec --example kernel_bench -- [filter] [threads]`.
//! Prints the best and median time of several runs and the rate.

use ambitus_exec::cpu::kernels::*;
use std::time::Instant;

/// Seconds: CPU time of this thread when all work runs on it (not disturbed by other processes), else wall time.
fn now(threads: usize) -> f64 {
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the result.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn time(name: &str, (filter, threads): (&str, usize), flop: f64, mut f: impl FnMut()) {
    if !name.contains(filter) {
        return;
    }
    let mut times: Vec<f64> = Vec::new();
    f();
    let start = Instant::now();
    while times.len() < 5 || (start.elapsed().as_secs_f64() < 0.7 && times.len() < 400) {
        let t = now(threads);
        f();
        times.push(now(threads) - t);
    }
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0], times[times.len() / 2]);
    println!(
        "{name:34} best {:9.1} us  median {:9.1} us  {:7.1} G/s",
        best * 1e6,
        median * 1e6,
        flop / best / 1e9
    );
}

/// Deterministic values on a cache-line boundary, as an executor's arena has them.
fn data(n: usize) -> &'static mut [f32] {
    let all: &'static mut [f32] =
        Vec::leak((0..n + 16).map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 1001.0).collect());
    let skip = all.as_ptr().align_offset(64);
    &mut all[skip..skip + n]
}

fn gemms(pool: &Pool, filter: (&str, usize)) {
    let shapes = [
        ("512", 1024, 512, 512),
        ("ff1", 1024, 1024, 512),
        ("ff2", 1024, 512, 1024),
        ("dw", 512, 512, 1024),
        ("dw-ff", 1024, 512, 1024),
        ("adaln", 4, 3072, 512),
        ("adaln-dw", 3072, 512, 4),
        ("mel", 1024, 100, 512),
        ("big", 2048, 2048, 2048),
    ];
    for (name, m, n, k) in shapes {
        let (a, b) = (&*data(m * k), &*data(k * n));
        let c = data(m * n);
        let ws = data(gemm_workspace(m, n, k, pool.threads()));
        let bf16 = vec![0x3f80; m.max(n) * k];
        let flop = 2.0 * (m * n * k) as f64;
        for (layout, ta, tb) in [("nn", false, false), ("nt", false, true), ("tn", true, false)] {
            let a =
                if ta { Operand::new(Mat::dense(a, k, m)).t() } else { Operand::new(Mat::dense(a, m, k)) };
            let b =
                if tb { Operand::new(Mat::dense(b, n, k)).t() } else { Operand::new(Mat::dense(b, k, n)) };
            time(&format!("gemm {name} {m}x{n}x{k} {layout}"), filter, flop, || {
                gemm(pool, 1.0, a, b, 0.0, MatMut::dense(c, m, n), None, ws)
            });
            let half = |rows, cols, t: bool| {
                let x = Operand::new(Rows::Half(Half::Bf16, Mat::<u16>::dense(&bf16, rows, cols)));
                if t { x.t() } else { x }
            };
            let a = if ta { half(k, m, true) } else { half(m, k, false) };
            let b = if tb { half(n, k, true) } else { half(k, n, false) };
            time(&format!("gemm bf16 {name} {m}x{n}x{k} {layout}"), filter, flop, || {
                gemm_narrow(pool, a, b, 0.0, RowsMut::F32(MatMut::dense(c, m, n)), None, ws)
            });
        }
    }
}

fn attentions(pool: &Pool, filter: (&str, usize)) {
    let spec = Attention { heads: 8, kv_heads: 8, head_dim: 64, causal: false, scale: 0.125 };
    for (segments, n) in [(4, 256), (1, 1024), (1, 2800)] {
        let (rows, cols) = (segments * n, 512);
        let seg: Vec<i32> = (0..=segments).map(|s| (s * n) as i32).collect();
        let mat = || Mat::dense(data(rows * cols), rows, cols);
        let (q, k, v, d_o) = (mat(), mat(), mat(), mat());
        let (o, lse) = (data(rows * cols), data(rows * 8));
        let ws = data(attention_workspace(&spec, pool.threads(), false));
        let flop = 4.0 * (segments * n * n * cols) as f64;
        time(&format!("attention {segments}x{n}"), filter, flop, || {
            let (o, lse) = (MatMut::dense(o, rows, cols), MatMut::dense(lse, rows, 8));
            attention(pool, q, k, v, &seg, &seg, &spec, o, lse, ws)
        });
        let ws = data(attention_grad_workspace(&spec, rows, pool.threads(), false));
        let (o, lse) = (Mat::dense(o, rows, cols), Mat::dense(lse, rows, 8));
        let [dq, dk, dv] = [(); 3].map(|()| data(rows * cols));
        time(&format!("attention grad {segments}x{n}"), filter, 2.5 * flop, || {
            let [dq, dk, dv] = [&mut *dq, &mut *dk, &mut *dv].map(|x| MatMut::dense(x, rows, cols));
            attention_grad(pool, q, k, v, o, lse, d_o, &seg, &seg, &spec, dq, dk, dv, ws)
        });
    }
}

/// Everything else, at the shapes of an F5 step of four clips of 256 frames (d = 512).
fn others(pool: &Pool, filter: (&str, usize)) {
    let (t, d, segments) = (1024, 512, 4);
    let seg = [0, 256, 512, 768, 1024];
    let (n, th) = ((t * d) as f64, pool.threads());
    let (x, dy) = (&*data(t * d), &*data(t * d));
    let (xm, dym) = (Mat::dense(x, t, d), Mat::dense(dy, t, d));
    let (wide, wide_dy) = (&*data(t * 2 * d), &*data(t * 2 * d));
    let (wm, wdm) = (Mat::dense(wide, t, 2 * d), Mat::dense(wide_dy, t, 2 * d));
    let [out, wide_out] = [data(t * d), data(t * 2 * d)];
    let table = &*data(segments * d);
    let tm = Mat::dense(table, segments, d);
    let (g1, g2) = (data(segments * d), data(segments * d));
    let ws = data(8 << 20);
    let (gamma, vec) = (&*data(2 * d), data(2 * d));
    let vec2 = data(2 * d);
    for act in [Act::GeluTanh, Act::GeluErf, Act::Mish, Act::Silu] {
        time(&format!("{act:?}"), filter, 2.0 * n, || {
            activation(pool, act, wm, MatMut::dense(wide_out, t, 2 * d))
        });
        time(&format!("{act:?} grad"), filter, 2.0 * n, || {
            activation_grad(pool, act, wm, wdm, MatMut::dense(wide_out, t, 2 * d))
        });
    }
    time("axpby", filter, n, || axpby(pool, 1.0, xm, 1.0, dym, MatMut::dense(out, t, d)));
    time("ada_layer_norm", filter, n, || {
        ada_layer_norm(pool, xm, &seg, tm, tm, 1e-6, MatMut::dense(out, t, d))
    });
    time("ada_layer_norm_grad", filter, n, || {
        let (g1, g2) = (MatMut::dense(g1, segments, d), MatMut::dense(g2, segments, d));
        ada_layer_norm_grad(pool, xm, &seg, tm, 1e-6, dym, MatMut::dense(out, t, d), g1, g2, ws)
    });
    time("layer_norm_grad", filter, n, || {
        let (dg, db) = (Some(&mut vec[..]), Some(&mut vec2[..]));
        layer_norm_grad(pool, xm, Some(gamma), 1e-6, dym, MatMut::dense(out, t, d), 1.0, dg, db, ws)
    });
    time("gated_residual", filter, n, || gated_residual(pool, xm, dym, tm, &seg, MatMut::dense(out, t, d)));
    time("gated_residual_grad", filter, n, || {
        let g1 = MatMut::dense(g1, segments, d);
        gated_residual_grad(pool, xm, tm, &seg, dym, MatMut::dense(out, t, d), g1, ws)
    });
    let inv: Vec<f32> = (0..32).map(|i| 1e4f32.powf(-(i as f32) / 32.0)).collect();
    for (name, rot_heads, pairing) in [
        ("rotary interleaved", 8, Pairing::Interleaved),
        ("rotary one head", 1, Pairing::Interleaved),
        ("rotary half", 8, Pairing::HalfSplit),
    ] {
        let spec = Rotary { head_dim: 64, rot_heads, pairing, inverse: false };
        time(name, filter, n, || rotary(pool, Some(xm), (&seg, None), &spec, &inv, MatMut::dense(out, t, d)));
    }
    time("column_sum", filter, n, || column_sum(pool, xm, 1.0, vec, ws));
    time("concat", filter, n, || concat_cols(pool, &[xm], MatMut::dense(out, t, d)));
    time("dropout", filter, n, || dropout(pool, xm, &seg, &[[1, 2]; 4], 7, 0.1, MatMut::dense(out, t, d)));
    let rest = (grn_workspace(t, segments, 2 * d), masked_mse_workspace(t, d));
    time("grn", filter, 2.0 * n, || {
        let out = MatMut::dense(wide_out, t, 2 * d);
        grn(pool, wm, &seg, gamma, gamma, out, &mut ws[..rest.0])
    });
    time("grn_grad", filter, 2.0 * n, || {
        let out = MatMut::dense(wide_out, t, 2 * d);
        grn_grad(pool, wm, &seg, gamma, wdm, out, 1.0, vec, vec2, &mut ws[..rest.0])
    });
    let mask = vec![1.0; t];
    time("masked_mse", filter, n, || {
        std::hint::black_box(masked_mse(pool, xm, dym, &mask, 1.0, &mut ws[..rest.1]));
    });
    for (name, spec) in [
        ("conv grouped", Conv1d { cin: d, cout: d, groups: 16, kernel: 31, pad_left: 15 }),
        ("conv depthwise", Conv1d { cin: d, cout: d, groups: d, kernel: 7, pad_left: 3 }),
    ] {
        let (w, dw) = (&*data(spec.weights()), data(spec.weights()));
        let ws = data(conv1d_workspace(&spec, t, segments, th));
        let flop = 2.0 * (t * spec.weights()) as f64;
        time(name, filter, flop, || {
            conv1d(pool, xm, &seg, w, Some(gamma), &spec, MatMut::dense(out, t, d), ws)
        });
        time(&format!("{name} grad input"), filter, flop, || {
            conv1d_grad_input(pool, dym, &seg, w, &spec, MatMut::dense(out, t, d), ws)
        });
        time(&format!("{name} grad weight"), filter, flop, || {
            conv1d_grad_weight(pool, xm, dym, &seg, &spec, 1.0, dw, ws)
        });
    }
    let (p, m, v, g) = (data(4 << 20), data(4 << 20), data(4 << 20), &*data(4 << 20));
    let step = AdamW {
        lr: 1e-4,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.01,
        bias_correction1: 0.5,
        bias_correction2: 0.1,
        grad_scale: 1.0,
        apply: true,
    };
    let bytes = (4 << 20) as f64;
    time("adamw (bytes/s)", filter, 28.0 * bytes, || adamw(pool, &step, p, g, m, v));
    time("lerp (bytes/s)", filter, 12.0 * bytes, || lerp(pool, 0.001, g, p));
    time("sum_squares (bytes/s)", filter, 4.0 * bytes, || {
        std::hint::black_box(sum_squares(pool, g, ws));
    });
    let (vocab, rows) = (8192, 1024);
    let (w, dw, dx) = (&*data(vocab * d), data(vocab * d), data(rows * d));
    let labels: Vec<i32> = (0..rows).map(|i| (i * 37 % vocab) as i32).collect();
    let tile = 512;
    let ws = data(linear_cross_entropy_workspace(rows, d, vocab, tile, th));
    let flop = 6.0 * (rows * vocab * d) as f64;
    time("linear_cross_entropy + grad", filter, flop, || {
        let wm = Mat::dense(w, vocab, d);
        let grad = CrossEntropyGrad {
            scale: 1.0,
            dx: MatMut::dense(dx, rows, d),
            dw: Some(MatMut::dense(dw, vocab, d)),
            acc: 1.0,
        };
        let xm = xm.rows_range(0..rows);
        let head = Head { x: xm, w: wm, labels: &labels, first: 0, of: vocab, tile };
        let loss = linear_cross_entropy(pool, head, 1.0, Some(grad), ws);
        std::hint::black_box(loss);
    });
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let filter = args.get(1).map_or("", |s| s.as_str());
    let threads = args.get(2).and_then(|s| s.parse().ok()).unwrap_or(2);
    let isa = args
        .get(3)
        .and_then(|name| Isa::available().iter().find(|i| i.name() == name))
        .copied()
        .unwrap_or(Isa::best());
    let pool = Pool::with_isa(threads, isa).expect("thread pool");
    println!("{} threads, {}", pool.threads(), pool.isa().name());
    // As an executor does: all kernels run on a pool thread.
    pool.enter(|| {
        gemms(&pool, (filter, threads));
        attentions(&pool, (filter, threads));
        others(&pool, (filter, threads));
    });
}
