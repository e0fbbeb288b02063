//! What VMs are called where each must be told from the others: by name, and with the process where several have that name.
//!
//! Nobody keeps two VMs from having one name: a name is a word of a command line or of a thread. And a VM that was started anew is, in a record,
//! another of the same name.

use std::collections::BTreeMap;

use tandem_linux::thread::Pid;

/// What each is called, of all that are to be told apart, each with its name and process.
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
    fn vms_of_one_name_have_their_process_beside_it() {
        let vms = [(1, "web", 812), (2, "db", 813), (3, "web", 900)];
        let vms = vms.into_iter();
        let called = told_apart(vms.map(|(key, name, pid)| (key, name, Pid(pid))));
        let called: Vec<&str> = called.values().map(String::as_str).collect();
        assert_eq!(called, ["web (812)", "db", "web (900)"]);
    }
}
