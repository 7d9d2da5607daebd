//! The commands, as a user calls them. One program, since each costs seconds to link; one file for each area.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod common;

mod bad_input;
mod called;
mod check;
mod checkpoint;
mod clean;
mod closing;
mod compare;
mod devices;
mod devices_lost;
mod diff;
mod dump;
mod forget;
mod helpers;
mod history;
mod host_silent;
mod image_gone;
mod info;
mod known;
mod meanwhile;
mod mkfs;
mod mmp;
mod mount;
mod name_spaces;
mod other_user;
mod owner_lost;
mod past;
mod remount;
mod restore;
mod restore_database;
mod restore_elsewhere;
mod restore_links;
mod restore_list;
mod restore_names;
mod restore_safety;
mod restore_to;
mod restore_whole;
mod retention;
mod scrub;
mod silent;
mod trace;
mod umount;
mod zones;
