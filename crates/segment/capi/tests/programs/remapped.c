/* Moves itself, and shows that nothing of it was lost. Its code and data are made large by large.s. */
#define _GNU_SOURCE
#include <megapage.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern int first(int), last(int);
extern const unsigned char constants[4 << 20];
static unsigned int data[1 << 20] = {5, 6, [(1 << 20) - 1] = 8};
static atomic_int ready, stop;
static atomic_ulong calls;

static unsigned long sum(void) {
    unsigned long sum = 0;
    for (int i = 0; i < 4 << 20; i += 64) sum += constants[i];
    for (const char *code = (const char *)(uintptr_t)first; code < (const char *)(uintptr_t)last; code += 4096) sum += *code & 1;
    for (int i = 0; i < 1 << 20; i++) sum = sum * 31 + data[i];
    return sum;
}

/* Runs the code that is moved, and counts in the data that must not be lost. */
static void *work(void *place) {
    unsigned int *mine = place, done = 0;
    atomic_fetch_add(&ready, 1);
    while (!stop) {
        if (first(10) != 11 || last(20) != 22) abort();
        mine[0]++, mine[300000]++, done++;
        atomic_fetch_add(&calls, 1);
    }
    if (mine[0] != done || mine[300000] != done) abort();
    return NULL;
}

static int moved(uint32_t pages, const char *libraries, uint32_t flags) {
    megapage_remapped got = {0};
    int answer = megapage_remap_self(pages, libraries, flags, &got);
    if (answer < 0) printf("answer %d: %s\n", answer, megapage_message());
    else printf("answer %d\n", answer);
    printf("possible %llu huge %llu advised %llu threads %u took %d\n", (unsigned long long)got.possible,
           (unsigned long long)got.huge, (unsigned long long)got.advised, got.threads, got.nanoseconds > 0);
    return answer;
}

int main(int argc, char **argv) {
    const char *task = argc > 1 ? argv[1] : "";
    const char *pages_of = argc > 2 ? argv[2] : "thp";
    uint32_t pages = strcmp(pages_of, "2m") ? MEGAPAGE_REMAP_THP : MEGAPAGE_REMAP_2M;
    unsigned long before = sum();
    if (!strcmp(task, "alone")) {
        moved(pages, NULL, 0);
        if (sum() != before || first(10) != 11 || last(20) != 22) return 3;
        data[5]++;
        moved(pages, NULL, 0);
        data[5]--;
        if (sum() != before) return 4;
        int status;
        pid_t child = fork();
        if (child == 0) {
            /* A child has its own account. */
            megapage_remapped got = {0};
            if (megapage_remap_self(pages, NULL, 0, &got) < 0 || got.possible == 0 || got.threads != 1) _exit(99);
            memset(data, 1, sizeof data);
            _exit(last(3));
        }
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) != 5 || sum() != before) return 5;
    } else if (!strcmp(task, "threads")) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(threads + i, NULL, work, data + 1000 * (i + 1));
        while (ready < 2) usleep(1000);
        for (int i = 0; i < 3; i++) {
            unsigned long reached = calls + 1000;
            moved(pages, NULL, 0);
            while (calls < reached) usleep(1000);
        }
        stop = 1;
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(task, "errors")) {
        moved(9, NULL, 0);
        moved(pages, NULL, 8);
        moved(pages, "libnone.so.1", 0);
        moved(pages, "libc.so.6:", 0);
        megapage_remap_self(pages, "libc.so.6", 0, NULL);
        if (sum() != before) return 6;
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        moved(MEGAPAGE_REMAP_THP, "libc.so.6", MEGAPAGE_REMAP_REQUIRE);
    } else if (!strcmp(task, "mdwe")) {
        if (prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0)) { puts("unknown"); return 0; }
        moved(pages, NULL, 0);
        if (sum() != before) return 7;
    } else {
        moved(pages, NULL, 0);
    }
    puts("whole");
    return 0;
}
