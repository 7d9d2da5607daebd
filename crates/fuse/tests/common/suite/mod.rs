//! What every volume has to do once it is mounted, whatever is behind it. Each
//! check gets an empty root directory of its own and leaves what it likes.

pub mod content;
pub mod names;
pub mod owners;
pub mod space;
