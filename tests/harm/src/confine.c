// Installs a seccomp filter that kills on system calls that are not listed, and starts a program,
// as a service manager does. usage: confine LIST [NAME=VALUE]... PROGRAM [ARGUMENTS]; LIST holds
// numbers, one a line.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 600 };

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
    for (argv += 2; *argv && strchr(*argv, '='); argv++) putenv(*argv);
    struct sock_fprog program = {length, filter};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("confine: PR_SET_SECCOMP");
        return 125;
    }
    execvp(argv[0], argv);
    perror(argv[0]);
    return 127;
}
