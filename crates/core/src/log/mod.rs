//! The log: where the next partial segment of each kind goes.

pub mod chain;
pub mod data;
pub mod index;

pub use data::DataLog;
pub use index::IndexLog;
