//! How two texts differ, as patch(1) reads it.

use similar::{DiffOp, TextDiff, group_diff_ops};
use std::ops::Range;
use std::time::Duration;

/// Lines that are the same around what differs.
const CONTEXT_LINES: usize = 3;

/// The hunks that make `new` of `old`, below these two lines of names; nothing where both are the same. What is not found within
/// `time` is a larger difference.
pub fn unified(old: &[u8], new: &[u8], names: &(String, String), time: Duration) -> Vec<u8> {
    // The library's own lines end with a carriage return alone, too, and those of patch(1) do not.
    let [old, new] = [old, new].map(|text| text.split_inclusive(|b| *b == b'\n').collect::<Vec<_>>());
    let diff = TextDiff::configure().timeout(time).diff_slices(&old, &new);
    let mut out = Vec::new();
    for hunk in group_diff_ops(in_place(diff.ops(), &old, &new), CONTEXT_LINES) {
        if out.is_empty() {
            out.extend(format!("--- {}\n+++ {}\n", names.0, names.1).into_bytes());
        }
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let of_old = first.old_range().start..last.old_range().end;
        let of_new = first.new_range().start..last.new_range().end;
        out.extend(format!("@@ -{} +{} @@\n", shown(&of_old), shown(&of_new)).into_bytes());
        for op in &hunk {
            if let DiffOp::Equal { .. } = op {
                lines(&mut out, b' ', &old[op.old_range()]);
            } else {
                lines(&mut out, b'-', &old[op.old_range()]);
                lines(&mut out, b'+', &new[op.new_range()]);
            }
        }
    }
    out
}

/// The same steps, each where the one before ends in both texts: the library moves some of them, and not the places of their neighbours.
/// Steps that are not of these texts are one that replaces all.
fn in_place(ops: &[DiffOp], old: &[&[u8]], new: &[&[u8]]) -> Vec<DiffOp> {
    let lengths = ops.iter().fold((0, 0), |(a, b), op| (a + op.old_range().len(), b + op.new_range().len()));
    if lengths != (old.len(), new.len()) {
        return vec![DiffOp::Replace { old_index: 0, old_len: old.len(), new_index: 0, new_len: new.len() }];
    }
    let (mut old_index, mut new_index) = (0, 0);
    let mut out = Vec::with_capacity(ops.len());
    for op in ops {
        let (old_len, new_len) = (op.old_range().len(), op.new_range().len());
        let are_equal = matches!(op, DiffOp::Equal { .. })
            && old[old_index..old_index + old_len] == new[new_index..new_index + new_len];
        out.push(match (are_equal, old_len, new_len) {
            (true, len, _) => DiffOp::Equal { old_index, new_index, len },
            (_, _, 0) => DiffOp::Delete { old_index, old_len, new_index },
            (_, 0, _) => DiffOp::Insert { old_index, new_index, new_len },
            _ => DiffOp::Replace { old_index, old_len, new_index, new_len },
        });
        (old_index, new_index) = (old_index + old_len, new_index + new_len);
    }
    out
}

/// Lines of one side in the head of a hunk: the first, from 1, and how many; of none the line before.
fn shown(range: &Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        n => format!("{},{n}", range.start + 1),
    }
}

fn lines(out: &mut Vec<u8>, sign: u8, lines: &[&[u8]]) {
    for line in lines {
        out.push(sign);
        out.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(old: &str, new: &str) -> String {
        let names = ("a/f".to_owned(), "b/f".to_owned());
        String::from_utf8(unified(old.as_bytes(), new.as_bytes(), &names, Duration::from_secs(2))).unwrap()
    }

    #[test]
    fn hunks_say_how_many_lines_they_have() {
        assert_eq!(of("same\n", "same\n"), "");
        assert_eq!(of("", "a\n"), "--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+a\n");
        assert_eq!(of("a", ""), "--- a/f\n+++ b/f\n@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n");
        assert_eq!(of("c\nb\n", "b\nb\n"), "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-c\n b\n+b\n");
    }

    /// Applies hunks as patch(1) does: every line that is said to be there has to be, where it is said to be, and a line ends with a
    /// line feed alone.
    fn patched(old: &str, hunks: &str) -> String {
        let old: Vec<&str> = old.split_inclusive('\n').collect();
        let (mut out, mut at, mut left) = (String::new(), 0, (0, 0));
        let mut lines = hunks.split_inclusive('\n').skip(2).peekable();
        while let Some(line) = lines.next() {
            if let Some(head) = line.strip_prefix("@@ -").filter(|_| left == (0, 0)) {
                let side = |text: &str| {
                    let (first, count) = text.split_once(',').unwrap_or((text, "1"));
                    let (first, count): (usize, usize) = (first.parse().unwrap(), count.parse().unwrap());
                    (if count == 0 { first } else { first - 1 }, count)
                };
                let (of_old, of_new) = head.trim_end_matches(" @@\n").split_once(" +").unwrap();
                let ((begin, old_lines), (_, new_lines)) = (side(of_old), side(of_new));
                out.extend(old[at..begin].iter().copied());
                (at, left) = (begin, (old_lines, new_lines));
                assert_eq!(out.split_inclusive('\n').count(), side(of_new).0);
                continue;
            }
            let (sign, mut text) = line.split_at(1);
            if lines.next_if(|next| next.starts_with('\\')).is_some() {
                text = text.strip_suffix('\n').unwrap();
            }
            if sign != "+" {
                assert_eq!(old[at], text);
                (at, left.0) = (at + 1, left.0 - 1);
            }
            if sign != "-" {
                out.push_str(text);
                left.1 -= 1;
            }
        }
        assert_eq!(left, (0, 0), "a hunk has other lines than its head says");
        out.extend(old[at..].iter().copied());
        out
    }

    #[test]
    fn patching_gives_the_new_text() {
        const LINES: [&str; 8] = ["a\n", "b\n", "\n", "c\n", "x\r", "\r\n", "\r\r\n", "x\ry\n"];
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..40_000 {
            // Half of them with lines that end as usual.
            let kinds = if round % 2 == 0 { 4 } else { LINES.len() as u64 };
            let mut text = || {
                let lines: String = (0..draw(30)).map(|_| LINES[draw(kinds) as usize]).collect();
                lines + ["", "", "end", "x\r"][draw(4) as usize]
            };
            let (old, new) = (text(), text());
            assert_eq!(patched(&old, &of(&old, &new)), new, "{old:?} to {new:?}");
        }
    }
}
