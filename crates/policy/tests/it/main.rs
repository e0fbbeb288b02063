//! Tests of policies and controllers, in one program because each program is linked with the whole crate.

mod apart;
mod asymmetric;
mod asymmetric_resolver;
mod control_law;
mod flexs;
mod flexs_policy;
mod flexw;
mod gleaner;
mod gleaner_contention;
mod gleaner_controller;
mod host_controller;
mod levels;
mod scalability;
mod test_host;
mod turns;
mod turns_gaming;
mod turns_policy;
