//! Numbers of entities, run queues and groups, and tables indexed by them.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// None.
            pub const NIL: $name = $name(u32::MAX);

            /// The number, or `None` for [`Self::NIL`].
            #[inline]
            pub fn get(self) -> Option<$name> {
                (self != $name::NIL).then_some(self)
            }
        }

        impl From<$name> for usize {
            #[inline]
            fn from(id: $name) -> usize {
                id.0 as usize
            }
        }

        impl From<u32> for $name {
            fn from(number: u32) -> $name {
                $name(number)
            }
        }
    };
}

id! {
    /// A scheduling entity: a task (vCPU or thread) or a group on a CPU.
    EntityId
}
id! {
    /// A run queue.
    QueueId
}
id! {
    /// A group of tasks on all CPUs (task_group).
    GroupId
}

/// Rows indexed by a type of numbers.
#[derive(Clone, Debug)]
pub struct Table<I, T>(Vec<T>, PhantomData<I>);

impl<I: From<u32>, T> Table<I, T> {
    /// Appends a row and returns its number.
    pub fn push(&mut self, row: T) -> I {
        self.0.push(row);
        I::from(self.0.len() as u32 - 1)
    }

    /// All rows.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Number of rows.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Table<I, T> {
        Table(Vec::new(), PhantomData)
    }
}

#[cfg(test)]
impl<I, T> FromIterator<T> for Table<I, T> {
    fn from_iter<R: IntoIterator<Item = T>>(rows: R) -> Table<I, T> {
        Table(rows.into_iter().collect(), PhantomData)
    }
}

impl<I: Into<usize>, T> Index<I> for Table<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, id: I) -> &T {
        &self.0[id.into()]
    }
}

impl<I: Into<usize>, T> IndexMut<I> for Table<I, T> {
    #[inline]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.0[id.into()]
    }
}
