//! What is counted of segments is what they have.

use super::*;
use nenrin_device::Prng;

/// What is found by looking at all of them.
fn looked_at(s: &Segments, generation: Generation) -> (u64, u64, Vec<(SegmentNo, u32)>, Vec<SegmentNo>) {
    let blocks = s.iter().map(|(_, u)| u64::from(u.used_blocks()) + u64::from(u.node_blocks())).sum();
    let promotable = s.pending.iter().filter_map(|i| s.all.get(*i)).filter(|u| !u.closed && u.pins == 0).count();
    let listed = |u: &SegmentUse| {
        let emptied = u.state == SegmentState::Pending && u.item.emptied_generation >= generation.0;
        u.nodes > 0 || u.item.kind == KIND_INDEX && emptied
    };
    let index = s.iter().filter(|(_, u)| listed(u)).map(|(no, u)| (no, u.nodes)).collect();
    let held = s.iter().filter(|(_, u)| u.chain_held).map(|(no, _)| no).collect();
    (blocks, promotable as u64, index, held)
}

#[test]
fn what_is_counted_is_what_segments_have() {
    let mut s = Segments::new(&[0..40, 100..140], 600, Generation(3));
    let mut random = Prng::new(7);
    let mut below = |n: u64| random.below(n);
    let (mut seq, mut emptied, mut wasting) = (0, 0, 0);
    for step in 0..20_000 {
        let no = SegmentNo(below(40) + 100 * below(2));
        let (addr, blocks) = (Addr::new(no, 0), below(100) as u32);
        match below(36) {
            0 if s.get(no).is_some_and(|u| u.state == SegmentState::Open) => s.seal(no),
            1..=3 => drop(s.allocate([KIND_CHAIN, KIND_DATA, KIND_INDEX][below(3) as usize], Time(1))),
            4 => s.take_back(no),
            5 => s.add_live(addr, blocks),
            6 | 7 => s.sub_live(addr, blocks),
            8 => s.live_to_history(addr, blocks),
            9 => s.history_to_live(addr, blocks),
            10 | 11 => s.sub_history(addr, blocks),
            12 => s.add_node(no),
            13 | 14 => s.sub_node(no),
            15 => {
                seq += 1;
                s.chain_written(no, Seq(seq));
            }
            16 => s.chain_contained(Seq(below(seq + 1))),
            17 => {
                s.promote(Generation(s.next_generation.0.saturating_sub(2)));
                s.next_generation = Generation(s.next_generation.0 + 1);
            }
            18 => s.close(no),
            19 => s.open(no),
            20 => s.pin(no),
            21 | 22 => s.unpin(no),
            23 => s.protect(no, s.next_generation),
            24 => s.free_at_once(no),
            25 => s.add_history(addr, blocks),
            26 if below(8) == 0 => s.reopen(no, KIND_CHAIN),
            27..=35 => s.add_live(addr, blocks),
            _ => drop(s.open_all()),
        }
        let generation = Generation(s.next_generation.0.saturating_sub(below(3)));
        let (blocks, promotable, index, held) = looked_at(&s, generation);
        assert_eq!((s.needed_blocks(), s.promotable_count()), (blocks, promotable), "step {step}");
        assert_eq!(s.index_segments(generation), index, "step {step}");
        assert!(s.all.chain_held.iter().copied().eq(held.into_iter().map(|no| no.0)), "step {step}");
        emptied += index.iter().filter(|(_, nodes)| *nodes == 0).count();
        // What the cleaner looks at, and what it would find if it looked at all.
        let least = 19 + below(500) as u32;
        let much = |u: &SegmentUse| u.used_blocks() <= 600 - least;
        let mut with_garbage: Vec<_> = s.with_garbage(least).filter(|(_, u)| much(u)).map(|(no, _)| no).collect();
        with_garbage.sort_unstable();
        let content = |u: &SegmentUse| u.state == SegmentState::Sealed && !u.chain_held && u.used_blocks() > 0;
        let all = s.iter().filter(|(_, u)| content(u) && much(u)).map(|(no, _)| no);
        assert!(all.eq(with_garbage.iter().copied()), "step {step}");
        wasting += with_garbage.len();
    }
    assert!(s.needed_blocks() > 0 && emptied > 100 && wasting > 1_000, "{} {emptied} {wasting}", s.needed_blocks());
}

#[test]
fn it_is_counted_after_loading_and_renumbering_too() {
    let mut s = Segments::new(&[0..40, 100..140], 64, Generation(3));
    s.load(SegmentNo(1), Segment { live_blocks: 5, ..Segment::default() });
    s.load(SegmentNo(2), Segment { chain_seq: Seq(9), kind: KIND_CHAIN, ..Segment::default() });
    s.load(SegmentNo(3), Segment { emptied_generation: 2, ..Segment::default() });
    s.load(SegmentNo(1_000), Segment { live_blocks: 5, ..Segment::default() });
    s.load_nodes(SegmentNo(100), 2, Generation(2));
    s.load_nodes(SegmentNo(101), 0, Generation(2));
    let all = (
        5 + 2 * u64::from(nenrin_format::NODE_BLOCKS),
        2,
        vec![(SegmentNo(100), 2), (SegmentNo(101), 0)],
        vec![SegmentNo(2)],
    );
    let counted = |s: &Segments| {
        let held = s.all.chain_held.iter().map(|i| SegmentNo(*i)).collect();
        (s.needed_blocks(), s.promotable_count(), s.index_segments(Generation(2)), held)
    };
    assert_eq!(counted(&s), all);
    (110..140).for_each(|i| s.close(SegmentNo(i)));
    assert!(s.renumber(&[0..40, 100..110, 300..310]));
    assert_eq!(counted(&s), all);
    s.load_nodes(SegmentNo(100), 0, Generation(2));
    s.sub_live(Addr::new(SegmentNo(1), 0), 5);
    assert_eq!((s.needed_blocks(), s.promotable_count()), (0, 4));
}

/// Whoever withheld a segment gives it back; if somebody has it by then, it stays his. (Closing and opening it gives it to nobody:
/// it did, and what was written to it was then zeroed by who withheld it.)
#[test]
fn what_somebody_has_is_not_given_back() {
    let mut s = Segments::new(std::slice::from_ref(&(0..2)), 600, Generation(3));
    assert!(s.withhold(SegmentNo(0)));
    s.add_live(Addr::new(SegmentNo(0), 1), 5);
    s.give_back(SegmentNo(0));
    let given: Vec<_> = (0..2).map(|_| s.allocate(KIND_DATA, Time(1))).collect();
    assert_eq!(given, [Some(SegmentNo(1)), None]);
}

/// Whatever happens meanwhile, only giving it back ends it.
#[test]
fn what_is_withheld_stays_so_when_it_is_closed_and_opened() {
    let no = SegmentNo(0);
    let opens: [fn(&mut Segments); 3] = [
        |s| s.open(SegmentNo(0)),
        |s| _ = s.open_all(),
        |s| {
            assert!(s.renumber(&[0..1, 9..10]));
            s.open(SegmentNo(0));
        },
    ];
    for open in opens {
        let mut s = Segments::new(std::slice::from_ref(&(0..1)), 600, Generation(3));
        assert!(s.withhold(no));
        s.close(no);
        open(&mut s);
        assert_eq!(s.allocate(KIND_DATA, Time(1)), None);
        assert!(!s.withhold(no), "somebody has it");
        s.give_back(no);
        assert_eq!(s.allocate(KIND_DATA, Time(1)), Some(no));
    }
    // Closed meanwhile it stays closed.
    let mut s = Segments::new(std::slice::from_ref(&(0..1)), 600, Generation(3));
    assert!(s.withhold(no));
    s.close(no);
    assert!(!s.renumber(&[]), "somebody writes to it");
    s.give_back(no);
    assert_eq!(s.allocate(KIND_DATA, Time(1)), None);
    assert!(s.renumber(&[]));
}

/// What is opened that was open already stays withheld.
#[test]
fn who_opens_twice_hands_out_nothing_that_is_withheld() {
    let mut s = Segments::new(std::slice::from_ref(&(0..1)), 600, Generation(3));
    s.close(SegmentNo(0));
    assert!(s.open_all() && s.withhold(SegmentNo(0)));
    s.open(SegmentNo(0));
    assert_eq!(s.allocate(KIND_DATA, Time(1)), None);
    s.give_back(SegmentNo(0));
    assert_eq!(s.allocate(KIND_DATA, Time(1)), Some(SegmentNo(0)));
}
