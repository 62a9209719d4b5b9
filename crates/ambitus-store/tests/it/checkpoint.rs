//! Checkpoints: any change to one is found, and an older one is used instead.

use ambitus_store::CheckpointDir;

#[test]
fn every_changed_byte_of_a_checkpoint_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointDir::new(dir.path());
    let save = |step| {
        let mut pending = checkpoints.begin(step).unwrap();
        pending.write_file("state.bin", &[step as u8; 99]).unwrap();
        pending.commit(serde_json::json!({"loss": 0.1})).unwrap()
    };
    let (older, newer) = (save(8), save(9));
    for file in ["manifest.json", "state.bin"] {
        let path = newer.path.join(file);
        let original = std::fs::read(&path).unwrap();
        for at in 0..original.len() {
            for bit in [0, 5, 7] {
                let mut bytes = original.clone();
                bytes[at] ^= 1 << bit;
                std::fs::write(&path, bytes).unwrap();
                let latest = checkpoints.latest_good().unwrap();
                let found = latest.checkpoint.unwrap();
                // White space between the manifest's fields may change: then it is the same manifest.
                if found != newer {
                    assert_eq!(found, older);
                    let said = latest.skipped[0].to_string();
                    assert!(said.contains("step-9") && said.contains(file), "{said}");
                    assert!(
                        checkpoints.prune(&[9], u64::MAX).is_err(),
                        "nothing goes before the newer one verifies"
                    );
                }
            }
        }
        std::fs::write(&path, original).unwrap();
    }
    for (change, what) in [("state.bin", "cut"), ("state.bin", "gone"), ("manifest.json", "gone")] {
        let path = newer.path.join(change);
        let original = std::fs::read(&path).unwrap();
        match what {
            "cut" => std::fs::write(&path, &original[1..]).unwrap(),
            _ => std::fs::remove_file(&path).unwrap(),
        }
        assert_eq!(checkpoints.list().unwrap(), std::slice::from_ref(&older));
        assert_eq!(checkpoints.latest_good().unwrap().checkpoint.as_ref(), Some(&older));
        std::fs::write(&path, original).unwrap();
    }
    assert_eq!(checkpoints.list().unwrap(), [older.clone(), newer.clone()]);
    // Where none is left that verifies, that is no folder without checkpoints.
    let (kept, lost) = (older.path.join("state.bin"), newer.path.join("manifest.json"));
    let originals = [std::fs::read(&kept).unwrap(), std::fs::read(&lost).unwrap()];
    std::fs::write(&kept, b"").unwrap();
    std::fs::remove_file(&lost).unwrap();
    let said = checkpoints.latest_good().unwrap_err();
    assert!(!said.is_io(), "{said}");
    let said = said.to_string();
    assert!([&kept, &lost].iter().all(|file| said.contains(file.to_str().unwrap())), "{said}");
    std::fs::write(&kept, &originals[0]).unwrap();
    std::fs::write(&lost, &originals[1]).unwrap();
    // A checkpoint under another's name, and parts that lead elsewhere.
    std::fs::rename(&newer.path, dir.path().join("step-10")).unwrap();
    assert_eq!(checkpoints.latest_good().unwrap().checkpoint, Some(older));
    let mut pending = checkpoints.begin(11).unwrap();
    for name in ["../x", "/x", "a/b", "..", "", "manifest.json", ".hidden"] {
        assert!(pending.write_file(name, b"").is_err(), "{name}");
    }
    pending.write_file("a", b"").unwrap();
    assert!(pending.write_file("a", b"").is_err(), "twice");
}
