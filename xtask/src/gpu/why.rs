//! Why is it as fast as it is: the profiler's counters of the kernels that take longest.

use super::{Item, Run};
use std::process::Command;
use std::time::Instant;

pub const ITEMS: &[Item] = &[("Counters of kernels", counters)];

/// Kernels by the profiler's names: attention, convolution, the head, products, norms, the update, and what moves memory.
const KERNELS: &str =
    "regex:attention|conv_grouped|head_sums|head_grad|gemm|norm_rows|column_sums|adamw|cast|rotary";
/// Shares of what the card can do, in percent: tensor cores, memory, issue slots, resident warps; and conflicts in shared memory.
const METRICS: &str = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active,\
dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__issue_active.avg.pct_of_peak_sustained_elapsed,\
sm__warps_active.avg.pct_of_peak_sustained_active,\
l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,gpu__time_duration.sum";
/// Launches of which counters are read.
const LAUNCHES: &str = "60";

fn counters(run: &mut Run<'_>) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let seconds = run.end.saturating_duration_since(Instant::now()).as_secs();
    let mut command = Command::new("timeout");
    command.args([&format!("{seconds}"), "ncu", "--csv", "--page", "raw", "--metrics", METRICS]);
    command.args(["--kernel-name", KERNELS, "--launch-count", LAUNCHES, "--graph-profiling", "node"]);
    command.arg(&program).args(["work", "step", &run.options.card.to_string()]);
    let said = match command.output() {
        Ok(said) if said.status.code() != Some(127) => said,
        _ => {
            run.page.line("ncu is not installed here: not run.");
            return Ok(());
        }
    };
    let text = String::from_utf8_lossy(&said.stdout);
    // What the program and the profiler print comes before the table.
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with('"')).collect();
    if table.len() < 3 {
        let why = String::from_utf8_lossy(&said.stderr);
        run.page.line(&format!("ncu gave no counters: {} {}", text.trim(), why.trim()));
        return Ok(());
    }
    run.page.line("```csv");
    table.iter().for_each(|line| run.page.line(line));
    run.page.line("```");
    Ok(())
}
