//! Capabilities on their way to none, or to the few that the caller has the code keep. A new user namespace gives all of them again, and its own way back: whoever makes
//! one starts anew.

use std::io;

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::spec::Capabilities;

/// No uid gives a capability, and nothing can change that.
pub fn lock_securebits() -> io::Result<()> {
    Ok(set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
    )?)
}

/// No program that is executed can have one but `kept`. What this process has now it keeps.
pub fn drop_bounding_set(kept: Capabilities) -> io::Result<()> {
    for number in 0..64 {
        if kept.bits() >> number & 1 == 1 {
            continue;
        }
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability of this kernel.
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Leaves this process `kept`, and what it executes too, whoever it is.
pub fn drop_others(kept: Capabilities) -> io::Result<()> {
    clear_ambient_capability_set()?;
    let set = CapabilitySet::from_bits_retain(kept.bits());
    set_capabilities(
        None,
        CapabilitySets {
            effective: set,
            permitted: set,
            inheritable: set,
        },
    )?;
    for capability in set.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}
