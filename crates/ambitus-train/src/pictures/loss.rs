//! Loss over the updates.

use super::axes::{Axes, legend, ticks, title};
use super::canvas::{Canvas, GREY, SERIES};
use super::{HEIGHT, Picture, PictureError, WIDTH};

/// Points of one kind: (updates done, loss).
pub type Points<'a> = &'a [(u64, f64)];

/// Training loss, every update pale and smoothed strong, and validation losses as points on lines.
#[derive(Clone, Copy, Debug)]
pub struct LossPicture<'a> {
    /// The picture's name.
    pub title: &'a str,
    /// Loss of each update.
    pub training: &'a Curve,
    /// Named validation losses, as `("validation", …)`.
    pub validation: &'a [(&'a str, Points<'a>)],
}

/// Share of the run that the smoothing averages over.
const SMOOTHING: f64 = 0.04;
/// Share of the pixel columns whose highest losses may leave the scale, so that one outlier does not flatten the rest.
const OUTLIERS: f64 = 0.01;
/// Columns that training losses are gathered in, however long the run is.
const COLUMNS: usize = 1000;

impl Picture for LossPicture<'_> {
    fn png(&self) -> Result<Vec<u8>, PictureError> {
        let finite =
            |points: Points<'_>| points.iter().copied().filter(|p| p.1.is_finite()).collect::<Vec<_>>();
        let validation: Vec<_> =
            self.validation.iter().map(|(name, points)| (name, finite(points))).collect();
        let last = validation.iter().flat_map(|v| v.1.iter().map(|p| p.0)).chain([self.training.last]).max();
        let last = last.unwrap_or(1).max(1);
        let columns = &self.training.columns;

        let mut canvas = Canvas::new();
        title(&mut canvas, self.title);
        let mut entries = vec![(SERIES[0], "training".to_owned())];
        for (i, (name, points)) in validation.iter().enumerate() {
            let label = match (points.first(), points.last()) {
                (Some(first), Some(last)) => format!("{name} {:.4} -> {:.4}", first.1, last.1),
                _ => name.to_string(),
            };
            entries.push((color(i), label));
        }
        let top = legend(&mut canvas, 30.0, 62.0, &entries) + 10.0;
        let axes = Axes {
            area: [110.0, top, WIDTH as f64 - 40.0, HEIGHT as f64 - 70.0],
            x: [0.0, last as f64],
            y: range(columns, validation.iter().flat_map(|v| v.1.iter().map(|p| p.1))),
        };
        axes.ticks_y(&mut canvas, &ticks(axes.y, 6));
        let whole = ticks(axes.x, 8).into_iter().filter(|(x, _)| x.fract() == 0.0).collect::<Vec<_>>();
        axes.ticks_x(&mut canvas, &whole);
        axes.frame(&mut canvas);
        canvas.text_centre((axes.area[0] + axes.area[2]) / 2.0, HEIGHT as f64 - 30.0, 2, GREY, "updates");
        raw(&mut canvas, &axes, columns, self.training.of);
        canvas.polyline(&smoothed(&axes, columns), 3.0, SERIES[0], 1.0);
        for (i, (_, points)) in validation.iter().enumerate() {
            let at: Vec<[f64; 2]> = points.iter().map(|p| axes.at(p.0 as f64, p.1)).collect();
            let at = thin(&at);
            canvas.polyline(&at, 1.5, color(i), 0.8);
            at.iter().for_each(|p| canvas.dot(*p, 4.5, color(i)));
        }
        if columns.is_empty() && validation.iter().all(|v| v.1.is_empty()) {
            canvas.text_centre(WIDTH as f64 / 2.0, HEIGHT as f64 / 2.0, 3, GREY, "no finite loss yet");
        }
        canvas.png()
    }
}

/// Returns the colour of a validation loss; blue is the training loss.
fn color(validation: usize) -> [u8; 3] {
    SERIES[1 + validation % (SERIES.len() - 1)]
}

/// Losses of the updates of a run, gathered in at most 1,000 columns however many they are.
#[derive(Clone, Debug)]
pub struct Curve {
    columns: Vec<Column>,
    /// Updates of the run.
    of: u64,
    /// The last that was added.
    last: u64,
}

impl Curve {
    /// Returns an empty curve of a run of `updates` updates.
    pub fn new(updates: u64) -> Curve {
        Curve { columns: Vec::new(), of: updates, last: 0 }
    }

    /// Adds the loss of the next update. Left out if it is not finite.
    pub fn add(&mut self, update: u64, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        self.last = self.last.max(update);
        let columns = &mut self.columns;
        let index = (u128::from(update) * COLUMNS as u128 / (u128::from(self.of) + 1)) as u64;
        if columns.last().is_none_or(|c| c.index != index && columns.len() < COLUMNS) {
            let (low, high) = (f64::INFINITY, f64::NEG_INFINITY);
            columns.push(Column { index, count: 0.0, updates: 0.0, losses: 0.0, low, high });
        }
        if let Some(c) = columns.last_mut() {
            c.count += 1.0;
            c.updates += update as f64;
            c.losses += loss;
            (c.low, c.high) = (c.low.min(loss), c.high.max(loss));
        }
    }

    /// Returns the mean of the finite losses of updates after `after` and up to `to`, to the width of a column; `None` of none.
    pub fn mean(&self, after: u64, to: u64) -> Option<f64> {
        let within = |c: &&Column| {
            let update = c.updates / c.count;
            update > after as f64 && update <= to as f64
        };
        let (sum, count) =
            self.columns.iter().filter(within).fold((0.0, 0.0), |(s, n), c| (s + c.losses, n + c.count));
        (count > 0.0).then(|| sum / count)
    }

    /// Returns the number of columns.
    #[cfg(test)]
    pub(crate) fn columns(&self) -> usize {
        self.columns.len()
    }
}

/// The training losses of neighbouring updates.
#[derive(Clone, Debug)]
struct Column {
    index: u64,
    count: f64,
    updates: f64,
    losses: f64,
    low: f64,
    high: f64,
}

/// Returns the scale: all validation losses, and the training losses but for the highest.
fn range(columns: &[Column], validation: impl Iterator<Item = f64>) -> [f64; 2] {
    let mut highs: Vec<f64> = columns.iter().map(|c| c.high).collect();
    highs.sort_by(f64::total_cmp);
    highs.truncate(((highs.len() as f64) * (1.0 - OUTLIERS)).ceil() as usize);
    let shown = highs.into_iter().chain(columns.iter().map(|c| c.low)).chain(validation);
    let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    match high - low {
        span if span.is_finite() && span > 0.0 => [low - 0.05 * span, high + 0.05 * span],
        _ if low.is_finite() && high.is_finite() && low == high => [low - 0.5, low + 0.5],
        _ => [0.0, 1.0],
    }
}

/// Draws every update: a pale line, or a pale bar over the range of a column that has several.
fn raw(canvas: &mut Canvas, axes: &Axes, columns: &[Column], of: u64) {
    if columns.iter().all(|c| c.count < 2.0) {
        let at: Vec<[f64; 2]> = columns.iter().map(|c| axes.at(c.updates, c.losses)).collect();
        return canvas.polyline(&at, 1.2, SERIES[0], 0.3);
    }
    // Updates of a column.
    let wide = (of as f64 + 1.0) / COLUMNS as f64;
    for c in columns {
        let [left, right] = [0.0, 1.0].map(|end| axes.px((c.index as f64 + end) * wide));
        canvas.rect([left, axes.py(c.high) - 0.5, right, axes.py(c.low) + 0.5], SERIES[0], 0.25);
    }
}

/// Returns the centred mean over a share of the run, cut at both ends.
fn smoothed(axes: &Axes, columns: &[Column]) -> Vec<[f64; 2]> {
    let half = ((columns.len() as f64 * SMOOTHING / 2.0) as usize).max(1);
    let mean = |i: usize| {
        let near = &columns[i.saturating_sub(half)..(i + half + 1).min(columns.len())];
        let (sum, count) = near.iter().fold((0.0, 0.0), |(s, n), c| (s + c.losses, n + c.count));
        axes.at(columns[i].updates / columns[i].count, sum / count)
    };
    (0..columns.len()).map(mean).collect()
}

/// Keeps at most one point per pixel column, and the first and the last.
fn thin(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut kept: Vec<[f64; 2]> = Vec::new();
    for (i, p) in points.iter().enumerate() {
        if kept.last().is_none_or(|k| p[0] - k[0] >= 1.0) || i + 1 == points.len() {
            kept.push(*p);
        }
    }
    kept
}
