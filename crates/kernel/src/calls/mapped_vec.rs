//! Growing list in separately mapped pages, for code that must not allocate by the C library.
//!
//! File-level obligation: `range`, if there is one, is mapped readable and writable, belongs to the
//! value alone, and holds `length` initialised items from its start on.

#![allow(unsafe_code)]

use megapage_inside::{Errno, Reservation};
use megapage_units::BASE_PAGE;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// List of plain values. It doubles its room each time it is full, and releases its pages when it
/// is dropped.
#[derive(Debug)]
pub struct MappedVec<T: Copy> {
    range: Option<Reservation>,
    length: usize,
    items: PhantomData<T>,
}

impl<T: Copy> MappedVec<T> {
    /// Returns an empty list, which takes no page.
    pub const fn new() -> MappedVec<T> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= BASE_PAGE) };
        MappedVec { range: None, length: 0, items: PhantomData }
    }

    /// Adds an item. ENOMEM if the kernel gives no more pages; the list is unchanged then.
    pub fn push(&mut self, item: T) -> Result<(), Errno> {
        let length = self.length;
        if length == self.places().len() {
            let bytes = (2 * length + 1) * size_of::<T>();
            let range = Reservation::new(bytes.next_multiple_of(BASE_PAGE), BASE_PAGE)?;
            range.open()?;
            let mut more = MappedVec { range: Some(range), length, items: PhantomData };
            more.places()[..length].copy_from_slice(self.places());
            *self = more;
        }
        self.places()[length].write(item);
        self.length += 1;
        Ok(())
    }

    /// Returns the places for items, including those after the last item.
    fn places(&mut self) -> &mut [MaybeUninit<T>] {
        let room = self.range.as_ref().map_or(0, |range| range.len()) / size_of::<T>();
        // SAFETY: the pages have room for this many items, are writable, and begin aligned; the
        // borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast_mut().cast(), room) }
    }

    fn as_ptr(&self) -> *const T {
        self.range.as_ref().map_or(ptr::dangling(), |range| range.address().cast::<T>().cast_const())
    }
}

impl<T: Copy> std::ops::Deref for MappedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `length` items are initialised (see the header), and live as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }
}

impl<T: Copy> std::ops::DerefMut for MappedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().cast_mut(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_pushed() {
        let mut list = MappedVec::new();
        assert!(list.is_empty() && list.range.is_none());
        for number in 0..5000u64 {
            list.push((number, !number, 7u8)).unwrap();
        }
        assert_eq!(list.len(), 5000);
        assert!(list.iter().zip(0..).all(|(item, number)| *item == (number, !number, 7)));
        list[4999].0 = 1;
        assert_eq!(list.last(), Some(&(1, !4999, 7)));
    }
}
