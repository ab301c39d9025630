//! A list that is nearly always empty, and costs a word then: a connection has several.

use std::ops::{Deref, DerefMut};

/// A list of a few elements.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "an empty list is one word, not three")]
pub struct Few<T>(Option<Box<Vec<T>>>);

impl<T> Few<T> {
    /// An empty list.
    pub const fn new() -> Few<T> {
        Few(None)
    }

    /// Appends an element.
    pub fn push(&mut self, element: T) {
        self.0.get_or_insert_default().push(element);
    }

    /// Removes the element at `index`, which the last one replaces.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn swap_remove(&mut self, index: usize) -> T {
        let Some(list) = &mut self.0 else { panic!("element {index} of an empty list") };
        let element = list.swap_remove(index);
        self.0.take_if(|list| list.is_empty());
        element
    }

    /// Keeps the elements for which `keeps` returns true.
    pub fn retain(&mut self, keeps: impl FnMut(&T) -> bool) {
        if let Some(list) = &mut self.0 {
            list.retain(keeps);
            self.0.take_if(|list| list.is_empty());
        }
    }

    /// Removes all elements.
    pub fn take(&mut self) -> Vec<T> {
        self.0.take().map_or_else(Vec::new, |list| *list)
    }
}

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few::new()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], Vec::as_mut_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_list_is_one_word() {
        let mut few = Few::new();
        assert_eq!((size_of_val(&few), few.len()), (size_of::<usize>(), 0));
        (0..5).for_each(|n| few.push(n));
        few.retain(|n| n % 2 == 0);
        assert_eq!((few.swap_remove(0), &few[..]), (0, &[4, 2][..]));
        few.retain(|_| false);
        assert!(few.0.is_none() && few.take().is_empty());
    }
}
