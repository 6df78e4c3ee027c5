/* Attempts to use more than was given. Each has a bound of its own, twice the limit that it is
 * tried against, so that nothing worse happens where no limit holds. */
#define _GNU_SOURCE
#include "attack.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static void forks(char **a) /* processes */
{
	long wanted = number(a[0]);

	for (long made = 0; made < wanted; made++) {
		pid_t child = fork();

		if (child < 0)
			held("fork: %s after %ld processes", strerrorname_np(errno), made);
		if (child == 0) {
			pause();
			_exit(0);
		}
	}
	won("%ld processes live at once", wanted);
}

static void *sleeper(void *unused)
{
	pause();
	return unused;
}

static void threads(char **a) /* threads */
{
	long wanted = number(a[0]);
	pthread_attr_t small;
	pthread_t thread;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (long made = 0; made < wanted; made++) {
		int error = pthread_create(&thread, &small, sleeper, NULL);

		if (error)
			held("clone: %s after %ld threads", strerrorname_np(error), made);
	}
	won("%ld threads live at once", wanted);
}

/* So that the kernel ends the attempt, and not the process that waits for it. */
static void offer_oneself(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "1000", 4) != 4)
		cannot("oom_score_adj: %s", strerrorname_np(errno));
	close(fd);
}

static _Noreturn void touch(volatile char *memory, long mebibytes)
{
	for (long at = 0; at < mebibytes << 20; at += 4096)
		memory[at] = 1;
	won("%ld MiB are in use", mebibytes);
}

static void memory(char **a) /* mebibytes */
{
	long wanted = number(a[0]);

	offer_oneself();
	void *got = mmap(NULL, (size_t)wanted << 20, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (got == MAP_FAILED)
		refused("mmap");
	touch(got, wanted);
}

static void kernel_memory(char **a) /* mebibytes, in sockets that nobody reads */
{
	long wanted = number(a[0]) << 20, kept = 0;
	static char block[32768];

	offer_oneself();
	while (kept < wanted) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0)
			held("socketpair: %s after %ld MiB", strerrorname_np(errno), kept >> 20);
		ssize_t put;
		while ((put = write(ends[1], block, sizeof block)) > 0)
			kept += put;
		if (errno != EAGAIN)
			held("write: %s after %ld MiB", strerrorname_np(errno), kept >> 20);
	}
	won("%ld MiB are in sockets", kept >> 20);
}

static void system_v_memory(char **a) /* mebibytes */
{
	long wanted = number(a[0]);

	offer_oneself();
	int id = shmget(IPC_PRIVATE, (size_t)wanted << 20, 0600);
	if (id < 0)
		refused("shmget");
	char *got = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL); /* it ends with this process */
	if (got == (void *)-1)
		refused("shmat");
	touch(got, wanted);
}

static void fill(char **a) /* path, mebibytes */
{
	static char block[65536];
	int fd = open(a[0], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	long written = 0, wanted = number(a[1]) << 20;

	offer_oneself();
	if (fd < 0)
		refused("open");
	while (written < wanted) {
		ssize_t put = write(fd, block, sizeof block);

		if (put <= 0) {
			int why = errno;

			unlink(a[0]);
			held("write: %s after %ld KiB", strerrorname_np(why), written >> 10);
		}
		written += put;
	}
	unlink(a[0]);
	won("%ld MiB are written", written >> 20);
}

static void many_files(char **a) /* directory, files */
{
	char name[4096];
	long wanted = number(a[1]), made = 0;
	int error = 0;

	for (; made < wanted && !error; made++) {
		snprintf(name, sizeof name, "%s/flood-%ld", a[0], made);
		int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
		if (fd < 0)
			error = errno;
		else
			close(fd);
	}
	for (long i = 0; i < made; i++) {
		snprintf(name, sizeof name, "%s/flood-%ld", a[0], i);
		unlink(name);
	}
	if (error)
		held("create: %s after %ld files", strerrorname_np(error), made - 1);
	won("%ld files are there", made);
}

static void open_files(char **a) /* descriptors */
{
	long wanted = number(a[0]);

	for (long made = 0; made < wanted; made++)
		if (dup(0) < 0)
			held("dup: %s after %ld", strerrorname_np(errno), made);
	won("%ld descriptors are open", wanted);
}

static void raise_limit(char **a) /* number of the limit, value */
{
	struct rlimit wanted = { (rlim_t)number(a[1]), (rlim_t)number(a[1]) };

	verdict("setrlimit", setrlimit((__rlimit_resource_t)number(a[0]), &wanted));
}

static double seconds(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void processor(char **a) /* milliseconds of wall time, percent of a processor */
{
	double begin = seconds(CLOCK_MONOTONIC), used, passed;

	do {
		used = seconds(CLOCK_PROCESS_CPUTIME_ID);
		passed = seconds(CLOCK_MONOTONIC) - begin;
	} while (passed * 1000 < (double)number(a[0]));
	int percent = (int)(100 * used / passed);
	if (percent < number(a[1]))
		held("%d %% of a processor", percent);
	won("%d %% of a processor", percent);
}

const struct attack resource_attacks[] = {
	{ "forks", 1, forks },
	{ "threads", 1, threads },
	{ "memory", 1, memory },
	{ "kernel-memory", 1, kernel_memory },
	{ "system-v-memory", 1, system_v_memory },
	{ "fill", 2, fill },
	{ "many-files", 2, many_files },
	{ "open-files", 1, open_files },
	{ "raise-limit", 2, raise_limit },
	{ "processor", 2, processor },
	{ NULL, 0, NULL },
};
