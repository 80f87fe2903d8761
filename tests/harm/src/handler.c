// Forks in a signal handler that interrupts malloc or mmap: usage: handler heap|maps.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 150 };

static volatile int forks;

static void on_alarm(int signal) {
    int error = errno, status;
    pid_t child = fork();
    if (!child) _exit(0);
    waitpid(child, &status, 0);
    forks++;
    errno = error;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 4000}, {0, 4000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    while (forks < FORKS) {
        if (argv[1][0] == 'h') {
            size_t size = (size_t)(1 + rand() % 6) << 20;
            volatile char *block = malloc(size);
            for (size_t at = 0; at < size; at += 1 << 18) block[at] = 1;
            free((void *)block);
        } else {
            char *mapped = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            mapped[0] = 1;
            munmap(mapped, 1 << 20);
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    puts("forked");
    return 7;
}
