//! Who tells a user of the past: the owner of the volume; or, where that answers only others, the mount itself
//! (docs/decisions/0036-the-past-for-other-users.md).

use crate::control::{CheckpointData, Client, GoneData, Request, StateData};
use crate::error::Fail;
use crate::output;
use crate::shelf::{Seen, Shelf};
use crate::{clock, when};
use std::path::Path;

/// One of both.
pub enum Teller {
    Owner(Client),
    Mount(Shelf),
}

impl Teller {
    /// The state that WHEN means, as it is said here.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&mut self, text: &str) -> Result<CheckpointData, Fail> {
        match self {
            Self::Owner(owner) => {
                let when = when::for_owner(text, clock::now()).map_err(Fail::usage)?;
                owner.call(&Request::Find { when })
            }
            Self::Mount(shelf) => shelf.find(text),
        }
    }

    /// The states of `inside`, a path from the root of the volume that is `path` here.
    ///
    /// # Errors
    /// It never stood for anything.
    pub fn history(&mut self, inside: &Path, path: &Path) -> Result<Vec<StateData>, Fail> {
        match self {
            Self::Owner(owner) => owner.call(&Request::History { path: inside.to_owned() }),
            Self::Mount(shelf) => shelf.history(inside, path).map(told),
        }
    }

    /// What the directory `inside`, which is `path` here, has no more; by name.
    ///
    /// # Errors
    /// It never was a directory.
    pub fn gone(&mut self, inside: &Path, path: &Path) -> Result<Vec<GoneData>, Fail> {
        let mut list = Vec::new();
        let rest: Vec<GoneData> = match self {
            Self::Owner(owner) => {
                let request = Request::Gone { path: inside.to_owned() };
                owner.call_for_parts(&request, &mut |some: Vec<_>| list.extend(some))?
            }
            Self::Mount(shelf) => shelf.gone(inside, path).map(told)?,
        };
        list.extend(rest);
        list.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(list)
    }

    /// How far back anything is known of what is below `inside`.
    ///
    /// # Errors
    /// Nobody can say.
    pub fn reach(&mut self, inside: &Path) -> Result<String, Fail> {
        match self {
            Self::Owner(owner) => owner.call(&Request::Reach { path: inside.to_owned() }),
            Self::Mount(shelf) => shelf.reach(),
        }
    }
}

/// What was seen, after a word on what was not.
fn told<T>(Seen { list, unseen }: Seen<T>) -> Vec<T> {
    output::notice("the volume was mounted by another user: this is what its states show you, without renames");
    if unseen > 0 {
        output::notice(format!("{unseen} of them could not be looked into"));
    }
    list
}
