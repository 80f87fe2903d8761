//! The switch that turns megapage off: one variable, or one file.

use crate::environment::{MAX_VALUE, environment_variable};
use crate::own_values::Descriptor;
use std::ffi::CStr;

/// Environment variable: with the value [`OFF`] nothing of megapage acts.
pub const OFF_VARIABLE: &str = "MEGAPAGE";
/// Value of [`OFF_VARIABLE`] that switches megapage off.
pub const OFF: &CStr = c"off";
/// While this file exists nothing of megapage acts, from the next start of each program on.
pub const OFF_FILE: &CStr = c"/etc/megapage/off";

/// Returns true if this program is to run as without megapage. Allocates nothing; for use before
/// `main`, with one thread.
pub fn is_off() -> bool {
    let mut buffer = [0; MAX_VALUE];
    environment_variable(OFF_VARIABLE, &mut buffer) == Some(OFF)
        || Descriptor::open_for(OFF_FILE, libc::O_PATH).is_ok()
}
