//! The first half hour with a card: everything that needs one, in three stages of nine minutes, each with a page of results and a
//! file of the same for programs.

mod attention;
mod fast;
mod right;
mod subject;
mod techniques;
mod why;
mod work;

pub use work::work;

use crate::programs::Measured;
use crate::report::Report;
use ambitus_cuda::driver::{self, CardInfo};
use ambitus_cuda::{nvml, nvrtc};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Is it right?
    Right,
    /// How fast is it?
    Fast,
    /// Why is it as fast as it is?
    Why,
}

impl Stage {
    /// Every stage with its name, in order.
    pub const ALL: [(Stage, &str); 3] = [(Stage::Right, "right"), (Stage::Fast, "fast"), (Stage::Why, "why")];

    fn items(self) -> &'static [Item] {
        match self {
            Stage::Right => right::ITEMS,
            Stage::Fast => fast::ITEMS,
            Stage::Why => why::ITEMS,
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of the card.
    pub card: usize,
    /// Folder of the pages.
    pub out: PathBuf,
    /// Python with torch, for the peers.
    pub python: String,
    /// Tiny shapes.
    pub small: bool,
    /// Stages, in order.
    pub stages: Vec<Stage>,
    /// Parts of the titles of what is run, with commas between; all without.
    pub only: Option<String>,
    /// Minutes of a stage; what has not begun by then is left out.
    pub minutes: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            card: 0,
            out: PathBuf::from("benches/results"),
            python: "python3".to_owned(),
            small: false,
            stages: Stage::ALL.map(|(stage, _)| stage).to_vec(),
            only: None,
            minutes: 9.0,
        }
    }
}

/// A stage on its way.
struct Run<'a> {
    options: &'a Options,
    info: &'a CardInfo,
    page: Report,
    end: Instant,
    /// The card's rates, once they are measured.
    measured: Option<Measured>,
}

/// Something of a stage: its title, and what does it. An error is a fault of the page; the next item is tried.
type Item = (&'static str, fn(&mut Run<'_>) -> Result<(), String>);

/// Runs the stages; each writes `<date>-<card>-<stage>.md` and `.json` after each of its items, so that what was found stays when it
/// is stopped.
///
/// # Errors
/// No card; or what was wrong, after the pages were written.
pub fn gpu(options: &Options) -> Result<(), String> {
    let info = driver::card(options.card)?;
    std::fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    let mut faults = Vec::new();
    for (stage, name) in Stage::ALL.into_iter().filter(|(stage, _)| options.stages.contains(stage)) {
        let started = Instant::now();
        let mut run = Run {
            options,
            info: &info,
            page: Report::new(&format!("{}: {name}", info.name)),
            end: started + Duration::from_secs_f64(60.0 * options.minutes),
            measured: None,
        };
        let file = options.out.join(format!("{}-{}-{name}", today(), slug(&info.name)));
        machine(&info, &mut run.page);
        let asked = |title: &str| {
            options.only.as_ref().is_none_or(|only| only.split(',').any(|part| title.contains(part)))
        };
        for (title, item) in stage.items().iter().filter(|(title, _)| asked(title)) {
            run.page.section(title);
            if Instant::now() >= run.end {
                run.page.line(&format!("Not run: the stage has {} minutes.", options.minutes));
            } else if let Err(why) = item(&mut run) {
                run.page.fault(why);
            }
            run.page.save(&file)?;
        }
        run.page.line(&format!("\nThe stage took {:.0} s.", started.elapsed().as_secs_f64()));
        run.page.save(&file)?;
        println!("{}.md", file.display());
        faults.extend(run.page.faults().iter().cloned());
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn machine(info: &CardInfo, page: &mut Report) {
    if info.name.contains("emulated") {
        page.line(
            "\n**Emulated**: kernels ran on the processor. No time or rate here says anything of a card.",
        );
    }
    let nvml = nvml::Nvml::load().and_then(|n| n.driver_version());
    let (major, minor) = nvrtc::version().unwrap_or_default();
    page.line(&format!(
        "\n{} · {} · compute capability {}.{} · {:.1} GiB · driver {} (CUDA {}.{}) · NVRTC {major}.{minor} · ambitus {}",
        today(),
        info.name,
        info.capability.0,
        info.capability.1,
        info.total_bytes as f64 / (1u64 << 30) as f64,
        nvml.unwrap_or_else(|why| why),
        info.driver.0,
        info.driver.1,
        env!("CARGO_PKG_VERSION"),
    ));
}

/// Returns the date as `2026-11-21`, by the proleptic Gregorian calendar (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let z = (seconds / 86_400) as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns a card's name in a file's name.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}
