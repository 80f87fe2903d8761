// Starts a program from a thread with a stack of 16 KiB.
// usage: smallstack VARIABLES
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char *variables[6002];

static void *start(void *none) {
    char *arguments[] = {"echo", "started", NULL};
    execve("/bin/echo", arguments, variables);
    return none;
}

int main(int argc, char **argv) {
    for (int at = 0; at < atoi(argv[1]); at++) {
        variables[at] = malloc(16);
        sprintf(variables[at], "V%d=1", at);
    }
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    if (pthread_create(&thread, &attributes, start, NULL)) return 99;
    pthread_join(thread, NULL);
    return 98;
}
