//! FlexS against small run queues: worked cases of the detector and of the search, what must hold for
//! every input, and how well synthetic spinning is told from computing.

mod detector;
mod properties;
mod queues;
mod search;
