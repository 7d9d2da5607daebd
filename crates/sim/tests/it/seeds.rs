//! Seeds that found something, kept: each is run again with up to 1,500 of its images, and
//! its test says what it found. What a seed does changes with the workloads; one
//! that must keep its meaning becomes a test of its own in `found.rs`.

use nenrin_sim::cli::{Arguments, Core, run};

fn found_something(line: &str) {
    let words = line.split_whitespace().chain(["--each", "1500"]);
    let arguments = Arguments::parse(lexopt::Parser::from_args(words)).unwrap_or_else(|e| panic!("{line}: {e}"));
    let tally = run::<Core>(&arguments).unwrap_or_else(|e| panic!("{line}\n{e}\n{}", e.detail));
    assert_eq!(tally.workloads, 1, "{line}");
    assert!(tally.distinct > 10, "{line}: {tally:?}");
}

macro_rules! seeds {
    ($($(#[$doc:meta])* $name:ident: $line:literal;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            found_something($line);
        }
    )*};
}

seeds! {
    an_emptied_file_showed_its_old_blocks_when_it_grew:
        "--seed 4 --order relaxed --barrier sync --writeback false";
    /// Loading the rest of its block took the room away.
    a_small_write_on_a_full_volume_searched_for_room_without_end:
        "--seed 21 --profile fill --writeback false";
    a_write_into_blocks_of_a_full_volume_never_ended:
        "--seed 620 --order relaxed --barrier none --writeback false";
    /// Pages that it read first made it count as large.
    a_small_write_where_room_is_lent_never_ended:
        "--seed 57 --order relaxed --barrier sync --steps 300 --profile fill";
    /// A file was emptied and not closed yet; what that frees was available, and nobody got it.
    who_emptied_a_file_was_refused_with_a_third_of_the_volume_available:
        "--seed 303 --order relaxed --barrier sync --steps 400 --profile fill";
    /// It waited to be swept in the background.
    what_a_deleted_snapshot_had_kept_was_available_and_nobody_got_it:
        "--seed 769 --order relaxed --barrier checkpoint --steps 400 --profile fill";
    a_strict_sync_that_waited_took_names_along_and_not_the_content_before_them:
        "--seed 49 --order strict --barrier sync --writeback false";
    /// Of three summaries together, in place of a unit that was missing and just being written anew, the checksum fitted, and what
    /// the three said was taken for proof that the log went on.
    what_a_row_gave_in_place_of_a_missing_unit_was_taken_for_a_summary:
        "--seed 300033 --order relaxed --barrier sync --devices 3 --layout parity --joins back:2";
    the_same_while_devices_come_and_go_and_one_dies:
        "--seed 800004 --order relaxed --barrier sync --devices 4 --layout parity --dies 1:71 --changes";
    /// A mount does not show that a name came later.
    the_oracle_took_every_name_that_a_mount_finds_for_that_of_a_snapshot:
        "--seed 2099 --order relaxed --barrier sync --profile keep";
    /// Behind an older root content had come to where one of its nodes was, and no plan was right.
    a_repair_was_refused_where_a_segment_had_content_and_a_node_of_before:
        "--seed 310 --order relaxed --barrier sync --life repair-behind --remounts false";
    /// A sync of a file that was emptied and punched, and had been empty, needs no device operation.
    the_oracle_took_a_state_that_it_asks_for_itself_for_one_not_yet_made:
        "--seed 900072 --order relaxed --barrier none";
}
