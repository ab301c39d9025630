//! Classifies a kernel call chain by context and category.
//!
//! **Contexts** are the reasons for entering the kernel: a system call, a page fault, an interrupt. They nest: on one
//! machine a server's `writev` runs, within it, the soft interrupt that receives the data it has just sent. Hence there
//! are two views: the innermost context (figures 4 to 10 of Hu, Nanda and Yang 1997), and all contexts around a sample.
//!
//! **The category** is that of the innermost known function (figure 3 of Yates, Almeida and Almeida 1997). Functions
//! that work on behalf of their caller belong to the caller's category, such as releasing a lock, where the sampling
//! clock often fires since interrupts are enabled again there. Samples of user code have the category `user` or one of
//! `program.txt`, see `Process::category`.
//!
//! Pure: function names in, classification out.

use super::table::{CALLER, KernelTable};

/// User code, as a context and as a category.
pub(crate) const USER: &str = "user";
/// An unknown category or context.
pub(crate) const UNKNOWN: &str = "unknown";
/// A system call without a name: its own frame has returned, or is not reached yet.
const ENTRY: &str = "system call entry and exit";

/// A soft interrupt of which only the entry is on the stack.
const SOFTIRQ: &str = "softirq entry and exit";

/// The classification of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// All contexts, innermost first; at least one.
    pub(crate) contexts: Vec<String>,
    /// The category.
    pub(crate) category: &'static str,
}

/// Classifies a chain of functions, innermost first.
pub(crate) fn classify(table: &KernelTable, chain: &[&str]) -> Place {
    let category =
        chain.iter().filter_map(|function| table.categories.of(function)).find(|category| *category != CALLER);
    Place { contexts: contexts(table, chain), category: category.unwrap_or(UNKNOWN) }
}

fn contexts(table: &KernelTable, chain: &[&str]) -> Vec<String> {
    let mut contexts: Vec<String> = Vec::new();
    // Functions passed on the way out since the last context: the frame nearest to the next entry counts.
    let (mut softirq, mut syscall) = (None, None);
    for function in chain {
        softirq = table.softirqs.of(function).or(softirq);
        syscall = table.syscalls.of(function).or(syscall);
        let entered = match table.entries.of(function) {
            _ if syscall_name(function).is_some() => {
                syscall_name(function).map(|name| table.renamed.of(name).unwrap_or(name).to_owned())
            }
            Some("interrupt") => Some("interrupt".to_owned()),
            Some("fault") => Some("page fault".to_owned()),
            Some("softirq") => Some(softirq.map_or_else(|| SOFTIRQ.to_owned(), |kind| format!("softirq {kind}"))),
            Some("entry") => Some(syscall.unwrap_or(ENTRY).to_owned()),
            Some("kthread") => Some("kernel thread".to_owned()),
            Some("idle") => Some("idle".to_owned()),
            _ => None,
        };
        let Some(entered) = entered else { continue };
        (softirq, syscall) = (None, None);
        // A context begins with several frames: an interrupt with two, a call with its own and the common one. And a
        // soft interrupt raised by an interrupt ran within it.
        let is_same =
            contexts.last().is_some_and(|last| *last == entered || entered == SOFTIRQ && last.starts_with("softirq "));
        let is_begun = entered == ENTRY && contexts.last().is_some_and(|last| is_syscall(last));
        if !is_same && !is_begun {
            contexts.push(entered);
        }
    }
    if contexts.is_empty() {
        contexts.push(UNKNOWN.to_owned());
    }
    contexts
}

/// Whether a context is a system call and not one of the others.
fn is_syscall(context: &str) -> bool {
    context == ENTRY
        || !matches!(context, "interrupt" | "page fault" | "kernel thread" | "idle" | USER | UNKNOWN)
            && !context.starts_with("softirq ")
}

fn syscall_name(function: &str) -> Option<&str> {
    let name = ["__x64_sys_", "__ia32_sys_", "__se_sys_", "__do_sys_", "__arm64_sys_"]
        .iter()
        .find_map(|prefix| function.strip_prefix(prefix))?;
    Some(name.split_once('.').map_or(name, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chain: &str, contexts: &[&str], category: &str) {
        let chain: Vec<&str> = chain.split_whitespace().collect();
        let place = classify(&KernelTable::new(), &chain);
        assert_eq!(
            (&place.contexts[..], place.category),
            (&contexts.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()[..], category),
            "{chain:?}"
        );
    }

    #[test]
    fn kernel_chains_are_classified_by_activity() {
        let entry = "do_syscall_64 entry_SYSCALL_64_after_hwframe";
        check(
            &format!(
                "ext4_file_open do_dentry_open vfs_open path_openat do_filp_open do_sys_openat2 __x64_sys_openat {entry}"
            ),
            &["openat"],
            "low-level file system",
        );
        check(
            &format!("rep_movs_alternative _copy_to_iter filemap_read vfs_read ksys_read {entry}"),
            &["read"],
            "copying",
        );
        check(&format!("ep_poll do_epoll_wait __x64_sys_epoll_wait {entry}"), &["epoll_wait"], "events");
        check(
            &format!("_raw_spin_unlock_irqrestore ep_poll_callback {entry}"),
            &["system call entry and exit"],
            "events",
        );
        // Looking up a descriptor, also of a socket, belongs to the system call that does it.
        check(&format!("fput __sys_sendto {entry}"), &["sendto"], "tcp/ip and sockets");
        check("entry_SYSCALL_64", &["system call entry and exit"], "entry and exit");
        check(&entry.replace("do_syscall_64", "do_syscall_64 "), &["system call entry and exit"], "entry and exit");
    }

    #[test]
    fn contexts_nest() {
        check(
            "tcp_v4_rcv ip_local_deliver net_rx_action handle_softirqs do_softirq __local_bh_enable_ip __dev_queue_xmit \
             ip_output tcp_sendmsg sock_write_iter vfs_writev do_writev do_syscall_64 entry_SYSCALL_64_after_hwframe",
            &["softirq net_rx", "writev"],
            "tcp/ip and sockets",
        );
        check(
            "run_timer_softirq handle_softirqs __irq_exit_rcu sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt \
             clear_page_erms do_anonymous_page handle_mm_fault do_user_addr_fault exc_page_fault asm_exc_page_fault",
            &["softirq timer", "interrupt", "page fault"],
            "timers",
        );
        check(
            "virtnet_poll net_rx_action handle_softirqs run_ksoftirqd smpboot_thread_fn kthread ret_from_fork ret_from_fork_asm",
            &["softirq net_rx", "kernel thread"],
            "low-level network",
        );
        check("default_idle default_idle_call do_idle cpu_startup_entry", &["idle"], "other");
    }

    #[test]
    fn kernel_function_is_named_as_its_system_call() {
        let entry = "do_syscall_64 entry_SYSCALL_64_after_hwframe";
        check(&format!("__x64_sys_newfstat {entry}"), &["fstat"], "entry and exit");
        check(&format!("do_sendfile __do_sys_sendfile64 {entry}"), &["sendfile"], "high-level file system");
        check(&format!("do_sendfile {entry}"), &["sendfile"], "high-level file system");
    }

    #[test]
    fn unknown_functions_are_reported_as_unknown() {
        check("", &["unknown"], "unknown");
        check("qqq_new zzz_new", &["unknown"], "unknown");
        check("qqq_new tcp_ack", &["unknown"], "tcp/ip and sockets");
        assert!(is_syscall("writev") && is_syscall(ENTRY) && !is_syscall("softirq net_rx") && !is_syscall("user"));
    }
}
