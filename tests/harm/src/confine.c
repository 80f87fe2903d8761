// Installs a filter that kills on calls that are not listed, and starts a program, as a service manager does: with the
// environment that it was given itself, a preloaded library included.
// usage: confine LIST PROGRAM [ARGUMENTS]; LIST holds numbers, one a line.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 600 };

// As execvpe(3), past a library that wraps it.
static void execute(char **arguments, char **environment) {
    char path[4096];
    const char *list = strchr(arguments[0], '/') ? "" : "/bin:/usr/bin";
    for (char **variable = environment; *list && *variable; variable++) {
        if (strncmp(*variable, "PATH=", 5) == 0) list = *variable + 5;
    }
    if (!*list) syscall(SYS_execve, arguments[0], arguments, environment);
    for (size_t length; *list; list += length + (list[length] == ':')) {
        length = strcspn(list, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)length, list, arguments[0]);
        syscall(SYS_execve, path, arguments, environment);
    }
}

int main(int argc, char **argv) {
    static struct sock_filter filter[2 * MOST + 2];
    unsigned short length = 0;
    int number;
    FILE *list = argc > 2 ? fopen(argv[1], "re") : NULL;
    if (!list) {
        fprintf(stderr, "confine: no list of calls\n");
        return 125;
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    while (length < 2 * MOST && fscanf(list, "%d", &number) == 1) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    fclose(list);
    // What a preloaded library has taken out of the environment still stands there.
    static char text[1 << 20], *environment[4096];
    FILE *own = fopen("/proc/self/environ", "re");
    size_t size = own ? fread(text, 1, sizeof text - 1, own) : 0, count = 0;
    for (char *at = text; at < text + size && count < 4095; at += strlen(at) + 1) environment[count++] = at;
    if (own) fclose(own);
    struct sock_fprog program = {length, filter};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("confine: PR_SET_SECCOMP");
        return 125;
    }
    execute(argv + 2, environment);
    perror(argv[2]);
    return 127;
}
