//! Inode numbers that were given, over all lives of a volume: none is given a second time to something else.
//!
//! A number counts as given where the mount that a model begins with shows it, live or in the past, and where its creation was
//! durable before. One whose creation a crash has taken back is nobody's, and may be given again.

use std::collections::BTreeSet;

/// Numbers that were given.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Before this model began.
    before: BTreeSet<u64>,
    /// Since, with the namespace prefix that made each.
    since: Vec<(u32, u64)>,
}

impl Numbers {
    /// These are somebody's.
    pub fn had(&mut self, inos: impl IntoIterator<Item = u64>) {
        self.before.extend(inos);
    }

    /// Something was made with this number, which the namespace has from this prefix on.
    ///
    /// # Errors
    /// It is somebody's.
    pub fn give(&mut self, ino: u64, prefix: u32) -> Result<(), String> {
        if self.before.contains(&ino) || self.since.iter().any(|(_, given)| *given == ino) {
            return Err(format!("inode number {ino} is given a second time"));
        }
        self.since.push((prefix, ino));
        Ok(())
    }

    /// Those whose creation is part of the namespace at this prefix, or was durable before.
    pub fn up_to(&self, prefix: u32) -> impl Iterator<Item = u64> + '_ {
        let since = self.since.iter().filter(move |(made, _)| *made <= prefix).map(|(_, ino)| *ino);
        self.before.iter().copied().chain(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_once_unless_a_crash_took_it_back() {
        let mut first = Numbers::default();
        first.had([1, 2]);
        assert!(first.give(2, 1).is_err());
        first.give(3, 1).unwrap();
        first.give(4, 2).unwrap();
        assert!(first.give(4, 3).is_err());
        let mut second = Numbers::default();
        second.had(first.up_to(1));
        assert!(second.give(3, 1).is_err());
        second.give(4, 1).unwrap();
    }
}
