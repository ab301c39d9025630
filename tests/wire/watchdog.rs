//! The watchdog of a service manager when workers hang. `service` tests it while they turn, and `peers/strace` with a
//! thread that hangs.

use super::harness::*;
use super::helpers::signal;

#[test]
fn watchdog_is_not_pinged_when_no_process_of_pool_turns() {
    let site = Site::new();
    let config = site.file("amped.toml", configuration(site.path(), "architecture = \"mp\"\nworkers = 3"));
    let manager = ServiceManager::new();
    let server = manager.start(config.to_str().unwrap(), &[("WATCHDOG_USEC", "200000")]);
    assert!(manager.next().starts_with("READY=1\n"));
    let children = server.children();
    assert_eq!(children.len(), 3);
    // One that turns is enough.
    children[1..].iter().for_each(|child| signal("STOP", *child));
    for _ in 0..10 {
        assert_eq!(manager.next(), "WATCHDOG=1\n");
    }
    signal("STOP", children[0]);
    manager.wait_for_silence();
    children.iter().for_each(|child| signal("CONT", *child));
    assert_eq!(manager.next(), "WATCHDOG=1\n");
}
