//! The memory limit of the control groups this process is in.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

/// The limit that leaves least, of all on the path from this process's group to the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// The limit.
    pub limit_bytes: u64,
    /// What the group uses, without file cache that the kernel would give back.
    pub used_bytes: u64,
    /// What is left, at least 0.
    pub remaining_bytes: u64,
    /// The group's folder.
    pub group: PathBuf,
}

/// A limit from here on means "none" (v1 writes a number near 2^63).
const NO_LIMIT: u64 = 1 << 60;
/// Group paths longer than this are not walked further.
const MAX_DEPTH: usize = 64;
/// Largest of the small files that are read whole: a machine may have thousands of mounts.
const MAX_FILE: usize = 4 << 20;

/// Returns the tightest memory limit around this process; `None` if there is none, or none can be seen.
pub fn container() -> Option<Container> {
    container_of(Path::new("/proc/self"))
}

/// Returns the tightest limit by a process folder: `cgroup` names the groups, `mountinfo` where their file systems are.
fn container_of(process: &Path) -> Option<Container> {
    let groups = text(&process.join("cgroup"))?;
    let mounts = text(&process.join("mountinfo"))?;
    let found = groups.lines().flat_map(|line| group_folders(line, &mounts));
    found.filter_map(|(folder, version)| limit(&folder, version)).min_by_key(|c| c.remaining_bytes)
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V1,
    V2,
}

/// Returns the folders, from the process's group up to its mount, of one `id:controllers:path` line.
fn group_folders(line: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
        return vec![];
    };
    let version = match controllers {
        "" => Version::V2,
        list if list.split(',').any(|c| c == "memory") => Version::V1,
        _ => return vec![],
    };
    let Some((mount, root)) = mounts.lines().find_map(|l| mount_of(l, version)) else { return vec![] };
    // The path is seen from the hierarchy's root, the mount may show only a part of it; inside a container the path may not
    // be under the mount at all, and then the mount itself is the group.
    let inside = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
    let plain = inside.components().all(|c| matches!(c, Component::Normal(_)));
    let mut folder = if plain { mount.join(inside) } else { mount.clone() };
    if !folder.is_dir() {
        folder.clone_from(&mount);
    }
    let up = folder.ancestors().take_while(|f| f.starts_with(&mount)).take(MAX_DEPTH);
    up.map(|f| (f.to_path_buf(), version)).collect()
}

/// Returns mount point and root of a `mountinfo` line, if it is the memory hierarchy of this version: `36 35 98:0 /root /mount
/// options [optional]* - type source super-options`.
fn mount_of(line: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1).unwrap_or(""));
    let fits = match version {
        Version::V2 => kind == "cgroup2",
        Version::V1 => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
    };
    fits.then(|| (unescape(mount), unescape(root)))
}

/// Undoes the escapes of `mountinfo`, which writes space, tab, newline and backslash as `\ooo`.
fn unescape(path: &str) -> PathBuf {
    let plain =
        path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    PathBuf::from(plain)
}

fn limit(group: &Path, version: Version) -> Option<Container> {
    let (limit_file, usage_file, cache_row) = match version {
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        Version::V2 => ("memory.max", "memory.current", "inactive_file "),
    };
    // `max` is not a number, so no limit.
    let number = |file: &str| text(&group.join(file))?.trim().parse::<u64>().ok();
    let limit_bytes = number(limit_file).filter(|n| *n < NO_LIMIT)?;
    let usage = number(usage_file).unwrap_or(0);
    let stat = text(&group.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|l| l.strip_prefix(cache_row)?.trim().parse().ok()).unwrap_or(0);
    let used_bytes = usage.saturating_sub(cache);
    let remaining_bytes = limit_bytes.saturating_sub(used_bytes);
    Some(Container { limit_bytes, used_bytes, remaining_bytes, group: group.to_path_buf() })
}

fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A process folder and a hierarchy, both in a temporary folder.
    struct World(tempfile::TempDir);

    impl World {
        fn new(cgroup: &str, mountinfo: &str) -> World {
            let folder = tempfile::tempdir().unwrap();
            let at = folder.path().to_str().unwrap().to_owned();
            fs::write(folder.path().join("cgroup"), cgroup).unwrap();
            fs::write(folder.path().join("mountinfo"), mountinfo.replace("AT", &at)).unwrap();
            World(folder)
        }
        fn group(self, folder: &str, files: &[(&str, &str)]) -> World {
            let folder = self.0.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, content) in files {
                fs::write(folder.join(name), content).unwrap();
            }
            self
        }
        fn container(&self) -> Option<Container> {
            container_of(self.0.path())
        }
    }

    const V2: &str = "30 23 0:26 / AT/sys rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_parent_may_leave_less() {
        let world = World::new("0::/a/b\n", V2)
            .group(
                "sys/a",
                &[
                    ("memory.max", "1000\n"),
                    ("memory.current", "900\n"),
                    ("memory.stat", "anon 1\ninactive_file 300\n"),
                ],
            )
            .group("sys/a/b", &[("memory.max", "800\n"), ("memory.current", "100\n")]);
        let c = world.container().unwrap();
        assert_eq!((c.limit_bytes, c.used_bytes, c.remaining_bytes), (1000, 600, 400));
        assert!(c.group.ends_with("sys/a"));
    }

    #[test]
    fn no_limit_is_none() {
        let world =
            World::new("0::/\n", V2).group("sys", &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        assert_eq!(world.container(), None);
        let v1 = "31 23 0:27 / AT/mem rw - cgroup cgroup rw,memory\n";
        let world = World::new("4:cpu,memory:/x\n3:cpuset:/\n0::/\n", v1)
            .group("mem", &[("memory.limit_in_bytes", "9223372036854771712\n")])
            .group("mem/x", &[("memory.limit_in_bytes", "4096\n"), ("memory.usage_in_bytes", "5000\n")]);
        let c = world.container().unwrap();
        assert_eq!((c.limit_bytes, c.remaining_bytes), (4096, 0));
    }

    #[test]
    fn a_mount_may_show_a_part_or_another_place() {
        let part = "30 23 0:26 /docker/id AT/sys rw - cgroup2 cgroup2 rw\n";
        let files = [("memory.max", "70"), ("memory.current", "20")];
        for path in ["0::/docker/id\n", "0::/docker/id/inner\n", "0::/elsewhere\n", "0::/../..\n"] {
            let c = World::new(path, part).group("sys", &files).container().unwrap();
            assert_eq!(c.remaining_bytes, 50, "{path}");
        }
    }

    #[test]
    fn broken_files_are_no_container() {
        for (cgroup, mounts) in
            [("", ""), ("0:", "-"), ("0::/\n", "1 2 3 - cgroup2"), ("0::/\n", " - cgroup2 x y")]
        {
            assert_eq!(World::new(cgroup, mounts).container(), None);
        }
        let odd = [("memory.max", "-5"), ("memory.current", "x"), ("memory.stat", "inactive_file y")];
        assert_eq!(World::new("0::/\n", V2).group("sys", &odd).container(), None);
    }
}
