//! A plot's area, scales, ticks and legend.

use super::WIDTH;
use super::canvas::{Canvas, Color, GREY, INK, PALE, text_width};

/// Height of a line of small text, scale 2.
pub const LINE: f64 = 24.0;

/// A rectangle of the canvas with a linear scale on each side.
pub struct Axes {
    /// Left, top, right, bottom in pixels.
    pub area: [f64; 4],
    /// Values at the left and right.
    pub x: [f64; 2],
    /// Values at the bottom and top.
    pub y: [f64; 2],
}

impl Axes {
    pub fn px(&self, x: f64) -> f64 {
        let [left, _, right, _] = self.area;
        left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (right - left)
    }

    /// Returns the pixel row of a value; values outside the scale are drawn at its ends.
    pub fn py(&self, y: f64) -> f64 {
        let [_, top, _, bottom] = self.area;
        (bottom - (y - self.y[0]) / (self.y[1] - self.y[0]) * (bottom - top)).clamp(top, bottom)
    }

    pub fn at(&self, x: f64, y: f64) -> [f64; 2] {
        [self.px(x), self.py(y)]
    }

    /// Draws ticks and grid lines at the left, with a label each.
    pub fn ticks_y(&self, canvas: &mut Canvas, ticks: &[(f64, String)]) {
        let [left, _, right, _] = self.area;
        for (y, label) in ticks {
            let py = self.py(*y);
            canvas.line([left, py], [right, py], 1.0, PALE, 1.0);
            canvas.text_right(left - 10.0, py - 7.0, 2, GREY, label);
        }
    }

    /// Draws ticks below, with a label each.
    pub fn ticks_x(&self, canvas: &mut Canvas, ticks: &[(f64, String)]) {
        let bottom = self.area[3];
        for (x, label) in ticks {
            let px = self.px(*x);
            canvas.line([px, bottom], [px, bottom + 6.0], 1.0, GREY, 1.0);
            canvas.text_centre(px, bottom + 11.0, 2, GREY, label);
        }
    }

    /// Draws the left and lower border.
    pub fn frame(&self, canvas: &mut Canvas) {
        let [left, top, right, bottom] = self.area;
        canvas.line([left, top], [left, bottom], 1.5, GREY, 1.0);
        canvas.line([left, bottom], [right, bottom], 1.5, GREY, 1.0);
    }
}

/// Returns round numbers over `low..=high`, about `most` of them, with just the digits that tell them apart.
pub fn ticks([low, high]: [f64; 2], most: usize) -> Vec<(f64, String)> {
    let raw = (high - low) / most.max(1) as f64;
    if !(raw.is_finite() && raw > 0.0) {
        return vec![(low, format!("{low:.3}"))];
    }
    let power = raw.log10().floor();
    let unit = 10_f64.powf(power);
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * unit)
        .find(|s| *s >= raw * 0.999)
        .unwrap_or(10.0 * unit);
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    let (first, last) = ((low / step).ceil(), (high / step + 1e-9).floor());
    // Adding 0 turns -0 into 0.
    (0..=((last - first) as usize).min(100))
        .map(|i| (first + i as f64) * step + 0.0)
        .map(|t| (t, format!("{t:.decimals$}")))
        .collect()
}

/// Draws the picture's name, upper left.
pub fn title(canvas: &mut Canvas, text: &str) {
    canvas.text(30.0, 22.0, 3, INK, text);
}

/// Draws coloured squares with labels from `left` on, wrapped to further lines. Returns the y below the last line.
pub fn legend(canvas: &mut Canvas, left: f64, top: f64, entries: &[(Color, String)]) -> f64 {
    let (mut x, mut y) = (left, top);
    for (color, label) in entries {
        let width = 22.0 + text_width(label, 2) + 26.0;
        if x + width > WIDTH as f64 && x > left {
            (x, y) = (left, y + LINE);
        }
        canvas.rect([x, y, x + 14.0, y + 14.0], *color, 1.0);
        canvas.text(x + 22.0, y, 2, INK, label);
        x += width;
    }
    y + LINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let labels = |range, most| ticks(range, most).into_iter().map(|t| t.1).collect::<Vec<_>>();
        assert_eq!(labels([0.0, 1.0], 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels([0.0, 2000.0], 5), ["0", "500", "1000", "1500", "2000"]);
        assert_eq!(labels([-0.01, 0.03], 4), ["-0.01", "0.00", "0.01", "0.02", "0.03"]);
        assert_eq!(labels([3.0, 3.0], 4), ["3.000"]);
        arbtest::arbtest(|u| {
            let (a, b) = (u.arbitrary::<f64>()?, u.arbitrary::<f64>()?);
            assert!(ticks([a, b], u.int_in_range(0..=10)?).len() <= 101);
            Ok(())
        });
    }
}
