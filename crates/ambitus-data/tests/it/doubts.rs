//! Doubts about sentences that espeak-ng speaks: none about them, and one about each planted fault.

use ambitus_data::doubts::{Doubt, Heard, Listener, beside_others, expected_seconds};
use std::process::Command;

fn listened(rate: u32, sound: &[f32], expected: Option<f64>) -> Heard {
    let mut listener = Listener::new(rate);
    sound.chunks(777).for_each(|piece| listener.push(piece));
    listener.finish(expected, false)
}

fn heard(rate: u32, sound: &[f32], expected: Option<f64>) -> Vec<Doubt> {
    listened(rate, sound, expected).doubts
}

fn is_loop(doubts: &[Doubt], period: f64) -> bool {
    doubts.iter().any(|d| matches!(d, Doubt::Loop { period: p, .. } if (p - period).abs() < 0.015))
}

const SENTENCES: [&str; 9] = [
    "The quick brown fox jumps over the lazy dog.",
    "How are you today? I hope that the weather is better where you are.",
    "On Monday, the council met again; nobody had read the report.",
    "It was the best of times, it was the worst of times.",
    "No, no, no! I said that the red box goes first.",
    "Row, row, row your boat, gently down the stream.",
    "He said nothing. She said nothing. They both waited for the rain to stop.",
    "Mix the flour with the butter, add the eggs, and leave the dough to rest for an hour.",
    "One, two, three, four, five, six, seven, eight, nine, ten.",
];

/// Returns what espeak-ng says, and its rate; `None` where it is not installed.
fn spoken(voice: &str, speed: &str, text: &str) -> Option<(u32, Vec<f32>)> {
    let args = ["-v", voice, "-s", speed, "--stdout", text];
    let wav = Command::new("espeak-ng").args(args).output().ok().filter(|o| o.status.success())?.stdout;
    let rate = u32::from_le_bytes(wav.get(24..28)?.try_into().ok()?);
    let samples = wav.get(44..)?.as_chunks().0.iter();
    Some((rate, samples.map(|s| f32::from(i16::from_le_bytes(*s)) / 32768.0).collect()))
}

#[test]
fn spoken_sentences_are_not_doubted_and_their_faults_are() {
    let (mut healthy, reference) = (0, SENTENCES[1]);
    for voice in ["en", "en-us+f3", "en-gb+m7", "en+whisper", "en-us+croak"] {
        for speed in ["140", "190"] {
            let Some((rate, said)) = spoken(voice, speed, reference) else {
                eprintln!("SKIPPED: espeak-ng is not installed");
                return;
            };
            let said = Some((reference, said.len() as f64 / f64::from(rate)));
            for text in SENTENCES {
                let Some((rate, sound)) = spoken(voice, speed, text) else { panic!("{voice}") };
                for expected in [expected_seconds(text, said), expected_seconds(text, None)] {
                    let doubts = heard(rate, &sound, Some(expected));
                    assert_eq!(doubts, [], "{voice} {speed} {text}");
                }
                healthy += 1;
                let own = sound.len() as f64 / f64::from(rate);
                let half = heard(rate, &sound[..sound.len() / 2], Some(own));
                assert!(
                    half.iter().any(|d| matches!(d, Doubt::Short { .. })),
                    "{voice} {speed} {text}: {half:?}"
                );
                let (part, second) = (sound.len() / 4, rate as usize);
                let pattern = &sound[part..part + second * 6 / 10];
                let looped = [&sound[..part], &pattern.repeat(6)].concat();
                assert!(is_loop(&heard(rate, &looped, None), 0.6), "{voice} {speed} {text}");
                let gap = [&sound[..part], &vec![0.0; 2 * second], &sound[part..]].concat();
                let silence = heard(rate, &gap, None);
                assert!(
                    matches!(silence[..], [Doubt::Silence { .. }]),
                    "{voice} {speed} {text}: {silence:?}"
                );
            }
        }
    }
    assert!(healthy >= 50);
}

/// Returns how long a text sounds, cut to one of `share` parts, with what it needs by its characters; and whether that names it.
fn line(voice: &str, speed: &str, text: &str, share: usize) -> Option<((f64, f64), bool)> {
    let (rate, sound) = spoken(voice, speed, text)?;
    let expected = expected_seconds(text, None);
    let heard = listened(rate, &sound[..sound.len() / share], Some(expected));
    Some(((heard.sounding, expected), heard.doubts.iter().any(|d| matches!(d, Doubt::Short { .. }))))
}

/// Of a voice that is slower than characters say, half of a sentence is as long as a whole one may be.
#[test]
fn half_of_a_slow_sentence_is_named_beside_others() {
    let (mut halves, mut named, mut alone) = (0, 0, 0);
    for voice in ["en", "en-us+f3", "en-gb+m7", "en+whisper", "en-us+croak"] {
        let lines = |share| SENTENCES.iter().map(|text| line(voice, "110", text, share)).collect();
        let (whole, half): (Option<Vec<_>>, Option<Vec<_>>) = (lines(1), lines(2));
        let (Some(whole), Some(half)) = (whole, half) else {
            eprintln!("SKIPPED: espeak-ng is not installed");
            return;
        };
        let whole: Vec<_> = whole.iter().map(|(line, _)| *line).collect();
        assert!(beside_others(&whole).iter().all(Option::is_none), "{voice}: {whole:?}");
        for (i, (half, short)) in half.into_iter().enumerate() {
            let mut lines = whole.clone();
            lines[i] = half;
            let doubts = beside_others(&lines);
            let others = doubts.iter().enumerate().filter(|(j, doubt)| *j != i && doubt.is_some());
            assert_eq!(others.count(), 0, "{voice} {i}: {lines:?}");
            halves += 1;
            named += usize::from(short || doubts[i].is_some());
            alone += usize::from(short);
        }
    }
    // Lists with a pause after every word are slow beside the rest: half of one is no shorter than the others.
    println!("{named} of {halves} halves are named, {alone} by characters");
    assert!(named * 5 >= halves * 3 && alone * 5 <= halves, "{named} of {halves}, {alone} by characters");
}

/// Much of a word that stands alone is pauses: by its pace, any sentence beside it would be half as long as it should be.
#[test]
fn a_sentence_among_single_words_is_not_named() {
    let words = ["Yes.", "No.", "Wait!", "Well.", "Oh!", "Go on.", "Who?"];
    for (voice, speed) in [("en", "175"), ("en-us+f3", "120"), ("en-gb+m7", "175")] {
        let lines: Option<Vec<_>> = words.iter().map(|text| line(voice, speed, text, 1)).collect();
        let Some(lines) = lines else {
            eprintln!("SKIPPED: espeak-ng is not installed");
            return;
        };
        for text in SENTENCES {
            let whole = line(voice, speed, text, 1).into_iter();
            let lines: Vec<_> = lines.iter().copied().chain(whole).map(|(line, _)| line).collect();
            assert!(beside_others(&lines).iter().all(Option::is_none), "{voice} {speed} {text}: {lines:?}");
        }
    }
}

/// What is silent has no pace, and lines beside it are compared with those that have one.
#[test]
fn silent_lines_say_nothing_of_others() {
    let spoken = [(3.2, 2.0), (6.6, 4.0), (4.8, 3.0), (0.0, 3.0), (0.0, 2.0), (0.0, 2.5), (2.2, 2.8)];
    let doubts = beside_others(&spoken);
    assert!(doubts[..6].iter().all(Option::is_none), "{doubts:?}");
    assert!(matches!(doubts[6], Some(Doubt::Short { .. })), "{doubts:?}");
}
