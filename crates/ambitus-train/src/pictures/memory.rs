//! Memory over the step, by category.

use super::axes::{Axes, legend, ticks, title};
use super::canvas::{ALARM, Canvas, GREY, INK, SERIES, WHITE, text_width};
use super::{HEIGHT, Picture, PictureError, WIDTH};
use ambitus_recipe::size::ByteSize;

/// Bytes that live at each instruction, stacked by category, under the budget's line.
#[derive(Clone, Debug)]
pub struct MemoryPicture<'a> {
    /// The picture's name.
    pub title: &'a str,
    /// Categories from the bottom up: name, and bytes at every instruction, or one number if it is the same at all.
    pub series: &'a [(String, Vec<u64>)],
    /// The budget in bytes.
    pub budget: Option<u64>,
    /// Where something starts, by instruction: `(0, "forward")`.
    pub marks: &'a [(usize, String)],
}

impl Picture for MemoryPicture<'_> {
    fn png(&self) -> Result<Vec<u8>, PictureError> {
        let n = self.series.iter().map(|s| s.1.len()).max().unwrap_or(0);
        if n == 0 {
            return Err(PictureError::Input("memory: no category or no instruction".to_owned()));
        }
        if let Some((name, bytes)) = self.series.iter().find(|s| s.1.len() != n && s.1.len() != 1) {
            return Err(PictureError::Input(format!(
                "memory: {name} has {} instructions, not {n}",
                bytes.len()
            )));
        }
        let total = |i: usize| self.series.iter().fold(0_u64, |sum, s| sum.saturating_add(at(&s.1, i)));
        // Of equal peaks the first.
        let peak = (0..n).rev().max_by_key(|&i| total(i)).unwrap_or(0);
        let peak_bytes = total(peak);
        let highest = peak_bytes.max(self.budget.unwrap_or(0)).max(1) as f64;
        let (unit, name) = if highest >= f64::from(1 << 30) {
            (f64::from(1 << 30), "GiB")
        } else {
            (f64::from(1 << 20), "MiB")
        };

        let mut canvas = Canvas::new();
        title(&mut canvas, self.title);
        let label = |(i, s): (usize, &(String, Vec<u64>))| {
            (SERIES[i % SERIES.len()], format!("{} {}", s.0, ByteSize(at(&s.1, peak))))
        };
        let entries: Vec<_> = self.series.iter().enumerate().map(label).collect();
        let after = canvas.text(30.0, 62.0, 2, GREY, "at the peak:");
        let top = legend(&mut canvas, after + 14.0, 62.0, &entries) + 34.0;
        let axes = Axes {
            area: [110.0, top, WIDTH as f64 - 40.0, HEIGHT as f64 - 70.0],
            x: [0.0, n as f64],
            y: [0.0, highest / unit * 1.06],
        };
        let labels: Vec<_> = ticks(axes.y, 7).into_iter().map(|(y, t)| (y, format!("{t} {name}"))).collect();
        let wide = labels.iter().map(|l| text_width(&l.1, 2)).fold(0.0, f64::max);
        let axes = Axes { area: [wide + 40.0, axes.area[1], axes.area[2], axes.area[3]], ..axes };
        axes.ticks_y(&mut canvas, &labels);
        self.columns(&mut canvas, &axes, unit, &total);
        let whole: Vec<_> = ticks(axes.x, 8).into_iter().filter(|(x, _)| x.fract() == 0.0).collect();
        axes.ticks_x(&mut canvas, &whole);
        axes.frame(&mut canvas);
        canvas.text_centre(
            (axes.area[0] + axes.area[2]) / 2.0,
            HEIGHT as f64 - 30.0,
            2,
            GREY,
            "instructions",
        );
        self.draw_marks(&mut canvas, &axes, n);
        if let Some(budget) = self.budget {
            let py = axes.py(budget as f64 / unit);
            canvas.dashed([axes.area[0], py], [axes.area[2], py], 2.5, ALARM);
            let text = format!("budget {}", ByteSize(budget));
            backed(&mut canvas, axes.area[2] - text_width(&text, 2) - 6.0, py + 8.0, ALARM, &text);
        }
        let [px, py] = axes.at(peak as f64 + 0.5, peak_bytes as f64 / unit);
        canvas.dot([px, py], 5.0, INK);
        let text = format!("peak {}", ByteSize(peak_bytes));
        let wide = text_width(&text, 2);
        let x = if px + 14.0 + wide < axes.area[2] { px + 14.0 } else { px - 14.0 - wide };
        let free = py - 22.0 > axes.area[1]
            && self.budget.is_none_or(|b| (axes.py(b as f64 / unit) - py).abs() > 26.0);
        backed(&mut canvas, x, if free { py - 18.0 } else { py + 12.0 }, INK, &text);
        canvas.png()
    }
}

impl MemoryPicture<'_> {
    /// Draws stacked bars, one per pixel column, each of the column's highest instruction, so that no peak is lost between pixels.
    fn columns(&self, canvas: &mut Canvas, axes: &Axes, unit: f64, total: &dyn Fn(usize) -> u64) {
        let n = axes.x[1] as usize;
        let [left, _, right, _] = axes.area;
        let width = (right - left) as usize;
        for column in 0..width {
            let (first, last) = (column * n / width, ((column + 1) * n).div_ceil(width).min(n));
            let Some(i) = (first..last).max_by_key(|&i| total(i)) else { continue };
            let mut base = 0.0;
            for (s, (_, bytes)) in self.series.iter().enumerate() {
                let top = base + at(bytes, i) as f64 / unit;
                let x = left + column as f64;
                canvas.rect([x, axes.py(top), x + 1.0, axes.py(base)], SERIES[s % SERIES.len()], 0.92);
                base = top;
            }
        }
    }

    /// Draws a line where something starts, and its name above the plot if there is room for it.
    fn draw_marks(&self, canvas: &mut Canvas, axes: &Axes, n: usize) {
        let [_, top, _, bottom] = axes.area;
        let mut free = 0.0;
        for (i, name) in self.marks.iter().filter(|m| m.0 < n) {
            let px = axes.px(*i as f64);
            canvas.line([px, top - 24.0], [px, bottom], 1.0, GREY, 0.7);
            if px >= free && px + 6.0 + text_width(name, 2) < WIDTH as f64 {
                free = canvas.text(px + 6.0, top - 24.0, 2, GREY, name) + 8.0;
            }
        }
    }
}

/// Returns the bytes at an instruction.
fn at(series: &[u64], instruction: usize) -> u64 {
    series[instruction.min(series.len() - 1)]
}

/// Writes text on a white ground, for places where something is drawn already.
fn backed(canvas: &mut Canvas, x: f64, y: f64, color: [u8; 3], text: &str) {
    canvas.rect([x - 5.0, y - 4.0, x + text_width(text, 2) + 5.0, y + 20.0], WHITE, 0.85);
    canvas.text(x, y, 2, color, text);
}
