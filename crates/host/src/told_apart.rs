//! Unique names of VMs: the name, with the PID if several VMs have the same.
//!
//! Tenants may give two VMs the same name, on the command line or as a thread's name.
//! In a record, a restarted VM is another VM of the same name.

use std::collections::BTreeMap;

use tandem_linux::thread::Pid;

/// Returns a unique name for each VM, from its name and process.
pub(crate) fn told_apart<'a, K: Ord>(
    vms: impl Iterator<Item = (K, &'a str, Pid)> + Clone,
) -> BTreeMap<K, String> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, name, _) in vms.clone() {
        *named.entry(name).or_default() += 1;
    }
    let called = vms.map(|(key, name, pid)| {
        let is_alone = named.get(name).is_none_or(|count| *count < 2);
        let called = if is_alone { name.to_owned() } else { format!("{name} ({pid})") };
        (key, called)
    });
    called.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_followed_by_pids() {
        let vms = [(1, "web", 812), (2, "db", 813), (3, "web", 900)];
        let vms = vms.into_iter();
        let called = told_apart(vms.map(|(key, name, pid)| (key, name, Pid(pid))));
        let called: Vec<&str> = called.values().map(String::as_str).collect();
        assert_eq!(called, ["web (812)", "db", "web (900)"]);
    }
}
