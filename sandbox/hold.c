/*
 * hold.so: preloaded into a shell that is started before its command is known.
 *
 * Starting a shell is an exec, a dynamic loader and its libraries: half of the time of a short
 * command. A spare that execs ahead of time (wire.h, WIRE_HOLD) comes to this constructor, which
 * says HELD and waits. The shell itself has run nothing yet: its main() begins when the ARGUMENT has
 * come, which takes the place of the last argument, where /proc/self/cmdline shows it as well.
 *
 * Until then the shell is like any spare: every signal blocked, no dumps (so no ptrace), nothing
 * open but stdio and the call's socket. Whatever is not as expected ends the process; it has run
 * nothing, and says so (UNUSED), the host's evidence for that. Where the library can't be loaded the
 * shell runs the text that keeps the place, which is `exit 125` and a comment.
 */
#include "signals.h"
#include "wire.h"

#include <errno.h>
#include <locale.h>
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

static void say(uint32_t type)
{
	struct wire_report report = { .magic = WIRE_MAGIC, .type = type };

	if (send(CALL_FD, &report, sizeof report, MSG_NOSIGNAL) < 0)
		_exit(UNUSED);
}

/* It has run nothing, and says so: an exit status could be a command's own. */
static _Noreturn void refuse(void)
{
	say(WIRE_UNUSED);
	_exit(UNUSED);
}

static size_t wait_for(struct argument *argument)
{
	ssize_t size;

	say(WIRE_HELD);
	do {
		/* MSG_TRUNC: the size that was sent, so a longer record is no argument */
		size = recv(CALL_FD, argument, sizeof *argument, MSG_TRUNC);
	} while (size < 0 && errno == EINTR);
	if (size < (ssize_t)sizeof argument->head || size > (ssize_t)sizeof *argument ||
	    argument->head.magic != WIRE_MAGIC || argument->head.type != WIRE_ARGUMENT)
		refuse();
	return (size_t)size - sizeof argument->head;
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
