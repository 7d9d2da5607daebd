//! What the load before a cut was told, and whether what is found afterwards is allowed.
//!
//! Invariants
//! 1. Names are those of the first files made, all of them up to some; and at least those that were promised.
//! 2. A file has what its first writes left, all of them up to some, none in part; and at least those that were promised.
//! 3. What is promised is what syncs acknowledged; under `barrier=checkpoint`, before the last index checkpoint that ended.

use crate::content::pattern;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Number of the operation, which its bytes name.
    pub id: u32,
    /// Where.
    pub place: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A file, by what was asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its name in the root directory.
    pub name: String,
    /// All writes, the one under way at the cut too.
    pub writes: Vec<Write>,
    /// So many of them are promised.
    pub promised: usize,
}

/// All that was asked before a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Files in the order in which they were made, the one under way at the cut too.
    pub files: Vec<File>,
    /// The names of so many of them are promised.
    pub names_promised: usize,
}

/// What was compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Files read back.
    pub files: u64,
    /// Of these, with something that was promised.
    pub promised: u64,
    /// Bytes read back.
    pub bytes: u64,
    /// What is not allowed, a line each.
    pub mismatches: Vec<String>,
}

impl File {
    /// Whether `found` is what some of the first writes left, and no fewer than are promised.
    fn allows(&self, found: &[u8]) -> Result<(), String> {
        let mut content = Vec::new();
        let mut sizes = BTreeSet::new();
        for (n, write) in self.writes.iter().map(Some).chain([None]).enumerate() {
            if n >= self.promised {
                if content == found {
                    return Ok(());
                }
                sizes.insert(content.len());
            }
            if let Some(Write { id, place, bytes }) = write {
                let end = (place + bytes) as usize;
                content.resize(content.len().max(end), 0);
                content[*place as usize..end].copy_from_slice(&pattern(*id, *place, *bytes as usize));
            }
        }
        let (promised, all) = (self.promised, self.writes.len());
        let what = if sizes.contains(&found.len()) { "other bytes" } else { "another size" };
        Err(format!(
            "{}: {} bytes, {what} than after {promised} (promised) to {all} of its writes",
            self.name,
            found.len()
        ))
    }
}

impl Told {
    /// Compares what is found: names, and by `read` the content of one.
    pub fn judge(&self, names: &BTreeSet<String>, mut read: impl FnMut(&str) -> Result<Vec<u8>, String>) -> Verdict {
        let mut verdict = Verdict::default();
        let known: BTreeMap<&str, usize> = self.files.iter().enumerate().map(|(n, f)| (f.name.as_str(), n)).collect();
        let missing = self.files.iter().take(names.len().max(self.names_promised)).filter(|f| !names.contains(&f.name));
        verdict.mismatches.extend(missing.map(|f| format!("{}: is not there", f.name)));
        for name in names {
            let Some(file) = known.get(name.as_str()).and_then(|n| self.files.get(*n)) else {
                verdict.mismatches.push(format!("{name}: was never made"));
                continue;
            };
            verdict.files += 1;
            verdict.promised += u64::from(file.promised > 0);
            let judged = read(name).and_then(|found| {
                verdict.bytes += found.len() as u64;
                file.allows(&found)
            });
            verdict.mismatches.extend(judged.err());
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Found = Vec<(&'static str, Vec<u8>)>;

    fn told() -> Told {
        let file = |n: u32, promised| File {
            name: format!("file {n}"),
            writes: vec![
                Write { id: 10 * n, place: 0, bytes: 5000 },
                Write { id: 10 * n + 1, place: 4096, bytes: 4096 },
                Write { id: 10 * n + 2, place: 0, bytes: 4096 },
            ],
            promised,
        };
        Told {
            files: vec![file(1, 2), file(2, 0), File { name: "file 3".to_owned(), ..File::default() }],
            names_promised: 2,
        }
    }

    /// What the first `count` writes of file `n` left.
    fn left(n: usize, count: usize) -> Vec<u8> {
        let mut content = Vec::new();
        for w in &told().files[n - 1].writes[..count] {
            content.resize(content.len().max((w.place + w.bytes) as usize), 0);
            content[w.place as usize..][..w.bytes as usize].copy_from_slice(&pattern(w.id, w.place, w.bytes as usize));
        }
        content
    }

    fn judged(found: &[(&str, Vec<u8>)]) -> Vec<String> {
        let names = found.iter().map(|(name, _)| (*name).to_owned()).collect();
        let content: BTreeMap<_, _> = found.iter().cloned().collect();
        told().judge(&names, |name| Ok(content[name].clone())).mismatches
    }

    #[test]
    fn what_came_after_the_promise_may_be_there_or_not() {
        for first in [2, 3] {
            for second in 0..=3 {
                let found = [("file 1", left(1, first)), ("file 2", left(2, second))];
                assert_eq!(judged(&found), [""; 0]);
                let more = [found.to_vec(), vec![("file 3", Vec::new())]].concat();
                assert_eq!(judged(&more), [""; 0]);
            }
        }
    }

    #[test]
    fn everything_else_is_noticed() {
        let right = || vec![("file 1", left(1, 2)), ("file 2", left(2, 1))];
        let wrong = |change: &dyn Fn(&mut Found)| {
            let mut found = right();
            change(&mut found);
            judged(&found).join("; ")
        };
        assert!(wrong(&|f| f[0].1 = left(1, 1)).contains("file 1: 5000 bytes, another size than after 2"), "lost");
        assert!(wrong(&|f| f[0].1[4999] ^= 1).contains("other bytes"), "a flipped bit");
        let mixed = |f: &mut Found| f[1].1[..4096].copy_from_slice(&left(2, 3)[..4096]);
        assert!(wrong(&mixed).contains("file 2"), "the third write and not the second");
        assert!(wrong(&|f| f[1].1.truncate(4096)).contains("another size"), "a torn write");
        assert!(wrong(&|f| drop(f.pop())).contains("file 2: is not there"), "a promised name");
        assert!(wrong(&|f| f.push(("file 9", Vec::new()))).contains("file 9: was never made"));
        assert!(wrong(&|f| f[1] = ("file 3", Vec::new())).contains("file 2: is not there"), "no prefix of the names");
    }
}
