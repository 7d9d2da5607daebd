//! The crash simulator: one seed is one world. It runs random workloads on a
//! file system and on a model at the same time, cuts the power after every
//! device operation in several ways, recovers, and lets an oracle say whether
//! what is found is allowed.
//!
//! The file system is anything behind [`subject::Subject`]: the real core, or
//! the toy with which the harness itself is tried.
#![forbid(unsafe_code)]

pub mod ace;
#[cfg(feature = "breaks")]
pub mod breaks;
pub mod changing;
pub mod checkpoint_log;
pub mod cli;
pub mod clock;
pub mod config;
pub mod content;
pub mod cut_image;
pub mod cut_judge;
pub mod driver;
pub mod fault;
pub mod flip;
pub mod forget;
pub mod hash;
pub mod hosts;
mod joins;
pub mod lie;
pub mod life;
pub mod members;
pub mod mend;
pub mod model;
pub mod numbers;
pub mod ops;
pub mod oracle;
pub mod prng;
pub mod queue;
pub mod run;
pub mod scenario;
pub mod subject;
pub mod told;
pub mod toy;
pub mod tree;
pub mod turns;
pub mod walk;
pub mod workload;
mod wrong;
