//! The head: what the program makes of a frame as a spectrum.

use super::config::Config;

/// Magnitudes are at most this.
const MOST: f32 = 100.0;

/// Gives the spectrum of a frame, of which `row` `[N + 2]` holds the logarithms of magnitudes and then the phases: real and
/// imaginary part of each frequency, m cos p and m sin p with m = min(e^x, 100).
pub fn spectrum<'r>(cfg: &Config, row: &'r [f32]) -> impl Iterator<Item = (f32, f32)> + use<'r> {
    let (magnitudes, phases) = row.split_at(cfg.bins());
    magnitudes.iter().zip(phases).map(|(x, p)| {
        let m = x.exp();
        // `f32::min` would hide what is not a number.
        let m = if m > MOST { MOST } else { m };
        (m * p.cos(), m * p.sin())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_are_bounded() {
        let cfg = Config { n_fft: 4, hop: 1, ..Config::vocos_mel_24khz() };
        let row = [0.0, 200.0, f32::NAN, 0.0, std::f32::consts::FRAC_PI_2, 0.0];
        let all: Vec<_> = spectrum(&cfg, &row).collect();
        assert_eq!(all[0], (1.0, 0.0));
        assert!(all[1].0.abs() < 1e-4 && all[1].1 == MOST);
        assert!(all[2].0.is_nan());
    }
}
