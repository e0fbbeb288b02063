//! FlexW against a small host: worked cases, convergence, and what must hold for every input.

mod world;

use proptest::prelude::*;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::VcpuObservation;
use tandem_policy::VmId;
use tandem_policy::VmObservation;
use tandem_policy::Weight;
use world::World;

fn assert_near(shares: &[f64], expected: &[f64], tolerance: f64) {
    for (share, expected) in shares.iter().zip(expected) {
        assert!(
            (share - expected).abs() <= tolerance * expected,
            "shares {shares:?} are not within {tolerance} of {expected}"
        );
    }
}

#[test]
fn print_convergence() {
    for (pcpus, mixes) in [
        (2, vec![vec![2, 1], vec![3, 1], vec![4, 2, 1]]),
        (4, vec![vec![4, 3], vec![4, 3, 2, 1]]),
    ] {
        for mix in mixes {
            let mut world = World::new(pcpus);
            for &n in &mix {
                world = world.vm(n, 100.0);
            }
            println!("mix {mix:?}");
            for p in 0..60 {
                let s = world.shares_over(1);
                if p % 3 == 0 {
                    let w: Vec<String> = world
                        .vms
                        .iter()
                        .map(|v| format!("{:.1}", v.weight))
                        .collect();
                    let s: Vec<String> = s.iter().map(|v| format!("{v:.3}")).collect();
                    println!("{p:3} {s:?} {w:?}");
                }
            }
            println!("after: {:?}", world.shares_over(100));
        }
    }
}
