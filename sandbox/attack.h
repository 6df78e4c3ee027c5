/* What the parts of the attack program share: see attack.c. */
#ifndef STOCKADE_ATTACK_H
#define STOCKADE_ATTACK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* One attempt, in a process of its own. It ends by one of the three below and never returns. */
struct attack {
	const char *name;
	int arguments;
	void (*try)(char **arguments);
};

#define SAYS(first) __attribute__((format(printf, first, first + 1)))

_Noreturn void won(const char *format, ...) SAYS(1);    /* what should not work did */
_Noreturn void held(const char *format, ...) SAYS(1);   /* it was refused */
_Noreturn void cannot(const char *format, ...) SAYS(1); /* it could not even be tried */

/* `held` with the name of errno. */
_Noreturn void refused(const char *what);
/* `won` if result >= 0, else `refused`. */
_Noreturn void verdict(const char *what, long result);

/* Reads at most 64 KiB of `fd` and wins if `mark` is in it. */
_Noreturn void judge_content(int fd, const char *mark);
bool contains(const char *data, size_t size, const char *mark);
/* The program's own file at `path`, mode 0755. Gives 0 or errno. */
int copy_self(const char *path);
/* Runs PROGRAM with one argument; gives its exit status, or -errno if it could not be started. */
int run_copy(const char *program, const char *argument);
long number(const char *text);

extern const struct attack file_attacks[], process_attacks[], kernel_attacks[], network_attacks[],
	resource_attacks[];

/* Things on the host's side, and outside of any sandbox, that attacks aim at: attack_bait.c. */
int bait(int argc, char **argv);
/* Sends `mark` to whoever connects or sends a datagram; never returns. Ports are told on stdout. */
_Noreturn void serve(const char *mark, const char *abstract, bool fixed_ports);

#endif
