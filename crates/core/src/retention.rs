//! Which unnamed checkpoints are kept, and how old they count as.
//!
//! A rule is a ladder: up to each age, one checkpoint in so much time is kept;
//! beyond the last age, none. Named checkpoints are outside of it.
//!
//! Ages come from two clocks. Mounted time never jumps but stands still while
//! the volume is not mounted; wall time goes on but may jump. So an age is at
//! least the mounted time since. Of what wall time adds only pauses of up to a
//! day are believed, and none within one mount, before the clock has been
//! consistent for a day of mounted time: a jump of the clock within one mount drops nothing for that long. One between two mounts
//! cannot be told from a pause, so that up to a day of it counts at once, and more of it not before.

use crate::breaks::{Break, broken};
use crate::{Error, Result};
use nenrin_format::Cno;
use std::fmt;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
/// Clocks go together as long as they are no further apart after a day.
const DRIFT_MAX: i128 = MINUTE as i128;
/// Units as written: M and Y are 30 and 365 days.
const UNITS: [(char, u64); 7] =
    [('s', SECOND), ('m', MINUTE), ('h', HOUR), ('d', DAY), ('w', 7 * DAY), ('M', 30 * DAY), ('Y', 365 * DAY)];
/// Longest rule in bytes.
const TEXT_BYTES_MAX: usize = 1000;
/// Most steps of a rule.
const STEPS_MAX: usize = 32;

/// One rung: up to age `upto`, one checkpoint in `every`; nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// `u64::MAX` for ever.
    upto: u64,
    /// 0 for all.
    every: u64,
}

/// A retention rule, written like `1h:all 1d:10m 7d:1h 30d:1d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    steps: Vec<Step>,
}

impl Default for Retention {
    /// All for an hour, one in 10 minutes for a day, hourly for a week, daily for 30 days.
    fn default() -> Self {
        let step = |upto, every| Step { upto, every };
        Self { steps: vec![step(HOUR, 0), step(DAY, 10 * MINUTE), step(7 * DAY, HOUR), step(30 * DAY, DAY)] }
    }
}

/// When a checkpoint was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall time in nanoseconds.
    pub wall: i64,
    /// Nanoseconds that the volume had been mounted for.
    pub mounted: u64,
    /// Tells the mount from those before and behind; 0: not known.
    pub mount: u16,
}

impl Moment {
    /// Whether a day has begun since the last one did, with `last`: another one by the calendar that the ladder goes by, so that
    /// it keeps the same checkpoint of each; or a whole one that the volume was mounted for, if the clock stands still.
    #[must_use]
    pub fn begins_day_after(self, last: Self) -> bool {
        self.wall.div_euclid(DAY as i64) != last.wall.div_euclid(DAY as i64)
            || self.mounted.saturating_sub(last.mounted) >= DAY
    }
}

/// A kept checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Its number.
    pub cno: Cno,
    /// When it was cut.
    pub moment: Moment,
    /// It has a name, or somebody uses it.
    pub held: bool,
}

impl Retention {
    /// Reads a rule.
    ///
    /// # Errors
    /// [`Error::BadRule`]: one line that says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: String| Error::BadRule(format!("{why}; a rule is like 1h:all 1d:10m 30d:1d"));
        if text.len() > TEXT_BYTES_MAX {
            return Err(bad(format!("the rule has more than {TEXT_BYTES_MAX} bytes")));
        }
        let mut steps: Vec<Step> = Vec::new();
        for word in text.split_whitespace() {
            let (upto, every) = word.split_once(':').ok_or_else(|| bad(format!("{word:?} has no colon")))?;
            let span = |s: &str| period(s).ok_or_else(|| bad(format!("{s:?} is no period such as 30s, 10m, 1h, 7d")));
            let step = Step {
                upto: if upto == "forever" { u64::MAX } else { span(upto)? },
                every: if every == "all" { 0 } else { span(every)? },
            };
            if steps.last().is_some_and(|last| last.upto >= step.upto || last.every > step.every) {
                return Err(bad(format!("{word:?} does not reach further, and no finer, than what is before it")));
            }
            steps.push(step);
        }
        match steps.len() {
            0 => Err(bad("the rule is empty".into())),
            1..=STEPS_MAX => Ok(Self { steps }),
            _ => Err(bad(format!("the rule has more than {STEPS_MAX} steps"))),
        }
    }

    /// The checkpoints that the rule does not keep. `kept` is in the order of their numbers.
    #[must_use]
    pub fn drops(&self, now: Moment, kept: &[Kept]) -> Vec<Cno> {
        let mut out = Vec::new();
        // The oldest in each stretch of time stays, so that what a coarser step keeps is among what a finer one did.
        let mut stretch: Option<(u64, i64)> = None;
        for (k, age) in kept.iter().zip(ages(now, kept)) {
            if k.held {
                continue;
            }
            let Some(step) = self.steps.iter().find(|s| age <= s.upto) else {
                out.push(k.cno);
                continue;
            };
            if step.every == 0 {
                continue;
            }
            let this = (step.every, k.moment.wall.div_euclid(step.every as i64));
            if stretch == Some(this) {
                out.push(k.cno);
            }
            stretch = Some(this);
        }
        out
    }
}

impl Retention {
    /// How much longer each checkpoint is kept, in nanoseconds, if the volume stays mounted; `None` for
    /// ever. `kept` is in the order of their numbers. What comes later changes nothing, since
    /// the oldest in each stretch of time stays; under pressure all may go sooner.
    #[must_use]
    pub fn keeps_for(&self, now: Moment, kept: &[Kept]) -> Vec<Option<u64>> {
        // The stretch of each step that the one before was in.
        let mut last: Vec<Option<i64>> = vec![None; self.steps.len()];
        let mut out = Vec::with_capacity(kept.len());
        for (k, age) in kept.iter().zip(ages(now, kept)) {
            let mut until = if k.held { None } else { Some(0) };
            let mut survives = !k.held;
            for (step, last) in self.steps.iter().zip(&mut last).filter(|_| !k.held) {
                let stretch = (step.every > 0).then(|| k.moment.wall.div_euclid(step.every as i64));
                survives &= stretch.is_none() || *last != stretch;
                *last = stretch;
                if survives {
                    until = (step.upto < u64::MAX).then(|| step.upto.saturating_sub(age));
                }
            }
            out.push(until);
        }
        out
    }
}

/// A landmark's moment and level.
pub type Mark = (Cno, Moment, u8);

impl Retention {
    /// Levels that landmarks may have: one for each step but the first.
    #[must_use]
    pub fn levels(&self) -> u8 {
        u8::try_from(self.steps.len() - 1).unwrap_or(u8::MAX)
    }

    /// How much longer each landmark is kept, in nanoseconds if the volume stays mounted; `None` for ever, 0: no
    /// longer. One of level 1 is kept to the end of the second step, of level 2 to that of the third,
    /// and so on. Both lists are in the order of their numbers.
    #[must_use]
    pub fn keeps_marks_for(&self, now: Moment, kept: &[Kept], marks: &[Mark]) -> Vec<Option<u64>> {
        let (clocks, ages) = (Clocks::of(now, kept), ages(now, kept));
        let left = |(cno, moment, level): &Mark| {
            // Between which mounts it was is told by the checkpoints around it.
            let behind = kept.partition_point(|k| k.cno < *cno);
            let pauses = clocks.pauses.get(behind).copied().unwrap_or(0);
            let before = behind.checked_sub(1).map_or(u64::MAX, |before| ages[before]);
            let upto = self.steps[usize::from(*level).min(self.steps.len() - 1)].upto;
            (upto < u64::MAX).then(|| upto.saturating_sub(clocks.age(*moment, pauses).min(before)))
        };
        marks.iter().map(left).collect()
    }
}

/// How much each of the versions of a file stands out, by how long each stood: one that stood longer than the one
/// before it, and no shorter than the one after, has level 1; one that does so among those, level 2; and so on.
#[must_use]
pub fn levels(stood: &[u64], most: u8) -> Vec<u8> {
    let mut out = vec![0; stood.len()];
    let mut among: Vec<usize> = (0..stood.len()).collect();
    for level in 1..=most {
        let stands_out = |i: usize| {
            let before = i.checked_sub(1).map_or(0, |b| stood[among[b]]);
            let after = among.get(i + 1).map_or(0, |a| stood[*a]);
            stood[among[i]] > before && stood[among[i]] >= after
        };
        among = (0..among.len()).filter(|i| stands_out(*i)).map(|i| among[i]).collect();
        for i in &among {
            out[*i] = level;
        }
    }
    out
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.steps.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            let upto = if s.upto == u64::MAX { "forever".to_owned() } else { show_period(s.upto) };
            let every = if s.every == 0 { "all".to_owned() } else { show_period(s.every) };
            write!(f, "{space}{upto}:{every}")?;
        }
        Ok(())
    }
}

/// Nanoseconds of `10m`.
fn period(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let (_, nanos) = UNITS.iter().find(|(u, _)| *u == unit)?;
    let number = text.strip_suffix(unit)?;
    let number: u64 = number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse().ok())??;
    number.checked_mul(*nanos).filter(|n| *n > 0 && *n < i64::MAX as u64)
}

fn show_period(nanos: u64) -> String {
    // Weeks, months and years are written in days: they say what they are.
    let (unit, size) = UNITS[..4].iter().rev().find(|(_, n)| nanos % n == 0).unwrap_or(&UNITS[0]);
    format!("{}{unit}", nanos / size)
}

/// What is believed of the clocks.
struct Clocks {
    now: Moment,
    /// What wall time adds has gone together with mounted time for a day of that, but for pauses that are believed.
    consistent: bool,
    /// Nanoseconds that the volume was not mounted since each checkpoint, as far as that is believed at once.
    pauses: Vec<u64>,
}

impl Clocks {
    fn of(now: Moment, kept: &[Kept]) -> Self {
        let mut pauses = vec![0; kept.len()];
        let (mut later, mut sum) = (now, 0u64);
        for (k, pauses) in kept.iter().zip(&mut pauses).rev() {
            let m = k.moment;
            let pause = apart(later, m);
            // Within a mount there is none: it is the clock that jumps.
            let within = m.mount > 0 && m.mount == later.mount && !broken(Break::PausesWithinMounts);
            let believed = !within && (0..=i128::from(DAY)).contains(&pause);
            let believed = believed || pause > 0 && broken(Break::JumpBelieved);
            sum = sum.saturating_add(if believed { pause as u64 } else { 0 });
            *pauses = sum;
            later = m;
        }
        let a_day_ago =
            kept.iter().zip(&pauses).rev().find(|(k, _)| now.mounted.saturating_sub(k.moment.mounted) >= DAY);
        let goes_together =
            |(k, pauses): (&Kept, &u64)| (apart(now, k.moment) - i128::from(*pauses)).abs() <= DRIFT_MAX;
        Self { now, consistent: a_day_ago.is_some_and(goes_together), pauses }
    }

    /// How old something of a moment counts as that has seen so much of pauses since.
    fn age(&self, m: Moment, pauses: u64) -> u64 {
        let mounted = self.now.mounted.saturating_sub(m.mounted);
        let by_wall = u64::try_from(i128::from(self.now.wall) - i128::from(m.wall)).unwrap_or(0);
        let most = if self.consistent { by_wall } else { mounted.saturating_add(pauses) };
        by_wall.min(most).max(mounted)
    }
}

/// By how much more wall time went on than mounted time.
fn apart(later: Moment, earlier: Moment) -> i128 {
    let wall = i128::from(later.wall) - i128::from(earlier.wall);
    wall - i128::from(later.mounted.saturating_sub(earlier.mounted))
}

/// How old each counts as, in nanoseconds: see the module.
fn ages(now: Moment, kept: &[Kept]) -> Vec<u64> {
    let clocks = Clocks::of(now, kept);
    let mut ages: Vec<u64> = kept.iter().zip(&clocks.pauses).map(|(k, pauses)| clocks.age(k.moment, *pauses)).collect();
    // None is older than those cut before it, whatever its stamp says.
    let mut oldest = u64::MAX;
    for age in &mut ages {
        oldest = oldest.min(*age);
        *age = oldest;
    }
    ages
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 365 * DAY;

    fn kept(moments: impl IntoIterator<Item = (u64, u64)>) -> Vec<Kept> {
        let kept = |(i, (wall, mounted)): (usize, (u64, u64))| Kept {
            cno: Cno(i as u64 + 1),
            moment: Moment { wall: wall as i64, mounted, mount: 1 },
            held: false,
        };
        moments.into_iter().enumerate().map(kept).collect()
    }
    fn now(wall: u64, mounted: u64) -> Moment {
        Moment { wall: wall as i64, mounted, mount: 1 }
    }
    fn left(all: &[Kept], dropped: &[Cno]) -> Vec<Kept> {
        all.iter().filter(|k| !dropped.contains(&k.cno)).copied().collect()
    }

    #[test]
    fn rules_are_read_and_written() {
        for text in ["1h:all 1d:10m 7d:1h 30d:1d", "forever:all", "90s:all forever:1d"] {
            assert_eq!(Retention::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Retention::default().to_string(), "1h:all 1d:10m 7d:1h 30d:1d");
        assert_eq!(Retention::parse("1w:1h").unwrap().to_string(), "7d:1h");
        for text in ["", "1h", "1h:", "h:all", "1h:all 1h:1m", "1d:1h 7d:1m", "1h:0m", "-1h:all", "9999999999Y:all"] {
            let Err(Error::BadRule(why)) = Retention::parse(text) else { panic!("{text:?} was taken") };
            assert!(why.contains("a rule is like"), "{why}");
        }
    }

    /// A checkpoint every 5 seconds for 40 days leaves what the rule says, and thinning often leaves
    /// as much as thinning once.
    #[test]
    fn the_ladder_leaves_what_it_says() {
        let rule = Retention::default();
        let start = 1000 * DAY;
        let every = 60 * SECOND;
        let all = kept((0..40 * DAY / every).map(|i| (start + i * every, i * every)));
        let end = now(start + 40 * DAY, 40 * DAY);
        let once = left(&all, &rule.drops(end, &all));
        let count = |from: u64, to: u64| {
            once.iter().filter(|k| (from..to).contains(&(end.mounted - k.moment.mounted))).count() as u64
        };
        assert_eq!(count(0, HOUR), 59);
        assert!((23 * 6 - 1..=23 * 6 + 1).contains(&count(HOUR, DAY)), "{}", count(HOUR, DAY));
        assert!((6 * 24 - 1..=6 * 24 + 1).contains(&count(DAY, 7 * DAY)));
        assert!((22..=24).contains(&count(7 * DAY, 30 * DAY + 1)));
        assert_eq!(count(30 * DAY + 1, YEAR), 0);
        let mut often: Vec<Kept> = Vec::new();
        for (i, k) in all.iter().enumerate() {
            often.push(*k);
            if i % 30 == 0 || i + 1 == all.len() {
                let at = if i + 1 == all.len() { end } else { k.moment };
                let dropped = rule.drops(at, &often);
                often = left(&often, &dropped);
            }
        }
        assert!(often.len().abs_diff(once.len()) <= 4, "{} and {}", often.len(), once.len());
    }

    /// A checkpoint is kept for exactly as long as was told, seen from several moments.
    #[test]
    fn what_is_told_is_kept() {
        let rule = Retention::parse("1h:all 1d:10m 7d:1h 30d:1d").unwrap();
        let start = 1000 * DAY + 7 * HOUR;
        let all = kept((0..300).map(|i| (start + i * i * 40 * SECOND, i * i * 40 * SECOND)));
        let end = all.last().unwrap().moment;
        let later = |nanos: u64| now(end.wall as u64 + nanos, end.mounted + nanos);
        // Thinned up to now, as it would have been.
        let mut left_now: Vec<Kept> = Vec::new();
        for k in &all {
            left_now.push(*k);
            let dropped = rule.drops(k.moment, &left_now);
            left_now = left(&left_now, &dropped);
        }
        let told = rule.keeps_for(end, &left_now);
        let mut there = left_now.clone();
        let step = 10 * MINUTE;
        for at in (0..31 * DAY).step_by(step as usize) {
            let dropped = rule.drops(later(at), &there);
            for (k, until) in left_now.iter().zip(&told).filter(|(k, _)| dropped.contains(&k.cno)) {
                let until = until.unwrap();
                assert!(until <= at && at <= until + step, "{} told {until}, dropped after {at}", k.cno);
            }
            there = left(&there, &dropped);
        }
        assert!(there.is_empty() && left_now.len() > 20);
        let for_ever = Retention::parse("1h:all forever:1d").unwrap().keeps_for(end, &all);
        assert!(for_ever.contains(&None) && for_ever.iter().flatten().count() > 0);
        let held: Vec<Kept> = all.iter().map(|k| Kept { held: true, ..*k }).collect();
        assert!(rule.keeps_for(end, &held).iter().all(Option::is_none));
    }

    #[test]
    fn what_is_held_stays() {
        let mut all = kept((0..10).map(|i| (i * SECOND, i * SECOND)));
        all[3].held = true;
        let dropped = Retention::default().drops(now(100 * DAY, 100 * DAY), &all);
        assert_eq!(dropped.len(), 9);
        assert!(!dropped.contains(&Cno(4)));
    }

    /// A clock that jumps forward, and is seen as right from then on, drops nothing for a day of mounted time.
    #[test]
    fn a_jump_forward_drops_nothing_for_a_day() {
        let start = 1000 * DAY;
        let rule = Retention::default();
        let before: Vec<(u64, u64)> = (0..600).map(|i| (start + i * 5 * SECOND, i * 5 * SECOND)).collect();
        for hours in 0..23 {
            // Cut on, hourly, by the clock that jumped.
            let mounted = HOUR + hours * HOUR;
            let after = (0..=hours).map(|h| (start + YEAR + h * HOUR, 3000 * SECOND + h * HOUR));
            let all = kept(before.iter().copied().chain(after));
            let at = now(start + YEAR + mounted, mounted);
            let past_the_day = all.iter().filter(|k| at.mounted - k.moment.mounted > DAY).count();
            let dropped = rule.drops(at, &all);
            // Thinned to one in ten minutes as time has passed, but not gone.
            assert!(all.len() - dropped.len() >= 5 + past_the_day, "{hours} h: {} of {}", dropped.len(), all.len());
        }
    }

    #[test]
    fn a_clock_set_back_makes_nothing_older() {
        let start = 1000 * DAY;
        let mut moments: Vec<(u64, u64)> = (0..100).map(|i| (start + i * 5 * SECOND, i * 5 * SECOND)).collect();
        // A year back for a while, then right again.
        moments.extend((100..200).map(|i| (start - YEAR + i * 5 * SECOND, i * 5 * SECOND)));
        moments.extend((200..300).map(|i| (start + i * 5 * SECOND, i * 5 * SECOND)));
        let all = kept(moments);
        let end = 300 * 5 * SECOND;
        assert_eq!(Retention::default().drops(now(start + end, end), &all), []);
        // Also while it is wrong.
        assert_eq!(Retention::default().drops(now(start - YEAR + 1000 * SECOND, 1000 * SECOND), &all[..200]), []);
    }

    /// Checkpoints in so many mounts of so many hours, with so many hours between their beginnings.
    fn in_mounts(mounts: u64, hours: u64, every: u64, start: u64) -> (Vec<Kept>, Moment) {
        let at = |n: u64, h: u64| (start + n * every * HOUR + h * HOUR, n * hours * HOUR + h * HOUR);
        let mut all = kept((0..mounts).flat_map(|n| (0..hours).map(move |h| at(n, h))));
        for (i, k) in all.iter_mut().enumerate() {
            k.moment.mount = 1 + (i as u64 / hours) as u16;
        }
        let (wall, mounted) = at(mounts - 1, hours);
        (all, Moment { mount: mounts as u16, ..now(wall, mounted) })
    }

    /// A volume that is used for some hours every day ages by days.
    #[test]
    fn pauses_count() {
        let (all, at) = in_mounts(40, 8, 24, 1000 * DAY);
        let rest = left(&all, &Retention::default().drops(at, &all));
        let oldest = at.wall - rest[0].moment.wall;
        assert!((29 * DAY..=31 * DAY).contains(&(oldest as u64)), "{}", oldest as u64 / DAY);
    }

    /// A pause of several days counts when the volume was used for a day after it, also where it is mounted for hours only.
    #[test]
    fn a_long_pause_counts_after_a_day_of_use() {
        let day_of = |pause: u64, mounts: u64| {
            let (before, _) = in_mounts(3, 8, 24, 1000 * DAY);
            let (after, end) = in_mounts(mounts, 8, 24, 1003 * DAY + pause);
            let later = |m: Moment| Moment { mounted: m.mounted + 24 * HOUR, mount: m.mount + 3, ..m };
            let after = after.iter().map(|k| Kept { cno: Cno(k.cno.0 + 24), moment: later(k.moment), ..*k });
            let all: Vec<Kept> = before.iter().copied().chain(after).collect();
            let at = later(end);
            ages(at, &all)[0] / DAY
        };
        assert_eq!(day_of(10 * DAY, 1), 2, "not at once");
        assert_eq!(day_of(10 * DAY, 4), 16, "after a day of use");
    }

    /// Nor does one that jumps by less than a day, if only the volume was mounted all the time.
    #[test]
    fn a_jump_within_a_mount_is_no_pause() {
        let rule = Retention::parse("1h:all").unwrap();
        for (jumps, jump) in [(1, HOUR), (1, 23 * HOUR), (30, 23 * HOUR)] {
            let start = 1000 * DAY;
            let cut = |i: u64| (start + i * MINUTE + jump * (i / 2).min(jumps), i * MINUTE);
            let all = kept((0..=61).map(cut));
            let (wall, mounted) = cut(61);
            assert_eq!(rule.drops(now(wall, mounted), &all), [Cno(1)], "{jumps} jumps");
            // Also when it is mounted anew.
            let again = Moment { mount: 2, ..now(wall, mounted) };
            assert_eq!(rule.drops(again, &all), [Cno(1)], "{jumps} jumps");
            // After long use, too.
            let long = kept((0..100).map(|h| (start - 100 * HOUR + h * HOUR, h * HOUR)));
            let shifted = all.iter().map(|k| Kept {
                cno: Cno(k.cno.0 + 100),
                moment: Moment { mounted: k.moment.mounted + 100 * HOUR, ..k.moment },
                ..*k
            });
            let long: Vec<Kept> = long.into_iter().chain(shifted).collect();
            let dropped = rule.drops(now(wall, mounted + 100 * HOUR), &long);
            assert_eq!(dropped.last(), Some(&Cno(101)), "{jumps} jumps");
        }
    }
}
