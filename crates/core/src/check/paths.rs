//! Names for what was found: paths by way of back references, those of
//! history too.
//!
//! Invariants
//! 1. A path costs a bounded number of look-ups, whatever the volume holds.

use crate::state::State;
use nenrin_format::Ino;
use nenrin_format::items::Dirent;
use nenrin_format::key::{Key, Kind};

/// Directories above each other that a path may have.
const DEPTH_MAX: usize = 2048;

/// A path of the inode, if it bears or bore a name.
pub fn of_inode(state: &State, ino: Ino) -> Option<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        if names.len() == DEPTH_MAX {
            return None;
        }
        let (parent, name) = parent_of(state, at)?;
        names.push(name);
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Some(path)
}

/// The path of a name in a directory.
pub fn of_name(state: &State, parent: Ino, name: &[u8]) -> Option<Vec<u8>> {
    let mut path = of_inode(state, parent)?;
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Some(path)
}

/// A directory that holds, or last held, a name of the inode; and that name.
fn parent_of(state: &State, ino: Ino) -> Option<(Ino, Vec<u8>)> {
    let from = Key::new(ino, Kind::Link, 0, 0);
    let trees = std::iter::once(&state.live).chain(state.history.iter().rev().map(|t| &t.tree));
    for tree in trees {
        let Ok(Some((key, value))) = tree.next(&state.cache, &from) else { continue };
        if key.ino == ino.0 && key.kind == Kind::Link {
            if let Ok(link) = Dirent::decode(&value) {
                return Some((link.ino, link.name.to_vec()));
            }
        }
    }
    None
}
