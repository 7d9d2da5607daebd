//! Whether two files have the same content and attributes, now or in states of the past. What both share is not read.

use super::read::Source;
use super::{Fs, Inner};
use crate::{At, Error, Result};
use nenrin_format::{BLOCK_BYTES, Ino};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// File blocks looked at under one hold of the lock.
const WINDOW_BLOCKS: u64 = 4096;
/// File blocks read at a time.
const READ_BLOCKS: u64 = 256;

impl Fs {
    /// Whether two files have the same bytes. Only what they do not share is read, and between two pieces of that, and of what is looked
    /// up, `goes_on` is asked; none where that says no.
    ///
    /// # Errors
    /// What reading says.
    pub fn has_same_content(
        &self,
        one: (At, Ino),
        other: (At, Ino),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<bool>> {
        let inner = self.lock();
        let size = inner.current_inode(one.0, one.1)?.size;
        if inner.current_inode(other.0, other.1)?.size != size {
            return Ok(Some(false));
        }
        drop(inner);
        let blocks = size.div_ceil(BLOCK);
        let mut at = 0;
        loop {
            if !goes_on() {
                return Ok(None);
            }
            let inner = self.lock();
            let next = [one, other].map(|(when, ino)| inner.next_data(when, ino, at));
            let [a, b] = next;
            let Some(begin) = [a?, b?].into_iter().flatten().min().filter(|begin| *begin < blocks) else {
                return Ok(Some(true));
            };
            let end = blocks.min(begin + WINDOW_BLOCKS);
            let apart = inner.apart(one, other, begin, end)?;
            drop(inner);
            for (from, to) in apart {
                for first in (from..to).step_by(READ_BLOCKS as usize) {
                    if !goes_on() {
                        return Ok(None);
                    }
                    let bytes = ((to - first).min(READ_BLOCKS) * BLOCK) as usize;
                    let read = |(when, ino)| self.read(when, ino, first * BLOCK, bytes);
                    if read(one)? != read(other)? {
                        return Ok(Some(false));
                    }
                }
            }
            at = end;
        }
    }

    /// Whether two inodes have the same extended attributes. Some names are looked at at a time, and one value of each; between them
    /// `goes_on` is asked, as above.
    ///
    /// # Errors
    /// [`Error::NotFound`]; what reading says.
    pub fn has_same_xattrs(
        &self,
        one: (At, Ino),
        other: (At, Ino),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<bool>> {
        let [(history, mut next), (other_history, mut next_other)] =
            [self.xattrs_begin(one.0, one.1)?, self.xattrs_begin(other.0, other.1)?];
        let (mut count, mut other_count) = (0, 0);
        while let Some(from) = next {
            let mut names: Vec<Vec<u8>> = Vec::new();
            next = self.lock().list_some(one.0, &from, &mut |name| {
                names.push(name.to_vec());
                true
            })?;
            count += names.len();
            for name in names {
                if !goes_on() {
                    return Ok(None);
                }
                // Of one that lives somebody may take it away meanwhile.
                match (self.getxattr(one.0, one.1, &name), self.getxattr(other.0, other.1, &name)) {
                    (Ok(value), Ok(other_value)) if other_value == value => {}
                    (Ok(_) | Err(Error::NoAttribute), Ok(_) | Err(Error::NoAttribute)) => return Ok(Some(false)),
                    (Err(e), _) | (_, Err(e)) => return Err(e),
                }
            }
        }
        // The other has all of these: as many are all of its own.
        while let Some(from) = next_other {
            if !goes_on() {
                return Ok(None);
            }
            next_other = self.lock().list_some(other.0, &from, &mut |_| {
                other_count += 1;
                other_count <= count
            })?;
        }
        Ok(Some(history == other_history && count == other_count))
    }
}

impl Inner {
    /// Ranges of the file blocks `[from, to)` that do not lie in the same place, or nowhere, in both files.
    fn apart(&self, one: (At, Ino), other: (At, Ino), from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let mut sides = [one, other].map(|(when, ino)| self.look(when, ino, from, to));
        let [a, b] = &mut sides;
        let (a, b) = (std::mem::replace(a, Ok(Vec::new()))?, std::mem::replace(b, Ok(Vec::new()))?);
        let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
        // How far each of the two pieces at hand was passed.
        let (mut of_a, mut of_b, mut at) = (0, 0, from);
        let mut out: Vec<(u64, u64)> = Vec::new();
        while let (Some(p), Some(q)) = (a.peek(), b.peek()) {
            let run = (p.blocks - of_a).min(q.blocks - of_b);
            let are_same = match (&p.source, &q.source) {
                (Source::Zero, Source::Zero) => true,
                (Source::Disk(e), Source::Disk(f)) => e.addr.0 + of_a == f.addr.0 + of_b,
                _ => false,
            };
            match out.last_mut() {
                _ if are_same => {}
                Some(last) if last.1 == at => last.1 = at + run,
                _ => out.push((at, at + run)),
            }
            (of_a, of_b, at) = (of_a + run, of_b + run, at + run);
            if of_a == p.blocks {
                (of_a, _) = (0, a.next());
            }
            if of_b == q.blocks {
                (of_b, _) = (0, b.next());
            }
        }
        Ok(out)
    }
}
