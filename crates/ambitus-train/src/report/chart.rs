//! Curves as SVG: shapes in a plane of 1000 x 1000 that is stretched over whatever room there is, and labels around it that are not.

use super::words::Words;
use crate::pictures::ticks;
use ambitus_recipe::size::ByteSize;
use askama::Template;
use askama::filters::HtmlSafe;
use std::fmt::Write;

/// Width and height of the plane.
const PLANE: f64 = 1000.0;
/// Share of the highest points that may leave a scale, so that one outlier does not flatten the rest.
const OUTLIERS: f64 = 0.01;
/// Where the last mark of the horizontal axis may be, percent.
const LAST_TICK: f64 = 78.0;

/// How numbers are written, on axes here and in readouts by the page's script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A small one, in powers of ten.
    Rate,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Form {
    /// Returns its name, which the script knows.
    pub fn name(self) -> &'static str {
        match self {
            Form::Number => "number",
            Form::Rate => "rate",
            Form::Bytes => "bytes",
            Form::Seconds => "seconds",
        }
    }
}

/// What a shape is: its name in the legend, and the class by which the style sheet draws it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub name: Words,
    /// Its class: `c1` to `c8` are colours.
    pub class: &'static str,
}

/// A line through points.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub kind: Kind,
    /// Pairs of coordinates.
    pub points: String,
    /// A mark at each point.
    pub dots: String,
    /// The area under it, of those that are stacked.
    pub area: String,
}

/// A level across the chart.
#[derive(Clone, Debug)]
pub struct Level {
    /// What it is.
    pub name: Words,
    /// The number.
    pub value: String,
    /// Its place from the top, percent.
    pub top: f64,
    /// Its label stands below it.
    pub below: bool,
    /// Its class.
    pub class: &'static str,
}

/// A mark of an axis: its place, percent, and its text.
pub type Tick = (f64, String);

/// A chart.
#[derive(Clone, Debug, Template)]
#[template(path = "chart.html")]
pub struct Chart {
    /// Its name, which is unique in a page.
    pub id: &'static str,
    /// What it shows.
    pub title: Words,
    /// What the horizontal axis counts.
    pub across: Words,
    /// How its numbers are written.
    pub form: Form,
    /// Lines are stacked: each is the sum of those before it and its own.
    pub stacked: bool,
    /// From the lowest to the highest, of both axes.
    pub x: [f64; 2],
    /// From the lowest to the highest.
    pub y: [f64; 2],
    /// What lies between the lowest and the highest of a column.
    pub bands: Vec<(&'static str, String)>,
    /// Lines.
    pub lines: Vec<Line>,
    /// Levels.
    pub levels: Vec<Level>,
}

/// Its template has escaped what it holds.
impl HtmlSafe for Chart {}

impl Chart {
    /// Returns an empty chart of a plane.
    pub fn new(id: &'static str, title: Words, form: Form, x: [f64; 2], y: [f64; 2]) -> Chart {
        let span = |[low, high]: [f64; 2]| if high > low { [low, high] } else { [low - 0.5, low + 0.5] };
        let (x, y) = (span(x), span(y));
        let across = Words("update", "更新步");
        let (bands, lines, levels) = (Vec::new(), Vec::new(), Vec::new());
        Chart { id, title, across, form, stacked: false, x, y, bands, lines, levels }
    }

    /// Adds a line.
    pub fn line(&mut self, kind: Kind, points: impl Iterator<Item = (f64, f64)>) {
        let points = self.path(points);
        if !points.is_empty() {
            self.lines.push(Line { kind, points, dots: String::new(), area: String::new() });
        }
    }

    /// Adds a line with a mark at each point.
    pub fn dotted(&mut self, kind: Kind, points: impl Iterator<Item = (f64, f64)>) {
        let points = self.path(points);
        // Lines of no length have round ends, which are no ellipses however the plane is stretched.
        let dots: Vec<String> = points.split_whitespace().map(|at| format!("M{at}h0")).collect();
        if !points.is_empty() {
            self.lines.push(Line { kind, points, dots: dots.concat(), area: String::new() });
        }
    }

    /// Adds a line on top of those before. `under`: the line below it.
    pub fn stack(
        &mut self,
        kind: Kind,
        top: impl Iterator<Item = (f64, f64)>,
        under: impl Iterator<Item = (f64, f64)>,
    ) {
        let points = self.path(top);
        let area = format!("{points}{}", self.path(under));
        self.lines.push(Line { kind, points, dots: String::new(), area });
        self.stacked = true;
    }

    /// Fills what lies between two lines.
    pub fn band(
        &mut self,
        class: &'static str,
        low: impl DoubleEndedIterator<Item = (f64, f64)>,
        high: impl Iterator<Item = (f64, f64)>,
    ) {
        let area = format!("{}{}", self.path(high), self.path(low.rev()));
        self.bands.push((class, area));
    }

    /// Adds a level.
    pub fn level(&mut self, name: Words, class: &'static str, value: f64) {
        let top = 100.0 - self.share(self.y, value) * 100.0;
        if (0.0..=100.0).contains(&top) {
            let value = said(self.form, value);
            let below = top < 50.0;
            self.levels.push(Level { name, value, top, below, class });
        }
    }

    fn share(&self, [low, high]: [f64; 2], value: f64) -> f64 {
        (value - low) / (high - low)
    }

    /// Returns points as they are drawn; those out of the scale are at its end.
    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut text = String::new();
        for (x, y) in points.filter(|(x, y)| x.is_finite() && y.is_finite()) {
            let [x, y] = [self.share(self.x, x), self.share(self.y, y).clamp(-0.02, 1.02)];
            // Writing to a string does not fail.
            let _ = write!(text, "{:.1},{:.1} ", x * PLANE, (1.0 - y) * PLANE);
        }
        text
    }

    /// Returns the marks of the horizontal axis.
    pub fn ticks_x(&self) -> Vec<Tick> {
        let whole = ticks(self.x, 6).into_iter().filter(|(x, _)| x.fract() == 0.0);
        let placed = whole.map(|(x, text)| (self.share(self.x, x) * 100.0, text));
        // At the end stands what the axis counts.
        placed.filter(|(at, _)| *at < LAST_TICK).collect()
    }

    /// Returns the marks of the vertical axis.
    pub fn ticks_y(&self) -> Vec<Tick> {
        let unit = match self.form {
            Form::Bytes if self.y[1] >= f64::from(1 << 30) => (f64::from(1 << 30), " GiB"),
            Form::Bytes => (f64::from(1 << 20), " MiB"),
            Form::Seconds => (1.0, " s"),
            Form::Number | Form::Rate => (1.0, ""),
        };
        let marks = ticks(self.y.map(|y| y / unit.0), 4).into_iter();
        let place = |y: f64| 100.0 - self.share(self.y, y * unit.0) * 100.0;
        let text = |y: f64, text: String| match self.form {
            Form::Rate => said(self.form, y),
            _ => text + unit.1,
        };
        marks.map(|(y, written)| (place(y), text(y, written))).collect()
    }
}

/// Returns a number for people.
pub fn said(form: Form, value: f64) -> String {
    match form {
        Form::Bytes => ByteSize(value.max(0.0) as u64).to_string(),
        Form::Seconds if value < 10.0 => format!("{value:.3} s"),
        Form::Seconds => crate::metrics::duration(value),
        Form::Rate if value == 0.0 => "0".to_owned(),
        Form::Rate => short_power(value),
        Form::Number => format!("{value:.4}"),
    }
}

/// Returns `1e-5` or `2.5e-4`.
fn short_power(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        None => text,
    }
}

/// Returns a scale for numbers of which the highest few may leave it. `always`: what must be on it.
pub fn scale(numbers: impl Iterator<Item = (f64, f64)>, always: impl Iterator<Item = f64>) -> [f64; 2] {
    let (lows, mut highs): (Vec<f64>, Vec<f64>) = numbers.unzip();
    highs.retain(|x| x.is_finite());
    let lowest = lows.into_iter().filter(|x| x.is_finite()).min_by(f64::total_cmp);
    highs.sort_by(f64::total_cmp);
    highs.truncate(((highs.len() as f64) * (1.0 - OUTLIERS)).ceil() as usize);
    let shown = highs.into_iter().chain(lowest).chain(always.filter(|x| x.is_finite()));
    let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    match high - low {
        span if span.is_finite() && span > 0.0 => [low - 0.05 * span, high + 0.05 * span],
        _ if low == high && low.is_finite() => {
            [low - 0.5 * low.abs().max(1e-12), low + 0.5 * low.abs().max(1e-12)]
        }
        _ => [0.0, 1.0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_shortly() {
        let all = [(Form::Rate, 2.5e-4, "2.5e-4"), (Form::Rate, 1e-5, "1e-5"), (Form::Rate, 0.0, "0")];
        for (form, value, text) in all {
            assert_eq!(said(form, value), text);
        }
        assert_eq!(said(Form::Bytes, 3.0 * 1_048_576.0), "3.0 MiB");
    }

    /// What any number of points leaves in the page is drawn inside it, and an outlier flattens nothing.
    #[test]
    fn points_of_any_kind_are_drawn_inside() {
        let many = (0..500).map(|i| (f64::from(i), if i == 250 { 1e9 } else { 1.0 + f64::from(i) / 500.0 }));
        let y = scale(many.clone().map(|(_, y)| (y, y)), [0.5].into_iter());
        assert!(y[0] < 0.5 && y[1] < 3.0, "{y:?}");
        let mut chart = Chart::new("a", Words("a", "a"), Form::Number, [0.0, 500.0], y);
        let kind = Kind { name: Words("a", "a"), class: "c1" };
        chart.dotted(kind, many.chain([(1.0, f64::NAN), (f64::INFINITY, 1.0)]));
        let line = &chart.lines[0];
        assert_eq!(line.points.split_whitespace().count(), 500);
        for pair in line.points.split_whitespace() {
            let (x, y) = pair.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=1000.0).contains(&x) && (-20.0..=1020.0).contains(&y), "{pair}");
        }
        for range in [[0.0, 0.0], [f64::NAN, 1.0], [1.0, f64::INFINITY], [2.0, 1.0]] {
            let chart = Chart::new("a", Words("a", "a"), Form::Bytes, range, range);
            assert!(chart.ticks_x().len() <= 101 && chart.ticks_y().len() <= 101);
        }
    }
}
