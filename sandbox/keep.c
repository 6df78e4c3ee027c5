/*
 * keep: a process that keeps the mount namespace that it was started in, and does nothing else.
 *
 *     keep PROCS
 *
 * A mount namespace lives as long as a process is in it. The daemon's is this one's too, so that the
 * leases' mounts are there for the next daemon while sandboxes use them (host/keeper.py). PROCS is
 * cgroup.procs of the group by which that daemon finds it; the end of its standard output says that
 * it is there. Then it holds no descriptor, and only SIGKILL ends it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	sigset_t all;
	int procs = argc == 2 ? open(argv[1], O_WRONLY | O_CLOEXEC) : -1;

	sigfillset(&all);
	if (procs < 0 || write(procs, "0", 1) != 1 || setsid() < 0 || chdir("/") < 0 ||
	    sigprocmask(SIG_SETMASK, &all, NULL) < 0 || close_range(0, ~0U, 0) < 0)
		return 1;
	for (;;)
		pause();
}
