//! What limited a run, and the one change to try next, by what was measured.
//!
//! There are at most two: one of time, about what cost most of it, and one of learning. A lesson of time is about a share of the time of
//! updates and checkpoints that is at least [`SHARE`] of it and [`LEAST_SECONDS`]. All numbers are of the whole run, across resumes: they
//! come from its log and its notes. What the plan predicts is said to be predicted.

use super::{Notes, Plan};
use crate::metrics::{Lesson, Limit, Summary, duration, short};
use ambitus_recipe::size::ByteSize;

/// Share of the time below which nothing is said of it.
const SHARE: f64 = 0.1;
/// Seconds that nobody would change anything for.
const LEAST_SECONDS: f64 = 5.0;
/// Share of the time that checkpoints may take.
const SAVING: f64 = 0.05;
/// Seconds of a page fault that waited for a disk, of the fastest.
const FAULT_SECONDS: f64 = 1e-4;
/// Part of the budget that another process must hold to be named as what to close.
const HOLDER: u64 = 20;
/// A micro-batch that is this much longer than the longest clip is not made for it.
const FOR_LONGEST: f64 = 1.05;
/// Most clips are well below the longest one, if they are below this share of it.
const WELL_BELOW: f64 = 0.75;
/// Part of a plan's predicted peak that a budget for it gets as well.
const UNSURE: u64 = 32;
/// Updates that were not applied: fewer are a loss scale that looks for its value.
const SKIPPED: u64 = 20;
/// Share of all updates that were not applied.
const SKIPPED_SHARE: f64 = 0.05;
/// The share by which a validation loss must differ to have risen or fallen: less is noise.
const NOISE: f64 = 0.01;
/// Share of the whole fall of the validation loss in the last third of a run that still falls; a steady fall has a third of it there.
const FALLING: f64 = 0.2;
/// What a rate that is too high is divided by.
const LOWER: f64 = 3.0;

/// Returns the lessons of a run that ended.
pub fn lessons(summary: &Summary, notes: &Notes, plan: &Plan) -> Vec<Lesson> {
    let all = summary.update_seconds + summary.saving_seconds;
    let run = &Run { summary, notes, plan, all };
    let of_time = [loader(run), saving(run), paging(run), other_programs(run), padding(run), memory(run)];
    let worth = |l: &Lesson| l.share >= SHARE && l.share * all >= LEAST_SECONDS;
    let of_time = of_time.into_iter().flatten().filter(worth).max_by(|a, b| a.share.total_cmp(&b.share));
    let learned = skipped(run).or_else(|| overfitted(run)).or_else(|| no_gain(run)).or_else(|| falling(run));
    of_time.into_iter().chain(learned).collect()
}

/// What was measured, and what was planned.
struct Run<'a> {
    summary: &'a Summary,
    notes: &'a Notes,
    plan: &'a Plan,
    /// Seconds of updates and checkpoints.
    all: f64,
}

impl Run<'_> {
    /// Returns the share of the time; of a run without any, 0.
    fn share(&self, seconds: f64) -> f64 {
        let share = seconds / self.all;
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the share of the time in which updates did not wait for data.
    fn computing(&self) -> f64 {
        self.share(self.summary.update_seconds - self.summary.loader_wait_seconds)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.plan.value(key)?.parse().ok()
    }

    /// Returns a lower rate for a recipe.
    fn lower_rate(&self) -> Option<[String; 2]> {
        let rate: f64 = self.plan.choice("learning_rate")?.parse().ok()?;
        Some(alike(format!("learning_rate: {:.1e}", rate / LOWER)))
    }

    /// Returns the other process that holds most memory, if that is a good part of the budget.
    fn holder(&self) -> Option<(&str, ByteSize)> {
        let (name, bytes) = self.notes.others.as_ref()?.processes.first()?;
        (*bytes > self.plan.budget_bytes / HOLDER).then_some((name, ByteSize(*bytes)))
    }
}

/// Returns a text that is the same in both languages: keys and their values.
fn alike(text: String) -> [String; 2] {
    [text.clone(), text]
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn loader(run: &Run<'_>) -> Option<Lesson> {
    let waited = run.summary.loader_wait_seconds;
    let (share, took) = (run.share(waited), duration(waited));
    let part = percent(share);
    let evidence = [
        format!("updates waited {took} for data, {part} of the time"),
        format!("等待数据用了 {took}，占 {part} 的时间"),
    ];
    let change = [
        "a faster disk for data.cache, or one in memory".to_owned(),
        "把 data.cache 放在更快的磁盘或内存盘上".to_owned(),
    ];
    Some(Lesson::new(Limit::Loader, share, evidence, change))
}

fn saving(run: &Run<'_>) -> Option<Lesson> {
    let (seconds, updates) = (run.summary.saving_seconds, run.summary.update_seconds);
    let every = run.number("save_every").filter(|n| *n > 0)?;
    // With which it is no more than the share that it may take.
    let times = (seconds * (1.0 - SAVING) / (SAVING * updates)).ceil().max(2.0);
    let rarer = ((every as f64 * times) as u64).min(run.summary.updates);
    if rarer <= every {
        return None;
    }
    let (share, took) = (run.share(seconds), duration(seconds));
    let part = percent(share);
    let evidence = [
        format!("checkpoints, one every {every} updates, took {took}, {part} of the time"),
        format!("每 {every} 步写一次检查点，共用了 {took}，占 {part} 的时间"),
    ];
    Some(Lesson::new(Limit::Saving, share, evidence, alike(format!("save_every: {rarer}"))))
}

fn paging(run: &Run<'_>) -> Option<Lesson> {
    let faults = run.summary.page_faults_major;
    let threads = run.summary.threads.unwrap_or(1).max(1);
    // Threads may wait at the same time.
    let least = faults as f64 * FAULT_SECONDS / f64::from(threads);
    let seconds = run.notes.lost.paging.max(least);
    let (share, took) = (run.share(seconds), duration(seconds));
    let part = percent(share);
    let evidence = [
        format!(
            "the machine was short of memory: {faults} pages came back from disk, which took at least {took}, {part} of the time"
        ),
        format!("机器内存不足：{faults} 个内存页从磁盘读回，至少用了 {took}，占 {part} 的时间"),
    ];
    let close = run.holder().map(|(name, bytes)| {
        [format!("without {name} beside it, which holds {bytes}"), format!("关闭 {name}（占用 {bytes}）")]
    });
    let change = match (close, run.plan.run.on_card) {
        (Some(close), _) => close,
        (None, true) => {
            ["fewer programs beside it on the host".to_owned(), "减少主机上的其他程序".to_owned()]
        }
        (None, false) if run.plan.budget_bytes == 0 => return None,
        (None, false) => alike(format!("memory: {}", enough(run.plan.budget_bytes / 10 * 9))),
    };
    Some(Lesson::new(Limit::Paging, share, evidence, change))
}

fn other_programs(run: &Run<'_>) -> Option<Lesson> {
    let seconds = run.notes.lost.cores;
    let (share, took) = (run.share(seconds), duration(seconds));
    let part = percent(share);
    let evidence = [
        format!("other programs took the cores for {took}, {part} of the time"),
        format!("其他程序占用 CPU 核心 {took}，占 {part} 的时间"),
    ];
    let named =
        run.notes.others.as_ref().map(|o| o.processes.iter().take(2).map(|p| &*p.0).collect::<Vec<_>>());
    let named = named.filter(|n| !n.is_empty()).map(|n| n.join(", "));
    let beside = named.map_or_else(
        || ["nothing beside it".to_owned(), "不同时运行其他程序".to_owned()],
        |n| {
            [
                format!("nothing beside it (the largest there: {n})"),
                format!("不同时运行其他程序（内存占用最大的：{n}）"),
            ]
        },
    );
    let fewer = run.summary.threads.filter(|n| *n > 1).map(|n| n - 1);
    let change = match (beside, fewer) {
        ([en, zh], Some(n)) => [format!("{en}, or threads: {n}"), format!("{zh}，或 threads: {n}")],
        (beside, None) => beside,
    };
    Some(Lesson::new(Limit::OtherPrograms, share, evidence, change))
}

fn padding(run: &Run<'_>) -> Option<Lesson> {
    let (Plan { run: of, micro_batch, .. }, s) = (run.plan, run.summary);
    let fill = s.packing_fill.filter(|fill| *fill > 0.0)?;
    let [holds, places] = [&*of.unit, "clips"].map(|key| micro_batch.get(key).copied().unwrap_or(0.0));
    if holds <= 0.0 || of.clip_rows.mean <= 0.0 || of.clip_rows.per_second <= 0.0 || s.updates == 0 {
        return None;
    }
    let share = run.computing() * (1.0 - fill);
    let (part, unit) = (percent(share), &of.unit);
    let rows = s.frames as f64 / s.updates as f64;
    let (why, change) = why_padded(run, (holds, places), rows, rows / fill / holds)?;
    let evidence = [
        format!("{part} of the time went into padding: a micro-batch computes {holds:.0} {unit}; {}", why[0]),
        format!("{part} 的时间用于计算填充：每个 micro-batch 计算 {holds:.0} {unit}；{}", why[1]),
    ];
    Some(Lesson::new(Limit::Padding, share, evidence, change))
}

/// Returns why micro-batches are not full, and what would fill them. `holds`: rows and clips of one; `rows` of an update are in `batches`
/// of them, on average.
fn why_padded(
    run: &Run<'_>,
    (holds, places): (f64, f64),
    rows: f64,
    batches: f64,
) -> Option<([String; 2], [String; 2])> {
    let (clips, unit) = (&run.plan.run.clip_rows, &run.plan.run.unit);
    let seconds = |rows: f64| rows / clips.per_second;
    // By their rows alone.
    let enough = (rows / holds).ceil().max(1.0);
    if places * clips.mean < (1.0 - SHARE) * holds.min(rows) {
        let why = [
            format!("it has {places} places for clips, which have {:.0} {unit} on average", clips.mean),
            format!("它只放得下 {places} 个片段，片段平均 {:.0} {unit}", clips.mean),
        ];
        return Some((why, alike(format!("micro_batch: {{clips: {:.0}}}", (holds / clips.mean).ceil()))));
    }
    let for_longest = holds <= FOR_LONGEST * clips.longest && clips.most < WELL_BELOW * clips.longest;
    if rows < holds && for_longest {
        let [longest, most] = [clips.longest, clips.most].map(|n| format!("{:.1} s", seconds(n)));
        let why = [
            format!("it holds the longest clip, {longest}, and 19 of 20 have at most {most}"),
            format!("它要放得下最长的片段（{longest}），而 20 个中有 19 个不超过 {most}"),
        ];
        let most = (10.0 * seconds(clips.most)).ceil() / 10.0;
        return Some((why, alike(format!("data.max_seconds: {most:.1}"))));
    }
    if batches > enough + 0.5 {
        // What the search chose, it chose with this in mind.
        let choice = run.plan.choices.iter().find(|c| c.key == "micro_batch")?;
        let why = [
            format!("clips of {:.0} {unit} on average leave gaps in it", clips.mean),
            format!("平均 {:.0} {unit} 的片段填不满它", clips.mean),
        ];
        let larger = alike(format!("micro_batch: {:.0}", 2.0 * holds));
        return (!choice.from.starts_with("the search")).then_some((why, larger));
    }
    let full = enough * holds;
    let why =
        [format!("an update has {rows:.0} {unit} on average"), format!("每次更新平均 {rows:.0} {unit}")];
    (run.number("batch.frames") != Some(full as u64))
        .then(|| (why, alike(format!("batch: {{frames: {full:.0}}}"))))
}

fn memory(run: &Run<'_>) -> Option<Lesson> {
    let (chosen, others) = run.plan.candidates.split_first().filter(|(c, _)| c.verdict == "chosen")?;
    let saves = |seconds: f64| run.computing() * (1.0 - seconds / chosen.seconds);
    let faster = others.iter().filter(|c| c.verdict == "too_large" && saves(c.seconds) >= SHARE);
    let least = faster.min_by_key(|c| c.peak_bytes).filter(|_| chosen.seconds > 0.0)?;
    let now = run.summary.step_seconds_median?;
    let [takes, would] = [now, now * least.seconds / chosen.seconds].map(short);
    let budget = ByteSize(run.plan.budget_bytes);
    let named = |options: &str, as_given: &str| {
        if options.is_empty() { as_given.to_owned() } else { options.to_owned() }
    };
    let slower = named(&chosen.options, "as given");
    let faster = named(&least.options, "everything kept");
    let of_faster = named(&least.options, "全部保留");
    let evidence = [
        format!(
            "to fit {budget} the plan is {slower}, with which an update takes {takes}; as the plan predicts, it would be {would} with \
             {faster}, which did not fit"
        ),
        format!(
            "为放进 {budget}，规划采用了 {slower}，每次更新 {takes}；按规划预测，放不下的方案（{of_faster}）只需 {would}"
        ),
    ];
    let room = enough(least.peak_bytes.saturating_add(least.peak_bytes / UNSURE));
    let change = match (run.plan.value("memory"), run.plan.run.on_card) {
        (Some(_), _) => alike(format!("memory: {room}")),
        (None, true) => [format!("a GPU that has {room} free"), format!("有 {room} 可用显存的 GPU")],
        (None, false) => [format!("a machine that has {room} free"), format!("有 {room} 可用内存的机器")],
    };
    Some(Lesson::new(Limit::Memory, saves(least.seconds), evidence, change))
}

/// Returns a size for a recipe, rounded up.
fn enough(bytes: u64) -> String {
    let in_units = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        0..0x4000_0000 => format!("{:.0}MiB", in_units(1 << 20).ceil()),
        _ => format!("{:.1}GiB", (10.0 * in_units(1 << 30)).ceil() / 10.0),
    }
}

fn skipped(run: &Run<'_>) -> Option<Lesson> {
    let (skipped, updates) = (run.summary.skipped_updates, run.summary.updates);
    let share = skipped as f64 / updates.max(1) as f64;
    if skipped < SKIPPED || share < SKIPPED_SHARE {
        return None;
    }
    let part = percent(share);
    let evidence = [
        format!("{skipped} of {updates} updates, {part}, were not applied because a gradient was not finite"),
        format!("{updates} 次更新中有 {skipped} 次（{part}）因梯度不是有限值而没有应用"),
    ];
    let in_16_bits = run.plan.choice("precision").is_some_and(|p| p.contains("16"));
    let change = if in_16_bits { alike("precision: fp32".to_owned()) } else { run.lower_rate()? };
    Some(Lesson::new(Limit::SkippedUpdates, share, evidence, change))
}

/// What [`overfitting`](crate::stopping::overfitting) says, a run that `stop` ended has acted upon.
fn overfitted(run: &Run<'_>) -> Option<Lesson> {
    let s = run.summary;
    let best = s.best_update.filter(|_| s.overfitting.is_some() && s.stopped.is_none())?;
    let updates = s.updates;
    let evidence = [
        format!("the validation loss was lowest after update {best} of {updates}"),
        format!("验证损失在第 {best} 步（共 {updates} 步）时最低"),
    ];
    let change = [
        format!("updates: {best}, or stop: {{after: 3}}, which exports the best"),
        format!("updates: {best}，或 stop: {{after: 3}}（导出最佳结果）"),
    ];
    Some(Lesson::new(Limit::Overfitting, 1.0 - best as f64 / updates.max(1) as f64, evidence, change))
}

fn no_gain(run: &Run<'_>) -> Option<Lesson> {
    let s = run.summary;
    let (base, best, last) = (s.validation_base?, s.validation_best?, s.validation_last?);
    let rose = base != 0.0 && last - base > NOISE * base.abs();
    if best < base || !rose {
        return None;
    }
    let evidence = [
        format!("no validation loss was below the base's, {base:.4}, and the last is {last:.4}"),
        format!("验证损失从未低于基础模型的 {base:.4}，最后为 {last:.4}"),
    ];
    Some(Lesson::new(Limit::NoGain, (last - base) / base.abs(), evidence, run.lower_rate()?))
}

fn falling(run: &Run<'_>) -> Option<Lesson> {
    let finite = run.notes.validations.iter().map(|v| (v.update, v.better())).filter(|v| v.1.is_finite());
    let points: Vec<(u64, f64)> = finite.collect();
    let (&(begin, first), &(end, last)) = (points.first()?, points.last()?);
    // The newest of the first two thirds, which must not be much earlier.
    let &(from, before) = points.iter().rev().find(|(update, _)| *update as f64 <= 2.0 / 3.0 * end as f64)?;
    let is_best = points.iter().all(|(_, loss)| last <= *loss);
    let (fall, whole) = (before - last, first - last);
    if end != run.summary.updates
        || from <= begin
        || from < end / 2
        || !is_best
        || run.summary.stopped.is_some()
    {
        return None;
    }
    // Where it rose at first, there is no fall that this is a part of.
    if fall <= NOISE * last.abs() || fall < FALLING * whole || fall > whole {
        return None;
    }
    let (share, part) = (fall / whole, percent(fall / whole));
    let evidence = [
        format!("the validation loss still fell: {part} of its fall was after update {from} of {end}"),
        format!("验证损失仍在下降：{part} 的降幅发生在第 {from} 步之后（共 {end} 步）"),
    ];
    let epochs: Option<f64> = run.plan.value("epochs").and_then(|n| n.parse().ok());
    let more = match epochs {
        Some(epochs) => format!("epochs: {}", 1.5 * epochs),
        None => format!("updates: {}", rounded_up(end.saturating_add(end / 2))),
    };
    Some(Lesson::new(Limit::StillFalling, share, evidence, alike(more)))
}

/// Returns a number of two digits and zeros.
fn rounded_up(n: u64) -> u64 {
    let unit = 10_u64.pow(n.max(1).ilog10().saturating_sub(1));
    n.div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests;
