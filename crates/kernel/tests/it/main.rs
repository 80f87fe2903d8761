//! The integration tests of this crate, as one program: it is linked once.

mod held_under_never;
mod hugetlb_users;
mod locked_calls;
mod locked_process;
mod oracle;
