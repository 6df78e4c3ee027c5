/* A hostile program inside a sandbox: what it tries on pid 1. Prints one "name errno" a line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void outcome(const char *name, long result)
{
	printf("%s %d\n", name, result < 0 ? errno : 0);
}

static void try_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	outcome(path, fd);
	if (fd >= 0)
		close(fd);
}

static int look(void)
{
	char target[4096];
	int pidfd = (int)syscall(SYS_pidfd_open, 1, 0);
	long seized;

	try_open("/proc/1/mem");
	try_open("/proc/1/environ");
	try_open("/proc/1/maps");
	try_open("/proc/1/auxv");
	outcome("/proc/1/exe", readlink("/proc/1/exe", target, sizeof target));
	outcome("/proc/1/fd/3", readlink("/proc/1/fd/3", target, sizeof target));
	outcome("pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd, 0, 0));
	seized = ptrace(PTRACE_SEIZE, 1, 0, 0);
	outcome("ptrace", seized);
	return 0;
}

static int signal_all(void)
{
	for (int sig = 1; sig <= 64; sig++)
		outcome("kill", kill(1, sig));
	return 0;
}

/* Makes pid 1 its tracer, then stops: to a careless pid 1 the stop looks like an exit. */
static int forge(void)
{
	outcome("traceme", ptrace(PTRACE_TRACEME, 0, 0, 0));
	fflush(stdout);
	raise(SIGTRAP);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "look") == 0)
		return look();
	if (argc == 2 && strcmp(argv[1], "signal") == 0)
		return signal_all();
	if (argc == 2 && strcmp(argv[1], "forge") == 0)
		return forge();
	return 2;
}
