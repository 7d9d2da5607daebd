//! The kernel's tracing: an instance of its own, and its raw buffers.

mod format;
mod instance;
mod ring;

pub(crate) use instance::Instance;
