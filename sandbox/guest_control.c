/*
 * The guest with two defences taken away, for the controls of `stockade selftest`: it may be dumped,
 * hence traced, and it may share a pid namespace, because it takes itself for pid 1. Linked with
 * guest.c and --wrap; never in the toolbox of any other sandbox.
 */
#include <sys/types.h>

int __wrap_prctl(int option, ...);
pid_t __wrap_getpid(void);

int __wrap_prctl(int option, ...)
{
	(void)option;
	return 0;
}

pid_t __wrap_getpid(void)
{
	return 1;
}
