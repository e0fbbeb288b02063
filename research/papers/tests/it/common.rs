//! Small simulated worlds for tests, from TOML.
#![allow(dead_code)]

use tandem_sim::scenario::load::{Setting, Source};
use tandem_sim::trace::TraceEvent;
use tandem_sim::{Results, World};

/// A scenario from its text, with settings as on the command line.
pub fn scenario(text: &str, settings: &[&str]) -> tandem_sim::Scenario {
    let mut source = Source::from_text("test.toml", text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for setting in settings {
        source.set(Setting::parse(setting).unwrap_or_else(|e| panic!("{setting}: {e}")));
    }
    source.scenario().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Runs a scenario.
pub fn run(text: &str, settings: &[&str]) -> Results {
    World::new(&scenario(text, settings)).run()
}

/// Runs a scenario and records it.
pub fn traced(text: &str, settings: &[&str]) -> (Results, Vec<TraceEvent>) {
    let mut world = World::new(&scenario(text, settings));
    world.record_trace(10_000_000);
    let results = world.run();
    (results, world.take_trace().1)
}
