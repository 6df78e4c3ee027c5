/* Attempts on processes, identities and descriptors. A pid is an argument. */
#define _GNU_SOURCE
#include "attack.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

extern char **environ;

/* The default action of SIGURG is to ignore it: a signal that gets through does nothing. */
static void signal_process(char **a) /* pid */
{
	verdict("kill", kill((pid_t)number(a[0]), SIGURG));
}

static void signal_by_pidfd(char **a) /* pid */
{
	int pidfd = (int)syscall(SYS_pidfd_open, number(a[0]), 0);

	if (pidfd < 0)
		refused("pidfd_open");
	verdict("pidfd_send_signal", syscall(SYS_pidfd_send_signal, pidfd, SIGURG, NULL, 0));
}

static void trace(char **a) /* pid; the trace ends with this process, the other is never stopped */
{
	verdict("ptrace", ptrace(PTRACE_SEIZE, (pid_t)number(a[0]), 0, 0));
}

/* 0: where static programs that are not relocated begin */
static unsigned long address(const char *text)
{
	unsigned long at = strtoul(text, NULL, 0);

	return at ? at : 0x400000;
}

static void read_memory(char **a) /* pid, address */
{
	char data[64];
	struct iovec here = { data, sizeof data };
	struct iovec there = { (void *)address(a[1]), sizeof data };

	verdict("process_vm_readv",
		syscall(SYS_process_vm_readv, number(a[0]), &here, 1, &there, 1, 0));
}

static void read_memory_file(char **a) /* pid, address */
{
	char name[64], data[64];

	snprintf(name, sizeof name, "/proc/%ld/mem", number(a[0]));
	int fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		refused("open");
	verdict("pread", pread(fd, data, sizeof data, (off_t)address(a[1])));
}

static void take_descriptor(char **a) /* pid, descriptor */
{
	int pidfd = (int)syscall(SYS_pidfd_open, number(a[0]), 0);

	if (pidfd < 0)
		refused("pidfd_open");
	verdict("pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd, number(a[1]), 0));
}

static void renice(char **a) /* pid */
{
	verdict("setpriority", setpriority(PRIO_PROCESS, (id_t)number(a[0]), 19));
}

static void pin(char **a) /* pid; its own processors again */
{
	cpu_set_t set;
	pid_t pid = (pid_t)number(a[0]);

	if (sched_getaffinity(pid, sizeof set, &set) < 0)
		refused("sched_getaffinity");
	verdict("sched_setaffinity", sched_setaffinity(pid, sizeof set, &set));
}

static void limit_process(char **a) /* pid; the limit that it has already */
{
	struct rlimit old;

	if (syscall(SYS_prlimit64, number(a[0]), RLIMIT_NOFILE, NULL, &old) < 0)
		refused("prlimit64");
	verdict("prlimit64", syscall(SYS_prlimit64, number(a[0]), RLIMIT_NOFILE, &old, NULL));
}

/* As root inside: a copy that belongs to root and is set-uid, then started by another user. */
static void set_uid_program(char **a) /* path */
{
	int error = copy_self(a[0]);

	if (error)
		cannot("copy: %s", strerrorname_np(error));
	if (chown(a[0], 0, 0) < 0 || chmod(a[0], 04755) < 0)
		cannot("it can't be made set-uid: %s", strerrorname_np(errno));
	if (setresgid(1000, 1000, 1000) < 0 || setresuid(1000, 1000, 1000) < 0)
		cannot("no other user: %s", strerrorname_np(errno));
	int status = run_copy(a[0], "euid");
	if (status < 0)
		held("execve: %s", strerrorname_np(-status));
	if (status)
		held("its effective user is the one who started it");
	won("it runs as root");
}

static void give_away(char **a) /* path */
{
	int fd = open(a[0], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	verdict("fchown", fd < 0 ? -1 : fchown(fd, 4321, 4321));
}

static void become_user(char **a) /* uid */
{
	verdict("setuid", setuid((uid_t)number(a[0])));
}

static void add_capability(char **a) /* number: of no use unless it is permitted */
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	unsigned long bit = 1UL << number(a[0]);

	if (syscall(SYS_capget, &header, data) < 0)
		cannot("capget: %s", strerrorname_np(errno));
	data[bit >> 32 ? 1 : 0].effective |= (unsigned)(bit >> 32 ? bit >> 32 : bit);
	data[bit >> 32 ? 1 : 0].permitted |= (unsigned)(bit >> 32 ? bit >> 32 : bit);
	verdict("capset", syscall(SYS_capset, &header, data));
}

static void look_into_environment(char **a) /* mark */
{
	for (char **variable = environ; *variable; variable++)
		if (strstr(*variable, a[0]))
			won("%.30s... is set", *variable);
	held("no variable holds the mark");
}

/* Whatever descriptor there is: a directory of the host leads to everything (CVE-2024-21626). */
static void use_descriptors(char **a) /* name, mark */
{
	int found = 0;

	for (int fd = 0; fd < 4096; fd++) {
		int file = openat(fd, a[0], O_RDONLY | O_CLOEXEC);

		if (file >= 0)
			judge_content(file, a[1]);
		if (errno != EBADF)
			found++;
	}
	held("%d descriptors, no directory among them", found);
}

/* A socket that is left open would lead to the host's side of the sandbox. */
static void forge_report(char **a) /* nothing */
{
	(void)a;
	static const char report[] = "DKTS\5\0\0\0forged exit report";

	for (int fd = 0; fd < 4096; fd++)
		if (send(fd, report, sizeof report, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
			won("descriptor %d took a forged report", fd);
	held("no descriptor is a socket");
}

static void be_urgent(char **a) /* nothing */
{
	(void)a;
	verdict("setpriority", setpriority(PRIO_PROCESS, 0, -10));
}

static void host_name(char **a) /* the host's name */
{
	char name[256] = "";

	if (gethostname(name, sizeof name - 1) < 0)
		cannot("gethostname: %s", strerrorname_np(errno));
	if (strcmp(name, a[0]))
		held("the name is %s", name);
	won("the host's name is known");
}

/* Into another group of the kernel, with other limits or none. */
static void leave_group(char **a) /* path of a group's cgroup.procs */
{
	int fd = open(a[0], O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		refused("open");
	verdict("write", write(fd, "0", 1));
}

const struct attack process_attacks[] = {
	{ "signal", 1, signal_process },
	{ "signal-by-pidfd", 1, signal_by_pidfd },
	{ "trace", 1, trace },
	{ "read-memory", 2, read_memory },
	{ "read-memory-file", 2, read_memory_file },
	{ "take-descriptor", 2, take_descriptor },
	{ "renice", 1, renice },
	{ "pin", 1, pin },
	{ "limit-process", 1, limit_process },
	{ "set-uid-program", 1, set_uid_program },
	{ "give-away", 1, give_away },
	{ "become-user", 1, become_user },
	{ "add-capability", 1, add_capability },
	{ "environment", 1, look_into_environment },
	{ "descriptors", 2, use_descriptors },
	{ "forge-report", 0, forge_report },
	{ "urgent", 0, be_urgent },
	{ "host-name", 1, host_name },
	{ "leave-group", 1, leave_group },
	{ NULL, 0, NULL },
};
