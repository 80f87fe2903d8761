/* A check, shared by the C programs here, that names what failed and where. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

static inline void check_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    exit(1);
}

#define CHECK(what) ((what) ? (void)0 : check_failed(#what, __FILE__, __LINE__))

#endif
