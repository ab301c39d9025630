//! A slot table for connections: a [`Token`] finds only its own entry, never
//! another one that used or uses the same slot.

use crate::token::Token;

/// The slot table.
#[derive(Debug)]
pub struct Slots<T> {
    /// How often each slot has been used, and its value.
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    used: usize,
    /// The slot at which [`find`](Slots::find) continues.
    hand: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new(), used: 0, hand: 0 }
    }
}

impl<T> Slots<T> {
    /// Inserts a value and returns its token.
    pub fn insert(&mut self, value: T) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let (generation, slot) = &mut self.slots[index as usize];
        *slot = Some(value);
        self.used += 1;
        Token { index, generation: *generation }
    }

    /// Returns the value with this token, if it still exists.
    pub fn get(&mut self, token: Token) -> Option<&mut T> {
        match self.slots.get_mut(token.index as usize) {
            Some((generation, slot)) if *generation == token.generation => slot.as_mut(),
            _ => None,
        }
    }

    /// Removes the value with this token.
    pub fn remove(&mut self, token: Token) -> Option<T> {
        let (generation, slot) = self.slots.get_mut(token.index as usize)?;
        let value = slot.take_if(|_| *generation == token.generation)?;
        // Wraps long before a stale token could match; the largest is not used, because its numbers have other uses.
        *generation = (*generation + 1) % (u32::MAX - 1);
        self.free.push(token.index);
        self.used -= 1;
        Some(value)
    }

    /// Returns the number of values.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns the tokens of all values.
    pub fn tokens(&self) -> Vec<Token> {
        let all = (0..).zip(&self.slots).filter(|(_, (_, slot))| slot.is_some());
        all.map(|(index, (generation, _))| Token { index, generation: *generation }).collect()
    }

    /// Returns all values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, slot)| slot.as_ref())
    }

    /// Finds the next value that matches. Inspects a bounded number of slots, continuing where the last call stopped,
    /// so that a full table is not scanned as a whole.
    pub fn find(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<Token> {
        for _ in 0..self.slots.len().min(PLACES_A_LOOK) {
            self.hand = (self.hand + 1) % self.slots.len();
            let (generation, slot) = &self.slots[self.hand];
            if slot.as_ref().is_some_and(&is_wanted) {
                return Some(Token { index: self.hand as u32, generation: *generation });
            }
        }
        None
    }

    /// Returns the memory that the table itself uses, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<(u32, Option<T>)>() + self.free.capacity() * size_of::<u32>()
    }
}

const PLACES_A_LOOK: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_does_not_match_next_occupant() {
        let mut slots = Slots::default();
        let (a, b) = (slots.insert("a"), slots.insert("b"));
        assert_eq!((slots.get(a).copied(), slots.used()), (Some("a"), 2));
        assert_eq!((slots.remove(a), slots.remove(a)), (Some("a"), None));
        let c = slots.insert("c");
        assert!(c.index == a.index && c != a);
        assert_eq!((slots.get(a).copied(), slots.get(c).copied(), slots.used()), (None, Some("c"), 2));
        assert_eq!(slots.tokens(), [c, b]);
        assert_eq!(slots.iter().collect::<Vec<_>>(), [&"c", &"b"]);
    }

    #[test]
    fn find_is_round_robin() {
        let mut slots = Slots::default();
        let tokens: Vec<Token> = (0..3).map(|n| slots.insert(n)).collect();
        let found: Vec<Token> = (0..6).map(|_| slots.find(|_| true).unwrap()).collect();
        assert_eq!(found, [1, 2, 0, 1, 2, 0].map(|n: usize| tokens[n]));
        assert_eq!(slots.find(|&n| n == 9), None);
    }
}
