/* Makes system calls with allowed and refused arguments and prints "name<TAB>outcome" for each:
 * ok, the errno's name, or the name of the signal that ended the caller. Arguments are chosen so
 * that a kernel without a filter gives another answer wherever that is possible. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Made by the test from the policy: PLAIN(name, number) and CONDITIONAL(call, argument, second). */
#define PLAIN(name, number) {name, number},
#define CONDITIONAL(name, value, also)
static const struct {
    const char *name;
    long number;
} unconditional[] = {
#include "policy_calls.h"
    {NULL, 0},
};
#undef PLAIN
#undef CONDITIONAL
#define PLAIN(name, number)
#define CONDITIONAL(name, value, also) {name, value, also},
static const struct {
    const char *name;
    unsigned long value, also;
} conditional[] = {
#include "policy_calls.h"
    {NULL, 0, 0},
};

#define HIGH (1UL << 32)

static char buffer[4096];

static void say(const char *name, long result)
{
    printf("%s\t%s\n", name, result < 0 ? strerrorname_np(errno) : "ok");
    fflush(stdout);
}

static void say_fd(const char *name, long fd)
{
    say(name, fd);
    if (fd >= 0)
        close((int)fd);
}

/* In a child, for what changes or ends its caller. */
static void apart(const char *name, long (*call)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        long result = call();
        _exit(result < 0 ? errno : 0);
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("%s\tSIG%s\n", name, sigabbrev_np(WTERMSIG(status)));
    else
        printf("%s\t%s\n", name, WEXITSTATUS(status) ? strerrorname_np(WEXITSTATUS(status)) : "ok");
    fflush(stdout);
}

static void sockets(void)
{
    static const struct {
        const char *name;
        unsigned long family;
        int type, protocol;
    } list[] = {
        {"socket unix", 1, SOCK_STREAM, 0},
        {"socket inet tcp", 2, SOCK_STREAM, 0},
        {"socket inet udp", 2, SOCK_DGRAM, 0},
        {"socket inet6 tcp", 10, SOCK_STREAM, 0},
        {"socket netlink route", 16, SOCK_RAW, 0},
        {"socket netlink audit", 16, SOCK_RAW, 9},
        {"socket netlink netfilter", 16, SOCK_RAW, 12},
        {"socket netlink generic", 16, SOCK_RAW, 16},
        {"socket vsock", 40, SOCK_STREAM, 0},
        {"socket packet + high bits", HIGH | 17, SOCK_RAW, 0},
        {"socket unix + high bits", HIGH | 1, SOCK_STREAM, 0},
        {"socket family -1", (unsigned long)-1, SOCK_STREAM, 0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        say_fd(list[i].name, syscall(SYS_socket, list[i].family, list[i].type, list[i].protocol));
    for (long family = 0; family < 64; family++) {
        char name[32];
        if (family == 1 || family == 2 || family == 10 || family == 16)
            continue;
        snprintf(name, sizeof name, "socket family %ld", family);
        say_fd(name, syscall(SYS_socket, family, SOCK_RAW, 0));
    }
    int pair[2];
    say("socketpair unix", socketpair(1, SOCK_STREAM, 0, pair));
    say("socketpair inet", socketpair(2, SOCK_STREAM, 0, pair));
    say("socketpair tipc", socketpair(30, SOCK_STREAM, 0, pair));
}

static unsigned long flag;

static long do_unshare(void)
{
    return syscall(SYS_unshare, flag);
}

static void spawn(const char *name, unsigned long flags)
{
    /* The stack argument 0 shares the caller's, copied as by fork. */
    long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(0);
    say(name, child);
    if (child > 0)
        waitpid((pid_t)child, NULL, 0);
}

static void namespaces(void)
{
    static const struct {
        const char *name;
        unsigned long flag;
    } list[] = {
        {"NEWNS", CLONE_NEWNS},   {"NEWCGROUP", CLONE_NEWCGROUP}, {"NEWUTS", CLONE_NEWUTS},
        {"NEWIPC", CLONE_NEWIPC}, {"NEWUSER", CLONE_NEWUSER},     {"NEWPID", CLONE_NEWPID},
        {"NEWNET", CLONE_NEWNET},
    };
    char name[64];
    spawn("clone plain", 0);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        flag = list[i].flag;
        snprintf(name, sizeof name, "clone %s", list[i].name);
        spawn(name, flag);
        snprintf(name, sizeof name, "unshare %s", list[i].name);
        apart(name, do_unshare);
    }
    spawn("clone NEWUSER + high bits", HIGH | CLONE_NEWUSER);
    flag = 0x80;
    apart("unshare NEWTIME", do_unshare);
    say("clone3", syscall(SYS_clone3, NULL, 0));
    say("setns", syscall(SYS_setns, -1, 0));
}

static void arguments(void)
{
    say("personality query", syscall(SYS_personality, 0xffffffffUL));
    say("personality READ_IMPLIES_EXEC", syscall(SYS_personality, 0x400000UL));
    say("personality ADDR_NO_RANDOMIZE", syscall(SYS_personality, 0x40000UL));
    say("personality LINUX32", syscall(SYS_personality, 8UL));
    say("personality LINUX", syscall(SYS_personality, 0UL));
    say("prlimit64 self", syscall(SYS_prlimit64, 0, 7, NULL, buffer));
    say("prlimit64 pid 1", syscall(SYS_prlimit64, 1, 7, NULL, buffer));
    say("prlimit64 pid 0 + high bits", syscall(SYS_prlimit64, HIGH, 7, NULL, buffer));
    static const unsigned long requests[] = {
        0x5401, 0x540f, 0x5410, 0x5411, 0x5412, 0x5413, 0x541b, 0x541c, 0x541d, 0x5422,
        0x5423, 0x5424, 0x543f, 0, 0x80000000, 0xffffffff, 0x40086602,
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        char name[64];
        snprintf(name, sizeof name, "ioctl %#lx", requests[i]);
        say(name, syscall(SYS_ioctl, -1, requests[i], 0));
        snprintf(name, sizeof name, "ioctl %#lx + high bits", requests[i]);
        say(name, syscall(SYS_ioctl, -1, HIGH | requests[i], 0));
    }
}

static long trace_me(void) { return ptrace(PTRACE_TRACEME, 0, 0, 0); }

static void plain(void)
{
    struct iovec here = {buffer, 16}, there = {buffer + 64, 16};
    say("keyctl", syscall(SYS_keyctl, 0, -3, 0, 0, 0));
    say("add_key", syscall(SYS_add_key, NULL, NULL, NULL, 0, 0));
    say("request_key", syscall(SYS_request_key, NULL, NULL, NULL, 0));
    say("bpf", syscall(SYS_bpf, 0, NULL, 0));
    say_fd("io_uring_setup", syscall(SYS_io_uring_setup, 4, memset(buffer, 0, 256)));
    say("io_uring_enter", syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0));
    say("io_uring_register", syscall(SYS_io_uring_register, -1, 0, NULL, 0));
    say_fd("userfaultfd", syscall(SYS_userfaultfd, 1));
    say("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    say("kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, 0));
    say("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, NULL, 0));
    say("mount", syscall(SYS_mount, "x", "/mnt", "tmpfs", 0, NULL));
    say("umount2", syscall(SYS_umount2, "/absent", 0));
    say("pivot_root", syscall(SYS_pivot_root, "/absent", "/absent"));
    say("chroot", syscall(SYS_chroot, "/"));
    say_fd("fsopen", syscall(SYS_fsopen, "tmpfs", 1));
    say("fsconfig", syscall(SYS_fsconfig, -1, 6, NULL, NULL, 0));
    say("fsmount", syscall(SYS_fsmount, -1, 0, 0));
    say("fspick", syscall(SYS_fspick, -1, "absent", 0));
    say_fd("open_tree", syscall(SYS_open_tree, -100, "/", 1));
    say("move_mount", syscall(SYS_move_mount, -1, "", -1, "", 4));
    say("mount_setattr", syscall(SYS_mount_setattr, -100, "/", 0, NULL, 0));
    say("name_to_handle_at", syscall(SYS_name_to_handle_at, -100, "/", NULL, NULL, 0));
    say("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, NULL, 0));
    say("pidfd_getfd", syscall(SYS_pidfd_getfd, -1, 0, 0));
    say("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 1, 0, 0));
    say("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
    say("init_module", syscall(SYS_init_module, NULL, 0, ""));
    say("finit_module", syscall(SYS_finit_module, -1, "", 0));
    say("delete_module", syscall(SYS_delete_module, "", 0));
    say("swapon", syscall(SYS_swapon, "/absent", 0));
    say("reboot", syscall(SYS_reboot, 0, 0, 0, NULL));
    say("acct", syscall(SYS_acct, NULL));
    say("sethostname", syscall(SYS_sethostname, "x", 1));
    say("settimeofday", syscall(SYS_settimeofday, NULL, NULL));
    say("syslog", syscall(SYS_syslog, 10, NULL, 0));
    say("quotactl", syscall(SYS_quotactl, -1, NULL, 0, NULL));
    say("io_setup", syscall(SYS_io_setup, 0, buffer));
    say("memfd_secret", syscall(447, 0xff));
    say("unknown call", syscall(999));
    say_fd("memfd_create", syscall(SYS_memfd_create, "x", 0));
    say_fd("inotify_init1", syscall(SYS_inotify_init1, 0));
    say_fd("pidfd_open", syscall(SYS_pidfd_open, getpid(), 0));
    say("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0));
    say("seccomp", syscall(SYS_seccomp, 2, 0, &(uint32_t){0x7fff0000}));
    apart("ptrace", trace_me);
#ifdef __x86_64__
    say("modify_ldt", syscall(SYS_modify_ldt, 0, buffer, 8));
    say("iopl", syscall(SYS_iopl, 0));
#endif
}

static long number, value, also;

static long with_no_sense(void) { return syscall(number, -1, -1, -1, -1, -1, -1); }

static long plain_clone(void)
{
    long child = syscall(SYS_clone, value | SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(0);
    return child;
}

static long plain_socket(void)
{
    return syscall(SYS_socket, value, (int)value == 16 ? SOCK_RAW : SOCK_STREAM, also);
}

static long plain_socketpair(void)
{
    int pair[2];
    return syscall(SYS_socketpair, value, SOCK_STREAM, 0, pair);
}

static long plain_personality(void) { return syscall(SYS_personality, value) < 0 ? -1 : 0; }
static long plain_prlimit64(void) { return syscall(SYS_prlimit64, value, 7, NULL, buffer); }
static long plain_ioctl(void) { return syscall(SYS_ioctl, -1, value, 0); }

/* Everything that the policy says a word about, by the policy's own names and values. */
static void whole_policy(void)
{
    static const struct {
        const char *name;
        long (*call)(void);
    } ways[] = {
        {"clone", plain_clone},
        {"socket", plain_socket},
        {"socketpair", plain_socketpair},
        {"personality", plain_personality},
        {"prlimit64", plain_prlimit64},
        {"ioctl", plain_ioctl},
    };
    char label[128];
    for (size_t i = 0; unconditional[i].name; i++) {
        snprintf(label, sizeof label, "policy %s", unconditional[i].name);
        number = unconditional[i].number;
        if (number < 0)
            printf("%s\tno number\n", label);
        else
            apart(label, with_no_sense);
    }
    for (size_t i = 0; conditional[i].name; i++) {
        long (*call)(void) = NULL;
        for (size_t j = 0; j < sizeof ways / sizeof *ways; j++)
            if (!strcmp(ways[j].name, conditional[i].name))
                call = ways[j].call;
        value = (long)conditional[i].value, also = (long)conditional[i].also;
        snprintf(label, sizeof label, "policy %s %#lx %#lx", conditional[i].name,
                 conditional[i].value, conditional[i].also);
        if (call)
            apart(label, call);
        else
            printf("%s\tno probe\n", label);
    }
}

#ifdef __x86_64__
static long by_int80(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

static long int80_getpid(void) { return by_int80(20, 0, 0, 0); }
static long int80_socket(void) { return by_int80(359, 17, 3, 0); }
static long x32_getpid(void) { return syscall(0x40000000 | 39); }
static long x32_socket(void) { return syscall(0x40000000 | 41, 17, 3, 0); }
#endif

int main(void)
{
    sockets();
    namespaces();
    arguments();
    plain();
    whole_policy();
#ifdef __x86_64__
    apart("int80 getpid", int80_getpid);
    apart("int80 socket", int80_socket);
    apart("x32 getpid", x32_getpid);
    apart("x32 socket", x32_socket);
#endif
    return 0;
}
