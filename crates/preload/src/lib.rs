//! libmegapage.so: malloc for unmodified programs, on huge pages.
