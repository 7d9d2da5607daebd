//! The log: where the next partial segment of each kind goes.

pub mod chain;
pub mod data;
pub mod index;
mod spare;

pub use data::DataLog;
pub use index::IndexLog;
pub use spare::SparePartials;
