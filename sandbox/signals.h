/*
 * Signals of a process that waits for a command: all blocked while it waits, as a new program
 * expects them afterwards.
 */
#ifndef STOCKADE_SIGNALS_H
#define STOCKADE_SIGNALS_H

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Every disposition to `handler`, by the system call: libc keeps two signals to itself, and a
 * launcher could have left those ignored. SIGKILL and SIGSTOP refuse, which is as it should be.
 */
static inline void set_dispositions(void (*handler)(int))
{
	struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} action = { .handler = handler };

	for (int sig = 1; sig <= 64; sig++)
		syscall(SYS_rt_sigaction, sig, &action, NULL, sizeof action.mask);
}

/*
 * Signals as a new program expects them. What was sent to a waiting process (`kill -TERM -1` of an
 * earlier command) is dropped first, by the one way there is: ignoring it.
 */
static inline void reset_signals(void)
{
	uint64_t pending = 0, none = 0;

	if (syscall(SYS_rt_sigpending, &pending, sizeof pending) < 0 || pending != 0) {
		set_dispositions(SIG_IGN);
		set_dispositions(SIG_DFL);
	}
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
}

#endif
