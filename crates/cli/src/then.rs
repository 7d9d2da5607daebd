//! A path in a state, looked at without leaving that state: a symbolic link on the way would lead to what there is now, or
//! to another place altogether. The daemon, whose lists of names these paths come from, follows none either.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// A path below the root of a state.
#[derive(Clone, Debug)]
pub struct Then {
    root: PathBuf,
    inside: PathBuf,
}

impl Then {
    /// `inside` is relative, and has no "..".
    pub fn new(root: PathBuf, inside: PathBuf) -> Self {
        Self { root, inside }
    }
    /// What lies below it.
    #[must_use]
    pub fn join(&self, below: &Path) -> Self {
        let inside = if below.as_os_str().is_empty() { self.inside.clone() } else { self.inside.join(below) };
        Self { root: self.root.clone(), inside }
    }
    /// The whole path.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.inside)
    }
    /// What it is; of a link, the link.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`] where something on the way is no directory; what the state says.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let mut at = self.root.clone();
        let mut meta = fs::symlink_metadata(&at)?;
        for name in &self.inside {
            if !meta.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            at.push(name);
            meta = fs::symlink_metadata(&at)?;
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_on_the_way_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("d/e")).unwrap();
        fs::write(root.join("d/e/f"), "").unwrap();
        symlink("d", root.join("inner")).unwrap();
        symlink(dir.path(), root.join("outer")).unwrap();
        let of = |inside: &str| Then::new(root.clone(), inside.into()).metadata();
        assert!(of("").unwrap().is_dir() && of("d/e").unwrap().is_dir() && of("d/e/f").unwrap().is_file());
        assert!(of("inner").unwrap().is_symlink() && of("outer").unwrap().is_symlink());
        for left in ["inner/e", "inner/e/f", "outer/root", "d/e/f/g"] {
            assert_eq!(of(left).unwrap_err().kind(), io::ErrorKind::NotADirectory, "{left}");
        }
        assert_eq!(of("d/none").unwrap_err().kind(), io::ErrorKind::NotFound);
        let tree = Then::new(root.clone(), "d".into());
        assert_eq!(tree.join(Path::new("e/f")).path(), root.join("d/e/f"));
        assert_eq!(tree.join(Path::new("")).path(), root.join("d"));
    }
}
