//! Files of the kernel and of the system, and values of the machine. A setting that has a reader
//! here is also written here.

pub mod accounting;
pub(crate) mod base_pages;
pub mod buddyinfo;
pub mod cgroup;
pub(crate) mod cpu_time;
pub(crate) mod cpuid;
pub mod file_locks;
pub mod glibc;
pub mod hugetlb;
pub mod hugetlb_users;
pub mod identity;
pub mod json_path;
pub mod kpageflags;
pub mod limits;
pub(crate) mod machine;
pub mod maps;
pub(crate) mod meminfo;
pub mod memory_nodes;
pub mod mounts;
pub mod numa;
pub mod object;
pub mod off;
pub mod page_reporting;
pub mod pageblocks;
pub mod pagemap;
pub mod pressure;
pub mod process;
pub mod program_file;
pub mod remote_read;
pub mod smaps;
pub mod thp;
pub mod vmstat;
