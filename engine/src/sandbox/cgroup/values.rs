//! Limits as the kernel's files spell them. Pure.

/// The highest pid number there can be (`PID_MAX_LIMIT`): `pids.max` refuses more, and more would cap nothing.
const PIDS_HIGHEST: u64 = 4_194_304;
/// The highest quota that the scheduler takes, in microseconds (`MAX_BW`).
const QUOTA_HIGHEST: u64 = (1 << 44) - 1;

/// `pids.max` for `asked` tasks of the code's beside `own_tasks` of the engine's.
pub(super) fn pids_max(asked: Option<u64>, own_tasks: u64) -> Option<u64> {
    asked
        .map(|asked| asked.saturating_add(own_tasks))
        .filter(|max| *max <= PIDS_HIGHEST)
}

/// A number, or what v2 and every `pids.max` write for no limit.
pub(super) fn or_max(value: Option<u64>) -> String {
    value.map_or_else(|| "max".into(), |value| value.to_string())
}

/// A number, or what v1 writes for no limit.
pub(super) fn or_minus_one(value: Option<u64>) -> String {
    value.map_or_else(|| "-1".into(), |value| value.to_string())
}

/// Run time in each period, microseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Bandwidth {
    pub(super) quota: u64,
    pub(super) period: u64,
}

impl Bandwidth {
    /// The bandwidth for thousandths of a core.
    pub(super) fn of(millicores: u64) -> Self {
        // The kernel takes no quota below 1 ms and no period above 1 s; a short period keeps pauses short.
        let period: u64 = if millicores < 10 { 1_000_000 } else { 100_000 };
        let quota = millicores
            .max(1)
            .saturating_mul(period / 1000)
            .min(QUOTA_HIGHEST);
        Self { quota, period }
    }
}

/// The number after `key` in a file of `key value` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The number that a file holds; none for `max`.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_tasks_do_not_count_against_the_codes() {
        assert_eq!(or_max(pids_max(Some(64), 2)), "66");
        assert_eq!(or_max(pids_max(None, 2)), "max");
    }

    #[test]
    fn more_tasks_than_the_kernel_can_number_are_no_limit() {
        assert_eq!(pids_max(Some(4_194_304), 0), Some(4_194_304));
        assert_eq!(pids_max(Some(4_194_304), 1), None);
        assert_eq!(pids_max(Some(u64::MAX), 1), None);
    }

    #[test]
    fn every_quota_is_one_that_the_kernel_takes() {
        for millicores in [0, 1, 9, 10, 500, 1000, 64_000, u64::MAX] {
            let bandwidth = Bandwidth::of(millicores);
            assert!(bandwidth.quota >= 1000, "{millicores}: {bandwidth:?}");
            assert!(bandwidth.quota <= QUOTA_HIGHEST);
            assert!((1000..=1_000_000).contains(&bandwidth.period));
        }
    }

    #[test]
    fn half_a_core_is_half_of_each_period() {
        assert_eq!(
            Bandwidth::of(500),
            Bandwidth {
                quota: 50_000,
                period: 100_000
            }
        );
        assert_eq!(
            Bandwidth::of(5),
            Bandwidth {
                quota: 5_000,
                period: 1_000_000
            }
        );
    }

    #[test]
    fn keys_are_matched_whole() {
        let text = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(keyed(text, "oom"), Some(3));
        assert_eq!(keyed(text, "oom_kill"), Some(2));
        assert_eq!(keyed(text, "kill"), None);
        assert_eq!(number("max\n"), None);
        assert_eq!(number("12\n"), Some(12));
    }
}
