use super::*;
use std::f32::consts::TAU;

const RATE: u32 = 24_000;

/// Noise in -1..1, by a linear congruence.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / 8_388_608.0 - 1.0
    }

    fn seconds(&mut self, from: f32, to: f32) -> f32 {
        from + (self.next() + 1.0) / 2.0 * (to - from)
    }
}

fn heard(rate: u32, sound: &[f32], expected: Option<f64>) -> Vec<Doubt> {
    let mut listener = Listener::new(rate);
    sound.chunks(777).for_each(|piece| listener.push(piece));
    listener.finish(expected, false).doubts
}

/// A vowel: harmonics under three formants, with vibrato and tremolo, as shares.
fn vowel(pitch: f32, formants: [f32; 3], seconds: f32, vibrato: f32, tremolo: f32) -> Vec<f32> {
    let mut phase = 0.0f32;
    let sample = |i: usize| {
        let wave = (TAU * 5.5 * i as f32 / RATE as f32).sin();
        let hz = pitch * (1.0 + vibrato * wave);
        phase = (phase + hz / RATE as f32).fract();
        let under = |h: f32, f: f32| 1.0 / (1.0 + ((h * hz - f) / 100.0).powi(2));
        let harmonics = (1..).map(|h| h as f32).take_while(|h| h * hz < 5000.0);
        let all =
            harmonics.map(|h| formants.iter().map(|f| under(h, *f)).sum::<f32>() * (TAU * phase * h).sin());
        0.1 * all.sum::<f32>() * (1.0 + tremolo * wave)
    };
    (0..(seconds * RATE as f32) as usize).map(sample).collect()
}

/// Something like speech: vowels and bursts of noise of random lengths, with pauses under a second.
fn babble(seed: u32, seconds: f32) -> Vec<f32> {
    let (mut noise, mut sound) = (Noise(seed), Vec::new());
    while (sound.len() as f32) < seconds * RATE as f32 {
        let formants =
            [noise.seconds(250.0, 800.0), noise.seconds(900.0, 2200.0), noise.seconds(2400.0, 3200.0)];
        let (pitch, long) = (noise.seconds(90.0, 240.0), noise.seconds(0.05, 0.25));
        sound.extend(vowel(pitch, formants, long, 0.0, 0.0));
        let (long, loud) = (noise.seconds(0.02, 0.12), noise.seconds(0.01, 0.2));
        sound.extend((0..(long * RATE as f32) as usize).map(|_| noise.next() * loud));
        if noise.next() > 0.6 {
            let pause = noise.seconds(0.1, 0.9);
            sound.extend((0..(pause * RATE as f32) as usize).map(|_| noise.next() * 0.000_5));
        }
    }
    sound
}

fn is_loop(doubts: &[Doubt], period: f64) -> bool {
    doubts.iter().any(|d| matches!(d, Doubt::Loop { period: p, .. } if (p - period).abs() < 0.015))
}

#[test]
fn healthy_sounds_are_not_doubted() {
    for seed in 1..=50 {
        let seconds = 2.0 + seed as f32 / 8.0;
        let sound = babble(seed, seconds);
        let expected = sound.len() as f64 / f64::from(RATE) * [0.7, 1.0, 1.4][seed as usize % 3];
        assert_eq!(heard(RATE, &sound, Some(expected)), [], "seed {seed}");
    }
    for pitch in [90.0, 140.0, 220.0, 330.0, 440.0] {
        for (vibrato, tremolo) in [(0.0, 0.0), (0.03, 0.0), (0.03, 0.3), (0.06, 0.0)] {
            let sung = vowel(pitch, [700.0, 1200.0, 2600.0], 4.0, vibrato, tremolo);
            assert_eq!(heard(RATE, &sung, None), [], "{pitch} Hz, vibrato {vibrato}, tremolo {tremolo}");
        }
    }
}

#[test]
fn a_loop_is_named() {
    for (seed, (seconds, times)) in (1..).zip([(0.4, 8), (0.5, 6), (1.0, 4), (2.0, 3), (4.0, 3)]) {
        let (mut sound, more) = (babble(seed, 2.0), babble(seed + 100, seconds));
        let (more, mut noise) = (&more[..(seconds * RATE as f32) as usize], Noise(seed));
        let begins = sound.len() as f64 / f64::from(RATE);
        for i in 0..times {
            let loud = 1.0 - 0.05 * (i % 3) as f32;
            sound.extend(more.iter().map(|x| x * loud + noise.next() * 0.002));
        }
        let doubts = heard(RATE, &sound, None);
        assert!(is_loop(&doubts, seconds.into()), "{seconds} s: {doubts:?}");
        let [Doubt::Loop { at, seconds: all, .. }] = doubts[..] else { panic!("{doubts:?}") };
        assert!(
            (at - begins).abs() < 0.9 && (all - f64::from(seconds) * f64::from(times)).abs() < 0.9,
            "{doubts:?}"
        );
    }
    // The same word three times is none.
    let word = babble(7, 0.5);
    let mut thrice = [&*babble(8, 1.0), &word, &word, &word].concat();
    thrice.extend(babble(9, 1.0));
    assert_eq!(heard(RATE, &thrice, None), []);
}

#[test]
fn silence_is_named_wherever_it_is() {
    let (speech, nothing) = (babble(3, 2.0), vec![0.000_1; 2 * RATE as usize]);
    let short = vec![0.0; RATE as usize];
    let whole = speech.len() as f64 / f64::from(RATE);
    for (sound, begins) in [
        ([&*nothing, &speech].concat(), 0.0),
        ([&*speech, &nothing, &speech].concat(), whole),
        ([&*speech, &nothing].concat(), whole),
    ] {
        let doubts = heard(RATE, &sound, None);
        let [Doubt::Silence { at, seconds }] = doubts[..] else { panic!("{doubts:?}") };
        // The pauses around it are part of it.
        assert!((at - begins).abs() < 0.95 && (1.9..3.9).contains(&seconds), "{doubts:?}");
    }
    let speech = &speech[..RATE as usize / 8];
    let healthy = [&*short, speech, &short, speech, &short].concat();
    assert_eq!(heard(RATE, &healthy, None), []);
    for nothing in [&nothing[..], &short, &[0.4; 9000], &[0.0; 3], &[]] {
        let doubts = heard(RATE, nothing, Some(3.0));
        assert!(matches!(doubts[..], [Doubt::Silent { .. }]), "{doubts:?}");
    }
}

#[test]
fn lengths_limits_and_clipping_are_named() {
    let sound = babble(5, 3.0);
    let seconds = sound.len() as f64 / f64::from(RATE);
    let named = |expected| heard(RATE, &sound, Some(expected)).first().copied();
    assert!(matches!(named(seconds * 2.0), Some(Doubt::Short { .. })));
    assert!(matches!(named(seconds / 2.2), Some(Doubt::Long { .. })));
    assert_eq!([0.7, 1.0, 1.4].map(|times| named(seconds * times)), [None; 3]);
    assert_eq!([f64::NAN, f64::INFINITY].map(named), [None; 2]);
    let mut listener = Listener::new(RATE);
    listener.push(&sound);
    assert_eq!(listener.finish(None, true).doubts, [Doubt::Limit { seconds }]);

    let peak = sound.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
    let scaled = |times: f32| -> Vec<f32> { sound.iter().map(|x| x / peak * times).collect() };
    assert_eq!(heard(RATE, &scaled(1.0), None), []);
    for sound in
        [scaled(2.0), scaled(2.0).iter().map(|x| x.clamp(-1.0, 1.0)).collect(), vec![f32::NAN; 50_000]]
    {
        let doubts = heard(RATE, &sound, None);
        let clipped = |d: &Doubt| matches!(d, Doubt::Clipped { share } if *share > 4.0 * CLIPPED_SHARE);
        assert!(doubts.iter().any(clipped) || sound[0].is_nan(), "{doubts:?}");
        assert!(!doubts.is_empty());
    }
    for rate in [0, 1, 99, 8_000] {
        let mut listener = Listener::new(rate);
        listener.push(&sound);
        listener.finish(Some(1.0), false);
    }
}

/// As seconds of sound, and what a text needs by its characters.
#[test]
fn half_of_a_sentence_is_named_by_the_pace_of_others() {
    let named = |sounds: &[(f64, f64)]| {
        let doubts = beside_others(sounds).into_iter().enumerate();
        doubts.filter_map(|(i, doubt)| doubt.map(|doubt| (i, doubt))).collect::<Vec<_>>()
    };
    // A slow voice: 1.6 times what their characters say.
    let slow = [(3.2, 2.0), (4.6, 3.0), (6.6, 4.0), (1.7, 1.0)];
    assert_eq!(named(&slow), []);
    let half = [&slow[..], &[(2.2, 2.8)]].concat();
    let [(4, Doubt::Short { seconds, expected })] = named(&half)[..] else { panic!("{:?}", named(&half)) };
    assert!(seconds == 2.2 && (expected / 2.8 - 1.6).abs() < 0.06, "{expected}");
    // Too few others say nothing, and those of which nothing is known do not count; what is named by its text is not named again.
    assert_eq!([named(&half[2..]), named(&[&half[2..], &[(9.0, 0.0); 3]].concat())], [vec![], vec![]]);
    assert_eq!(named(&[&slow[..], &[(1.0, 2.8)]].concat()), []);
    // A word is as short as it is.
    assert_eq!(named(&[&slow[..], &[(0.3, 0.4)]].concat()), []);
    assert_eq!(named(&[]), []);
}

#[test]
fn texts_need_seconds_by_their_letters_or_by_a_reference() {
    assert_eq!(expected_seconds("sixteen letters.", None), 1.0);
    assert_eq!(expected_seconds("sixteen letters.", Some(("eight on", 0.75))), 1.5);
    assert_eq!(expected_seconds("你好世界", None), 12.0 / 16.0);
    assert_eq!(expected_seconds("", None), 0.0);
    assert_eq!(expected_seconds("sixteen letters.", Some(("", 1.0))), 1.0);
}

#[test]
fn doubts_are_said_in_words() {
    let said = [
        (Doubt::Limit { seconds: 14.6 }, "ran to its limit of 14.6 s without ending"),
        (Doubt::Short { seconds: 1.0, expected: 2.04 }, "1.0 s of sound, its text needs about 2.0 s"),
        (
            Doubt::Long { seconds: 5.0, expected: 2.0 },
            "5.0 s of sound, 2.5 times the 2.0 s that its text needs",
        ),
        (Doubt::Silence { at: 0.0, seconds: 2.0 }, "2.0 s of silence from 0.0 s on"),
        (Doubt::Clipped { share: 0.021 }, "clipped: 2.1 % of it is at full scale"),
        (
            Doubt::Loop { at: 1.0, period: 0.5, seconds: 4.0 },
            "repeats 0.50 s of sound for 4.0 s, from 1.0 s on",
        ),
    ];
    said.iter().for_each(|(doubt, words)| assert_eq!(doubt.to_string(), *words));
}

#[test]
fn loops_of_tokens_are_found() {
    const SLOTS: usize = 7;
    let tokens = |frames: usize, seed: u32| -> Vec<u32> {
        let mut noise = Noise(seed);
        (0..frames * SLOTS).map(|_| noise.seconds(0.0, 4096.0) as u32).collect()
    };
    let speech = tokens(60, 1);
    assert_eq!(loops(&speech, SLOTS), None);
    for (period, times) in [(1, 17), (2, 12), (6, 4), (24, 3), (64, 3)] {
        let pattern = tokens(period, 2);
        let mut codes = [&*speech, &pattern.repeat(times), &tokens(20, 3)].concat();
        let planted = Loop { first: 60, period, frames: period * times };
        assert_eq!(loops(&codes, SLOTS), Some(planted));
        // The finest tokens differ.
        codes.iter_mut().enumerate().filter(|(i, _)| i % SLOTS > 3).for_each(|(i, code)| *code = i as u32);
        assert_eq!(loops(&codes, SLOTS), Some(planted));
    }
    // A pause of a second is one frame again and again.
    let pause = [&*speech, &tokens(1, 4).repeat(12), &tokens(60, 5)].concat();
    assert_eq!(loops(&pause, SLOTS), None);
    assert_eq!([loops(&[], SLOTS), loops(&speech, 0), loops(&speech[..3], SLOTS)], [None; 3]);
    let words = Loop { first: 12, period: 6, frames: 24 }.doubt(12.0);
    assert_eq!(words, Doubt::Loop { at: 1.0, period: 0.5, seconds: 2.0 });
}
