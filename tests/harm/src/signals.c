// Counts the signals of half a second.
#include <signal.h>
#include <stdio.h>
#include <time.h>

static volatile int count;

static void on_signal(int signal) { count++; }

int main(void) {
    signal(SIGHUP, on_signal);
    signal(SIGUSR2, on_signal);
    puts("ready");
    fflush(stdout);
    struct timespec half = {0, 500000000}, left;
    // A signal ends the sleep: the rest of the time follows.
    while (nanosleep(&half, &left)) half = left;
    printf("%d signals\n", count);
    return 6;
}
