//! Other runs beside a run: what differs between their recipes, and between their results.

use super::facts;
use crate::metrics::Summary;
use ambitus_recipe::size::ByteSize;
use std::collections::BTreeMap;
use std::path::Path;

/// Runs that are compared.
const MOST_RUNS: usize = 24;
/// Entries of the folder that are looked at.
const MOST_ENTRIES: usize = 1000;
/// Keys that say where something is or that no result depends on.
const NO_DIFFERENCE: [&str; 4] = ["run_dir", "data.cache", "threads", "keep"];

/// A run that is compared with this one.
#[derive(Clone, Debug)]
pub struct Other {
    /// Name of its folder.
    pub name: String,
    /// The same in a link.
    pub link: String,
    /// What differs: key, here, there.
    pub differs: Vec<(String, String, String)>,
    /// Its best validation loss.
    pub loss: Option<f64>,
    /// The difference, percent.
    pub loss_change: Option<f64>,
    /// The difference of the median update's time, percent.
    pub time_change: Option<f64>,
    /// Its measured peak.
    pub peak: Option<String>,
    /// It has a report.
    pub has_report: bool,
}

/// Returns the runs beside a run that ended or began, those with the fewest differences first.
pub fn others(run: &Path, summary: Option<&Summary>) -> Vec<Other> {
    let run = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
    let (Some(parent), Some(own)) = (run.parent(), facts::recipe(&run)) else { return Vec::new() };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten().take(MOST_ENTRIES);
    let beside = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path());
    let beside = beside.filter(|path| *path != run);
    let compared = beside.filter_map(|path| Some(compare(&path, &own, &facts::recipe(&path)?, summary)));
    let mut all: Vec<Other> = compared.take(4 * MOST_RUNS).collect();
    all.sort_by(|a, b| (a.differs.len(), &a.name).cmp(&(b.differs.len(), &b.name)));
    all.truncate(MOST_RUNS);
    all
}

fn compare(
    path: &Path,
    own: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
    summary: Option<&Summary>,
) -> Other {
    let value =
        |of: &BTreeMap<String, String>, key: &String| of.get(key).cloned().unwrap_or_else(|| "–".to_owned());
    let mut keys: Vec<&String> = own.keys().chain(other.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| own.get(*key) != other.get(*key) && !NO_DIFFERENCE.contains(&key.as_str()));
    let differs = keys.into_iter().map(|key| (key.clone(), value(own, key), value(other, key))).collect();
    let theirs = facts::summary(path);
    let change = |of: fn(&Summary) -> Option<f64>| {
        let (here, there) = (of(summary?)?, of(theirs.as_ref()?)?);
        (here > 0.0).then(|| 100.0 * (there / here - 1.0))
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Other {
        link: super::in_link(&name),
        name,
        differs,
        loss: theirs.as_ref().and_then(|s| s.validation_best),
        loss_change: change(|s| s.validation_best),
        time_change: change(|s| s.step_seconds_median),
        peak: theirs.as_ref().and_then(|s| s.peak_rss_bytes).map(|b| ByteSize(b).to_string()),
        has_report: path.join(super::REPORT_FILE).is_file(),
    }
}
