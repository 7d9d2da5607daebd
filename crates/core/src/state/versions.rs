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
        self.each_version(&mut out, from, to, true)?;
        out.sort_by_key(|v| (v.key, v.span.from));
        Ok(out)
    }

    fn each_version(&self, out: &mut Vec<Version>, from: &Key, to: &Key, live: bool) -> Result<()> {
        let mut bad: Option<Error> = None;
        let mut take = |k: &Key, v: &Value| match items::birth(v) {
            Ok(_) if self.is_forgotten(k, v) => ControlFlow::Continue(()),
            Ok(birth) => {
                let span = Span { from: birth, to: (k.death != 0).then_some(Cno(k.death)) };
                out.push(Version { key: k.living(), span, value: v.clone() });
                ControlFlow::Continue(())
            }
            Err(why) => {
                bad = Some(bad_item(k, why));
                ControlFlow::Break(())
            }
        };
        if live {
            self.live.scan(&self.cache, from, to, &mut take)?;
        }
        for t in &self.history {
            t.tree.scan(&self.cache, from, &to.died(u64::MAX), &mut take)?;
        }
        bad.map_or(Ok(()), Err)
    }

    /// As [`State::versions`], of those that have ended only.
    ///
    /// # Errors
    /// As there.
    pub fn ended(&self, from: &Key, to: &Key) -> Result<Vec<Version>> {
        let mut out = Vec::new();
        self.each_version(&mut out, from, to, false)?;
        Ok(out)
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
