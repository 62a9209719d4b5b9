//! When a run ends by its validations (`stop:`), and what they say of it at its end.

use crate::pictures::Curve;
use crate::saved::Progress;
use ambitus_recipe::recipe::Recipe;
use std::path::Path;

/// The share by which a validation loss must be over the lowest for a run to be called overfitted: less is noise.
const RISE: f64 = 0.01;

/// Returns what follows from another validation for [`Progress::plateau`]. A loss that is not finite is no gain.
pub fn plateau(before: Option<(f64, u32)>, loss: f64) -> Option<(f64, u32)> {
    match before {
        Some((low, n)) if loss.is_nan() || loss >= low => Some((low, n.saturating_add(1))),
        _ => loss.is_finite().then_some((loss, 0)),
    }
}

/// Returns whether a run ends here. The same on all ranks, and after a resume: it goes by what a checkpoint holds.
pub fn is_over(recipe: &Recipe, progress: &Progress) -> bool {
    matches!((recipe.stop, progress.plateau), (Some(stop), Some((_, n))) if n >= stop.after)
}

/// Says why a run of `updates` ended before its last, and where the best of it is.
pub fn why(recipe: &Recipe, progress: &Progress, updates: u64, result: &Path) -> Option<String> {
    let (_, n) = progress.plateau.filter(|_| is_over(recipe, progress) && progress.update < updates)?;
    let best =
        progress.best.map_or(String::new(), |(update, loss)| format!(", {loss:.4} after update {update},"));
    Some(format!(
        "stopped after update {} of {updates}: {n} validation{} in a row without gain; the best{best} is in {}",
        progress.update,
        if n == 1 { "" } else { "s" },
        result.display()
    ))
}

/// Says that a run overfitted: its validation loss rose after the best one, and its training loss fell. Training losses are means over
/// equally many updates before both.
pub fn overfitting(progress: &Progress, training: &Curve) -> Option<String> {
    let ((best, low), last, end) = (progress.best?, progress.last_loss()?, progress.update);
    let updates = best.min(end.checked_sub(best)?);
    let [before, after] = [training.mean(best - updates, best)?, training.mean(end - updates, end)?];
    (last - low > RISE * low.abs() && after < before).then(|| {
        format!(
            "overfitting: from update {best} to {end} the validation loss rose from {low:.4} to {last:.4}, while the training loss \
             fell from {before:.4} to {after:.4}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_recipe::recipe::Stop;

    fn after(losses: &[f64]) -> Option<(f64, u32)> {
        losses.iter().fold(None, |before, loss| plateau(before, *loss))
    }

    #[test]
    fn validations_without_gain_are_counted_in_a_row() {
        let none = f64::NAN;
        for (losses, expected) in [
            (&[][..], None),
            (&[none], None),
            (&[none, 3.0], Some((3.0, 0))),
            (&[3.0, 2.0, 1.0], Some((1.0, 0))),
            (&[3.0, 3.0], Some((3.0, 1))),
            (&[3.0, 4.0, none, f64::INFINITY], Some((3.0, 3))),
            (&[3.0, 4.0, 2.0, 2.5], Some((2.0, 1))),
            (&[-1.0, -2.0], Some((-2.0, 0))),
        ] {
            assert_eq!(after(losses), expected, "{losses:?}");
        }
    }

    fn recipe(stop: Option<u32>) -> Recipe {
        Recipe { stop: stop.map(|after| Stop { after }), ..Recipe::new("model", "data") }
    }

    #[test]
    fn a_run_is_over_after_as_many() {
        let at = |n| Progress {
            update: 60,
            plateau: Some((1.5, n)),
            best: Some((30, 1.5)),
            ..Progress::default()
        };
        assert!(!is_over(&recipe(Some(3)), &Progress::default()));
        assert!(!is_over(&recipe(None), &at(9)) && !is_over(&recipe(Some(3)), &at(2)));
        assert!(is_over(&recipe(Some(3)), &at(3)) && is_over(&recipe(Some(3)), &at(4)));
        let said = |n, updates| why(&recipe(Some(3)), &at(n), updates, Path::new("run/checkpoints/step-30"));
        assert_eq!((said(2, 100), said(3, 60)), (None, None));
        assert_eq!(
            said(3, 100).expect("a reason"),
            "stopped after update 60 of 100: 3 validations in a row without gain; the best, 1.5000 after update 30, is in \
             run/checkpoints/step-30"
        );
    }

    #[test]
    fn overfitting_is_a_rise_beside_a_fall() {
        let curve = |slope: f64| {
            let mut curve = Curve::new(300);
            (1..=60).for_each(|update| curve.add(update, 10.0 + slope * update as f64));
            curve
        };
        let at = |last| Progress {
            update: 60,
            best: Some((40, 2.0)),
            last: Some((9.0, Some(last))),
            ..Progress::default()
        };
        let said = overfitting(&at(2.5), &curve(-0.1)).expect("it is");
        assert_eq!(
            said,
            "overfitting: from update 40 to 60 the validation loss rose from 2.0000 to 2.5000, while the training loss fell from \
             6.9500 to 4.9500"
        );
        // Both rise; noise; the last is the best; nothing was validated; no log.
        assert_eq!(overfitting(&at(2.5), &curve(0.1)), None);
        assert_eq!(overfitting(&at(2.01), &curve(-0.1)), None);
        let best = Progress { best: Some((60, 2.0)), ..at(2.0) };
        assert_eq!(overfitting(&best, &curve(-0.1)), None);
        assert_eq!(overfitting(&Progress::default(), &curve(-0.1)), None);
        assert_eq!(overfitting(&at(2.5), &Curve::new(300)), None);
    }
}
