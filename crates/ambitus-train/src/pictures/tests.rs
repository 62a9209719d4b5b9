use super::*;

/// Pixels of a PNG.
fn decode(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width as usize, info.height as usize), (WIDTH, HEIGHT));
    pixels
}

fn has(pixels: &[u8], color: [u8; 3]) -> usize {
    pixels.chunks(3).filter(|p| *p == color).count()
}

fn curve(of: u64, losses: &[(u64, f64)]) -> Curve {
    let mut curve = Curve::new(of);
    losses.iter().for_each(|(update, loss)| curve.add(*update, *loss));
    curve
}

/// Returns a falling loss with noise from a small generator.
fn losses(n: u64) -> Vec<(u64, f64)> {
    let mut state = 1_u32;
    let noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 24) - 0.5
    };
    let mut noise = noise;
    (1..=n).map(|i| (i, 0.6 + 0.5 * (-(i as f64) / (n as f64 / 4.0)).exp() + 0.15 * noise())).collect()
}

fn memory() -> Vec<(String, Vec<u64>)> {
    let n = 900;
    let of =
        |name: &str, bytes: &dyn Fn(u64) -> u64| (name.to_owned(), (0..n).map(|i| bytes(i) << 20).collect());
    let rise = |i: u64| if i < 400 { i * 2 } else { (800 - i.min(800)) * 2 };
    vec![
        of("parameters", &|_| 151),
        of("gradients", &|i| if i >= 400 { (i - 400).min(151) } else { 0 }),
        of("optimizer", &|_| 301),
        of("activations", &rise),
        of("workspace", &|i| if i % 40 < 8 { 96 } else { 20 }),
        of("process", &|_| 60),
    ]
}

fn mel(frames: usize, blur: f32) -> Vec<f32> {
    let value = |f: usize, m: usize| {
        let (t, m) = (f as f32 * 0.03, m as f32);
        let voice = ((m * (0.35 + 0.05 * t.sin())).sin() + 1.0) * (-m / 45.0).exp() * 6.0 * (1.0 - blur);
        voice * (0.6 + 0.4 * (t * 2.3).sin()).max(0.0) - 8.0 + blur * 2.0
    };
    (0..frames * 100).map(|i| value(i / 100, i % 100)).collect()
}

/// Returns the three pictures; the folder named by `AMBITUS_PICTURES`, if any, keeps them for the eye.
fn keep(name: &str, picture: &dyn Picture) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let wanted = std::env::var_os("AMBITUS_PICTURES").map(std::path::PathBuf::from);
    let path = wanted.as_deref().unwrap_or(folder.path()).join(name);
    picture.save(&path).unwrap();
    decode(&std::fs::read(&path).unwrap())
}

#[test]
fn the_loss_falls_on_the_picture() {
    let (training, base) =
        (curve(240, &losses(240)), [(0, 1.02), (60, 0.8), (120, 0.69), (180, 0.64), (240, 0.62)]);
    let picture = LossPicture { title: "loss", training: &training, validation: &[("validation", &base)] };
    let pixels = keep("loss.png", &picture);
    assert!(has(&pixels, canvas::SERIES[0]) > 1000 && has(&pixels, canvas::SERIES[1]) > 100);
    let long = curve(30_000, &losses(30_000));
    let validation = [("validation (raw)", &base[..]), ("validation (ema)", &base[1..])];
    keep("loss-long.png", &LossPicture { title: "loss", training: &long, validation: &validation });
}

#[test]
fn losses_of_any_kind_are_drawn() {
    for training in [
        vec![],
        vec![(1, f64::NAN)],
        vec![(1, 0.5)],
        vec![(1, 0.0), (2, f64::MAX), (3, f64::MIN)],
        vec![(u64::MAX, 1.0), (0, 2.0)],
        vec![(5, f64::INFINITY), (6, 1e-300)],
    ] {
        let validation = [("v", &training[..])];
        for of in [0, 1, 10, u64::MAX] {
            let training = &curve(of, &training);
            decode(&LossPicture { title: "ä", training, validation: &validation }.png().unwrap());
        }
    }
}

#[test]
fn memory_is_stacked_under_the_budget() {
    let series = memory();
    let marks = [(0, "forward".to_owned()), (400, "backward".to_owned()), (800, "update".to_owned())];
    let picture = MemoryPicture {
        title: "memory over the step",
        series: &series,
        budget: Some(3 << 29),
        marks: &marks,
    };
    let pixels = keep("memory.png", &picture);
    assert!(has(&pixels, canvas::ALARM) > 500);
    for (i, _) in series.iter().enumerate() {
        let drawn = canvas::SERIES[i].map(|c| (255.0 + (f64::from(c) - 255.0) * 0.92_f64).round() as u8);
        assert!(has(&pixels, drawn) > 1000, "{i}");
    }
    let one = [("all".to_owned(), vec![0])];
    decode(
        &MemoryPicture { title: "", series: &one, budget: None, marks: &[(7, String::new())] }.png().unwrap(),
    );
    let huge = [("a".to_owned(), vec![u64::MAX; 3]), ("b".to_owned(), vec![u64::MAX; 3])];
    decode(&MemoryPicture { title: "", series: &huge, budget: Some(1), marks: &[] }.png().unwrap());
    let uneven = [("a".to_owned(), vec![1; 3]), ("b".to_owned(), vec![1; 4])];
    assert!(MemoryPicture { title: "", series: &uneven, budget: None, marks: &[] }.png().is_err());
    assert!(MemoryPicture { title: "", series: &[], budget: None, marks: &[] }.png().is_err());
}

#[test]
fn a_peak_of_one_instruction_is_seen() {
    let mut bytes = vec![100_u64 << 20; 50_000];
    bytes[31_234] = 1 << 30;
    let series = [("activations".to_owned(), bytes)];
    let pixels =
        decode(&MemoryPicture { title: "", series: &series, budget: None, marks: &[] }.png().unwrap());
    let drawn = canvas::SERIES[0].map(|c| (255.0 + (f64::from(c) - 255.0) * 0.92_f64).round() as u8);
    let highest = pixels.chunks(3).position(|p| p == drawn).unwrap() / WIDTH;
    // Above the middle of the picture, where 100 MiB never come.
    assert!(highest < HEIGHT / 2, "{highest}");
}

#[test]
fn mels_share_a_scale() {
    let (truth, base, tuned) = (mel(420, 0.0), mel(420, 0.8), mel(420, 0.2));
    let panels = [("true", &truth[..]), ("base", &base[..]), ("tuned", &tuned[..])];
    let picture =
        MelPicture { title: "clip 7", panels: &panels, masked: 130..290, frame_seconds: 256.0 / 24_000.0 };
    keep("mel.png", &picture);
    for (frames, masked) in [(1, 0..1), (7, 3..3), (3000, 0..usize::MAX), (50, 60..70)] {
        let mut odd = mel(frames, 0.5);
        odd[0] = f32::NAN;
        odd[5] = f32::INFINITY;
        let picture = MelPicture { title: "", panels: &[("x", &odd[..])], masked, frame_seconds: 0.01 };
        decode(&picture.png().unwrap());
    }
    for panels in [&[][..], &[("x", &truth[..7])], &[("x", &truth[..]), ("y", &truth[..100])], &[("x", &[])]]
    {
        assert!(MelPicture { title: "", panels, masked: 0..0, frame_seconds: 0.01 }.png().is_err());
    }
}

#[test]
fn nothing_half_written_stays() {
    let folder = tempfile::tempdir().unwrap();
    let picture = LossPicture { title: "", training: &Curve::new(3), validation: &[] };
    std::fs::create_dir(folder.path().join("taken.png")).unwrap();
    std::fs::write(folder.path().join("taken.png/x"), "x").unwrap();
    assert!(picture.save(&folder.path().join("taken.png")).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(picture.save(&folder.path().join("none/x.png")).is_err());
}
