use super::*;
use crate::metrics::sample_update;
use std::fs;
use std::io::Write;

fn log_of(n: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut log = resume(&path, 0).0;
    (1..=n).for_each(|i| log.append(&sample_update(i)).unwrap());
    log.sync().unwrap();
    (folder, path)
}

/// Returns the log, its lines, and what was lost; what the run remembers agrees with them.
fn resume(path: &Path, update: u64) -> (Log, Vec<Update>, Option<String>) {
    let Resumed { log, history, note } = Log::resume(path, update, 50).unwrap();
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<Update> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let summary = history.summary();
    assert_eq!(summary.updates, lines.last().map_or(0, |l| l.update));
    assert_eq!(summary.frames, lines.iter().map(|l| l.frames).sum::<u64>());
    (log, lines, note)
}

fn numbers(lines: &[Update]) -> Vec<u64> {
    lines.iter().map(|l| l.update).collect()
}

#[test]
fn resume_continues_as_if_never_stopped() {
    let (_kept, whole) = log_of(9);
    let whole = fs::read(whole).unwrap();
    for resumed in 0..=6 {
        let (folder, path) = log_of(6);
        let mut torn = fs::OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(&whole[..37]).unwrap();
        let (mut log, lines, note) = resume(&path, resumed);
        assert_eq!((lines.len() as u64, note), (resumed, None));
        (resumed + 1..=9).for_each(|i| log.append(&sample_update(i)).unwrap());
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

/// Loss and time left of a resumed run go on where they were.
#[test]
fn means_go_on() {
    let (_kept, path) = log_of(9);
    let mut history = History::new(9);
    (1..=6).for_each(|i| history.add(&sample_update(i)));
    assert_eq!(Log::resume(&path, 6, 9).unwrap().history.pace, history.pace);
}

#[test]
fn every_cut_is_gone_on_with() {
    let (_kept, path) = log_of(3);
    let whole = fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        // Of a line that lacks only its end, nothing is lost.
        let there = whole[..(cut + 1).min(whole.len())].iter().filter(|b| **b == b'\n').count() as u64;
        let (mut log, lines, note) = resume(&path, 3);
        assert_eq!(numbers(&lines), (1..=there).collect::<Vec<_>>());
        assert_eq!(note.is_some(), cut < whole.len(), "{note:?}");
        log.append(&sample_update(4)).unwrap();
        assert_eq!(numbers(&resume(&path, 4).1), [numbers(&lines), vec![4]].concat());
    }
}

/// What a log of 50 lines may have met: name, change, lines that must be kept, words of the note.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path, Vec<&str>), Vec<u64>, &'a str);

#[test]
fn no_damage_ends_a_run() {
    let write = |path: &Path, lines: &[&str]| fs::write(path, lines.concat()).unwrap();
    let without = |gone: &[u64]| (1..=50).filter(|n| !gone.contains(n)).collect::<Vec<u64>>();
    let replaced = |path: &Path, lines: &[&str], n: usize, by: &[u8]| {
        let (before, after) = (lines[..n - 1].concat(), lines[n..].concat());
        fs::write(path, [before.as_bytes(), by, after.as_bytes()].concat()).unwrap();
    };
    let renumbered = |path: &Path, lines: &[&str], n: usize, to: u64| {
        let by = lines[n - 1].replacen(&format!("\"update\":{n}"), &format!("\"update\":{to}"), 1);
        replaced(path, lines, n, by.as_bytes());
    };
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target");
    fs::write(&target, "not ours\n").unwrap();
    let cases: [Damage<'_>; 16] = [
        ("lost", &|p, _| fs::remove_file(p).unwrap(), vec![], "is missing"),
        ("emptied", &|p, _| fs::write(p, "").unwrap(), vec![], "ends after update 0"),
        (
            "a bit of a key",
            &|p, l| replaced(p, &l, 7, l[6].replacen("loss", "lnss", 1).as_bytes()),
            without(&[7]),
            "7: missing field `loss`",
        ),
        (
            "a number too high",
            &|p, l| renumbered(p, &l, 5, 37),
            without(&[5]),
            "5: update 37 follows update 4",
        ),
        (
            "a number too low",
            &|p, l| renumbered(p, &l, 30, 3),
            without(&[30]),
            "30: update 3 follows update 29",
        ),
        (
            "the last as number",
            &|p, l| renumbered(p, &l, 5, 50),
            without(&[5]),
            "5: update 50 follows update 4",
        ),
        (
            "cut",
            &|p, l| fs::write(p, &l.concat()[..l[..20].concat().len() + 9]).unwrap(),
            (1..=20).collect(),
            "does not end",
        ),
        (
            "its beginning lost",
            &|p, l| write(p, &l[10..]),
            (11..=50).collect(),
            "1: update 11 follows update 0",
        ),
        ("a line missing", &|p, l| write(p, &[&l[..8], &l[9..]].concat()), without(&[9]), "updates 9;"),
        ("a line twice", &|p, l| write(p, &[&l[..9], &l[8..]].concat()), without(&[]), "no line is lost"),
        (
            "two lines in one",
            &|p, l| replaced(p, &l, 12, l[11].trim_end().as_bytes()),
            without(&[12, 13]),
            "12 to 13",
        ),
        ("NUL bytes", &|p, l| replaced(p, &l, 40, &[0; 5000]), without(&[40, 41]), "40 to 41"),
        (
            "a line of 80 MB",
            &|p, l| replaced(p, &l, 2, &[vec![b'x'; 80 << 20], vec![b'\n']].concat()),
            vec![1],
            "2 to 50",
        ),
        (
            "a folder",
            &|p, _| {
                fs::remove_file(p).unwrap();
                fs::create_dir(p).unwrap()
            },
            vec![],
            "is not a file",
        ),
        (
            "a pipe",
            &|p, _| {
                fs::remove_file(p).unwrap();
                assert!(std::process::Command::new("mkfifo").arg(p).status().unwrap().success());
            },
            vec![],
            "is not a file",
        ),
        (
            "a link",
            &|p, _| {
                fs::remove_file(p).unwrap();
                std::os::unix::fs::symlink(&target, p).unwrap()
            },
            vec![],
            "is not a file",
        ),
    ];
    let (_kept, whole) = log_of(50);
    let text = fs::read_to_string(whole).unwrap();
    for (name, damage, kept, words) in cases {
        let (folder, path) = log_of(50);
        fs::write(folder.path().join("metrics.jsonl.damaged-1"), "of an earlier time").unwrap();
        damage(&path, text.split_inclusive('\n').collect());
        let was = path.symlink_metadata().ok().map(|m| m.file_type());
        let (mut log, lines, note) = resume(&path, 50);
        let note = note.unwrap_or_else(|| panic!("{name}: nothing is said"));
        assert!(note.contains(words), "{name}: {note}");
        assert_eq!(numbers(&lines), kept, "{name}: {note}");
        log.append(&sample_update(51)).unwrap();
        log.sync().unwrap();
        // What was there is there still, and the next time there is nothing to say.
        let aside = folder.path().join("metrics.jsonl.damaged-2").symlink_metadata();
        assert_eq!(aside.ok().map(|m| m.file_type()), was, "{name}");
        assert_eq!(
            fs::read_to_string(folder.path().join("metrics.jsonl.damaged-1")).unwrap(),
            "of an earlier time"
        );
        let after = fs::read_to_string(&path).unwrap();
        assert_eq!(after.lines().count(), kept.len() + 1, "{name}");
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "not ours\n");
}

#[test]
fn what_follows_the_checkpoint_is_cut_unread() {
    let (folder, path) = log_of(6);
    let want = fs::read(&path).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[0xff; 9000]).unwrap();
    // A hole that would take minutes to read.
    file.set_len(1 << 40).unwrap();
    let (_, lines, note) = resume(&path, 6);
    assert_eq!((lines.len(), note), (6, None));
    assert_eq!(fs::read(&path).unwrap(), want);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn gaps_are_listed_and_bounded() {
    let of = |numbers: &[u64]| numbers.iter().map(|n| sample_update(*n)).collect::<Vec<_>>();
    assert_eq!(gaps(&of(&[1, 2, 4, 5, 9]), 11), "3, 6 to 8, 10 to 11");
    assert_eq!(gaps(&of(&[]), 3), "1 to 3");
    assert_eq!(gaps(&of(&[1, 2]), 2), "");
    let odd: Vec<u64> = (0..100).map(|n| 2 * n + 1).collect();
    assert_eq!(gaps(&of(&odd), 199), "2, 4, 6, 8, 10, 12, 14, 16, …");
}

#[test]
fn a_loss_that_is_not_finite_is_null() {
    let (_kept, path) = log_of(0);
    let mut log = resume(&path, 0).0;
    log.append(&Update { loss: f64::NAN, grad_norm: f64::INFINITY, ..sample_update(1) }).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"loss\":null") && text.contains("\"grad_norm\":null"), "{text}");
    assert!(resume(&path, 1).1[0].loss.is_nan());
}

/// A device on which there is never room.
#[test]
fn lines_wait_for_room() {
    let (_kept, path) = log_of(2);
    let mut log = resume(&path, 2).0;
    let real =
        std::mem::replace(&mut log.file, fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for n in 3..=5 {
        log.append(&sample_update(n)).unwrap();
    }
    let full = ambitus_families::error::RunError::from(log.sync().unwrap_err());
    assert!(matches!(full, ambitus_families::error::RunError::Full(_)), "{full:?}");
    // However long that takes, no more waits than fits.
    for _ in 0..2 * MAX_WAITING / 300 {
        log.append(&sample_update(6)).unwrap();
    }
    assert!(log.waiting.len() < MAX_WAITING + MAX_LINE as usize);
    log.file = real;
    log.sync().unwrap();
    assert_eq!(numbers(&resume(&path, 5).1), [1, 2, 3, 4, 5]);
}

#[test]
fn mutated_logs_never_end_a_run() {
    let (_kept, path) = log_of(3);
    let whole = fs::read(&path).unwrap();
    arbtest::arbtest(|u| {
        let mut bytes = whole.clone();
        for _ in 0..u.int_in_range(1..=4)? {
            let at = u.choose_index(bytes.len())?;
            bytes[at] = u.arbitrary()?;
        }
        fs::write(&path, &bytes).unwrap();
        let update = u.int_in_range(0..=3)?;
        let (_, found, _) = resume(&path, update);
        assert!(found.is_sorted_by(|a, b| a.update < b.update));
        assert!(found.iter().all(|l| (1..=update).contains(&l.update)));
        Ok(())
    })
    .budget_ms(200);
}
