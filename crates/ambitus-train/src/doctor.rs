//! What this machine offers a run, and who else uses it.

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Serialize;

use ambitus_plan::device::{self, CardsReport};
use ambitus_plan::memory::{self, DefaultBudget, Machine, Other};
use ambitus_recipe::size::ByteSize;

/// A report of the machine. What cannot be read is `None` or empty, with a line in `notes`.
#[derive(Clone, Debug, Serialize)]
pub struct Doctor {
    /// The program's version.
    pub version: String,
    /// Operating system, architecture and kernel.
    pub system: String,
    /// The processor's name.
    pub cpu: Option<String>,
    /// Cores this process may use.
    pub cores: usize,
    /// Instruction sets that matter for speed and that the processor has.
    pub isa: Vec<&'static str>,
    /// Load average over one minute: programs that want a core.
    pub load: Option<f64>,
    /// Memory.
    pub memory: Option<Machine>,
    /// The budget of a run without `--memory`, with the container's limit.
    pub budget: Option<DefaultBudget>,
    /// NVIDIA cards.
    pub cuda: CardsReport,
    /// The largest other processes.
    pub others: Vec<Other>,
    /// Free bytes of the disk that the current folder is on.
    pub disk_free_bytes: Option<u64>,
    /// What to know before a run.
    pub notes: Vec<String>,
}

/// How many other processes are listed.
const OTHERS: usize = 5;
/// Free disk below which a run is warned about: a few checkpoints of a large model.
const SMALL_DISK: u64 = 10 << 30;

/// Looks at the machine. Never fails: what cannot be seen becomes a note.
pub fn doctor() -> Doctor {
    let mut notes = Vec::new();
    let memory = memory::machine().map_err(|e| notes.push(e.to_string())).ok();
    let budget = memory::default_budget().ok();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isa = isa();
    if cfg!(target_arch = "x86_64") && !isa.contains(&"avx2") {
        notes.push("no AVX2: the fast kernels cannot be used, expect a several times slower run".to_owned());
    }
    let load = text("/proc/loadavg").and_then(|t| t.split(' ').next()?.parse::<f64>().ok());
    if let Some(load) = load.filter(|l| *l > 0.5 * cores as f64) {
        notes.push(format!(
            "other programs want {load:.1} of {cores} cores: steps will be slower and less even"
        ));
    }
    let disk_free_bytes = disk_free(Path::new("."));
    if let Some(free) = disk_free_bytes.filter(|f| *f < SMALL_DISK) {
        notes.push(format!("{} of free disk here: checkpoints of a large model may not fit", ByteSize(free)));
    }
    let kernel = text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = format!("{} {} {}", std::env::consts::OS, std::env::consts::ARCH, kernel.trim());
    Doctor {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        system: system.trim().to_owned(),
        cpu: text("/proc/cpuinfo").as_deref().and_then(cpu_name),
        cores,
        isa,
        load,
        memory,
        budget,
        cuda: device::report(),
        others: memory::top_processes(OTHERS),
        disk_free_bytes,
        notes,
    }
}

/// Returns the processor's name in `/proc/cpuinfo`.
fn cpu_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"))?;
    let name: String = line.split_once(':')?.1.trim().chars().take(100).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(target_arch = "x86_64")]
fn isa() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! ask {
        ($($name:tt),*) => {$(if is_x86_feature_detected!($name) { found.push($name); })*};
    }
    ask!("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "avx512bf16");
    found
}

#[cfg(target_arch = "aarch64")]
fn isa() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! ask {
        ($($name:tt),*) => {$(if std::arch::is_aarch64_feature_detected!($name) { found.push($name); })*};
    }
    ask!("neon", "fp16", "dotprod", "bf16", "i8mm", "sve", "sve2");
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn isa() -> Vec<&'static str> {
    Vec::new()
}

/// Returns the bytes that this user can still write on the disk of `folder`.
#[cfg(unix)]
pub fn disk_free(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut raw = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path is a live NUL-terminated string and the second pointer a live, writable statvfs.
    let ok = unsafe { libc::statvfs(path.as_ptr(), raw.as_mut_ptr()) } == 0;
    // SAFETY: all-zero bytes are a valid statvfs (plain integers), whether or not the call filled it.
    let raw = unsafe { raw.assume_init() };
    // Field widths differ between systems.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    let bytes = (raw.f_bavail as u64).saturating_mul(raw.f_frsize as u64);
    ok.then_some(bytes)
}

/// Returns the bytes that this user can still write on the disk of `folder`.
#[cfg(not(unix))]
pub fn disk_free(_: &Path) -> Option<u64> {
    None
}

/// Returns the start of a small file.
fn text(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(1 << 16).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

impl fmt::Display for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "cannot be read here".to_owned();
        writeln!(f, "ambitus    {} on {}", self.version, self.system)?;
        let isa = if self.isa.is_empty() { String::new() } else { format!(" · {}", self.isa.join(" ")) };
        writeln!(f, "processor  {} · {} cores{isa}", self.cpu.clone().unwrap_or_else(unknown), self.cores)?;
        let memory = self
            .memory
            .map(|m| format!("{} available of {}", ByteSize(m.available_bytes), ByteSize(m.total_bytes)));
        writeln!(f, "memory     {}", memory.unwrap_or_else(unknown))?;
        let container = self.budget.as_ref().and_then(|b| b.container.as_ref());
        let limit =
            container.map(|c| format!("{}, {} left", ByteSize(c.limit_bytes), ByteSize(c.remaining_bytes)));
        writeln!(f, "container  {}", limit.unwrap_or_else(|| "no limit".to_owned()))?;
        writeln!(f, "budget     {}", self.budget.as_ref().map_or_else(unknown, ToString::to_string))?;
        writeln!(
            f,
            "disk       {} free here",
            self.disk_free_bytes.map_or_else(unknown, |b| ByteSize(b).to_string())
        )?;
        write_cards(f, &self.cuda)?;
        for (i, other) in self.others.iter().enumerate() {
            let label = if i == 0 { "others     " } else { "           " };
            writeln!(
                f,
                "{label}{:>9}  {} ({})",
                ByteSize(other.rss_bytes).to_string(),
                other.name,
                other.pid
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note       {note}"))
    }
}

fn write_cards(f: &mut fmt::Formatter<'_>, cuda: &CardsReport) -> fmt::Result {
    if let Some(driver) = &cuda.driver {
        writeln!(f, "cuda       driver {driver} · {}", cuda.libraries.join(" · "))?;
    }
    for (i, card) in cuda.cards.iter().enumerate() {
        let capability = card.capability.as_ref().map_or(String::new(), |c| format!(" · capability {c}"));
        let (free, total) = (ByteSize(card.free_bytes), ByteSize(card.total_bytes));
        writeln!(f, "cuda:{i}     {}{capability} · {free} free of {total}", card.name)?;
        card.holders.iter().try_for_each(|holder| writeln!(f, "             held by {holder}"))?;
    }
    match &cuda.note {
        Some(note) => writeln!(f, "cuda       {note}"),
        None if cuda.cards.is_empty() => writeln!(f, "cuda       no card"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_every_row() {
        let report = doctor();
        assert!(report.cores > 0);
        let text = report.to_string();
        for row in ["ambitus ", "processor ", "memory ", "container ", "budget ", "disk ", "cuda "] {
            assert!(text.lines().any(|l| l.starts_with(row)), "{row}\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cores"], report.cores);
    }

    #[test]
    fn odd_files_are_no_name() {
        assert_eq!(
            cpu_name("processor: 0\nmodel name\t: Some CPU @ 2 GHz\n"),
            Some("Some CPU @ 2 GHz".to_owned())
        );
        for odd in ["", "model name", "model name:", "model name: \n"] {
            assert_eq!(cpu_name(odd), None);
        }
        assert!(disk_free(Path::new("no/such/folder")).is_none());
    }
}
