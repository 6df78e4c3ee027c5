/*
 * hold.so: preloaded into a shell that is started before its command is known.
 *
 * Starting a shell is an exec, a dynamic loader and its libraries: half of the time of a short
 * command. A spare that execs ahead of time (wire.h, WIRE_HOLD) comes to this constructor, which
 * says HELD and waits. The shell itself has run nothing yet: its main() begins when the ARGUMENT has
 * come, which takes the place of the last argument, where /proc/self/cmdline shows it as well.
 *
 * One that waits can be forked (FORK): the new process waits in its place in the same way, with a
 * socket, stdout and stderr of its own, for half of what another exec costs. It is a child of the
 * guest as the first one is, which so reports its end, and it is in the first one's v1 cgroups.
 *
 * Until then the shell is like any spare: every signal blocked, nothing open but stdio and the call's
 * socket, no dumps (so no ptrace, but for the moment between its execve(2) and this constructor).
 * Whatever is not as expected ends the process; it has run nothing, and says so (UNUSED). The host
 * believes that until the command was sent: from then on it may be anything that somebody inside put
 * in the shell's place. The shells are those of images, and may be far older than this host: nothing
 * of the C library is used that is newer than 2.17. Where the library can't be loaded the shell runs
 * the text that keeps the place, which is `exit 125` and a comment.
 */
#define _GNU_SOURCE
#include "signals.h"
#include "wire.h"

#include <errno.h>
#include <gnu/libc-version.h>
#include <locale.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { CALL_FD = 3, UNUSED = 125 };

static const char preload[] = "LD_PRELOAD=";

struct argument {
	struct wire_command head;
	char text[WIRE_HOLD_MAX];
};

_Static_assert(sizeof(struct argument) == sizeof(struct wire_command) + WIRE_HOLD_MAX, "padding");

static void say(uint32_t type, uint64_t id, int32_t value)
{
	struct wire_report report = { .magic = WIRE_MAGIC, .type = type, .id = id, .value = value };

	if (send(CALL_FD, &report, sizeof report, MSG_NOSIGNAL) < 0)
		_exit(UNUSED);
}

/* It has run nothing, and says so: an exit status could be a command's own. */
static _Noreturn void refuse(void)
{
	say(WIRE_UNUSED, 0, 0);
	_exit(UNUSED);
}

/*
 * By the system call: a sibling and not a child, so that the guest reaps it. What the C library's
 * own fork would do beside it is for threads and for what it knows of the thread's number: of the
 * first there are none, and the second it asks the kernel for where it matters (raise(3)).
 */
static pid_t fork_sibling(void)
{
	return (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
}

/* Older ones remember getpid(2), which so would be the first shell's. */
static bool numbers_are_asked_for(void)
{
	return strverscmp(gnu_get_libc_version(), "2.25") >= 0;
}

/* In the new process: nothing of the old one's stays open. */
static void begin(uint64_t id, const struct wire_fds *fds)
{
	if (dup2(fds->fd[0], CALL_FD) < 0 || dup2(fds->fd[1], 1) < 0 || dup2(fds->fd[2], 2) < 0 ||
	    syscall(SYS_close_range, CALL_FD + 1, ~0U, 0) < 0)
		_exit(UNUSED);
	setsid();
	say(WIRE_READY, id, 0);
}

static void fork_one(uint64_t id, struct wire_fds *fds)
{
	pid_t pid = -1;
	int error = ENOSYS;

	if (numbers_are_asked_for()) {
		pid = fork_sibling();
		error = errno;
	}
	if (pid == 0) {
		begin(id, fds);
		return;
	}
	wire_close(fds);
	say(WIRE_FORKED, id, pid < 0 ? -error : pid);
}

static size_t wait_for(struct argument *argument)
{
	say(WIRE_HELD, 0, 0);
	for (;;) {
		struct wire_fds fds;
		struct wire_command command;
		wire_await(CALL_FD);
		ssize_t size = wire_receive(CALL_FD, argument, sizeof *argument, 0, &fds);

		/* the end of the socket, or a longer record, which is no argument */
		if (size < (ssize_t)sizeof argument->head)
			refuse();
		if (wire_check_command(argument, (size_t)size, fds.count, &command) == 0 &&
		    command.type == WIRE_FORK) {
			fork_one(command.id, &fds);
			continue;
		}
		if (argument->head.magic != WIRE_MAGIC || argument->head.type != WIRE_ARGUMENT ||
		    fds.count != 0)
			refuse();
		return (size_t)size - sizeof argument->head;
	}
}

/* Take LD_PRELOAD out, so that what the shell starts is not held: from the vector that the shell
 * will see, and its text, which /proc/self/environ shows. */
static void forget(char **envp)
{
	char **to = envp;

	for (char **from = envp; *from; from++) {
		if (strncmp(*from, preload, sizeof preload - 1) == 0)
			memset(*from, 0, strlen(*from));
		else
			*to++ = *from;
	}
	*to = NULL;
}

__attribute__((constructor)) static void hold(int argc, char **argv, char **envp)
{
	struct argument argument;
	size_t length;
	int dumpable;
	char name[16];

	/* Somebody inside may preload this too, into what he likes. */
	if (argc != 3 || strlen(argv[2]) != WIRE_HOLD_MAX)
		return;
	memset(argv[2], 0, WIRE_HOLD_MAX);
	/* A shell begins with this, which opens a dozen files: 0.17 ms of its 0.49. They stay loaded.
	 * Back to "C", as a program that never asks for a locale expects. */
	setlocale(LC_ALL, "");
	setlocale(LC_ALL, "C");
	dumpable = prctl(PR_GET_DUMPABLE);
	if (dumpable < 0 || prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_GET_NAME, name) < 0)
		_exit(UNUSED);
	prctl(PR_SET_NAME, "guest-shell"); /* what it is to whoever lists processes */
	length = wait_for(&argument);
	if (memchr(argument.text, 0, length))
		refuse();
	memcpy(argv[2], argument.text, length);
	forget(envp);
	close(CALL_FD);
	prctl(PR_SET_NAME, name);
	prctl(PR_SET_DUMPABLE, dumpable);
	reset_signals();
}
