//! FlexS on small run queues: worked cases of the detector and of the search, properties for
//! every input, and the detection rate of synthetic spinning.

mod detector;
mod properties;
mod queues;
mod search;
