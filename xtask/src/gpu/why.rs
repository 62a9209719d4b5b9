//! Why is it as fast as it is: the profiler's counters of the kernels that take longest.

use super::{Item, Run};
use std::process::Command;
use std::time::Instant;

pub const ITEMS: &[Item] = &[("Counters of kernels", counters)];

/// Shares of what the card can do, in percent, then conflicts in shared memory and the time in nanoseconds; with what the page calls them.
const METRICS: &[(&str, &str)] = &[
    ("gpu__time_duration.sum", "us"),
    ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", "tensor cores, %"),
    ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "memory, %"),
    ("sm__issue_active.avg.pct_of_peak_sustained_elapsed", "issue slots, %"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "resident warps, %"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "bank conflicts"),
];
/// Kernels of the page, those that take longest first.
const SHOWN: usize = 60;

/// Each kernel of the subjects' steps once for each of its grids.
fn counters(run: &mut Run<'_>) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let seconds = run.end.saturating_duration_since(Instant::now()).as_secs();
    let metrics: Vec<&str> = METRICS.iter().map(|(name, _)| *name).collect();
    let mut command = Command::new("timeout");
    command.args([&format!("{seconds}"), "ncu", "--csv", "--page", "raw", "--metrics", &metrics.join(",")]);
    command.args(["--filter-mode", "per-launch-config", "--launch-count", "1", "--graph-profiling", "node"]);
    // The card as it is found: others may use it next.
    command.args(["--clock-control", "none"]);
    command.arg(&program).args(["work", "step", &run.options.card.to_string()]);
    let said = match command.output() {
        Ok(said) if said.status.code() != Some(127) => said,
        _ => {
            run.page.line("ncu is not installed here: not run.");
            return Ok(());
        }
    };
    let text = String::from_utf8_lossy(&said.stdout);
    // What the program and the profiler print comes before the table; its second line has units.
    let mut table = text.lines().filter(|line| line.starts_with('"')).map(fields);
    let (Some(head), Some(_)) = (table.next(), table.next()) else {
        let why = String::from_utf8_lossy(&said.stderr);
        run.page.line(&format!("ncu gave no counters: {} {}", text.trim(), why.trim()));
        return Ok(());
    };
    let column = |name: &str| {
        head.iter().position(|h| h == name).ok_or_else(|| format!("ncu's table has no column {name}"))
    };
    let (kernel, grid) = (column("Kernel Name")?, column("Grid Size")?);
    let numbers = metrics.iter().map(|name| column(name)).collect::<Result<Vec<usize>, _>>()?;
    let mut kernels: Vec<(String, Vec<f64>)> = table
        .filter_map(|row| {
            let name = format!("{} {}", short(row.get(kernel)?), row.get(grid)?);
            let numbers = numbers.iter().map(|&i| row.get(i).and_then(|n| n.replace(',', "").parse().ok()));
            Some((name, numbers.map(|n| n.unwrap_or(f64::NAN)).collect()))
        })
        .collect();
    kernels.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]));
    let titles = ["kernel, grid"].into_iter().chain(METRICS.iter().map(|(_, title)| *title));
    let mut rows = vec![titles.map(str::to_owned).collect::<Vec<_>>()];
    for (name, numbers) in kernels.into_iter().take(SHOWN) {
        let numbers =
            numbers.iter().enumerate().map(|(i, n)| format!("{:.1}", if i == 0 { n / 1e3 } else { *n }));
        rows.push([name].into_iter().chain(numbers).collect());
    }
    run.page.table(&rows);
    Ok(())
}

/// Splits a line of a table whose every field is quoted.
fn fields(line: &str) -> Vec<String> {
    line.trim_matches('"').split("\",\"").map(str::to_owned).collect()
}

/// A kernel's name without types and arguments of templates, which fill lines.
fn short(name: &str) -> &str {
    let name = name.strip_prefix("void ").unwrap_or(name);
    name.split(['<', '(']).next().unwrap_or(name)
}
