/*
 * Attempts on kernel interfaces. "Wins" means that the kernel would do it: where doing it would
 * harm somebody, the call asks for a thing that can't be (a file that is absent, a wrong magic
 * number), and the error that the kernel gives only after its check of rights counts as a win.
 */
#define _GNU_SOURCE
#include "attack.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char page[4096];

/* `harmless` is the error that comes after the check of rights. */
static _Noreturn void passes(const char *what, long result, int harmless)
{
	if (result < 0 && errno != harmless)
		refused(what);
	won("%s gave %s", what, result < 0 ? strerrorname_np(errno) : "success");
}

/* Mounts stay in a namespace of the attempt's own where that is possible. */
static void apart(void)
{
	if (unshare(CLONE_NEWNS) == 0)
		mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static long by_clone(unsigned long flags)
{
	long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);

	if (child == 0)
		_exit(0);
	return child;
}

static void system_call(char **a) /* name */
{
	const char *name = a[0];
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4,
			       .max_entries = 1 };
	struct perf_event_attr event = { .type = PERF_TYPE_SOFTWARE, .size = sizeof event,
					 .config = PERF_COUNT_SW_TASK_CLOCK };
	struct { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; }
		clone3 = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
	struct { unsigned bytes; int type; char data[128]; } handle = { .bytes = 128 };
	int mount_id;

#define CALL(text, expression) \
	if (!strcmp(name, text)) \
	verdict(text, expression)
	CALL("add_key", syscall(SYS_add_key, "user", "stockade-selftest", "x", 1, -1));
	CALL("keyctl", syscall(SYS_keyctl, 1, NULL)); /* KEYCTL_JOIN_SESSION_KEYRING */
	CALL("request_key", syscall(SYS_add_key, "user", "stockade-selftest", "x", 1, -1) < 0 ? -1 :
		syscall(SYS_request_key, "user", "stockade-selftest", NULL, 0));
	CALL("bpf", syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map));
	CALL("io_uring", syscall(SYS_io_uring_setup, 1, page));
	CALL("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC | 1)); /* UFFD_USER_MODE_ONLY */
	CALL("perf_event_open", syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
	CALL("fanotify", syscall(SYS_fanotify_init, 0x200, O_RDONLY)); /* FAN_REPORT_FID */
	CALL("name_to_handle_at",
	     syscall(SYS_name_to_handle_at, AT_FDCWD, "/dev/shm", &handle, &mount_id, 1));
	CALL("kcmp", syscall(SYS_kcmp, getpid(), getppid(), 2, 0, 0) < 0 ? -1 : 0);
	CALL("personality", syscall(SYS_personality, 0x40000UL)); /* ADDR_NO_RANDOMIZE */
	CALL("unshare_user", unshare(CLONE_NEWUSER));
	CALL("clone_user", by_clone(CLONE_NEWUSER));
	CALL("clone_user_wide", by_clone(CLONE_NEWUSER | 1UL << 32));
	CALL("unshare_net", unshare(CLONE_NEWNET));
	CALL("unshare_mount", unshare(CLONE_NEWNS));
	if (!strcmp(name, "clone3")) {
		long child = syscall(SYS_clone3, &clone3, sizeof clone3);

		if (child == 0)
			_exit(0);
		verdict("clone3", child);
	}
	CALL("setns", setns(open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC), CLONE_NEWUTS));
	CALL("sethostname", sethostname("attacked", 8));
	CALL("chroot", chroot("/tmp"));
	CALL("settimeofday", syscall(SYS_settimeofday, NULL, NULL)); /* nothing is set */
	CALL("syslog", syscall(SYS_syslog, 10, NULL, 0));            /* the size of the log */
#define LIKE(text, expression, harmless) \
	if (!strcmp(name, text)) \
	passes(text, expression, harmless)
	LIKE("swapon", syscall(SYS_swapon, "/absent", 0), ENOENT);
	LIKE("init_module", syscall(SYS_init_module, page, sizeof page, ""), ENOEXEC);
	LIKE("delete_module", syscall(SYS_delete_module, "stockade_absent", 0), ENOENT);
	LIKE("acct", syscall(SYS_acct, "/absent"), ENOENT);
	LIKE("reboot", syscall(SYS_reboot, 1, 2, 3, NULL), EINVAL);
#ifdef SYS_modify_ldt
	CALL("modify_ldt", syscall(SYS_modify_ldt, 0, page, 16));
#endif
	cannot("this architecture has no %s", name);
}

static void mounts(char **a) /* what */
{
	const char *what = a[0];

	apart();
	if (!strcmp(what, "tmpfs"))
		verdict("mount", mount("none", "/srv", "tmpfs", 0, NULL));
	if (!strcmp(what, "bind"))
		verdict("mount", mount("/tmp", "/srv", NULL, MS_BIND, NULL));
	if (!strcmp(what, "cgroup"))
		verdict("mount", mount("none", "/srv", "cgroup2", 0, NULL));
	if (!strcmp(what, "remount"))
		verdict("mount", mount(NULL, "/run/stockade", NULL, MS_REMOUNT | MS_BIND, NULL));
	if (!strcmp(what, "umount"))
		verdict("umount2", umount2("/run/stockade", MNT_DETACH));
	if (!strcmp(what, "fsopen"))
		verdict("fsopen", syscall(SYS_fsopen, "tmpfs", 1));
	if (!strcmp(what, "open_tree"))
		verdict("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/tmp", 1));
	if (!strcmp(what, "setattr")) {
		uint64_t attributes[4] = { 0, MOUNT_ATTR_RDONLY, 0, 0 };

		verdict("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/run/stockade", 0,
						 attributes, sizeof attributes));
	}
	if (!strcmp(what, "pivot_root")) {
		mount("none", "/srv", "tmpfs", 0, NULL);
		if (chdir("/srv") < 0)
			cannot("chdir: %s", strerrorname_np(errno));
		verdict("pivot_root", syscall(SYS_pivot_root, ".", "."));
	}
	cannot("there is no mount attempt %s", what);
}

/* A file by its handle, past every mount. `handle` is "TYPE HEX" of a file on the file system of
 * the mount at `way`. */
static void open_handle(char **a) /* way, handle, mark */
{
	struct { unsigned bytes; int type; unsigned char data[128]; } handle = { 0 };
	int at = 0, way = open(a[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (sscanf(a[1], "%d %n", &handle.type, &at) != 1 || way < 0)
		cannot("no handle or no way");
	for (const char *hex = a[1] + at; hex[0] && hex[1] && handle.bytes < 128; hex += 2) {
		char byte[3] = { hex[0], hex[1], 0 };

		handle.data[handle.bytes++] = (unsigned char)strtoul(byte, NULL, 16);
	}
	int fd = (int)syscall(SYS_open_by_handle_at, way, &handle, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		refused("open_by_handle_at");
	judge_content(fd, a[2]);
}

static void take_from_sibling(char **a) /* nothing */
{
	(void)a;
	pid_t child = fork();

	if (child == 0) {
		pause();
		_exit(0);
	}
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	if (pidfd < 0)
		cannot("pidfd_open: %s", strerrorname_np(errno));
	verdict("pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd, 1, 0));
}

static void terminal(char **a) /* request */
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), discipline = 0;
	const char *name = master < 0 || grantpt(master) < 0 || unlockpt(master) < 0 ? NULL
										     : ptsname(master);
	int slave = name ? open(name, O_RDWR | O_CLOEXEC) : -1;

	if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) < 0)
		cannot("no terminal of its own: %s", strerrorname_np(errno));
	if (!strcmp(a[0], "inject"))
		verdict("TIOCSTI", ioctl(slave, TIOCSTI, "x"));
	if (!strcmp(a[0], "inject-wide")) /* the kernel reads 32 bits, a filter 64 (CVE-2019-10063) */
		verdict("TIOCSTI", syscall(SYS_ioctl, slave, TIOCSTI | 1UL << 32, "x"));
	verdict("TIOCSETD", ioctl(slave, TIOCSETD, &discipline));
}

static void any_family(char **a) /* nothing */
{
	(void)a;
	int tried = 0;

	for (int family = 0; family < 64; family++) {
		if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK)
			continue;
		for (int type = SOCK_STREAM; type <= SOCK_SEQPACKET; type++, tried++)
			if (socket(family, type, 0) >= 0)
				won("a socket of family %d, type %d", family, type);
	}
	held("none of %d sockets: %s", tried, strerrorname_np(errno));
}

static void netlink(char **a) /* protocol */
{
	verdict("socket", socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, (int)number(a[0])));
}

#ifdef __x86_64__
/* Winning is to come back at all: the filter doesn't know the entry, so it must kill. */
static void entry_32(char **a) /* nothing */
{
	(void)a;
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(20L), "b"(0L), "c"(0L), "d"(0L) : "memory");
	won("the kernel answered %ld to a 32-bit call", result);
}

static void entry_x32(char **a) /* nothing */
{
	(void)a;
	long result = syscall(0x40000000 | SYS_getpid);

	won("the kernel answered %ld to an x32 call", result < 0 ? -errno : result);
}
#endif

const struct attack kernel_attacks[] = {
	{ "call", 1, system_call },
	{ "mounts", 1, mounts },
	{ "open-handle", 3, open_handle },
	{ "take-from-sibling", 0, take_from_sibling },
	{ "terminal", 1, terminal },
	{ "any-family", 0, any_family },
	{ "netlink", 1, netlink },
#ifdef __x86_64__
	{ "entry-32", 0, entry_32 },
	{ "entry-x32", 0, entry_x32 },
#endif
	{ NULL, 0, NULL },
};
