//! Files of `/proc` in any form: never a panic; a parsed list is no longer than its file.
#![no_main]

use ammeter_monitor::source::{Disk, Host, Interface, Memory, Paging, Pressure, Process, Scheduled, Tcp, stat_of};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Some(host) = Host::parse(text) {
        assert!(host.cores.len() < text.lines().count());
        host.cpu.total();
        host.cpu.since(&host.cpu);
    }
    Memory::parse(text);
    Paging::parse(text);
    assert!(Disk::parse(text, |name| !name.is_empty()).len() <= text.lines().count());
    Pressure::default().take_file("io", text);
    let mut tcp = Tcp::default();
    tcp.take_table("Tcp:", text);
    tcp.take_sockets(text);
    assert!(Interface::parse(text).len() <= text.lines().count());
    Scheduled::parse(text);
    if let Some(stat) = stat_of(text) {
        assert!(text.contains(&stat.name));
    }
    Process::default().set_io(text);
});
