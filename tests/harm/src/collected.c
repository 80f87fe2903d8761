// Lists that a conservative collector frees.
#include <gc/gc.h>
#include <stdio.h>

struct link {
    struct link *next;
    long number;
    char rest[100];
};

int main(void) {
    GC_INIT();
    struct link *kept = NULL;
    for (long at = 0; at < 1000000; at++) {
        struct link *link = GC_MALLOC(sizeof *link);
        link->number = at;
        if (at % 10 == 0) {
            link->next = kept;
            kept = link;
        }
    }
    long sum = 0, count = 0;
    for (; kept; kept = kept->next) {
        sum += kept->number;
        count++;
    }
    printf("%ld of %ld, collected %s\n", count, sum, GC_get_gc_no() > 0 ? "yes" : "no");
    return 4;
}
