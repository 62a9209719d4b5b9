//! What was found, as a table.

use super::{Graded, Report};
use std::fmt::Write;

const MIB: f64 = (1 << 20) as f64;
/// Sizes of plans that are told apart, MiB.
const SIZES: [(f64, f64); 3] = [(0.0, 100.0), (100.0, 500.0), (500.0, f64::INFINITY)];

/// Returns the report for people, in Markdown.
pub fn table(report: &Report) -> String {
    let mut out = String::from(
        "| plan | processes | above plan | slack % median / p95 / most | slack MiB median / p95 / most / least | the least, of |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut row = |name: String, of: &dyn Fn(&&Graded) -> bool| {
        let all: Vec<&Graded> = report.graded.iter().filter(of).collect();
        let Some(worst) = all.iter().min_by_key(|g| g.slack()) else { return };
        let bytes = spread(all.iter().map(|g| g.slack() as f64 / MIB).collect());
        let share = spread(all.iter().map(|g| 100.0 * g.slack() as f64 / g.planned.max(1) as f64).collect());
        let above = all.iter().filter(|g| g.slack() < 0).count();
        let _ = writeln!(
            out,
            "| {name} | {} | {above} | {:.1} / {:.1} / {:.1} | {:.1} / {:.1} / {:.1} / {:.1} | {} |",
            all.len(),
            share[1],
            share[2],
            share[3],
            bytes[1],
            bytes[2],
            bytes[3],
            bytes[0],
            worst.what
        );
    };
    for (low, high) in SIZES {
        let name = if high.is_finite() { format!("{low} to {high} MiB") } else { format!("over {low} MiB") };
        row(name, &|g| (low..high).contains(&(g.planned as f64 / MIB)));
    }
    let mut ranks: Vec<usize> = report.graded.iter().map(|g| g.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    for n in ranks {
        row(format!("{n} rank{}", if n == 1 { "" } else { "s" }), &|g| g.ranks == n);
    }
    let above = report.phases.iter().filter(|p| p.slack() < 0).count();
    let bound = spread(report.over_bound.clone());
    let over = report.over_bound.iter().filter(|x| **x > 1.02).count();
    let _ = write!(
        out,
        "\nphases: {} measured, {above} above their plan\nsmallest budgets tried on both sides: {}\ntransient bytes over the \
         most that live at once: median {:.4}, p95 {:.4}, most {:.4}; over 1.02 in {over} of {} programs\nbroken promises: {}",
        report.phases.len(),
        report.minimums,
        bound[1],
        bound[2],
        bound[3],
        report.over_bound.len(),
        report.broken.len()
    );
    out
}

/// Returns least, median, 95th percentile and most.
fn spread(mut of: Vec<f64>) -> [f64; 4] {
    of.sort_by(f64::total_cmp);
    let at =
        |share: f64| of.get(((of.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(0.0);
    [at(0.0), at(0.5), at(0.95), at(1.0)]
}
