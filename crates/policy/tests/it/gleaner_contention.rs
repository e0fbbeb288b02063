//! Consolidation of programs that wait for locks without sleeping: they are busy all the time,
//! and only their code shows it.

use tandem_model::Nanos;
use tandem_policy::gleaner::consolidation::{Because, SamplingDetail};
use tandem_policy::gleaner::{Code, Consolidation, ConsolidationConfig, Observation, VcpuPeriod};

const PERIOD: Nanos = Nanos::from_millis(100);

/// `active` vCPUs without an idle moment.
fn busy(active: u32) -> Observation {
    let vcpu = VcpuPeriod { work: PERIOD, ..VcpuPeriod::default() };
    Observation {
        period: PERIOD,
        vcpus: vec![vcpu; active as usize],
        switches: 50,
        ..Observation::default()
    }
}

/// 200 samples a vCPU: of each 100, these numbers in four lines of code from `address` on, the
/// others in the kernel's code of waiting for locks.
fn code(active: u32, address: u64, lines: [u32; 4]) -> Code {
    let mut code = Code::new(PERIOD);
    for _ in 0..2 * active {
        for (line, found) in lines.iter().enumerate() {
            for _ in 0..*found {
                code.in_user(address + 64 * line as u64);
            }
        }
        for _ in lines.iter().sum::<u32>()..100 {
            code.in_kernel(true);
        }
    }
    code
}

/// All threads want one lock: on one vCPU they do not wait for it.
fn mutex(active: u32) -> Code {
    match active {
        1 => code(1, 0, [30, 30, 20, 20]),
        many => code(many, 0, [5, 5, 20, 20]),
    }
}

/// Threads wait for a lock for less of their time, and do everything else in parallel.
fn scaling(active: u32) -> Code {
    match active {
        1 => code(1, 0, [35, 25, 25, 15]),
        many => code(many, 0, [25, 20, 20, 15]),
    }
}

/// Other code, without any lock.
fn computing(active: u32) -> Code {
    code(active, 1 << 20, [25; 4])
}

fn controller(vcpus: u32) -> Consolidation {
    let config = ConsolidationConfig { tolerance: -0.05, ..ConsolidationConfig::default() };
    Consolidation::new(vcpus, config)
}

/// Runs a program for some periods; returns vCPUs and reason after each, and the number of samplings.
fn run(
    controller: &mut Consolidation,
    program: fn(u32) -> Code,
    periods: usize,
) -> (Vec<(u32, Because)>, usize) {
    let mut samplings = 0;
    let choices = (0..periods)
        .map(|_| {
            let active = controller.active();
            if controller.wants_code().is_some() {
                samplings += 1;
                controller.saw(&program(active));
            }
            let choice = controller.decide(&busy(active));
            (choice.active, choice.because)
        })
        .collect();
    (choices, samplings)
}

#[test]
fn lock_waiters_are_consolidated() {
    let mut controller = controller(2);
    let (choices, _) = run(&mut controller, mutex, 60);
    let contended = Because::Contended { part: 0.5 };
    assert!(choices.contains(&(1, contended)), "{choices:?}");
    let kept =
        |(_, because): &(u32, Because)| matches!(because, Because::Kept { ratio } if *ratio > 1.05);
    assert!(choices.iter().any(kept), "{choices:?}");
    // Within a second, and permanently.
    assert!(choices[10..].iter().all(|(active, _)| *active == 1), "{choices:?}");
}

#[test]
fn computing_program_is_sampled_and_left_alone() {
    let mut controller = controller(2);
    let (choices, samplings) = run(&mut controller, computing, 100);
    assert!(choices.iter().all(|(active, _)| *active == 2), "{choices:?}");
    // Ten seconds; a sampling takes a period.
    assert!((5..=11).contains(&samplings), "{samplings}");
}

#[test]
fn only_suspected_waiters_are_sampled_closely() {
    let samplings = |program: fn(u32) -> Code| -> Vec<SamplingDetail> {
        let mut controller = controller(2);
        let period = |_| {
            let sampling = controller.wants_code();
            if sampling.is_some() {
                controller.saw(&program(2));
            }
            controller.decide(&busy(controller.active()));
            sampling
        };
        (0..5).filter_map(period).collect()
    };
    assert_eq!(samplings(computing), [SamplingDetail::Rough]);
    // Rough sampling cannot distinguish a tenth of the time from slightly less.
    let almost = |active| code(active, 0, [23, 23, 23, 22]);
    assert_eq!(samplings(almost), [SamplingDetail::Rough, SamplingDetail::Fine]);
    assert_eq!(
        samplings(mutex)[..3],
        [SamplingDetail::Rough, SamplingDetail::Fine, SamplingDetail::Fine]
    );
}

#[test]
fn user_mode_program_is_not_sampled() {
    let mut controller = controller(2);
    for _ in 0..50 {
        let mut observed = busy(2);
        observed.user = Nanos::from_millis(195);
        controller.decide(&observed);
        assert_eq!(controller.wants_code(), None);
    }
}

#[test]
fn harmful_step_is_reverted_and_rests() {
    let mut controller = controller(2);
    let (choices, _) = run(&mut controller, scaling, 50);
    let steps = |choices: &[(u32, Because)]| {
        let steps =
            choices.iter().filter(|(_, because)| matches!(because, Because::Contended { .. }));
        steps.count()
    };
    let lost =
        |(_, because): &(u32, Because)| matches!(because, Because::Lost { ratio } if *ratio < 1.0);
    assert!(choices.iter().any(lost), "{choices:?}");
    assert_eq!(steps(&choices), 1, "{choices:?}");
    assert_eq!(controller.active(), 2);
    // It is retried later, and then rests for twice as long.
    let (choices, _) = run(&mut controller, scaling, 150);
    assert_eq!(steps(&choices), 2, "{choices:?}");
    // A program with other code counts as another one.
    let other = |active| match active {
        1 => code(1, 1 << 20, [30, 30, 20, 20]),
        many => code(many, 1 << 20, [5, 5, 20, 20]),
    };
    let (choices, _) = run(&mut controller, other, 30);
    assert_eq!(choices[29].0, 1, "{choices:?}");
}

#[test]
fn much_longer_waits_trigger_a_retry() {
    // While few threads want the lock, all vCPUs do more.
    let calm = |active| match active {
        1 => code(1, 0, [25, 25, 25, 25]),
        many => code(many, 0, [20, 21, 22, 22]),
    };
    let mut controller = controller(2);
    let (choices, _) = run(&mut controller, calm, 15);
    let lost = |(_, because): &(u32, Because)| matches!(because, Because::Lost { .. });
    assert!(choices.iter().any(lost), "{choices:?}");
    assert_eq!(controller.active(), 2);
    let (choices, _) = run(&mut controller, mutex, 30);
    assert_eq!(choices[29].0, 1, "{choices:?}");
    let kept = |(_, because): &(u32, Because)| matches!(because, Because::Kept { .. });
    assert!(choices.iter().any(kept), "{choices:?}");
}

#[test]
fn other_code_brings_all_vcpus_back() {
    let mut controller = controller(2);
    run(&mut controller, mutex, 40);
    assert_eq!(controller.active(), 1);
    let (choices, samplings) = run(&mut controller, computing, 30);
    assert!(choices.contains(&(2, Because::MajorChange)), "within 3 s: {choices:?}");
    assert_eq!(choices[29].0, 2);
    assert!(samplings <= 10, "{samplings}");
}

#[test]
fn sixteen_vcpus_are_halved_while_helpful() {
    // Eight can work at once, more get in each other's way.
    let program = |active| match active {
        0..=8 => code(active, 0, [15, 15, 30, 40]),
        many => code(many, 0, [4, 4, 10, 15]),
    };
    let mut many = controller(16);
    let (choices, _) = run(&mut many, program, 60);
    assert_eq!(choices[59].0, 8, "{choices:?}");
    // Only one can work at once, and competitors make it harder: further down, step by step.
    let mut one = controller(16);
    let program = |active| match active {
        1 => code(1, 0, [45, 45, 5, 5]),
        2 => code(2, 0, [35, 35, 10, 10]),
        4 => code(4, 0, [12, 12, 10, 10]),
        8 => code(8, 0, [4, 4, 10, 10]),
        many => code(many, 0, [1, 1, 10, 10]),
    };
    let (choices, _) = run(&mut one, program, 120);
    assert!(choices[119].0 <= 2, "{choices:?}");
}

#[test]
fn missing_samples_prevent_and_revert_steps() {
    let mut blind = controller(2);
    for _ in 0..50 {
        assert_eq!(blind.decide(&busy(2)).active, 2);
    }
    let mut controller = controller(2);
    while controller.active() == 2 {
        run(&mut controller, mutex, 1);
    }
    let taken: Vec<u32> = (0..15).map(|_| controller.decide(&busy(1)).active).collect();
    assert_eq!(taken.last(), Some(&2), "{taken:?}");
}

#[test]
fn stolen_time_prevents_consolidation() {
    let mut controller = controller(2);
    for _ in 0..50 {
        controller.saw(&mutex(2));
        let mut observed = busy(2);
        for vcpu in &mut observed.vcpus {
            vcpu.stolen = Nanos::from_millis(30);
            vcpu.work = Nanos::from_millis(70);
        }
        assert_eq!(controller.decide(&observed).active, 2);
    }
}

#[test]
fn contention_steps_can_be_disabled() {
    let config = ConsolidationConfig { contention: 1.0, ..ConsolidationConfig::default() };
    let mut controller = Consolidation::new(2, config);
    let (choices, samplings) = run(&mut controller, mutex, 30);
    assert_eq!((choices[29].0, samplings), (2, 0));
}

#[test]
fn sampling_noise_triggers_no_retry() {
    // 16 % of its time, and then 21 %: within the noise of 700 samples.
    let first = |active| match active {
        1 => code(1, 0, [25, 25, 25, 25]),
        many => code(many, 0, [21, 21, 21, 21]),
    };
    let next = |active| match active {
        1 => code(1, 0, [25, 25, 25, 25]),
        many => code(many, 0, [20, 20, 20, 19]),
    };
    let steps = |choices: &[(u32, Because)]| {
        let steps =
            choices.iter().filter(|(_, because)| matches!(because, Because::Contended { .. }));
        steps.count()
    };
    let mut controller = controller(2);
    let (choices, _) = run(&mut controller, first, 12);
    assert_eq!(steps(&choices), 1, "{choices:?}");
    let (choices, _) = run(&mut controller, next, 30);
    assert_eq!(steps(&choices), 0, "{choices:?}");
}

#[test]
fn second_harm_prevents_quick_retry() {
    // It waits for longer and longer, but is faster on all vCPUs.
    let harmed = |waits: u32| {
        move |active| match active {
            1 => code(1, 0, [25, 25, 25, 25]),
            many => {
                let line = (100 - waits) / 4;
                code(many, 0, [line, line, line, line])
            }
        }
    };
    let mut controller = controller(2);
    let mut steps = Vec::new();
    for period in 0..60 {
        let program = harmed(16 + period);
        let active = controller.active();
        if controller.wants_code().is_some() {
            controller.saw(&program(active));
        }
        let choice = controller.decide(&busy(active));
        if matches!(choice.because, Because::Contended { .. }) {
            steps.push(period);
        }
    }
    assert!(steps.len() <= 2, "{steps:?}");
}

#[test]
fn alternating_programs_are_not_harmed_each_time() {
    let program = |period: usize, active| {
        let address = ((period / 8 % 2) as u64) << 20;
        match active {
            1 => code(1, address, [25, 25, 25, 25]),
            many => code(many, address, [21, 21, 21, 21]),
        }
    };
    let mut controller = controller(2);
    let mut lost = Vec::new();
    for period in 0..600 {
        let active = controller.active();
        if controller.wants_code().is_some() {
            controller.saw(&program(period, active));
        }
        let choice = controller.decide(&busy(active));
        if matches!(choice.because, Because::Lost { .. }) {
            lost.push(period);
        }
    }
    // A minute: at most some before the rests are long.
    assert!((1..=10).contains(&lost.len()), "{lost:?}");
}
