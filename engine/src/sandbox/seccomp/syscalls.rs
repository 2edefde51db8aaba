//! The names and numbers of every syscall, for each architecture that the engine runs on.
//!
//! The tests compile both tables, so that the policy for one architecture is tested on the other. A number that is
//! in no table is unknown to the policy and therefore refused with ENOSYS.

#[cfg(any(test, target_arch = "aarch64"))]
mod aarch64;
#[cfg(any(test, target_arch = "x86_64"))]
mod x86_64;

use std::ops::RangeInclusive;

/// What a filter must know about the architecture that it guards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Architecture {
    /// The word in `seccomp_data.arch` of a native call (`linux/audit.h`).
    pub(super) audit: u32,
    /// Number and name of each native syscall, in order of number.
    pub(super) table: &'static [(u32, &'static str)],
    /// Numbers that carry the native audit word but enter by another ABI.
    pub(super) other_abi: Option<RangeBounds>,
}

/// First and last number of a span.
pub(super) type RangeBounds = (u32, u32);

/// The x32 ABI shares the audit word of x86_64 and marks its calls with bit 30 (`__X32_SYSCALL_BIT`). Numbers with
/// bit 31 are negative, belong to no ABI, and are left to the default.
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) static X86_64: Architecture = Architecture {
    audit: 0xc000_003e,
    table: x86_64::TABLE,
    other_abi: Some((0x4000_0000, 0x7fff_ffff)),
};

#[cfg(any(test, target_arch = "aarch64"))]
pub(super) static AARCH64: Architecture = Architecture {
    audit: 0xc000_00b7,
    table: aarch64::TABLE,
    other_abi: None,
};

/// The architecture that this engine is built for.
#[cfg(target_arch = "x86_64")]
pub(super) static NATIVE: &Architecture = &X86_64;
#[cfg(target_arch = "aarch64")]
pub(super) static NATIVE: &Architecture = &AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the seccomp policy is reviewed for x86_64 and aarch64 only");

impl Architecture {
    /// The name of the native syscall `nr`.
    pub(super) fn name(&self, nr: u32) -> Option<&'static str> {
        let at = self
            .table
            .binary_search_by_key(&nr, |(number, _)| *number)
            .ok()?;
        self.table.get(at).map(|(_, name)| *name)
    }

    /// Whether `nr` enters by an ABI that shares the native audit word.
    pub(super) fn is_other_abi(&self, nr: u32) -> bool {
        self.other_abi
            .is_some_and(|(first, last)| RangeInclusive::new(first, last).contains(&nr))
    }
}
