//! Which charts a report has, and what is in them.

use super::chart::{Chart, Form, Kind, scale};
use super::facts::Plan;
use super::notes::{Notes, Validation};
use super::words::{self, Words};
use crate::metrics::{Curves, Series, Span};

/// Share of the columns that the smoothing of the loss averages over.
const SMOOTHING: f64 = 0.04;
/// Room over the highest level.
const ROOM: f64 = 1.06;
/// Classes of the colours of categories, from the bottom up.
pub const COLORS: [&str; 8] = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];

/// The charts of a run.
pub struct Charts {
    /// Losses.
    pub loss: Chart,
    /// The learning rate.
    pub rate: Chart,
    /// The norm of the gradients.
    pub norm: Chart,
    /// Error rate of the samples, where they are heard.
    pub heard: Option<Chart>,
    /// Resident bytes over the run.
    pub memory: Chart,
    /// Bytes over a micro-batch, by category.
    pub micro_batch: Option<Chart>,
    /// Rows per second.
    pub speed: Chart,
    /// Seconds of an update.
    pub time: Chart,
}

/// Returns the charts of a run.
pub fn charts(curves: &Curves, notes: &Notes, plan: &Plan) -> Charts {
    Charts {
        loss: loss(curves, &notes.validations),
        rate: single(curves, Series::Rate, ("rate", Form::Rate, Words("Learning rate", "学习率"))),
        norm: single(
            curves,
            Series::Norm,
            ("norm", Form::Number, Words("Norm of the gradients before clipping", "裁剪前的梯度范数")),
        ),
        heard: heard(curves, notes),
        memory: memory(curves, plan),
        micro_batch: micro_batch(plan),
        speed: single(curves, Series::Speed, ("speed", Form::Number, speed_title(&plan.run.unit))),
        time: time(curves),
    }
}

fn speed_title(unit: &str) -> Words {
    match unit {
        "tokens" => Words("Tokens per second", "每秒 token 数"),
        "frames" => Words("Frames per second", "每秒帧数"),
        _ => Words("Rows per second", "每秒行数"),
    }
}

/// Returns the range of the updates.
fn updates(curves: &Curves) -> [f64; 2] {
    [0.0, curves.last().max(1) as f64]
}

type Columns = Vec<(f64, Span)>;

fn columns(curves: &Curves, series: Series) -> Columns {
    curves.of(series).filter(|(_, span)| span.mean().is_some()).collect()
}

fn means(columns: &Columns) -> impl Iterator<Item = (f64, f64)> {
    columns.iter().filter_map(|(at, span)| Some((*at, span.mean()?)))
}

/// Adds what lies between the lowest and the highest of each column.
fn band(chart: &mut Chart, class: &'static str, columns: &Columns) {
    let low = columns.iter().map(|(at, span)| (*at, f64::from(span.low)));
    let high = columns.iter().map(|(at, span)| (*at, f64::from(span.high)));
    chart.band(class, low, high);
}

fn range(columns: &Columns) -> impl Iterator<Item = (f64, f64)> {
    columns.iter().map(|(_, span)| (f64::from(span.low), f64::from(span.high)))
}

/// Returns the chart of one series.
fn single(curves: &Curves, series: Series, (id, form, title): (&'static str, Form, Words)) -> Chart {
    let columns = columns(curves, series);
    let mut chart = Chart::new(id, title, form, updates(curves), scale(range(&columns), std::iter::empty()));
    band(&mut chart, "c1", &columns);
    chart.line(Kind { name: title, class: "c1" }, means(&columns));
    chart
}

fn loss(curves: &Curves, validations: &[Validation]) -> Chart {
    let columns = columns(curves, Series::Loss);
    let averages = || validations.iter().filter_map(|v| Some((v.update as f64, v.average?.0)));
    let raw = || validations.iter().map(|v| (v.update as f64, v.loss.0));
    let y = scale(range(&columns), raw().chain(averages()).map(|(_, loss)| loss));
    let mut chart = Chart::new("loss", Words("Loss", "损失"), Form::Number, updates(curves), y);
    band(&mut chart, "c1", &columns);
    chart.line(Kind { name: Words("training", "训练"), class: "c1 faint" }, means(&columns));
    chart.line(Kind { name: Words("training, smoothed", "训练（平滑）"), class: "c1" }, smoothed(&columns));
    chart.dotted(Kind { name: Words("validation", "验证"), class: "c2" }, raw());
    chart.dotted(
        Kind { name: Words("validation of the average (EMA)", "验证（EMA 权重）"), class: "c3" },
        averages(),
    );
    chart
}

/// Returns the chart of the samples' error rate, percent.
fn heard(curves: &Curves, notes: &Notes) -> Option<Chart> {
    let rates = || notes.heard.iter().map(|heard| (heard.update as f64, 100.0 * heard.rate()));
    let most = rates().map(|(_, rate)| rate).fold(1.0, f64::max);
    let title = words::errors(notes);
    let across = [0.0, updates(curves)[1].max(notes.heard.last()?.update as f64)];
    let mut chart = Chart::new(
        "heard",
        Words("Errors of the samples, percent", "试听样本的错误率（%）"),
        Form::Number,
        across,
        [0.0, most * ROOM],
    );
    chart.dotted(Kind { name: title, class: "c2" }, rates());
    Some(chart)
}

/// Returns the centred mean over a share of the run, cut at both ends.
fn smoothed(columns: &Columns) -> impl Iterator<Item = (f64, f64)> {
    let half = ((columns.len() as f64 * SMOOTHING / 2.0) as usize).max(1);
    let mean = move |i: usize| {
        let near = &columns[i.saturating_sub(half)..(i + half + 1).min(columns.len())];
        let means = near.iter().filter_map(|(_, span)| span.mean());
        (columns[i].0, means.sum::<f64>() / near.len() as f64)
    };
    (0..columns.len()).map(mean)
}

fn memory(curves: &Curves, plan: &Plan) -> Chart {
    let columns = columns(curves, Series::Resident);
    // A GPU's budget is no measure of what the process holds on the host.
    let of_host = plan.run.on_card;
    let levels = if of_host { [0, 0] } else { [plan.budget_bytes, plan.peak_bytes] };
    let highest = columns.iter().map(|(_, span)| f64::from(span.high)).chain(levels.map(|b| b as f64));
    let top = highest.fold(1.0, f64::max) * ROOM;
    let title = match of_host {
        true => Words("Memory of the process on the host, over the run", "训练过程中进程占用的主机内存"),
        false => Words("Memory over the run", "训练过程中的内存"),
    };
    let mut chart = Chart::new("memory", title, Form::Bytes, updates(curves), [0.0, top]);
    band(&mut chart, "c1", &columns);
    chart.line(Kind { name: Words("measured", "实测"), class: "c1" }, means(&columns));
    if !of_host {
        chart.level(Words("planned peak", "规划峰值"), "plan", plan.peak_bytes as f64);
        chart.level(Words("budget", "预算"), "budget", plan.budget_bytes as f64);
    }
    chart
}

/// Returns the chart of a micro-batch's memory, if the plan has it.
fn micro_batch(plan: &Plan) -> Option<Chart> {
    let over = &plan.over_micro_batch;
    let n = over.categories.iter().map(|(_, bytes)| bytes.len()).max().filter(|n| *n > 1)?;
    let mut tops = vec![0.0; n];
    let all: Vec<Vec<f64>> = over
        .categories
        .iter()
        .map(|(_, bytes)| {
            let last = bytes.len().saturating_sub(1);
            for (i, top) in tops.iter_mut().enumerate() {
                *top += bytes.get(i.min(last)).map_or(0.0, |b| *b as f64);
            }
            tops.clone()
        })
        .collect();
    let highest = tops.iter().copied().fold(plan.budget_bytes as f64, f64::max);
    let title = Words("Planned memory over one micro-batch", "规划的内存：一个 micro-batch 之内");
    let x = [0.0, over.instructions.max(1) as f64];
    let mut chart = Chart::new("micro-batch", title, Form::Bytes, x, [0.0, highest * ROOM]);
    chart.across = Words("instruction", "指令");
    let at = |i: usize| i as f64 * x[1] / (n - 1) as f64;
    let bottom = vec![0.0; n];
    for (c, (name, _)) in over.categories.iter().enumerate() {
        let under = if c == 0 { &bottom } else { &all[c - 1] };
        let points =
            |values: &'_ Vec<f64>| values.iter().enumerate().map(|(i, y)| (at(i), *y)).collect::<Vec<_>>();
        let kind = Kind { name: words::category(name), class: COLORS[c % COLORS.len()] };
        chart.stack(kind, points(&all[c]).into_iter(), points(under).into_iter().rev());
    }
    chart.level(Words("budget", "预算"), "budget", plan.budget_bytes as f64);
    Some(chart)
}

fn time(curves: &Curves) -> Chart {
    let (seconds, wait) = (columns(curves, Series::Seconds), columns(curves, Series::Wait));
    let [_, high] = scale(range(&seconds), std::iter::empty());
    let title = Words("Seconds of an update", "每次更新的用时");
    let mut chart = Chart::new("time", title, Form::Seconds, updates(curves), [0.0, high]);
    band(&mut chart, "c1", &seconds);
    chart.line(Kind { name: Words("all", "总计"), class: "c1" }, means(&seconds));
    chart.line(Kind { name: Words("waiting for data", "等待数据"), class: "c2" }, means(&wait));
    chart
}
