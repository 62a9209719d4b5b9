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
    let all: &'static mut [f32] = Vec::leak(
        (0..n + 16)
            .map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 1001.0)
            .collect(),
    );
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
        let flop = 2.0 * (m * n * k) as f64;
        for (layout, ta, tb) in [("nn", false, false), ("nt", false, true), ("tn", true, false)] {
            let a = if ta {
                Operand::new(Mat::dense(a, k, m)).t()
            } else {
                Operand::new(Mat::dense(a, m, k))
            };
            let b = if tb {
                Operand::new(Mat::dense(b, n, k)).t()
            } else {
                Operand::new(Mat::dense(b, k, n))
            };
            time(&format!("gemm {name} {m}x{n}x{k} {layout}"), filter, flop, || {
                gemm(pool, 1.0, a, b, 0.0, MatMut::dense(c, m, n), None, ws)
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
        let ws = data(attention_workspace(&spec, pool.threads()));
        let flop = 4.0 * (segments * n * n * cols) as f64;
        time(&format!("attention {segments}x{n}"), filter, flop, || {
            let (o, lse) = (MatMut::dense(o, rows, cols), MatMut::dense(lse, rows, 8));
            attention(pool, q, k, v, &seg, &seg, &spec, o, lse, ws)
        });
        let ws = data(attention_grad_workspace(&spec, rows, rows, pool.threads()));
        let (o, lse) = (Mat::dense(o, rows, cols), Mat::dense(lse, rows, 8));
        let [dq, dk, dv] = [(); 3].map(|()| data(rows * cols));
        time(&format!("attention grad {segments}x{n}"), filter, 2.5 * flop, || {
            let [dq, dk, dv] = [&mut *dq, &mut *dk, &mut *dv].map(|x| MatMut::dense(x, rows, cols));
            attention_grad(pool, q, k, v, o, lse, d_o, &seg, &seg, &spec, dq, dk, dv, ws)
        });
    }
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
    gemms(&pool, (filter, threads));
    attentions(&pool, (filter, threads));
}
