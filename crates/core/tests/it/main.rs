//! The calls on a memory device. One program, since each costs seconds to link; one file for each area.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod common;

mod apart;
mod atime;
mod check;
mod check_damage;
mod cleaning;
mod coarse;
mod copy;
mod counts;
mod damage;
mod devices;
mod findings;
mod forget;
mod full;
mod full_of_history;
mod heavy;
mod held;
mod history;
mod huge;
mod joining;
mod jumps;
mod keep;
mod landmarks;
mod laying;
mod leading;
mod little;
mod merging;
mod mmp;
mod ordering;
mod parity;
mod races;
mod repair_devices;
mod reserve;
mod retention;
mod scrub;
mod slow;
mod smoke;
mod steady;
mod still;
mod submit;
mod summaries;
mod under_way;
mod versions;
mod write_cost;
