//! Settings of Gleaner in a scenario: the paper's, ours, and refused ones.

use crate::common::{HOG, scenario};
use tandem_policy::gleaner::{ConsolidationConfig, ControllerConfig, RetentionConfig};
use tandem_sim::scenario::load::{Setting, Source};
use tandem_sim::scenario::{Control, Remedies};

/// A scenario with one VM.
fn text() -> String {
    format!(
        "duration = \"4s\"\n[machine]\npcpus = 2\n{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"\n"
    )
}

/// The settings that result from this table.
fn control(gleaner: &str) -> Control {
    let scenario = scenario(&text(), &[&format!("vm.a.gleaner={gleaner}")]);
    let agent = scenario.vms[0].guest.agent.as_ref();
    agent.unwrap().control.clone()
}

#[test]
fn control_selects_default_settings() {
    assert_eq!(
        control("{ control = \"paper\" }"),
        Control::Paper(Remedies {
            consolidation: Some(ConsolidationConfig::paper()),
            retention: Some(RetentionConfig::paper()),
        })
    );
    let ours = Control::Ours(Remedies {
        consolidation: Some(ConsolidationConfig::default()),
        retention: Some(RetentionConfig::default()),
    });
    for gleaner in ["true", "{}", "{ control = \"ours\" }"] {
        assert_eq!(control(gleaner), ours, "{gleaner}");
    }
    assert_eq!(control("{ control = \"agent\" }"), Control::Agent(ControllerConfig::default()));
    let Control::Ours(remedies) = control("{ consolidate = false }") else {
        panic!("not ours");
    };
    assert_eq!(remedies.consolidation, None);
    assert_eq!(remedies.retention, Some(RetentionConfig::default()));
    assert_eq!(
        control("{ control = \"paper\", retain = false, confirm = 3 }"),
        Control::Paper(Remedies {
            consolidation: Some(ConsolidationConfig { confirm: 3, ..ConsolidationConfig::paper() }),
            retention: None,
        })
    );
}

#[test]
fn old_name_is_read_and_ineffective_setting_refused() {
    assert_eq!(control("{ timeout = \"70us\" }"), control("{ round_trip = \"70us\" }"));
    let error = |gleaner: &str| {
        let mut source = Source::from_text("test.toml", &text()).unwrap();
        source.set(Setting::new("vm.a.gleaner", gleaner));
        source.scenario().unwrap_err().to_string()
    };
    let both = error("{ round_trip = \"70us\", timeout = \"80us\" }");
    assert!(both.contains("old name of round_trip"), "{both}");
    let ignored = error("{ control = \"paper\", most_stolen = 0.1 }");
    assert!(ignored.contains("does not look at stolen time"), "{ignored}");
}
