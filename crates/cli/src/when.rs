//! WHEN: how a moment or a state of the past is said on the command line.
//!
//! | form | means |
//! |---|---|
//! | `41` | checkpoint 41 |
//! | `2025-06-01T14:00:00+02:00`, `...Z` | RFC 3339, with a blank for the T, too, and one before the offset |
//! | `2025-06-01`, `2025-06-01 14:00`, `2025-06-01 14:00:30` | local time of who says it |
//! | `10 minutes ago` | seconds, minutes, hours, days, weeks |
//! | anything else | the snapshot of that name |
//!
//! A time lasts as long as what was said of it: a day, a minute, a second, or a fraction of one. It stands for the newest
//! state that is not later than its end, so that a state is found by the time that is shown for it. A local time that
//! clocks showed twice is the newest of the two that is not in the future; one that they never showed is refused. What is shown for one of
//! the two has its offset, by which that one is found.

use crate::sys;
use nenrin_format::date_of;

/// A state of the past, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// The checkpoint with this number.
    Cno(u64),
    /// The snapshot with this name.
    Name(String),
    /// The newest state not later than the end of this time.
    Moment(Span),
}

/// A time as it was said: from its first to its last nanosecond, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub from: i64,
    /// The last.
    pub to: i64,
}

impl Span {
    /// A nanosecond.
    const fn instant(nanos: i64) -> Self {
        Self { from: nanos, to: nanos }
    }
    /// Of so many nanoseconds. What nanoseconds do not reach stands for all that is farther.
    fn lasting(from: i64, nanos: i64) -> Self {
        if is_far(from) { Self::instant(from) } else { Self { from, to: from.saturating_add(nanos - 1) } }
    }
}

const SECOND: i64 = 1_000_000_000;
/// In seconds.
const DAY: i64 = 86_400;

/// Understands `text`, said at `now` (nanoseconds since 1970).
///
/// # Errors
/// Text that begins like a time but is none; what is wrong with it.
pub fn parse(text: &str, now: i64) -> Result<When, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("no time, number or name given".into());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map(When::Cno).map_err(|_| format!("{text}: no checkpoint has such a number"));
    }
    if let Some(rest) = text.strip_suffix("ago").filter(|r| r.ends_with(' ')) {
        return ago(rest.trim(), now).map(|nanos| When::Moment(Span::instant(nanos))).ok_or_else(|| {
            format!("{text:?}: say it as in \"10 minutes ago\", with seconds, minutes, hours, days or weeks")
        });
    }
    if looks_like_date(text) {
        let malformed =
            || Err(format!("{text:?}: say a time as 2025-06-01, 2025-06-01 14:00[:30] or 2025-06-01T14:00:00Z"));
        return moment(text, now).unwrap_or_else(malformed).map(When::Moment);
    }
    Ok(When::Name(text.to_owned()))
}

/// The same WHEN for the owner of a volume, whose clocks may show another time: a time becomes RFC 3339 in UTC, and one that
/// lasts longer than a second its last second, or that of now where it is not over.
///
/// # Errors
/// As [`parse`].
pub fn for_owner(text: &str, now: i64) -> Result<String, String> {
    Ok(match parse(text, now)? {
        When::Moment(span) if is_far(span.from) || is_far(span.to) => text.to_owned(),
        When::Moment(Span { from, to }) => {
            // What is not over by now is not in the future for that.
            let last = if from <= now { to.min(now) } else { to };
            if to - from >= SECOND - 1 { show_utc_second(last) } else { show_utc(last) }
        }
        _ => text.to_owned(),
    })
}

/// Whether a snapshot may bear this name: another form of WHEN may not.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() > 255 {
        return Err("a snapshot's name has at most 255 bytes".into());
    }
    if name.contains(char::is_control) {
        return Err(format!("{name:?}: a snapshot's name has no control characters"));
    }
    if name.is_empty() || name.trim() != name || name.contains(['/', ',']) {
        return Err(format!("{name:?}: a snapshot's name is not empty and has no slash, comma or blank at its ends"));
    }
    if matches!(name, "." | "..") {
        return Err(format!("{name:?}: of that name there is a directory everywhere; a snapshot needs another one"));
    }
    if name.starts_with('@') || is_word_for_time(name) || !matches!(parse(name, 0), Ok(When::Name(_))) {
        return Err(format!("{name:?}: a snapshot's name must not look like a number or a time; choose another"));
    }
    Ok(())
}

/// Words that people say for a time, or for a place among all states: nobody could tell what is meant by the name. Those that have such
/// a name are found by it.
fn is_word_for_time(name: &str) -> bool {
    const WORDS: [&str; 8] = ["now", "today", "yesterday", "tomorrow", "current", "latest", "newest", "oldest"];
    let name = name.to_lowercase();
    WORDS.contains(&&*name) || name.ends_with(" ago")
}

fn ago(text: &str, now: i64) -> Option<i64> {
    let (number, unit) = text.split_once(' ')?;
    let number = digits(number, 1, 12)?;
    let unit = match unit.trim() {
        "second" | "seconds" => 1,
        "minute" | "minutes" => 60,
        "hour" | "hours" => 3600,
        "day" | "days" => 86_400,
        "week" | "weeks" => 604_800,
        _ => return None,
    };
    now.checked_sub(number.checked_mul(unit)?.checked_mul(SECOND)?)
}

fn looks_like_date(text: &str) -> bool {
    let b = text.as_bytes();
    b.len() >= 5 && b[..4].iter().all(u8::is_ascii_digit) && b[4] == b'-' && b.get(5).is_some_and(u8::is_ascii_digit)
}

/// `min` to `max` digits and nothing else.
fn digits(text: &str, min: usize, max: usize) -> Option<i64> {
    let fits = (min..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    fits.then(|| text.parse().ok())?
}

fn two(text: &str, low: i64, high: i64) -> Option<u32> {
    digits(text, 2, 2).filter(|n| (low..=high).contains(n)).map(|n| n as u32)
}

type Date = (i64, u32, u32);
type Time = (u32, u32, u32);

fn date(text: &str) -> Option<Date> {
    let mut parts = text.splitn(3, '-');
    let year = digits(parts.next()?, 4, 4)?;
    let month = two(parts.next()?, 1, 12)?;
    let day = two(parts.next()?, 1, 31)?;
    (day <= days_in(year, month)).then_some((year, month, day))
}

fn days_in(year: i64, month: u32) -> u32 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn time(text: &str) -> Option<Time> {
    let mut parts = text.splitn(3, ':');
    let hour = two(parts.next()?, 0, 23)?;
    let minute = two(parts.next()?, 0, 59)?;
    let second = parts.next().map_or(Some(0), |s| two(s, 0, 60))?;
    Some((hour, minute, second))
}

/// `None` when it is no time; the failure of one that never was.
fn moment(text: &str, now: i64) -> Option<Result<Span, String>> {
    let day = date(text.get(..10)?)?;
    let rest = &text[10..];
    let offset = |secs| sys::local_time(secs).offset;
    if rest.is_empty() {
        return Some(Ok(whole_day(days_since_1970(day) * DAY, now, &offset)));
    }
    let clock = rest.get(1..)?;
    match rest.as_bytes()[0] {
        b' ' => {
            let Some((h, m, s)) = time(clock) else {
                // As tables and messages show it, and RFC 3339 allows.
                return rfc3339(day, &with_offset_joined(clock)).map(Ok);
            };
            let shown = days_since_1970(day) * DAY + i64::from(h) * 3600 + i64::from(m) * 60 + i64::from(s);
            let lasts = if clock.len() == 5 { 60 * SECOND } else { SECOND };
            Some(local(shown, now, &offset).map(|from| Span::lasting(from, lasts)).ok_or_else(|| {
                let text = text.trim();
                let seconds = if clock.len() == 5 { ":00" } else { "" };
                let offset = show_offset(offset(shown - DAY));
                format!(
                    "{text:?}: clocks here never showed this time, since they were set forward; say it as RFC 3339 with \
                     an offset, as in {}{seconds}{offset}",
                    text.replacen(' ', "T", 1)
                )
            }))
        }
        b'T' | b't' => rfc3339(day, clock).map(Ok),
        _ => None,
    }
}

/// The day that begins with this midnight, given as if clocks showed UTC.
fn whole_day(midnight: i64, now: i64, offset: &impl Fn(i64) -> i64) -> Span {
    // Where clocks are set forward at midnight the day begins with that; where they are set back over it, the next one begins
    // before that.
    let begin = |midnight: i64, now: i64| {
        let forward = || (midnight - offset(midnight - DAY)).saturating_mul(SECOND);
        local(midnight, now, offset).unwrap_or_else(forward)
    };
    let (from, next) = (begin(midnight, now), begin(midnight + DAY, i64::MIN));
    Span::lasting(from, next.saturating_sub(from).max(1))
}

/// When clocks show this, given as if they showed UTC, in nanoseconds: the newest time not behind `now`, or else the
/// first; `None` when they never do. `offset`: seconds east of UTC at a time.
fn local(shown: i64, now: i64, offset: &impl Fn(i64) -> i64) -> Option<i64> {
    let readings: Vec<i64> = readings(shown, offset).iter().map(|secs| secs.saturating_mul(SECOND)).collect();
    readings.iter().rfind(|nanos| **nanos <= now).or(readings.first()).copied()
}

/// All times, in seconds, at which clocks show this, in order: none, one or two.
fn readings(shown: i64, offset: &impl Fn(i64) -> i64) -> Vec<i64> {
    let near = [shown.saturating_sub(DAY), shown.saturating_add(DAY)];
    let all = near.into_iter().map(|near| shown.saturating_sub(offset(near)));
    let mut all: Vec<i64> = all.filter(|secs| secs.saturating_add(offset(*secs)) == shown).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Without the one blank between a time and its offset.
fn with_offset_joined(clock: &str) -> String {
    match clock.rsplit_once(' ') {
        Some((clock, offset)) if offset.starts_with(['+', '-', 'Z', 'z']) => format!("{clock}{offset}"),
        _ => clock.to_owned(),
    }
}

/// `14:00:00[.123]` and `Z` or `+02:00`.
fn rfc3339(day: Date, clock: &str) -> Option<Span> {
    let clock = clock.to_ascii_uppercase();
    let (clock, offset) = match clock.strip_suffix('Z') {
        Some(clock) => (clock.to_owned(), 0),
        None => {
            let at = clock.rfind(['+', '-'])?;
            let (h, m) = clock[at + 1..].split_once(':')?;
            let offset = i64::from(two(h, 0, 23)?) * 3600 + i64::from(two(m, 0, 59)?) * 60;
            (clock[..at].to_owned(), if clock[at..].starts_with('-') { -offset } else { offset })
        }
    };
    let (clock, nanos, lasts) = match clock.split_once('.') {
        Some((clock, part)) => {
            let value = digits(part, 1, 9)?;
            let unit = 10i64.pow(9 - part.len() as u32);
            (clock.to_owned(), value * unit, unit)
        }
        None => (clock, 0, SECOND),
    };
    if clock.len() != 8 {
        return None;
    }
    let (h, m, s) = time(&clock)?;
    let secs = days_since_1970(day) * 86_400 + i64::from(h) * 3600 + i64::from(m) * 60 + i64::from(s) - offset;
    Some(Span::lasting(secs.saturating_mul(SECOND).saturating_add(nanos), lasts))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_1970((year, month, day): Date) -> i64 {
    // Years begin in March here, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let in_year = (153 * i64::from(month) + 2) / 5 + i64::from(day) - 1;
    365 * year + leap_days + in_year - 719_468
}

/// `@GMT-2025.06.01-14:00:30` with points for colons, as Samba names a state: the last nanosecond of that second.
pub fn parse_gmt(name: &str) -> Option<i64> {
    let (day, clock) = name.strip_prefix("@GMT-")?.split_once('-')?;
    let (day, (h, m, s)) = (date(&day.replace('.', "-"))?, time(&clock.replace('.', ":"))?);
    let plain = day.0 >= 1970 && clock.len() == 8 && name.len() == 24;
    let secs = days_since_1970(day) * 86_400 + i64::from(h) * 3600 + i64::from(m) * 60 + i64::from(s);
    plain.then(|| secs.checked_mul(SECOND)?.checked_add(SECOND - 1))?
}

/// The name that Samba gives a state of this moment.
pub fn show_gmt(nanos: i64) -> String {
    let secs = nanos.div_euclid(SECOND);
    let ((y, mo, d), day) = (date_of(secs.div_euclid(86_400)), secs.rem_euclid(86_400));
    format!("@GMT-{y:04}.{mo:02}.{d:02}-{:02}.{:02}.{:02}", day / 3600, day / 60 % 60, day % 60)
}

/// Local time for tables: `2025-06-01 14:00:30`; with its offset where clocks show it twice, so that each of the two can be asked for.
pub fn show(nanos: i64) -> String {
    let secs = nanos.div_euclid(SECOND);
    match is_doubled(secs, &|secs| sys::local_time(secs).offset) {
        true => show_zoned(nanos),
        false => show_plain(secs),
    }
}

/// Whether clocks show this time once more, before or after.
fn is_doubled(secs: i64, offset: &impl Fn(i64) -> i64) -> bool {
    readings(secs.saturating_add(offset(secs)), offset).len() > 1
}

fn show_plain(secs: i64) -> String {
    let l = sys::local_time(secs);
    let ((y, mo, d), (h, m, s)) = (l.date, l.time);
    format!("{y:04}-{mo:02}-{d:02} {h:02}:{m:02}:{s:02}")
}

/// Local time for messages that may be read where clocks show another: `2025-06-01 14:00:30 +02:00`.
pub fn show_zoned(nanos: i64) -> String {
    let secs = nanos.div_euclid(SECOND);
    format!("{} {}", show_plain(secs), show_offset(sys::local_time(secs).offset))
}

/// As [`show_zoned`]; what nanoseconds do not reach, as it was said.
pub fn show_said(nanos: i64, text: &str) -> String {
    if is_far(nanos) { text.trim().to_owned() } else { show_zoned(nanos) }
}

/// Whether it is as far as nanoseconds reach, and stands for all that is farther.
fn is_far(nanos: i64) -> bool {
    nanos / SECOND == i64::MAX / SECOND || nanos / SECOND == i64::MIN / SECOND
}

fn show_offset(offset: i64) -> String {
    let (sign, offset) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
    format!("{sign}{:02}:{:02}", offset / 3600, offset / 60 % 60)
}

/// RFC 3339 in UTC, to the nanosecond.
fn show_utc(nanos: i64) -> String {
    let second = show_utc_second(nanos);
    format!("{}.{:09}Z", second.trim_end_matches('Z'), nanos.rem_euclid(SECOND))
}

/// RFC 3339 in UTC: the whole second.
fn show_utc_second(nanos: i64) -> String {
    let secs = nanos.div_euclid(SECOND);
    let ((y, mo, d), day) = (date_of(secs.div_euclid(DAY)), secs.rem_euclid(DAY));
    format!("{y:04}-{mo:02}-{d:02}T{:02}:{:02}:{:02}Z", day / 3600, day / 60 % 60, day % 60)
}

/// RFC 3339 with the local offset, for --json and logs.
pub fn show_rfc3339(nanos: i64) -> String {
    let l = sys::local_time(nanos.div_euclid(SECOND));
    let ((y, mo, d), (h, m, s)) = (l.date, l.time);
    let part = nanos.rem_euclid(SECOND);
    let offset = show_offset(l.offset);
    format!("{y:04}-{mo:02}-{d:02}T{h:02}:{m:02}:{s:02}.{part:09}{offset}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_750_000_000 * SECOND;

    #[test]
    fn numbers_and_names() {
        assert_eq!(parse("41", NOW), Ok(When::Cno(41)));
        assert_eq!(parse(" 0 ", NOW), Ok(When::Cno(0)));
        assert_eq!(parse("monday", NOW), Ok(When::Name("monday".into())));
        assert_eq!(parse("before ago-go", NOW), Ok(When::Name("before ago-go".into())));
        assert_eq!(parse("年輪", NOW), Ok(When::Name("年輪".into())));
        assert!(parse("", NOW).is_err());
        assert!(parse("99999999999999999999999", NOW).is_err());
    }

    #[test]
    fn relative_times() {
        for (text, secs) in [
            ("10 seconds ago", 10),
            ("1 second ago", 1),
            ("10 minutes ago", 600),
            ("1 minute ago", 60),
            ("2 hours ago", 7200),
            ("3 days ago", 259_200),
            ("1 day ago", 86_400),
            ("2 weeks ago", 1_209_600),
        ] {
            assert_eq!(parse(text, NOW), Ok(When::Moment(Span::instant(NOW - secs * SECOND))), "{text}");
        }
        for text in ["ten minutes ago", "10 months ago", "-1 days ago", "10 ago", "999999999999 days ago"] {
            assert!(parse(text, NOW).is_err(), "{text}");
        }
    }

    #[test]
    fn rfc_3339() {
        for (text, secs, nanos, last) in [
            ("1970-01-01T00:00:00Z", 0, 0, 999_999_999),
            ("2000-03-01T00:00:00Z", 951_868_800, 0, 999_999_999),
            ("2024-02-29T12:00:00+02:00", 1_709_200_800, 0, 999_999_999),
            ("2025-06-15T15:06:40.25Z", 1_750_000_000, 250_000_000, 259_999_999),
            ("2025-06-15T15:06:40.250000000Z", 1_750_000_000, 250_000_000, 250_000_000),
            ("2025-06-15t10:36:40-04:30", 1_750_000_000, 0, 999_999_999),
            ("1969-12-31T23:59:59Z", -1, 0, 999_999_999),
            ("2025-06-15 15:06:40Z", 1_750_000_000, 0, 999_999_999),
            ("2025-06-15 10:36:40-04:30", 1_750_000_000, 0, 999_999_999),
            ("2025-06-15 10:36:40 -04:30", 1_750_000_000, 0, 999_999_999),
            ("2025-06-15 15:06:40.25 Z", 1_750_000_000, 250_000_000, 259_999_999),
        ] {
            let span = Span { from: secs * SECOND + nanos, to: secs * SECOND + last };
            assert_eq!(parse(text, NOW), Ok(When::Moment(span)), "{text}");
        }
        for text in [
            "2025-06-15T15:06:40",
            "2025-06-15T15:06Z",
            "2025-13-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2025-06-15T25:00:00Z",
            "2025-06-15T15:06:40+2:00",
            "2025-06-15T15:06:40.Z",
            "2025-6-1",
            "2025-06-15x",
            "2025-06-15é",
            "2025-06-15 15",
            "2025-06-15 15:06:40 +2",
            "2025-06-15 15:06 Z",
            "2025-06-15 15:06:40  Z",
            "2025-06-15 15:06:40 UTC",
        ] {
            assert!(parse(text, NOW).is_err(), "{text}");
        }
    }

    fn span(text: &str, now: i64) -> Span {
        let Ok(When::Moment(span)) = parse(text, now) else { panic!("{text}") };
        span
    }

    #[test]
    fn local_times_come_back() {
        for text in ["2025-06-01 14:00:30", "1999-12-31 23:59:59", "2040-01-01 00:00:00"] {
            let Span { from, to } = span(text, NOW);
            assert_eq!((show(from), show(to)), (text.to_owned(), text.to_owned()));
            assert_eq!(to - from, SECOND - 1);
            assert_eq!(span(&show_rfc3339(from + 5), NOW), Span::instant(from + 5), "{text}");
            assert_eq!(span(&show_zoned(from), NOW), Span { from, to }, "{text}");
        }
        for (text, first, last) in [
            ("2025-06-01", "2025-06-01 00:00:00", "2025-06-01 23:59:59"),
            ("2024-12-31", "2024-12-31 00:00:00", "2024-12-31 23:59:59"),
            ("2025-06-01 14:07", "2025-06-01 14:07:00", "2025-06-01 14:07:59"),
        ] {
            let Span { from, to } = span(text, NOW);
            assert_eq!((show(from), show(to), show(to + 1) == last), (first.to_owned(), last.to_owned(), false));
        }
    }

    #[test]
    fn a_time_means_the_same_to_the_owner() {
        for text in ["2025-06-01 14:00:30", "10 minutes ago", "2025-06-15t10:36:40.000000001-04:30"] {
            let sent = for_owner(text, NOW).unwrap();
            assert!(sent.ends_with('Z'), "{text}: {sent}");
            assert_eq!(span(&sent, 0), span(text, NOW), "{text}: {sent}");
        }
        for text in ["2025-06-01", "1969-12-31", "2025-06-01 14:00", "2025-06-15T10:36:40.25Z"] {
            let sent = for_owner(text, NOW).unwrap();
            assert_eq!(span(&sent, 0).to, span(text, NOW).to, "{text}: {sent}");
        }
        assert_eq!(for_owner("2024-02-29T12:00:00.5+02:00", NOW).unwrap(), "2024-02-29T10:00:00.599999999Z");
        for text in ["41", "monday", "9999-12-31", "0001-01-01"] {
            assert_eq!(for_owner(text, NOW).unwrap(), text);
        }
        assert!(for_owner("10 months ago", NOW).is_err());
    }

    #[test]
    fn what_is_not_over_is_not_in_the_future_to_the_owner() {
        let [day, minute, second] = [10, 16, 19].map(|len| show(NOW)[..len].to_owned());
        let offset = show_offset(sys::local_time(NOW / SECOND).offset);
        let tenth = format!("{}.7{offset}", second.replace(' ', "T"));
        for text in [day, minute, second, tenth] {
            let now = NOW + 7 * SECOND / 10 + 5;
            let Span { from, to } = span(&for_owner(&text, now).unwrap(), now);
            assert!(from <= now && now <= to && to <= span(&text, now).to, "{text}: {from} {to}");
        }
    }

    /// Clocks that go back at 10,000 seconds by an hour, and forward again at 1,000,000.
    #[test]
    fn times_that_clocks_show_twice_or_never() {
        let offset = |secs: i64| if (10_000..1_000_000).contains(&secs) { 0 } else { 3600 };
        let at = |shown: i64, now: i64| local(shown, now * SECOND, &offset).map(|nanos| nanos / SECOND);
        assert_eq!(at(9_000, 2_000_000), Some(5_400), "once, before");
        assert_eq!(at(20_000, 2_000_000), Some(20_000), "once, behind");
        assert_eq!(at(12_000, 2_000_000), Some(12_000), "twice: the newest");
        assert_eq!(at(12_000, 12_000), Some(12_000));
        assert_eq!(at(12_000, 11_999), Some(8_400), "but for one that is in the future");
        assert_eq!(at(12_000, 0), Some(8_400));
        // A day behind which clocks are set back over midnight ends with the first of the two.
        let day = whole_day(12_000 - DAY, 2_000_000 * SECOND, &offset);
        assert_eq!(day, Span { from: (8_400 - DAY) * SECOND, to: 8_400 * SECOND - 1 });
        for never in [1_000_000, 1_003_599] {
            assert_eq!(at(never, 2_000_000), None, "{never}");
        }
        assert_eq!((at(999_999, 2_000_000), at(1_003_600, 2_000_000)), (Some(999_999), Some(1_000_000)));
        // What is shown for a time that comes twice says which of the two it is.
        let doubled = |secs: i64| is_doubled(secs, &offset);
        assert_eq!([6_399, 6_400, 9_999].map(doubled), [false, true, true], "before");
        assert_eq!([10_000, 13_599, 13_600].map(doubled), [true, true, false], "behind");
        assert!(!doubled(999_999) && !doubled(1_000_000));
    }

    #[test]
    fn times_that_no_volume_reaches() {
        for (text, nanos) in [("9999-12-31", i64::MAX), ("0001-01-01", i64::MIN), ("9999-12-31T00:00:00Z", i64::MAX)] {
            assert_eq!(parse(text, NOW), Ok(When::Moment(Span::instant(nanos))), "{text}");
            assert_eq!(show_said(nanos, text), text);
        }
    }

    #[test]
    fn names_as_samba_has_them() {
        assert_eq!(show_gmt(0), "@GMT-1970.01.01-00.00.00");
        assert_eq!(show_gmt(951_782_400 * SECOND + 5), "@GMT-2000.02.29-00.00.00");
        for secs in (0..5_000_000_000).step_by(86_400 * 17 + 12_345) {
            assert_eq!(parse_gmt(&show_gmt(secs * SECOND)), Some(secs * SECOND + SECOND - 1));
        }
        for name in [
            "",
            "@GMT-",
            "@GMT-2025.06.01",
            "@GMT-2025.06.01-14.00",
            "@GMT-2025.6.1-14.00.00",
            "@GMT-2025-06.01-14.00.00x",
        ] {
            assert_eq!(parse_gmt(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_snapshots() {
        for name in ["monday", "before upgrade", "v1.2", "2025", "年輪"] {
            assert_eq!(check_name(name).is_ok(), name != "2025", "{name}");
        }
        for name in
            ["", ".", "..", " x", "a/b", "a,b", "a\nb", "2025-06-01", "3 days ago", "Now", "@7", &"x".repeat(256)]
        {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
