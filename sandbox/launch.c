/* launch: carries out a staging script and becomes the OCI runtime.
 *
 * The daemon plans, this applies: the script (a memfd, descriptor given as argv[1]) is a list of
 * operations, each a name and a fixed number of NUL-terminated arguments, computed in Python from
 * the sandbox plan. There are no choices left here. A small C program and not a forked Python,
 * because forking a threaded process and running Python in the child can deadlock, and because a
 * process of its own is what setns(2) to a mount namespace needs.
 *
 * It starts in the mount namespace in which the daemon keeps the leases' mounts. Subtrees are cloned
 * there as detached mounts (open_tree(2)), "private" then leaves for a mount namespace of its own,
 * where the clones are attached below the root file system by descriptor. The host's table is not
 * touched, and everything vanishes with the last process of the sandbox.
 *
 * A path that a sandbox can change is only ever resolved by openat2(2) with RESOLVE_BENEATH,
 * NO_SYMLINKS and NO_MAGICLINKS (CVE-2021-30465, CVE-2025-31133).
 *
 * On failure: one line "operation: argument: error" on stderr and exit status 99. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

/* sys/mount.h and linux/mount.h of glibc 2.36 can't be included together. */
int mount(const char *, const char *, const char *, unsigned long, const void *);
enum { ms_rec = 16384, ms_private = 1 << 18 };

/* decide/compile.py bounds the mounts of a plan's trees (MAX_MOUNTS); the rest is a few and at most
 * 64 executable places of the system. A path is named twice and has at most 4,096 bytes. */
enum { max_slots = 1024, max_args = 64, max_script = 8 << 20 };
static int slots[max_slots];
static int userns = -1;
static const char *operation = "start";
static const char *argument = "";

static void die(void)
{
	fprintf(stderr, "launch: %s: %s: %s\n", operation, argument, strerror(errno));
	_exit(99);
}

static long check(long result)
{
	if (result < 0)
		die();
	return result;
}

static int sys_open_tree(int dir, const char *path, unsigned flags)
{
	return (int)syscall(SYS_open_tree, dir, path, flags);
}

static int sys_move_mount(int from, int to_dir, const char *to)
{
	return (int)syscall(SYS_move_mount, from, "", to_dir, to,
			    MOVE_MOUNT_F_EMPTY_PATH | (*to ? 0 : MOVE_MOUNT_T_EMPTY_PATH));
}

/* Open `path` below directory `dir`; no symlink anywhere in it. */
static int open_beneath(int dir, const char *path, uint64_t flags)
{
	struct open_how how = { .flags = flags | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
					   RESOLVE_NO_MAGICLINKS };
	while (*path == '/')
		path++;
	return (int)syscall(SYS_openat2, dir, *path ? path : ".", &how, sizeof how);
}

static unsigned long number(const char *text)
{
	char *end;
	errno = EINVAL;
	unsigned long value = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end)
		die();
	return value;
}

static int *slot(const char *text)
{
	unsigned long index = number(text);
	errno = ERANGE;
	if (index >= max_slots)
		die();
	return &slots[index];
}

/* Attributes as letters: r read-only, x noexec, X not noexec, s nosuid, d nodev, i idmapped. Not
 * recursive. */
static void set_attributes(int mount_fd, const char *letters)
{
	struct mount_attr attr = { 0 };
	for (; *letters; letters++)
		switch (*letters) {
		case 'r': attr.attr_set |= MOUNT_ATTR_RDONLY; break;
		case 'x': attr.attr_set |= MOUNT_ATTR_NOEXEC; break;
		case 'X': attr.attr_clr |= MOUNT_ATTR_NOEXEC; break;
		case 's': attr.attr_set |= MOUNT_ATTR_NOSUID; break;
		case 'd': attr.attr_set |= MOUNT_ATTR_NODEV; break;
		case 'i':
			attr.attr_set |= MOUNT_ATTR_IDMAP;
			attr.userns_fd = (uint64_t)userns;
			break;
		case '-': break;
		default: errno = EINVAL; die();
		}
	if (attr.attr_set || attr.attr_clr)
		check(syscall(SYS_mount_setattr, mount_fd, "", AT_EMPTY_PATH, &attr, sizeof attr));
}

static void write_file(const char *path, const char *text)
{
	int fd = (int)check(open(path, O_WRONLY | O_CLOEXEC));
	check(write(fd, text, strlen(text)));
	close(fd);
}

/* A user namespace with the sandbox's map, for idmapped mounts; kept alive by its descriptor. */
static void make_userns(const char *map)
{
	int ready[2], done[2];
	char byte = 0, path[64];
	check(pipe2(ready, O_CLOEXEC));
	check(pipe2(done, O_CLOEXEC));
	pid_t child = (pid_t)check(fork());
	if (child == 0) {
		close(done[1]); /* its own copy would keep the pipe open for ever */
		byte = unshare(CLONE_NEWUSER) < 0;
		_exit(write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) < 0);
	}
	errno = EPERM;
	if (read(ready[0], &byte, 1) != 1 || byte)
		die();
	snprintf(path, sizeof path, "/proc/%d/uid_map", (int)child);
	write_file(path, map);
	snprintf(path, sizeof path, "/proc/%d/gid_map", (int)child);
	write_file(path, map);
	snprintf(path, sizeof path, "/proc/%d/ns/user", (int)child);
	userns = (int)check(open(path, O_RDONLY | O_CLOEXEC));
	close(done[1]);
	check(waitpid(child, NULL, 0));
	close(ready[0]), close(ready[1]), close(done[0]);
}

static int new_file_system(const char *type, char **pairs, int count, const char *letters)
{
	int context = (int)check(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC));
	for (int i = 0; i + 1 < count; i += 2) {
		argument = pairs[i];
		if (*pairs[i + 1])
			check(syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, pairs[i], pairs[i + 1], 0));
		else
			check(syscall(SYS_fsconfig, context, FSCONFIG_SET_FLAG, pairs[i], NULL, 0));
	}
	check(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
	int mount_fd = (int)check(syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0));
	close(context);
	set_attributes(mount_fd, letters);
	return mount_fd;
}

static void leave_for_private_namespace(void)
{
	check(unshare(CLONE_NEWNS));
	check(mount(NULL, "/", NULL, ms_rec | ms_private, NULL));
}

/* The new namespace's sysfs shows only its own interfaces; the host's would be a leak. */
static void mount_sysfs(int *target, int netns, const char *letters)
{
	int own = (int)check(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
	check(setns(netns, CLONE_NEWNET));
	*target = new_file_system("sysfs", NULL, 0, letters);
	check(setns(own, CLONE_NEWNET));
	close(own);
}

static _Noreturn void become(char **args, int count)
{
	/* args: descriptor of an empty file, log, listening socket, program, argument ... */
	int null = (int)number(args[0]), log = (int)number(args[1]), listener = (int)number(args[2]);
	/* Lift the three out of the way first: their numbers may be 0 to 3. */
	null = (int)check(fcntl(null, F_DUPFD_CLOEXEC, 64));
	log = (int)check(fcntl(log, F_DUPFD_CLOEXEC, 64));
	listener = (int)check(fcntl(listener, F_DUPFD_CLOEXEC, 64));
	check(dup2(null, 0)), check(dup2(null, 1)), check(dup2(log, 2)), check(dup2(listener, 3));
	/* CVE-2024-21626: nothing but 0 to 3 reaches the runtime. */
	check(close_range(4, ~0U, CLOSE_RANGE_CLOEXEC));
	char *argv[max_args + 1] = { 0 };
	for (int i = 4; i < count; i++)
		argv[i - 4] = args[i];
	/* PATH only: nothing of the daemon's environment goes towards a sandbox. */
	char *environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };
	argument = args[3];
	execve(args[3], argv, environment);
	die();
	_exit(99);
}

static void apply(char **a, int count)
{
	if (!strcmp(operation, "enter") && count == 1) {
		char path[4096];
		snprintf(path, sizeof path, "%s/cgroup.procs", a[0]);
		write_file(path, "0");
	} else if (!strcmp(operation, "userns") && count == 1) {
		make_userns(a[0]);
	} else if (!strcmp(operation, "private") && count == 0) {
		leave_for_private_namespace();
	} else if (!strcmp(operation, "clone") && count == 4) {
		/* slot, trusted directory, path below it, attributes */
		int dir = (int)check(open(a[1], O_PATH | O_DIRECTORY | O_CLOEXEC));
		argument = a[2];
		int fd = (int)check(open_beneath(dir, a[2], O_PATH));
		*slot(a[0]) = (int)check(sys_open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
		set_attributes(*slot(a[0]), a[3]);
		close(fd), close(dir);
	} else if (!strcmp(operation, "filesystem") && count >= 3) {
		/* slot, type, attributes, key, value ... */
		*slot(a[0]) = new_file_system(a[1], a + 3, count - 3, a[2]);
	} else if (!strcmp(operation, "sysfs") && count == 3) {
		mount_sysfs(slot(a[0]), (int)number(a[1]), a[2]);
	} else if (!strcmp(operation, "attach") && count == 3) {
		/* slot, trusted directory, path below it */
		int dir = (int)check(open(a[1], O_PATH | O_DIRECTORY | O_CLOEXEC));
		argument = a[2];
		int fd = (int)check(open_beneath(dir, a[2], O_PATH));
		check(sys_move_mount(*slot(a[0]), fd, ""));
		close(*slot(a[0])), close(fd), close(dir);
	} else if (!strcmp(operation, "mkdir") && count == 2) {
		/* path of a tree that no sandbox has seen yet, octal mode */
		check(mkdir(a[0], (mode_t)strtoul(a[1], NULL, 8)));
		check(chmod(a[0], (mode_t)strtoul(a[1], NULL, 8)));
	} else if (!strcmp(operation, "device") && count == 3) {
		/* path of a tree that no sandbox has seen yet, major and minor number */
		dev_t device = makedev((unsigned)number(a[1]), (unsigned)number(a[2]));
		check(mknod(a[0], S_IFCHR | 0666, device));
		check(chmod(a[0], 0666));
	} else if (!strcmp(operation, "readonly") && count == 1) {
		int fd = (int)check(open(a[0], O_PATH | O_DIRECTORY | O_CLOEXEC));
		set_attributes(fd, "r");
		close(fd);
	} else if (!strcmp(operation, "become") && count >= 5) {
		become(a, count);
	} else {
		errno = ENOSYS;
		die();
	}
}

int main(int argc, char **argv)
{
	struct stat info;
	errno = EINVAL;
	if (argc != 2)
		die();
	int fd = (int)number(argv[1]);
	check(fstat(fd, &info));
	errno = EFBIG;
	if (info.st_size <= 0 || info.st_size > max_script)
		die();
	char *script = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	errno = EINVAL;
	if (script == MAP_FAILED || script[info.st_size - 1])
		die();
	/* A record: argument count in decimal, operation, arguments; each NUL-terminated. */
	for (char *next = script, *end = script + info.st_size; next < end;) {
		char *args[max_args];
		operation = "script", argument = next;
		unsigned long count = number(next);
		errno = E2BIG;
		if (count > max_args)
			die();
		next += strlen(next) + 1;
		for (unsigned long i = 0; i <= count; i++) {
			errno = EINVAL;
			if (next >= end)
				die();
			if (i == 0)
				operation = next;
			else
				args[i - 1] = next;
			next += strlen(next) + 1;
		}
		argument = count ? args[0] : "";
		apply(args, (int)count);
	}
	operation = "script", argument = "become", errno = ENODATA;
	die();
}
