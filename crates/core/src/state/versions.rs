//! Items over time: what lives, and what history has kept of it.

use super::{State, bad_item};
use crate::index::Value;
use crate::{Error, Result};
use nenrin_format::Cno;
use nenrin_format::items;
use nenrin_format::key::Key;
use std::ops::ControlFlow;

/// Checkpoints `[from, to)`; without an end, until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub from: Cno,
    /// The first in which it is over.
    pub to: Option<Cno>,
}

impl Span {
    /// All time.
    pub const ALWAYS: Self = Self { from: Cno(0), to: None };

    /// Whether checkpoint `cno` is in it.
    #[must_use]
    pub fn holds(&self, cno: Cno) -> bool {
        self.from <= cno && self.to.is_none_or(|to| cno < to)
    }

    /// What both have in common, unless that is nothing.
    #[must_use]
    pub fn cut(&self, other: &Self) -> Option<Self> {
        let to = match (self.to, other.to) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let from = self.from.max(other.from);
        to.is_none_or(|to| from < to).then_some(Self { from, to })
    }
}

/// One version of an item.
pub struct Version {
    /// Its key in the live tree.
    pub key: Key,
    /// When it was there.
    pub span: Span,
    /// The item.
    pub value: Value,
}

impl State {
    /// All versions of the items with keys from `from` to `to` (of the live
    /// tree), in the order of keys, then of time. Those that no kept checkpoint
    /// shows may be among them, until they are swept.
    ///
    /// # Errors
    /// A node that cannot be read; an item that makes no sense.
    pub fn versions(&self, from: &Key, to: &Key) -> Result<Vec<Version>> {
        let mut out = Vec::new();
        let mut bad: Option<Error> = None;
        let mut take = |k: &Key, v: &Value| match self.version(k, v) {
            Ok(version) => {
                out.extend(version);
                ControlFlow::Continue(())
            }
            Err(why) => {
                bad = Some(why);
                ControlFlow::Break(())
            }
        };
        self.live.scan(&self.cache, from, to, &mut take)?;
        for t in &self.history {
            t.tree.scan(&self.cache, from, &to.died(u64::MAX), &mut take)?;
        }
        if let Some(why) = bad {
            return Err(why);
        }
        out.sort_by_key(|v| (v.key, v.span.from));
        Ok(out)
    }

    /// What an item is a version of, unless that is to be forgotten.
    fn version(&self, key: &Key, value: &Value) -> Result<Option<Version>> {
        if items::birth(value).is_ok() && self.is_forgotten(key, value) {
            return Ok(None);
        }
        let birth = items::birth(value).map_err(|why| bad_item(key, why))?;
        let span = Span { from: birth, to: (key.death != 0).then_some(Cno(key.death)) };
        Ok(Some(Version { key: key.living(), span, value: value.clone() }))
    }

    /// As [`State::versions`], or without those that have not ended, of what can be read, and why the rest cannot.
    #[must_use]
    pub fn versions_left(&self, from: &Key, to: &Key, live: bool) -> (Vec<Version>, Vec<Error>) {
        let (mut out, mut bad, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let mut take = |k: &Key, v: &Value| {
            match self.version(k, v) {
                Ok(version) => out.extend(version),
                Err(why) => bad.push(why),
            }
            ControlFlow::Continue(())
        };
        let mut lose = |why: Error, _: Option<Key>| {
            lost.push(why);
            ControlFlow::Continue(())
        };
        if live {
            self.live.scan_over(&self.cache, (from, to), &mut take, &mut lose);
        }
        for t in &self.history {
            t.tree.scan_over(&self.cache, (from, &to.died(u64::MAX)), &mut take, &mut lose);
        }
        bad.append(&mut lost);
        out.sort_by_key(|v| (v.key, v.span.from));
        (out, bad)
    }

    /// The first and the last kept checkpoint in a span.
    #[must_use]
    pub fn shown_by(&self, span: &Span) -> Option<(Cno, Cno)> {
        let end = span.to.unwrap_or(Cno(u64::MAX));
        if end <= span.from {
            return None;
        }
        let mut kept = self.kept.range(span.from..end).map(|(cno, _)| *cno);
        let first = kept.next()?;
        Some((first, kept.next_back().unwrap_or(first)))
    }
}
