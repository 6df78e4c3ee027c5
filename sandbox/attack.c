/*
 * attack: tries to get out of a sandbox. `stockade selftest` puts it into sandboxes of its own and
 * nowhere else.
 *
 *     attack run MILLISECONDS NAME ARGUMENT... [, NAME ARGUMENT...]...
 *
 * Each attempt runs in a process and a session of its own, for MILLISECONDS at most, so that one
 * which dies, hangs or changes itself spoils no other. For each there is one line on stdout: its
 * position, "won", "held" or "cannot", and what was seen, separated by tabs. A process that the
 * kernel killed for a forbidden call (SIGSYS) or for want of memory (SIGKILL) was held; any other
 * signal and a deadline say nothing about the wall, so they are "cannot".
 *
 * Attempts touch only what the selftest made. An attempt never does harm when it works: it opens
 * and does not write, asks with a wrong magic number, sends a signal that is ignored.
 *
 *     attack bait KIND ...     things to aim at; see attack_bait.c
 *     attack true | euid       what `run_copy` starts
 */
#define _GNU_SOURCE
#include "attack.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WON = 0, HELD = 1, CANNOT = 2, EVIDENCE_MAX = 300, MAX_ARGUMENTS = 16 };

static int evidence = 1;

static _Noreturn void end(int status, const char *format, va_list arguments)
{
	char text[EVIDENCE_MAX];
	int size = vsnprintf(text, sizeof text, format, arguments);

	if (size >= EVIDENCE_MAX)
		size = EVIDENCE_MAX - 1;
	if (write(evidence, text, (size_t)size) != size)
		status = CANNOT;
	_exit(status);
}

#define ENDS(name, status)                    \
	void name(const char *format, ...)    \
	{                                     \
		va_list arguments;            \
		va_start(arguments, format);  \
		end(status, format, arguments); \
	}
ENDS(won, WON)
ENDS(held, HELD)
ENDS(cannot, CANNOT)

void refused(const char *what)
{
	held("%s: %s", what, strerrorname_np(errno));
}

void verdict(const char *what, long result)
{
	if (result < 0)
		refused(what);
	won("%s gave %ld", what, result);
}

bool contains(const char *data, size_t size, const char *mark)
{
	return memmem(data, size, mark, strlen(mark)) != NULL;
}

void judge_content(int fd, const char *mark)
{
	static char data[65536];
	size_t have = 0;

	while (have < sizeof data) {
		ssize_t got = read(fd, data + have, sizeof data - have);

		if (got < 0)
			refused("read");
		if (got == 0)
			break;
		have += (size_t)got;
		if (contains(data, have, mark))
			won("read the mark");
	}
	held("%zu bytes without the mark", have);
}

int copy_self(const char *path)
{
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	char block[65536];
	ssize_t got = 0;

	if (from < 0 || to < 0)
		return errno;
	while ((got = read(from, block, sizeof block)) > 0)
		if (write(to, block, (size_t)got) != got)
			return errno ? errno : EIO;
	if (got < 0 || close(to) < 0)
		return errno;
	close(from);
	return 0;
}

int run_copy(const char *program, const char *argument)
{
	int status, report[2];
	int error = 0;

	if (pipe2(report, O_CLOEXEC) < 0)
		cannot("pipe: %s", strerrorname_np(errno));
	pid_t child = fork();
	if (child < 0)
		cannot("fork: %s", strerrorname_np(errno));
	if (child == 0) {
		execl(program, program, argument, (char *)NULL);
		error = errno;
		_exit(write(report[1], &error, sizeof error) != sizeof error);
	}
	close(report[1]);
	if (read(report[0], &error, sizeof error) != sizeof error)
		error = 0;
	waitpid(child, &status, 0);
	if (error)
		return -error;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

long number(const char *text)
{
	char *rest;
	long value = strtol(text, &rest, 0);

	if (*rest || rest == text)
		cannot("%s is no number", text);
	return value;
}

static const struct attack *find(const char *name)
{
	static const struct attack *const all[] = { file_attacks, process_attacks, kernel_attacks,
						    network_attacks, resource_attacks };

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (const struct attack *attack = all[i]; attack->name; attack++)
			if (!strcmp(attack->name, name))
				return attack;
	return NULL;
}

static _Noreturn void child(int to, char **words, int count)
{
	const struct attack *attack = find(words[0]);

	evidence = to;
	setsid();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!attack)
		cannot("there is no attack %s", words[0]);
	if (attack->arguments != count - 1)
		cannot("%s takes %d arguments", words[0], attack->arguments);
	attack->try(words + 1);
	cannot("%s came to no end", words[0]);
}

static long long now_ms(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000LL + at.tv_nsec / 1000000;
}

/* Whatever the attempt left in its session ends with it: a fork bomb must not spoil the next. */
static void sweep(pid_t session)
{
	long long until = now_ms() + 5000;
	struct timespec pause = { .tv_nsec = 1000000 };

	while (kill(-session, SIGKILL) == 0 && now_ms() < until) {
		waitpid(-session, NULL, WNOHANG);
		nanosleep(&pause, NULL);
	}
}

static void attempt(int position, char **words, int count, long limit_ms)
{
	char text[EVIDENCE_MAX + 1] = "";
	int report[2], status = 0;
	long long until = now_ms() + limit_ms;
	const char *how = "cannot";
	bool late = false;

	if (pipe2(report, O_CLOEXEC) < 0) {
		printf("%d\tcannot\tpipe: %s\n", position, strerrorname_np(errno));
		return;
	}
	pid_t pid = fork();
	if (pid == 0) {
		close(report[0]);
		child(report[1], words, count);
	}
	close(report[1]);
	if (pid < 0) {
		printf("%d\tcannot\tfork: %s\n", position, strerrorname_np(errno));
		close(report[0]);
		return;
	}
	for (;;) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			break;
		if (now_ms() >= until) {
			late = true;
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			break;
		}
		/* An end is also seen as the end of its pipe, unless something it started holds that. */
		struct pollfd wait = { .fd = report[0], .events = 0 };
		poll(&wait, 1, 2);
		if (wait.revents) {
			struct timespec pause = { .tv_nsec = 200000 };
			nanosleep(&pause, NULL);
		}
	}
	sweep(pid);
	fcntl(report[0], F_SETFL, O_NONBLOCK);
	ssize_t got = read(report[0], text, EVIDENCE_MAX);
	text[got > 0 ? got : 0] = 0;
	close(report[0]);
	if (late)
		snprintf(text, sizeof text, "no end within %ld ms", limit_ms);
	else if (WIFSIGNALED(status)) {
		how = WTERMSIG(status) == SIGSYS || WTERMSIG(status) == SIGKILL ? "held" : "cannot";
		snprintf(text, sizeof text, "ended by SIG%s", sigabbrev_np(WTERMSIG(status)));
	} else if (WEXITSTATUS(status) == WON)
		how = "won";
	else if (WEXITSTATUS(status) == HELD)
		how = "held";
	for (char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = ' ';
	printf("%d\t%s\t%s\n", position, how, text);
	fflush(stdout);
}

static int run(int argc, char **argv)
{
	long limit_ms = number(argv[0]);
	int position = 0, first = 1;

	for (int i = 1; i <= argc; i++) {
		if (i < argc && strcmp(argv[i], ","))
			continue;
		argv[i] = NULL;
		if (i > first)
			attempt(position, argv + first, i - first, limit_ms);
		position++;
		first = i + 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "true"))
		return 0;
	if (argc == 2 && !strcmp(argv[1], "euid"))
		return geteuid() != 0 || getuid() == 0;
	if (argc > 2 && !strcmp(argv[1], "run"))
		return run(argc - 2, argv + 2);
	if (argc > 2 && !strcmp(argv[1], "bait"))
		return bait(argc - 2, argv + 2);
	fprintf(stderr, "usage: attack run MILLISECONDS NAME ARGUMENT... [, NAME ARGUMENT...]...\n");
	return 2;
}
